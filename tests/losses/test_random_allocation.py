"""Random allocation against integrals that share no formula with the package.

The truth for 2 and 3 batches is a Black-Scholes formula integrated over the other
batches; for more, the Laplace transform of the sum, inverted on its own contour.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import norm

import fdp_jax as fdp
from fdp_jax import engines
from fdp_jax.losses import RandomAllocationLoss
from fdp_jax.losses._random_allocation._component import cells, component, lowered
from fdp_jax.losses._random_allocation._law import _beyond
from fdp_jax.losses._random_allocation._place import place
from fdp_jax.mechanisms._random_allocation import RandomAllocationEpoch

ESTIMATE = fdp.Bound.ESTIMATE


# ------------------------------------------------------------------------------- truth


def call(strike, s):
    """E(X - K)_+ of one component."""
    some = np.maximum(strike, 1e-300)
    d = -s * np.log(some) + 0.5 / s
    value = ndtr(d) - strike * ndtr(d - 1 / s)
    return np.where(strike > 0, value, 1 - strike)


def normal_rule(nodes=801, reach=13.0):
    z = np.linspace(-reach, reach, nodes)
    weight = np.exp(-0.5 * z * z) * (z[1] - z[0]) / np.sqrt(2 * np.pi)
    return z, weight


def few_batches(s, t, eps, sign):
    """delta for t = 2 or 3: all batches but one by the trapezoid rule."""
    z, w = normal_rule(1601)
    x = np.exp(z / s - 0.5 / s**2)
    others = x if t == 2 else (x[:, None] + x).ravel()
    weights = w if t == 2 else (w[:, None] * w).ravel()
    strike = t * np.exp(sign * eps)
    if sign > 0:
        return weights @ call(strike - others, s) / t
    # A put, without the parity that would cancel.
    left = strike - others
    d = -s * np.log(np.maximum(left, 1e-300)) + 0.5 / s
    put = np.where(left > 0, left * ndtr(1 / s - d) - ndtr(-d), 0.0)
    return np.exp(eps) / t * (weights @ put)


def around(corner):
    """Nodes and weights of a normal law in panels around a corner."""
    near, far = np.logspace(-12, 0.5, 40), np.linspace(4, 16, 13)
    sides = np.concatenate([near, far])
    ends = np.concatenate([corner - sides, [corner], corner + sides])
    # And all that is likely at all.
    ends = np.unique(np.concatenate([ends, np.linspace(-16, 16, 33)]))
    nodes, weights = np.polynomial.legendre.leggauss(24)
    width = 0.5 * np.diff(ends)[:, None]
    z = (ends[:-1, None] + width * (1 + nodes)).ravel()
    return z, (width * weights).ravel() * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)


def two_batches(s, eps, sign):
    """delta for t = 2, also with little noise: panels around the corner."""
    strike = 2 * np.exp(sign * eps)
    z, w = around(s * np.log(strike) + 0.5 / s)
    left = strike - np.exp(z / s - 0.5 / s**2)
    if sign > 0:
        return w @ call(left, s) / 2
    d = -s * np.log(np.maximum(left, 1e-300)) + 0.5 / s
    put = np.where(left > 0, left * ndtr(1 / s - d) - ndtr(-d), 0.0)
    return np.exp(eps) / 2 * (w @ put)


def three_batches(s, eps, sign):
    """delta for t = 3: that of two, integrated over the third."""
    strike = 3 * np.exp(sign * eps)
    z, w = around(s * np.log(strike) + 0.5 / s)
    z, w = z[w > 1e-60], w[w > 1e-60]
    left = strike - np.exp(z / s - 0.5 / s**2)
    # Two batches' calls and puts of a strike k: eps is +-log(k / 2).
    near = [two_batches(s, sign * np.log(k / 2), sign) if k > 0 else 0 for k in left]
    beyond = np.where(left > 0, 0, 2 - left) if sign > 0 else 0 * left
    scale = 2 if sign > 0 else np.maximum(left, 0)
    value = w @ (scale * np.asarray(near) + beyond)
    return value / 3 * (1 if sign > 0 else np.exp(eps))


def log_put(strike, t, s):
    """log E(K - S)_+ by inverting the Laplace transform.

    With little noise along a parabola, for which the normal variable is moved by an
    imaginary number so that nothing oscillates; otherwise along a vertical line.
    """
    z, w = normal_rule()
    x = np.exp(z / s - 0.5 / s**2)
    log_phi = lambda c: np.log(w @ np.exp(-c * x))
    mean = lambda c: (w * x) @ np.exp(-c * x) / (w @ np.exp(-c * x))
    most = np.log(600 / x[w > 1e-25].min())
    score = lambda u: strike - t * mean(np.exp(u)) - 2 * np.exp(-u)
    root: Any = brentq(score, -40, min(most, 40))
    c = np.exp(root)
    square = (w * x * x) @ np.exp(-c * x) / np.exp(log_phi(c))
    step = 1 / np.sqrt(t * (square - mean(c) ** 2) + 2 / c**2) / 12
    base, total = c * strike + t * log_phi(c) - 2 * np.log(c), 0.0
    bent = s < 1.5
    for block in range(400):
        line = step * np.arange(block * 64, block * 64 + 64)
        line = 1 + 1j * line / c
        rate = np.ones(64)
        if bent:
            line, rate = np.square(0.5 * (1 + line)), 0.5 * (1 + line)
        angle = s * np.angle(line) if bent else np.zeros(64)
        line = c * line
        turned = line * np.exp(-1j * angle / s)
        moved = np.exp(1j * angle[:, None] * z + 0.5 * angle[:, None] ** 2)
        phi = (np.exp(-turned[:, None] * x) * moved) @ w
        logs = line * strike + t * np.log(phi) - 2 * np.log(line) - base
        terms = (rate * np.exp(logs)).real
        total += terms.sum() - (0.5 * terms[0] if block == 0 else 0)
        if np.abs(terms).max() < 1e-17:
            break
    return base + np.log(step * total / np.pi)


def many_batches(s, t, eps, sign):
    """delta and a bound on the error of what was calculated here."""
    strike = t * np.exp(sign * eps)
    put = np.exp(log_put(strike, t, s))
    if sign < 0:
        delta = np.exp(eps) / t * put
        return delta, 1e-9 * delta
    # E S = t: by parity, with an absolute error.
    return 1 - np.exp(eps) + put / t, (1e-11 + 1e-13 * t) * put / t


@functools.cache
def _profile_of_two(s, sign):
    """log delta of one epoch of two batches on a fine grid of thresholds."""
    grid = np.linspace(-14, 14, 2801)
    delta = np.array([few_batches(s, 2, e, sign) for e in grid])
    some = delta > 1e-200
    return CubicSpline(grid[some], np.log(delta[some])), grid[some][-1]


def two_epochs(s, eps, sign):
    """delta of two epochs of two batches: E delta_1(eps - loss) over one of them."""
    z, w = normal_rule(401, 9.0)
    x = np.exp(z / s - 0.5 / s**2)
    total = 0.5 * (x[:, None] + x)
    loss = sign * np.log(total)
    weight = w[:, None] * w
    weight = weight * total if sign > 0 else weight
    spline, most = _profile_of_two(s, sign)
    left = eps - loss
    inner = np.exp(spline(np.clip(left, -14, most)))
    # Below, next to all of it counts; above, nothing.
    return np.sum(weight * np.where(left < most, inner, 0.0))


def holds(bounds, truth, error=0.0):
    assert bounds.lower <= truth + error, (bounds, truth)
    assert truth - error <= bounds.upper, (bounds, truth)


def one_side(mechanism, sign):
    return mechanism.remove if sign > 0 else mechanism.add


# --------------------------------------------------------------------------- the table


@pytest.mark.parametrize(
    ("s", "t", "epochs", "remove", "add", "digits", "width"),
    [
        # One epoch is asked of a coarser lattice, for speed; the source has 3 digits
        # of the last row.
        (1.0, 100, 1, 0.857986, 0.486425, 5e-7, 3e-5),
        (3.0, 20, 5, 0.7077, 0.7038, 5e-5, 1e-6),
        (1.0, 1000, 10, 0.5401, 0.5222, 5e-4, 1e-5),
    ],
)
def test_known_epsilons(s, t, epochs, remove, add, digits, width):
    run = RandomAllocationEpoch(s, t).repeat(epochs)
    for view, known in ((run.remove, remove), (run.add, add)):
        found = view.bounds(delta=1e-6)
        assert abs(found.estimate - known) < digits
        assert found.lower <= found.estimate <= found.upper
        assert found.upper - found.lower < width


@pytest.mark.parametrize(
    ("t", "eps", "sign", "delta", "digits"),
    [
        (10, 0.5, -1, 1.9064112948e-2, 5e-12),
        (10, 0.5, 1, 2.6850355961e-2, 5e-12),
        (10, 1.0, -1, 4.8618580850e-4, 5e-14),
        # By parity in the source, which is good to 1e-12.
        (10, 1.0, 1, 2.7828689988e-3, 1e-12),
        (100, 0.5, 1, 4.4089079e-5, 2e-12),
        (100, 0.5, -1, 5.9252837e-7, 5e-15),
        (100, 1.0, -1, 1.0503e-19, 2e-22),
    ],
)
def test_known_deltas(t, eps, sign, delta, digits):
    epoch = one_side(RandomAllocationEpoch(1.0, t), sign)
    found = epoch.bounds(epsilon=eps)
    if delta > 1e-15:
        assert abs(found.estimate - delta) < digits
    holds(found, delta, digits)


# ------------------------------------------------------------------- brackets and truth


@pytest.mark.parametrize(
    ("s", "t", "eps"),
    [(1.0, 2, 1.0), (0.7, 2, 2.0), (2.0, 2, 0.3), (1.0, 3, 1.5)],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_few_batches(s, t, eps, sign):
    # The trapezoid rule is off by 2e-8 here.
    truth = (two_batches if t == 2 else three_batches)(s, eps, sign)
    found = one_side(RandomAllocationEpoch(s, t), sign).bounds(epsilon=eps)
    holds(found, truth, 1e-10 * truth)
    assert found.upper - found.lower < 5e-2 * truth
    # With less noise the lattice is too coarse for the estimate to be better.
    if s >= 1:
        assert abs(found.estimate - truth) < 1e-7 * truth


@pytest.mark.parametrize(("s", "eps"), [(1.0, 2.0), (0.8, 4.0)])
@pytest.mark.parametrize("sign", [1, -1])
def test_two_epochs(s, eps, sign):
    truth = two_epochs(s, eps, sign)
    run = one_side(RandomAllocationEpoch(s, 2).repeat(2), sign)
    found = run.bounds(epsilon=eps)
    holds(found, truth, 1e-8 * truth)
    width = float(found.upper - found.lower)
    assert abs(found.estimate - truth) < 0.05 * width + 1e-6 * truth


def test_random_runs():
    rng = np.random.default_rng(1)
    for _ in range(12):
        s, t = float(np.exp(rng.uniform(-0.3, 1.5))), int(np.exp(rng.uniform(1.2, 6)))
        sign = int(rng.choice([-1, 1]))
        scale = np.sqrt(np.expm1(1 / s**2) / t)
        eps = float(scale * rng.uniform(0.3, 3.5))
        truth, error = many_batches(s, t, eps, sign)
        found = one_side(RandomAllocationEpoch(s, t), sign).bounds(epsilon=eps)
        holds(found, truth, error)
        assert abs(found.estimate - truth) < 1e-6 * truth + 2 * error, (s, t, eps, sign)
        assert found.upper - found.lower < 1e-2 * truth


@pytest.mark.parametrize(
    ("s", "t", "points"), [(1.0, 100.0, 12), (0.7, 10.0, 15), (3.0, 20.0, 12)]
)
def test_component_is_between(s, t, points):
    """In the convex order, by calls and puts of the part on the lattice."""
    at = place(jnp.asarray(s), jnp.asarray(t), 1 << points)
    x = jitted(component)(jnp.asarray(s), at)
    lower = jitted(lowered)(x, jnp.asarray(s), at).masses
    assert lower.sum() > 0.9
    h, first, cells = float(at.spacing), int(at.first), int(at.cells)
    upper = x.masses * (1 + x.error)
    lattice = (first + np.arange(upper.size)) * h
    low, high = first * h, (first + cells) * h
    z = lambda v: s * np.log(np.maximum(v, 1e-300)) + 0.5 / s
    for strike in np.append(h * (first + np.linspace(0.1, 40, 87)), np.exp(z_grid(s))):
        if not low < strike < high:
            continue
        inside = ndtr(z(high)) - ndtr(z(strike))
        exact_call = ndtr(z(high) - 1 / s) - ndtr(z(strike) - 1 / s) - strike * inside
        below = ndtr(z(strike)) - ndtr(z(low))
        exact_put = strike * below - (ndtr(z(strike) - 1 / s) - ndtr(z(low) - 1 / s))
        room = 1e-13 * (1 + strike)
        for exact, payoff in (
            (exact_call, np.maximum(lattice - strike, 0)),
            (exact_put, np.maximum(strike - lattice, 0)),
        ):
            assert np.asarray(lower) @ payoff <= exact + room
            assert np.asarray(upper) @ payoff >= exact - room


def weighted(f, x, w, s, u):
    """The density of one component at x + w u, times w f(u)."""
    y = x + w * u
    return w * mp.mpf(s) / y * mp.npdf(s * mp.log(y) + 1 / (2 * mp.mpf(s))) * f(u)


@pytest.mark.parametrize("s", [0.3, 1.0, 10.0])
def test_cells(s):
    """Means of the place in a cell, against quadrature with more digits."""
    left = np.exp(np.array([-5.0, -1.0, 0.5, 4.0]) / s - 0.5 / s**2)
    width = left * np.array([1.0, 0.3, 1e-3, 1e-6]) / max(s, 1.0)
    found = jitted(cells)(jnp.asarray(left), jnp.asarray(width), jnp.asarray(s))
    assert np.all(found.good)
    rows = zip(left, width, found.left, found.right, found.between, strict=True)
    for x, w, *means in rows:
        with mp.workdps(40):
            exact = [
                mp.quad(functools.partial(weighted, f, mp.mpf(x), mp.mpf(w), s), [0, 1])
                for f in (lambda u: 1 - u, lambda u: u, lambda u: u * (1 - u))
            ]
            for mean, known in zip(means, exact, strict=True):
                assert abs(mp.mpf(float(mean)) / known - 1) <= mp.mpf(
                    float(found.error)
                )


def z_grid(s):
    return np.linspace(-4, 4, 61) / s - 0.5 / s**2


@pytest.mark.parametrize("s", [0.3, 0.5])
def test_small_noise(s):
    """Valid, and more than nothing."""
    epoch = RandomAllocationEpoch(s, 20)
    whole = fdp.Gaussian(s).epsilon(delta=1e-6)
    for view in (epoch.remove, epoch.add):
        found = view.bounds(delta=1e-6)
        assert found.lower <= found.upper < whole - 0.3
    # P(S/t > e^eps) at least where one component alone is there.
    eps = float(epoch.remove.bounds(delta=1e-6).upper)
    strike = 20 * np.exp(eps)
    single = ndtr(1 / s - z_of(strike, s)) / 1 - np.exp(eps) * 20 * ndtr(
        -z_of(strike, s)
    )
    assert single <= 1e-6 * (1 + 1e-6)


@pytest.mark.parametrize("s", [0.3, 0.5])
@pytest.mark.parametrize("sign", [1, -1])
def test_little_noise_has_lower_ends(s, sign):
    """The largest sum tells nearly all of what is told, and no more than all of it."""
    for eps in (2.0, 8.0):
        truth = two_batches(s, eps, sign)
        found = one_side(RandomAllocationEpoch(s, 2), sign).bounds(epsilon=eps)
        holds(found, truth, 1e-9 * truth)
        assert found.lower > 0.25 * truth
    for t, delta, least in ((100, 1e-5, (1.16, 5.396)), (1000, 1e-5, (0.37, 3.133))):
        if s == 0.5:
            run = one_side(RandomAllocationEpoch(s, t), sign)
            assert run.bounds(delta=delta).lower > least[sign > 0]


@pytest.mark.parametrize(
    ("s", "t", "eps", "width"),
    [(0.5, 10, 5.0, 1e-6), (0.5, 10, 2.6, 1e-6), (0.7, 30, 2.0, 1e-5)],
)
def test_little_noise_without_the_record(s, t, eps, width):
    """Components beyond t are never looked at, however likely they are."""
    truth, error = many_batches(s, t, eps, -1)
    found = RandomAllocationEpoch(s, t).add.bounds(epsilon=eps)
    holds(found, truth, error)
    assert found.upper - found.lower < width * truth
    assert abs(found.estimate - truth) < 0.01 * width * truth


@pytest.mark.parametrize(
    ("s", "t", "eps"), [(0.3, 20, 1.0), (0.5, 10, 2.6), (0.7, 30, 2.0)]
)
def test_little_noise_with_the_record(s, t, eps):
    """Sums with a component beyond the strike are known in closed form."""
    truth, error = many_batches(s, t, eps, 1)
    found = RandomAllocationEpoch(s, t).remove.bounds(epsilon=eps)
    holds(found, truth, error)
    assert found.upper - found.lower < 1e-6 * truth


@pytest.mark.parametrize(
    ("s", "t", "eps"), [(0.3, 2, 25.0), (0.3, 3, 20.0), (0.5, 2, 9.0), (1.0, 3, 3.5)]
)
def test_tiny_deltas_with_the_record(s, t, eps):
    """The lattice of calls ends at the strike, which the search knows at last."""
    delta = (two_batches if t == 2 else three_batches)(s, eps, 1)
    found = RandomAllocationEpoch(s, t).remove.bounds(delta=float(delta))
    holds(found, eps, 1e-11 * eps)
    assert found.upper - found.lower < 1e-6 * eps


def test_thousand_batches_with_little_noise():
    """With parity in extended precision: 1,000 batches, of which one decides."""
    found = RandomAllocationEpoch(0.5, 1000).remove.bounds(epsilon=3.0)
    holds(found, 1.3570587780630666e-05)
    assert found.upper - found.lower < 1e-5 * found.upper


def z_of(x, s):
    return s * np.log(x) + 0.5 / s


# ---------------------------------------------------------------- limits and identities


def test_one_batch_is_gaussian():
    for epochs in (1, 3):
        one = RandomAllocationEpoch(0.9, 1).repeat(epochs).bounds(delta=1e-5)
        whole = fdp.Gaussian(0.9).repeat(epochs).bounds(delta=1e-5)
        assert one == whole
    # And by the laws, where the number of batches is not known.
    epsilon = jitted(lambda t: RandomAllocationEpoch(2.0, t).remove.bounds(delta=1e-3))
    found, whole = epsilon(1.0), fdp.Gaussian(2.0).epsilon(delta=1e-3)
    holds(found, whole, 1e-9)
    assert abs(found.estimate - whole) < 1e-7


def test_between_whole_numbers():
    found = [
        RandomAllocationEpoch(1.0, t).remove.bounds(delta=1e-6) for t in (9, 9.5, 10)
    ]
    more, middle, less = found
    assert less.estimate < middle.estimate < more.estimate
    assert middle.lower <= less.estimate < more.estimate <= middle.upper


def test_tiny_deltas():
    epoch = RandomAllocationEpoch(1.0, 100)
    for delta in (1e-9, 1e-12):
        for view in (epoch.remove, epoch.add):
            found = view.bounds(delta=delta)
            assert 0 < found.lower <= found.upper < 1.01 * found.lower
    run = epoch.repeat(20).remove.bounds(delta=1e-12)
    assert 0 < run.lower <= run.upper < 1.01 * run.lower


# -------------------------------------------------------------------------- derivatives


def test_derivatives():
    def slopes(function, s, t):
        numeric = (
            (function(s * 1.001, t) - function(s * 0.999, t)) / (0.002 * s),
            (function(s, t + 0.5) - function(s, t - 0.5)),
        )
        exact = jax.grad(function, (0, 1))(s, t)
        np.testing.assert_allclose(exact, numeric, rtol=3e-4)

    def epsilon(s, t):
        return RandomAllocationEpoch(s, t).epsilon(delta=1e-6, bound=ESTIMATE)

    slopes(epsilon, 1.0, 50.0)
    # Where the lattice is too coarse to be differentiated there is no NaN either.
    assert np.all(np.isfinite(jax.grad(epsilon, (0, 1))(0.35, 20.0)))


def test_thresholds_beyond_all_losses():
    delta = lambda s, eps: RandomAllocationEpoch(s, 10).bounds(epsilon=eps)
    # Nothing is left of delta, and squares of e^eps are more than any number.
    found, slope = delta(1.0, 705.0), jax.grad(lambda s: delta(s, 705.0).estimate)(1.0)
    assert (found.lower, found.estimate, slope) == (0, 0, 0)
    assert found.upper < 1e-300
    # With little noise much is: the other batches add next to nothing to the own one.
    found = delta(0.03, 550.0)
    z, w = ((x - 550 - math.log(10)) * 0.03 for x in (0.5 / 0.03**2, -0.5 / 0.03**2))
    truth = ndtr(z) - math.exp(550) * 10 * ndtr(w)
    assert found.lower <= truth <= found.estimate <= found.upper < 1


@pytest.mark.slow
def test_derivatives_of_several():
    delta = lambda s: (
        RandomAllocationEpoch(s, 50.0).repeat(4).log_delta(epsilon=0.8, bound=ESTIMATE)
    )
    numeric = (delta(1.001) - delta(0.999)) / 0.002
    np.testing.assert_allclose(jax.grad(delta)(1.0), numeric, rtol=1e-4)


def test_batches_and_single_precision():
    epsilon = lambda s: RandomAllocationEpoch(s, 100).epsilon(delta=1e-6)
    each = [epsilon(s) for s in (0.8, 1.0)]
    many = jax.vmap(epsilon)(jnp.asarray([0.8, 1.0]))
    np.testing.assert_allclose(many, each, rtol=1e-9)
    with jax.enable_x64(False):
        found = jitted(epsilon)(1.0)
        assert found.dtype == jnp.float32
    assert float(each[1]) <= float(found) < float(each[1]) + 1e-6


@pytest.mark.slow
def test_other_queries():
    epoch = RandomAllocationEpoch(1.0, 100)
    beta = epoch.bounds(alpha=0.01)
    # Every threshold gives a line below f.
    for eps in (0.0, 0.3, 0.6):
        delta = float(epoch.delta(epsilon=eps))
        assert float(beta.upper) >= 1 - delta - np.exp(eps) * 0.01
    assert 0.95 < float(beta.lower) <= float(beta.upper) < float(beta.lower) + 1e-4
    # Below zero one direction follows from the other.
    below = epoch.remove.delta(epsilon=-0.5, bound=ESTIMATE)
    other = epoch.add.delta(epsilon=0.5, bound=ESTIMATE)
    np.testing.assert_allclose(below, -np.expm1(-0.5) + np.exp(-0.5) * other, rtol=1e-9)


@pytest.mark.slow
def test_calibration():
    target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-6)
    noise = fdp.calibrate(
        RandomAllocationEpoch(None, 100), target, solve_for="noise_multiplier"
    ).value
    reached = RandomAllocationEpoch(noise, 100).epsilon(delta=1e-6)
    assert 1 - 1e-4 < reached <= 1


# ------------------------------------------------------------------------------- errors


def test_errors():
    with pytest.raises(ValueError, match="noise_multiplier"):
        RandomAllocationEpoch(0.0, 10)
    with pytest.raises(ValueError, match=r"num_batches .*\[1, 1e6\]"):
        RandomAllocationEpoch(1.0, 0.5)
    with pytest.raises(ValueError, match="REPLACE_ONE: a replaced record"):
        RandomAllocationEpoch(1.0, 10, relation="replace_one")
    RandomAllocationEpoch(1.0, 10, relation="zero_out")
    with pytest.raises(ValueError, match=r"num_batches of .* is not set"):
        RandomAllocationEpoch(1.0).epsilon(delta=1e-5)


class Edge:
    """All that `_beyond` reads of a lattice: its largest component."""

    def __init__(self, end):
        self.end = end


@jitted
def sums_beyond(end, noise, batches):
    at: Any = Edge(end)
    return _beyond(at, noise, batches)


@pytest.mark.parametrize("noise", [0.02, 0.3, 1.0, 7.0, 150.0])
def test_sums_with_a_big_component_are_within_their_bounds(noise):
    # Also where all components are big, and where half of them are.
    for z in (-9.0, 0.15, 0.22, 0.5, 3.0, 17.0, 30.0, 1 / noise - 2, 1 / noise):
        if abs(log_end := z / noise - 0.5 / noise**2) > 700:
            continue
        end = math.exp(log_end)
        for batches in (1.0, 2.0, 1e6):
            found = sums_beyond(*map(jnp.asarray, (end, noise, batches)))
            means, masses = (np.ravel(x) for x in found)
            with mp.workdps(60):
                place = mp.mpf(noise) * mp.log(end) + 1 / (2 * mp.mpf(noise))
                none, other = (
                    1 - mp.erfc(x / mp.sqrt(2)) / 2
                    for x in (place, place - 1 / mp.mpf(noise))
                )
                mass = 1 - none ** int(batches)
                included = 1 - none ** (int(batches) - 1) * other
                if mass < 1e-280:
                    continue
                assert masses[1] <= mass <= masses[0]
                assert means[1] <= batches * included / mass <= means[0]
            assert masses[0] - masses[1] <= 1e-10 * masses[0] * (1 + z**2)


def test_loss_knows_moments():
    """Of the order 2: 1 + (e^(1/s^2) - 1) / t."""
    loss = RandomAllocationLoss(jnp.asarray(2.0), jnp.asarray(10.0))
    found = jitted(lambda x: x.normalized_log_moment(jnp.asarray(2.0)))(loss)
    np.testing.assert_allclose(2 * found, np.log1p(np.expm1(0.25) / 10), rtol=1e-6)
    moments = jitted(lambda x: x.moments(jnp.asarray([2.0])))(loss)
    assert np.all(moments[0] >= 2 * found)


def test_a_table_is_one_law_for_all_moments():
    """A search asks for some fifty, each of which made the law anew."""
    loss = RandomAllocationLoss(jnp.asarray(2.0), jnp.asarray(10.0))
    at = [jnp.asarray([w]) for w in (-0.5, 1.5, 2.0)]
    each = lambda x: [x.rough_moments(w) for w in at]
    one = jax.make_jaxpr(lambda x: x.law())(loss)
    every = jax.make_jaxpr(lambda x: each(x.tabulated()))(loss)
    assert str(every).count(" fft[") == str(one).count(" fft[") > 0
    found, again = jitted(lambda x: (each(x.tabulated()), each(x)))(loss)
    np.testing.assert_allclose(found, again, rtol=1e-12)
    np.testing.assert_allclose(found[2][1], np.log1p(np.expm1(0.25) / 10), rtol=1e-3)


def test_prepared_sums_at_thresholds_whose_powers_overflow():
    """All of t noises are below a place if the record leaks more than epsilon."""
    t, noise = 10, 0.04
    epsilon = np.asarray([345.0, 400.0, 720.0, 800.0, 1500.0])
    scheme = fdp.sampling.RandomAllocation(num_batches=t)
    run = fdp.DPSGD(noise_multiplier=noise, sampling=scheme, num_steps=t)
    with jax.enable_x64(True):
        loss, signs = run.loss(), jnp.asarray([1.0, -1.0])

        @jitted
        def ask(at):
            plans = engines.prepare(loss, signs, jnp.zeros(()))
            answer = functools.partial(engines.log_delta_from, loss, epsilons=at)
            return jax.lax.map(lambda plan: answer(prepared=plan), plans)

        found = ask(jnp.asarray(epsilon))
    # log mean exp(z_i / noise) < 1 / (2 noise^2) - epsilon with a spare factor of e.
    place = noise * (0.5 / noise**2 - epsilon - 1)
    least = t * norm.logcdf(place) + math.log1p(-math.exp(-1))
    assert np.all(np.asarray(found.lower) <= np.asarray(found.upper))
    assert np.all(np.asarray(found.upper)[1] >= least)
