"""The contour integral and its certificate, term by term, against closed profiles."""

import dataclasses

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from closed import Gaussian, response_delta
from programs import jitted
from reference import exact

from fdp_jax.engines import _inversion
from fdp_jax.engines._contour import (
    Start,
    idle_contour,
    plan_contour,
    start_contour,
)
from fdp_jax.engines._saddle import Saddle, saddle_for_epsilon
from fdp_jax.losses import (
    FREQUENCY_BLOCK,
    ComposedLoss,
    GaussianLoss,
    PoissonLoss,
    TwoPointLoss,
)

RIGHT = jnp.zeros((), bool)


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(60):
        yield


def composed(step, count):
    return ComposedLoss((step,), (jnp.asarray(count),))


def start_at(loss, sign, epsilon, middle):
    saddle = saddle_for_epsilon(loss, sign, middle, epsilon)
    return start_contour(loss, sign, saddle, middle)


@jitted
def contour_at(step, count, epsilon, middle):
    """In a program of its own: in one, XLA would take (1 + c) - 1 for c."""
    loss = composed(step, count)
    return plan_contour(loss, start_at(loss, jnp.asarray(1.0), epsilon, middle))


@jitted
def evaluated(step, count, contour, epsilons, coarser, share):
    """The contour, and what sum and table make of it at some thresholds.

    It has another step and last frequency than planned: `coarser` and `share` times.
    """
    loss = composed(step, count)
    frequency, step_size = share * contour.frequency, coarser * contour.step
    blocks = jnp.ceil(frequency / (step_size * FREQUENCY_BLOCK)).astype(jnp.int32)
    envelope = -0.5 * jnp.square(frequency) * count * step.precision()
    contour = dataclasses.replace(
        contour,
        step=step_size,
        frequency=frequency,
        blocks=blocks,
        log_envelope=envelope,
    )
    table = _inversion.tabulate(loss, contour)
    return (
        contour,
        _inversion.evaluate(loss, contour, epsilons),
        _inversion.look_up(table, contour, epsilons),
    )


def gaussian(noise):
    return GaussianLoss(jnp.asarray(noise))


POINTS = [
    # Noise, releases, deviations above the mean, strip.
    (0.5, 3.0, 4.0, False),
    (0.5, 3.0, -0.5, False),
    (0.5, 3.0, -3.0, True),
    (0.04, 1.0, 34.0, False),
    (0.04, 1.0, 0.3, True),
    (0.04, 1.0, -12.4, True),
    (0.003, 1.0, 0.5, False),  # small shifts: 1 + c is rounded
    (0.0007, 1.0, -0.8, True),
    (30.0, 5.0, 6.0, False),
    (60.0, 0.25, 36.0, False),
    (2.0, 0.7, 0.0, True),
]


class Point:
    """A Gaussian contour with some thresholds, and the truth there."""

    def __init__(self, noise, count, place, middle):
        self.noise, self.count, self.middle = noise, count, middle
        self.truth = Gaussian(noise, count)
        self.epsilon = float(self.truth.mean + place * self.truth.deviation)
        self.reach = np.asarray([-0.4, 0.0, 0.1, 0.7]) * float(self.truth.deviation)
        self.side = self.truth.rest if middle else self.truth.delta

    def found(self, step=None, coarser=1.0, share=1.0):
        step = gaussian(self.noise) if step is None else step
        middle = jnp.asarray(self.middle)
        contour = contour_at(step, self.count, self.epsilon, middle)
        epsilons = self.epsilon + self.reach
        return evaluated(step, self.count, contour, epsilons, coarser, share)

    def logs(self):
        return [mp.log(self.side(exact(e))) for e in self.epsilon + self.reach]


@pytest.fixture(scope="module", params=POINTS, ids=str)
def point(request):
    with mp.workdps(60):
        return Point(*request.param)


@pytest.fixture(scope="module")
def planned(point):
    return point.found()


def holds(evaluation, logs, width=None):
    """Both bounds are on their side, without any slack."""
    ends = zip(evaluation.log_lower, evaluation.log_upper, logs, strict=True)
    for lower, upper, truth in ends:
        assert exact(lower) <= truth <= exact(upper)
        if width is not None:
            assert exact(upper) - exact(lower) <= width


def misses(evaluation, logs):
    """Errors of the estimates of a logarithm."""
    each = zip(evaluation.log_value, logs, strict=True)
    return [float(exact(value) - truth) for value, truth in each]


# -- the integral ------------------------------------------------------------------


