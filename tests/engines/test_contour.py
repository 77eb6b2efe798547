"""Bounds and choices on a contour against closed Gaussian profiles."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from closed import Gaussian
from programs import jitted
from reference import exact

from fdp_jax.engines import _contour
from fdp_jax.engines._saddle import log_moments, saddle_for_epsilon
from fdp_jax.losses import (
    FREQUENCY_BLOCK,
    ComposedLoss,
    GaussianLoss,
    ScheduleLoss,
    TwoPointLoss,
)

LOG_UNIT = float(np.log(np.finfo(float).eps))


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(60):
        yield


def gaussian(noise, count=1.0):
    return ComposedLoss((GaussianLoss(jnp.asarray(noise)),), (jnp.asarray(count),))


def start_at(loss, epsilon, middle):
    saddle = saddle_for_epsilon(loss, jnp.asarray(1.0), middle, epsilon)
    return _contour.start_contour(loss, jnp.asarray(1.0), saddle, middle)


@jitted
def chosen(noise, count, epsilon, middle):
    """Everything there is about a contour, in one program."""
    loss = gaussian(noise, count)
    start = start_at(loss, epsilon, middle)
    cheapest = _contour.cheapest_shift(start)
    return start, cheapest, _contour.plan_contour(loss, start)


POINTS = [
    # Noise, releases, deviations above the mean, strip.
    (0.5, 3.0, 4.0, False),
    (0.5, 3.0, -0.5, False),
    (0.5, 3.0, -3.0, True),
    (0.04, 1.0, 34.0, False),
    (0.04, 1.0, -20.0, True),
    (30.0, 5.0, 6.0, False),
    (2.0, 0.7, 0.0, True),
]


@pytest.fixture(scope="module", params=POINTS, ids=str)
def point(request):
    noise, count, place, middle = request.param
    with mp.workdps(60):
        truth = Gaussian(noise, count)
    epsilon = float(truth.mean + place * truth.deviation)
    found = chosen(noise, count, epsilon, jnp.asarray(middle))
    side = truth.rest if middle else truth.delta
    return truth, side, epsilon, middle, *found


# -- Chernoff bounds ---------------------------------------------------------------


def test_payoff_is_below_its_exponential():
    """At one c, the least C with (1 - e^-t)_+ <= C e^{ct} (min(1, e^-t) for c <= 0)."""
    shifts = [-1.0, -0.3, -1e-9, 0.0, 1e-12, 1e-6, 0.3, 1.0, 40.0, 1e5, 1e9]
    found = _contour.log_payoff(jnp.asarray(shifts))
    for c, log_bound in zip(shifts, found, strict=True):
        c = exact(c)
        at = mp.log1p(1 / c) if c > 0 else mp.mpf(0)
        payoff = -mp.expm1(-at) if c > 0 else mp.mpf(1)
        least = mp.log(payoff) - c * at
        assert abs(exact(log_bound) - least) <= 1e-15 * (1 + abs(least))


def _of_many_steps():
    """Two Gaussian releases in a schedule."""
    steps = GaussianLoss(jnp.asarray([2.0, 3.0]))
    loss = ScheduleLoss(steps, jnp.asarray([1.0, 4.0]))
    return ComposedLoss((loss,), (jnp.asarray(1.0),))


def test_bounds_are_on_one_strip(point):
    *_, middle, start, _, _ = point
    shifts = np.asarray(start.chernoff_shifts)
    assert np.all((shifts >= -1) & (shifts <= 0) if middle else shifts >= 0)
    assert abs(shifts[0] - start.saddle.shift) <= 1.2e-16 * (1 + shifts[0])
    trivial = np.flatnonzero(shifts == (-1 if middle else 0))
    assert trivial.size
    # Those say that delta is at most one, or 1 - delta at most e^eps.
    assert np.max(np.abs(start.chernoff_logs[trivial])) < 1e-12
    # Nothing is rounded between a shift and its order.
    assert np.all((1 + shifts) - 1 == shifts)


def test_bounds_bound_the_profile(point):
    truth, side, epsilon, _, start, _, contour = point
    reach = np.linspace(-8, 8, 33) * float(truth.deviation)
    epsilons = epsilon + reach
    bounds = _contour.chernoff(start.chernoff_shifts, start.chernoff_logs, epsilons)
    np.testing.assert_array_equal(contour.chernoff(epsilons), bounds)
    for one, bound in zip(epsilons, bounds, strict=True):
        assert exact(bound) >= mp.log(side(exact(one)))


def test_bound_at_the_saddle_is_the_best_one(point):
    """No better exponent exists, so that the sum's terms are as small as can be."""
    truth, _, _, middle, start, _, _ = point
    epsilon = exact(start.saddle.epsilon)
    bounds = _contour.chernoff(
        start.chernoff_shifts, start.chernoff_logs, jnp.asarray([float(epsilon)])
    )

    def exponent(c):
        payoff = 0 if middle else c * mp.log(c) - (1 + c) * mp.log1p(c)
        return truth.cumulant(c) - c * epsilon + payoff

    shift = exact(start.saddle.shift)
    others = [exponent(shift * mp.mpf(f)) for f in ("0.97", "0.99", "1.01", "1.03")]
    assert exact(bounds[0]) <= min(others) + mp.mpf("0.02")


