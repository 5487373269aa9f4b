"""Every config composes, and the bench script runs end to end on a tiny pair."""

import json
import logging
from unittest.mock import Mock

import pytest
from bench_models import tiny_pair
from composing import ROOT, composed, names
from hydra.types import RunMode
from hydra.utils import get_class
from omegaconf import OmegaConf
from tiny import mostly_slow

from ouroboros.bench.run.config import RunConfig
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.pair import Pair, PairSpec, load_pair
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.cli import bench, common
from ouroboros.core.instantiate import find_class
from ouroboros.decoder_factory import decoder_factories
from ouroboros.models import standin


@pytest.mark.parametrize("name", sorted({*names("model")} - {"hf"}))
def test_every_model_composes(name):
    spec = PairSpec(**composed(f"model={name}")["model"])
    assert spec.name in (name, "SmolLM2-135M-Instruct")
    assert {*(spec.standin or {}).values()} <= {*standin.SHAPES}


@pytest.mark.parametrize("name", sorted({*names("task")} - {"plugin"}))
def test_every_task_composes_and_has_examples_to_try(name):
    options = composed(f"task={name}", "task.path=examples", "task.limit=null", "task.stride=1")
    task, examples = TaskSpec.from_mapping(options["task"]).load()
    assert get_class(options["task"]["_target_"]).name == task.name == name
    assert len(examples) >= 4


DECODERS = sorted({*names("decoder")} - {"llama_cpp", "llama_cpp_lookup"})


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair(*tiny_pair())


@pytest.mark.parametrize("name", mostly_slow(DECODERS, quick=DECODERS[::3]))
def test_every_decoder_composes_alone_and_can_be_built(name, pair):
    config = composed(f"decoder={name}")
    assert list(config["decoder"]) == [name]
    made = decoder_factories(config["decoder"], pair.draft, tokenizer=pair.target.tokenizer)[name]()
    assert hasattr(made, "propose") or hasattr(made, "run")
    if "draft" in config["decoder"][name]:
        assert made.draft is pair.draft


TABLES = [name for name in names("experiment") if name.endswith("b")]
QUICK = [TABLES[0], "ablation", "gpu_headline"]


@pytest.mark.parametrize("name", mostly_slow(names("experiment"), quick=QUICK))
def test_every_experiment_is_a_run(name, pair):
    config = composed(f"experiment={name}")
    assert config["results_dir"].startswith("results/") and len(config["decoder"]) > 1
    assert RunConfig.from_mapping(config).to_mapping() == config
    decoder_factories(config["decoder"], pair.draft)
    if name not in TABLES:
        return
    task, model = name.split("_")
    assert get_class(config["task"]["_target_"]).name == task and config["model"]["name"] == model
    assert config["task"]["template"] == f"paper-{model.split('-')[0]}"
    decoders, published = config["decoder"], config["published"]
    assert published["source"].startswith("arXiv 2402.13720") and published["hardware"]
    assert [*published["tokens_per_s"], "ouroboros"] == list(decoders)
    paper, warm = decoders["ouroboros_paper"], decoders["ouroboros_paper_warm"]
    assert paper["verification_set_size"] == paper["window_size"] and paper["topk"] == 3
    assert warm == {**paper, "pool_state": "task"} != paper
    assert paper["_target_"] == "ouroboros.OuroborosPaper" and "gamma" not in decoders["ouroboros"]


def test_decoders_that_an_experiment_sets_may_be_left_out():
    config = common.composed(["experiment=drafters_flat", "decoder=[greedy,prompt_lookup]"])
    assert list(config.decoder) == ["greedy", "prompt_lookup"]
    assert config.decoder["prompt_lookup"]["num_tokens"] == 31
    with pytest.raises(ValueError, match=r"there is no decoder 'lookahed' .did you mean lookahead"):
        common.composed(["decoder=[greedy]", "++decoder.lookahed.window_size=3"])
    with pytest.raises(ValueError, match=r"there is no decoder 'foo'"):
        common.composed(["+decoder.foo={}"])


