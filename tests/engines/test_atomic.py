"""One release with finitely many outputs, against exact rational arithmetic."""

import itertools
import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from programs import jitted

import fdp_jax as fdp
from fdp_jax import Bound
from fdp_jax.curves import Subject
from fdp_jax.losses import AtomicLoss, ComposedLoss, GaussianLoss

P = [Fraction(x, 16) for x in (1, 4, 6, 3, 2)]
Q = [Fraction(x, 16) for x in (5, 2, 3, 0, 6)]


def _mechanism(p=P, q=Q):
    return fdp.FromProbabilities([float(x) for x in p], [float(x) for x in q])


def _hull(points):
    """Lower convex hull of points (alpha, beta), exactly."""
    found: list[tuple[Fraction, Fraction]] = []
    for x, y in sorted(points):
        while len(found) > 1:
            (a, b), (c, d) = found[-2:]
            if (d - b) * (x - a) >= (y - b) * (c - a):
                found.pop()
            else:
                break
        if not found or x > found[-1][0]:
            found.append((x, y))
    return found


def _vertices(p, q):
    """All tests without randomization: the lower hull is the trade-off function."""
    points = []
    for reject in itertools.product((0, 1), repeat=len(p)):
        alpha = sum((a for a, r in zip(p, reject, strict=True) if r), Fraction(0))
        power = sum((b for b, r in zip(q, reject, strict=True) if r), Fraction(0))
        points.append((alpha, 1 - power))
    return points


def _interpolate(knots, alpha):
    for (a, b), (c, d) in itertools.pairwise(knots):
        if a <= alpha <= c:
            return b + (d - b) * (alpha - a) / (c - a)
    raise AssertionError(alpha)


POINTS = {
    "remove": _vertices(P, Q),
    "add": _vertices(Q, P),
    "both": _vertices(P, Q) + _vertices(Q, P),
}
ALPHAS = [Fraction(k, 64) for k in (1, 4, 5, 13, 20, 31, 40, 52, 60)]


@pytest.mark.parametrize("side", POINTS)
def test_trade_off_function(side):
    knots = _hull(POINTS[side])
    release = _mechanism()
    asked = release if side == "both" else getattr(release, side)
    alphas = jnp.asarray([float(a) for a in ALPHAS])
    beta, tpr = asked.bounds(alpha=alphas), asked.tpr(fpr=alphas)
    assert beta.method == "closed_form"
    for i, alpha in enumerate(ALPHAS):
        truth = float(_interpolate(knots, alpha))
        assert float(beta.estimate[i]) == pytest.approx(truth, rel=1e-12, abs=1e-15)
        assert float(beta.lower[i]) <= truth <= float(beta.upper[i])
        assert float(beta.upper[i] - beta.lower[i]) < 1e-11
        assert float(tpr[i]) == pytest.approx(1 - truth, rel=1e-11)
        assert float(tpr[i]) >= 1 - truth


def test_profiles_cross_away_from_zero():
    # Between the crossing directions the guarantee is a straight line below both.
    attacks = fdp.FromTradeOffPoints([0.1, 0.4], [0.6, 0.25])
    assert float(attacks.beta(alpha=0.2)) == pytest.approx(7 / 15, rel=1e-11)
    assert float(attacks.beta(alpha=0.2)) <= 7 / 15


def test_crossing_in_a_composition():
    # The same pair composed; truth from the product's own outputs.
    attacks = fdp.FromTradeOffPoints([0.1, 0.4], [0.6, 0.25])
    run = fdp.compose(attacks, fdp.PureDP(0.3))
    odds = np.exp([0.0, 0.3]) / (1 + np.exp(0.3))
    p, q = [0.1, 0.3, 0.6], [0.4, 0.35, 0.25]
    product = fdp.FromProbabilities(
        np.outer(p, odds).ravel(), np.outer(q, odds[::-1]).ravel()
    )
    alphas = jnp.asarray([0.05, 0.15, 0.3, 0.35])
    found, truth = run.bounds(alpha=alphas), product.bounds(alpha=alphas)
    assert found.method == truth.method == "closed_form"
    np.testing.assert_allclose(found.estimate, truth.estimate, rtol=1e-14)
    grid = run.using("grid").bounds(alpha=alphas)
    assert np.all(grid.lower <= truth.upper)
    assert np.all(truth.lower <= grid.upper)
    np.testing.assert_allclose(grid.lower[1:], truth.estimate[1:], rtol=1e-5)


