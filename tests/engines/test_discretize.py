"""One loss on a grid: masses against exact splits, and a pair that dominates."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from closed import Gaussian
from programs import jitted
from reference import exact

from fdp_jax.engines import _discretize
from fdp_jax.engines._contour_engine import place_of
from fdp_jax.engines._discretize import Grid
from fdp_jax.engines._line_mesh import SHIFTS
from fdp_jax.losses import (
    AtomicLoss,
    ComposedLoss,
    GaussianLoss,
    LaplaceLoss,
    Method,
    SubsampledGaussianLoss,
    TwoPointLoss,
)

SIZE = 96


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(60):
        yield


def grid_of(spacing, shift, sign=1.0, size=SIZE):
    """A grid with all that one loss needs of it."""
    none, zero = jnp.zeros(1), jnp.asarray(0.0)
    return Grid(
        sign=jnp.asarray(sign),
        shift=jnp.asarray(shift),
        spacing=jnp.asarray(spacing),
        first=(),
        counts=(),
        center=zero,
        whole=jnp.asarray(True),
        bounds=none,
        sides=none,
        log_scales=(),
        size=size,
    )


discretize = jitted(_discretize.discretize)


class Found:
    """What a loss becomes on a grid, in exact numbers."""

    def __init__(self, loss, spacing, shift, first, log_scale, sign=1.0):
        grid = grid_of(spacing, shift, sign)
        self.part = discretize(loss, grid, jnp.asarray(first), jnp.asarray(log_scale))
        self.spacing, self.shift = exact(spacing), exact(shift)
        self.points = [(first + j) * self.spacing for j in range(SIZE)]
        scales = [mp.exp(exact(log_scale) - self.shift * y) for y in self.points]
        self.q, self.test = (
            [exact(x) * scale for x, scale in zip(values, scales, strict=True)]
            for values in self.part.tilted
        )
        self.p = [q * mp.exp(-y) for q, y in zip(self.q, self.points, strict=True)]
        self.top = exact(self.part.top)

    def delta(self, epsilon):
        right = [j for j, y in enumerate(self.points) if y > epsilon]
        gains = (self.q[j] - mp.exp(epsilon) * self.p[j] for j in right)
        return mp.fsum(gains) + self.top

    def gain(self, first, epsilon):
        """Q(T >= t) - e^eps P(T >= t) of the test, t being point number `first`."""
        return mp.fsum(self.test[first:]) - mp.exp(epsilon) * mp.fsum(self.p[first:])


# -- losses with closed profiles ---------------------------------------------------


def normal_tail(x):
    return mp.erfc(x / mp.sqrt(2)) / 2


def laplace_delta(noise, epsilon):
    mu = 1 / exact(noise)
    if epsilon >= mu:
        return mp.mpf(0)
    if epsilon < 0:
        return -mp.expm1(epsilon) + mp.exp(epsilon) * laplace_delta(noise, -epsilon)
    return -mp.expm1((epsilon - mu) / 2)


def subsampled_delta(noise, prob, epsilon, sign):
    """Of one release (Balle, Barthe & Gaboardi 2018)."""
    s, q = exact(noise), exact(prob)
    ratio = mp.exp(epsilon if sign > 0 else -epsilon)
    if ratio <= 1 - q:
        return -mp.expm1(epsilon) if sign > 0 else mp.mpf(0)
    z = 1 / (2 * s) + s * mp.log((ratio - 1 + q) / q)  # where the loss is that
    if sign > 0:
        included = (1 - q) * normal_tail(z) + q * normal_tail(z - 1 / s)
        return included - mp.exp(epsilon) * normal_tail(z)
    included = (1 - q) * normal_tail(-z) + q * normal_tail(1 / s - z)
    return normal_tail(-z) - mp.exp(epsilon) * included


P, Q = [0.45, 0.3, 0.2, 0.05], [0.2, 0.25, 0.15, 0.4]


def atoms_delta(p, q, epsilon, sign):
    pairs = [(exact(a), exact(b)) for a, b in zip(p, q, strict=True)]
    sides = pairs if sign > 0 else [(b, a) for a, b in pairs]
    return mp.fsum(max(b - mp.exp(epsilon) * a, 0) for a, b in sides)


def of_atoms():
    return AtomicLoss.of_probabilities(jnp.asarray(P), jnp.asarray(Q))


def two_points(epsilon, delta=0.0):
    return TwoPointLoss.of(jnp.asarray(epsilon), jnp.asarray(delta))


def two_points_delta(loss, infinite, epsilon):
    size, rest = exact(loss), 1 - exact(infinite)
    p = 1 / (1 + mp.exp(-size)) * rest, 1 / (1 + mp.exp(size)) * rest
    return atoms_delta(p, p[::-1], epsilon, 1)


class _Gaussian(GaussianLoss):
    """A Gaussian loss that does not know its masses above some value."""

    beyond: jax.Array

    def cells(self, low, high):
        found = super().cells(low, high)
        doubt = jnp.where(low >= self.beyond, 2.0, 0.0)
        return dataclasses.replace(found, error=found.error + doubt)


def gaussian(noise, beyond=math.inf):
    return _Gaussian(jnp.asarray(noise), jnp.asarray(beyond))


LOSSES = {
    # Loss, its profile but for infinite losses, spacing, tilt, first point, sign.
    "gaussian": (
        gaussian(0.7),
        Gaussian(0.7).delta,
        (0.23, 3.0, -40, 1.0),
    ),
    "gaussian, far": (
        gaussian(0.1),
        Gaussian(0.1).delta,
        (1.9, 0.7, 0, 1.0),
    ),
    "laplace": (
        LaplaceLoss(jnp.asarray(0.4)),
        lambda e: laplace_delta(0.4, e),
        (0.11, 2.0, -45, 1.0),
    ),
    "subsampled": (
        SubsampledGaussianLoss(jnp.asarray(0.6), jnp.asarray(0.05)),
        lambda e: subsampled_delta(0.6, 0.05, e, 1),
        (0.17, 2.0, -5, 1.0),
    ),
    "subsampled, exchanged": (
        SubsampledGaussianLoss(jnp.asarray(0.6), jnp.asarray(0.05)),
        lambda e: subsampled_delta(0.6, 0.05, e, -1),
        (0.02, 9.0, -90, -1.0),
    ),
    "atoms": (of_atoms(), lambda e: atoms_delta(P, Q, e, 1), (0.07, 1.0, -30, 1.0)),
    "atoms, exchanged": (
        of_atoms(),
        lambda e: atoms_delta(P, Q, e, -1),
        (0.07, 1.0, -60, -1.0),
    ),
    "two points": (
        two_points(1.3, 0.01),
        lambda e: two_points_delta(1.3, 0.01, e),
        (0.09, 2.5, -20, 1.0),
    ),
    "on the grid": (
        two_points(1.5, 0.01),
        lambda e: two_points_delta(1.5, 0.01, e),
        (0.125, 2.5, -20, 1.0),
    ),
}


@pytest.fixture(scope="module", params=LOSSES)
def case(request):
    loss, delta, (spacing, shift, first, sign) = LOSSES[request.param]
    with mp.workdps(60):
        found = Found(loss, spacing, shift, first, 0.8, sign)
    return request.param, found, delta


def test_it_dominates_between_points_too(case):
    """Without any slack: masses are raised by what rounding may have taken away."""
    _, found, delta = case
    moved = exact(found.part.moved)
    for j in range(1, SIZE - 1):
        for place in (mp.mpf(0), mp.mpf("0.31"), mp.mpf("0.5"), mp.mpf("0.87")):
            epsilon = found.points[j] + place * found.spacing
            truth = delta(epsilon)
            assert found.delta(epsilon - moved) >= truth
            if place == 0:
                assert (
                    found.delta(epsilon) - truth <= mp.mpf("1e-9") * truth + found.top
                )


def test_tests_gain_less_than_any_may(case):
    """At every threshold and any epsilon, without any slack."""
    name, found, delta = case
    for j in range(1, SIZE - 12):
        for place in (mp.mpf(0), mp.mpf("0.31"), mp.mpf("0.5"), mp.mpf("0.87")):
            epsilon = found.points[j] + place * found.spacing
            truth = delta(epsilon)
            assert all(found.gain(k, epsilon) <= truth for k in range(0, SIZE, 5))
            assert found.gain(j + 1, epsilon) <= truth
    if name == "gaussian":
        # About as much, with a threshold next to epsilon.
        middle = 25
        truth = delta(found.points[middle])
        assert found.gain(middle + 1, found.points[middle]) > 0.99 * truth


def test_upper_law_has_more_above_every_point(case):
    """Of compositions too, then: powers of measures keep that order."""
    _, found, _ = case
    above = tested = mp.mpf(0)
    for q, test in zip(found.q[::-1], found.test[::-1], strict=True):
        above, tested = above + q, tested + test
        assert tested <= above


def test_no_mass_is_lost_or_made(case):
    name, found, _ = case
    finite = 1 - mp.mpf("0.01") * (name in ("two points", "on the grid"))
    assert abs(mp.fsum(found.q) + found.top - finite) < 1e-11
    # What is lifted from below the grid has less mass under P there, never more.
    assert mp.fsum(found.p) <= finite + mp.mpf("1e-12")
    assert found.part.sound


def test_moments_grow():
    """E e^{cY} of a pair that dominates is larger, at the tilt and elsewhere."""
    found, truth = Found(gaussian(0.7), 0.23, 3.0, -40, 0.8), Gaussian(0.7)
    last = found.points[-1]
    for c in (found.shift, mp.mpf(1), mp.mpf("0.3"), mp.mpf(5)):
        centre = truth.mean + c * truth.variance
        inside = normal_tail((centre - last) / truth.deviation)
        least = mp.exp(truth.cumulant(c)) * inside
        each = zip(found.q, found.points, strict=True)
        total = mp.fsum(q * mp.exp(c * y) for q, y in each)
        assert least <= total <= least * mp.exp(c * (1 + c) * found.spacing**2)


# -- masses, one by one ------------------------------------------------------------


def test_masses_are_the_exact_split():
    """Of every cell, with relative accuracy in both tails."""
    found, truth = Found(gaussian(0.7), 0.35, 3.0, -48, 0.8), Gaussian(0.7)

    def mass(low, high, mean):
        low, high = ((x - mean) / truth.deviation for x in (low, high))
        if low + high < 0:
            low, high = -high, -low
        return normal_tail(low) - normal_tail(high)

    upper = [mp.mpf(0)] * SIZE
    lower = [mp.mpf(0)] * SIZE
    for j in range(SIZE):  # the last cell counts in `top` as well
        low = found.points[j]
        high = low + found.spacing
        q, p = (mass(low, high, sign * truth.mean) for sign in (1, -1))
        raised = (q - p * mp.exp(low)) / -mp.expm1(-found.spacing)
        lower[j] += q - raised
        if j < SIZE - 1:
            upper[j + 1] += raised
    below = normal_tail((truth.mean - found.points[0]) / truth.deviation)
    lower[0] += below
    assert abs(found.top / truth.power(found.points[-1]) - 1) < 1e-11
    for j in range(SIZE):
        expected = lower[j] + upper[j]
        assert abs(found.q[j] / expected - 1) < 1e-10, j
    assert min(found.q) < mp.mpf("1e-25")


def test_an_atom_between_points_has_a_coin():
    """With the share of its P-mass that the upper law moves to the right."""
    loss, spacing, shift = 1.3, 0.09, 2.5
    found = Found(two_points(loss), spacing, shift, -20, 0.0)
    for place in (-exact(loss), exact(loss)):
        (j,) = (
            j
            for j in range(SIZE)
            if found.points[j] < place < found.points[j] + found.spacing
        )
        for k in (j, j + 1):
            assert abs(found.test[k] / found.p[k] / mp.exp(place) - 1) < 1e-11
        others = found.delta(found.points[j]) - two_points_delta(
            loss, 0, found.points[j]
        )
        assert abs(others) < 1e-12
    assert sum(q > 0 for q in found.q) == 4


def test_atoms_on_the_grid_are_exact():
    found = Found(two_points(1.5), 0.125, 2.5, -20, 0.0)
    np.testing.assert_allclose(found.part.tilted[1], found.part.tilted[0], rtol=1e-12)
    low, high = np.flatnonzero(np.asarray(found.part.tilted[0]))
    assert (low, high) == (20 - 12, 20 + 12)
    q = 1 / (1 + mp.exp(mp.mpf("-1.5")))
    assert 0 <= found.q[high] / q - 1 < 1e-12
    assert 0 <= found.q[low] / (1 - q) - 1 < 1e-12


def test_an_atom_put_onto_the_grid_is_not_far():
    """What is next to a point counts as that; by how much it is off is known."""
    spacing = 0.125 * (1 + 4e-14)
    found = Found(two_points(1.5), spacing, 2.5, -20, 0.0)
    assert np.count_nonzero(found.part.tilted[0]) == 2
    off = abs(exact(spacing) * 12 - mp.mpf("1.5"))
    assert off > 0
    assert exact(found.part.moved) >= off
    assert exact(found.part.moved) < 100 * off
    # One that is farther off is split.
    other = Found(two_points(1.5), 0.125 * (1 + 1e-11), 2.5, -20, 0.0)
    assert np.count_nonzero(other.part.tilted[0]) == 4


def test_atoms_off_the_grid_are_infinite_or_lifted():
    """Above the last point, below the first one."""
    likely = 1 / (1 + mp.exp(mp.mpf("-1.3")))
    found = Found(two_points(1.3), 0.01, 2.5, -200, 0.0)
    assert 0 <= found.top / likely - 1 < 1e-12
    (place,) = np.flatnonzero(np.asarray(found.part.tilted[0]))
    assert place == 70
    found = Found(two_points(1.3), 0.01, 2.5, 100, 0.0)
    assert found.top == 0
    first, place = np.flatnonzero(np.asarray(found.part.tilted[0]))
    assert (first, place) == (0, 30)
    assert 0 <= found.q[0] / (1 - likely) - 1 < 1e-12
    assert found.part.tilted[1, 0] == 0


@pytest.mark.parametrize("place", [0.0, 0.2, 0.5, 0.93])
@pytest.mark.parametrize("on_grid", [False, True])
def test_moves_of_an_atom_keep_its_moments(place, on_grid):
    """Derivatives of shares of the points -1, 0, 1, 2: those of moments of a point."""
    moves = lambda t: _discretize._moves(t[None], jnp.asarray([on_grid]))[:, 0]
    place = jnp.asarray(0.0 if on_grid else place)
    np.testing.assert_array_equal(moves(place), 0)
    slopes = jax.jacfwd(moves)(place)
    points = np.arange(-1.0, 3.0)
    for power in range(3 if on_grid else 4):
        expected = power * float(place) ** max(power - 1, 0)
        assert abs(slopes @ points**power - expected) < 1e-14
    if on_grid:  # the mean of both sides' slopes
        np.testing.assert_allclose(slopes, [-0.5, 0, 0.5, 0])


def test_unknown_masses_are_told_where_they_matter():
    for beyond, sound in ((1.0, False), (30.0, True)):
        grid = grid_of(0.6, 3.0)
        part = discretize(
            gaussian(0.7, beyond), grid, jnp.asarray(-40), jnp.asarray(0.8)
        )
        assert bool(part.sound) == sound


def test_derivative_of_the_masses():
    """Moments of the masses have the derivative that the loss's moments have."""
    points = (-45 + np.arange(SIZE)) * 0.35

    def masses(noise):
        loss, grid = gaussian(noise), grid_of(0.35, 3.0)
        at = jnp.asarray(-45), jnp.asarray(0.8)
        return _discretize.discretize(loss, grid, *at).tilted[0]

    slopes = jitted(jax.jacfwd(masses))(0.7) * np.exp(0.8 - 3 * points)
    # E_Q 1 and E_P 1 = E_Q e^-Y are constants of any split.
    assert abs(np.sum(slopes)) < 1e-11
    assert abs(np.sum(slopes * np.exp(-points))) < 1e-11
    assert np.max(np.abs(slopes)) > 0.1
    # The mean is 1 / (2 s^2), but for what the split adds.
    assert np.sum(slopes * points) == pytest.approx(-(0.7**-3), rel=1e-2)


