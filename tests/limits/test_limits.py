"""Inferential limits: reference numbers, enumeration, mechanisms that attain them."""

# Tests give wrong types on purpose, and numbers of any kind.
# pyright: reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

import itertools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from reference import topic_checks
from scipy import optimize

import fdp_jax as fdp
from fdp_jax import limits, plot, tradeoff

RTOL = 1e-12
FAR = {"connected": True}
MIDDLE = {"bound": fdp.Bound.ESTIMATE}


def _pure(epsilon):
    return tradeoff.ApproxDP(epsilon=epsilon, delta=0.0)


def _each(prefix):
    entries = topic_checks("05", prefix)
    assert entries
    for entry in entries:
        yield entry["params"], entry["value"], entry["id"].removeprefix("05." + prefix)


# --------------------------------------------------------------- reference numbers


def test_sums_and_local_bits():
    for prefix, side in (("sum.lower", 0), ("sum.upper", 1)):
        for p, value, _ in _each(prefix):
            found = limits.laplace_sum_bounds(
                p["t"], epsilon=p["eps"], num_records=p["n"]
            )
            np.testing.assert_allclose(np.exp(found[side]), value, rtol=RTOL)
    for prefix, side in (("rr.lower", 0), ("rr.upper", 1)):
        for p, value, _ in _each(prefix):
            found = limits.local_bounds(epsilon=p["eps"], num_records=p["n"])
            np.testing.assert_allclose(np.exp(found[side]), value, rtol=RTOL)


def test_power():
    for p, value, _ in _each("power.e"):
        found = limits.pure_power_bound(p["alpha"], epsilon=p["eps"], distance=p["d"])
        np.testing.assert_allclose(found, value, rtol=RTOL)
    for p, value, _ in _each("power_tight."):
        args = p["alpha"], _pure(p["eps"])
        ask = lambda k, args=args, **options: limits.power_bound(
            *args, distance=k, **FAR, **options
        )
        # These are of f_{k eps,0}, which is what a traced distance can have.
        traced = jitted(lambda k, ask=ask: ask(k, **MIDDLE))(float(p["d"]))
        np.testing.assert_allclose(traced, value, rtol=RTOL)
        found = ask(p["d"], **MIDDLE)
        assert found <= value * (1 + RTOL)
        # The default is a certified bound of this.
        assert ask(p["d"]) > found
    for p, value, _ in _each("power_gdp."):
        f = tradeoff.Gaussian(p["mu"])
        found = limits.power_bound(p["alpha"], f, distance=p["k"], **FAR, **MIDDLE)
        np.testing.assert_allclose(found, value, rtol=RTOL)


def test_the_printed_bound_at_its_ends():
    bound = lambda alpha: limits.pure_power_bound(alpha, epsilon=1000.0, distance=1)
    np.testing.assert_array_equal(bound(np.asarray([0.0, 0.1])), [0.0, 1.0])
    assert jax.grad(bound)(0.1) == 0
    small = limits.pure_power_bound(1e-300, epsilon=690.0, distance=1)
    np.testing.assert_allclose(small, np.exp(690 - 300 * np.log(10)), rtol=1e-12)
    with pytest.raises(ValueError, match="at most 65 entries"):
        limits.coupled_power_bound(0.05, tradeoff.Gaussian(1.0), np.ones(70) / 70)
    with pytest.raises(ValueError, match="above -inf at some point"):
        limits.MeasureInterval([-np.inf], [-np.inf]).mean_bounds([1.0])


def _tulap_power(alpha, epsilon, distance):
    """Power against Tulap noise: rounded geometric noise plus a uniform one."""
    b = mp.exp(-mp.mpf(epsilon))

    def cdf(x):
        whole = mp.nint(x)
        geometric = lambda n: b**-n / (1 + b) if n <= 0 else 1 - b ** (n + 1) / (1 + b)
        below, at = geometric(whole - 1), (1 - b) / (1 + b) * b ** abs(whole)
        return below + at * (x - whole + mp.mpf("0.5"))

    low, high = mp.mpf(-400), mp.mpf(400)
    for _ in range(150):
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle) < alpha else (low, middle)
    return cdf(low + distance)


