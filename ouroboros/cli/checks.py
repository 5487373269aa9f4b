"""Check a command's options before its module is imported: that loads torch and takes seconds.

Only what needs no torch is checked here: unknown decoders and options, missing files and folders.
"""

from __future__ import annotations

import os
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

from ouroboros.bench.tasks.dataset import BUNDLED, found_path
from ouroboros.cli.common import composed
from ouroboros.costs import Costs
from ouroboros.engine.loading import check_folder
from ouroboros.tuning.search import SPACES

OF_RUNS = {"audit", "batch_size", "context_tokens", "overwrite", "parallel", "part", "refill"}
OF_RUNS |= {"repeats", "results_dir", "retry_failed", "task", "timing"}
"""Options that 'ouroboros generate' refuses, except `TEMPLATE_ARGS`."""
TEMPLATE_ARGS = "task.template_args"


def check(name: str, options: Any) -> None:
    """Check the options of the command `name`: parsed arguments, or a Hydra config as a dict.

    Raises `ValueError` or `OSError` with the remedy.
    """
    if name == "report":
        if not any(folder.exists() for folder in options.folders):
            folders = ", ".join(map(str, options.folders))
            raise ValueError(f"{folders} is not a results folder: no run.json in it or below it")
    elif name == "audit":
        check_run(Path(options.folder))
    elif name == "tune":
        if unknown := [decoder for decoder in options.decoders if decoder not in SPACES]:
            known = ", ".join(SPACES)
            raise ValueError(f"nothing to tune of {', '.join(unknown)}: conf/tune has {known}")
        for path in options.prompts or ():
            os.stat(path)
        for costs in options.costs:
            check_costs(costs)
    else:
        config = generate_config(options) if name == "generate" else options
        for role in ("target", "draft"):
            if path := config["model"][role]:
                check_folder(path)
        task = config.get("task") or {}
        if name == "distill":
            task = {"_target_": "ouroboros.", "path": config["prompts"]}
        ours, path = str(task.get("_target_")).startswith("ouroboros."), task.get("path")
        if ours and isinstance(path, str) and path not in ("", BUNDLED):
            os.stat(found_path(path))
        check_costs(config.get("costs"))
        if (recording := config.get("recording")) and not Path(recording).exists():
            reason = "there is no such file or folder"
            raise ValueError(f"cannot read the recording {recording}: {reason}")


def check_costs(costs: object) -> None:
    """Check that costs can be loaded by name or from a file; folders are not checked."""
    if isinstance(costs, str) and not Path(costs).is_dir():
        Costs.load(costs)


def check_run(path: Path) -> None:
    """Raise `ValueError` for a path that is neither a file nor a results folder."""
    if not path.is_file() and not (path / "run.json").exists():
        raise ValueError(f"{path} is not a results folder: it has no run.json")


def generate_config(options: Namespace) -> dict:
    """Return the config of 'ouroboros generate' as plain values."""
    if words := [one for one in options.overrides if "=" not in one]:
        raise ValueError(f"{words[0]}: put the prompt in quotes, and write options as NAME=VALUE")
    for one in options.overrides:
        option = one.lstrip("+~")
        if re.split(r"[.=@]", option)[0] in OF_RUNS and not option.startswith(TEMPLATE_ARGS):
            raise ValueError(f"{one} has no effect on one prompt: use 'ouroboros bench'")
    if options.race and options.decoder == "greedy":
        raise ValueError("--race --decoder greedy: give another decoder to race with greedy")
    names = ["greedy"] * options.race + [options.decoder]
    overrides = [f"decoder=[{','.join(dict.fromkeys(names))}]", f"max_new={options.max_new}"]
    overrides += [f"temperature={options.temperature}", f"seed={options.seed or 0}"]
    overrides += [f"task.template={'auto' if options.template == 'auto' else 'plain'}"]
    overrides += ["model=hf"] if options.target or options.draft else []
    roles = {"target": options.target, "draft": options.draft}
    overrides += [f"model.{role}='{name}'" for role, name in roles.items() if name]
    config = composed([*overrides, *options.overrides])
    if options.draft and not config["model"]["target"]:
        raise ValueError(f"--draft {options.draft} needs --target, a larger model of its family")
    return config
