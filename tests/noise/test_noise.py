"""Canonical noise against the reference numbers, mpmath and its definition."""

# Tests give wrong types on purpose, and numbers of any kind.
# pyright: reportArgumentType=false

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from reference import topic_checks
from scipy import integrate, stats

import fdp_jax as fdp
from fdp_jax import Bound, noise as rooms, tradeoff
from fdp_jax.noise._recursion import CurveLaw

RTOL = 1e-12
TULAP = tradeoff.ApproxDP(epsilon=1.0, delta=0.0)
TABLE = [(0.2, 0.1), (1.0, 1e-3), (3.0, 1e-9)]
POLYGON = tradeoff.PiecewiseLinear([0.0, 0.1, 0.2, 0.4, 1.0], [1.0, 0.4, 0.2, 0.1, 0.0])


RUN = fdp.PoissonSubsampled(fdp.Gaussian(1.0), 0.5)


@functools.cache
def _noise(name):
    """Different guarantees; the last three are known by numbers only."""
    g = tradeoff
    make = {
        "gaussian": lambda: fdp.canonical_noise(g.Gaussian(1.0)),
        "normal": lambda: fdp.canonical_noise(g.Gaussian(0.7), log_concave=True),
        "tulap": lambda: fdp.canonical_noise(TULAP),
        "tulap bounded": lambda: fdp.canonical_noise(
            g.ApproxDP(epsilon=0.6, delta=0.05)
        ),
        "uniform": lambda: fdp.canonical_noise(g.ApproxDP(epsilon=0.0, delta=0.1)),
        "polygon": lambda: fdp.canonical_noise(POLYGON),
        "table": lambda: fdp.canonical_noise(TABLE),
        "run": lambda: fdp.canonical_noise(RUN),
    }
    return make[name]()


def _of(p):
    if "mu" in p:
        return tradeoff.Gaussian(p["mu"])
    return tradeoff.ApproxDP(epsilon=float(p["eps"]), delta=float(p.get("delta", 0)))


QUANTITIES = {
    "tulap_cdf": lambda n, p: n.cdf(p["x"]),
    "tulap_var": lambda n, p: n.variance(),
    "tulap_cf": lambda n, p: n.characteristic_function(p["t"]),
    "support": lambda n, p: n.support[1],
    "cndG1_sf": lambda n, p: n.sf(p["x"]),
    "cndG1_pdf.x": lambda n, p: n.pdf(p["x"]),
    "cndG1_pdf.right": lambda n, p: n.pdf(0.5),
    # 1 - u in decimals: the tail is what a float can hold.
    "tulap_quantile": lambda n, p: n.isf(round(1 - p["u"], 12)),
    "cndG1_quantile": lambda n, p: n.isf(round(1 - p["u"], 12)),
}


@pytest.mark.parametrize("topic", QUANTITIES)
def test_reference_numbers(topic):
    entries = topic_checks("03", topic)
    assert entries
    for entry in entries:
        found = QUANTITIES[topic](
            fdp.canonical_noise(_of(entry["params"])), entry["params"]
        )
        np.testing.assert_allclose(found, entry["value"], rtol=RTOL)


def test_tulap_is_a_truncated_one():
    (entry,) = topic_checks("03", "tulap_q.")
    p = entry["params"]
    whole = fdp.canonical_noise(tradeoff.ApproxDP(epsilon=p["eps"], delta=0.0))
    cut = fdp.canonical_noise(tradeoff.ApproxDP(epsilon=p["eps"], delta=p["delta"]))
    x = np.asarray([0.2, 0.9, 1.7, 2.5])
    found = 1 - (whole.sf(x) - cut.sf(x)) / (0.5 - cut.sf(x))
    np.testing.assert_allclose(1 - found, entry["value"], rtol=RTOL)


