"""Every notebook's script runs, and the notebook beside it has the same cells."""

import json
import pathlib
import runpy

import pytest

NOTEBOOKS = pathlib.Path(__file__).resolve().parent.parent / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("*.py"))
# The quickest one runs always; the others take minutes of compilation each.
QUICKEST = "06_infinitely_divisible_privacy"
RUNS = [
    pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem != QUICKEST))
    for p in SCRIPTS
]


@pytest.mark.notebook
@pytest.mark.parametrize("path", RUNS)
def test_script_runs(path, monkeypatch):
    monkeypatch.chdir(NOTEBOOKS)
    names = runpy.run_path(str(path), run_name="__main__")
    assert names["CHECKED"] > 0


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_notebook_is_executed_and_in_step(path):
    jupytext = pytest.importorskip("jupytext")
    stored = json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))
    cells = jupytext.read(path).cells
    assert [c["cell_type"] for c in stored["cells"]] == [c.cell_type for c in cells]
    for here, there in zip(stored["cells"], cells, strict=True):
        assert "".join(here["source"]) == there.source
    code = [c for c in stored["cells"] if c["cell_type"] == "code"]
    assert all(c["execution_count"] for c in code)
