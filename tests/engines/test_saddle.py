"""The contour's search, where the saddle is the root of a cubic or of a short sum."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from closed import Atoms, Gaussian
from programs import jitted
from reference import exact

from fdp_jax.engines import _saddle
from fdp_jax.losses import AbstractLoss, AtomicLoss, ComposedLoss, GaussianLoss

ATOM_MASS = 1e-13
"""Relative error of a list's masses that bounds allow for (docs/engines.md)."""
ENOUGH = 0.05
"""What the search is content with, in the logarithm of delta."""
P, Q = [0.5, 0.3, 0.15, 0.05], [0.2, 0.25, 0.15, 0.4]


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(60):
        yield


def gaussian(noise, count=1.0):
    return ComposedLoss((GaussianLoss(jnp.asarray(noise)),), (jnp.asarray(count),))


def atoms(count=1.0):
    loss = AtomicLoss.of_probabilities(jnp.asarray(P), jnp.asarray(Q))
    return ComposedLoss((loss,), (jnp.asarray(count),))


def mixed(count):
    """Both at once, which are not symmetric."""
    two = gaussian(1.7, 2.0), atoms(count)
    terms = tuple(term for one in two for term in one.terms)
    return ComposedLoss(terms, tuple(n for one in two for n in one.counts))


def mixed_cumulant(count, sign):
    one, other = Gaussian(1.7, 2.0), Atoms(P, Q, count)
    return lambda z: one.cumulant(z) + other.cumulant(z, sign)


for_epsilon = jitted(jax.vmap(_saddle.saddle_for_epsilon, (None, None, 0, 0)))
for_log_delta = jitted(jax.vmap(_saddle.saddle_for_log_delta, (None, None, 0)))
log_moments = jitted(_saddle.log_moments)
saddle_at = jitted(_saddle.saddle_at)


# -- moments -----------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_moments_are_upper_bounds_up_to_rounding(sign):
    shifts = np.asarray([-3.0, -1.0, -0.6, -1e-3, 0.0, 1e-7, 0.4, 7.0, 300.0])
    found = log_moments(mixed(3.0), jnp.asarray(sign), shifts)
    for shift, value in zip(shifts, found, strict=True):
        truth = mixed_cumulant(3.0, sign)(exact(shift))
        size = abs(Gaussian(1.7, 2.0).cumulant(exact(shift))) + abs(truth) + 1
        # The list is released three times; its masses may be off each time.
        assert 0 <= exact(value) - truth <= 3 * ATOM_MASS + 2e-14 * size


def test_rounding_of_moments_is_in_the_bound():
    """Where the loss itself rounds to nearest, every second time downward."""
    shifts = (1 + np.geomspace(1e-3, 1e3, 60)) - 1  # orders without rounding
    for noise in (0.3, 1.7):
        loss, truth = gaussian(noise, 7.0), Gaussian(noise, 7.0)
        for shift, value in zip(shifts, log_moments(loss, 1.0, shifts), strict=True):
            cumulant = truth.cumulant(exact(shift))
            assert 0 <= exact(value) - cumulant <= 2e-14 * abs(cumulant)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cumulants_are_derivatives(sign):
    for shift in (-0.7, -0.2, 0.3, 5.0):
        found = _saddle.cumulants(mixed(3.0), jnp.asarray(sign), jnp.asarray(shift))
        truth = mp.taylor(mixed_cumulant(3.0, sign), exact(shift), 2)
        truth[2] *= 2
        for value, one in zip(found, truth, strict=True):
            assert abs(exact(value) / one - 1) < 1e-10


def test_what_does_not_happen_has_no_moments():
    shifts = jnp.asarray([0.5, 20.0])
    impossible = gaussian(1e-200, 0.0)  # its moments overflow
    assert np.all(np.isinf(impossible.terms[0].moments(1 + shifts)[0]))
    found = _saddle.log_moments(impossible, jnp.asarray(1.0), shifts)
    np.testing.assert_array_equal(found, 0)


