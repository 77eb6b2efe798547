"""Rare participations and few steps: the law split by its largest step."""

import functools
import math
import types
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from programs import jitted

from fdp_jax.engines import _rare, _rare_cuts, _rare_queries
from fdp_jax.engines._bounds import Interval
from fdp_jax.engines._line_queries import Seen
from fdp_jax.losses import ComposedLoss, SubsampledGaussianLoss
from fdp_jax.losses._subsampled_gaussian import _band_tails
from fdp_jax.losses._subsampled_gaussian._band import BandLoss
from fdp_jax.losses._subsampled_gaussian._band_place import Place
from fdp_jax.losses._subsampled_gaussian._band_tails import (
    log_excess_below,
    log_masses_above,
)


def _step(noise, prob):
    return SubsampledGaussianLoss(jnp.asarray(noise), jnp.asarray(prob))


def _band(noise, prob, count, cuts, width, ends):
    place = Place(jnp.asarray(cuts), jnp.asarray(width), jnp.asarray(ends))
    return BandLoss(_step(noise, prob), jnp.asarray(count), place)


def test_difference_of_powers_that_cancels():
    """Both integrals decay slower than their sum, which is lost in rounding."""
    noise, prob, cuts, width = 23.0, 0.017, [44.0, 316.0], 4.0
    order, step = 5552.0, 392.0
    part = _band(noise, prob, 3.0, cuts, width, [-312.0, 375.0])

    @jitted
    def transform(part):
        located = part.locate(jnp.asarray(order))
        plan = part.prepare(located, jnp.asarray(64 * step), jnp.asarray(-40.0))
        first, apart = jnp.asarray(0.0), jnp.asarray(step)
        return part.log_characteristic(plan, first, apart), plan.center

    found, center = transform(part)
    center = float(center)
    with mpmath.workdps(50):
        # The trapezoid rule converges far beyond these digits.
        losses, low, high = [], [], []
        share = lambda x, cut: mpmath.ncdf((cut - x) / width)
        for k in range(600):
            x = mpmath.mpf(k - 170)
            ratio = mpmath.expm1((2 * x - 1) / (2 * mpmath.mpf(noise) ** 2))
            losses.append(mpmath.log1p(prob * ratio))
            density = mpmath.exp(order * losses[-1] - x * x / (2 * noise**2))
            low.append(density * share(x, cuts[0]))
            high.append(density * share(x, cuts[1]))
        whole = mpmath.fsum(high) ** 3 - mpmath.fsum(low) ** 3

        def value(weights, tau):
            turns = (mpmath.expj(tau * (loss - center)) for loss in losses)
            return mpmath.fdot(weights, turns)

        for k in (1, 25, 40, 52):
            tau = k * step
            truth = (value(high, tau) ** 3 - value(low, tau) ** 3) / whole
            claim = mpmath.expj(float(found.imag[k])) * mpmath.exp(float(found.real[k]))
            assert abs(claim / truth - 1) <= float(found.error[k]) < 1e-6


def test_the_outermost_cuts_are_those_of_bands_in_use():
    cuts = [[0.0, 1.0], [1.0, 2.0], [2.0, 2.5]]
    parts = jax.vmap(lambda pair: _band(1.0, 0.1, 3.0, pair, 0.1, [-9.0, 9.0]))(
        jnp.asarray(cuts)
    )
    ends = jnp.asarray([-9.5, 9.5])
    found = jitted(_rare._outermost)(parts, jnp.asarray([True, True, False]), ends)
    assert list(found.place.cuts) == [0.0, 2.0]
    assert list(found.place.ends) == [-9.5, 9.5]


