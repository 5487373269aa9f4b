"""What of a completion counts: the text before a stop string, the code in it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_FENCE = re.compile(r"```[^`\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_TAGGED = re.compile(r"\[PYTHON\](.*?)\[/PYTHON\]", re.DOTALL)


def before_stop(completion: str, stop: Sequence[str]) -> str:
    """Return the text up to the first stop string (a completion ends with the token that
    completes one).

    >>> before_stop("Berlin.\\nQuestion: and", ["\\nQuestion:", "\\n\\n"])
    'Berlin.'
    """
    ends = [at for at in (completion.find(string) for string in stop) if at >= 0]
    return completion[: min(ends, default=len(completion))]


_BODY = re.compile(r"\n*(?: {2,}|\t)\S")
_CLOSING = "\n```"


def code_of(completion: str, stop: Sequence[str], *, fenced: bool) -> str:
    """Return the code of a completion: its text up to a stop string or a closing fence.

    `fenced` (see `Template.fenced`): its first fenced or tagged block, if it has one and does not
    begin with indented code, which goes on with the prompt's.

    >>> code_of("    return 1\\nprint(f())", ["\\nprint"], fenced=False)
    '    return 1'
    """
    block = _FENCE.search(completion) or _TAGGED.search(completion)
    if fenced and block and not _BODY.match(completion):
        return block[1]
    return before_stop(completion, [*stop, _CLOSING])
