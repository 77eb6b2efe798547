"""The grid engine against exact sums, quadrature, and the contour engine."""

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from programs import jitted
from reference import contour_side, exact, tail_truth
from scipy import optimize, stats

import fdp_jax as fdp
from fdp_jax import Bound
from fdp_jax.engines._contour_engine import place_of
from fdp_jax.engines._discretize import plan_grid
from fdp_jax.engines._grid import compose_grid
from fdp_jax.engines._grid_profile import grid_profile
from fdp_jax.engines._line_mesh import largest_log_rest
from fdp_jax.losses import Method


def _holds(bounds, truth, width=1e-6, rtol=1e-8):
    """A bracket that contains the truth, narrow, around a good estimate."""
    lower, estimate, upper = map(exact, (bounds.lower, bounds.estimate, bounds.upper))
    slack = abs(truth) * mp.mpf("1e-15")
    assert lower - slack <= truth <= upper + slack
    assert upper - lower <= width * abs(truth)
    assert abs(estimate - truth) <= rtol * abs(truth)


# -- exact sums --------------------------------------------------------------------


def _responses_delta(epsilons, epsilon):
    """delta(eps) of several randomized responses, by enumeration."""
    total = mp.mpf(0)
    for signs in itertools.product((1, -1), repeat=len(epsilons)):
        loss = mp.fsum(s * e for s, e in zip(signs, map(mp.mpf, epsilons), strict=True))
        q = mp.fprod(
            1 / (1 + mp.exp(-s * mp.mpf(e)))
            for s, e in zip(signs, epsilons, strict=True)
        )
        total += q * max(0, 1 - mp.exp(mp.mpf(epsilon) - loss))
    return total


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.2, 3.4])
def test_unequal_randomized_responses(epsilon):
    run = fdp.compose(*(fdp.RandomizedResponse(e) for e in (1.0, 2.0, 0.5)))
    truth = _responses_delta((1.0, 2.0, 0.5), epsilon)
    for asked, method in ((run, "closed_form"), (run.using("grid"), "grid")):
        bounds = asked.bounds(epsilon=epsilon)
        assert bounds.method == method
        _holds(bounds, truth, rtol=1e-12)


def test_delta_next_to_one_has_a_lower_end():
    bounds = fdp.Laplace(0.1).repeat(100).bounds(epsilon=1.2)
    assert bounds.status == fdp.Status.TIGHT
    assert 1 - 1e-12 < bounds.lower <= bounds.upper <= 1


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("epsilon", [-3.0, 0.0, 2.0, 9.0])
def test_what_is_missed_is_bounded_from_above(sign, epsilon):
    sizes = 1.0, 2.5, 3.0
    run = fdp.compose(*(fdp.RandomizedResponse(e) for e in sizes))
    loss = run.loss()
    place = place_of(loss, jnp.asarray(sign), jnp.asarray(1.0))
    bounds = plan_grid(loss, jnp.asarray(sign), place).bounds
    bound = largest_log_rest(bounds, jnp.asarray([epsilon]))
    assert float(bound[0]) >= mp.log(1 - _responses_delta(sizes, epsilon))


def test_losses_off_the_grid():
    # No common divisor: at most one of them lies on grid points.
    parts = (1.0, 2**0.5, 3**0.5)
    run = fdp.compose(*(fdp.RandomizedResponse(e) for e in parts))
    for epsilon in (0.1, 1.7, 3.9):
        _holds(run.bounds(epsilon=epsilon), _responses_delta(parts, epsilon))


# Three outputs, the first of which has most of the mass and the least loss.
THREE = [
    ([0.6341, 0.3557, 0.0102], [0.5778, 0.3668, 0.0554], 3, 1.6325),
    ([0.9798, 0.0130, 0.0072], [0.3761, 0.1130, 0.5109], 3, 2.3510),
    ([0.9998323, 0.0001214, 0.0000463], [0.5275, 0.1772, 0.2953], 5, 4.7282),
    ([0.4152, 0.2284, 0.3564], [0.2215, 0.2821, 0.4964], 5, 0.2163),
]