def test_excess_below_a_cut_where_a_factor_underflows():
    """A large exponent may count although the density times the cut underflows."""
    part = _band(1.0, 0.01, 2.0, [-3.0, 9.0], 0.1, [-14.0, 42.0])
    order, reach = 41000.0, 45.0
    (found,), _ = jitted(log_excess_below)(
        part, jnp.asarray([order]), jnp.asarray([-3.0]), jnp.asarray(reach)
    )
    with mpmath.workdps(30):

        def density(x):
            more = 1 + 0.01 / 0.99 * mpmath.exp(x - 0.5)
            below = mpmath.erfc((x + 3) / (0.1 * mpmath.sqrt(2))) / 2
            return mpmath.npdf(x) * below * more**order

        edges = mpmath.linspace(-14, -3 + 0.1 * reach, 40)
        assert found[0] >= float(mpmath.log(mpmath.quad(density, edges)))


@pytest.mark.parametrize("shift", [0.0, 300.0])
def test_bound_of_a_smooth_step(shift):
    """Above it, by less than a factor of two, however far out."""
    points = np.concatenate([np.linspace(-9, 9, 181), -np.geomspace(9, 37, 40)])
    found = jitted(_band_tails._step_bound)(jnp.asarray(points), shift)
    with mpmath.workdps(30):
        for point, bound in zip(points, np.asarray(found), strict=True):
            truth = mpmath.ncdf(mpmath.mpf(float(point))) * mpmath.exp(shift)
            # But for the rounding that the sums over nodes allow for.
            assert truth * (1 - 1e-12) <= bound < 2 * truth * (1 + 1e-12)


def test_tail_above_a_cut_below_the_least_number():
    part = _band(1.0, 0.01, 2.0, [0.0, 39.0], 0.1, [-14.0, 41.0])
    (found,), _ = jitted(log_masses_above)(
        part, jnp.asarray([1.0]), jnp.asarray([39.0])
    )
    with mpmath.workdps(30):
        share = lambda x: mpmath.erfc((x) / mpmath.sqrt(2)) / 2
        # The smooth step is the sum of both normal variables above the cut.
        scale = mpmath.sqrt(1.01)
        truth = 0.99 * share(39 / scale) + 0.01 * share(38 / scale)
        assert float(mpmath.log(truth)) <= found[0] < float(mpmath.log(truth)) + 10


@pytest.mark.parametrize("side", [-1, 1])
def test_what_is_left_below_where_it_just_vanishes(side):
    """P_a^N - e^eps Q_a^N has an upper bound where rounding makes it negative."""
    part = _band(0.8, 1e-3, 50.0, [-0.4, 3.0], 0.05, [-12.0, 8.0])
    certain, added = jitted(_rare_cuts.certain_part), jnp.asarray(-1.0)
    far, log_q = certain(part, added, jnp.asarray([0.0]))
    log_p = jnp.logaddexp(far.estimate[0], log_q)
    gain = float(log_q - log_p)
    edge = -gain * (1 + side * 4e-16)
    found, *_ = certain(part, added, jnp.asarray([edge]))
    assert found.upper[0] > -math.inf
    assert found.lower[0] == -math.inf
    assert far.lower[0] <= far.estimate[0] <= far.upper[0]
    with mpmath.workdps(30):
        s, q, a, v = map(mpmath.mpf, (0.8, 1e-3, -0.4, 0.05))
        scale = mpmath.sqrt(s * s + v * v)
        p, shifted = mpmath.ncdf(a / scale), mpmath.ncdf((a - 1) / scale)
        np.testing.assert_allclose(log_p, float(50 * mpmath.log(p)), rtol=1e-13)
        both = p**50, ((1 - q) * p + q * shifted) ** 50
        truth = float(mpmath.log(both[0] - both[1]))
        assert far.lower[0] <= truth <= far.upper[0]
        least = both[0] - mpmath.exp(mpmath.mpf(edge)) * both[1]
        if least > 0:
            assert found.upper[0] >= float(mpmath.log(least))


