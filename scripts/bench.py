"""Run decoders over a task on one pair of models, and compare them.

    python scripts/bench.py                                       the main job
    python scripts/bench.py decoder=[greedy,ouroboros] task=prompts task.path=mine.jsonl
    python scripts/bench.py model=hf model.target=<id> model.draft=<id> results_dir=results/local/x

All options: conf/. The last line on stdout is one JSON document. A run that was stopped goes on
when the same command with the same results_dir is given again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from tqdm import tqdm

from ouroboros import PhrasePool, vocab
from ouroboros.bench.pair import Pair, PairSpec, load_pair
from ouroboros.bench.prompt import with_context
from ouroboros.bench.provenance import identity, provenance, without_paths
from ouroboros.bench.report import headline, make_report, tables
from ouroboros.bench.run import Bench, MakeDecoder, Sampling
from ouroboros.bench.sample import Sample
from ouroboros.bench.scoring import corpus_scores
from ouroboros.bench.store import ResultsFolder
from ouroboros.bench.task import Example, Task, fingerprint, select

CONF = str(Path(__file__).resolve().parents[1] / "conf")
STARTED = datetime.now().strftime("%Y%m%d-%H%M%S")
NOT_IDENTITY = ("results_dir", "overwrite", "published")
SELECTION = ("limit", "stride", "shuffle")
SAMPLING = ("seed", "temperature", "top_k", "top_p", "min_p")


@hydra.main(version_base="1.3", config_path=CONF, config_name="config")
def main(cfg: DictConfig) -> None:
    """Run one job; an error of the caller's is one line on stderr and exit code 2."""
    try:
        code = bench(cfg)
    except (ValueError, TypeError, OSError, HydraException, OmegaConfBaseException) as error:
        if HydraConfig.get().verbose:
            raise
        print(f"error: {_first_line(error)}", file=sys.stderr)
        code = 2
    if code:
        sys.exit(code)


def bench(cfg: DictConfig) -> int:
    """Run, score, report; return the exit code (1: every sample failed, 130: interrupted)."""
    config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(config, dict)
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    task, examples = build_task(config["task"])
    folder = ResultsFolder(results_path(config, task))
    folder.check_open(run_identity(config, examples), overwrite=config["overwrite"])
    pair = build_pair(config)
    if config["context_tokens"]:
        whole, tokenizer = task.load(), pair.target.tokenizer
        examples = with_context(examples, whole, tokenizer, config["context_tokens"])
    job = Bench(
        target=pair.target,
        models=pair.models,
        task=task,
        examples=examples,
        decoders=build_decoders(config["decoder"], pair),
        max_new=task.max_new if config["max_new"] is None else config["max_new"],
        repeats=config["repeats"],
        sampling=Sampling(**{name: config[name] for name in SAMPLING}),
    )
    run = folder.open_run(
        run_facts(config, job),
        identity=run_identity(config, examples),
        overwrite=config["overwrite"],
    )
    print(f"results: {os.path.relpath(folder.path)}", file=sys.stderr)
    finished = measure(job, folder)
    run["corpus_scores"] = corpus_scores(task, examples, folder.load_samples())
    folder.save_run(run, status="finished" if finished else "interrupted")
    return show(folder, interrupted=not finished)