def test_log_concave_laws_have_their_own_names():
    (entry,) = topic_checks("03", "logconcave")
    laplace = fdp.canonical_noise(tradeoff.Laplace(1.0), log_concave=True)
    np.testing.assert_allclose(
        laplace.cdf(-entry["params"]["t"]), entry["value"], rtol=RTOL
    )
    normal = fdp.canonical_noise(tradeoff.Gaussian(0.5), log_concave=True)
    x = np.asarray([-30.0, -1.0, 0.3, 4.0])
    np.testing.assert_allclose(
        normal.cdf(x), [float(mp.ncdf(v / 2)) for v in x], rtol=RTOL
    )
    assert normal.variance() == 4.0
    uniform = fdp.canonical_noise(
        tradeoff.ApproxDP(epsilon=0.0, delta=0.2), log_concave=True
    )
    np.testing.assert_allclose(uniform.cdf(1.25), 0.75, rtol=1e-15)
    logistic = fdp.canonical_noise(fdp.Logistic(2.0), log_concave=True)
    law = stats.logistic(scale=2.0)
    np.testing.assert_allclose(logistic.sf(x), law.sf(x), rtol=1e-13)
    np.testing.assert_allclose(
        logistic.pdf(x), stats.logistic.pdf(x, scale=2.0), rtol=1e-13
    )
    tails = np.asarray([1e-300, 1e-9, 0.2, 0.7])
    np.testing.assert_allclose(logistic.isf(tails), law.isf(tails), rtol=1e-13)
    np.testing.assert_allclose(logistic.variance(), law.var(), rtol=1e-14)
    t = np.asarray([0.0, 1e-5, 0.3, 2.0])
    characteristic = np.where(
        t > 0, 2 * np.pi * t / np.sinh(2 * np.pi * t + (t == 0)), 1
    )
    found = logistic.characteristic_function(t)
    np.testing.assert_allclose(found, characteristic, rtol=1e-10)
    for noise in (logistic, fdp.canonical_noise(fdp.Logistic(2.0))):
        found = rooms.verify_canonical(noise.cdf, noise.tradeoff, tolerance=1e-8)
        assert found.passed
    both = fdp.compose(fdp.Gaussian(2.0).repeat(4), fdp.Gaussian(1.0))
    composed = fdp.canonical_noise(both, log_concave=True)
    np.testing.assert_allclose(composed.variance(), 0.5, rtol=1e-15)  # mu^2 = 4/4 + 1
    for refused in (TULAP, POLYGON, tradeoff.ApproxDP(epsilon=1.0, delta=0.1)):
        with pytest.raises(ValueError, match="log_concave must be False for"):
            fdp.canonical_noise(refused, log_concave=True)


FEW = [
    *("gaussian", "tulap bounded", "table"),
    *(pytest.param(x, marks=pytest.mark.slow) for x in ("normal", "polygon", "run")),
]


@pytest.mark.parametrize("name", FEW)
def test_definition(name):
    noise = _noise(name)
    found = rooms.verify_canonical(
        noise.cdf, noise.tradeoff, cells_per_unit=8, num_shifts=8, reach=14
    )
    assert found.passed, found


def test_verifier_refutes():
    normal = lambda x: np.asarray([float(mp.ncdf(v)) for v in x])
    check = functools.partial(
        rooms.verify_canonical, cells_per_unit=4, num_shifts=4, reach=8
    )
    assert check(normal, tradeoff.Gaussian(1.0)).passed
    weak = check(normal, tradeoff.Gaussian(0.9))
    assert weak.private > 0.01
    assert weak.recursion > 0.01
    strong = check(normal, tradeoff.Gaussian(1.1))
    assert strong.private < 1e-9 < 0.01 < strong.exact
    # Uniform noise is (0, 1/4)-DP but no canonical noise of something smaller.
    flat = lambda x: np.clip(0.5 + x / 4, 0, 1)
    assert check(flat, tradeoff.ApproxDP(epsilon=0.0, delta=0.25)).passed
    assert check(flat, tradeoff.ApproxDP(epsilon=0.0, delta=0.2)).private > 0.04
    shifted = check(lambda x: normal(x - 0.1), tradeoff.Gaussian(1.0))
    assert shifted.symmetric > 0.01
    with pytest.raises(ValueError, match="multiple of num_shifts"):
        check(normal, tradeoff.Gaussian(1.0), num_shifts=3)


TAILS = np.asarray([0.5, 0.31, 1e-3, 1e-12, 1e-50, 1e-150, 1e-300])


@pytest.mark.parametrize("name", FEW)
def test_round_trip_far_into_the_tail(name):
    noise = _noise(name)
    x = np.asarray(noise.isf(TAILS))
    assert np.all(np.diff(x) >= 0)
    end = float(noise.support[1])
    back = np.asarray(noise.log_sf(x))
    inner = x < end * (1 - 1e-9) if np.isfinite(end) else x < np.inf
    # A float x carries S to about (x g(x) / S(x)) units; the tail exponent is that.
    room = 1e-13 * np.maximum(1, -np.log(TAILS))
    assert np.all(np.abs(back - np.log(TAILS))[inner] <= room[inner])
    again = np.asarray(noise.isf(np.exp(back)))
    np.testing.assert_allclose(again[inner], x[inner], rtol=1e-13, atol=1e-15)
    np.testing.assert_array_equal(noise.quantile(TAILS), -noise.isf(TAILS))