def test_pure_limits_are_those_of_tulap_noise():
    for alpha, epsilon, k in [(0.05, 1.0, 3), (0.3, 0.7, 2), (0.11, 0.2, 3)]:
        truth = float(_tulap_power(alpha, epsilon, k))
        args = {"distance": k, **FAR}
        found = limits.power_bound(alpha, _pure(epsilon), **args)
        np.testing.assert_allclose(found, truth, rtol=1e-11)
        assert found >= truth
        # A guarantee that promises less has no smaller bound.
        near = tradeoff.ApproxDP(epsilon=epsilon, delta=1e-300)
        np.testing.assert_allclose(
            limits.power_bound(alpha, near, **args), found, rtol=1e-11
        )
    np.testing.assert_allclose(
        limits.power_bound(0.05, _pure(1.0), distance=3, **FAR), 0.7680346502515
    )
    # R(1/2) is where the test does alpha as wrong as beta.
    least = optimize.minimize_scalar(
        lambda a: 0.5 * (a + 1 - float(_tulap_power(a, 1.0, 3))),
        bounds=(0.01, 0.3),
        options={"xatol": 1e-9},
    )
    found = limits.adversary_error(0.5, _pure(1.0), distance=3)
    np.testing.assert_allclose(found, least.fun, rtol=1e-7)
    # c e^-1 for c = 1 / (1 + e), the kink of the curve where its slope is 1.
    np.testing.assert_allclose(found, np.exp(-1) / (1 + np.e), rtol=1e-11)
    # 1 - p loses a digit; a mechanism is what its curve is.
    low, high = limits.event_bounds(0.05, fdp.PureDP(1.0), distance=3, **FAR)
    np.testing.assert_allclose(high, 0.7680346502515, rtol=1e-9)
    np.testing.assert_allclose(low, 1 - float(_tulap_power(0.95, 1.0, 3)), rtol=1e-9)


def _mixed_power(alpha, epsilon, probs):
    """1 - f_mix by the vertices of 1 - f, k times composed."""
    epsilon = mp.mpf(epsilon)
    kink = 1 / (1 + mp.exp(epsilon))

    def delta(k, slope):
        if k == 0:
            return max(mp.mpf(0), 1 - slope)
        corners = [kink * mp.exp(-i * epsilon) for i in range(k)]
        gains = [_tulap_power(a, epsilon, k) - slope * a for a in corners]
        return max([mp.mpf(0), 1 - slope, *gains])

    most = len(probs) - 1
    slopes = [mp.exp(j * epsilon) for j in range(-most, most + 1)]
    mean = lambda s: mp.fsum(p * delta(k, s) for k, p in enumerate(probs))
    return min(mean(s) + s * mp.mpf(alpha) for s in slopes)


def test_coupling():
    for p, value, _ in _each("power_coupled."):
        probs = limits.bit_distances(p["n"], *p["theta"])
        args = p["alpha"], _pure(p["eps"]), probs
        found = limits.coupled_power_bound(*args, **MIDDLE)
        truth = _mixed_power(p["alpha"], p["eps"], np.asarray(probs))
        np.testing.assert_allclose(found, float(truth), rtol=RTOL)
        # The value there is that of f_{k eps,0}, which promises less.
        assert found < value
        assert found < limits.coupled_power_bound(*args) < found * (1 + 1e-11)
        worst = limits.power_bound(p["alpha"], _pure(p["eps"]), distance=p["n"], **FAR)
        assert found < worst


def test_posteriors():
    for side, index in (("lower", 0), ("upper", 1)):
        for p, value, _ in _each(f"post.{side}."):
            found = limits.posterior_bounds(
                p["prior"], epsilon=p["eps"], distance=p["k"], **FAR
            )
            np.testing.assert_allclose(found[index], value, rtol=RTOL)
    for p, value, _ in _each("post_density."):
        theta = p["theta"]
        prior = 2 * np.log(theta) - theta - np.log(2)
        found = limits.posterior_density_bounds(prior, epsilon=1.0, distance=1, **FAR)
        np.testing.assert_allclose(np.exp(found[1]), value, rtol=RTOL)
    for p, value, _ in _each("thm6.mass"):
        found = limits.marginal_bounds(
            np.log(0.3), epsilon=p["eps"], distance=p["d"], mass=p["w"], **FAR
        )
        np.testing.assert_allclose(np.exp(found[0]), value, rtol=RTOL)


