"""`ouroboros evidence`: what is done is passed over, what was stopped goes on."""

import json
import shutil
import sys

import pytest
import yaml
from composing import CONF, composed

from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.run.store import ResultsFolder
from ouroboros.cli import command_line, evidence
from ouroboros.cli.evidencing import cases
from ouroboros.cli.evidencing.work import Work

TABLE = {
    "results_dir": "results",
    "stages": None,
    "data": None,
    "jobs": 1,
    "extra": [],
    "table": {
        "one": {"what": "", "minutes": 1, "run": ["bench a=1", "overlap {out} > said.json"]},
        "two": {
            "what": "",
            "minutes": 1,
            "replaces": ["old"],
            "cases": [{"a": {"x": 1}, "b": {"x": 2, "needs": "mine.jsonl"}}],
            "run": ["tune --seed {x}"],
        },
        "last": {"what": "", "minutes": 1, "timed": True, "run": ["profile"]},
    },
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the command on a table of its own, its commands told in `asked` and failing in `bad`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evidence.yaml, "safe_load", once(TABLE, yaml.safe_load))
    asked: list[str] = []
    bad: set[str] = set()

    def command(self, words, out, threads):
        asked.append(" ".join(words))
        return f": {words[0]} ended with 1" if words[0] in bad else ""

    monkeypatch.setattr(evidence.Work, "command", command)

    def called(*words):
        asked.clear()
        capsys.readouterr()
        code = command_line.main(["evidence", *words])
        return code, asked, capsys.readouterr()

    called.bad = bad
    return called


def once(table, load):
    """Load the stages as `table`, all else as it is."""

    def safe_load(text):
        found = load(text)
        return table if isinstance(found, dict) and "table" in found else found

    return safe_load


def test_what_is_done_is_passed_over(run, tmp_path):
    (tmp_path / "results" / "old").mkdir(parents=True)
    code, asked, said = run()
    assert code == 0 and asked == [
        "bench a=1 results_dir=results/one",
        "overlap results/one > said.json",
        "tune --seed 1",
        "profile results_dir=results/last",
    ]
    assert "results/two/b: left out: there is no mine.jsonl" in said.err
    assert not (tmp_path / "results" / "old").exists()
    state = json.loads((tmp_path / "results" / "one" / "evidence.json").read_text())
    assert state["status"] == "done" and state["provenance"]["sources"]
    code, asked, said = run()
    assert code == 0 and asked == [] and said.err.count("done before") == 3


def test_other_sources_are_made_anew(run, tmp_path, monkeypatch):
    run("stages=[one]")
    (tmp_path / "results" / "one" / "old.txt").write_text("")
    monkeypatch.setattr(cases, "sources_hash", lambda: "another")
    assert "stale" in run("--list")[2].out
    code, asked, _ = run("stages=[one]")
    assert code == 0 and len(asked) == 2 and not (tmp_path / "results" / "one" / "old.txt").exists()
    aside = tmp_path / "results" / "local" / "evidence" / "before"
    assert (aside / "results-one" / "old.txt").exists()  # nothing measured is lost
    monkeypatch.setattr(cases, "sources_hash", lambda: "a third")
    said = run("stages=[one]")[2].err
    assert (aside / "results-one" / "old.txt").exists() and (aside / "results-one-1").exists()
    assert "results/one: what lay there is in results/local/evidence/before/results-one-1" in said


def test_what_is_done_is_done_without_the_file_that_it_was_made_of(run, tmp_path):
    (tmp_path / "mine.jsonl").write_text("")
    assert run(f"data={tmp_path}", "stages=[two]")[0] == 0
    code, asked, said = run("stages=[two]")
    assert code == 0 and asked == [] and said.err.count("done before") == 2


def test_a_file_that_is_not_there_is_named(run, tmp_path):
    said = run(f"data={tmp_path}", "stages=[two]")[2].err
    assert f"left out: there is no {tmp_path}/mine.jsonl" in said
    assert "mine.jsonl: data=FOLDER says where" in run("--list")[2].out


def test_a_failure_is_one_line_and_the_others_go_on(run, tmp_path):
    run.bad.add("overlap")
    code, asked, said = run()
    assert code == 1 and len(asked) == 4
    assert "results/one: failed: overlap ended with 1" in said.err
    run.bad.clear()
    code, asked, _ = run()
    assert code == 0 and asked == ["overlap results/one > said.json"], "from where it failed"


