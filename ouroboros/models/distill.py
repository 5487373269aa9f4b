"""Distil a draft from a target: some of its layers, trained to predict what the target writes.

The draft keeps the target's embedding, output head and norms, which are frozen, and some of its
layers. It is trained by forward KL on texts that the target wrote, half of them greedily and half
sampled; the target's most probable tokens are recorded while it writes. The loss covers the ids of
a trimmed head (`ouroboros.engine.head`), the most frequent ones in these texts.

Invariant: with a budget of tokens, a run that was interrupted and resumed gives the same draft.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import random
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear, log_softmax
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import PreTrainedModel, Trainer, TrainingArguments

from ouroboros.core.select import Sampler, TokenSelector, argmax
from ouroboros.core.tree import TokenTree
from ouroboros.decode import Decoding, RootOnly, begin, together
from ouroboros.engine.head import FILE
from ouroboros.engine.model import CachedModel
from ouroboros.models.vocab import eos_ids

TEMPERATURES = 0.0, 0.8
TOP = 32  # recorded tokens at each position
TOGETHER, WAVE = 32, 128  # texts that share calls; texts between two saves
HELD_OUT, FEWEST = 16, 8  # most prompts that measure agreement; fewest prompts that are accepted
QUESTION, OPENING = 96, 24  # most tokens of a made user turn, and of the start of a plain text
LEAST_STEPS = 64  # a busy machine spends a short budget before there is a text to train on
LOOP = 64  # a text ends if this many last tokens have a period of less than half of them
READ = 256  # the draft reads only the end of a prompt, as in runs (`draft_context`)
WRITING, TRAINING = 0.45, 0.9  # share of the minutes for writing; share after which training ends
EPOCHS = 6  # how often the texts are read with a budget of tokens
BATCH = 4096  # tokens of a training step, padding included
RATE, WARM_UP = 0.005, 0.05  # learning rate, and the share of the steps in which it rises
SAVE_S = 60.0
MARK = "OUROBOROS"  # the message that finds the place of a user turn in a chat template
Job = tuple[Sequence[int], float, int]
"""A text to write: prompt, temperature, seed."""


@dataclass(frozen=True)
class Recipe:
    """How to make a draft.

    - `layers`: indices of the target's layers; a number n stands for the first n - 1 and the last
    - `head`: how many ids the draft scores, at most the vocabulary
    - `minutes`: time to spend; or `tokens` for the target to write, which are read `EPOCHS` times
    - `max_new`: most tokens of a text
    """

    layers: int | Sequence[int] = 4
    head: int = 16384
    minutes: float = 30.0
    tokens: int | None = None
    max_new: int = 256
    seed: int = 0


@dataclass(frozen=True)
class Text:
    """A text of the target: prompt and new tokens, and its `TOP` most probable ids at each new
    token with the logarithms of their probabilities, [new, TOP]."""

    prompt: list[int]
    new: list[int]
    temperature: float
    seed: int
    ids: torch.Tensor
    logs: torch.Tensor


@dataclass(frozen=True)
class Distilled:
    """The result of `distill`: the draft's layers and number of ids; the number of texts, of their
    new tokens and of training steps; agreement before and after training, by temperature; the
    held-out prompts, each once."""

    layers: list[int]
    head: int
    texts: int
    tokens: int
    steps: int
    untrained: dict[float, float]
    trained: dict[float, float]
    held_out: list[list[int]]


def distill(
    target: CachedModel, prompts: Sequence[Sequence[int]] | None, recipe: Recipe, folder: Path
) -> Distilled:
    """Let the target write, train a draft on its texts, and save the draft in `folder`.

    Without `prompts` (token ids), the target makes its own. Progress is kept in the subfolder work,
    which the caller deletes. Raises `ValueError` for a model that is not built like Llama, options
    out of range, too few prompts, and a folder that was begun with other options.
    """
    layers, work = chosen_layers(target.model, recipe.layers), folder / "work"
    prompts = None if prompts is None else [*dict.fromkeys(map(tuple, prompts))]
    if prompts is not None and len(prompts) < FEWEST:
        few = f"{len(prompts)} different prompts are too few"
        raise ValueError(f"{few}: give {FEWEST} or more, hundreds if you can, or prompts=null")
    work.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
    given = {"target": target.model.name_or_path, **asdict(recipe), "prompts": digest}
    _check_resumed(work / "settings.json", given)
    held_out, texts, spent_s = written(target, prompts, recipe, work)
    ids = frequent_ids(target, texts, min(recipe.head, target.vocab_size))
    draft = pruned(target.model, layers)
    untrained = agreement(CachedModel(draft, engine="eager", draft_head=ids), held_out)
    half = target.dtype == torch.bfloat16
    steps = train(Student(draft, ids), texts, ids, recipe, work, spent_s, half=half)
    draft.eval().to(target.dtype).save_pretrained(folder)  # type: ignore[arg-type]
    target.tokenizer.save_pretrained(folder)
    (folder / FILE).write_text(json.dumps(ids), encoding="utf-8")
    trained = agreement(CachedModel(draft, engine="eager", draft_head=ids), held_out)
    greedy = [text.prompt for text in held_out if not text.temperature]
    size = len(texts), sum(len(text.new) for text in texts)
    return Distilled(layers, len(ids), *size, steps, untrained, trained, greedy)


def chosen_layers(model: PreTrainedModel, layers: int | Sequence[int]) -> list[int]:
    """Return the indices of the layers to keep (see `Recipe`). Raises `ValueError` for a model that
    is not built like Llama, and for layers that it does not have."""
    name, base = type(model).__name__, getattr(model, "model", None)
    needed = ("layers", "norm", "embed_tokens")
    if not (all(hasattr(base, part) for part in needed) and hasattr(model, "lm_head")):
        parts = ", ".join(f"model.{part}" for part in needed)
        raise ValueError(f"{name} is not built like Llama ({parts}, lm_head): give such a target")
    for key in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, key, None) not in (None, 1.0):
            raise ValueError(f"{name} changes its logits by {key}: give a target that does not")
    if not all(weight.is_floating_point() for weight in model.parameters()):
        raise ValueError(f"{name} is quantised: give the target without quantization_config")
    whole = len(base.layers)  # type: ignore[union-attr, arg-type]
    chosen = [*range(layers - 1), whole - 1] if isinstance(layers, int) else list(layers)
    if not 1 <= len(chosen) < whole or sorted({*chosen} & {*range(whole)}) != chosen:
        raise ValueError(
            f"layers={layers}: the target has {whole}; give a number from 1 to {whole - 1}, or "
            f"some of 0 to {whole - 1} in ascending order"
        )
    return chosen


def _check_resumed(path: Path, settings: dict) -> None:
    """Save the settings. Raises `ValueError` if the folder was begun with others."""
    if not path.exists():
        path.write_text(json.dumps(settings), encoding="utf-8")
    before, now = json.loads(path.read_text(encoding="utf-8")), json.loads(json.dumps(settings))
    for name in now:
        if now[name] != before[name]:
            old = "other prompts" if name == "prompts" else f"{name}={before[name]}"
            where = f"{path.parent.parent} was begun with {old}"
            raise ValueError(f"{where}: give the same options to resume, or another out")


def written(
    target: CachedModel, prompts: Sequence[Sequence[int]] | None, recipe: Recipe, work: Path
) -> tuple[list[Text], list[Text], float]:
    """Let the target write; return the texts for held-out prompts at each of `TEMPERATURES`, the
    texts to train on, and the seconds spent. Texts are saved in waves; saved ones are loaded."""
    waves: list[list[Text]] = []
    seconds: list[float] = []
    limit_s = 60 * WRITING * recipe.minutes
    with tqdm(total=recipe.tokens, unit="tok", desc="the target writes", disable=None) as bar:
        for wave in count():
            path, began = work / f"texts-{wave:05d}.pt", time.perf_counter()
            if not path.exists():
                texts, until = list[dict](), None
                if wave and not recipe.tokens:
                    until = began + limit_s - sum(seconds[1:])
                jobs = _jobs(target, prompts, wave, recipe.seed, waves[0] if wave else ())
                for text in write(target, jobs, recipe.max_new, eos_ids(target), until):
                    texts.append(vars(text))
                    bar.update(len(text.new))
                torch.save((time.perf_counter() - began, texts), content := io.BytesIO())
                path.with_suffix(".new").write_bytes(content.getvalue())
                path.with_suffix(".new").replace(path)
            took, saved = torch.load(path)
            seconds.append(took)
            waves.append([Text(**one) for one in saved])
            train_on = [text for texts in waves[1:] for text in texts]
            tokens = sum(len(text.new) for text in train_on)
            enough = tokens >= recipe.tokens if recipe.tokens else sum(seconds[1:]) > limit_s
            if tokens and enough:
                return waves[0], train_on, sum(seconds)
    raise AssertionError("unreachable")


def _jobs(
    target: CachedModel,
    prompts: Sequence[Sequence[int]] | None,
    wave: int,
    seed: int,
    held_out: Sequence[Text],
) -> list[Job]:
    """Return the texts to write in a wave; wave 0 has the held-out prompts at each temperature. In
    later waves, a prompt is answered greedily, then sampled, or the reverse, then sampled again."""
    draw, aside = random.Random(f"{seed}/{wave}"), [text.prompt for text in held_out]
    if prompts is None:
        pool: list = own_prompts(target, WAVE if wave else HELD_OUT, draw)
    else:
        size = min(HELD_OUT, len(prompts) // 4)
        pool = list(map(list, prompts if wave else prompts[:: len(prompts) // size][:size]))
    if not (pool := [prompt for prompt in pool if prompt not in aside]):
        raise ValueError("the target makes no different prompts: give your own, as prompts=FILE")
    start, end = (WAVE * (wave - 1), WAVE * wave) if wave and prompts else (0, len(pool))
    jobs: list[Job] = []
    for turn, at in (divmod(number, len(pool)) for number in range(start, end)):
        place = (at + turn) % 2 if turn < 2 else 1
        for temperature in TEMPERATURES[place : place + 1] if wave else TEMPERATURES:
            jobs.append((pool[at], temperature, draw.getrandbits(60)))
    return jobs


def own_prompts(target: CachedModel, size: int, draw: random.Random) -> list[list[int]]:
    """Let the target make up to `size` different prompts: with a chat template, user turns (Magpie,
    Xu et al. 2024, arXiv 2406.08464); without, the start of a text, after a random id."""
    tokenizer, ends = target.tokenizer, set(eos_ids(target))
    chat = bool(getattr(tokenizer, "chat_template", None))
    if chat:
        opening, _, closing = chat_prompt(tokenizer, MARK).partition(MARK)
        starts = [tokenizer(opening, add_special_tokens=False).input_ids] * size
        ends |= {*tokenizer(closing, add_special_tokens=False).input_ids[:1]}
    else:
        bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        known = min(len(tokenizer), target.vocab_size)
        starts = [[*bos, draw.randrange(known)] for _ in range(size)]
    jobs = [(start, 1.0, draw.getrandbits(60)) for start in starts]
    found: dict[tuple[int, ...], None] = {}
    for text in write(target, jobs, QUESTION if chat else OPENING, ends):
        new = [token for token in text.new if token not in ends]
        content = tokenizer.decode(new, skip_special_tokens=True).strip()
        if chat:
            question = chat_prompt(tokenizer, content)
            prompt = tokenizer(question, add_special_tokens=False).input_ids
        else:
            prompt = [*text.prompt, *new]
        if content:
            found[tuple(prompt)] = None
    return list(map(list, found))


def chat_prompt(tokenizer, content: str) -> str:
    """Return the text of a chat with one user turn, up to the answer."""
    messages = [{"role": "user", "content": content}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


class Recorder(TokenSelector):
    """Selects like `choose`, and records the target's most probable tokens in `rows`."""

    def __init__(self, choose: TokenSelector) -> None:
        self.choose = choose
        self.rows: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        best, ids = logits.float().topk(min(TOP, logits.shape[-1]), dim=-1)
        logs = best - logits.float().logsumexp(-1, keepdim=True)
        self.rows.append((ids.int(), logs.half()))
        return self.choose(logits, tokens, tree)