@pytest.mark.parametrize(
    ("closed", "point"),
    [
        pytest.param(tradeoff.Gaussian(1.3), None, marks=pytest.mark.slow),
        (tradeoff.ApproxDP(epsilon=0.7, delta=0.03), None),
        pytest.param(
            tradeoff.ApproxDP(epsilon=1.0, delta=0.05),
            ([1.0], [0.05]),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["gaussian", "tulap", "table"],
)
def test_closed_forms_are_the_recursion(closed, point):
    one = fdp.canonical_noise(closed)
    if point is None:
        law = CurveLaw(closed)
    else:
        law = fdp.canonical_noise(tradeoff.PrivacyProfile.from_points(*point)).law
    other = eqx.tree_at(lambda n: n.law, one, law)
    x = np.asarray([0.0, 0.21, 0.5, 0.77, 1.3, 1.5, 2.45, 2.7, -0.9])
    np.testing.assert_allclose(other.sf(x), one.sf(x), rtol=1e-12)
    np.testing.assert_allclose(other.log_pdf(x), one.log_pdf(x), rtol=1e-11, atol=1e-12)
    tails = np.asarray([0.6, 0.2, 1e-3, 1e-40])
    np.testing.assert_allclose(other.isf(tails), one.isf(tails), rtol=1e-11)
    np.testing.assert_allclose(other.support[1], one.support[1], rtol=1e-12)


@pytest.mark.parametrize("f", [tradeoff.Laplace(60.0), tradeoff.Gaussian(20.0)])
def test_densities_where_outcomes_are_1e23_times_as_rare_as_others(f):
    """Of two sides of a kink that of the smaller probability tells where it is."""
    noise = fdp.canonical_noise(f)
    other = eqx.tree_at(lambda n: n.law, noise, CurveLaw(f))
    x = np.asarray([0.0, 0.21, 0.5, 0.77, 1.0, 1.5, -0.5])
    np.testing.assert_allclose(
        other.log_pdf(x), noise.log_pdf(x), rtol=1e-11, atol=1e-11
    )


def test_edges():
    noise, bounded = _noise("tulap"), _noise("uniform")
    np.testing.assert_array_equal(noise.cdf(np.asarray([-np.inf, np.inf])), [0, 1])
    np.testing.assert_array_equal(noise.isf(np.asarray([0.0, 1.0])), [np.inf, -np.inf])
    np.testing.assert_allclose(bounded.quantile(np.asarray([0.0, 1.0])), [-5, 5])
    np.testing.assert_array_equal(bounded.pdf(np.asarray([-5.01, 5.01])), 0)
    np.testing.assert_array_equal(bounded.log_sf(5.01), -np.inf)
    all_ = fdp.canonical_noise(tradeoff.BlatantNonPrivacy())
    np.testing.assert_allclose(all_.support[1], 0.5)
    np.testing.assert_allclose(all_.variance(), 1 / 12)
    tiny = fdp.canonical_noise(tradeoff.ApproxDP(epsilon=1e-9, delta=0.1))
    np.testing.assert_allclose(tiny.sf(1.7), bounded.sf(1.7), rtol=1e-8)
    np.testing.assert_allclose(tiny.support[1], 5.0, rtol=1e-7)
    scaled = fdp.canonical_noise(TULAP, sensitivity=4.0)
    np.testing.assert_allclose(scaled.sf(8.8), noise.sf(2.2))
    np.testing.assert_allclose(scaled.variance(), 16 * noise.variance())
    np.testing.assert_allclose(scaled.pdf(1.0), noise.pdf(0.25) / 4)


def test_extreme_parameters():
    # c underflows: S(1/2) = c is known by its logarithm only.
    steep = fdp.canonical_noise(tradeoff.Gaussian(80.0))
    truth = float(mp.log(mp.ncdf(-40)))
    np.testing.assert_allclose(steep.log_sf(0.5), truth, rtol=1e-6)
    steep = fdp.canonical_noise(tradeoff.Laplace(1500.0))
    np.testing.assert_allclose(steep.log_sf(0.5), np.log(0.5) - 750, rtol=1e-14)
    # A geometric law with almost no decrease from cell to cell.
    flat = fdp.canonical_noise(tradeoff.ApproxDP(epsilon=1e-15, delta=0.0))
    tails = np.asarray([0.1, 1e-3, 1e-300])
    np.testing.assert_allclose(flat.isf(tails), np.log(0.5 / tails) / 1e-15, rtol=1e-14)
    assert fdp.canonical_noise(TULAP).sample(jax.random.key(0), 3).shape == (3,)


@pytest.mark.parametrize("f", [TULAP, tradeoff.Gaussian(1.0), tradeoff.Laplace(1.0)])
def test_slope_of_the_quantile_at_the_median(f):
    noise = fdp.canonical_noise(f)
    slope = jax.grad(noise.isf)(0.5)
    np.testing.assert_allclose(slope, -1 / noise.pdf(0.0), rtol=1e-12)


def test_derivative_of_a_bounded_support():
    def by_table(epsilon, delta):
        c = (1 - delta) / (1 + jnp.exp(epsilon))
        zero, one = jnp.zeros(()), jnp.ones(())
        f = tradeoff.PiecewiseLinear(
            jnp.stack([zero, c, 1 - delta, one]), jnp.stack([1 - delta, c, zero, zero])
        )
        return fdp.canonical_noise(f).support[1]

    def closed(epsilon, delta):
        f = tradeoff.ApproxDP(epsilon=epsilon, delta=delta)
        return fdp.canonical_noise(f).support[1]

    for point in ((1.0, 0.05), (0.3, 0.6)):  # S(end - 1) below and above 1/2
        np.testing.assert_allclose(by_table(*point), closed(*point), rtol=1e-14)
        found = jax.grad(by_table, (0, 1))(*point)
        np.testing.assert_allclose(found, jax.grad(closed, (0, 1))(*point), rtol=1e-10)


def test_refusals():
    for trivial in (
        *(tradeoff.Identity(), tradeoff.Gaussian(0.0), fdp.PerfectPrivacy()),
        *(tradeoff.ApproxDP(epsilon=0.0, delta=0.0), [(0.0, 0.0)]),
    ):
        with pytest.raises(ValueError, match="nontrivial"):
            fdp.canonical_noise(trivial)
    crooked = [0, 0.2, 1 - 1e-9, 1], [1, 0.2, 1e-10, 0]  # by 6e-10 in delta
    with pytest.raises(ValueError, match=r"symmetrize it first.*differ by \d"):
        fdp.canonical_noise(tradeoff.PiecewiseLinear(*crooked))
    with pytest.raises(ValueError, match="sensitivity must be a finite positive"):
        fdp.canonical_noise(TULAP, sensitivity=np.inf)
    with pytest.raises(TypeError, match="list of"):
        fdp.canonical_noise("gaussian")
    with pytest.raises(ValueError, match="tail must be in"):
        _noise("tulap").isf(1.1)


@pytest.mark.slow
def test_refusal_of_what_is_asymmetric_by_its_nature():
    with pytest.raises(ValueError, match="symmetrize it first"):
        fdp.canonical_noise(tradeoff.Subsampled(tradeoff.Gaussian(1.0), 0.3))


@pytest.mark.slow
def test_sides_of_a_bracket():
    safe, other = _noise("run"), fdp.canonical_noise(RUN, bound=Bound.OPTIMISTIC)
    assert float(safe.support[1]) < np.inf  # delta(inf) of a bound > 0
    epsilon = np.asarray([-0.7, 0.0, 0.4, 3.0])
    certified = RUN.bounds(epsilon=epsilon)
    # What is said of the release is no better than what was certified of the run.
    said = safe.tradeoff.delta(epsilon=epsilon)
    assert np.all(said >= certified.upper)
    assert np.all(said - certified.upper < 1e-5)
    alpha = np.asarray([1e-6, 0.01, 0.2, 0.5, 0.9])
    lost = np.asarray(RUN.beta(alpha=alpha) - safe.tradeoff.beta(alpha=alpha))
    assert np.all((lost > -1e-10) & (lost < 5e-7)), lost
    # With the other side the release is at least as private as the run itself.
    real = other.tradeoff.delta(epsilon=epsilon, bound=Bound.OPTIMISTIC)
    assert np.all(real <= certified.lower)
    assert safe.isf(1e-6) < 1.05 * other.isf(1e-6)
    with pytest.raises(ValueError, match="bound must be"):
        fdp.canonical_noise(RUN, bound=Bound.ESTIMATE)


# ------------------------------------------------------------------- derivatives


def _mp_tulap_log_sf(epsilon, delta, x):
    c = (1 - delta) / (1 + mp.e**epsilon)
    m = mp.floor(x + mp.mpf(1) / 2)
    s = mp.mpf(1) / 2 - (1 - 2 * c) * (x - m)
    for _ in range(int(m)):
        s = mp.e**-epsilon * (s - delta)
    return mp.log(s)


def _mp_gaussian_log_sf(mu, x):
    c, m = mp.ncdf(-mu / 2), mp.floor(x + mp.mpf(1) / 2)
    s = mp.mpf(1) / 2 - (1 - 2 * c) * (x - m)
    z = mp.sqrt(2) * mp.erfinv(2 * s - 1)
    return mp.log(mp.ncdf(z - m * mu))


def _mp_laplace_log_sf(mu, x):
    c, m = mp.e ** (-mu / 2) / 2, mp.floor(x + mp.mpf(1) / 2)
    s = mp.mpf(1) / 2 - (1 - 2 * c) * (x - m)
    for _ in range(int(m)):
        s = mp.e**-mu * s if s <= 0.5 else mp.e**-mu / (4 * (1 - s))
    return mp.log(s)


CASES = {
    "gaussian": (tradeoff.Gaussian, _mp_gaussian_log_sf, (1.3,)),
    "laplace": (tradeoff.Laplace, _mp_laplace_log_sf, (0.8,)),
    "tulap": (
        lambda e, d: tradeoff.ApproxDP(epsilon=e, delta=d),
        _mp_tulap_log_sf,
        (0.7, 0.01),
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param("gaussian", marks=pytest.mark.slow), "laplace", "tulap"]
)
def test_gradients_against_mpmath(name):
    make, truth, numbers = CASES[name]
    point = (*numbers, 2.3)
    log_sf = lambda *args: fdp.canonical_noise(make(*args[:-1])).log_sf(args[-1])
    every = tuple(range(len(point)))
    found = jax.grad(log_sf, argnums=every)(*point)
    exact = [
        float(
            mp.diff(truth, tuple(map(mp.mpf, point)), tuple(int(i == j) for i in every))
        )
        for j in every
    ]
    np.testing.assert_allclose(found, exact, rtol=1e-10)
    second = jax.hessian(log_sf, argnums=0)(*point)
    wanted = mp.diff(truth, tuple(map(mp.mpf, point)), (2, *(0 for _ in every[1:])))
    np.testing.assert_allclose(second, float(wanted), rtol=1e-8)
    # The quantile moves so that S stays.
    isf = lambda *args: fdp.canonical_noise(make(*args[:-1])).isf(args[-1])
    tail = np.exp(float(truth(*map(mp.mpf, point))))
    moves = jax.grad(isf, argnums=every)(*numbers, tail)
    np.testing.assert_allclose(
        moves[:-1], -np.asarray(exact[:-1]) / exact[-1], rtol=1e-9
    )
    np.testing.assert_allclose(moves[-1], 1 / (tail * exact[-1]), rtol=1e-9)


@pytest.mark.slow
def test_gradients_of_the_recursion():

    # f_{eps,delta} as a table: d/d epsilon through the vertices.
    def by_table(epsilon, x):
        c = 1 / (1 + jnp.exp(epsilon))
        zero, one = jnp.zeros(()), jnp.ones(())
        f = tradeoff.PiecewiseLinear(
            jnp.stack([zero, c, one]), jnp.stack([one, c, zero])
        )
        return fdp.canonical_noise(f).log_sf(x)

    point = (0.7, 3.3)
    closed = lambda e, x: fdp.canonical_noise(
        tradeoff.ApproxDP(epsilon=e, delta=0.0)
    ).log_sf(x)
    np.testing.assert_allclose(by_table(*point), closed(*point), rtol=1e-13)
    np.testing.assert_allclose(
        jax.grad(by_table, argnums=(0, 1))(*point),
        jax.grad(closed, argnums=(0, 1))(*point),
        rtol=1e-11,
    )


# Slow: test_views.py has the gradient of a sampled curve, and tables are above.
@pytest.mark.slow
def test_gradients_through_a_sampled_curve_are_the_curves():
    tail = 1e-6
    # The polygon's own derivative misses by up to 5 %: that of one tangent's slope.
    exact = lambda mu: fdp.canonical_noise(tradeoff.Gaussian(mu)).isf(tail)

    def sampled(mu):
        f = tradeoff.TradeOff.of(tradeoff.Gaussian(mu))
        return fdp.canonical_noise(f).isf(tail)

    np.testing.assert_allclose(sampled(1.0), exact(1.0), rtol=1e-3)
    found, truth = jax.grad(sampled)(1.0), jax.grad(exact)(1.0)
    np.testing.assert_allclose(found, truth, rtol=4e-3)


def test_float32_programs_and_batches():
    with jax.enable_x64(False):
        value = jax.jit(lambda e: fdp.canonical_noise([(1.0, 0.05)]).cdf(e))(0.75)
        assert value.dtype == jnp.float32
        np.testing.assert_allclose(value, 0.7894799505856778, rtol=1e-6)
        slope = jax.grad(
            lambda e: fdp.canonical_noise(
                tradeoff.ApproxDP(epsilon=e, delta=0.0)
            ).log_sf(2.2)
        )(jnp.float32(1.0))
        assert np.isfinite(slope)
    over = jax.vmap(lambda mu: fdp.canonical_noise(tradeoff.Gaussian(mu)).sf(1.25))
    np.testing.assert_allclose(over(jnp.asarray([0.5, 1.0]))[1], 0.10706052594756705)


# ------------------------------------------------------------------------ samples


@pytest.mark.parametrize("name", ["tulap", "tulap bounded", "gaussian", "table"])
def test_samples_follow_the_law(name):
    noise = _noise(name)
    draws = np.sort(np.asarray(noise.sample(jax.random.key(7), (20_000,))))
    gap = np.abs(noise.cdf(draws) - (np.arange(20_000) + 0.5) / 20_000)
    # Kolmogorov and Smirnov at level 1e-6 (Massart).
    assert np.max(gap) < np.sqrt(np.log(2 / 1e-6) / (2 * 20_000)) + 1 / 20_000
    assert np.unique(draws).size == draws.size


def test_sample_is_differentiable_in_the_parameters():
    key = jax.random.key(3)

    def draw(epsilon):
        f = tradeoff.ApproxDP(epsilon=epsilon, delta=0.0)
        return fdp.canonical_noise(f).sample(key, (4,))

    slope = jax.jacobian(draw)(1.0)
    difference = (draw(1.0 + 1e-6) - draw(1.0 - 1e-6)) / 2e-6
    np.testing.assert_allclose(slope, difference, rtol=1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.8, 0.0), (0.8, 0.03), (0.0, 0.07)])
