"""Lossless decoding acceleration as a `custom_generate` of transformers.

model.generate(**inputs, custom_generate="<this folder>", trust_remote_code=True,
               assistant_model=draft, max_new_tokens=128)
"""

import inspect

from ouroboros import generate as accelerated


def generate(model, inputs=None, input_ids=None, decoder="ouroboros", **given):
    """Generate exactly what standard decoding does. `decoder` is a name in conf/decoder."""
    unset = inspect.signature(type(model).generate).parameters  # None unless the caller sets them
    return accelerated(
        model,
        inputs if inputs is not None else input_ids,
        decoder=decoder,
        **{name: value for name, value in given.items() if value is not None or name not in unset},
    )