def selector(temperature: float, seed: int) -> TokenSelector:
    """Return the selector of a temperature; 0 is greedy."""
    return Sampler(temperature=temperature, seed=seed) if temperature else argmax


def write(
    target: CachedModel,
    jobs: Sequence[Job],
    max_new: int,
    ends: Collection[int],
    until: float | None = None,
) -> Iterator[Text]:
    """Yield the texts of `jobs` as they end: at one of the ids `ends`, after `max_new` tokens, or
    if they repeat themselves. At `until`, in seconds of `time.perf_counter`, all end, if
    `LEAST_STEPS` steps were made."""
    records: dict[Decoding, tuple[Recorder, float, int]] = {}

    def begun() -> Iterator[Decoding]:
        for prompt, temperature, seed in jobs:
            record = Recorder(selector(temperature, seed))
            how: dict = {"max_new": max_new, "eos": ends, "choose": record}
            records[one := begin(target, RootOnly(), prompt, **how)] = record, temperature, seed
            yield one

    size = 1 if target.why_not_together() else TOGETHER
    for step, live in enumerate(together(begun(), size)):
        late = until is not None and step >= LEAST_STEPS and time.perf_counter() > until
        for one in live:
            prompt, new = one.trace.tokens[: one.trace.prompt_len], one.trace.new_tokens
            if late or any(new[n - LOOP :] == new[-LOOP:-n] for n in range(1, LOOP // 2)):
                one.left = 0
            if one.left <= 0:
                record, *how = records.pop(one)
                rows = [torch.cat(parts).cpu() for parts in zip(*record.rows, strict=True)]
                yield Text(prompt, new, *how, *rows)  # type: ignore[arg-type]
        if late:
            return


def frequent_ids(target: CachedModel, texts: Sequence[Text], size: int) -> list[int]:
    """Return `size` ids: those that end a text, then the others by the sum of the probabilities
    that the target gave them; ties, such as ids that it never gave any, by id."""
    sums = torch.zeros(target.vocab_size)
    for text in texts:
        sums.index_add_(0, text.ids.flatten().long(), text.logs.flatten().float().exp())
    ranked = sums.argsort(descending=True, stable=True).tolist()
    return list(dict.fromkeys([*sorted(eos_ids(target)), *ranked]))[:size]


def pruned(model: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """Return a float32 model of some of a model's layers, whose weights are copied."""
    config, whole = copy.deepcopy(model.config), model.config.num_hidden_layers
    for key, value in vars(model.config).items():
        if isinstance(value, list | tuple) and len(value) == whole:  # such as layer_types
            setattr(config, key, [value[at] for at in layers])
    config.num_hidden_layers = len(layers)
    vars(config).pop("quantization_config", None)  # a GGUF file's
    every = model.state_dict().items()
    weights = {k: w.clone() for k, w in every if not k.startswith("model.layers.")}
    for to, at in enumerate(layers):
        own = model.get_submodule(f"model.layers.{at}").state_dict()
        weights |= {f"model.layers.{to}.{name}": weight.clone() for name, weight in own.items()}
    how: dict = {"config": config, "state_dict": weights, "dtype": torch.float32}
    draft: Any = type(model).from_pretrained(None, **how)
    draft.to(model.device)
    draft.generation_config = copy.deepcopy(model.generation_config)
    return draft.eval()


class Student(nn.Module):
    """The draft in training: its body, and the rows of the trimmed head. Only the matrices of its
    layers are trained. The loss is the forward KL of the recorded probabilities, per token."""

    head: torch.Tensor

    def __init__(self, draft: PreTrainedModel, ids: Sequence[int]) -> None:
        super().__init__()
        self.body: Any = draft.model
        for name, weight in self.body.named_parameters():
            weight.requires_grad = name.startswith("layers.") and weight.ndim == 2
        head: Any = draft.get_output_embeddings()
        self.register_buffer("head", head.weight.detach()[list(ids)], persistent=False)

    def forward(self, input_ids, attention_mask, rows, columns, shares) -> dict:
        """Return {"loss": ...}. `rows` are the N scored positions among all, `columns` the places
        in the head of the recorded ids, and `shares` their probabilities, [N, TOP]."""
        out = self.body(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        logits = linear(out.last_hidden_state.flatten(0, 1)[rows], self.head)
        logs = log_softmax(logits, -1, dtype=torch.float32).gather(1, columns)
        return {"loss": (torch.xlogy(shares, shares) - shares * logs).sum(-1).mean()}


def batches(texts: Sequence[Text], ids: Sequence[int], vocab: int) -> list[dict]:
    """Return `Student`'s inputs for texts of similar lengths, about `BATCH` tokens each. Recorded
    ids outside of the head `ids` have no share."""
    column = torch.full((vocab,), -1)
    column[list(ids)] = torch.arange(len(ids))
    by_length = sorted(texts, key=lambda text: len(text.prompt[-READ:]) + len(text.new))
    made: list[dict] = []
    while by_length:
        longest = len(by_length[-1].prompt[-READ:]) + len(by_length[-1].new) - 1
        size = max(1, BATCH // longest)
        part, by_length = by_length[-size:], by_length[:-size]
        tokens = [torch.tensor([*text.prompt[-READ:], *text.new[:-1]]) for text in part]
        ends = [row * longest + len(own) for row, own in enumerate(tokens)]
        rows = [torch.arange(end - len(t.new), end) for end, t in zip(ends, part, strict=True)]
        columns = column[torch.cat([text.ids for text in part]).long()]
        shares = torch.cat([text.logs for text in part]).float().exp() * (columns >= 0)
        made.append(
            {
                "input_ids": pad_sequence(tokens, batch_first=True),
                "attention_mask": pad_sequence([torch.ones_like(t) for t in tokens], True),
                "rows": torch.cat(rows),
                "columns": columns.clamp(min=0),
                "shares": shares,
            }
        )
    return made


def train(
    student: Student,
    texts: Sequence[Text],
    ids: Sequence[int],
    recipe: Recipe,
    work: Path,
    spent_s: float,
    *,
    half: bool,
) -> int:
    """Train the draft; return the number of steps. `spent_s` of the minutes are over; `half`
    computes in bfloat16. Resumes from the last checkpoint in `work`."""
    data = batches(texts, ids, len(student.body.embed_tokens.weight))
    plan, folder = work / "plan.json", work / "checkpoints"
    if not plan.exists():  # a resumed run keeps its number of steps
        step_s = _step_s(student, data, half=half)
        steps = EPOCHS * len(data)
        if not recipe.tokens:
            steps = max(1, int((60 * TRAINING * recipe.minutes - spent_s) / step_s))
        plan.write_text(json.dumps({"max_steps": steps, "save_steps": max(1, SAVE_S // step_s)}))
    planned = json.loads(plan.read_text())
    steps = planned["max_steps"]
    arguments = TrainingArguments(
        str(folder),
        **planned,
        per_device_train_batch_size=1,  # of `data`, whose items are batches
        learning_rate=RATE,
        lr_scheduler_type="cosine",
        warmup_steps=int(WARM_UP * steps),
        save_total_limit=1,
        logging_steps=max(1, steps // 10),
        bf16=half,
        use_cpu=student.head.device.type == "cpu",
        seed=recipe.seed,
        report_to="none",
        remove_unused_columns=False,
    )
    arguments._n_gpu = min(1, arguments.n_gpu)  # these batches cannot be split
    weights = [weight for weight in student.parameters() if weight.requires_grad]
    how: dict = {"weight_decay": 0.01, "adjust_lr_fn": "match_rms_adamw"}
    both: Any = torch.optim.Muon(weights, lr=RATE, **how), None
    trainer = Trainer(student, arguments, itemgetter(0), data, optimizers=both)  # type: ignore
    found = [path.parent for path in folder.glob("*/trainer_state.json")]  # written last
    last = max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
    with contextlib.redirect_stdout(sys.stderr):
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    return steps


def _step_s(student: Student, data: Sequence[dict], *, half: bool) -> float:
    """Return the seconds of a training step, without the optimizer's."""
    device, times = student.head.device, list[float]()
    for batch in [data[0], *data[:: max(1, len(data) // 3)]]:
        began = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            out = student(**{name: value.to(device) for name, value in batch.items()})
        out["loss"].backward()
        times.append(time.perf_counter() - began + 0 * out["loss"].item())
    student.zero_grad()
    return fmean(times[1:])


def agreement(draft: CachedModel, texts: Sequence[Text]) -> dict[float, float]:
    """Return how often the draft selects the target's token, given the target's text, by
    temperature: means over texts. Sampling uses the target's noise."""
    draft.prefill_limit = READ
    rates: dict[float, list[float]] = {temperature: [] for temperature in TEMPERATURES}
    for text in texts:
        tree = TokenTree.chain(text.prompt[-1], text.new[:-1])
        logits = draft.score(draft.new_sequence(), text.prompt, tree)
        chosen = selector(text.temperature, text.seed)(logits, text.prompt, tree)
        hits = [ours == own for ours, own in zip(chosen, text.new, strict=True)]
        rates[text.temperature].append(fmean(hits))
    return {temperature: fmean(own) for temperature, own in rates.items()}