# -- the approximation at a point --------------------------------------------------


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_approximation_is_that_of_the_exponent(sign):
    """Laplace's method for exp(K(c) - c eps) / (c (1 + c))."""
    cumulant = mixed_cumulant(3.0, sign)
    exponent = lambda c: cumulant(c) - mp.log(abs(c)) - mp.log1p(c)
    for shift in (-0.8, -0.15, 0.02, 0.9, 12.0):
        found = saddle_at(mixed(3.0), jnp.asarray(sign), jnp.asarray(shift))
        value, slope, half = mp.taylor(exponent, exact(shift), 2)
        log_value = value - exact(shift) * slope - mp.log(4 * mp.pi * half) / 2
        deviation = mp.sqrt(mp.diff(cumulant, exact(shift), 2))
        expected = exact(shift), slope, log_value, deviation, 2 * half
        names = "shift", "epsilon", "log_value", "deviation", "width"
        for name, one in zip(names, expected, strict=True):
            assert abs(exact(getattr(found, name)) / one - 1) < 1e-9, name


@pytest.mark.parametrize("noise", [0.3, 2.0, 40.0])
def test_approximation_is_near_the_profile(noise):
    for shift in (-0.9, -0.5, -0.05, 0.05, 1.0, 30.0):
        loss, truth = gaussian(noise, 5.0), Gaussian(noise, 5.0)
        found = saddle_at(loss, jnp.asarray(1.0), jnp.asarray(shift))
        side = truth.rest if shift < 0 else truth.delta
        value = side(exact(found.epsilon))
        if value < 0.2:  # else the other strip is better
            assert abs(exact(found.log_value) - mp.log(value)) < 0.13


# -- the searches ------------------------------------------------------------------


def saddle_of(truth, epsilon, middle):
    """c on a strip with (c + 1/2) v = eps + 1 / c + 1 / (1 + c)."""
    slope = lambda c: (c + 0.5) * truth.variance - 1 / c - 1 / (1 + c) - epsilon
    ends = (mp.mpf("-1") + mp.mpf("1e-30"), mp.mpf("-1e-30"))
    low, high = ends if middle else (mp.mpf("1e-30"), mp.mpf("1e30"))
    for _ in range(230):
        centre = (low + high) / 2 if middle else mp.sqrt(low * high)
        low, high = (centre, high) if slope(centre) < 0 else (low, centre)
    return low


@pytest.mark.parametrize("noise", [0.02, 0.7, 60.0])
@pytest.mark.parametrize("middle", [False, True])
def test_saddle_of_a_threshold(noise, middle):
    truth = Gaussian(noise, 3.0)
    reach = np.asarray([-5.0, -1.0, 0.0, 0.8, 6.0, 30.0])
    epsilons = float(truth.mean) + float(truth.deviation) * reach
    found = for_epsilon(
        gaussian(noise, 3.0), 1.0, np.full(reach.size, middle), epsilons
    )
    for i, epsilon in enumerate(epsilons):
        shift = exact(found.shift[i])
        root = saddle_of(truth, exact(epsilon), middle)
        assert (-1 < shift < 0) if middle else (shift > 0)
        # Less than that error of the logarithm, and half a hundredth of t.
        assert abs(exact(found.epsilon[i]) - epsilon) * abs(shift) <= 1.001 * ENOUGH
        scale = min(-root, 1 + root) if middle else root
        width = truth.variance + 1 / root**2 + 1 / (1 + root) ** 2
        assert abs(shift - root) < 1.2 * ENOUGH / (width * abs(root)) + 1e-3 * scale


@pytest.mark.parametrize("noise", [0.1, 1.0, 50.0])
def test_saddle_of_a_delta(noise):
    truth = Gaussian(noise, 3.0)
    targets = np.asarray([-0.6, -3.0, -40.0, -576.0, -6e4])
    found = for_log_delta(gaussian(noise, 3.0), 1.0, targets)
    np.testing.assert_allclose(found.log_value, targets, rtol=0, atol=1.01 * ENOUGH)
    assert np.all(np.diff(found.epsilon) > 0)
    for epsilon, target in zip(found.epsilon, targets, strict=True):
        assert abs(mp.log(truth.delta(exact(epsilon))) - target) < 0.2