def measure(job: Bench, folder: ResultsFolder) -> bool:
    """Run and score with progress bars; return False where Ctrl-C (or SIGTERM) ended it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with sample_bar(job.total) as on_sample:
            job.run(folder, on_sample)
        with tqdm(desc="scoring", unit="sample", leave=False, delay=2) as bar:
            job.score(folder, bar.update)
    except KeyboardInterrupt:
        print(
            "interrupted: finished samples are kept; the same results_dir goes on from here",
            file=sys.stderr,
        )
        return False
    finally:
        signal.signal(signal.SIGTERM, before)
    return True


def show(folder: ResultsFolder, *, interrupted: bool) -> int:
    """Write the report, print its tables and, as the last line, one JSON document."""
    summary = make_report(folder)
    print(summary["title"], summary["footnote"], *tables(summary, "simple"), sep="\n\n")
    for name, row in summary["decoders"].items():
        for reason in row["errors"]:
            print(f"{name}: {row['failed']} failed: {reason}", file=sys.stderr)
    document = {
        "results": os.path.relpath(folder.path),
        "title": summary["title"],
        "finished": not interrupted,
        "samples": summary["samples"],
        "decoders": headline(summary),
    }
    print(json.dumps(document, ensure_ascii=False), flush=True)
    if interrupted:
        return 130
    return 1 if all(not row["samples"] for row in summary["decoders"].values()) else 0


@contextmanager
def sample_bar(total: int) -> Iterator:
    """A progress bar on stderr that names the decoder of the last sample and counts failures."""
    failed = 0
    with tqdm(total=total, unit="sample", mininterval=0.5, dynamic_ncols=True) as bar:

        def on_sample(sample: Sample) -> None:
            nonlocal failed
            failed += sample.error is not None
            bar.set_postfix_str(sample.decoder + (f", {failed} failed" if failed else ""), False)
            bar.update()

        yield on_sample


def build_task(options: dict) -> tuple[Task, list[Example]]:
    """Return the task and the chosen examples."""
    own = {key: value for key, value in options.items() if key not in SELECTION}
    task = instantiate(own, _partial_=True, _convert_="all")
    task = _called(task, "task")
    return task, select(task.load(), **{key: options[key] for key in SELECTION})


def build_pair(config: dict) -> Pair:
    """Load the models that the decoders need."""
    wants_draft = any("draft" in decoder for decoder in config["decoder"].values())
    options = instantiate(config["model"], _convert_="all")
    return load_pair(_called(lambda: PairSpec(**options), "model"), with_draft=wants_draft)


def build_decoders(options: dict[str, dict], pair: Pair) -> dict[str, MakeDecoder]:
    """Return a maker for each decoder, tried once.

    A config names its draft by model and its pool by file; here come the model and the pool.
    """
    makers = {}
    for name, own in options.items():
        plain = {key: value for key, value in own.items() if key not in ("draft", "pool")}
        objects: dict[str, object] = {}
        if "draft" in own:
            objects["draft"] = pair.draft
        if own.get("pool"):
            objects["pool"] = load_pool(own, pair)
        makers[name] = _maker(plain, objects, name)
        makers[name]()
    return makers


def load_pool(decoder: dict, pair: Pair) -> PhrasePool:
    """Read the phrase pool of a decoder with `pool_state: loaded`."""
    return PhrasePool.load(
        decoder["pool"],
        tokenizer_id=vocab.fingerprint(pair.target.tokenizer),
        phrase_len=decoder["ngram_size"] - 1,
        per_key=max(1, decoder["verification_set_size"], decoder["topk"]),
    )


def run_facts(config: dict, job: Bench) -> dict:
    """Return what run.json records beside identity and status."""
    model, target = config["model"], job.target
    return without_paths(
        {
            "task": {
                "name": job.task.name,
                "version": job.task.version,
                "licence": job.task.licence,
                "prompts": len(job.examples),
            },
            "model": {
                **{key: model[key] for key in ("name", "target", "draft", "standin")},
                "dtype": str(target.dtype).removeprefix("torch."),
                "device": str(target.device),
            },
            "decoders": list(job.decoders),
            "sampling": asdict(job.sampling),
            "max_new": job.max_new,
            "repeats": job.repeats,
            "samples_wanted": job.total,
            "published": config["published"],
            "config": {key: config[key] for key in config if key not in NOT_IDENTITY},
            "provenance": provenance(),
        }
    )


def run_identity(config: dict, examples: list[Example]) -> str:
    """Return a hash of all that samples depend on: the prompts, and the config but its outputs."""
    settings = {key: value for key, value in config.items() if key not in NOT_IDENTITY}
    return identity(settings, fingerprint(examples))


def results_path(config: dict, task: Task) -> Path:
    """Return the run's folder; each job of a sweep has its own."""
    name = f"{task.name}-{config['model']['name']}-{STARTED}"
    path = Path(config["results_dir"] or Path("results", "local", name))
    hydra_config = HydraConfig.get()
    return path / f"{hydra_config.job.num:03d}" if hydra_config.mode == RunMode.MULTIRUN else path


def _maker(options: dict, objects: dict, name: str) -> MakeDecoder:
    def make():
        maker = instantiate(options, _partial_=True, _convert_="all")
        return _called(lambda: maker(**objects), name)

    return make


def _called(make, what: str):
    """Call `make`; an option it does not know becomes the caller's error."""
    try:
        return make()
    except TypeError as error:
        raise ValueError(f"{what}: {error}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    main()