def test_tulap_moments_and_transform(epsilon, delta):
    noise = fdp.canonical_noise(tradeoff.ApproxDP(epsilon=epsilon, delta=delta))
    end = min(float(noise.support[1]), 60.0)
    edges = np.unique(np.append(np.arange(0.5, end, 1.0), [0.0, end]))
    density = lambda x: np.asarray(noise.pdf(x))
    nodes, weights = np.polynomial.legendre.leggauss(12)
    half = 0.5 * np.diff(edges)[:, None]
    x = edges[:-1, None] + half * (1 + nodes)
    mass = 2 * half * weights * density(x)
    np.testing.assert_allclose(mass.sum(), 1, rtol=1e-13)
    np.testing.assert_allclose(noise.variance(), (mass * x**2).sum(), rtol=1e-12)
    for t in (0.0, 0.3, 2.9, 11.0):
        np.testing.assert_allclose(
            noise.characteristic_function(t), (mass * np.cos(t * x)).sum(), atol=1e-13
        )


# ------------------------------------------------- counts, vectors, other noise


def test_rounded_noise():
    k = np.arange(-40, 41)
    masses = []
    for f in (tradeoff.Gaussian(1.0), TULAP):
        rounded = rooms.rounded_noise(f)
        mass = np.asarray(rounded.pmf(k))
        masses.append(mass)
        np.testing.assert_allclose(mass.sum(), 1, rtol=1e-13)
        np.testing.assert_allclose(mass, mass[::-1], rtol=1e-13)
        below = rounded.cdf(k[0] - 1)
        np.testing.assert_allclose(below + np.cumsum(mass), rounded.cdf(k), rtol=1e-12)
    normal = masses[0]
    exact = [float(mp.ncdf(0.5 - v) - mp.ncdf(-0.5 - v)) for v in (1, 9, 9)]
    np.testing.assert_allclose(normal[[41, 49, 31]], exact, rtol=1e-12)
    # Unique: both canonical noises of G_1 round to the same law.
    other = fdp.canonical_noise(tradeoff.Gaussian(1.0), log_concave=True)
    np.testing.assert_allclose(rooms.rounded_noise(other).pmf(k), normal, rtol=1e-11)
    f = rooms.rounded_noise(tradeoff.Gaussian(1.0)).tradeoff_function(12)
    knots = np.asarray([float(mp.ncdf(-v - 0.5)) for v in range(-3, 4)])
    alpha = np.append(knots, 0.5 * (knots[1:] + knots[:-1]))
    found, truth = f.beta(alpha=alpha), tradeoff.Gaussian(1.0).beta(alpha=alpha)
    np.testing.assert_allclose(found[:7], truth[:7], rtol=1e-9)
    assert np.all(found[7:] > truth[7:])
    made = fdp.canonical_noise(tradeoff.Gaussian(1.0), sensitivity=2.0)
    assert rooms.rounded_noise(made, sensitivity=2).noise.sensitivity == 2
    with pytest.raises(ValueError, match="sensitivity must be that of the noise"):
        rooms.rounded_noise(made, sensitivity=5)
    with pytest.raises(ValueError, match="sensitivity must be a whole number"):
        rooms.rounded_noise(fdp.canonical_noise(TULAP, sensitivity=0.5))
    draws = rooms.rounded_noise(TULAP).sample(jax.random.key(0), (1000,))
    np.testing.assert_array_equal(draws, np.round(draws))
    with pytest.raises(ValueError, match="value must be a whole number"):
        rooms.rounded_noise(TULAP).pmf(0.5)
    with pytest.raises(ValueError, match="sensitivity must be"):
        rooms.rounded_noise(TULAP, sensitivity=1.5)