def test_both_directions_have_their_own_saddle():
    """Those of a loss that is not symmetric are found in its exchanged sum."""
    for sign in (1.0, -1.0):
        cumulant = mixed_cumulant(4.0, sign)
        epsilons = np.asarray([2.5, 4.0])
        found = for_epsilon(mixed(4.0), sign, np.zeros(2, bool), epsilons)
        for shift, epsilon in zip(found.shift, epsilons, strict=True):
            c = exact(shift)
            slope = mp.diff(cumulant, c) - 1 / c - 1 / (1 + c)
            assert abs(slope - epsilon) * c <= 1.001 * ENOUGH


def test_towards_a_largest_loss_the_shift_stays_finite():
    largest = float(np.max(np.log(np.divide(Q, P))))
    epsilons = np.asarray([largest - 1e-3, largest, largest + 5])
    found = for_epsilon(atoms(), 1.0, np.zeros(3, bool), epsilons)
    assert np.all(np.isfinite(found.log_value))
    assert np.all(found.shift * np.abs(found.epsilon) <= 2.0**17)
    assert np.all(found.epsilon < largest)


class _Exponential(AbstractLoss):
    """E_Q e^{zY} = 1 / (1 - z / 2), and no moments from z = 2 on."""

    symmetric = True

    def moments(self, order):
        z = order - 1
        some = z < 2
        rest = jnp.where(some, 2 - z, 1)
        value, slope, curvature = (
            jnp.where(some, x, jnp.inf)
            for x in (-jnp.log(rest / 2), 1 / rest, 1 / rest**2)
        )
        return value, slope, curvature

    def cells(self, low, high):
        raise NotImplementedError

    def loss_range(self):
        return jnp.asarray(0.0), jnp.asarray(jnp.inf)


def test_saddle_before_the_last_moment():
    loss = ComposedLoss((_Exponential(),), (jnp.asarray(1.0),))
    epsilons = np.asarray([0.5, 5.0, 200.0])
    found = for_epsilon(loss, 1.0, np.zeros(3, bool), epsilons)
    for shift, epsilon in zip(found.shift, epsilons, strict=True):
        c = exact(shift)
        assert 0 < c < 2
        assert abs(1 / (2 - c) - 1 / c - 1 / (1 + c) - epsilon) * c <= 1.001 * ENOUGH
    targets = np.asarray([-1.0, -20.0, -300.0])
    found = for_log_delta(loss, 1.0, targets)
    np.testing.assert_allclose(found.log_value, targets, rtol=0, atol=1.01 * ENOUGH)
    assert np.all(found.shift < 2)


def test_below_the_leap_of_rare_large_losses():
    """A change of c that is none leads over the threshold: stay on this side."""
    losses, log_q = jnp.asarray([-1.0, 1.0, 4e6]), jnp.asarray([-1.3, -0.3, -4e4])
    loss = AtomicLoss(log_q - losses, log_q, loss=losses)
    composed = ComposedLoss((loss,), (jnp.asarray(1.0),))
    epsilons = np.asarray([2e5, 3e6])
    found = for_epsilon(composed, 1.0, np.zeros(2, bool), epsilons)
    assert np.all(found.epsilon < epsilons)
    assert np.all(found.width > 0)
    assert np.all(found.shift > 0)


def test_delta_near_one_is_left_to_the_middle():
    loss, truth = gaussian(0.1, 2.0), Gaussian(0.1, 2.0)
    edge = float(truth.mean - truth.deviation)
    for gap in (-1e-6, 1e-6):
        found = _saddle.leaks_much(loss, jnp.asarray(1.0), jnp.asarray(edge + gap))
        assert bool(found) == (gap < 0)
    # Of the exchanged pair, whose mean is another one.
    means = [
        mp.taylor(lambda z, s=s: Atoms(P, Q).cumulant(z, s), 0, 2) for s in (1, -1)
    ]
    for sign, (_, mean, half) in zip((1.0, -1.0), means, strict=True):
        edge = float(mean - mp.sqrt(2 * half))
        for gap in (-1e-6, 1e-6):
            found = _saddle.leaks_much(
                atoms(), jnp.asarray(sign), jnp.asarray(edge + gap)
            )
            assert bool(found) == (gap < 0)