def test_measures():
    p = np.log([0.2, 0.3, 0.5])
    near = limits.MeasureInterval.around(p, epsilon=np.log(2.0))
    for side, index in (("lower", 0), ("upper", 1)):
        for _, value, _ in _each(f"iom.{side}_mean"):
            np.testing.assert_allclose(
                near.mean_bounds([0, 1, 3])[index], value, rtol=RTOL
            )
    pair = np.log([0.5, 0.3, 0.2]), np.log([0.4, 0.45, 0.15])
    for _, value, name in _each("dmult."):
        if name == "discrete":
            found = limits.d_mult(*pair)
        else:
            x = np.linspace(-5.0, 9.0, 29)
            found = limits.d_mult(-np.abs(x) / 2, -np.abs(x - 3) / 2)
        np.testing.assert_allclose(found, value, rtol=RTOL)
    for _, value, _ in _each("dratio."):
        np.testing.assert_allclose(limits.density_ratio_metric(*pair), value, rtol=RTOL)


def test_events_and_tails():
    for side, index in (("lower", 0), ("upper", 1)):
        for p, value, _ in _each(f"event.{side}."):
            f = tradeoff.Gaussian(p["mu"])
            args = p["p"], f
            found = limits.event_bounds(*args, distance=p["k"], **FAR, **MIDDLE)
            np.testing.assert_allclose(found[index], value, rtol=RTOL)
            safe = limits.event_bounds(*args, distance=p["k"], **FAR)
            assert safe[0] < found[0] < found[1] < safe[1]
    ((p, bound, _),) = _each("tail.G1.e3.bound")
    ((_, exact, _),) = _each("tail.G1.e3.exact")
    f = tradeoff.Gaussian(p["mu"])
    found = limits.odds_tail_bound(p["eps"], f, **MIDDLE)
    np.testing.assert_allclose(found, bound, rtol=RTOL)
    assert limits.odds_tail_bound(p["eps"], f) > found
    # A tail of e^-1133 is not zero, and there is a gap beside the largest number.
    assert 0 < limits.odds_tail_bound(4.5, tradeoff.Gaussian(0.094)) < 1e-300
    assert limits.odds_tail_bound(1e308, f) == 0
    # P(Y > 3) for Y ~ N(1/2, 1), which the bound must exceed.
    np.testing.assert_allclose(float(mp.ncdf(-2.5)), exact, rtol=1e-14)
    assert exact < found


@pytest.mark.slow
def test_tails_of_a_guarantee_with_known_numbers_are_those_of_its_own_answers():
    # Known to be jumps of one size alone it has a closed form, which tracing hides.
    f = fdp.LevyTriplet(0.0, jumps=[0.4], rates=[0.5])

    def bound(gap: float) -> float:
        return float(f.delta(epsilon=1.0 - gap)) / -np.expm1(-gap)

    least = optimize.minimize_scalar(bound, bounds=(0.05, 3), options={"xatol": 1e-3})
    found = limits.odds_tail_bound(1.0, f)
    assert 0.999 * least.fun < found < least.fun * (1 + 1e-6)
    with jax.enable_x64(False):
        single = limits.odds_tail_bound(1.0, f)
    assert single.dtype == jnp.float32
    assert found <= single <= found * (1 + 1e-6)


# --------------------------------------------------------------------- by hand


def test_means_against_all_vertices():
    rng = np.random.default_rng(0)
    lower = rng.uniform(0, 1, 6) * (rng.random(6) > 0.3)
    upper = lower + rng.uniform(0, 1, 6)
    g = rng.normal(size=6)
    with np.errstate(divide="ignore"):
        interval = limits.MeasureInterval(np.log(lower), np.log(upper))
    corners = np.asarray(list(itertools.product((0, 1), repeat=6)))
    masses = np.where(corners == 1, upper, lower)
    means = masses @ g / masses.sum(axis=1)
    found = interval.mean_bounds(g)
    np.testing.assert_allclose(found, [means.min(), means.max()], rtol=1e-13)
    event = g > 0
    share = masses @ event / masses.sum(axis=1)
    np.testing.assert_allclose(
        interval.event_bounds(event), [share.min(), share.max()], rtol=1e-13
    )
    slope = jax.grad(lambda v: interval.mean_bounds(v)[1])(jnp.asarray(g))
    best = masses[np.argmax(means)]
    np.testing.assert_allclose(slope, best / best.sum(), rtol=1e-12)