@pytest.mark.parametrize(
    ("f", "move", "size"),
    [
        (tradeoff.Gaussian(1.0), 2, 12),
        pytest.param(
            *(tradeoff.ApproxDP(epsilon=0.5, delta=0.01), 3, 30), marks=pytest.mark.slow
        ),
    ],
)
def test_guarantee_of_rounded_noise_by_its_probabilities(f, move, size):
    noise = rooms.rounded_noise(f, sensitivity=move)
    k = np.arange(-80, 81)
    p, q = np.asarray(noise.pmf(k)), np.asarray(noise.pmf(k - move))
    epsilon = np.asarray([0.0, 0.5, 1.0, 4.0])
    truth = np.sum(np.maximum(q - np.exp(epsilon)[:, None] * p, 0), axis=1)
    said = noise.tradeoff_function(size).delta(epsilon=epsilon)
    assert np.all(said >= truth)
    np.testing.assert_allclose(said[:2], truth[:2], rtol=1e-3)


def test_vector_noise():
    noise = rooms.vector_noise(tradeoff.Laplace(0.5), 3, norm="l1")
    assert noise.sample(jax.random.key(0), (5,)).shape == (5, 3)
    assert isinstance(noise.tradeoff, tradeoff.Laplace)
    rooms.vector_noise(tradeoff.Gaussian(0.5), 3, norm="l2")
    with pytest.raises(ValueError, match="'l1' for Laplace"):
        rooms.vector_noise(tradeoff.Laplace(0.5), 3, norm="l2")
    with pytest.raises(ValueError, match="log_concave must be False"):
        rooms.vector_noise(TULAP, 3, norm="l1")
    with pytest.raises(ValueError, match="norm must be one of"):
        rooms.vector_noise(TULAP, 3, norm="max")
    # l1 moves of two Laplace coordinates: never worse than along an axis.
    worst = tradeoff.Laplace(1.0).delta(epsilon=0.3)
    grid = np.linspace(-40, 40, 1601)
    masses = lambda s: np.diff(np.concatenate([[0], _laplace_cdf(grid - s), [1]]))
    p = np.outer(masses(0.0), masses(0.0))
    for s in (0.25, 0.5):
        q = np.outer(masses(s), masses(1 - s))
        assert np.maximum(q - np.exp(0.3) * p, 0).sum() <= worst + 1e-9