@pytest.mark.parametrize(("p", "q", "n", "epsilon"), THREE)
def test_masses_at_the_end_of_a_loss(p, q, n, epsilon):
    """What coarse cells move there must be in the lower bound."""
    near = epsilon + np.linspace(-0.02, 0.02, 41)
    run = fdp.FromProbabilities(p, q).repeat(n)
    found = run.remove.using("grid", points=1024).bounds(epsilon=near)
    counts = [c for c in np.ndindex(*[n + 1] * 3) if sum(c) == n]
    ways = np.asarray(
        [math.factorial(n) / math.prod(map(math.factorial, c)) for c in counts]
    )
    one, other = (ways * np.prod(np.power(x, counts), axis=1) for x in (p, q))
    gains = other - np.exp(near)[:, None] * one
    truth = np.sum(np.maximum(gains, 0), axis=1)
    assert np.all(found.lower <= truth * (1 + 1e-13))
    assert np.all(truth <= found.upper * (1 + 1e-13))
    assert np.all(found.upper - found.lower <= 0.1 * truth)


@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-6])
def test_agrees_with_the_closed_form_of_equal_responses(delta):
    run = fdp.RandomizedResponse(0.4).repeat(20)
    closed = run.bounds(delta=delta)
    grid = run.using("grid").bounds(delta=delta)
    assert (closed.method, grid.method) == ("closed_form", "grid")
    _holds(grid, exact(closed.estimate), rtol=1e-9)


def test_epsilon_whose_lower_end_is_hidden_by_rounding_far_away():
    """Sampled responses have two outputs, and their number of one kind tells all."""
    high, low = math.e / (1 + math.e), 1 / (1 + math.e)
    k = np.arange(101)
    with_record = stats.binom.pmf(k, 100, 0.95 * low + 0.05 * high)
    without = stats.binom.pmf(k, 100, low)
    delta = lambda e: np.sum(np.maximum(with_record - np.exp(e) * without, 0))
    truth = optimize.brentq(lambda e: delta(e) / 1e-10 - 1, 3.0, 4.0, xtol=1e-14)
    responses = fdp.PoissonSubsampled(fdp.PureDP(1.0), 0.05).repeat(100)
    found = responses.remove.bounds(delta=1e-10)
    assert found.method == "grid"
    _holds(found, exact(truth), width=1e-9, rtol=1e-11)


def test_error_rates_of_a_law_with_a_largest_loss_next_to_all():
    """A trade-off function is the other direction's inverse, with kinks or without."""
    run = fdp.DPSGD(noise_multiplier=0.3, sampling_prob=1e-3, num_steps=50)
    run = run.using("grid")
    beta = run.add.bounds(alpha=0.4)
    alpha = run.remove.bounds(alpha=float(beta.estimate))
    for found in (beta, alpha):
        assert found.status == fdp.Status.TIGHT
    assert abs(float(alpha.estimate) - 0.4) < 1e-8


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "n", "alpha"),
    [
        (2.0, 0.0, 0.2, 5, 1e-8),
        (1.0, 0.0, 0.3, 4, 0.999),
        (0.5, 1.5e-4, 0.8, 5, 3.4e-7),
    ],
)
def test_error_rates_beyond_the_probabilities_of_the_ends(
    epsilon, delta, rate, n, alpha
):
    """There the best test rejects, or accepts, a share of the outputs at one end."""
    release = fdp.ApproxDP(epsilon=epsilon, delta=delta)
    if delta == 0:
        release = fdp.RandomizedResponse(epsilon, relation="add_or_remove_one")
    run = fdp.PoissonSubsampled(release, rate).repeat(n)
    with jax.enable_x64(True):
        found = run.remove.bounds(fpr=alpha)
    most, least = (1 + rate * math.expm1(s * epsilon) for s in (1, -1))
    infinite = -math.expm1(n * math.log1p(-rate * delta))
    near_end = infinite + most**n * alpha, 1 - least**n * (1 - alpha)
    _holds(found, near_end[alpha > 0.5], width=1e-8, rtol=1e-9)


