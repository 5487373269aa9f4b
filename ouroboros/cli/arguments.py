"""The parsers of the commands without Hydra's syntax; nothing else, so that help is quick."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path
from typing import NoReturn

from ouroboros.cli import CONF


def generate() -> argparse.ArgumentParser:
    """Decode one prompt and show who proposed each token.

        ouroboros generate "def mean(values):"
        ouroboros generate "def mean(values):" --race
        ouroboros generate "Once" --target ID --draft ID --temperature 0.8
        ouroboros generate "def f" --decoder speculative decoder.speculative.gamma=3

    By default the models are the reference pair inside the shapes of larger
    models, as in 'ouroboros bench' (model.standin=null: the pair itself), in
    float32; other models have model.dtype=auto. With
    --race greedy decoding runs beside the decoder: they take turns, and the one
    with less time on its own clock goes next, so each text grows at its measured
    speed. Both decode a warm-up text first.
    """
    parser = _parser(generate)
    add = parser.add_argument
    add("prompt", help="the prompt to continue")
    add("overrides", nargs="*", metavar="NAME=VALUE", help="options of conf/config.yaml")
    add("--target", help="hub id or folder of a causal LM")
    add("--draft", help="hub id or folder of a smaller model of its family")
    add("--decoder", default="ouroboros", help="a name in conf/decoder (%(default)s)")
    add("--max-new", type=int, default=128, help="maximum number of new tokens (%(default)s)")
    add("--temperature", type=float, default=0.0, help="0: greedy; above: sampling (%(default)s)")
    add("--seed", type=int, default=0)
    add("--race", action="store_true", help="run greedy decoding beside it")
    return parser


def report() -> argparse.ArgumentParser:
    """Make reports from results folders: tables, pictures, and one HTML page.

        ouroboros report results/main_matched      one run
        ouroboros report results/local/sweep       a sweep: a folder of run folders
        ouroboros report results/main_matched results/main_t08 --out results/report

    The report over all of them goes to --out: report.html, report.md, summary.json,
    numbers.csv, tables/ and plots/. Each folder's own summary.json, summary.md and
    plot stay as they are, unless --remake is given. --costs counts every run by
    costs of a name or of a profile's file: cost per token, predicted speedups.
    Parts of one run that several workers measured are joined. A folder that cannot
    be read is named on stderr and left out; the exit code is then 2. The terminal
    shows one table per run, --wide all of them. With --json, or where stdout is not
    a terminal, the last line on stdout is one JSON document.
    """
    parser = _parser(report)
    add = parser.add_argument
    add("folders", nargs="+", type=Path, metavar="FOLDER", help="a results folder, or one of such")
    add("--out", type=Path, help="where the report goes (default: beside them)")
    add("--costs", help="count by these costs: a name, or a profile's costs.json")
    add("--remake", action="store_true", help="make each folder's own summary and picture anew")
    add("--spec-bench", action="store_true", help="write answers in Spec-Bench's format as well")
    add(
        "--tokenizer",
        metavar="FOLDER",
        help="the runs' tokenizer, so that the page shows text (default: where run.json says)",
    )
    add("--wide", action="store_true", help="print every table of every run")
    return parser


def audit() -> argparse.ArgumentParser:
    """Is a run lossless? Judge every completion: identical, numeric tie or BUG.

        ouroboros bench experiment=audit results_dir=results/local/audit
        ouroboros audit results/local/audit
        ouroboros audit results/local/x task.path=mine.jsonl   its path here

    Loads the models again by the run's config. The text of standard decoding
    (greedy) is compared with transformers' own forward, in float64 and with calls
    of 1, 8 and all tokens; every other decoder's text with that of standard
    decoding. Writes audit.jsonl and audit.md. The exit code is 1 if there is a BUG,
    2 if a completion could not be judged.

        ouroboros audit greedy.jsonl fast.jsonl model=hf model.target=ID

    judges completions of any engine at temperature 0: the first file against the
    model's own forward, the others against the first. Each line has prompt or
    prompt_token_ids, and text or token_ids (vLLM's names). An engine is
    greedy-equivalent if every completion is identical or parts at a numeric tie.
    """
    parser = _parser(audit)
    parser.add_argument("folder", help="a results folder, or a file of greedy completions")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="NAME=VALUE",
        help="options of the run's config, such as paths; for files, the other files and the model",
    )
    return parser


def tune() -> argparse.ArgumentParser:
    """Tune every decoder on the same recorded texts, each with the same effort.

        ouroboros tune --decoders speculative ouroboros --trials 16
        ouroboros tune --prompts functions.jsonl maths.jsonl --costs flat
        ouroboros tune --fit weights.json

    Plain decoding of each prompt, greedy and sampled, is recorded once, in float32.
    Decoders are replayed on these texts; those that ask the target more run live,
    and must give the same texts. Each tries its configured settings, random ones,
    and from the best of them one setting after the other until none gains: on the
    first prompts of each file, the best on all. Counts become speed by the costs of
    each machine in --costs; the geometric mean over files and temperatures counts.
    The report (tuning.json, tuning.md) says what the configured settings lose, and
    those of the other machine. Rerun to resume.

    --fit FILE fits Ouroboros' estimates to the pair instead, some minutes for ten
    prompts, and writes their weights, with what they were fitted on and how well
    they predict, and a picture of that; use them by decoder.ouroboros.weights=FILE.

    Never give it a benchmark's prompts.
    """
    parser = _parser(tune)
    add = parser.add_argument
    prompts = "JSONL (default: conf/task/development*)"
    add("--prompts", nargs="+", metavar="FILE", help=prompts)
    add("--fit", type=Path, metavar="FILE", help="where the fitted weights go")
    noise = "noise levels added to the draft's logits (0)"
    add("--noise", type=float, nargs="+", default=[0.0], help=noise)
    add("--results", type=Path, default=Path("results/local/tuning"))
    spaces = sorted(path.stem for path in Path(CONF, "tune").glob("*.yaml"))
    ours = [name for name in spaces if not name.startswith("hf_")]
    add("--decoders", nargs="*", default=ours)
    costs = "names or files of costs, each searched by itself"
    add("--costs", nargs="+", default=["epyc", "flat"], help=costs)
    add("--trials", type=int, default=24, help="for each decoder, before the search")
    add("--first", type=int, default=6, help="prompts of each file that are searched on")
    add("--limit", type=int, help="prompts of each file; default: every one")
    add("--max-new", type=int, default=96)
    add("--seed", type=int, default=0)
    add("--temperatures", type=float, nargs="+", default=[0.0, 0.4, 0.8])
    add("--overrides", nargs="*", default=[], help="of conf/config.yaml, as model=hf")
    return parser


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Print the error and where the options are listed; exit with 2."""
        self.exit(2, f"error: {message}; '{self.prog} --help' lists the options\n")


def _parser(of) -> argparse.ArgumentParser:
    """Return a parser that is described by a function's docstring."""
    parser = OneLineParser(
        description=inspect.getdoc(of), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if of is not generate:
        parser.add_argument("--json", action="store_true", help="print one JSON document last")
    return parser
