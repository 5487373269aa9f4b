"""Checks while loading: explain failures, and refuse tokenizers that lose characters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError

from ouroboros.core.trace import first_mismatch

HUB = "give a hub id you can reach, or a folder with config.json, weights and tokenizer"
SHARED = {"cache_dir", "force_download", "gguf_file", "local_files_only", "revision", "subfolder"}
SHARED |= {"token", "trust_remote_code"}
PROBE = "def f(a, b):\n    if a  ==  12:\n\treturn [3, 45]\n\n\n        # x = 0.1\n"
"""Code that must survive encoding and decoding: indentation, spaces, a tab, empty lines, digits."""


def check_folder(name: str) -> None:
    """Raise `ValueError` if a model's name can only be a folder's, and there is no such folder.
    transformers would report it as a malformed hub id."""
    path = Path(name)
    is_folder = name.startswith((".", "~", "/")) or name.count("/") > 1
    is_folder |= len(path.parts) > 1 and path.parent.is_dir()  # such as drafts/mine
    if is_folder and not path.exists():
        raise ValueError(f"cannot load {name!r}: there is no such folder ({HUB})")


def of_tokenizer(options: Mapping) -> dict:
    """Return the `from_pretrained` options of a model that also apply to its tokenizer."""
    return {name: value for name, value in options.items() if name in SHARED}


def why_not_loaded(name: str, error: Exception) -> str:
    """Describe the cause of a loading error and the remedy, in one line."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, SafetensorError):
        return f"its weights are damaged ({reason}): copy or download them again"
    return reason if isinstance(error, ImportError) else f"{reason} ({HUB})"


def check_round_trip(tokenizer, name: str) -> None:
    """Raise `ValueError` if a tokenizer (loaded from `name`) loses characters of code.

    Such a tokenizer would change the prompts that the model reads and the completions that a task
    scores. Some releases of transformers rebuild a byte-level tokenizer as another kind that drops
    every space (https://github.com/huggingface/transformers/issues/45488). Two changes are allowed:
    a leading space, and changes by the tokenizer's own normaliser.
    """
    ids = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    allowed = [PROBE]
    normaliser = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if normaliser is not None:
        allowed.append(normaliser.normalize_str(PROBE).replace("\u2581", " "))
    if any(text.lstrip(" ") == expected.lstrip(" ") for expected in allowed):
        return
    at = first_mismatch(PROBE, text)
    raise ValueError(
        f"the tokenizer of {name!r} ({type(tokenizer).__name__}) decodes {PROBE[at:][:12]!r} as "
        f"{text[at:][:12]!r}: use the tokenizer that the model was trained with; if this is the "
        "one, set tokenizer_class to PreTrainedTokenizerFast in a local copy's "
        "tokenizer_config.json, so that tokenizer.json is read unchanged"
    )