@pytest.mark.parametrize(
    ("count", "alpha", "power"),
    [(1, 1 / 4, 3 / 4), (3, 1 / 64, 27 / 64), (3, 10 / 64, 54 / 64)],
)
def test_error_rates_at_a_kink(count, alpha, power):
    """All thresholds between two losses are the best: their slopes say nothing."""
    run = fdp.RandomizedResponse(math.log(3)).repeat(count)
    with jax.enable_x64(True):
        found = run.bounds(fpr=alpha)
    assert found.method == "closed_form"
    _holds(found, power, width=1e-8, rtol=1e-12)


# -- quadrature --------------------------------------------------------------------


def _one_step(s, q, epsilon, add):
    """delta(eps) of one subsampled release (spec: Balle, Barthe, Gaboardi 2018)."""
    odds = mp.exp(-epsilon if add else epsilon)
    if odds <= 1 - q:
        return mp.mpf(0) if add else 1 - mp.exp(epsilon)
    z = mp.mpf(1) / 2 + s * s * mp.log((odds - (1 - q)) / q)
    if add:
        with_record = (1 - q) * mp.ncdf(z / s) + q * mp.ncdf((z - 1) / s)
        return mp.ncdf(z / s) - mp.exp(epsilon) * with_record
    with_record = (1 - q) * mp.ncdf(-z / s) + q * mp.ncdf(-(z - 1) / s)
    return with_record - mp.exp(epsilon) * mp.ncdf(-z / s)


def _two_steps(s, q, epsilon, add) -> Any:
    """delta of two: the expectation of one step's delta over the other's loss."""
    s, q, epsilon = mp.mpf(s), mp.mpf(q), mp.mpf(epsilon)
    ratio = lambda x: 1 - q + q * mp.exp((2 * x - 1) / (2 * s**2))
    density = lambda x: mp.npdf(x, 0, s) * (1 if add else ratio(x))
    sign = -1 if add else 1
    inner = lambda x: _one_step(s, q, epsilon - sign * mp.log(ratio(x)), add)
    edge = (mp.exp(epsilon) / (1 - q)) if not add else (1 - q) * mp.exp(epsilon)
    # Where the inner profile meets its trivial end.
    odds = edge if not add else 1 / ((1 - q) * mp.exp(epsilon))
    kink = mp.mpf(1) / 2 + s * s * mp.log((odds - (1 - q)) / q) if odds > 1 - q else 0
    points = sorted({-14 * s, -5 * s, 0, 2 * s, kink, kink + s, 6 * s, 14 * s + 1})
    with mp.workdps(25):
        return mp.quad(lambda x: density(x) * inner(x), points)


@pytest.mark.parametrize(
    ("s", "q", "epsilon", "direction"),
    [
        (1.0, 0.01, 0.5, "remove"),
        (1.0, 0.01, 3.0, "remove"),
        (0.5, 0.1, 1.0, "remove"),
        (0.5, 0.1, 0.1, "add"),
    ],
)
def test_two_subsampled_steps(s, q, epsilon, direction):
    run = fdp.DPSGD(noise_multiplier=s, sampling_prob=q, num_steps=2)
    side = contour_side(run, direction).using("grid")
    truth = _two_steps(s, q, epsilon, direction == "add")
    _holds(side.bounds(epsilon=epsilon), truth, width=3e-5, rtol=1e-6)
    _holds(side.bounds(delta=float(truth)), mp.mpf(epsilon), width=3e-6, rtol=1e-7)


# -- the two engines check each other ----------------------------------------------

