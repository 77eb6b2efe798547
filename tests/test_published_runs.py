"""Published runs: the data file is consistent with itself, the page with the runs."""

import math
import pathlib
import re
import runpy

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy import optimize, stats

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


def test_certificates_of_the_census_have_the_same_epsilons():
    """As fractions, in the certificates; they were searched for to 1e-7."""
    for release, stated in zip(
        SCRIPT["RELEASES"], (17849145 / 1041158, 1455307 / 588081), strict=False
    ):
        found = float(release.mechanism.epsilon(delta=release.delta))
        assert found == pytest.approx(stated, abs=3e-7)


def test_shuffled_batches_leak_what_their_largest_sum_tells():
    """All other records are opposite to the one in question (Chua et al., 2024).

    Beyond the sums without it, the sum of its batch is larger by 2, and by 1 where it
    is zeroed out.  The largest sum of each epoch is a test, composed on a lattice.
    """
    run = next(x for x in published_runs() if x.id == "tf-privacy-notebook")
    assert run.epochs is not None
    batches = run.dataset_size // run.batch_size
    edges = run.noise_multiplier * np.linspace(-2, 12, 1201)

    def masses(shift):
        log_below = (batches - 1) * stats.norm.logcdf(edges / run.noise_multiplier)
        log_below += stats.norm.logcdf((edges - shift) / run.noise_multiplier)
        return -np.diff(np.concatenate([[1], -np.expm1(log_below), [0]]))

    with_it, without = masses(2.0), masses(1.0)
    seen = (with_it > 1e-300) & (without > 1e-300)
    width = 1e-3
    loss = np.floor(np.log(with_it[seen] / without[seen]) / width).astype(int)
    once = np.bincount(loss - loss.min(), weights=with_it[seen])
    law = once
    for _ in range(run.epochs - 1):
        law = np.convolve(law, once)
    places = width * (np.arange(law.size) + run.epochs * loss.min())

    def delta(epsilon):
        return np.sum(law * -np.expm1(np.minimum(epsilon - places, 0.0)))

    least = optimize.brentq(lambda x: delta(x) - run.delta, 0.0, 50.0)
    (row,) = [x for x in _on_page("batches").splitlines() if run.name in x]
    on_page = float(row.strip("| ").split(" | ")[3])
    # Losses are rounded down here, by half of a width on average.
    assert on_page == pytest.approx(least, abs=2 * width)


@pytest.mark.slow
def test_page_agrees_with_dp_accounting():
    for run, row in zip(
        published_runs(), _on_page("runs").splitlines()[2:], strict=True
    ):
        event = dp_accounting.GaussianDpEvent(run.noise_multiplier)
        event = dp_accounting.PoissonSampledDpEvent(run.sampling_prob, event)
        accountant = PLDAccountant()
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, run.num_steps))
        epsilon = max(map(float, row.split(" | ")[4:6]))
        assert epsilon == pytest.approx(accountant.get_epsilon(run.delta), rel=2e-3)
