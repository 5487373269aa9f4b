"""The cache of compiled code."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import pytest
from filelock import FileLock

from ouroboros.core import noise
from ouroboros.core.jit import cache_folder, compile_now
from ouroboros.engine import cpu_kernels


def test_code_is_compiled_again_if_any_of_its_sources_changes(tmp_path):
    callee, caller = tmp_path / "callee.py", tmp_path / "caller.py"
    callee.write_text("a")
    caller.write_text("b")
    before = cache_folder([callee, caller])
    assert before is not None and before == cache_folder([callee, caller])
    callee.write_text("c")
    assert cache_folder([callee, caller]) not in (before, None)


def test_a_user_without_a_name_or_a_home_folder_has_a_cache(tmp_path, monkeypatch):
    def unknown(user):
        raise KeyError(user)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    source = tmp_path / "source.py"
    source.touch()
    assert cache_folder([source]) is not None


def test_a_kernel_is_compiled_without_a_writable_cache_folder(monkeypatch):
    """numba refuses to cache a function of a text, which stands for one of a read-only folder."""
    monkeypatch.setattr(cpu_kernels, "CACHE", None)
    exec("def add(a):\n    a[0] += a[2]", made := {})
    block = (ctypes.c_int64 * 3)(1, 0, 41)
    cpu_kernels.Kernel(made["add"]).alone(block)
    assert block[0] == 42


def test_the_sampler_is_cached_where_it_is_looked_for():
    noise.noise_rows(0, [0], 1)
    assert noise.CACHE is None or any(noise.CACHE.rglob("*.nbi"))


def test_code_is_compiled_where_nothing_can_be_locked(tmp_path):
    (tmp_path / "file").touch()
    assert compile_now(lambda: "compiled", tmp_path / "file" / "cache", "a function") == "compiled"


def test_one_process_compiles_and_the_others_wait(tmp_path):
    with ThreadPoolExecutor() as pool:
        with FileLock(tmp_path / ".lock"):
            other = pool.submit(compile_now, lambda: "compiled", tmp_path, "a function")
            with pytest.raises(TimeoutError):
                other.result(0.3)
        assert other.result(60) == "compiled"