RUNS = [
    (1.0, 0.01, 1000, 1e-5),
    (1.0, 0.01, 100, 1e-9),
    (5.0, 0.01, 10, 1e-5),
    (0.6, 0.05, 200, 1e-3),
    (2.0, 0.5, 50, 1e-12),
    (3.0, 1.0, 20, 1e-6),
]


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("s", "q", "n", "delta"), RUNS)
def test_brackets_overlap(s, q, n, delta, direction):
    run = fdp.DPSGD(noise_multiplier=s, sampling_prob=q, num_steps=n)
    side = contour_side(run, direction)
    contour = side.using("contour").bounds(delta=delta)
    grid = side.using("grid").bounds(delta=delta)
    assert float(grid.lower) <= float(contour.upper)
    assert float(contour.lower) <= float(grid.upper)
    assert float(grid.estimate) == pytest.approx(float(contour.estimate), rel=1e-6)
    assert float(grid.upper - grid.lower) <= 1e-4 * float(grid.estimate)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    s=st.floats(0.5, 5.0),
    log_q=st.floats(-6.0, -0.1),
    n=st.integers(1, 300),
    log_delta=st.floats(-40.0, -2.0),
)
def test_brackets_overlap_anywhere(s, log_q, n, log_delta):
    run = fdp.DPSGD(
        noise_multiplier=s, sampling_prob=float(np.exp(log_q)), num_steps=float(n)
    )
    delta = float(np.exp(log_delta))
    contour = run.using("contour").bounds(delta=delta)
    grid = run.using("grid").bounds(delta=delta)
    assert float(grid.lower) <= float(contour.upper) * (1 + 1e-15)
    assert float(contour.lower) <= float(grid.upper) * (1 + 1e-15)


@pytest.mark.parametrize("entry", tail_truth()[::3], ids=lambda e: e["delta"])
def test_far_tail_is_bounded(entry):
    run = fdp.DPSGD(
        noise_multiplier=float(entry["sigma"]),
        sampling_prob=float(entry["q"]),
        num_steps=float(entry["N"]),
    )
    side = contour_side(run, entry["direction"]).using("grid")
    bounds = side.bounds(delta=float(entry["delta"]))
    truth = mp.mpf(entry["epsilon"])
    assert exact(bounds.lower) <= truth <= exact(bounds.upper)
    assert abs(exact(bounds.estimate) / truth - 1) < 1e-4


def test_mixed_with_point_masses():
    # A decaying part and atoms: both engines can.
    run = fdp.compose(fdp.Laplace(1.0).repeat(2), fdp.Gaussian(2.0))
    for delta in (1e-2, 1e-6):
        contour = run.using("contour").bounds(delta=delta)
        grid = run.using("grid").bounds(delta=delta)
        _holds(grid, exact(contour.estimate), width=1e-5, rtol=1e-7)


def test_infinite_losses_are_counted():
    run = fdp.compose(
        fdp.ApproxDP(epsilon=1.0, delta=1e-3), fdp.ApproxDP(epsilon=0.5, delta=1e-4)
    )
    infinite = 1 - (1 - mp.mpf(1e-3)) * (1 - mp.mpf(1e-4))
    finite = (1 - infinite) * _responses_delta((1.0, 0.5), 0.7)
    _holds(run.bounds(epsilon=0.7), infinite + finite, rtol=1e-12)
    assert float(run.epsilon(delta=1e-5)) == np.inf
    assert float(run.epsilon(delta=0.0012)) <= 1.5


# -- transformations ---------------------------------------------------------------


def test_gradient_agrees_with_differences():
    def epsilon(x):
        run = fdp.Laplace(x).repeat(3).using("grid")
        return run.epsilon(delta=1e-3, bound=Bound.ESTIMATE)

    slope = float(jitted(jax.grad(epsilon))(1.1))
    step = 1e-3
    sides = [float(epsilon(1.1 + k * step)) for k in (-2, -1, 1, 2)]
    truth = (sides[0] - 8 * sides[1] + 8 * sides[2] - sides[3]) / (12 * step)
    assert slope == pytest.approx(truth, rel=1e-7)


@pytest.mark.slow
def test_gradient_agrees_with_the_contour_engine():
    def epsilon(x, method):
        run = fdp.DPSGD(noise_multiplier=x[0], sampling_prob=x[1], num_steps=100.0)
        return run.using(method).epsilon(delta=1e-5)

    point = jnp.asarray([1.1, 0.05])
    contour, grid = (jax.grad(epsilon)(point, m) for m in ("contour", "grid"))
    np.testing.assert_allclose(grid, contour, rtol=1e-4)