def test_a_run_that_ended_unnoticed_is_not_made_again(run, tmp_path):
    run.bad.add("bench")
    run("stages=[one]")
    (tmp_path / "results" / "one" / "run.json").write_text('{"status": "finished"}')
    assert run("stages=[one]")[1] == ["overlap results/one > said.json"]


def test_what_is_done_is_packed_and_read_as_before(run, tmp_path):
    folder = ResultsFolder(tmp_path / "results" / "one" / "inner")
    folder.path.mkdir(parents=True)
    run.bad.add("bench")
    run("stages=[one]")
    folder.path.mkdir(exist_ok=True)
    sample = Sample("a", "greedy", 0, 0, 4, new_tokens=(1, 2), wall_s=0.12345678)
    with folder.appending("samples.jsonl") as lines:
        lines.append(sample.to_dict())
    run.bad.clear()
    assert run("stages=[one]")[0] == 0
    assert [path.name for path in folder.path.iterdir()] == ["samples.jsonl.gz"]
    (read,) = folder.load_samples()
    assert read.new_tokens == sample.new_tokens and read.wall_s == 0.123457
    with pytest.raises(ValueError, match="gunzip"), folder.appending("samples.jsonl"):
        pass


def test_a_stop_begins_nothing_more(run, tmp_path, monkeypatch):
    def stop(self, words, out, threads):
        self.stopping.set()
        return ": stopped"

    monkeypatch.setattr(evidence.Work, "command", stop)
    code, _, said = run()
    told = json.loads(said.out)["cases"]
    assert code == 130 and told["results/one"] == "stopped"
    assert told["results/last"] == "not begun"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("stages=[nope]", "choose from one, "),
        ("stages=one", "give a list, as stages=[one]"),
        ("stages=[]", "choose from one, "),
        ("stages=[one,one]", "name each once"),
        ("extra=max_new=4", "give a list, as extra=[max_new=4]"),
        ("data=nowhere", "there is no such folder"),
        ("extra=[max_new=4]", "give results_dir=FOLDER as well"),
        ("jobs=0", "jobs=0"),
        ("stage=one", "there is no option stage"),
    ],
)
def test_what_cannot_be_asked_for_is_one_line(run, word, says):
    code, asked, said = run(word)
    assert code == 2 and asked == [] and said.err.count("\n") == 1 and says in said.err


def test_a_case_is_the_same_wherever_its_file_lies(tmp_path):
    stage = {
        "what": "",
        "minutes": 1,
        "run": ["bench task.path={data}/{needs}"],
        "needs": "a.jsonl",
    }
    (tmp_path / "a.jsonl").write_text("")
    table = {**TABLE, "table": {"one": stage}}
    (lacking,), (there,) = (list(cases.cases({**table, "data": d})) for d in (None, tmp_path))
    assert lacking.lacking and not there.lacking and lacking.key == there.key


def test_a_command_that_is_ended_as_it_begins_is_told_in_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    work = Work()
    work.stopping.set()
    monkeypatch.setattr(sys, "executable", write_ended(tmp_path / "python"))
    assert "was ended as it began" in work.command(["bench"], tmp_path, None)


def write_ended(path):
    """Write a program that a signal ends."""
    path.write_text("#!/bin/sh\nkill -TERM $$\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
def test_every_stages_commands_are_accepted(tmp_path):
    table = yaml.safe_load((CONF / "evidence.yaml").read_text())
    found = list(evidence.cases({**table, "data": tmp_path}))
    assert len({case.out for case in found}) == len(found) > 50
    heads = {"bench": "config", "profile": "profiling", "advise": "advise"}
    kinds = set()
    for case in found:
        for words in case.commands:
            assert words[0] in command_line.COMMANDS and "{" not in " ".join(words)
            kind = (case.stage, case.out.name.partition("_")[0])
            if words[0] in heads and kind not in kinds:
                composed(*(w for w in words[1:] if w != "hydra.mode=RUN"), name=heads[words[0]])
            kinds.add(kind)


@pytest.mark.slow
def test_a_command_is_run_and_its_document_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    work = evidence.Work()
    assert work.command(["nope"], out, None).startswith(": nope ended with 2: ")
    words = ["evidence", "--list", "stages=[host]", ">", "said.txt"]
    assert work.command(words, out, "1") == "" and "minutes left" in (out / "said.txt").read_text()
    shutil.rmtree(out)