def test_an_ablation_changes_one_thing():
    decoders = composed("experiment=ablation")["decoder"]
    whole = decoders.pop("ouroboros")
    del decoders["greedy"]
    for ablated in decoders.values():
        assert len([key for key in whole | ablated if ablated.get(key) != whole.get(key)]) == 1


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("results_dir=2026_11_27", "2026_11_27"),
        ("results_dir=1e3", "1e3"),
        ("results_dir=null", None),
        ("results_dir=run#1/x", "run#1/x"),
        ("task.path=~/x.jsonl", "HOME/x.jsonl"),
        ("task.path=a(1)&b.jsonl", "a(1)&b.jsonl"),
        ("task.path=a=b.jsonl", "a=b.jsonl"),
        ("task.path=it's\\", "it's\\"),
        ("+model.options.revision=12e4567", "12e4567"),
        ("temperature=1e-1", 0.1),
        (r'task.stop=["\n\n","\tx"]', ["\n\n", "\tx"]),
    ],
)
def test_values_are_read_as_a_shell_passes_them(monkeypatch, override, value):
    monkeypatch.setenv("HOME", "HOME")
    found = common.composed(["task=gsm8k", override]).to_mapping()
    for name in override.partition("=")[0].lstrip("+").split("."):
        found = found[name]
    assert found == value


def test_bench_end_to_end(run_bench, saved_pair):
    options = ["decoder=[greedy,ouroboros,hf_greedy]", "task.limit=2", "max_new=8", "threads=1"]
    options += ["model.dtype=float32", "results_dir=2026_11_27", "decoder.ouroboros.adapt=false"]
    code, out, err = run_bench(*options, plot=True)
    assert code == 0, err
    assert logging.getLogger("ouroboros.core.jit").isEnabledFor(logging.WARNING)
    assert "2 prompts: too few to say which decoder is faster (at least 8)" in out
    document = json.loads(out.splitlines()[-1])
    assert document["finished"] and document["samples"] == 6
    assert [row["unequal"] for row in document["decoders"].values()] == [0, 0, 0]
    folder = saved_pair / "2026_11_27"
    made = {"run.json", "samples.jsonl", "audit.jsonl", "summary.json", "summary.md", "speedup.svg"}
    made |= {"trees.jsonl", "costs.json", "tokenizer.json.gz"}
    assert {path.name for path in folder.iterdir()} == made
    for name in ("run.json", "summary.json", "summary.md"):
        assert str(saved_pair) not in (folder / name).read_text()
    code, out, err = run_bench(*options)
    assert code == 2 and out == ""
    assert "overwrite=true" in err.splitlines()[-1] and "Traceback" not in err


def test_failed_samples_are_said_last_and_measured_anew(run_bench, monkeypatch):
    options = ["decoder=greedy", "+decoder.moody._target_=bench_models.Moody", "task.limit=2"]
    options += ["max_new=4", "audit=none", "results_dir=moody"]
    code, out, err = run_bench(*options)
    assert code == 3 and json.loads(out.splitlines()[-1])["finished"]
    last = err.splitlines()[-1]
    assert last == "1 of 4 samples failed; rerun the command to measure them again"
    monkeypatch.setattr("bench_models.Moody.bad", False)
    assert run_bench(*options)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", names("experiment"))
def test_every_experiment_has_a_rehearsal(name, document, saved_pair):
    options = ["rehearsal=cpu", "task.limit=1", "max_new=3", "threads=1", "hydra.mode=RUN"]
    options += [f"results_dir=rehearsal_{name}"]
    found = document("bench", f"experiment={name}", *options)
    assert found["finished"] and not any(d["failed"] for d in found["decoders"].values())
    run = json.loads((saved_pair / f"rehearsal_{name}" / "run.json").read_text())
    assert (run["published"] is not None) == (name in TABLES)
    assert run["task"]["version"].startswith(run["task"]["name"])


