"""Find the answer in a completion: without reasoning before it, or text after it.

Models put their answer after a reasoning section, a program between sentences, tests after a
function. Without these rules a correct answer would be scored as wrong.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Iterable
from textwrap import dedent

from markdown_it import MarkdownIt

_TAG = r"(?:\w+:)?(?:think|thinking|thought|reasoning)"
_REASONING = re.compile(
    rf"\A(?:.*(?:</{_TAG}>|\[/THINK\])|\s*(?:<{_TAG}>|\[THINK\]).*)", re.DOTALL | re.IGNORECASE
)
_BODY = re.compile(r"(?:[ \t]*\n)*(?: {2,}|\t)[^\s`~]")
_TOP_LEVEL = re.compile(r"\n(?=[^\s#])")
_PROGRAM = re.compile(r"^(?:@|(?:async +)?def |class |import |from \S+ import )", re.MULTILINE)
_FENCE_IN_LINE = re.compile(r"(?<=[^\s`>])[ \t]*(?=```\w*[ \t]*$)", re.MULTILINE)
_PYTHON = re.compile(r"\W*(i?py|$)", re.IGNORECASE)


def answer_of(completion: str, stop: Iterable[str] = ()) -> str:
    """Return the answer in a completion: the text after its reasoning section (`<think>...</think>`
    and the like), up to the first stop string; "" if the reasoning has no end.

    >>> answer_of("<think>Bonn? No.</think>Berlin.\\nQuestion: and", ["\\nQuestion:", "\\n\\n"])
    'Berlin.'
    """
    answer = _REASONING.sub("", completion)
    return min((answer.partition(string)[0] for string in stop), key=len, default=answer)


def code_of(
    completion: str,
    stop: Iterable[str],
    *,
    fenced: bool,
    prompt: str = "",
    names: Collection[str] = (),
) -> str:
    """Return the program in a completion, which is executed after `prompt`.

    Indented code continues the prompt's function up to a stop string, a closing fence, or the next
    line at top level that is no comment, such as a decorator or a sentence. With `fenced`, other
    text is an answer: its program is the last one that defines one of `names`, in a fenced block
    (or [PYTHON] tags) or else in the text; if there is none, the first Python block. Lines after a
    definition that are no code are left out.

    >>> code_of("    return 1\\nprint(f())", ["\\nprint"], fenced=False)
    '    return 1'
    >>> code_of("So:\\n```python\\ndef f(): pass\\n```", [], fenced=True, names={"f"})
    'def f(): pass\\n'
    """
    text = answer_of(completion)
    code = answer_of(text, [*stop, "\n```"])
    if _BODY.match(text):
        ends = (line.start() for line in _TOP_LEVEL.finditer(f"{code}\n."))
        if body := next((code[:end] for end in ends if definitions(prompt + code[:end])), ""):
            return body
    if not fenced:
        return code
    text = re.sub(r"\[PYTHON\]\n?", "\n```python\n", text).replace("[/PYTHON]", "\n```\n")
    tokens = MarkdownIt().parse(_FENCE_IN_LINE.sub("\n", text))
    blocks = [token for token in tokens if token.type == "fence"]
    starts = [line.start() for line in _PROGRAM.finditer(text)]
    sources = [text[start:] for start in starts[:1]] + [block.content for block in blocks]
    programs = [without_prose(dedent(source)) for source in sources]
    defining = [one for one in programs if not definitions(one).isdisjoint(names)]
    python = [block.content for block in blocks if _PYTHON.match(block.info)]
    return [code, *python[:1], *defining][-1]


def without_prose(text: str) -> str:
    """Return the definitions with which a text begins, without the lines after them that are no
    code; "" if there are none."""
    ends = [len(text), *reversed([line.start() for line in _TOP_LEVEL.finditer(text)])]
    return next((text[:end] for end in ends if definitions(text[:end])), "")


def definitions(code: str) -> set[str]:
    """Return the names of a program's functions and classes; none if it has a syntax error.

    >>> definitions("def f():\\n    return 1")
    {'f'}
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            body = ast.parse(code).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return set()
    return {name for node in body if (name := getattr(node, "name", ""))}