# -- the choice of a grid ----------------------------------------------------------


@jitted
def planned(loss, epsilon, gap):
    one = jnp.asarray(1.0)
    place = place_of(loss, one, epsilon)
    return place, _discretize.plan_grid(loss, one, place, gap)


def of_grid(*terms, points=1 << 12):
    losses, counts = zip(*terms, strict=True)
    counts = tuple(jnp.asarray(float(n)) for n in counts)
    return ComposedLoss(losses, counts, method=Method("grid", points))


@pytest.mark.parametrize("epsilon", [0.5, 12.0, 60.0])
def test_plan_reaches_as_far_as_the_tilted_loss(epsilon):
    count = 4.0
    loss = of_grid((GaussianLoss(jnp.asarray(0.9)), count))
    place, grid = planned(loss, epsilon, 0.0)
    assert grid.whole
    assert grid.counts == (4,)
    assert grid.shift == SHIFTS[place.row]
    assert grid.center == place.epsilon
    h, c, one = exact(grid.spacing), exact(grid.shift), Gaussian(0.9)
    assert (grid.size - 8) * h >= exact(place.period)
    assert (grid.size - 8) * h < max(
        mp.mpf("1.1") * exact(place.period), 100 * one.deviation
    )
    assert abs(exact(grid.log_scales[0]) / one.cumulant(c) - 1) < 1e-13
    below, above = grid.sides
    assert below < grid.shift < above
    # A tilted mass e^-50 of all releases may be left out on either side.
    first = int(grid.first[0]) * h
    last = first + grid.size * h
    centre = one.mean + c * one.variance
    for side in (centre - first, last - centre):
        assert normal_tail(side / one.deviation) * count <= mp.exp(-50)


