"""The transfer to a machine without network has everything that is imported, and fits."""

import io
import subprocess
import tarfile
from importlib.metadata import PackagePath
from types import SimpleNamespace

import carry
import pytest
from carry import HAS, carried, collect, travelling
from composing import ROOT

MIB = 1 << 20


def test_what_is_there_is_not_carried_and_what_it_needs_is():
    lines = {
        carry.PROJECT: ["torch>=2", "hydra-core>=1.3; extra == 'bench'", "pytest; extra == 'dev'"],
        "hydra-core": ["omegaconf", "antlr4-python3-runtime==4.9.*"],
        "omegaconf": ["PyYAML", "lxml; python_version < '3'"],
    }
    found = carried(needs=lambda name: lines.get(name, ()))
    assert found == ["antlr4-python3-runtime", "hydra-core", "omegaconf", "pytest"]
    assert "hydra-core" not in carried({*HAS, "hydra-core"}, lambda name: lines.get(name, ()))


def test_a_wheel_is_the_indexs_else_built_and_pure(tmp_path, monkeypatch):
    def pip(verb, *rest):
        if verb == "wheel" and "pure==1" in rest:
            (tmp_path.__class__(rest[1]) / "pure-1-py3-none-any.whl").write_bytes(b"x")
            return None
        return "ERROR: No matching distribution"

    monkeypatch.setattr(carry, "pip", pip)
    collect("pure", "1", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pure-1-py3-none-any.whl"]
    with pytest.raises(SystemExit, match=r"no wheel of other 2 for Python 3.12: ERROR: No match"):
        collect("other", "2", tmp_path)


def test_the_models_package_is_split_and_whole_again(tmp_path, monkeypatch):
    (tmp_path / "weights.gguf").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "own.pyc").write_text("")
    names = [PackagePath("weights.gguf"), PackagePath("__pycache__/own.pyc")]
    for name in names:
        name.dist = SimpleNamespace(locate_file=lambda path: tmp_path / path)
    monkeypatch.setattr(carry, "files", lambda _: names)
    parts = carry.pack_model(tmp_path / "parts", 300)
    assert len(parts) > 1 and parts[0].name == f"01of{len(parts):02d}.part"
    with tarfile.open(fileobj=io.BytesIO(b"".join(p.read_bytes() for p in parts))) as archive:
        assert archive.getnames() == ["weights.gguf"]


def test_what_travels_is_measured_and_refused_if_it_is_too_much(tmp_path, monkeypatch, capsys):
    sizes = travelling(ROOT)
    total = sizes.total() - sizes["build"]
    assert total < carry.MOST_BYTES - 8 * MIB, "no room for wheels and kernels"
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "build" / "gpu").mkdir(parents=True)
    for name, size in (("tracked/a", 3), ("stray/b", 2), ("build/gpu/c.whl", 1), ("build/d", 9)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size * MIB))
    (tmp_path / ".gitignore").write_text("build/\n")
    subprocess.run(["git", "-C", tmp_path, "add", "tracked", ".gitignore"], check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(carry, "carried", lambda has: [])
    monkeypatch.setattr(carry, "pack_model", lambda *_: [])
    carry.carry(HAS)
    assert "    6.00 MiB  in all" in capsys.readouterr().out
    monkeypatch.setattr(carry, "MOST_BYTES", 5 * MIB)
    with pytest.raises(SystemExit, match="over 5 MiB would travel: leave the largest out"):
        carry.carry(HAS)
