"""Terms of lines that are no pairs of normal mixtures, and their certificate.

Gaussian losses by their transform alone have closed profiles to compare with.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from closed import Gaussian
from programs import jitted
from reference import exact

from fdp_jax.engines._line_mesh import prepared
from fdp_jax.engines._line_queries import chernoff, line_at, see, solve
from fdp_jax.engines._line_slopes import log_value
from fdp_jax.engines._lines import line_of
from fdp_jax.losses import ComposedLoss, GaussianLoss, PoissonLoss


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(60):
        yield


class _Smooth(GaussianLoss):
    """A Gaussian loss by its transform."""

    pairs: ClassVar[bool] = False


class _Told(_Smooth):
    """One that is off by some share, of which it tells."""

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

    def log_characteristic(self, plan, start, step, count=64):
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


@jitted
def seen(step, count, epsilon, epsilons):
    """What a line says of some thresholds; the slope of its first number in noise."""
    loss = ComposedLoss((step,), (count,))
    line = line_at(prepared(loss, jnp.ones(())), epsilon)

    def value(noise):
        moved = dataclasses.replace(step, noise_multiplier=noise)
        return log_value(ComposedLoss((moved,), (count,)), epsilons, line)[0]

    slope = jax.grad(value)(step.noise_multiplier)
    return see(line, epsilons), chernoff(line, epsilons), line.blocks, line.shift, slope


POINTS = [
    # Noise, releases, deviations above the mean.
    (0.5, 3.0, 4.0),
    (0.5, 3.0, -0.5),
    (0.5, 3.0, -3.0),
    (0.04, 1.0, 34.0),
    (0.04, 1.0, 0.3),
    (0.04, 1.0, -12.4),
    (0.003, 1.0, 0.5),
    (30.0, 5.0, 6.0),
    (60.0, 0.25, 36.0),
    (2.0, 0.7, 0.0),
]
SOME = [POINTS[0], POINTS[2], POINTS[4], POINTS[7]]


class Point:
    """A place of a Gaussian profile with some thresholds, and the truth there."""

    def __init__(self, noise, count, place):
        self.noise, self.count = noise, count
        self.truth = Gaussian(noise, count)
        self.epsilon = float(self.truth.mean + place * self.truth.deviation)
        reach = np.asarray([-0.3, 0.0, 0.05, 0.1]) * float(self.truth.deviation)
        self.epsilons = self.epsilon + reach

    def found(self, step=None):
        step = _Smooth(jnp.asarray(self.noise)) if step is None else step
        found = seen(step, self.count, self.epsilon, self.epsilons)
        side = self.truth.delta if found[3] > 0 else self.truth.rest
        return found, [mp.log(side(exact(e))) for e in self.epsilons]


def holds(found, logs, width=None):
    """Both bounds are on their side, without any slack; the estimates' worst error."""
    ends = zip(found.log_lower, found.log_upper, logs, strict=True)
    for lower, upper, truth in ends:
        assert exact(lower) <= truth <= exact(upper)
        if width is not None:
            assert exact(upper) - exact(lower) <= width
    each = zip(found.log_value, logs, strict=True)
    return max(abs(float(exact(value) - truth)) for value, truth in each)


@pytest.mark.parametrize("place", POINTS, ids=str)
def test_certificate_contains_the_closed_form(place):
    point = Point(*place)
    (found, _, _, shift, slope), logs = point.found()
    # Phases are products of frequencies and losses, whose rounding is theirs.
    phases = 1e-14 * float(point.truth.mean / point.truth.deviation)
    depth = 5e-16 * float(max(map(abs, logs)))
    # Of a delta below 1e-30 fewer digits are asked for.
    narrow = 5e-11 if min(logs) > -70 else 1e-8
    off = holds(found, logs, width=narrow + 400 * phases)
    assert off < 1e-12 + 10 * phases + 10 * depth
    # d delta / d mu is a density, and mu is a constant over the noise.
    truth, epsilon = point.truth, exact(point.epsilons[0])
    mu = truth.deviation
    density = mp.npdf(mu / 2 - epsilon / mu)
    value = truth.delta(epsilon) if shift > 0 else -truth.rest(epsilon)
    expected = -density * mu / point.noise / value
    assert abs(exact(slope) - expected) < 1e-9 * (1 + abs(expected))