@pytest.mark.slow
def test_maximum_norm():
    corner = rooms.maximum_norm_guarantee(tradeoff.Gaussian(0.5), 4)
    np.testing.assert_allclose(
        corner.beta(alpha=0.1), tradeoff.Gaussian(1.0).beta(alpha=0.1), atol=2e-4
    )


def _laplace_cdf(x):
    return np.where(x < 0, 0.5 * np.exp(-np.abs(x)), 1 - 0.5 * np.exp(-np.abs(x)))


def test_post_processing_makes_other_noise():
    noise = fdp.canonical_noise(tradeoff.ApproxDP(epsilon=1.0, delta=0.0))
    # Laplace noise of scale 1 is 1-DP, so Tulap noise can be turned into it.
    edges = np.linspace(-6, 7, 53)
    found = rooms.post_process(noise, _laplace_cdf, edges, tolerance=1e-9)
    assert found.miss < 1e-9
    assert np.all(found.kernel >= 0)
    np.testing.assert_allclose(found.kernel.sum(axis=1), 1)
    for shift in (0.0, 1.0):
        source = np.diff(
            np.concatenate([[0], noise.cdf(found.input_edges - shift), [1]])
        )
        target = np.diff(np.concatenate([[0], _laplace_cdf(edges - shift), [1]]))
        np.testing.assert_allclose(source @ found.kernel, target, atol=1e-9)
    drawn = found.sample(jax.random.key(1), noise.sample(jax.random.key(2), (4000,)))
    share = np.mean(np.asarray(drawn) <= 25)  # below edges[25]
    assert abs(share - _laplace_cdf(edges[25])) < 5 * np.sqrt(0.25 / 4000)
    with pytest.raises(ValueError, match="other must be f-DP"):
        rooms.post_process(noise, lambda x: _laplace_cdf(1.5 * x), edges)


