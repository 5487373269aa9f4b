"""Everything that README and docs quote, measured on one commit, in stages: `ouroboros evidence`.

What can be typed stands in `ouroboros.cli.arguments`, the stages in conf/evidence.yaml: each
is a list of the other commands with a results folder. What is stale is made anew, and what lay
there set aside.
"""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf
from tabulate import tabulate

from ouroboros.bench.run.options import check_whole
from ouroboros.cli import CONF, place
from ouroboros.cli.evidencing.cases import Case, cases
from ouroboros.cli.evidencing.work import Work


def evidence(args: argparse.Namespace) -> int:
    """Do the cases that are not done, a line for each; return 0 where none failed."""
    table = yaml.safe_load(Path(CONF, "evidence.yaml").read_text("utf-8"))
    config = checked(args.overrides, table)
    found = list(cases(config))
    if args.list:
        print(listed(found))
        return 0
    work = Work()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    counts = [case for case in found if not case.timed]
    work.all(counts, config["jobs"], threads="1")
    work.all([case for case in found if case.timed], 1)
    print(json.dumps({"results": place(Path(config["results_dir"])), "cases": work.told}))
    return 130 if work.stopping.is_set() else int("failed" in work.told.values())


def checked(overrides: Sequence[str], table: Mapping) -> dict:
    """Return the config with what was typed. Raises `ValueError`, in one line, for what cannot
    be."""
    found = OmegaConf.to_container(OmegaConf.from_dotlist(list(overrides)))
    typed = cast(dict[str, Any], found)
    unknown = [key for key in typed if key not in table or key in ("table", "tasks", "heats")]
    if unknown:
        raise ValueError(
            f"there is no option {unknown[0]}; those there: results_dir, stages, data, jobs, extra"
        )
    config = {**table, **typed}
    check_whole("jobs", config["jobs"])
    for name in ("stages", "extra"):
        if not isinstance(config[name], list | None):
            raise ValueError(f"{name}={config[name]}: give a list, as {name}=[{config[name]}]")
    check_stages(config["stages"], config["table"])
    if config["extra"] and config["results_dir"] == table["results_dir"]:
        raise ValueError(
            f"extra=[...] makes other figures than those in {table['results_dir']}: give "
            "results_dir=FOLDER as well"
        )
    if config["data"] is not None and not Path(config["data"]).is_dir():
        raise ValueError(f"data={config['data']}: there is no such folder")
    return config


def check_stages(stages: Sequence[str] | None, table: Mapping) -> None:
    """Raise `ValueError` for stages that are not in the table, are named twice, or are none."""
    if stages is None:
        return
    wrong = [name for name in stages if name not in table]
    if wrong or not stages:
        asked = ",".join(map(str, wrong))
        raise ValueError(f"stages=[{asked}]: choose from {', '.join(table)}")
    if len(set(stages)) < len(stages):
        raise ValueError(f"stages=[{','.join(stages)}]: name each once")


def listed(found: Sequence[Case]) -> str:
    """Return a table of the cases."""
    rows = [
        {
            "folder": place(case.out),
            "what lies there": case.standing(),
            "to be done": "no" if case.standing() == "done" else case.lacking or "yes",
            "minutes": case.minutes,
            "machine": "alone" if case.timed else "shared",
            "commands": "\n".join(" ".join(["ouroboros", *words]) for words in case.commands),
        }
        for case in found
    ]
    total = sum(c.minutes for c in found if not c.lacking and c.standing() != "done")
    widths = [*[None] * 5, 100]
    text = tabulate(rows, headers="keys", maxcolwidths=widths)
    return f"{text}\n\nabout {total:g} minutes left, one after the other"
