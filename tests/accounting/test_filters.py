"""Budgets for steps that are chosen in view of earlier results."""

import fractions
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax.accounting import GaussianFilter, RenyiFilter, ZCDPFilter


def _most(budget, step):
    """How many equal steps fit, by stepping."""
    count = 0
    while bool(budget.fits(step)):
        budget = budget.step(step)
        count += 1
    return count


def test_squares_of_mu_add_up():
    # 4 / 2^2 fills a budget of 1, and so do 9 steps of mu = 1/3.
    assert _most(GaussianFilter(mu=1.0), fdp.Gaussian(2.0)) == 4
    assert _most(GaussianFilter(mu=1.0), 1 / 3) == 9
    budget = GaussianFilter(1.0).step(fdp.Gaussian(2.0), count=3)
    assert float(budget.spent) == pytest.approx(0.75, rel=1e-12)
    assert float(budget.spent) >= 0.75
    # Everything together leaks as the budget does, however it was spent.
    assert budget.guarantee.noise_multiplier == pytest.approx(1.0, rel=1e-8)
    assert budget.guarantee.noise_multiplier <= 1.0
    # Randomized response has a mu of its own.
    answer = fdp.RandomizedResponse(1.0)
    replaced = {"relation": answer.relation}
    assert bool(GaussianFilter(1.24, **replaced).fits(answer))
    assert not bool(GaussianFilter(1.22, **replaced).fits(answer))
    assert GaussianFilter(1.0, **replaced).guarantee.relation is answer.relation


@pytest.mark.slow
def test_sampling_does_not_lower_the_mu_of_a_step():
    sampled = fdp.PoissonSubsampled(fdp.Gaussian(2.0), 0.01)
    assert _most(GaussianFilter(1.0), sampled) == 4


def test_rho_adds_up():
    # rho = 1 / (2 s^2) of Gaussian noise (Bun and Steinke 2016, Proposition 1.6).
    assert _most(ZCDPFilter(rho=0.5), fdp.Gaussian(3.0)) == 9
    assert _most(ZCDPFilter(rho=0.5), fdp.ZCDP(0.1)) == 5
    mixed = ZCDPFilter(0.5).step(0.2).step(fdp.ZCDP(0.2)).step(fdp.Gaussian(np.sqrt(5)))
    assert float(mixed.spent) == pytest.approx(0.5, rel=1e-8)
    assert float(mixed.guarantee.rho) >= 0.5


def test_divergences_add_up_at_every_order():
    orders = [2.0, 8.0, 32.0]
    # D_t = t / (2 s^2) of Gaussian noise.
    budget = fdp.RenyiDP(orders, [0.5 * t / 10 for t in orders])
    assert _most(RenyiFilter(budget), fdp.Gaussian(10.0)) == 10
    # The tightest order decides.
    narrow = fdp.RenyiDP(orders, [1.0, 0.01, 1.0])
    assert _most(RenyiFilter(narrow), fdp.Gaussian(20.0)) == 1
    spending = RenyiFilter(budget).step(fdp.RenyiDP(orders, [0.05, 0.1, 0.2]))
    np.testing.assert_allclose(spending.spent, [0.05, 0.1, 0.2], rtol=1e-12)
    assert np.all(np.asarray(spending.guarantee.divergences) >= budget.divergences)
    # In programs, which know the release or are given it, too.
    for release in (fdp.Gaussian(10.0), fdp.RenyiDP(orders, [0.01, 0.04, 0.16])):
        after = jax.jit(lambda budget, x, y=release: budget.step(x).step(y).spent)
        found = after(RenyiFilter(budget), release)
        np.testing.assert_allclose(found, [0.02, 0.08, 0.32], rtol=1e-8)
    # Of other orders that a program is given, the next larger ones count, if there are.
    spent = jax.jit(lambda x: RenyiFilter(budget).step(x).spent)
    found = spent(fdp.RenyiDP([1.5, 4.0, 8.0, 64.0], [0.0, 0.1, 0.2, 0.4]))
    np.testing.assert_allclose(found, [0.1, 0.2, 0.4], rtol=1e-12)
    fits = jax.jit(lambda x: RenyiFilter(budget).fits(x))
    assert not fits(fdp.RenyiDP([2.0, 8.0, 31.0], [0.0, 0.0, 0.0]))


