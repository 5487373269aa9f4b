"""Build decoders from names in conf/decoder, or from configs.

`generate` and the benchmark use the same factory, so names and settings mean the same in both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from inspect import Parameter
from typing import Protocol, runtime_checkable

import yaml

from ouroboros.conf import FOLDER as CONF
from ouroboros.core.instantiate import (
    check_arguments,
    find_class,
    instantiate,
    parameters_of,
    unknown,
)
from ouroboros.core.select import TokenSelector
from ouroboros.core.trace import DecodeTrace
from ouroboros.costs import Costs
from ouroboros.decode import Drafter
from ouroboros.drafters.pool import load_state
from ouroboros.engine.model import CachedModel
from ouroboros.models import vocab

FOLDER = CONF / "decoder"
OBJECTS = {"draft", "pool"}  # given by name in a config: a model, a file


@runtime_checkable
class Peer(Protocol):
    """A decoder that runs in another engine, such as transformers. If it has `joins_rows`, it takes
    several prompts at a time."""

    def run(
        self,
        target: CachedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new: int,
        eos: Collection[int],
        chooses: Sequence[TokenSelector],
        stops: Sequence[Callable[[Sequence[int]], int | None] | None],
    ) -> list[DecodeTrace]:
        """Generate a completion of each prompt; return the traces. `stops[i]` takes the new tokens
        of row i; it returns None to continue, or how many tokens to keep when it ends the row."""
        ...


Decoder = Drafter | Peer
DecoderFactory = Callable[[], Decoder]
"""Returns a new decoder of the same config, with its own pool."""


@cache
def decoder_names() -> list[str]:
    """Return the names of the decoders that `generate` takes: all but peers (`hf_*`, `llama_cpp`),
    which run in the benchmark only."""
    names = sorted(path.stem for path in FOLDER.glob("[!_]*.yaml"))
    classes = {name: find_class(decoder_config(name)["_target_"], name) for name in names}
    return [name for name in names if not hasattr(classes[name], "run")]


def decoder_config(name: str) -> dict:
    """Return the config of a named decoder, merged with its defaults.

    Raises `ValueError` for an unknown name.
    """
    path = FOLDER / f"{name}.yaml"
    if name.startswith("_") or not path.exists():
        raise ValueError(f"there is no decoder {unknown(name, decoder_names())}")
    config = yaml.safe_load(path.read_text("utf-8"))
    bases = [str(base) for base in config.pop("defaults", ()) if base != "_self_"]
    for base in reversed(bases):
        config = decoder_config(base.removesuffix("@_here_")) | config
    return config


def decoder_settings(name: str) -> list[str]:
    """Return the names of a decoder's settings, without `draft`."""
    parameters = parameters_of(decoder_config(name), f"decoder={name!r}")
    return [key for key in parameters if key != "draft"]


def needs_draft(config: str | Mapping) -> bool:
    """Return whether a decoder, given by config or by name, has a draft model in its config."""
    config = decoder_config(config) if isinstance(config, str) else config
    return config.get("draft") is not None


def wants_costs(config: Mapping) -> bool:
    """Return whether a decoder takes `costs` and its config does not set them."""
    return config.get("costs") is None and "costs" in parameters_of(config, "decoder")


def check_decoders(configs: Mapping[str, Mapping] | None) -> None:
    """Raise `ValueError` if `configs` is empty or one is invalid. Loads no model."""
    if not configs:
        raise ValueError("decoder=[] leaves nothing to run: give one or more, as decoder=[greedy]")
    for name, config in configs.items():
        what = f"decoder.{name}"
        check_arguments({k: v for k, v in config.items() if k not in OBJECTS}, what)
        draft = parameters_of(config, what).get("draft")
        if config.get("draft", ...) is None and draft and draft.default is Parameter.empty:
            raise ValueError(
                f"{what} drafts with a small model: give model.draft=<hub id or folder>, "
                "or leave it out of decoder=[...]"
            )


def make_decoder(
    config: str | Mapping,
    draft: CachedModel | None = None,
    *,
    costs: Costs | None = None,
    **settings: object,
) -> Decoder:
    """Return a new decoder from a name in conf/decoder, or from a config with `_target_`.

    `settings` override the config. `draft` is used if the config drafts with a model, `costs` if
    the decoder takes costs and the config does not set them. A `pool` in the config is a drafter's
    saved state; several decoders may start from the same one.

    Raises `ValueError` for an unknown name or setting (with the nearest match), a value of the
    wrong type, or a missing draft model.
    """
    what = f"decoder={config!r}" if isinstance(config, str) else "decoder"
    config = {**(decoder_config(config) if isinstance(config, str) else config), **settings}
    objects: dict[str, object] = {}
    if needs_draft(config):
        if draft is None and parameters_of(config, what)["draft"].default is Parameter.empty:
            raise ValueError(f"{what} needs draft=, a smaller model of the same family")
        objects["draft"] = draft
    if wants_costs(config):
        config.pop("costs", None)
        objects["costs"] = costs
    if config.get("pool") is not None:
        objects["pool"] = config["pool"]
    values = {key: value for key, value in config.items() if key not in OBJECTS}
    return instantiate(values, what, **objects)


def decoder_factories(
    configs: Mapping[str, Mapping],
    draft: CachedModel | None,
    costs: Costs | None = None,
    *,
    tokenizer=None,
    adapt: bool = True,
) -> dict[str, DecoderFactory]:
    """Return a factory for each config, after building one decoder with it as a check. Each `pool`
    file is read once; it must have been made with the target's `tokenizer`. `adapt=False`
    stops decoders from adapting to the times of their steps, so that counts are reproducible."""
    check_decoders(configs)
    factories: dict[str, DecoderFactory] = {}
    for name, config in with_pools(configs, draft, tokenizer).items():
        adapts = "adapt" in parameters_of(config, f"decoder.{name}")
        off = {"adapt": False} if adapts and not adapt else {}
        factories[name] = partial(make_decoder, config, draft, costs=costs, **off)
        factories[name]()
    return factories


def with_pools(
    configs: Mapping[str, Mapping], draft: CachedModel | None, tokenizer=None
) -> dict[str, Mapping]:
    """Return the configs with each `pool` file name replaced by the state in the file."""
    loaded: dict[str, Mapping] = {}
    for name, config in configs.items():
        loaded[name] = config
        if isinstance(config.get("pool"), str):
            empty = make_decoder({**config, "pool": None, "pool_state": "cold"}, draft)
            state = load_state(empty, config["pool"], tokenizer_id=vocab.fingerprint(tokenizer))
            loaded[name] = {**config, "pool": state}
    return loaded
