"""Decoders by name, with the settings that were tuned for them: those of conf/decoder.

The library and the benchmark read the same files, so a name means one thing. transformers' own
modes (`hf_*`) are a peer's whole loop, not drafters, and belong to the benchmark alone.
"""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

import yaml
from transformers import GenerationConfig

from ouroboros import conf
from ouroboros.decode import Drafter
from ouroboros.engine.model import CachedModel

FOLDER = Path(conf.__file__).parent / "decoder"


def names() -> list[str]:
    """Return the names of the decoders that `generate` knows."""
    return sorted(p.stem for p in FOLDER.glob("[!_]*.yaml") if not p.stem.startswith("hf_"))


def wants_draft(name: str) -> bool:
    """Return whether a named decoder drafts with a model. Raises `ValueError` for a name that is
    none."""
    return "draft" in _configured(name)


def settings_of(name: str) -> dict[str, object]:
    """Return a decoder's tuned settings by name, null for what its class fills in."""
    return {
        key: value for key, value in _configured(name).items() if key not in ("_target_", "draft")
    }


def make(name: str, draft: CachedModel | None, settings: dict) -> Drafter:
    """Return a new decoder; `settings` replace tuned ones.

    Raises `ValueError`, naming it, for a name or a setting that there is not, and where a draft is
    missing without which the decoder cannot be.
    """
    maker, tuned = _class(name), settings_of(name)
    parameters = inspect.signature(maker).parameters
    known = [key for key in parameters if key != "draft"]
    for key in settings:
        if key not in known:
            what = f"its settings are {', '.join(known)}" if known else "it has no settings"
            near = get_close_matches(key, [*known, *GenerationConfig().to_dict()], n=1)
            what += f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{key}: not supported by generate with decoder={name!r}; {what}")
    own = {**tuned, **settings}
    if wants_draft(name):
        if draft is None and parameters["draft"].default is inspect.Parameter.empty:
            raise ValueError(f"decoder={name!r} needs draft=, a smaller model of the same family")
        own["draft"] = draft
    return maker(**own)


def _class(name: str) -> type:
    module, _, attribute = _configured(name)["_target_"].rpartition(".")
    return getattr(import_module(module), attribute)


def _configured(name: str) -> dict:
    """Return a config as it stands, on top of the one that it is built upon."""
    if name not in names():
        raise ValueError(f"decoder {name!r} is not one of {', '.join(names())}, or a Drafter")
    own = yaml.safe_load((FOLDER / f"{name}.yaml").read_text("utf-8"))
    below = [base for base in own.pop("defaults", ()) if base != "_self_"]
    found: dict = {}
    for base in below:
        found |= _configured(str(base).removesuffix("@_here_"))
    return found | own