def test_intervals():
    p, q = np.log([0.5, 0.3, 0.2]), np.log([0.4, 0.45, 0.15])
    distance = float(limits.d_mult(p, q))
    near = limits.MeasureInterval.around(p, epsilon=distance)
    assert near.contains(q)
    assert not limits.MeasureInterval.around(p, epsilon=0.99 * distance).contains(q)
    assert near.scaled(2.0).contains(q + np.log(2.0))
    assert not near.scaled(2.0).contains(q - 0.1)
    both = near.intersected(limits.MeasureInterval.around(q, epsilon=distance))
    assert both.contains(p)
    assert both.contains(q)
    with pytest.raises(ValueError, match="log_lower must be at most"):
        limits.MeasureInterval(p, q)
    with pytest.raises(ValueError, match="below inf"):
        limits.d_mult(p, np.asarray([0.0, np.nan, 0.0]))
    none = -np.inf
    assert limits.d_mult([none, 0.0], [none, -1.0]) == 1
    assert limits.d_mult([none, 0.0], [0.0, 0.0]) == np.inf
    # The footnote: d < range <= 2 d for different probability measures.
    ratio = float(limits.density_ratio_metric(p, q))
    assert distance < ratio <= 2 * distance


def test_bounds_are_attained_by_laplace_counts():
    """Point-mass models at both ends, Laplace noise: everything is an equality."""
    epsilon, n = 0.3, 4
    density = lambda t, count: np.log(epsilon / 2) - epsilon * abs(t - count)
    low, high = limits.marginal_bounds(
        density(-2.0, 0), epsilon=epsilon, distance=n, **FAR
    )
    np.testing.assert_allclose(low, density(-2.0, n), rtol=1e-14)
    low, high = limits.marginal_bounds(
        density(7.0, 0), epsilon=epsilon, distance=n, **FAR
    )
    np.testing.assert_allclose(high, density(7.0, n), rtol=1e-14)
    # Posterior of "all ones" against "all zeros", seeing t >= n.
    odds = np.exp(density(7.0, n) - density(7.0, 0))
    found = limits.posterior_bounds(0.25, epsilon=epsilon, distance=n, **FAR)
    np.testing.assert_allclose(found[1], 0.25 * odds / (0.25 * odds + 0.75), rtol=1e-13)
    # Power: rejecting where t is large is best, and reaches the bound for small alpha.
    alpha = 0.01
    cut = -np.log(2 * alpha) / epsilon
    assert cut > n
    reached = 0.5 * np.exp(-epsilon * (cut - n))
    args = alpha, _pure(epsilon)
    bound = limits.power_bound(*args, distance=n, **FAR, **MIDDLE)
    np.testing.assert_allclose(reached, bound, rtol=1e-12)
    # Each of the steps rounds outward.
    assert reached <= limits.power_bound(*args, distance=n, **FAR) < 1.0001 * reached


def test_bounds_hold_for_a_model():
    """iid bits and geometric noise on their sum: marginals and power by enumeration."""
    n, epsilon = 5, 0.4
    counts = np.arange(n + 1)
    outputs = np.arange(-3, n + 4)
    b = np.exp(-epsilon)
    pmf = (1 - b) / (1 + b) * b ** np.abs(outputs[:, None] - counts)
    pmf[0] = np.sum(
        [(1 - b) / (1 + b) * b ** np.abs(t - counts) for t in range(-400, -2)], axis=0
    )
    pmf[-1] = 1 - pmf[:-1].sum(axis=0)
    weights = lambda theta: np.asarray(
        [
            float(mp.binomial(n, int(k))) * theta**k * (1 - theta) ** (n - k)
            for k in counts
        ]
    )
    for theta in (0.1, 0.5, 0.95):
        marginal = pmf @ weights(theta)
        for start in counts:
            reach = max(start, n - start)
            low, high = limits.marginal_bounds(
                np.log(pmf[:, start]), epsilon=epsilon, distance=reach, **FAR
            )
            assert np.all(np.log(marginal) >= low - 1e-12)
            assert np.all(np.log(marginal) <= high + 1e-12)
    zero, one = pmf @ weights(0.3), pmf @ weights(0.6)
    order = np.argsort(-one / zero)
    size, power = np.cumsum(zero[order]), np.cumsum(one[order])
    keep = size < 0.999
    sharp = limits.coupled_power_bound(
        size[keep], _pure(epsilon), limits.bit_distances(n, 0.3, 0.6)
    )
    worst = limits.power_bound(size[keep], _pure(epsilon), distance=n, **FAR)
    assert np.all(power[keep] <= sharp + 1e-12)
    assert np.all(sharp <= worst + 1e-9)
    assert np.all(
        worst <= limits.pure_power_bound(size[keep], epsilon=epsilon, distance=n) + 1e-9
    )


