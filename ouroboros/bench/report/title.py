"""What was measured, in a line or two: the words above and below every table and picture."""

from __future__ import annotations

from collections.abc import Mapping


def title(run: Mapping, prompts: int) -> str:
    """Return one line: task, prompts measured, model (and what it stands for), dtype, machine."""
    model, sampling = run["model"], run["sampling"]
    standin = model.get("standin")
    shape = f" as a stand-in, shapes {standin['target']} / {standin['draft']}" if standin else ""
    rehearsal = " (a rehearsal)" if nature(run) == "rehearsal" else ""
    heat = f"T={sampling['temperature']:g}" if sampling["temperature"] else "greedy (T=0)"
    penalty = sampling.get("repetition_penalty", 1.0)
    heat += "" if penalty == 1.0 else f", repetition penalty {penalty:g}"
    kept = "".join(f", {role} {what}" for role, what in (model.get("quantised") or {}).items())
    engine = model.get("engines", {}).get("target", {"engine": model.get("engine", "eager")})
    kept += "" if engine["engine"] == "eager" else f", {engine['engine']} engine"
    wanted = run["task"]["prompts"]
    counted = f"{prompts}" if prompts == wanted else f"{prompts} of {wanted}"
    counted += " prompt" if wanted == 1 else " prompts"
    length = run.get("config", {}).get("context_tokens")
    counted += f" of {length} tokens" if length else ""
    return (
        f"{run['task']['name']}, {counted} x {run['max_new']} tokens · "
        f"{pair_name(model)} pair{shape}{rehearsal} · {model['dtype']}{kept} · "
        f"{heat} · batch size 1 · {device(run)}"
    )


def pair_name(model: Mapping) -> str:
    """Return the name of a pair: that of its config, or of the models where they are one's own.

    >>> pair_name({"name": "hf", "target": "a/big", "draft": "b/small"})
    'big + small'
    """
    name, target = model["name"], model.get("target")
    own = name == "hf" or (name == "reference" and not str(target).startswith("reference/"))
    if not own or not target:
        return name
    return " + ".join(str(one).split("/")[-1] for one in (target, model.get("draft")) if one)


def nature(run: Mapping) -> str:
    """Return what the measured model is: "model", "stand-in" or "rehearsal".

    A stand-in computes a small model inside a large shape. A rehearsal has published numbers to
    compare with but runs on the pair that ships with the project.
    """
    model = run["model"]
    if model.get("standin"):
        return "stand-in"
    small = str(model.get("target", "")).startswith("reference/")
    return "rehearsal" if run.get("published") and small else "model"


def incomplete(run: Mapping, samples: int) -> bool:
    """Say whether samples are missing or the run never ended."""
    return samples < run["samples_wanted"] or run["status"] != "finished"


def device(run: Mapping) -> str:
    """Return the name of the GPU or CPU that ran the models; of each, where parts were merged."""
    return " + ".join(dict.fromkeys(_device(part, run["model"]) for part in _machines(run)))


def footnote(run: Mapping) -> str:
    """Return one line: host and versions."""
    versions = run["provenance"]["versions"]
    hosts = (
        f"{m['cpu']}, {m['cores']} cores, {m['threads']} thread{'s' * (m['threads'] > 1)}"
        for m in _machines(run)
    )
    parts = f"{run['parts']} parts, merged; " if run.get("parts", 1) > 1 else ""
    return (
        f"{parts}{' + '.join(dict.fromkeys(hosts))}; "
        f"torch {versions['torch']}, transformers {versions['transformers']}"
    )


def _machines(run: Mapping) -> list[Mapping]:
    return run.get("machines") or [run["provenance"]["machine"]]


def _device(machine: Mapping, model: Mapping) -> str:
    if model["device"].startswith("cuda") and machine["gpus"]:
        return machine["gpus"][0]
    return f"{machine['cpu']}, {machine['cores']} cores"