def test_a_plan_for_the_exchanged_pair_beyond_zero(monkeypatch):
    """delta(t) = 1 - e^t + e^t delta_rev(-t), t > 0: the first part is negative."""
    t, delta = 1e-3, 0.1
    back = 1 + (delta - 1) * math.exp(-t)
    log_back = jnp.asarray([math.log(back)])
    names = "log_lower", "log_value", "log_upper", "log_alpha", "slope"
    here = types.SimpleNamespace(**dict.fromkeys(names, log_back))
    monkeypatch.setattr(_rare_queries, "evaluation", lambda *_, **__: here)
    rare: Any = types.SimpleNamespace(sign=jnp.asarray(-1.0))
    loss: Any = None
    found = _rare_queries._at_real(loss, rare, jnp.asarray(1.0), jnp.asarray([t]))
    np.testing.assert_allclose(found.log_value, math.log(delta), rtol=1e-12)
    assert found.log_lower[0] <= math.log(delta) <= found.log_upper[0]


class _Used(eqx.Module):
    """A plan of which nothing else is asked."""

    used: jax.Array


@pytest.mark.parametrize("rest", [3e-9, 7e-11, 1.1e-12])
def test_the_least_epsilon_of_a_delta_near_one(monkeypatch, rest):
    """log(1 - delta), whatever 1 - delta loses in rounding."""
    kept = lambda loss, sign, bounds, first, *_: (
        Interval(bounds[0], first, bounds[1]),
        _Used(jnp.ones((), bool)),
    )
    monkeypatch.setattr(_rare_queries, "rare_epsilon", kept)
    target = jnp.asarray(-rest)
    zero = jnp.zeros(())
    loss = ComposedLoss((_step(1.0, 0.1),), (jnp.asarray(3.0),))
    found, _ = _rare_queries.split_epsilon_if_loose(
        loss,
        jnp.asarray(1.0),
        Interval(zero - jnp.inf, zero, zero + 1),
        target,
        jnp.zeros(2),
        jnp.asarray(True),
    )
    with mpmath.workdps(40):
        truth = mpmath.log(-mpmath.expm1(mpmath.mpf(-rest)))
        assert float(found.lower) <= truth
        np.testing.assert_allclose(float(found.lower), float(truth), rtol=1e-13)


@functools.cache
def _epsilon():
    """The split law's epsilon of a log delta, between some bounds, by one program."""

    @jitted
    def find(noise, prob, count, bounds, target):
        loss = ComposedLoss((SubsampledGaussianLoss(noise, prob),), (count,))
        sign, slack = jnp.ones(()), jnp.zeros(2)
        first = bounds[1]
        return _rare_queries.rare_epsilon(
            loss, sign, (bounds[0], bounds[1]), first, target, slack
        )[0]

    return lambda *args: find(*map(jnp.asarray, args))


def test_epsilon_far_below_the_first_guess():
    """The value at the first one is unheard; that of the oracle is hardcoded.

    So deep (delta of 1e-207) the lower end says nothing, and rounding decides where the
    search ends: with one thread of BLAS elsewhere than with two."""
    truth, log_delta = 0.00063006, -476.36961659106356
    found = _epsilon()(20.59, 1.719e-4, 2.0, [0.0, 0.063431], log_delta)
    assert found.lower <= truth <= found.upper


@pytest.mark.parametrize(
    ("noise", "prob", "count", "delta"),
    [(0.4127, 2.207e-4, 12.0, 0.00282), (0.3288, 1.394e-5, 180.0, 0.07987)],
)
def test_epsilon_of_a_delta_beyond_the_largest_loss(noise, prob, count, delta):
    """Of the exchanged pair nothing is lost there: epsilon is log(1 - delta)."""
    least = math.log1p(-delta)
    ends = [least * (1 + 1e-14), 0.0]
    found = _epsilon()(noise, prob, count, ends, math.log(delta))
    assert -least > -count * math.log1p(-prob)
    assert found.lower <= least <= found.upper
    np.testing.assert_allclose(found.upper, least, rtol=1e-9)


