"""Tiny random models and a byte-level tokenizer for the bench's tests."""

from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ouroboros import CachedModel
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.replay.recording import RecordedRun, RecordedRuns
from ouroboros.bench.replay.replay import replay
from ouroboros.bench.run.config import RunConfig
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.pair import PairSpec
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.bench.tasks.task import Example
from ouroboros.decode import RootOnly

EOS = "<eos>"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """256 bytes, a few merges across stop strings, and one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ċ", "d"), ("e", "f"), ("a", "b"), ("Ċ", "Ċ")]
    vocab = {piece: i for i, piece in enumerate([*alphabet, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS)


def tiny_llama(seed: int, *, layers: int = 1) -> LlamaForCausalLM:
    """A random float32 Llama over the byte tokenizer's vocabulary."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(byte_tokenizer()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=8192,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def save_pair(pair, folder: Path) -> Path:
    """Save a target and a draft in a folder, each in a folder of that name."""
    for name, model in zip(("target", "draft"), pair, strict=True):
        model.model.save_pretrained(folder / name)
        model.tokenizer.save_pretrained(folder / name)
    return folder


def tiny_pair() -> tuple[CachedModel, CachedModel]:
    """A target and a draft that often agree: the same weights but for the draft's noise."""
    target, draft = tiny_llama(0), tiny_llama(0)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=noise))
    tokenizer = byte_tokenizer()
    return CachedModel(target, tokenizer=tokenizer), CachedModel(draft, tokenizer=tokenizer)


class TextTask:
    """Prompts that nothing scores."""

    name, version, licence = "texts", "1", "none"

    def __init__(self, *prompts: str, max_new: int = 12, stop: tuple[str, ...] = ()) -> None:
        self.examples = [Example(f"p{i}", prompt) for i, prompt in enumerate(prompts)]
        self.max_new, self.stop = max_new, stop

    def load(self):
        return self.examples

    def score(self, example, completion):
        return {}


def bench_of(models, task, decoders, **options) -> Bench:
    """A bench over a task's prompts; the target is the first model."""
    options = {"examples": task.load(), "max_new": task.max_new, **options}
    return Bench(models[0], list(models), task, decoders=decoders, **options)


def run_config(saved: Path, **changes) -> RunConfig:
    """The config of a run of four tokens for two prompts, on models that `save_pair` saved."""
    options = {
        "model": PairSpec("tiny", str(saved / "target"), dtype="float32"),
        "task": TaskSpec("prompts", {"path": "examples"}, limit=2),
        "decoder": {"greedy": {"_target_": "ouroboros.baselines.Greedy"}},
        **{"max_new": 4, "timing": False, "threads": 1, "results_dir": str(saved / "run")},
    }
    return RunConfig(**{**options, **changes})


def ran(bench: Bench, path, *, facts=(), seen=None) -> ResultsFolder:
    """Start or resume a run in a folder; append its samples to `seen`."""
    folder = ResultsFolder(path)
    folder.open_run(dict(facts))
    for sample in bench.run(folder):
        if seen is not None:
            seen.append(sample)
    return folder


def replay_run(drafter, recorded: RecordedRuns, run: RecordedRun, **options) -> Sample:
    """Replay one of the recorded runs."""
    (sample,) = replay(replace(recorded, runs=[run]), drafter, **options)
    return sample


class Stop(list):
    """Interrupts a run after some samples."""

    def __init__(self, most: int) -> None:
        self.most = most

    def append(self, sample) -> None:
        super().append(sample)
        if len(self) >= self.most:
            raise KeyboardInterrupt


class Moody(RootOnly):
    """Fails on its first prompt while `bad`."""

    bad, prompts = True, 0

    def reset(self, choose):
        self.prompts += 1
        if self.bad and self.prompts == 1:
            raise RuntimeError("not today")


class CostAware(RootOnly):
    """Asks what calls cost, and remembers what it was told last."""

    told: object = None

    def __init__(self, costs=None):
        CostAware.told = costs