def test_plan_holds_a_bounded_loss_and_its_points():
    loss = of_grid((two_points(0.3), 7.0), (LaplaceLoss(jnp.asarray(0.8)), 2.0))
    _, grid = planned(loss, 2.5, 0.0)
    h = float(grid.spacing)
    for first, largest in zip(grid.first, (0.3, 1.25), strict=True):
        assert first * h <= -largest
        assert (first + grid.size - 1) * h >= largest
        assert first * h > -largest - 3 * h
    # The first point masses lie on it.
    assert abs(0.3 / h - round(0.3 / h)) < 1e-12


def test_plan_for_an_uncertain_threshold():
    loss = of_grid((GaussianLoss(jnp.asarray(0.9)), 4.0))
    place, grid = planned(loss, 12.0, 0.0)
    gap = 0.4 * float(place.period)
    *_, wide = planned(loss, 12.0, gap)
    assert wide.spacing * (wide.size - 8) >= 6 * gap
    assert wide.shift == min(SHIFTS[place.row], 12 / gap)
    assert wide.shift < grid.shift


def test_fractional_counts_are_told():
    for count, whole in ((2.5, False), (3.0, True), (3 + 1e-12, True), (1e-3, False)):
        *_, grid = planned(of_grid((GaussianLoss(jnp.asarray(0.9)), count)), 1.0, 0.0)
        assert bool(grid.whole) == whole