def test_the_least_of_bounds_is_not_rounded_downward():
    random = np.random.default_rng(5)
    for size in (1e-3, 1.0, 1e4):
        shifts = random.uniform(-1, 30, 5)
        logs = random.normal(0, size, 5)
        epsilons = random.normal(0, size, 40)
        found = _contour.chernoff(
            jnp.asarray(shifts), jnp.asarray(logs), jnp.asarray(epsilons)
        )
        for epsilon, bound in zip(epsilons, found, strict=True):
            each = zip(shifts, logs, strict=True)
            truth = min(exact(l) - exact(s) * exact(epsilon) for s, l in each)
            assert 0 <= exact(bound) - truth <= 1e-14 * size * 60


# -- answers of a start ------------------------------------------------------------


def test_rough_answers_are_near(point):
    _, side, epsilon, middle, start, _, _ = point
    if middle:
        assert start.rough_log_delta(epsilon) == 0
        return
    truth = mp.log(side(exact(epsilon)))
    if truth < -0.5:
        assert abs(exact(start.rough_log_delta(epsilon)) - truth) < 0.2
    near = float(truth) - 0.5
    found = exact(start.rough_epsilon(jnp.asarray(near)))
    assert abs(mp.log(side(found)) - near) < 0.4


def test_cheap_bounds_are_bounds_and_inverse_to_each_other(point):
    _, side, epsilon, middle, start, _, _ = point
    bound = start.largest_log_delta(jnp.asarray(epsilon))
    if middle:
        assert bound == 0
        return
    assert exact(bound) >= mp.log(side(exact(epsilon)))
    for target in (-0.3, float(bound), float(bound) - 2.0):
        most = exact(start.largest_epsilon(jnp.asarray(target)))
        assert mp.log(side(most)) <= target
        each = zip(start.chernoff_shifts, start.chernoff_logs, strict=True)
        least = min((exact(l) - target) / exact(s) for s, l in each if s > 0)
        assert 0 <= most - least <= 1e-14 * (1 + abs(least))


def test_bounds_of_many_steps_are_those_of_their_sum():
    """Five Gaussian releases of two kinds are one with noise (1/4 + 4/9)^(-1/2)."""
    loss, whole = _of_many_steps(), gaussian((25 / 36) ** -0.5)
    sign, middle = jnp.asarray(1.0), jnp.zeros((), bool)
    saddle = saddle_for_epsilon(loss, sign, middle, jnp.asarray(1.5))
    start = _contour.start_contour(loss, sign, saddle, middle)
    other = _contour.start_contour(whole, sign, saddle, middle)
    np.testing.assert_array_equal(start.chernoff_shifts, other.chernoff_shifts)
    np.testing.assert_allclose(start.chernoff_logs, other.chernoff_logs, rtol=1e-13)
    # Without frequencies the bounds are what is left.
    idle = _contour.idle_contour(start, _contour.plan_contour(loss, start))
    assert idle.idle
    assert idle.rough
    assert idle.chernoff_shifts.shape == start.chernoff_shifts.shape
    at = jnp.asarray([1.5])
    np.testing.assert_array_equal(
        idle.chernoff(at), start.largest_log_delta(at[0])[None]
    )


# -- aliases -----------------------------------------------------------------------


def test_aliases_of_exponentials_are_geometric_series():
    """With one bound on either side the bound of their sum is exact."""
    shifts, logs = np.asarray([2.0, 0.5, 3.25]), np.asarray([-7.0, 1.0, 2.0])
    for period in (0.3, 4.0, 80.0):
        found = _contour.log_aliases(
            jnp.asarray(shifts),
            jnp.asarray(logs),
            jnp.asarray(2.0),
            jnp.asarray(period),
            jnp.asarray([1.0, 9.0]),
        )
        for epsilon, value in zip((1.0, 9.0), found, strict=True):
            right = mp.nsum(
                lambda m, r=period, e=epsilon: mp.exp(
                    2 * m * r + 2 - 3.25 * (e + m * r)
                ),
                [1, mp.inf],
            )
            left = mp.nsum(
                lambda m, r=period, e=epsilon: mp.exp(
                    -2 * m * r + 1 - 0.5 * (e - m * r)
                ),
                [1, mp.inf],
            )
            assert abs(exact(value) - mp.log(left + right)) < 1e-13


