"""The command line: `ouroboros COMMAND ...`, or `python -m ouroboros COMMAND ...`.

A command's module, and with it torch, is imported when the command runs, never for its help. The
help of commands with Hydra's syntax is in conf/hydra/help, the help of the others is here.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import ouroboros
from ouroboros.conf import FOLDER

COMMANDS = {
    "generate": "decode one prompt; colours show each token's source",
    "bench": "run decoders over a task on one pair of models, and compare them",
    "report": "make tables, plots and an HTML page from results folders",
    "audit": "check that a run is lossless, with a verdict on every completion",
    "profile": "time calls of both models, and the phases of each step",
    "replay": "run drafters on recorded text, without the target",
    "tune": "search every decoder's best settings, with the same effort for each",
    "distill": "make a draft for a model, from the model itself",
}
HYDRA = {"bench": "config", "profile": "profiling", "replay": "replay", "distill": "distill"}
"""Commands with Hydra's syntax, and their configs. Their functions take the config as a dict."""
PRINTED = "printed by the job of a sweep"
SOME_FAILED = 3
"""The exit code of a run in which some samples failed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named by the first argument; return its exit code.

    A user error prints one line on stderr and gives exit code 2; with HYDRA_FULL_ERROR set, it
    prints the traceback. Characters that the terminal cannot show are printed as "?".
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    parser = argparse.ArgumentParser(
        prog="ouroboros",
        description=str(ouroboros.__doc__).splitlines()[0],
        epilog="'ouroboros COMMAND --help' describes a command.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {ouroboros.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    chosen, rest = parser.parse_known_args(argv)
    name = chosen.command
    try:
        if name in HYDRA:
            return run_hydra(name, rest)
        options = parser_of(name).parse_intermixed_args(rest)
        return run(name, options, as_json=vars(options).get("json", False))
    except (Exception, KeyboardInterrupt) as error:
        from ouroboros.cli.common import CALLERS, one_line

        if not isinstance(error, CALLERS) or os.environ.get("HYDRA_FULL_ERROR"):
            raise
        stopped = isinstance(error, KeyboardInterrupt)
        if PRINTED not in getattr(error, "__notes__", ()):
            print(("" if stopped else "error: ") + one_line(error), file=sys.stderr)
        return 130 if stopped else 2


def run(name: str, options: Any, *, as_json: bool) -> int:
    """Run a command with its options (parsed arguments, or a Hydra config); return its exit code.

    With `as_json`, or if stdout is not a terminal, print its JSON document as the last line.
    SIGTERM interrupts the command as Ctrl-C does.
    """
    from ouroboros.cli.checks import check

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    check(name, options)
    command = getattr(importlib.import_module(f"ouroboros.cli.{name}"), name)
    from transformers.utils.logging import set_tqdm_hook

    # Show transformers' bars only while weights take longer than 2 s to load.
    set_tqdm_hook(lambda make, args, options: make(*args, **{**options, "delay": 2}))
    code, document = command(options)
    if document is not None and (as_json or not sys.stdout.isatty()):
        print(json.dumps(document), flush=True)
    return code


def run_hydra(name: str, argv: Sequence[str]) -> int:
    """Compose a command's config and run it (in a sweep once per job); return the exit code.

    A sweep continues after failed samples (its exit code is then that of such a job) and after jobs
    that cannot run, and skips finished jobs.
    """
    import hydra
    from hydra._internal.utils import get_args_parser
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from ouroboros.cli.common import CALLERS, composed, one_line, plain, quoted, unknown_flag

    rest = [quoted(one) for one in argv if one != "--json"]
    rest.sort(key=lambda one: one not in ("-m", "--multirun"))  # Hydra wants these before options
    if flags := get_args_parser().parse_known_args(rest)[1]:
        raise ValueError(unknown_flag(name, flags[0], composed([], name=HYDRA[name])))
    sys.argv = [f"ouroboros {name}", *rest]
    failure: list[BaseException] = []
    ended = {0}  # exit codes of the jobs
    following: list[Path] = []  # with overwrite: the folder numbered after the last job's

    def job(cfg) -> None:
        sweep = HydraConfig.get().mode == RunMode.MULTIRUN
        if sweep and cfg.get("overwrite") and cfg.results_dir:
            following[:] = [Path(cfg.results_dir, f"{HydraConfig.get().job.num + 1:03d}")]
        try:
            code = run(name, plain(cfg), as_json="--json" in argv)
        except CALLERS as error:
            if sweep:
                from ouroboros.bench.run.folder import Finished

                print(f"job {HydraConfig.get().job.num}: {one_line(error)}", file=sys.stderr)
                error.add_note(PRINTED)
                if isinstance(error, Finished):
                    return
                raise
            failure.append(error)  # Hydra would print an extra line
            return
        if code and not (sweep and code == SOME_FAILED):
            sys.exit(code)
        ended.add(code)

    full = os.environ.get("HYDRA_FULL_ERROR", "")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra formats errors itself
    try:
        hydra.main(version_base="1.3", config_path=str(FOLDER), config_name=HYDRA[name])(job)()
    finally:
        os.environ["HYDRA_FULL_ERROR"] = full
    if failure:
        raise failure[0]
    for old in filter(Path.exists, following):
        print(f"{old} is a job of an earlier sweep; delete it and those after it", file=sys.stderr)
    return max(ended)


class Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors."""

    def error(self, message: str) -> NoReturn:
        """Print the error, say where the options are listed, and exit with code 2."""
        self.exit(2, f"error: {message}; '{self.prog} --help' lists the options\n")


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command that does not use Hydra; the docstring of the function that
    adds its options is its help."""
    add_options = {"generate": generate, "report": report, "audit": audit, "tune": tune}[name]
    parser = Parser(
        prog=f"ouroboros {name}",
        description=inspect.getdoc(add_options),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser.add_argument)
    if name != "generate":
        parser.add_argument("--json", action="store_true", help="print one JSON document last")
    return parser


def generate(add: Callable) -> None:
    """Decode one prompt and show the source of each token.

        ouroboros generate "def mean(values):"
        ouroboros generate "def mean(values):" --race
        ouroboros generate "Once" --target ID --draft ID --temperature 0.8
        ouroboros generate "def f" --decoder speculative decoder.speculative.gamma=3

    The default models are those of 'ouroboros bench': stand-ins of larger models,
    made from the reference pair, in float32 (model.standin=null: the pair itself).
    Other models have model.dtype=auto. If the tokenizer has a chat template, the
    prompt is a user's turn; task.template_args.enable_thinking=false is an argument
    of the template, and --template none continues the prompt's text itself. With
    --race, greedy decoding runs too. The two decoders take turns: the one that has
    used less time goes next, so each text grows at its measured speed. Both decode
    a warm-up text first.
    """
    add("prompt", help="the prompt to continue")
    options = "options of conf/config.yaml"
    add("overrides", nargs="*", default=[], metavar="NAME=VALUE", help=options)
    add("--target", help="hub id or folder of a causal LM")
    add("--draft", help="hub id or folder of a smaller model of its family")
    template = "none: do not use the model's chat template (auto: use it, if there is one)"
    add("--template", choices=("auto", "none"), default="auto", help=template)
    add("--decoder", default="ouroboros", help="a name in conf/decoder (%(default)s)")
    add("--max-new", type=int, default=128, help="maximum number of new tokens (%(default)s)")
    add("--temperature", type=float, default=0.0, help="0: greedy; above: sampling (%(default)s)")
    add("--seed", type=int, help="seed of sampling (0)")
    add("--race", action="store_true", help="also run greedy decoding")


def report(add: Callable) -> None:
    """Make reports from results folders: tables, plots, and one HTML page.

        ouroboros report results/main_matched      one run
        ouroboros report results/local/sweep       a sweep: a folder of run folders
        ouroboros report results/main_matched results/main_t08 --out results/report

    One report on all runs is written to --out: report.html, report.md,
    summary.json, numbers.csv, tables/ and plots/. Each folder's summary.json,
    summary.md and plot stay unchanged without --remake. --costs takes a name of
    costs, or a file written by 'ouroboros profile', and adds cost per token and
    predicted speedups. A folder that cannot be read is named on stderr and skipped;
    the exit code is then 2. The terminal shows one table per run, with --wide all
    tables. With --json, or if stdout is not a terminal, the last line on stdout is
    one JSON document.
    """
    add("folders", nargs="+", type=Path, metavar="FOLDER", help="a results folder or its parent")
    add("--out", type=Path, help="report folder (default: beside the results folders)")
    add("--costs", help="costs for predictions: a name, or a profile's costs.json")
    add("--remake", action="store_true", help="rewrite each folder's summary and plot")
    where = "the runs' tokenizer, for the texts on the page (default: the one named in run.json)"
    add("--tokenizer", metavar="FOLDER", help=where)
    add("--wide", action="store_true", help="print every table of every run")


def audit(add: Callable) -> None:
    """Check that a run is lossless: a verdict on each completion, such as BUG.

        ouroboros bench experiment=audit results_dir=results/local/audit
        ouroboros audit results/local/audit
        ouroboros audit results/local/x task.path=mine.jsonl   if the file has moved

    Reloads the models from the run's config. Compares the completions of greedy
    (standard decoding) with transformers' own forward, in float64 and with calls
    of 1, 8 and all tokens, and the completions of other decoders with greedy's.
    Writes audit.jsonl and audit.md, and scores completions that have no score.
    The exit code is 1 if there is a BUG, and 2 if a completion is "not judged" or
    "not measured".

    To audit completions of any engine at temperature 0:

        ouroboros audit greedy.jsonl fast.jsonl model=hf model.target=ID

    compares the first file with the model's own forward, and the others with
    the first. Each line has prompt or prompt_token_ids, and text or token_ids
    (vLLM's names). An engine is greedy-equivalent if every completion is
    identical or differs only by a numeric tie.
    """
    add("folder", help="a results folder, or a file of greedy completions")
    what = "options of the run's config, such as paths; or more files, then the model's options"
    add("overrides", nargs="*", default=[], metavar="NAME=VALUE", help=what)


def tune(add: Callable) -> None:
    """Tune every decoder on the same recorded texts, with the same effort for each.

        ouroboros tune --decoders speculative ouroboros --trials 16
        ouroboros tune --prompts functions.jsonl maths.jsonl --costs flat

    The target's output for each prompt, greedy and sampled, is recorded once, in
    float32. Decoders are replayed on these texts; those that cannot be replayed
    run live and must return the same texts. On the first prompts of each file,
    the search tries the configured settings and random ones, then changes one
    setting of the best at a time. The finalists are compared on all prompts.
    Speed is predicted from counts with each of --costs; settings are ranked by
    the geometric mean over files and temperatures. The report (tuning.json,
    tuning.md) shows how much slower the configured settings, and those tuned for
    the other costs, are than the best ones found. Rerun to resume.

    Never tune on a benchmark's prompts.
    """
    add("--prompts", nargs="+", metavar="FILE", help="JSONL (default: conf/task/development*)")
    add("--results", type=Path, default=Path("results/local/tuning"))
    spaces = sorted(path.stem for path in (FOLDER / "tune").glob("*.yaml"))
    add("--decoders", nargs="*", default=[name for name in spaces if not name.startswith("hf_")])
    costs = "names or files of costs, each searched separately"
    add("--costs", nargs="+", default=["epyc", "flat"], help=costs)
    add("--trials", type=int, default=24, help="settings tried before the search")
    add("--first", type=int, default=6, help="prompts per file in the search")
    add("--limit", type=int, help="prompts per file (default: all)")
    add("--max-new", type=int, default=96)
    add("--seed", type=int, default=0)
    add("--temperatures", type=float, nargs="+", default=[0.0, 0.4, 0.8])
    add("--overrides", nargs="*", default=[], help="options of conf/config.yaml")