@pytest.mark.parametrize("double", [True, False])
def test_totals_are_rounded_upward(double):
    """Against exact fractions, a thousand steps of random sizes."""
    sizes = np.random.default_rng(3).uniform(1e-9, 1e-3, 1000)
    with jax.enable_x64(double):
        budget = ZCDPFilter(rho=10.0)
        step = jax.jit(lambda budget, rho: budget.step(rho))
        sizes = [float(x) for x in (sizes if double else sizes.astype(np.float32))]
        for size in sizes:
            budget = step(budget, size)
        spent = sum(float(np.float64(part)) for part in budget._spent)
    total = sum(map(fractions.Fraction, sizes))
    assert total <= fractions.Fraction(spent)
    assert spent <= float(total) * (1 + (1e-10 if double else 2e-6))


def test_guarantees_inside_of_float32_programs():
    """They hold for what may exceed a budget, 1e-5 of it, to the last digit."""
    with jax.enable_x64(False):
        of = jax.jit(lambda budget: budget.guarantee.rho)
        for rho in (0.1, 0.3, 0.7, 1.1, 1.3):
            found = fractions.Fraction(float(of(ZCDPFilter(rho))))
            assert (
                abs(found / fractions.Fraction(rho) - 1 - fractions.Fraction(1e-5))
                < 1e-15
            )


def test_choices_inside_of_programs():
    @jax.jit
    def train(budget, noise):
        """As many steps as fit, each with more noise than the last."""

        def go_on(state):
            budget, noise, _ = state
            return budget.fits(fdp.Gaussian(noise))

        def step(state):
            budget, noise, count = state
            return budget.step(fdp.Gaussian(noise)), 1.1 * noise, count + 1

        return jax.lax.while_loop(go_on, step, (budget, noise, 0))

    start = jax.tree.map(jnp.asarray, GaussianFilter(mu=2.0))
    budget, _, count = train(start, 1.0)
    squares = np.cumsum(1.0 / 1.1 ** (2 * np.arange(100)))
    assert int(count) == np.count_nonzero(squares <= 4.0)
    assert float(budget.spent) <= 4.0
    with pytest.raises(Exception, match="exceed the budget"):
        jax.block_until_ready(
            jax.jit(lambda b, mu: b.step(mu).spent)(GaussianFilter(mu=1.0), 2.0)
        )


@pytest.mark.parametrize(
    ("budget", "wrong"),
    [
        (GaussianFilter(1.0), fdp.tradeoff.Gaussian(1.0)),
        (ZCDPFilter(1.0), fdp.tradeoff.Gaussian(1.0)),
        (ZCDPFilter(1.0), "0.1"),
        (RenyiFilter(fdp.RenyiDP([2.0], [1.0])), fdp.tradeoff.Gaussian(1.0)),
    ],
)
def test_trade_off_functions_have_no_filter(budget, wrong):
    with pytest.raises(TypeError, match="in general there is no filter"):
        budget.fits(wrong)


def test_only_renyi_guarantees_are_renyi_budgets():
    with pytest.raises(TypeError, match="budget must be a RenyiDP"):
        RenyiFilter(fdp.ZCDP(1.0))  # pyright: ignore


@pytest.mark.parametrize("double", [True, False])
def test_costs_below_the_least_number_are_not_forgotten(double):
    """Rounded upward: many of them fill a budget, and some is no nothing."""
    with jax.enable_x64(double):
        budget = ZCDPFilter(rho=1.0)
        for rho, cost in ((1e-39, 1e-39), (1e-300, 1e-300), (1e-39, fdp.ZCDP(1e-39))):
            many = 0.25 / rho
            spent = float(budget.step(cost, count=many).spent)
            assert spent == pytest.approx(0.25, rel=1e-5)
            assert not bool(budget.fits(cost, 8 * many))
            assert float(budget.step(cost).spent) > 0
            assert bool(budget.fits(cost))
        # The mechanism's rho is 5e-51, rounded up.
        assert not bool(budget.fits(fdp.Gaussian(1e25), 4e50))
        assert float(budget.step(fdp.Gaussian(1e25)).spent) > 0
        assert float(GaussianFilter(1.0).step(1e-200).spent) > 0
        orders = fdp.RenyiDP([2.0], [1.0])
        spent = RenyiFilter(orders).step(fdp.RenyiDP([2.0], [1e-300])).spent
        assert float(spent[0]) > 0
        # What is nothing costs nothing.
        assert float(GaussianFilter(1.0).step(0.0).spent) == 0
        allowed = "[1e-150, 1e150]" if double else "[2^-38, 2^63]"
        with pytest.raises(ValueError, match=re.escape(f"mu must be in {allowed}")):
            GaussianFilter(1e-200)
        if not double:
            with pytest.raises(ValueError, match="rho must be 0, infinite, or from"):
                ZCDPFilter(1e-39)