def test_maximum_norm_of_gaussian_noise_is_gaussian():
    found = rooms.maximum_norm_guarantee(tradeoff.Gaussian(0.5), 4)
    truth = float(tradeoff.Gaussian(1.0).delta(epsilon=0.5))
    assert float(found.delta(epsilon=0.5)) == pytest.approx(truth, rel=1e-12)


def _second_moment_and_transform(h, c, t):
    """4 int y S(y) dy and 1 - 2 t int sin(t y) S(y) dy, by another quadrature."""

    def tail(y):
        m = math.floor(y + 0.5)
        s = c + (1 - 2 * c) * (0.5 - (y - m))
        for _ in range(m):
            s = h(s)
        return s

    cuts = np.concatenate([[0.0], np.arange(0.25, 30, 0.25)])

    def over(weight):
        x, w = np.polynomial.legendre.leggauss(40)
        half = 0.5 * np.diff(cuts)[:, None]
        nodes = (cuts[:-1, None] + half * (x + 1)).ravel()
        return np.sum((half * w).ravel() * weight(nodes) * [tail(y) for y in nodes])

    return 4 * over(lambda y: y), 1 - 2 * t * over(lambda y: np.sin(t * y))


@pytest.mark.slow  # test_moments_of_canonical_noise_with_kinks has the same integrals
def test_moments_of_gaussian_canonical_noise():
    noise = fdp.canonical_noise(tradeoff.Gaussian(1.0), sensitivity=2.0)
    normal = stats.norm
    h = lambda s: normal.sf(normal.isf(s) + 1)
    variance, transform = _second_moment_and_transform(h, normal.cdf(-0.5), 3.0)
    assert float(noise.variance()) == pytest.approx(4 * variance, rel=1e-10)
    found = float(noise.characteristic_function(1.5))
    assert found == pytest.approx(transform, rel=1e-9)
    with pytest.raises(ValueError, match="frequency must be at most 15 in size"):
        noise.characteristic_function(16.0)