def test_unconnected_supports():
    """The counterexample to the printed condition: two data sets that nothing joins."""
    f = _pure(1.0)
    assert limits.power_bound(0.01, f, distance=0, connected=False) == 1
    np.testing.assert_allclose(limits.power_bound(0.01, f, distance=0, **FAR), 0.01)
    np.testing.assert_array_equal(
        limits.posterior_bounds(0.3, epsilon=1.0, distance=0, connected=False), [0, 1]
    )
    found = limits.marginal_bounds(-1.0, epsilon=1.0, distance=1, connected=False)
    np.testing.assert_array_equal(found, [-np.inf, np.inf])
    np.testing.assert_array_equal(
        limits.event_bounds(0.3, f, distance=0, connected=False), [0, 1]
    )
    with pytest.raises(ValueError, match="connected must be True or False"):
        limits.power_bound(0.1, f, distance=1, connected=1)


def test_edges():
    ask = lambda p, **k: limits.posterior_bounds(p, **{"epsilon": 1.0, **FAR, **k})
    np.testing.assert_array_equal(ask(0.0, distance=2), [0, 0])
    np.testing.assert_array_equal(ask(1.0, distance=2), [1, 1])
    np.testing.assert_allclose(ask(0.4, distance=0), [0.4, 0.4])
    np.testing.assert_allclose(ask(0.4, distance=3, epsilon=0.0), [0.4, 0.4])
    np.testing.assert_array_equal(ask(0.4, distance=np.inf, epsilon=0.0), [0, 1])
    np.testing.assert_allclose(ask(0.4, distance=1e4), [0, 1], atol=1e-300)
    f = tradeoff.ApproxDP(epsilon=0.5, delta=0.01)
    zero = limits.power_bound(0.0, f, distance=2, **FAR)
    np.testing.assert_allclose(zero, 0.01 + np.exp(0.5) * 0.01, rtol=1e-9)
    assert limits.power_bound(0.0, _pure(2.0), distance=2, **FAR) == 0
    for bad in (
        lambda: limits.power_bound(1.1, f, distance=1, **FAR),
        lambda: limits.power_bound(0.1, f, distance=1.5, **FAR),
        lambda: limits.power_bound(0.1, f, distance=-1, **FAR),
        lambda: limits.posterior_bounds(0.1, epsilon=-1.0, distance=1, **FAR),
        lambda: limits.posterior_bounds(1.2, epsilon=1.0, distance=1, **FAR),
        lambda: limits.marginal_bounds(np.nan, epsilon=1.0, distance=1, **FAR),
        lambda: limits.coupled_power_bound(0.1, f, [0.5, 0.4]),
    ):
        with pytest.raises(ValueError, match="must be"):
            bad()
    nothing = limits.coupled_power_bound(0.1, _pure(0.0), [0.2, 0.3, 0.5], **MIDDLE)
    np.testing.assert_allclose(nothing, 0.1, rtol=1e-12)
    # Gaussian mixtures have no closed form; one part is that part.
    one = limits.coupled_power_bound(0.1, tradeoff.Gaussian(0.5), [0.0, 1.0])
    np.testing.assert_allclose(one, tradeoff.Gaussian(0.5).tpr(fpr=0.1), rtol=1e-8)
    with pytest.raises(
        TypeError, match="f must be a mechanism, one direction of it or a curve"
    ):
        limits.power_bound(0.1, 1.0, distance=1, **FAR)


def test_sums_of_probabilities_may_be_rounded_up():
    prob = np.sum([0.1, 0.2, 0.7]) + 2 * np.finfo(float).eps
    assert prob > 1
    for found in (
        limits.event_bounds(prob, _pure(1.0), distance=1, **FAR)[1],
        1 - fdp.Gaussian(1.0).beta(alpha=prob),
        1 - fdp.Gaussian(1.0).beta(alpha=np.asarray([prob, 1.0])),
    ):
        np.testing.assert_allclose(found, 1, rtol=1e-15)
    with pytest.raises(ValueError, match=r"prob must be in \[0, 1\]"):
        limits.event_bounds(1 + 1e-14, _pure(1.0), distance=1, **FAR)