def test_a_carried_pool_is_saved_and_loaded_by_the_next_run(run_bench, saved_pair):
    tiny = ["decoder=ouroboros", "task.limit=2", "max_new=4", "threads=1"]
    state = "decoder.ouroboros.pool_state="
    assert run_bench(*tiny, f"{state}task", "results_dir=saved")[0] == 0
    pool = saved_pair / "saved" / "pool-ouroboros.json"
    assert json.loads(pool.read_text())["state"]["text"]
    warm = [f"{state}loaded", f"decoder.ouroboros.pool={pool}", "results_dir=warm"]
    assert run_bench(*tiny, *warm)[0] == 0


def test_a_busy_machine_is_told_after_the_table(run_bench, monkeypatch):
    monkeypatch.setattr("psutil.cpu_percent", lambda percpu: [1000.0] * 512)
    code, _, err = run_bench("decoder=[greedy]", "task.limit=1", "max_new=4", "timing=true")
    assert code == 0 and "repeat the run when it is idle" in err


def test_a_sweep_gives_each_job_its_folder(run_bench, saved_pair, monkeypatch):
    loading = Mock(side_effect=load_pair)
    monkeypatch.setattr("ouroboros.cli.bench.load_pair", loading)
    monkeypatch.setattr("ouroboros.cli.bench._kept", {})
    tiny = ["decoder=[greedy,prompt_lookup]", "task.limit=1", "max_new=4", "results_dir=swept"]
    code, out, err = run_bench("decoder.prompt_lookup.num_tokens=2,4", *tiny, "-m")
    assert code == 0, err
    assert loading.call_count == 1, "both jobs use the same models"
    assert json.loads(out.splitlines()[-1])["results"].endswith("001")
    code, _, err = run_bench("decoder.prompt_lookup.num_tokens=2,4", *tiny, "-m")
    assert code == 0 and "job 1: " in err, "finished jobs are skipped"
    (saved_pair / "swept" / "001" / "run.json").unlink()
    code, _, err = run_bench("decoder.prompt_lookup.num_tokens=2,-4", *tiny, "-m")
    assert code == 2 and "job 0: " in err and "already finished" in err
    assert "job 1: " in err and "\nerror: " not in err, "each error is told once"
    long = saved_pair / "long.jsonl"
    long.write_text(json.dumps({"prompt": "a" * 9000}) + '\n{"prompt": "b"}\n')
    failing = ["task=prompts", f"task.path={long}", "task.limit=2", "results_dir=failed"]
    assert run_bench(*tiny[:3], *failing, "seed=1,2", "-m")[0] == 3, "some samples failed"


JOBLIB = {"_target_": "x.JoblibLauncher", "n_jobs": -1}
BASIC = {"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}


def configured(monkeypatch, launcher: dict, *overrides: str, job: int = 0) -> RunConfig:
    """The config of a job of a sweep."""
    facts = {"mode": RunMode.MULTIRUN, "launcher": launcher, "job": {"num": job}}
    monkeypatch.setattr(bench.HydraConfig, "get", lambda: OmegaConf.create(facts))
    return bench.run_config(common.composed(["decoder=greedy", "results_dir=x", *overrides]))[0]


def test_only_jobs_with_a_device_each_are_timed_side_by_side(monkeypatch):
    assert configured(monkeypatch, BASIC).timing
    assert configured(monkeypatch, JOBLIB, "timing=false").results_dir == "x/000"
    assert configured(monkeypatch, JOBLIB, "model.device=cuda:3", job=3).results_dir == "x/003"
    for shared in ([], ["model.device=cuda:0"]):
        with pytest.raises(ValueError, match=r"side by side on one device.*timing=false"):
            configured(monkeypatch, JOBLIB, *shared, job=3)


RECORDED = sorted((ROOT / "results").rglob("run.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_recorded_run_has_the_options_and_classes_of_today(path):
    recorded = ResultsFolder(path.parent).load_run()["config"]
    for own in [*recorded["decoder"].values(), recorded["task"]]:
        assert own["_target_"].startswith("ouroboros.") and find_class(own["_target_"], "")
    if "context_tokens" not in recorded:  # of 0.2, whose runs had other options
        now = RunConfig.from_mapping(recorded).to_mapping()
        for old, own in ((recorded.pop("model"), now.pop("model")), (recorded, now)):
            assert old.items() <= own.items()