def test_moments_of_canonical_noise_with_kinks():
    """Of f_{eps,delta} by its vertices, which has a closed form, and of L_mu."""
    kink = 1 / (1 + np.e)
    by_points = tradeoff.TradeOff.from_error_rates([0.0, kink, 1.0], [1.0, kink, 0.0])
    found, closed = fdp.canonical_noise(by_points), fdp.canonical_noise(TULAP)
    np.testing.assert_allclose(found.variance(), closed.variance(), rtol=1e-12)
    t = np.asarray([0.0, 0.5, 7.0, 29.0])
    np.testing.assert_allclose(
        found.characteristic_function(t), closed.characteristic_function(t), atol=1e-11
    )
    pairs = tradeoff.PrivacyProfile.from_points([1.0, 2.0], [1e-2, 1e-3])
    noise = fdp.canonical_noise(pairs)
    y = np.linspace(0, 40, 400_001)
    truth = 4 * integrate.trapezoid(y * np.asarray(noise.sf(y)), y)
    assert float(noise.variance()) == pytest.approx(truth, rel=1e-8)
    # Double exponential tails: h is s / e below e^-1 / 2.
    laplace = lambda s: (
        s / np.e
        if s < 0.5
        else (
            np.exp(-1) / (4 * (1 - s)) if s < 1 - np.exp(-1) / 2 else 1 - np.e * (1 - s)
        )
    )
    variance, _ = _second_moment_and_transform(laplace, np.exp(-0.5) / 2, 1.0)
    found = fdp.canonical_noise(tradeoff.Laplace(1.0)).variance()
    assert float(found) == pytest.approx(variance, rel=1e-6)
