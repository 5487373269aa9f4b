"""Memory and seconds of the campaign's jobs, worked out without a GPU."""

from __future__ import annotations

import pytest
import torch
from composing import composed

from ouroboros.bench.campaign.estimate import (
    H100,
    H200,
    Seconds,
    by_memory,
    fitting,
    footprints,
    needed_bytes,
)
from ouroboros.cli.build import any_drafts
from ouroboros.cli.campaigning.fitted import TooLarge, fitted
from ouroboros.cli.campaigning.seconds import stage_seconds
from ouroboros.standin import shape

YI = {"target": "yi-34b", "draft": "yi-6b"}
HALF = torch.bfloat16
WARNED_S, MOST_S = 25.0, 600.0


@pytest.fixture(scope="module")
def config() -> dict:
    return composed(name="campaign")


def test_the_headline_is_whole_on_141_gb_and_shallower_on_80():
    weights = sum(own.weight_bytes for own in footprints(YI, HALF).values())
    assert weights / 2**30 == pytest.approx(75.3, abs=0.1)
    own = {"context": 2048, "shares": (1, 0.9)}
    assert fitting(YI, HALF, memory_bytes=H200.memory_bytes, **own) == YI
    found = fitting(YI, HALF, memory_bytes=H100.memory_bytes, **own)
    assert found == {"target": "yi-34b@54", "draft": "yi-6b@29"}
    assert shape("yi-34b@54").num_hidden_layers == 54
    ratio = {name: row.read_bytes for name, row in footprints(found, HALF).items()}
    whole = {name: row.read_bytes for name, row in footprints(YI, HALF).items()}
    assert ratio["draft"] / ratio["target"] == pytest.approx(whole["draft"] / whole["target"], 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [H100, H200], ids=["78 GiB", "139 GiB"])
def test_every_job_fits_in_the_memory_or_is_left_out(config, machine):
    """What is left out is Llama-2-70B on 80 GB alone; no headline is."""
    left = []
    for name in config["stages"]:
        for job, overrides in config[name]["jobs"].items():
            own = composed(*overrides, *config[name]["overrides"])
            options = {"profile": config[name].get("profile"), "dtype": HALF}
            try:
                found = fitted(
                    own,
                    memory_bytes=machine.memory_bytes,
                    shares=config[name].get("layers", (1,)),
                    **options,
                )
            except TooLarge:
                left.append(job)
                continue
            if found["model"]["standin"]:
                roles = YI if any_drafts(own["decoder"]) else ["target"]
                shapes = {role: found["model"]["standin"][role] for role in roles}
                contexts = (options["profile"] or {"contexts": [2048]})["contexts"]
                need = needed_bytes(footprints(shapes, HALF), max(contexts))
                assert need <= 0.95 * machine.memory_bytes, (name, job)
    assert all(job.startswith("llama2") for job in left) and (left != []) == (machine is H100)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [H100, H200], ids=["H100", "H200"])
def test_every_stage_ends_within_its_minutes_and_a_command(config, machine):
    """The other pairs go on where they were stopped: there each run alone has to."""
    for name in config["stages"]:
        limit_s = 60 * config["stage_minutes"][name]
        assert limit_s + WARNED_S < MOST_S
        own = config[name]
        jobs = (
            [{job: own["jobs"][job]} for job in own["jobs"]] if name == "pairs" else [own["jobs"]]
        )
        for some in jobs:
            assert stage_seconds({**own, "jobs": some}, machine) < limit_s - WARNED_S, (name, some)


def test_seconds_come_from_bytes():
    own = Seconds(YI, H200)
    assert own.call("target") == pytest.approx(68e9 / 4.3e12 / 0.75, rel=0.02)
    assert own.eager_call("target") >= own.call("target") > own.call("draft")
    greedy = {"_target_": "ouroboros.baselines.Greedy"}
    assert own.run({"greedy": greedy}, 1, 100) == pytest.approx(132 * (own.call("target") + 1e-3))
    assert by_memory(H100.memory_bytes) == H100 and by_memory(140 << 30) == H200
