"""call_costs.py times both models' calls, and `Costs.load` reads what it prints."""

from bench_models import save_pair, tiny_pair
from call_costs import main

from ouroboros.costs import Costs, timing


def test_calls_of_both_models_are_timed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(timing, "copy_bandwidth", lambda device: 1e10)
    save_pair(tiny_pair(), tmp_path)
    pair = [f"model.{role}={tmp_path / role}" for role in ("target", "draft")]
    grid = ["--visits", "1", "--repeats", "1", "--nodes", "1", "4", "--contexts", "8", "24"]
    main(["model=hf", *pair, "model.dtype=float32", "threads=1", *grid])
    printed = capsys.readouterr().out
    (tmp_path / "costs.json").write_text(printed)
    costs = Costs.load(tmp_path / "costs.json")
    for surface in (costs.target, costs.draft):
        timed = {context: list(row) for context, row in surface.ms.items()}
        assert timed == {8: [1, 4], 24: [1, 4]}
    assert costs.floor_ms("draft", 24) > 0 and str(tmp_path) not in printed