@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
def test_bound_contains_the_aliases(point, share):
    """Theirs is e^{cmR} delta(eps + mR), summed over all m but zero."""
    _, side, epsilon, _, start, (shift, _, whole_period), _ = point
    period = share * float(whole_period)
    epsilons = epsilon + np.linspace(-0.3, 0.3, 3) * period
    found = _contour.log_aliases(
        start.chernoff_shifts,
        start.chernoff_logs,
        shift,
        jnp.asarray(period),
        jnp.asarray(epsilons),
    )
    for one, bound in zip(epsilons, found, strict=True):
        # Far left of the mean delta is 1 and terms are a geometric series.
        total, m, term = mp.mpf(0), 1, mp.mpf(1)
        while m < 400 and term > mp.mpf("1e-8") * total:
            steps = exact(shift) * m * exact(period)
            far = exact(one) + m * exact(period), exact(one) - m * exact(period)
            sizes = mp.exp(steps) * side(far[0]), mp.exp(-steps) * side(far[1])
            term = sum(sizes)
            total, m = total + term, m + 1
        # Its own rounding is far below that of the sum, next to which it stands.
        assert exact(bound) >= mp.log(total) - mp.mpf("1e-14")
        if share < 1:
            size = 4 + abs(mp.log(total)) * mp.mpf("0.6")
            assert exact(bound) <= mp.log(total) + size


# -- choices -----------------------------------------------------------------------


def test_cheapest_shift_keeps_aliases_below_rounding(point):
    truth, _, _, middle, start, (shift, lead, period), _ = point
    shift, epsilon = exact(shift), start.saddle.epsilon
    assert (-1 < shift < 0) if middle else (shift > 0)
    assert shift in [exact(x) for x in start.chernoff_shifts]
    height = truth.cumulant(shift) - shift * exact(epsilon)
    assert abs(exact(lead) - height) < 1e-12 * (1 + abs(truth.cumulant(shift)))
    assert exact(period) >= 2 * truth.deviation * (1 - mp.mpf("1e-12"))
    aliases = _contour.log_aliases(
        start.chernoff_shifts,
        start.chernoff_logs,
        jnp.asarray(float(shift)),
        period,
        epsilon[None],
    )
    assert aliases[0] <= start.saddle.log_value + LOG_UNIT + np.log(2) + 1e-6


def test_plan_covers_the_frequencies_that_count(point):
    truth, _, _, _, start, (shift, lead, period), contour = point
    assert contour.shift == shift
    assert float(contour.step * period) == pytest.approx(2 * np.pi, rel=1e-15)
    assert not contour.rough
    assert not contour.idle
    frequency = exact(contour.frequency)
    envelope = -(frequency**2) * truth.variance / 2
    assert abs(exact(contour.log_envelope) / envelope - 1) < 1e-13
    length = exact(contour.step) * FREQUENCY_BLOCK
    blocks = int(contour.blocks)
    assert (blocks - 1) * length <= frequency <= blocks * length
    # What is left out, next to the value itself.
    tail = mp.erfc(frequency * truth.deviation / mp.sqrt(2)) / frequency
    conceded = mp.log(tail) + exact(lead) - exact(start.saddle.log_value)
    assert conceded < LOG_UNIT + (7.5 if blocks > 8 else 0.5)
    # Not many more than it takes.
    assert frequency * truth.deviation < 40


class _Slow(GaussianLoss):
    """Says of itself that its characteristic function is below exp(-tau^power)."""

    power: jax.Array

    def log_envelope(self, located, frequency):
        return -jnp.power(frequency, self.power)


@jitted
def last_frequency(power, target, many, most):
    loss = ComposedLoss((_Slow(jnp.asarray(1.0), power),), (jnp.asarray(2.0),))
    one = jnp.asarray(1.0)
    saddle = saddle_for_epsilon(loss, one, jnp.zeros((), bool), one)
    return _contour._last_frequency(loss, (None,), saddle, (target, many), most)


@pytest.mark.parametrize("power", [0.3, 1.0, 2.0])
def test_last_frequency_of_any_decay(power):
    for target in (-3.0, -36.0, -90.0):
        enough = (-target / 2) ** (1 / power)
        frequency, envelope = last_frequency(power, target, 1e-3 * enough, 1e15)
        assert envelope == pytest.approx(-2 * frequency**power)
        concession = 7.0  # beyond the first 0.1 % of that
        assert envelope <= target + np.log(frequency) + concession
        assert frequency < 4 * enough
        frequency, envelope = last_frequency(power, target, 1e9 * enough, 1e15)
        assert envelope <= target + np.log(frequency)
        # Not farther than it may go, and what that leaves is told.
        frequency, envelope = last_frequency(power, target, 1.0, 0.1)
        assert frequency == 0.1
        assert envelope == pytest.approx(-2 * 0.1**power)


def test_what_does_not_decay_is_out_of_reach():
    loss = ComposedLoss(
        (TwoPointLoss.of(jnp.asarray(0.3), jnp.asarray(0.0)),), (jnp.asarray(20.0),)
    )
    start = start_at(loss, jnp.asarray(1.0), jnp.zeros((), bool))
    contour = _contour.plan_contour(loss, start)
    assert contour.rough
    assert contour.blocks == 1
    np.testing.assert_allclose(
        contour.rough_log_sum + log_moments(loss, start.sign, contour.shift[None])[0],
        start.saddle.log_value + contour.shift * start.saddle.epsilon,
        rtol=1e-12,
    )
