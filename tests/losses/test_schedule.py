"""Sums of many different steps, against the same by other means."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax.accounting import _table
from fdp_jax.losses import ScheduleLoss, SubsampledGaussianLoss


def _run(noise, prob, num_steps):
    step = lambda s, q, n: fdp.DPSGD(noise_multiplier=s, sampling_prob=q, num_steps=n)
    return fdp.Schedule(step, noise, prob, np.asarray(num_steps, float))


def test_equal_settings_are_one():
    """A hundred settings that differ in the last digit are a single one."""
    count = 100
    noise = 1.1 * (1 + 1e-15 * np.random.default_rng(0).uniform(-1, 1, count))
    many = _run(noise, np.full(count, 0.002), np.full(count, 1000)).bounds(delta=1e-6)
    once = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=0.002, num_steps=100_000)
    one = once.bounds(delta=1e-6)
    assert many.estimate == pytest.approx(float(one.estimate), rel=1e-13)
    assert many.lower <= one.estimate <= many.upper
    assert many.upper - many.lower <= 2 * (one.upper - one.lower)


@pytest.mark.slow
def test_order_does_not_matter():
    """Nor how often a setting is listed; dp_accounting bounds it on either side."""
    rng = np.random.default_rng(1)
    noise, prob = rng.uniform(0.7, 2.0, 6), rng.uniform(0.01, 0.1, 6)
    rows = rng.permutation(np.repeat(np.arange(6), 25))
    each = _run(noise[rows], prob[rows], np.full(rows.size, 2)).bounds(delta=1e-5)
    together = _run(noise, prob, np.full(6, 50)).bounds(delta=1e-5)
    assert each.estimate == pytest.approx(float(together.estimate), rel=1e-12)
    make = pytest.importorskip("dp_accounting").pld.privacy_loss_distribution
    for pessimistic in (True, False):
        options = {
            "pessimistic_estimate": pessimistic,
            "use_connect_dots": pessimistic,
            "value_discretization_interval": 1e-3,
        }
        steps = [
            make.from_gaussian_mechanism(s, sampling_prob=q, **options).self_compose(50)
            for s, q in zip(noise, prob, strict=True)
        ]
        total = functools.reduce(lambda one, other: one.compose(other), steps)
        theirs = total.get_epsilon_for_delta(1e-5)
        assert theirs >= each.upper if pessimistic else theirs <= each.lower


def test_accounts_of_many_settings_are_schedules(monkeypatch):
    """With room left over, which holds nothing."""
    monkeypatch.setattr(_table, "_MANY", 64)
    rng = np.random.default_rng(2)
    noise, prob = rng.uniform(0.8, 2.0, 70), rng.uniform(0.002, 0.02, 70)
    account = fdp.Accountant(capacity=128)
    for s, q in zip(noise, prob, strict=True):
        account = account.step(fdp.PoissonSubsampled(fdp.Gaussian(s), q), count=3)
    assert account._trimmed().tables[0].capacity == 80
    found = account.bounds(delta=1e-5)
    whole = _run(noise, prob, np.full(70, 3)).bounds(delta=1e-5)
    assert found.estimate == pytest.approx(float(whole.estimate), rel=1e-12)


@pytest.mark.slow
def test_derivatives_reach_every_row():
    """In the order in which they were given, though rows are sorted inside."""
    noise = np.random.default_rng(3).uniform(0.8, 1.5, 150)
    count = np.full(150, 4.0)

    def epsilon(noise):
        return _run(noise, np.full(150, 0.02), count).epsilon(delta=1e-5)

    slopes = jax.jit(jax.grad(epsilon))(noise)
    for row in (np.argmin(noise), np.argmax(noise), 77):
        shift = 1e-4 * (np.arange(150) == row)
        change = epsilon(noise + shift) - epsilon(noise - shift)
        assert slopes[row] == pytest.approx(float(change) / 2e-4, rel=1e-4)


def _log_moment(s, q, w):
    """By a trapezoid rule of its own, in extended precision."""
    wide = np.longdouble
    s, q, w = wide(s), wide(q), wide(w)
    step = min(s, s * s) / 16 / np.sqrt(1 + abs(min(w, 0)) / (4 * s * s))
    x = np.arange(-14 * s, max(w, 0) + 14 * s, step, dtype=wide)
    u = (x - wide(0.5)) / s**2
    top = np.maximum(u, 0)
    loss = top + np.log((1 - q) * np.exp(-top) + q * np.exp(u - top))
    logs = -np.square(x / s) / 2 + w * loss
    peak = np.max(logs)
    total = np.sum(np.exp(logs - peak)) * step / s / np.sqrt(2 * wide(np.pi))
    return float(peak + np.log(total))


def test_loose_moments_are_bounds():
    rng = np.random.default_rng(4)
    find = jax.jit(lambda s, q, w: SubsampledGaussianLoss(s, q).rough_moments(w)[0])
    for index in range(40):
        s, q = np.exp(rng.uniform(-1.5, 2)), np.exp(rng.uniform(-9, 0))
        reach = np.exp(rng.uniform(-4, np.log(2 * s * s * np.log(1 / q) + 9 * s), 4))
        orders = (1 + reach, -reach, rng.uniform(0, 1, 4))[index % 3]
        bounds = find(s, q, jnp.asarray(orders))
        for order, bound in zip(orders, bounds, strict=True):
            truth = _log_moment(s, q, order)
            slack = 2e-16 * (1 + abs(truth))
            assert bound >= truth - slack
            # A loss is rounded, and counts as often as the order says.
            rounded = 1e4 * slack * max(1, abs(order))
            assert bound <= truth + 1e-6 + rounded


def test_rows_are_put_in_order_of_their_effort():
    noise = np.random.default_rng(5).uniform(0.8, 2.0, 200)
    steps = SubsampledGaussianLoss(jnp.asarray(noise), jnp.full(200, 0.1))
    found = ScheduleLoss.of(steps, jnp.asarray(noise))
    np.testing.assert_array_equal(found.counts, np.sort(noise))
    (sorted_noise, _) = jax.tree.leaves(found.steps)
    np.testing.assert_array_equal(sorted_noise, np.sort(noise))


@pytest.mark.parametrize("count", [2, 70])
def test_schedules_of_bounded_losses(count):
    """As many equal steps are a power, which the grid knows."""
    laplace = fdp.Schedule(fdp.Laplace, np.full(count, 8.0))
    power = fdp.Laplace(8.0).repeat(count)
    for query in ({"delta": 1e-6}, {"epsilon": 0.2}):
        found, known = laplace.bounds(**query), power.bounds(**query)
        assert found.lower <= known.upper
        assert found.upper >= known.lower
        assert found.upper == pytest.approx(float(known.upper), rel=5e-4)