@pytest.mark.parametrize("epsilon", [-1.2, -0.4, 0.0, 0.35, 0.9, 2.0])
def test_privacy_profile(epsilon):
    release = _mechanism()
    for side, (p, q) in {"remove": (P, Q), "add": (Q, P)}.items():
        gains = [
            float(b) - np.exp(epsilon) * float(a) for a, b in zip(p, q, strict=True)
        ]
        truth = sum(max(x, 0.0) for x in gains)
        bounds = getattr(release, side).bounds(epsilon=epsilon)
        assert bounds.method == "closed_form"
        assert float(bounds.lower) <= truth * (1 + 1e-15)
        assert float(bounds.upper) >= truth * (1 - 1e-15)
        assert float(bounds.estimate) == pytest.approx(truth, rel=1e-14)
        # And back, where the profile is not flat.
        delta = float(bounds.estimate)
        if epsilon > max(
            np.log(float(b / a)) for a, b in zip(p, q, strict=True) if a * b
        ):
            continue
        found = getattr(release, side).bounds(delta=delta)
        assert float(found.lower) - 1e-12 <= epsilon <= float(found.upper) + 1e-12


def test_pure_privacy_has_no_delta_at_its_epsilon():
    for release in (
        fdp.KaryRandomizedResponse(1.0, num_categories=4),
        fdp.DiscreteLaplace(2.0, sensitivity=2),
    ):
        assert float(release.delta(epsilon=1.0)) == 0.0
        assert float(release.delta(epsilon=0.999)) > 0


def test_derivatives_at_a_vertex_and_between():
    # f joins (0, 1), (1/16, 11/16) and (3/16, 5/16).
    q = jnp.asarray([float(x) for x in Q])

    def beta(alpha, first):
        moved = q.at[0].add(first).at[4].add(-first)
        release = fdp.FromProbabilities([float(x) for x in P], moved)
        return release.remove.beta(alpha=alpha, bound=Bound.ESTIMATE)

    value = jax.jit(jax.grad(beta, argnums=(0, 1)))
    slope, shift = value(0.5 / 16, 0.0)  # inside the first output's part
    assert float(slope) == pytest.approx(-5.0, rel=1e-12)
    assert float(shift) == pytest.approx(-0.5, rel=1e-12)
    slope, shift = value(2.0 / 16, 0.0)  # inside the last output's part
    assert float(slope) == pytest.approx(-3.0, rel=1e-12)
    assert float(shift) == pytest.approx(-0.5, rel=1e-12)


@pytest.mark.parametrize("noise", [0.7, 4.0])
@pytest.mark.parametrize("size", [3, 40])
def test_composed_with_gaussian_noise(size, noise):
    """A sum over the outputs of the noise's profile, with forty digits."""
    draw = np.random.default_rng(size)
    p = draw.dirichlet(np.ones(size))
    q = p * np.exp(0.3 * draw.normal(size=size))
    p[1] = 0.0
    p, q = p / p.sum(), q / q.sum()
    both = fdp.compose(fdp.Gaussian(noise), fdp.FromProbabilities(p, q))
    epsilons = np.array([-0.4, 0.3, 2.0])
    with mpmath.workdps(40), jax.enable_x64(True):
        mu, phi = 1 / mpmath.mpf(noise), mpmath.ncdf

        def profile(t):
            return phi(mu / 2 - t / mu) - mpmath.exp(t) * phi(-mu / 2 - t / mu)

        def exact(more, less, epsilon):
            total = mpmath.mpf(0)
            for x, y in zip(map(mpmath.mpf, more), map(mpmath.mpf, less), strict=True):
                if x:
                    total += x * (profile(epsilon - mpmath.log(x / y)) if y else 1)
            return total

        for way, pair in ((both.remove, (q, p)), (both.add, (p, q))):
            found = way.bounds(epsilon=epsilons)
            ends = np.stack([found.lower, found.upper], axis=1).tolist()
            for (lower, upper), e in zip(ends, epsilons.tolist(), strict=True):
                assert lower <= exact(*pair, e) <= upper
                assert upper <= lower * (1 + 1e-9)