def test_derivatives_and_batches():
    def upper(p, epsilon, k):
        return limits.posterior_bounds(p, epsilon=epsilon, distance=k, **FAR)[1]

    slopes = jax.grad(upper, argnums=(0, 1, 2))(0.2, 0.7, 2.0)
    truth = lambda p, e, k: p / (p + (1 - p) * mp.exp(-e * k))
    point = tuple(map(mp.mpf, ("0.2", "0.7", "2")))
    wanted = [
        float(mp.diff(truth, point, tuple(int(i == j) for i in range(3))))
        for j in range(3)
    ]
    np.testing.assert_allclose(slopes, wanted, rtol=1e-11)
    priors, ks = jnp.linspace(0.1, 0.9, 3), jnp.arange(1.0, 5.0)
    grid = jax.vmap(jax.vmap(upper, (None, None, 0)), (0, None, None))(priors, 0.7, ks)
    np.testing.assert_allclose(grid[0, 1], upper(0.1, 0.7, 2.0))
    power = lambda mu: limits.power_bound(
        0.05, tradeoff.Gaussian(mu), distance=3, **FAR
    )
    z = mp.sqrt(2) * mp.erfinv(2 * mp.mpf(0.05) - 1)
    exact = 3 * mp.npdf(z + mp.mpf(1.5))
    np.testing.assert_allclose(jax.grad(power)(0.5), float(exact), rtol=1e-9)
    slope = jax.grad(lambda e: limits.odds_tail_bound(e, tradeoff.Gaussian(1.0)))(3.0)
    step = 1e-5
    bound = lambda e: limits.odds_tail_bound(e, tradeoff.Gaussian(1.0))
    np.testing.assert_allclose(
        slope, (bound(3 + step) - bound(3 - step)) / (2 * step), rtol=1e-6
    )
    with jax.enable_x64(False):
        low, _ = jitted(
            lambda p: limits.posterior_bounds(p, epsilon=1.0, distance=1, **FAR)
        )(0.1)
        np.testing.assert_allclose(low, 0.03927030055005057, rtol=1e-6)


def test_pictures():
    theta = np.linspace(0.05, 12, 40)
    prior = lambda x: x**2 * np.exp(-x) / 2
    ax = plot.posterior_band(theta, prior(theta), epsilon=1.0, distance=1)
    upper = max(
        float(np.max(p.vertices[:, 1])) for c in ax.collections for p in c.get_paths()
    )
    np.testing.assert_allclose(upper, np.e * np.max(prior(theta)), rtol=1e-9)
    ax = plot.power_envelope(tradeoff.Gaussian(0.5), distances=(1, 3))
    shown = [line.get_ydata() for line in ax.lines]
    assert len(shown) == 3  # and chance
    assert np.all(shown[1] >= shown[0] - 1e-12)
    x = ax.lines[0].get_xdata()
    np.testing.assert_allclose(
        shown[1], fdp.tradeoff.Gaussian(1.5).tpr(fpr=x), rtol=1e-9
    )


def test_bounds_are_rounded_outwards_in_float32_programs():
    rng = np.random.default_rng(2)

    def asks(prior, epsilon):
        with np.errstate(all="ignore"):
            log_p = np.log(prior)
        options = {"epsilon": epsilon, "distance": 1, "connected": True}
        return [
            limits.posterior_bounds(prior, **options),
            limits.marginal_bounds(log_p, **options),
            limits.laplace_sum_bounds(7 * prior, epsilon=epsilon, num_records=5),
            limits.local_bounds(epsilon=epsilon, num_records=5),
            limits.MeasureInterval.around(
                np.log([prior, 0.3, 0.4]), epsilon=epsilon
            ).mean_bounds([0.0, 1.0, 3.0]),
        ]

    for prior, epsilon in zip(
        rng.uniform(0.01, 0.9, 12), rng.uniform(0.1, 2, 12), strict=True
    ):
        truths = asks(prior, epsilon)
        with jax.enable_x64(False):
            found = asks(prior, epsilon)
        for (low, high), (least, most) in zip(found, truths, strict=True):
            assert low.dtype == np.float32
            assert np.float64(low) <= least
            assert np.float64(high) >= most
            np.testing.assert_allclose([low, high], [least, most], rtol=1e-5)
    pair = fdp.FromProbabilities([0.5, 0.3, 0.2], [0.2, 0.3, 0.5])
    with jax.enable_x64(False):
        ask = jitted(
            lambda p: limits.event_bounds(p, pair, distance=1, connected=True)[0]
        )
        for prob in (1e-6, 4e-8):
            low = float(ask(prob))
            assert 0.999 * 0.4 * prob < low <= 0.4 * float(np.float32(prob))