def test_certificate_contains_the_closed_form(point, planned):
    _, evaluation, table = planned
    logs = point.logs()
    # Phases are products of frequencies and losses, whose rounding is theirs.
    phases = 1e-14 * float(point.truth.mean / point.truth.deviation)
    for found in evaluation, table:
        holds(found, logs, width=1e-11 + 100 * phases)
        depth = 5e-16 * float(max(map(abs, logs)))
        assert max(map(abs, misses(found, logs))) < 2e-14 + phases + depth


def test_depth_of_the_tail(point, planned):
    """Among the points there are those from about 1 down to 1e-280."""
    smallest = min(min(Point(*p).logs()) for p in POINTS) / mp.log(10)
    assert -300 < smallest < -250


def test_sum_and_table_are_the_same(planned):
    _, evaluation, table = planned
    for one, other in zip(*map(jax.tree.leaves, (evaluation, table)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_derivatives_and_tails(point, planned):
    _, found, _ = planned
    truth, direction = point.truth, -1 if point.middle else 1
    for i, epsilon in enumerate(point.epsilon + point.reach):
        epsilon = exact(epsilon)
        alpha = truth.alpha(epsilon)
        value = point.side(epsilon)
        power = 1 - truth.power(epsilon) if point.middle else truth.power(epsilon)
        loss = mp.exp(epsilon) * alpha
        slope = -direction * loss / value
        expected = {
            "slope": slope,
            "log_alpha": mp.log(alpha),
            "log_power": mp.log(power),
        }
        scale = 1 + abs(slope)  # of what derivatives are differences of
        for name, one in expected.items():
            size = scale if name == "slope" else abs(one)
            assert abs(exact(getattr(found, name)[i]) - one) < 1e-9 * size, name


@jitted
def with_slopes(noise, count, contour, epsilons):
    """Evaluation on a contour, and the derivatives of its first number."""

    def log_delta(noise, epsilons):
        loss = composed(GaussianLoss(noise), count)
        found = _inversion.evaluate(loss, contour, epsilons)
        return found.log_value[0], found

    (_, found), slopes = jax.value_and_grad(log_delta, (0, 1), has_aux=True)(
        noise, epsilons
    )
    return found, slopes[0], slopes[1][0]


def test_derivative_in_a_parameter():
    point = Point(*POINTS[0])
    contour, *_ = point.found()
    epsilon = point.epsilon + point.reach
    _, in_noise, in_epsilon = with_slopes(point.noise, point.count, contour, epsilon)
    truth, epsilon = point.truth, exact(epsilon[0])
    delta, mu = truth.delta(epsilon), truth.deviation
    # d delta / d mu is a density, and mu is a constant over the noise.
    density = mp.npdf(mu / 2 - epsilon / mu)
    assert abs(exact(in_noise) / (-density * mu / point.noise / delta) - 1) < 1e-12
    slope = -mp.exp(epsilon) * truth.alpha(epsilon) / delta
    assert abs(exact(in_epsilon) / slope - 1) < 1e-12


# -- the terms of the certificate --------------------------------------------------


COARSE = [p for p in POINTS if p[0] not in (0.003, 0.0007)]


@pytest.mark.parametrize("place", COARSE, ids=str)
@pytest.mark.parametrize("coarser", [5.0, 8.0])
def test_aliases_of_a_coarse_step_are_certified(place, coarser):
    """Poisson's formula: the sum has e^{cmR} delta(eps + mR) besides delta(eps)."""
    point = Point(*place)
    contour, found, _ = point.found(coarser=coarser)
    logs = point.logs()
    holds(found, logs)
    period, shift = 2 * mp.pi / exact(contour.step), exact(contour.shift)
    most = contour.chernoff(point.epsilon + point.reach)
    for i, epsilon in enumerate(point.epsilon + point.reach):
        total = mp.mpf(0)
        for m in range(-30, 31):
            away = exact(epsilon) + m * period
            total += mp.exp(shift * m * period) * point.side(away)
        expected = min(mp.log(total), exact(most[i]))
        assert abs(exact(found.log_value[i]) - expected) < 1e-12 * float(
            abs(expected) + 1
        )
    # They are what is wrong with it, not rounding.
    assert max(misses(found, logs)) > 1e-6


@pytest.mark.parametrize("place", COARSE, ids=str)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_what_is_truncated_is_certified(place, share):
    point = Point(*place)
    contour, found, table = point.found(share=share, coarser=0.3)
    logs = point.logs()
    for one in found, table:
        holds(one, logs)
    # What is missing is really missing, and the integral's tail bounds that.
    worst = max(map(abs, misses(found, logs)))
    if share < 0.6:
        assert worst > 1e-9
    frequency, shift = exact(contour.frequency), exact(contour.shift)
    variance = point.truth.variance

    def beyond(t):
        z = shift + t * mp.j
        return mp.exp(-t * t * variance / 2) / abs(z * (1 + z))

    step = exact(contour.step)
    tail = mp.quad(beyond, frequency + step * mp.mpf("0.5") * np.arange(0, 80, 8))
    claimed = mp.exp(exact(contour.log_envelope)) * (
        1 / frequency + step / frequency**2
    )
    assert claimed >= tail


class _Told(GaussianLoss):
    """A Gaussian loss that is off by some share, and says by how much it may be."""

    off: jax.Array
    told: jax.Array
    beyond: jax.Array
    """First frequency where its characteristic function is."""
    turn: jax.Array
    """By what its angle is off there."""
    lead_off: jax.Array
    """By what the logarithm of its moment is off, and says so."""
    principal: jax.Array
    """One for angles around no center, up to whole turns; else zero."""

    def log_mgf(self, plan):
        value, error = super().log_mgf(plan)
        return value + self.lead_off, error + jnp.abs(self.lead_off)

    def log_characteristic(self, plan, start, step, count=FREQUENCY_BLOCK):
        part = super().log_characteristic(plan, start, step, count)
        tau = start + step * jnp.arange(count)
        here = tau >= self.beyond
        angle = self.principal * tau * plan.center
        angle = angle - 2 * jnp.pi * jnp.round(angle / (2 * jnp.pi))
        return dataclasses.replace(
            part,
            real=part.real + jnp.where(here, jnp.log1p(self.off), 0),
            imag=part.imag + angle + jnp.where(here, self.turn, 0),
            error=part.error + jnp.where(here, self.told, 0),
            turned=here & (self.turn != 0),
        )

    def center(self, plan):
        return (1 - self.principal) * plan.center

    def fastest_turn(self, plan):
        # E|Y - center| of the tilted loss.
        mean = self.principal * plan.center
        return jnp.sqrt(jnp.square(mean) + self.precision())


def told(noise, off=0.0, says=0.0, beyond=0.0, turn=0.0, lead=0.0, principal=0.0):
    numbers = (noise, off, says, beyond, turn, lead, principal)
    return _Told(*map(jnp.asarray, numbers))


SOME = [POINTS[0], POINTS[2], POINTS[4], POINTS[8]]


@pytest.mark.parametrize("place", SOME, ids=str)
@pytest.mark.parametrize("off", [-0.5, -1e-2, -1e-6, 1e-8, 1e-3, 0.4])
def test_errors_of_the_characteristic_function_are_certified(place, off):
    noise, count, place, middle = place
    point = Point(noise, 1.0, place, middle)
    logs = point.logs()
    _, found, table = point.found(told(noise, off, abs(off)))
    for one in found, table:
        holds(one, logs)
    assert max(map(abs, misses(found, logs))) > 0.3 * abs(off)
    # In a composition their powers are.
    point = Point(noise, count, place, middle)
    _, found, _ = point.found(told(noise, off, abs(off)))
    holds(found, point.logs())


@pytest.mark.parametrize("place", SOME, ids=str)
@pytest.mark.parametrize("lead", [1e-9, -1e-3, 0.5])
def test_errors_of_the_moment_are_certified(place, lead):
    point = Point(*place)
    _, found, _ = point.found(told(place[0], lead=lead))
    logs = point.logs()
    holds(found, logs)
    assert max(map(abs, misses(found, logs))) > 0.99 * abs(lead)


@pytest.mark.parametrize("place", SOME, ids=str)
@pytest.mark.parametrize("turn", [np.pi, 1.0, -2.5])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_unknown_angles_are_certified(place, turn, share):
    """Where an angle may be any, the term may be twice itself off."""
    point = Point(*place)
    beyond = share * 8 / float(point.truth.deviation)
    _, found, _ = point.found(told(place[0], beyond=beyond, turn=turn))
    holds(found, point.logs())


def test_an_unusable_frequency_voids_what_it_matters_to():
    point = Point(*POINTS[0])
    logs = point.logs()
    # Of no consequence where the term is tiny, as far as that is certain.
    far = 11 / float(point.truth.deviation)
    _, found, _ = point.found(told(0.5, says=0.6, beyond=far), coarser=0.9, share=2.0)
    holds(found, logs, width=1e-6)
    _, found, _ = point.found(told(0.5, says=0.6))
    holds(found, logs)
    assert np.all(np.isneginf(found.log_lower))
    contour, *_ = point.found()
    most = contour.chernoff(point.epsilon + point.reach)
    np.testing.assert_allclose(found.log_upper, most, rtol=1e-13)


@pytest.mark.parametrize("middle", [False, True])
def test_fractional_powers_have_continuous_angles(middle):
    point = Point(0.05, 250.5, 1.5 if not middle else -2.0, middle)
    logs = point.logs()
    step = told(0.05, principal=1.0)
    contour, first, tabulated = point.found(step)
    assert contour.blocks == 1
    for one in first, tabulated:
        holds(one, logs, width=1e-9)
    # A sum that begins in the middle of the path knows it from the table only.
    contour, blocked, tabulated = point.found(step, coarser=0.08)
    assert contour.blocks > 2
    holds(blocked, logs)
    holds(tabulated, logs, width=1e-9)
    assert np.all(blocked.log_upper - blocked.log_lower > 1e-3)
    # Whole turns are nothing to whole powers.
    whole = Point(0.05, 250.0, 1.5 if not middle else -2.0, middle)
    _, blocked, _ = whole.found(step, coarser=0.08)
    holds(blocked, whole.logs(), width=1e-9)


def test_steps_too_long_for_continuous_angles():
    """Nothing is claimed where the next angle might be any."""
    point = Point(0.05, 2.5, 1.5, False)
    _, first, tabulated = point.found(told(0.05, principal=1.0))
    for one in first, tabulated:
        holds(one, point.logs())
        assert np.all(one.log_upper - one.log_lower > 1e-3)


# -- several losses, both directions -----------------------------------------------


@jitted
def of_two(sign, epsilon, reach):
    terms = (
        GaussianLoss(jnp.asarray(0.8)),
        PoissonLoss(jnp.asarray(2.0), jnp.asarray(3.5)),
    )
    loss = ComposedLoss(terms, (jnp.asarray(2.0), jnp.asarray(1.0)))
    contour = plan_contour(loss, start_at(loss, sign, epsilon, RIGHT))
    return _inversion.evaluate(loss, contour, epsilon + reach)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("epsilon", [0.5, 9.0, 40.0])
def test_both_directions_of_a_sum(sign, epsilon):
    """Normal and Poisson losses: a sum of Gaussian profiles over the counts."""
    reach = np.asarray([-0.3, 0.0, 0.5])
    found = of_two(float(sign), epsilon, reach)
    jump, rate = mp.log(mp.mpf(7) / 4), mp.mpf(3.5 if sign > 0 else 2)
    logs, normal = [], Gaussian(0.8, 2.0)
    for one in epsilon + reach:
        total = mp.mpf(0)
        for k in range(160):
            mass = mp.exp(k * mp.log(rate) - rate - mp.loggamma(k + 1))
            loss = sign * (k * jump - mp.mpf("1.5"))
            total += mass * normal.delta(exact(one) - loss)
        logs.append(mp.log(total))
    holds(found, logs, width=1e-10)
    assert max(map(abs, misses(found, logs))) < 1e-13


# -- where there is nothing to sum -------------------------------------------------


def test_without_frequencies_the_bounds_are_left():
    point = Point(*POINTS[0])
    planned, *_ = point.found()
    bounds = planned.chernoff_shifts, planned.chernoff_logs
    at = Saddle(planned.shift, *[jnp.asarray(1.0)] * 4)
    idle = idle_contour(Start(planned.sign, RIGHT, at, *bounds), planned)
    epsilons = point.epsilon + point.reach
    found, *_ = with_slopes(point.noise, point.count, idle, epsilons)
    holds(found, point.logs())
    np.testing.assert_allclose(found.log_upper, planned.chernoff(epsilons), rtol=1e-15)
    assert np.all(np.isneginf(found.log_lower))


@jitted
def of_responses(epsilon, reach):
    loss = composed(TwoPointLoss.of(jnp.asarray(0.3), jnp.asarray(0.0)), 20.0)
    start = start_at(loss, jnp.asarray(1.0), epsilon, RIGHT)
    contour = plan_contour(loss, start)
    return start, contour, _inversion.evaluate(loss, contour, epsilon + reach)


def test_out_of_reach_the_saddle_serves():
    reach = np.asarray([-0.1, 0.0, 0.2])
    start, contour, found = of_responses(1.0, reach)
    assert contour.rough
    most, c = contour.chernoff(1.0 + reach), contour.shift
    np.testing.assert_allclose(found.log_upper, most, rtol=1e-15)
    assert np.all(np.isneginf(found.log_lower))
    holds(found, [mp.log(response_delta(0.3, 20, exact(e))) for e in 1.0 + reach])
    rough = start.saddle.log_value + c * (start.saddle.epsilon - 1.0 - reach)
    np.testing.assert_allclose(found.log_value, np.minimum(rough, most), rtol=1e-12)
    np.testing.assert_array_equal(found.slope, -c)