def test_derivatives_of_masses_that_hardly_are():
    def epsilon(p):
        q = jnp.array([0.4, 0.4, 0.0, 0.2, 2.6e-261, 1e-300])
        pair = fdp.FromProbabilities(p, q)
        return fdp.compose(fdp.Gaussian(1.0), pair).remove.epsilon(delta=1e-3)

    p = jnp.array([0.3, 0.5, 0.0, 0.2, 1.9e-261, 1e-300])
    assert np.all(np.isfinite(jax.grad(epsilon)(p)))


def _gaussian_beside(noise, outputs, epsilon):
    """Delta of a Gaussian release beside outputs (p, q), by the sum over these."""
    total = mpmath.mpf(0)
    for p, q in outputs:
        if p == 0:
            total += q
        elif q > 0:
            at = epsilon - mpmath.log(q / p)
            half, away = 1 / (2 * noise), at * noise
            included, left = mpmath.ncdf(half - away), mpmath.ncdf(-half - away)
            total += q * (included - mpmath.exp(at) * left)
    return total


def _integers(scale, reach):
    logs = {k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * scale**2)) for k in reach}
    return {k: x / mpmath.fsum(logs.values()) for k, x in logs.items()}


def _shifted(masses):
    return [(p, masses.get(k - 1, mpmath.mpf(0))) for k, p in masses.items()]


def _skellam(rate, reach):
    bessel = {k: mpmath.besseli(abs(k), rate) for k in reach}
    return {k: x * mpmath.exp(-rate) for k, x in bessel.items()}


@pytest.mark.parametrize(
    ("noisy", "outputs", "epsilon"),
    [
        (fdp.DiscreteGaussian(2.3), lambda: _integers(2.3, range(-90, 91)), 1.0),
        (fdp.DiscreteGaussian(6.0), lambda: _integers(6.0, range(-200, 201)), 3.0),
        (fdp.Skellam(8.0), lambda: _skellam(64.0, range(-180, 181)), 0.5),
        # Lists with outputs that one of the laws does not have.
        (_mechanism(), lambda: list(zip(P, Q, strict=True)), 0.7),
    ],
)
def test_lists_beside_what_decays(noisy, outputs, epsilon):
    """Long lists are cut to what has mass, and have a transform."""
    found = outputs()
    pairs = _shifted(found) if isinstance(found, dict) else found
    pairs = [tuple(mpmath.mpf(float(x)) for x in pair) for pair in pairs]
    with mpmath.workdps(30):
        remove = _gaussian_beside(1.5, pairs, mpmath.mpf(epsilon))
        add = _gaussian_beside(1.5, [x[::-1] for x in pairs], mpmath.mpf(epsilon))
        truth = float(max(remove, add))
    with jax.enable_x64(True):
        bounds = fdp.compose(fdp.Gaussian(1.5), noisy).bounds(epsilon=epsilon)
    assert bounds.lower <= truth * (1 + 1e-13)
    assert bounds.upper >= truth * (1 - 1e-13)
    assert bounds.upper - bounds.lower <= 1e-8 * truth


