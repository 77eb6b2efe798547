"""Certified ends hold the truth without any slack: rounding is inside the bracket."""

from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax.engines import Interval

mp: Any = mpmath.mp.clone()
mp.dps = 50


def _draws(seed, *ranges, count=400):
    g = np.random.default_rng(seed)
    return [g.uniform(low, high, count) for low, high in ranges]


def _holds(found, truths):
    """Whether intervals hold exact numbers: no slack."""
    for low, high, truth in zip(found.lower, found.upper, truths, strict=True):
        low, high = mp.mpf(float(low)), mp.mpf(float(high))
        assert low <= truth <= high, (low, truth, high)


def _interval(values):
    return Interval(*(jnp.asarray(values),) * 3)


def _tiny_widths(found, scale):
    width = np.asarray(found.upper - found.lower)
    assert np.all(width <= 64 * 2.3e-16 * scale)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("low", [-1e-3, -1.0, -30.0, -700.0])
def test_exponential(low, jit):
    (x,) = _draws(1, (low, 0.0))
    apply = lambda x: _interval(x).exponential()
    found = (jax.jit(apply) if jit else apply)(x)
    _holds(found, [mp.exp(mp.mpf(v)) for v in x])
    _tiny_widths(found, (1 + np.abs(x)) * np.exp(x))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 20.0])
def test_shifted_and_reflected(scale, jit):
    x, distance = _draws(2, (-20.0, 0.0), (0.0, scale))
    program = lambda x, d: (_interval(x).shifted(-d), _interval(x).reflected(d))
    found = (jax.jit(program) if jit else program)(x, distance)
    exact = [(mp.mpf(v), mp.mpf(d)) for v, d in zip(x, distance, strict=True)]
    _holds(found[0], [v - d for v, d in exact])
    _holds(found[1], [mp.log(1 - mp.exp(-d) + mp.exp(v - d)) for v, d in exact])
    _tiny_widths(found[1], 1 + np.abs(np.asarray(found[1].estimate)) + scale)


def test_ends_that_are_exact_stay_so():
    never, certain = jnp.asarray([-jnp.inf]), jnp.zeros(1)
    found = _interval(never).exponential()
    assert found.lower == found.upper == 0
    found = _interval(certain).exponential()
    assert found.lower == found.upper == 1
    # Nothing but zero has the upper end zero.
    assert _interval(jnp.asarray([-800.0])).exponential().upper > 0
    # delta(0) of a pair without any loss.
    found = _interval(never).reflected(jnp.zeros(1))
    assert found.lower == found.upper == -jnp.inf
    found = _interval(never).reflected(jnp.asarray([3.0]))
    assert mp.mpf(float(found.lower[0])) <= mp.log(1 - mp.exp(-3))
    assert mp.mpf(float(found.upper[0])) >= mp.log(1 - mp.exp(-3))


def _gaussian_delta(epsilon, mu=1):
    epsilon, mu = mp.mpf(float(epsilon)), mp.mpf(mu)
    upper = mp.ncdf(-epsilon / mu + mu / 2)
    return upper - mp.exp(epsilon) * mp.ncdf(-epsilon / mu - mu / 2)


def test_log_delta_at_negative_thresholds():
    epsilon = np.linspace(-12.0, 0.0, 400, endpoint=False)
    found = fdp.Gaussian(1.0).log_delta
    upper = found(epsilon=epsilon)
    lower = found(epsilon=epsilon, bound="optimistic")
    truths = [mp.log(_gaussian_delta(e)) for e in epsilon]
    _holds(Interval(lower, lower, upper), truths)


def test_nodes_of_curves_and_thresholds_between():
    curve = fdp.Gaussian(1.0).curve()
    nodes = np.asarray(curve.both.epsilon_grid)
    between = 0.5 * (nodes[1:] + nodes[:-1])
    for at in (nodes, between):
        found = curve.bounds(epsilon=at)
        _holds(found, [_gaussian_delta(e) for e in at])
        logs = curve.log_delta(epsilon=at)
        assert all(
            mp.mpf(float(x)) >= mp.log(_gaussian_delta(e))
            for x, e in zip(logs, at, strict=True)
        )


@pytest.mark.parametrize("make", [lambda: fdp.Gaussian(1.0), fdp.Gaussian(1.0).curve])
def test_bayes_errors_and_error_rates(make):
    guarantee = make()
    prior = np.linspace(0.01, 0.99, 99)
    truths = []
    for p in map(mp.mpf, prior):
        epsilon = mp.log(p / (1 - p))
        upper = mp.ncdf(-epsilon + mp.mpf(1) / 2)
        delta = upper - mp.exp(epsilon) * mp.ncdf(-epsilon - mp.mpf(1) / 2)
        truths.append((1 - p) * (1 - delta))
    _holds(guarantee.bounds(prior=prior), truths)
    alpha = np.append(prior, [1e-9, 1e-4])
    # f(alpha) = Phi(Phi^-1(1 - alpha) - 1).
    quantile = [mp.sqrt(2) * mp.erfinv(1 - 2 * mp.mpf(a)) for a in alpha]
    _holds(guarantee.bounds(alpha=alpha), [mp.ncdf(z - 1) for z in quantile])
    _holds(guarantee.bounds(fpr=alpha), [mp.ncdf(1 - z) for z in quantile])


def _have_no_less(way, deltas):
    found = way.bounds(delta=deltas)
    ends = (np.atleast_1d(x) for x in (found.estimate, found.upper, deltas))
    for estimate, upper, delta in zip(*ends, strict=True):
        exact = mp.log1p(-mp.mpf(delta))
        assert mp.mpf(float(upper)) >= exact
        assert mp.mpf(float(estimate)) >= exact * (1 + mp.mpf(1e-13))


@pytest.mark.parametrize(
    "release",
    [
        fdp.Laplace(1e300),
        fdp.PoissonSubsampled(fdp.Laplace(1.0), 1e-18),
        fdp.RandomizedResponse(1e-17),
        fdp.Gaussian(1e17),
    ],
)
def test_nothing_has_less_epsilon_than_what_releases_nothing(release):
    """Epsilon is at least log(1 - delta), also of what hides nearly all."""
    deltas = np.array([1e-300, 1e-15, 0.1, 0.9])
    with jax.enable_x64(True):
        for way in (release.repeat(45).remove, release.repeat(45).add):
            _have_no_less(way, deltas)


def test_a_mixture_without_shifts_has_no_less_epsilon_either():
    idle = fdp.MixtureOfGaussians(1.0, shifts=[0.0], probs=[1.0])
    run = fdp.PoissonSubsampled(idle, 0.1).repeat(45)
    with jax.enable_x64(True):
        for delta in (1e-300, 0.1):
            _have_no_less(run.remove, delta)
        for delta in (1e-15, 0.9):
            _have_no_less(run.add, delta)