def test_vmap_agrees_with_a_loop():
    epsilon = lambda x: fdp.Laplace(x).repeat(3).using("grid").epsilon(delta=1e-3)
    values = jnp.asarray([0.7, 1.0, 1.9])
    alone = [float(epsilon(x)) for x in values]
    np.testing.assert_allclose(jax.vmap(epsilon)(values), alone, rtol=1e-9)


# -- which engine ------------------------------------------------------------------


def test_loose_contour_bounds_get_a_second_opinion():
    run = fdp.compose(
        *(
            fdp.DPSGD(noise_multiplier=s, sampling_prob=1e-3, num_steps=1)
            for s in (0.5, 0.6)
        )
    )
    alone = run.using("contour").bounds(delta=1e-5)
    both = run.bounds(delta=1e-5)
    assert alone.status == fdp.Status.LOOSE
    assert both.method == "contour, grid"
    assert both.status == fdp.Status.TIGHT
    assert float(both.upper) < 0.5 * float(alone.upper)
    assert float(alone.lower) <= float(both.lower) <= float(both.upper)


def test_fractional_counts_are_not_certified_on_the_grid():
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=10.5)
    grid = run.using("grid").bounds(delta=1e-5)
    truth = float(run.epsilon(delta=1e-5, bound=Bound.ESTIMATE))
    assert grid.status != fdp.Status.TIGHT
    assert float(grid.lower) <= truth <= float(grid.upper)


def test_unknown_or_unavailable_engine():
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=10)
    with pytest.raises(ValueError, match=r"method must be one of .*'fft'"):
        run.using("fft")
    with pytest.raises(ValueError, match=r"closed_form.* is not available"):
        run.using("closed_form").epsilon(delta=1e-5)


# -- the number of points ----------------------------------------------------------


def test_more_points_narrow_the_bracket_by_their_square():
    # Many releases of bounded range 1e-3: the certificate counts every one of them.
    run = fdp.Logistic(1e3).repeat(1_000_000)
    found = [run.using("grid", points=2**k).bounds(delta=1e-6) for k in (17, 19)]
    coarse, fine = (float((x.upper - x.lower) / x.upper) for x in found)
    assert fine < coarse / 12
    assert fine < 1e-2
    # Each release is a logistic pair, of Fisher information epsilon^2 / 3; the limit of
    # so many is Gaussian to 1e-6, and the bracket of each must contain it.
    mu, cdf = (1 / 3) ** 0.5, stats.norm.cdf
    limit: Any = optimize.brentq(
        lambda e: cdf(mu / 2 - e / mu) - math.exp(e) * cdf(-mu / 2 - e / mu) - 1e-6,
        0,
        9,
    )
    for bounds in found:
        assert bounds.lower <= limit <= bounds.upper


@pytest.mark.parametrize("points", [2**9, 2**27, 3 * 2**15, 1e5, -4])
def test_impossible_numbers_of_points(points):
    with pytest.raises(ValueError, match="points must be a power of two"):
        fdp.Laplace(1.0).using("grid", points=points)


def test_points_are_for_the_grid():
    with pytest.raises(ValueError, match="points are for method 'grid'"):
        fdp.Laplace(1.0).using("contour", points=2**17)


def test_memory_is_planned(monkeypatch):
    monkeypatch.setattr("fdp_jax.engines._grid.memory_size", lambda: 10**9)
    run = fdp.compose(fdp.Laplace(1.0), fdp.PureDP(0.5)).using("grid", points=2**22)
    with pytest.raises(ValueError, match=r"points must be fewer.*1,677,721,600 bytes"):
        run.epsilon(delta=1e-6)


