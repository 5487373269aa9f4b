"""Why a model or a tokenizer could not be loaded, in one line."""

from __future__ import annotations

from pathlib import Path

HUB = "give a hub id you can reach, or a folder with config.json, weights and tokenizer"


def why_not_loaded(name: str, error: Exception) -> str:
    """Return the reason and the remedy; transformers takes a folder that is not there for a badly
    formed hub id, which has at most one slash."""
    is_folder = name.startswith((".", "~", "/")) or name.count("/") > 1
    if is_folder and not Path(name).exists():
        return f"there is no such folder ({HUB})"
    reason = str(error).strip().splitlines()[0]
    return reason if isinstance(error, ImportError) else f"{reason} ({HUB})"
