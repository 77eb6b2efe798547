"""Published runs: the data file is consistent with itself, the page with the runs."""

import math
import pathlib
import re
import runpy

import pytest
from scipy import stats

from fdp_jax.data import published_runs

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "published.py"))


def test_ids_are_unique_and_every_run_has_a_source():
    runs = published_runs()
    assert len({run.id for run in runs}) == len(runs) == 15
    for run in runs:
        assert run.url.startswith("https://")
        assert len(run.source) > 50


def test_numbers_are_in_range_and_steps_follow_from_epochs():
    for run in published_runs():
        assert 0 < run.sampling_prob < 1
        assert 0 < run.delta < 1
        assert run.noise_multiplier > 0
        assert run.claimed_epsilon > 0
        if run.epochs is not None:
            exact = run.epochs * run.dataset_size / run.batch_size
            assert run.num_steps == math.ceil(exact)


def test_quoted_numbers_stand_in_the_source_text():
    for run in published_runs():
        assert (
            f"{run.claimed_epsilon:g}" in run.source
            or str(run.claimed_epsilon) in run.source
        )
        assert f"{run.noise_multiplier:g}" in run.source


def _on_page(name):
    return SCRIPT["parts"](PAGE, name)[1]


def _mu_on_page(table):
    """By the parameters of a run, what the page has for mu."""
    rows = [x.split(" | ") for x in _on_page(table).splitlines()[2:]]
    column = _on_page(table).splitlines()[0].split(" | ").index("mu")
    return iter([row[column] for row in rows])


def test_page_has_the_numbers_of_the_runs():
    mus = _mu_on_page("runs")
    assert SCRIPT["runs"](mu=lambda _: next(mus)) == _on_page("runs")


@pytest.mark.parametrize("name", ["batches", "claims"])
def test_page_has_the_numbers_of_batches_and_claims(name):
    assert SCRIPT["TABLES"][name]() == _on_page(name)


def test_page_has_the_numbers_of_other_releases():
    assert SCRIPT["releases"](mu=lambda _: "1.27") == _on_page("releases")
    # The keyboard's noise is Gaussian in all, so that mu has a closed form.
    assert 1.27 - 1e-3 < math.sqrt(79) / 7 <= 1.27


@pytest.mark.slow
@pytest.mark.parametrize("name", ["runs", "releases"])
def test_page_has_mu(name):
    assert SCRIPT["TABLES"][name]() == _on_page(name)


def test_mu_bounds_the_advantage():
    """Whatever is mu-GDP but for d has advantage at most 2 Phi(mu / 2) - 1 + d."""
    for line in _on_page("runs").splitlines()[2:]:
        mu, _, advantage = (float(x) for x in line.split(" | ")[6:9])
        assert advantage <= 2 * stats.norm.cdf(mu / 2) - 1 + 1e-4 * advantage


def test_every_shuffled_claim_is_too_small():
    for line in _on_page("batches").splitlines()[2:]:
        theirs, poisson, least, most = map(float, line.strip("| ").split(" | ")[1:])
        assert poisson < theirs < least < most


def test_every_row_links_to_its_source():
    for name in ("runs", "releases", "claims"):
        for line in _on_page(name).splitlines()[2:]:
            assert re.match(r"\| \[[^]]+\]\(https://[^)]+\) \|", line)