@pytest.mark.parametrize(("scale", "count"), [(5.0, 100), (5.0, 1000), (200.0, 1000)])
def test_a_small_grid_where_it_holds_the_lattice(scale, count):
    # The last one does not fit and takes the large one.
    run = fdp.DiscreteGaussian(scale).repeat(count)
    small, full = (x.bounds(delta=1e-5) for x in (run, run.using("grid")))
    assert small.lower <= full.upper
    assert full.lower <= small.upper
    assert small.lower <= small.estimate <= small.upper
    if scale < 100:
        assert small.upper - small.lower <= 1e-8 * full.upper


# -- certificates ------------------------------------------------------------------


@pytest.mark.parametrize("below", [30.0, 5.0, 0.5])
def test_no_lower_bound_is_extrapolated_beyond_the_grid(below):
    run = fdp.PureDP(1.0).repeat(30)
    loss = dataclasses.replace(run.loss(), method=Method("grid", 2**12))
    one = jnp.asarray(1.0)
    profile = compose_grid(
        loss, plan_grid(loss, one, place_of(loss, one, jnp.asarray(25.0)))
    )
    epsilon = profile.points[0] - below
    found, _ = grid_profile(profile, epsilon[None])
    truth = float(run.log_delta(epsilon=epsilon, bound=Bound.ESTIMATE))
    assert -3 < float(found.lower[0]) <= truth + 1e-12
    assert truth <= float(found.upper[0])


def test_lower_bounds_where_all_is_rounding():
    """Rare large losses make delta far smaller than any Chernoff bound of it."""
    s, q, n = 1.9507159277628625, 0.0005394693235931928, 75527.0
    side = fdp.DPSGD(noise_multiplier=s, sampling_prob=q, num_steps=n).remove
    found = side.using("grid").bounds(epsilon=np.linspace(1.6, 2.8, 4))
    # Log delta(1.6) by benchmarks/oracle.py: two contours with different nodes agree
    # on all of these digits.  Farther out there is less.
    truth = mp.exp(mp.mpf("-143.55505274159813722"))
    assert mp.mpf(float(found.lower[0])) <= truth <= mp.mpf(float(found.upper[0]))
    assert mp.mpf(float(np.max(found.lower))) <= truth
    assert np.all(found.lower <= found.upper)


# Exact binary fractions, and a threshold next to the largest loss: what rounding of a
# loss does to delta there is not in proportion to any mass.
NEXT_TO_THE_LARGEST_LOSS = [
    (
        [0.016122818377546366, 0.9838771816224536],
        [0.01948117134897842, 0.9805188286510216],
        3,
        0.567638598360215,
    ),
    (
        [0.0020123169799894924, 0.008811914809983001, 0.9891757682100275],
        [0.008874488615689735, 0.02978067884202762, 0.9613448325422826],
        1,
        1.4838939119866223,
    ),
    # A delta next to 1, where a Chernoff bound is all there is to be rounded.
    (
        [0.9999999881124753, 2.842170943040401e-14, 1.1887496320639457e-08],
        [8.104450444079703e-11, 5.329070518200751e-15, 0.9999999999189502],
        20,
        86.31983637404444,
    ),
]


@pytest.mark.parametrize(("p", "q", "n", "epsilon"), NEXT_TO_THE_LARGEST_LOSS)
def test_rounded_losses_are_in_the_bracket(p, q, n, epsilon):
    found = fdp.FromProbabilities(p, q).repeat(n).remove.using("grid")
    found = found.bounds(epsilon=epsilon)
    truth = mp.mpf(0)
    with mp.workdps(60):
        for counts in itertools.product(range(n + 1), repeat=len(p)):
            if sum(counts) == n:
                ways = math.factorial(n) / math.prod(map(mp.factorial, counts))
                one, other = (
                    ways
                    * mp.fprod(mp.mpf(x) ** k for x, k in zip(m, counts, strict=True))
                    for m in (p, q)
                )
                truth += max(other - mp.exp(mp.mpf(epsilon)) * one, 0)
        assert mp.fsum(map(mp.mpf, p)) == mp.fsum(map(mp.mpf, q)) == 1
        assert mp.mpf(float(found.lower)) <= truth <= mp.mpf(float(found.upper))
