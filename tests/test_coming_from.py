"""The page for those who come from other libraries: every call in it runs."""

import inspect
import pathlib
import re
from typing import NamedTuple

import pytest

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/coming_from.md"
TEXT = PAGE.read_text(encoding="utf-8")
NEEDS = {
    "riskcal": ("dp_accounting", "riskcal"),
    "prv_accountant": (None, "prv_accountant"),
    "Opacus": ("opacus", "opacus"),
    "dp-accounting": ("dp_accounting", "dp_accounting"),
    "JAX-Privacy": ("jax_privacy", "jax_privacy"),
}
"""What a section needs for the calls on the right, and for those on the left."""
MIXED = {"Opacus", "JAX-Privacy"}
"""Where the calls on the right are made with the library on the left."""


class Row(NamedTuple):
    section: str
    theirs: str
    ours: str
    theirs_gives: str
    ours_gives: str


def _rows():
    for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        for line in part.splitlines():
            cells = [x.strip() for x in line[1:-1].split("|")]
            if line.startswith("| ") and "---" not in line and "`" in line:
                yield Row(part.splitlines()[0], *cells)


ROWS = list(_rows())
SLOW = re.compile(
    r"find_noise_multiplier_for_(err_rates|advantage)_dpsgd|calibrate_parameter"
)
"""In their hands."""
_USED = {}


def _blocks(part, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)


def _namespace(section, theirs):
    """What the blocks above a table define, made once."""
    if (section, theirs) not in _USED:
        found = {}
        head, *parts = re.split(r"^## ", TEXT, flags=re.MULTILINE)
        part = next(x for x in parts if x.splitlines()[0] == section)
        blocks = _blocks(head, "python") + _blocks(part, "python")
        if theirs:
            blocks += _blocks(part, "python theirs")
        for block in blocks:
            exec(block, found)
        _USED[section, theirs] = found
    return _USED[section, theirs]


def _check(cell, stated, names):
    calls = re.findall(r"`([^`]+)`", cell)
    value = None
    for call in calls:
        if not call.startswith(("compute-dp", "fdp-jax ")):
            value = eval(call, names)
    if stated:
        assert len(calls) == 1
        unit = 10.0 ** -len(stated.partition(".")[2])
        assert abs(float(value) - float(stated)) <= unit  # pyright: ignore


def test_the_page_is_read_as_a_whole():
    assert {row.section for row in ROWS} == set(NEEDS)
    assert len(ROWS) > 50
    assert sum(bool(row.ours_gives) for row in ROWS) >= 30
    for row in ROWS:
        assert bool(row.ours_gives) == bool(row.theirs_gives)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section}: {row.ours}")
@pytest.mark.filterwarnings("ignore")
def test_our_calls_run_and_give_these_numbers(row):
    needed = NEEDS[row.section][0]
    if needed is not None:
        pytest.importorskip(needed)
    if not row.ours.startswith("no counterpart"):
        names = _namespace(row.section, row.section in MIXED)
        _check(row.ours, row.ours_gives, names)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=[pytest.mark.slow] if SLOW.search(row.theirs) else [])
        for row in ROWS
    ],
    ids=lambda row: f"{row.section}: {row.theirs}",
)
@pytest.mark.filterwarnings("ignore")
def test_their_calls_run_and_give_these_numbers(row):
    for needed in NEEDS[row.section]:
        if needed is not None:
            pytest.importorskip(needed)
    names = _namespace(row.section, True)
    if "`riskcal." in row.theirs:
        exec("import riskcal.utils", names)
    _check(row.theirs, row.theirs_gives, names)


@pytest.mark.filterwarnings("ignore")
def test_every_public_name_of_riskcal_is_there():
    riskcal = pytest.importorskip("riskcal")
    for module in (riskcal.analysis, riskcal.calibration, riskcal.accountants):
        for name in set(module.__all__):
            # Aliases, deprecated.
            if not re.search("^get_.*_for_(mu|epsilon_delta|err_rates)$", name):
                assert name in TEXT, name


@pytest.mark.filterwarnings("ignore")
def test_every_public_name_of_prv_accountant_is_there():
    prv = pytest.importorskip("prv_accountant")
    own = [x for x in vars(prv) if inspect.isclass(getattr(prv, x))]
    for name in [*own, "DPSGDAccountant", "find_noise_multiplier"]:
        assert name in TEXT, name
