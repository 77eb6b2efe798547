"""Integer noise that adds up, against masses by other means."""

import itertools
import math

import jax
import numpy as np
import pytest
from scipy import special

import fdp_jax as fdp

EPSILONS = np.array([-0.4, 0.0, 0.2, 0.7])


def _deltas(log_p, log_q) -> np.ndarray:
    gaps = np.exp(log_q) - np.exp(EPSILONS)[:, None] * np.exp(log_p)
    return np.sum(np.maximum(gaps, 0), axis=1)


def _holds(mechanism, truths):
    for epsilon, truth in zip(EPSILONS, truths, strict=True):
        found = mechanism.bounds(epsilon=epsilon)
        assert float(found.lower) - 1e-11 <= truth <= float(found.upper) + 1e-11


def _skellam(variance, step, most=260):
    """Log masses of the noise and of what is `step` above it."""
    k = np.arange(-most, most + step + 1.0)
    with np.errstate(divide="ignore"):
        logs = [np.log(special.ive(np.abs(x), variance)) for x in (k, k - step)]
    return [np.where(np.isfinite(x), x, -700.0) for x in logs]


@pytest.mark.parametrize(("scale", "step"), [(0.3, 1), (2.0, 1), (5.0, 3), (2.0, 7)])
def test_skellam_noise(scale, step):
    truths = _deltas(*_skellam(scale**2, step))
    _holds(fdp.Skellam(scale, sensitivity=step), truths)
    bound = float(fdp.Skellam(scale, sensitivity=step).delta(epsilon=0.2))
    assert bound == pytest.approx(truths[2], rel=1e-6)


def test_two_releases_of_skellam_noise():
    log_p, log_q = _skellam(4.0, 2, most=60)
    both = [np.add.outer(x, x).ravel() for x in (log_p, log_q)]
    _holds(fdp.Skellam(2.0, sensitivity=2).repeat(2), _deltas(*both))


def test_skellam_noise_is_nearly_gaussian_where_it_is_wide():
    found = fdp.Skellam(500.0, sensitivity=100).repeat(50).epsilon(delta=1e-6)
    near = fdp.Gaussian(5.0).repeat(50).epsilon(delta=1e-6)
    assert float(found) == pytest.approx(float(near), rel=1e-4)


def test_skellam_noise_fits_a_budget_and_has_derivatives():
    target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-6)
    run = fdp.Skellam(None, sensitivity=2)
    found = fdp.calibrate(run, target, solve_for="scale").mechanism
    assert float(found.delta(epsilon=1.0)) == pytest.approx(1e-6, rel=1e-4)
    slope = jax.grad(lambda s: fdp.Skellam(s).delta(epsilon=0.2))(2.0)
    high, low = (_deltas(*_skellam(s**2, 1))[2] for s in (2.001, 1.999))
    assert float(slope) == pytest.approx((high - low) / 0.002, rel=1e-5)


def test_divergences_of_vectors_are_below_their_bound():
    # Divergences of independent coordinates add up.
    for scale, shift in itertools.product((0.7, 2.0, 5.0), ((1,), (3,), (1, 1, 2))):
        l1, l2 = sum(shift), math.hypot(*shift)
        known = fdp.Skellam.of_vectors(scale, l2_sensitivity=l2, l1_sensitivity=l1)
        orders, bounds = np.asarray(known.orders), np.asarray(known.divergences)
        for order, bound in zip(orders[:30], bounds[:30], strict=True):
            parts = []
            for step in shift:
                log_p, log_q = _skellam(scale**2, step, most=40)
                inner = slice(step, -step)
                logs = order * log_q[inner] + (1 - order) * log_p[inner]
                parts.append(special.logsumexp(logs) / (order - 1))
            assert sum(parts) <= bound
        if scale == 5.0:
            assert bounds[0] < 1.1 * orders[0] * l2**2 / 50
    squared = fdp.Skellam.of_vectors(3.0, l2_sensitivity=2.0)
    stated = fdp.Skellam.of_vectors(3.0, l2_sensitivity=2.0, l1_sensitivity=4.0)
    assert np.array_equal(squared.divergences, stated.divergences)


@pytest.mark.parametrize(("scale", "shares"), [(1.9, 2), (1.9, 5), (2.5, 3)])
def test_sums_of_discrete_gaussians(scale, shares):
    most, step = 60, 2
    one = np.exp(-0.5 * np.square(np.arange(-most, most + 1) / scale))
    masses = one = one / one.sum()
    for _ in range(shares - 1):
        masses = np.convolve(masses, one)
    p, q = masses[step:], masses[:-step]  # all but less than 1e-100
    kept = (p > 1e-250) & (q > 1e-250)
    log_p, log_q = np.log(p[kept]), np.log(q[kept])
    run = fdp.DistributedDiscreteGaussian(scale, num_shares=shares, sensitivity=step)
    truths = _deltas(log_p, log_q)
    _holds(run, truths)
    assert float(run.delta(epsilon=0.2)) == pytest.approx(truths[2], rel=1e-6)
    orders = np.array([1.5, 2.0, 8.0])
    divergences = [
        special.logsumexp(t * log_q + (1 - t) * log_p) / (t - 1) for t in orders
    ]
    found = np.asarray(fdp.divergences.renyi_dp(run, orders=orders).divergences)
    assert found == pytest.approx(np.array(divergences), rel=1e-6)


def test_sums_of_narrow_discrete_gaussians_are_refused_for_a_reason():
    # Two of scale 0.8 leak more than one of the same variance.
    one = np.exp(-0.5 * np.square(np.arange(-30, 31) / 0.8))
    masses = np.convolve(one, one) / np.sum(one) ** 2
    p, q = masses[1:], masses[:-1]
    kept = (p > 1e-250) & (q > 1e-250)
    logs = 8 * np.log(q[kept]) - 7 * np.log(p[kept])
    assert math.log(np.sum(np.exp(logs))) / 7 > 8 / (2 * 2 * 0.8**2) * (1 + 1e-5)


def test_many_shares_are_one_discrete_gaussian():
    shares = fdp.DistributedDiscreteGaussian(2.0, num_shares=16, sensitivity=3)
    whole = fdp.DiscreteGaussian(8.0, sensitivity=3)
    for epsilon in EPSILONS:
        found = float(shares.delta(epsilon=epsilon))
        assert found == pytest.approx(float(whole.delta(epsilon=epsilon)), rel=1e-9)


def test_as_many_shares_as_a_budget_needs():
    target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-6)
    run = fdp.DistributedDiscreteGaussian(2.0, num_shares=None, sensitivity=10)
    least = float(fdp.calibrate(run, target, solve_for="num_shares").value)
    deltas = [
        float(
            fdp.DistributedDiscreteGaussian(2.0, num_shares=n, sensitivity=10).delta(
                epsilon=1.0
            )
        )
        for n in (least, least - 1)
    ]
    assert least == round(least)
    assert deltas[0] <= 1e-6 < deltas[1]


def test_mass_beyond_what_is_kept_of_wide_noise():
    # Of both tails beyond 8 standard deviations, about 1.24e-15, nothing is known; all
    # that is kept has a loss below 1.
    found = fdp.DiscreteGaussian(4096.0).bounds(epsilon=1.0)
    tails = float(special.erfc(8 / math.sqrt(2)))
    assert float(found.lower) <= 1e-300
    assert tails / 2 <= float(found.upper) <= 1.05 * tails