@pytest.mark.parametrize("place", SOME, ids=str)
@pytest.mark.parametrize("off", [-0.5, -1e-2, -1e-6, 1e-8, 1e-3, 0.4])
def test_errors_of_the_characteristic_function_are_certified(place, off):
    noise, count, place = place
    (found, *_), logs = Point(noise, 1.0, place).found(told(noise, off, abs(off)))
    assert holds(found, logs) > 0.25 * abs(off)
    # In a composition their powers are.
    (found, *_), logs = Point(noise, count, place).found(told(noise, off, abs(off)))
    holds(found, logs)


@pytest.mark.parametrize("place", SOME, ids=str)
@pytest.mark.parametrize("lead", [1e-9, -1e-3, 0.03])
def test_errors_of_the_moment_are_certified(place, lead):
    (found, *_), logs = Point(*place).found(told(place[0], lead=lead))
    assert holds(found, logs) > 0.5 * abs(lead)


@pytest.mark.parametrize("place", SOME, ids=str)
@pytest.mark.parametrize("turn", [np.pi, 1.0, -2.5])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_unknown_angles_are_certified(place, turn, share):
    """Where an angle may be any, the term may be twice itself off."""
    point = Point(*place)
    beyond = share * 8 / float(point.truth.deviation)
    (found, *_), logs = point.found(told(place[0], beyond=beyond, turn=turn))
    holds(found, logs)


def test_an_unusable_frequency_voids_what_it_matters_to():
    point = Point(*POINTS[0])
    # Of no consequence where the term is tiny, as far as that is certain.
    far = 8 / float(point.truth.deviation)
    (found, *_), logs = point.found(told(0.5, says=0.6, beyond=far))
    holds(found, logs, width=1e-6)
    (found, most, *_), _ = point.found(told(0.5, says=0.6))
    holds(found, logs)
    assert np.all(np.isneginf(found.log_lower))
    np.testing.assert_allclose(found.log_upper, most, rtol=1e-13)


@pytest.mark.parametrize("place", [1.5, -2.0])
def test_fractional_powers_have_continuous_angles(place):
    step = told(0.05, principal=1.0)
    for count in (250.0, 250.5):
        (found, *_), logs = Point(0.05, count, place).found(step)
        assert holds(found, logs, width=1e-9) < 1e-9
    # Nothing is claimed where the next angle might be any.
    (found, *_), logs = Point(0.05, 2.5, place).found(step)
    holds(found, logs)
    assert np.all(found.log_upper - found.log_lower > 1e-3)


# -- several losses, both directions -----------------------------------------------


@jitted
def of_two(sign, epsilon, reach):
    terms = (
        GaussianLoss(jnp.asarray(0.8)),
        PoissonLoss(jnp.asarray(2.0), jnp.asarray(3.5)),
    )
    loss = ComposedLoss(terms, (jnp.asarray(2.0), jnp.asarray(1.0))).uncut()
    stack = prepared(loss, sign)
    found = see(line_at(stack, epsilon), epsilon + reach)
    target = found.log_value[1]
    line = line_of(stack, target, inverse=True)
    return found, solve(line, target, jnp.zeros(2))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("epsilon", [9.0, 40.0])
def test_both_directions_of_a_sum(sign, epsilon):
    """Normal and Poisson losses: a sum of Gaussian profiles over the counts."""
    reach = np.asarray([-0.3, 0.0, 0.5])
    found, root = of_two(float(sign), epsilon, reach)
    jump, rate = mp.log(mp.mpf(7) / 4), mp.mpf(3.5 if sign > 0 else 2)
    logs, normal = [], Gaussian(0.8, 2.0)
    for one in epsilon + reach:
        total = mp.mpf(0)
        for k in range(160):
            mass = mp.exp(k * mp.log(rate) - rate - mp.loggamma(k + 1))
            loss = sign * (k * jump - mp.mpf("1.5"))
            total += mass * normal.delta(exact(one) - loss)
        logs.append(mp.log(total))
    assert holds(found, logs, width=1e-10) < 1e-12
    assert root.lower <= epsilon <= root.upper
    assert root.upper - root.lower < 1e-9 * epsilon
