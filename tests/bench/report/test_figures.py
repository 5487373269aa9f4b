"""Tables of pages are what results/ give: a figure edited by hand and a stale folder are found."""

import json

import pytest
from composing import ROOT

from ouroboros.bench.report import figures
from ouroboros.bench.report.figures import KINDS, sources, written
from ouroboros.commands import command_line

PAGE = "# Mine\n\n<!-- results: headline results/main -->\n<!-- end -->\n\nText.\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder with a page and the results of a run that was made by the present sources."""
    folder = tmp_path / "results" / "main"
    folder.mkdir(parents=True)
    old = ROOT / "results" / "main_matched"
    run = json.loads((old / "run.json").read_text())
    run["provenance"] |= {"sources": figures.sources_hash()}
    run["provenance"]["git"]["dirty"] = False
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "summary.json").write_text((old / "summary.json").read_text())
    (tmp_path / "README.md").write_text(PAGE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*words, capsys):
    capsys.readouterr()
    code = command_line.main(["figures", *words])
    return code, capsys.readouterr().err


def test_tables_are_written_and_then_hold(root, capsys):
    assert check("--check", capsys=capsys)[0] == 1, "an empty table"
    assert check(capsys=capsys) == (0, "wrote README.md\n")
    page = (root / "README.md").read_text()
    run = json.loads((root / "results" / "main" / "run.json").read_text())
    assert run["provenance"]["git"]["commit"][:7] in page and run["provenance"]["time"][:10] in page
    assert (
        "| Ouroboros " in page and "Text." in page and run["provenance"]["machine"]["cpu"] in page
    )
    assert check("--check", capsys=capsys) == (0, "")
    assert check(capsys=capsys) == (0, "")


def test_a_figure_edited_by_hand_is_found(root, capsys):
    check(capsys=capsys)
    page = (root / "README.md").read_text()
    (root / "README.md").write_text(page.replace("1.00x [", "1.01x [", 1))
    code, error = check("--check", capsys=capsys)
    assert code == 1 and error.count("\n") == 1 and "results: headline results/main" in error
    assert check(capsys=capsys)[0] == 0 and (root / "README.md").read_text() == page


def test_a_stale_folder_is_a_warning(root, capsys, monkeypatch):
    check(capsys=capsys)
    monkeypatch.setattr(figures, "sources_hash", lambda: "another")
    code, error = check("--check", capsys=capsys)
    assert code == 0 and error.startswith("warning: README.md: results/main: the sources that")


def test_a_folder_that_says_nothing_of_its_sources_is_stale(root):
    run = json.loads((root / "results" / "main" / "run.json").read_text())
    del run["provenance"]["sources"]
    (root / "results" / "main" / "run.json").write_text(json.dumps(run))
    (why,) = sources(PAGE, root).values()
    assert "does not say" in why


def test_what_was_not_measured_is_said(root):
    page = "<!-- results: counts results/nothing/here -->\n<!-- end -->"
    assert 'ouroboros evidence "stages=[nothing]"' in written(page, root, root)
    with pytest.raises(ValueError, match="choose from headline"):
        written(page.replace("counts", "guesses"), root, root)


def test_the_projects_own_pages_are_what_its_results_give():
    for path in (ROOT / "README.md", ROOT / "docs" / "measured.md"):
        text = path.read_text("utf-8")
        assert written(text, ROOT, path.parent) == text, "ouroboros figures writes it"
        kinds = {marker[1].split()[0] for marker in figures.MARKED.finditer(text)}
        assert kinds <= set(KINDS)