def test_lists_beside_what_has_a_transform_alone():
    """Of subordinated Gaussians no masses are known: lists come to them."""
    jumps, noisy = fdp.SubordinatedGaussian(1.0, 0.5), fdp.Skellam(2.0)
    masses = _skellam(4.0, range(-60, 61))
    pairs = [(float(p), float(q)) for p, q in _shifted(masses) if q > 1e-10]
    losses = np.log([q / p for p, q in pairs])
    with jax.enable_x64(True):
        parts = jumps.remove.delta(epsilon=np.maximum(0.5 - losses, 0.0))
        back = jumps.add.delta(epsilon=np.maximum(losses - 0.5, 0.0))
        bounds = fdp.compose(jumps, noisy).remove.bounds(epsilon=0.5)
    # delta(-e) = 1 - e^-e + e^-e delta of the exchanged pair.
    low = np.minimum(0.5 - losses, 0.0)
    deltas = np.where(low < 0, -np.expm1(low) + np.exp(low) * back, parts)
    truth = np.sum([q for _, q in pairs] * deltas)
    np.testing.assert_allclose([bounds.lower, bounds.upper], truth, rtol=1e-7)


def test_laws_that_no_engine_adds_up_are_named():
    powers = fdp.GeneralizedGaussian(1.5, shape=1.4)
    both = fdp.compose(powers, fdp.SubordinatedGaussian(1.0, 0.5))
    with pytest.raises(ValueError, match=r"no engine can add up .* and Subordinat"):
        both.epsilon(delta=1e-6)


def test_a_mixture_beside_what_has_a_transform_alone():
    """With two equal shifts it is a Gaussian, of which the sum is known."""
    law = fdp.SubordinatedGaussian(1.0, 0.5)
    shifts = fdp.MixtureOfGaussians(1.0, shifts=[1.0, 1.0], probs=[0.5, 0.5])
    for asked in ({"delta": 1e-6}, {"epsilon": 3.0}):
        found = fdp.compose(shifts, law).bounds(**asked)
        same = fdp.compose(fdp.Gaussian(1.0), law).bounds(**asked)
        assert found.status == fdp.Status.TIGHT
        np.testing.assert_allclose(found.estimate, same.estimate, rtol=1e-9)


def test_lists_of_known_numbers_are_cut_in_programs_of_named_engines():
    both = fdp.compose(fdp.Gaussian(1.5), fdp.DiscreteGaussian(2.3))
    asked = jitted(lambda e: both.using("contour").delta(epsilon=e))
    with jax.enable_x64(True):
        assert asked(1.0) == pytest.approx(float(both.delta(epsilon=1.0)), rel=1e-9)


def test_slopes_at_rates_whose_squares_underflow():
    # With outputs of 37 and more P(X >= k) passes 1e-300: the loss there is 73 / 2.
    beta = lambda scale, alpha: fdp.DiscreteGaussian(scale).beta(alpha=alpha)
    with jax.enable_x64(True):
        slopes = jax.grad(beta, (0, 1))(1.0, 1e-300)
    ratio = math.exp(36.5)
    np.testing.assert_allclose(slopes, [73e-300 * ratio, -ratio], rtol=1e-9)


def test_errors_of_masses_are_in_the_ends_of_compositions():
    """Masses within 1e-6 of others, of which the truth is, fifty times beside noise."""
    p, off = np.array([0.5, 0.3, 0.2]), 1e-6
    q = np.array([0.3, 0.3, 0.4])
    noise = GaussianLoss(jnp.asarray(2.0))

    def ends(p, q, error):
        # Of losses that are known: else their errors count for those of masses.
        logs = jnp.log(p), jnp.log(q)
        known: Any = {"loss": jnp.log(q / p), "loss_error": jnp.zeros(())}
        lists = AtomicLoss(*logs, mass_error=error, **known)
        loss = ComposedLoss((noise, lists), (jnp.ones(()), jnp.asarray(50.0)))
        return Subject(loss, "remove")._bounds_of("delta", 3.0)

    with jax.enable_x64(True):
        exact = ends(p, q, 1e-13)
        for side in (1 - off, 1 + off):
            found = ends(p * side, q * side, 1.01 * off)
            assert found.lower <= exact.lower <= exact.upper <= found.upper
