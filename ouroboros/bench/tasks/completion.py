"""What of a completion counts: the text before a stop string, the code in it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_FENCE = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL | re.IGNORECASE)
_TAGGED = re.compile(r"\[PYTHON\](.*?)\[/PYTHON\]", re.DOTALL)


def before_stop(completion: str, stop: Sequence[str]) -> str:
    """Return the text up to the first stop string (a completion ends with the token that
    completes one).

    >>> before_stop("Berlin.\\nQuestion: and", ["\\nQuestion:", "\\n\\n"])
    'Berlin.'
    """
    ends = [at for at in (completion.find(string) for string in stop) if at >= 0]
    return completion[: min(ends, default=len(completion))]


def code_of(completion: str, stop: Sequence[str]) -> str:
    """Return the code of a completion: its first fenced or tagged block, else its text up to a
    stop string.

    >>> code_of("    return 1\\nprint(f())", ["\\nprint"])
    '    return 1'
    """
    block = _FENCE.search(completion) or _TAGGED.search(completion)
    return block[1] if block else before_stop(completion, stop)