def _two_steps_added(noise, prob, epsilon):
    """E_P (1 - e^eps R_1 R_2)_+ by quadrature over one step; the other is closed."""
    s, q, eps = map(mpmath.mpf, (noise, prob, epsilon))
    ratio = lambda x: 1 - q + q * mpmath.exp((2 * x - 1) / (2 * s * s))

    def place(level):
        return mpmath.mpf(1) / 2 + s * s * mpmath.log((level - (1 - q)) / q)

    def other(x):
        level = mpmath.exp(-eps) / ratio(x)
        if level <= 1 - q:
            return mpmath.mpf(0)
        end = place(level)
        without, included = mpmath.ncdf(end / s), mpmath.ncdf((end - 1) / s)
        mixed = (1 - q) * without + q * included
        return mpmath.npdf(x, 0, s) * (without - mpmath.exp(eps) * ratio(x) * mixed)

    top = min(place(mpmath.exp(-eps) / (1 - q)), 14 * s)
    return mpmath.quad(other, mpmath.linspace(-14 * s, top, 60))


@functools.cache
def _added():
    @jitted
    def find(noise, prob, epsilon, guess, place):
        step, count, sign = _step(noise, prob), jnp.asarray(2.0), -1.0
        rare = _rare.plan_rare(step, count, jnp.asarray(sign), place, guess)
        loss = ComposedLoss((step,), (count,))
        return _rare.evaluation(loss, rare, epsilon[None], moves=False)

    return lambda *args: find(*map(jnp.asarray, args))


@pytest.mark.parametrize(
    ("noise", "prob", "epsilon", "place"),
    [
        (0.384, 1.85e-3, 1e-4, 1e-4),
        (0.4898, 8.15e-5, 1e-4, 1e-4),
        (0.6, 0.01, 1e-3, 1e-3),
        # Thresholds before that of the plan: what is beyond its nodes counts.
        (0.384, 1.85e-3, 1e-4, 2e-3),
        (0.6, 0.01, 1e-4, 0.018),
    ],
)
def test_little_noise_in_direction_add(noise, prob, epsilon, place):
    """Where steps beyond the bulk of the noise leave nothing, nodes end within it."""
    with mpmath.workdps(25):
        truth = mpmath.log(_two_steps_added(noise, prob, epsilon))
    found = _added()(noise, prob, epsilon, float(truth), place)
    assert found.log_lower[0] <= float(truth) <= found.log_upper[0]
    if place == epsilon:
        assert found.log_upper[0] - found.log_lower[0] < 1e-9


def test_what_is_not_split_has_derivatives_in_a_batch_of_what_may_be(monkeypatch):
    """Under `vmap` bands without a place are evaluated, too, and then left out."""
    monkeypatch.setattr(_rare, "see", lambda line, epsilons: Seen(*[epsilons] * 5))
    monkeypatch.setattr(_rare, "log_value", lambda loss, epsilons, line: epsilons)
    lines: Any = jnp.zeros(1)

    def split(noise, used):
        step, count, one = _step(noise, 1e-3), jnp.asarray(200.0), jnp.ones(())
        empty = Place(jnp.zeros(2), 0 * one, jnp.zeros(2))
        zero = 0 * one
        scales = _rare_cuts.Scales(
            zero, zero, zero, zero, zero, jnp.zeros(1), jnp.zeros(2)
        )
        none, part = jnp.zeros(1, bool), BandLoss(step, count, empty)
        parts = jax.tree.map(lambda x: x[None], part)
        rare = _rare.Rare(none[0], one, one, parts, lines, none, scales)
        loss = ComposedLoss((step,), (count,))
        found = _rare.rare_profile(loss, rare, jnp.ones(1))
        return jnp.where(used, found.log_delta.estimate[0], noise)

    with jax.enable_x64(True):
        assert jax.grad(split)(jnp.asarray(1.1), False) == 1
