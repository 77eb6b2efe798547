"""Rényi divergences against quadrature, closed forms and published numbers."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from reference import checks, exact, peer_vectors
from scipy import stats
from scipy.special import logsumexp

import fdp_jax as fdp
from fdp_jax import divergences

INF = math.inf


def _sampled(noise=1.0, prob=0.01, steps=1.0):
    return fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=steps)


@functools.cache
def _log_moment(s, q, w):
    """log E_P r^w of one subsampled Gaussian step, by Gauss-Legendre quadrature."""
    s, q, w = mp.mpf(s), mp.mpf(q), mp.mpf(w)

    def integrand(x):
        loss = mp.log(1 - q + q * mp.e ** ((2 * x - 1) / (2 * s * s)))
        return mp.npdf(x, 0, s) * mp.expm1(w * loss)

    low, high = min(w, 0) - 14 * s, max(w, 1) + 14 * s
    cells = max(8, int((high - low) / s))
    ends = [low + (high - low) * i / cells for i in range(cells + 1)]
    return mp.log1p(mp.quad(integrand, ends, method="gauss-legendre"))


def _truth(s, q, t, direction):
    w = mp.mpf(t) if direction == "remove" else 1 - mp.mpf(t)
    return _log_moment(s, q, w) / (mp.mpf(t) - 1)


CASES = [
    *((1.0, 0.01, t) for t in (2.0, 1.5, 1.0001, 1 + 1e-9, 0.5, 1e-6)),
    *((4.0, 1e-6, 2.0), (0.5, 0.01, 2.0), (0.3, 0.1, 3.0), (0.05, 1e-4, 0.3)),
    *((20.0, 1e-4, 1.5), (1000.0, 0.5, 2.0), (1.0, 1.0, 3.0), (3.0, 0.2, 9.7)),
]


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("noise", "prob", "order"), CASES)
def test_sampled_gaussian(noise, prob, order, direction):
    with mp.workdps(30):
        truth = _truth(noise, prob, order, direction)
    found = divergences.renyi(getattr(_sampled(noise, prob), direction), order=order)
    assert abs(exact(found) / truth - 1) < 3e-14


def test_large_orders_of_sampled_gaussians():
    # E_P r^w = sum of binomial weights times e^(k (k - 1) / (2 s^2)), for whole w.
    for noise, prob, order in [(2.0, 0.5, 1000), (1.0, 0.01, 100), (0.1, 0.1, 2)]:
        q, s = mp.mpf(prob), mp.mpf(noise)
        total = mp.fsum(
            mp.binomial(order, k)
            * (1 - q) ** (order - k)
            * q**k
            * mp.exp(k * (k - 1) / (2 * s * s))
            for k in range(order + 1)
        )
        found = divergences.renyi(_sampled(noise, prob).remove, order=float(order))
        assert abs(exact(found) / (mp.log(total) / (order - 1)) - 1) < 1e-14


PEERS = peer_vectors("rdp", "poisson_subsampled_gaussian")


def test_published_values():
    assert len(PEERS) == 178
    runs = {}
    for entry in PEERS:
        p = entry["params"]
        key = p["noise_multiplier"], p["sampling_prob"], p.get("compositions", 1)
        runs.setdefault(key, []).append(entry)
    function = jitted(
        lambda s, q, n, t: divergences.renyi(_sampled(s, q, n).remove, order=t)
    )
    for key, entries in runs.items():
        orders = np.zeros(200)
        orders[:] = 2.0
        orders[: len(entries)] = [e["params"]["order"] for e in entries]
        values = function(*key, orders)
        for entry, value in zip(entries, np.asarray(values), strict=False):
            assert abs(value - entry["value"]) <= max(
                abs(entry["tolerance"]), 1e-12 * abs(entry["value"])
            ), entry


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("01.kl.G1", lambda: divergences.kl(fdp.Gaussian(1.0))),
        ("01.kl.Lap1", lambda: divergences.kl(fdp.Laplace(1.0))),
        ("01.renyi2.Lap1", lambda: divergences.renyi(fdp.Laplace(1.0), order=2.0)),
        ("01.renyi1.5.Lap1", lambda: divergences.renyi(fdp.Laplace(1.0), order=1.5)),
        ("01.chi2.G1", lambda: divergences.chi_squared(fdp.Gaussian(1.0))),
        ("01.hellinger2", lambda: divergences.squared_hellinger(fdp.Gaussian(1.0))),
        ("01.tv.G1", lambda: divergences.total_variation(fdp.Gaussian(1.0))),
    ],
)
def test_checks(name, call):
    (entry,) = [e for e in checks(name.split(".")[1]) if e["id"].startswith(name)]
    assert abs(exact(call()) / mp.mpf(entry["value_str"]) - 1) < 1e-11


def _laplace_truth(mu, t):
    mu, t = mp.mpf(mu), mp.mpf(t)
    if t == 1:
        return mu + mp.expm1(-mu)
    if t == 0.5:
        return -2 * (mp.log1p(mu / 2) - mu / 2)
    a, b = t / (2 * t - 1), (t - 1) / (2 * t - 1)
    return mp.log(a * mp.exp((t - 1) * mu) + b * mp.exp(-t * mu)) / (t - 1)


def _response_truth(epsilon, t):
    e, t = mp.mpf(epsilon), mp.mpf(t)
    if t == 1:
        return e * mp.tanh(e / 2)
    return mp.log(mp.cosh((t - mp.mpf(1) / 2) * e) / mp.cosh(e / 2)) / (t - 1)


@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.3, 1.0, 5.0, 60.0, 1500.0])
@pytest.mark.parametrize("order", [1e-6, 0.5, 1 - 1e-12, 1.0, 1 + 1e-9, 1.7, 40.0, 1e3])
def test_bounded_losses(size, order):
    with mp.workdps(60):
        truth = _laplace_truth(mp.mpf(1) / mp.mpf(1 / size), order)
        found = exact(divergences.renyi(fdp.Laplace(1 / size), order=order))
        assert abs(found / truth - 1) < 1e-13
        truth = _response_truth(size, order)
        found = exact(divergences.renyi(fdp.RandomizedResponse(size), order=order))
        assert abs(found / truth - 1) < 1e-13


def test_composition_adds():
    parts = fdp.Laplace(2.0), fdp.Gaussian(3.0), _sampled(1.0, 0.1, 7.5)
    whole = fdp.compose(parts[0].repeat(3), *parts[1:])
    orders = jnp.array([0.3, 1.0, 4.0])
    for side in ("remove", "add"):
        one = [divergences.renyi(getattr(p, side), order=orders) for p in parts]
        total = divergences.renyi(getattr(whole, side), order=orders)
        np.testing.assert_allclose(total, 3 * one[0] + one[1] + one[2], rtol=1e-14)


def test_both_directions_take_the_larger():
    run = _sampled(1.0, 0.3, 2.0)
    for order in (0.7, 1.0, 3.0):
        sides = [divergences.renyi(s, order=order) for s in (run.remove, run.add)]
        assert float(divergences.renyi(run, order=order)) == max(map(float, sides))


def test_skew_symmetry():
    run, t = _sampled(0.8, 0.2, 3.0), 0.3
    one = divergences.renyi(run.remove, order=t)
    other = divergences.renyi(run.add, order=1 - t)
    np.testing.assert_allclose((1 - t) * one, t * other, rtol=1e-13)


def test_infinite_losses():
    leaky = fdp.ApproxDP(epsilon=1.0, delta=0.1)
    orders = jnp.array([0.25, 0.5, 0.999, 1.0, 2.0, INF])
    found = np.asarray(divergences.renyi(leaky, order=orders))
    assert np.all(np.isinf(found[3:]))
    for t, value in zip((0.25, 0.5, 0.999), found[:3], strict=True):
        inner = mp.log(mp.mpf("0.9")) + _response_truth(1, t) * (mp.mpf(t) - 1)
        assert abs(value / (inner / (mp.mpf(t) - 1)) - 1) < 1e-12
    gradient = jax.grad(
        lambda d: divergences.renyi(fdp.ApproxDP(epsilon=1.0, delta=d), order=0.5)
    )(0.1)
    assert abs(gradient - 2 / 0.9) < 1e-12
    assert (
        float(divergences.squared_hellinger(fdp.ApproxDP(epsilon=0.0, delta=1.0))) == 1
    )
    assert divergences.max_divergence(leaky) == INF


def test_nothing_released():
    runs = [_sampled(1.0, 0.0, 5.0), _sampled(INF, 0.5, 5.0), _sampled(1.0, 0.5, 0.0)]
    runs += [fdp.Laplace(INF), fdp.ApproxDP(epsilon=1.0, delta=0.3).repeat(0)]
    for run in runs:
        for order in (0.5, 1.0, 1e3, INF):
            assert float(divergences.renyi(run, order=order)) == 0.0
        assert float(divergences.chernoff_information(run)) == 0.0
        assert float(divergences.zcdp(run)) == 0.0
        assert float(divergences.clt_gdp(run)) == 0.0


def test_full_sampling_is_gaussian():
    orders = np.array([0.5, 1.0, 3.0, 1e3])
    for side in ("remove", "add"):
        run = getattr(_sampled(0.7, 1.0, 2.0), side)
        found = divergences.renyi(run, order=orders)
        np.testing.assert_allclose(found, orders / 0.49, rtol=1e-13)


def test_pure_epsilon():
    run = fdp.compose(fdp.Laplace(2.0).repeat(3), fdp.PureDP(0.25))
    assert divergences.max_divergence(run) == 1.75
    assert divergences.renyi(run.add, order=INF) == 1.75
    assert divergences.max_divergence(fdp.Gaussian(1.0)) == INF
    add = divergences.renyi(_sampled(1.0, 0.1).add, order=INF)
    np.testing.assert_allclose(add, -np.log(0.9), rtol=1e-15)


def test_chernoff_information():
    # Symmetric pairs: the order 1/2.  Otherwise a search, checked on a grid.
    found = divergences.chernoff_information(fdp.Gaussian(0.5))
    np.testing.assert_allclose(found, 0.5, rtol=1e-14)
    run = _sampled(0.5, 0.1, 3.0)
    orders = np.linspace(0.3, 0.7, 801)
    grid = (1 - orders) * divergences.renyi(run.remove, order=orders)
    best = float(orders[np.argmax(grid)])
    assert abs(best - 0.5) > 0.005

    @jitted
    @jax.value_and_grad
    def at(s):
        return divergences.chernoff_information(_sampled(s, 0.1, 3.0))

    found, slope = at(0.5)
    np.testing.assert_allclose(found, np.max(grid), rtol=1e-6)
    assert float(found) >= np.max(grid) * (1 - 1e-14)
    difference = (at(0.5 + 1e-5)[0] - at(0.5 - 1e-5)[0]) / 2e-5
    np.testing.assert_allclose(slope, difference, rtol=1e-8)


def test_chernoff_information_of_either_direction_is_the_same():
    run = _sampled(0.5, 0.1, 3.0)
    both = divergences.chernoff_information(run)
    for side in (run.remove, run.add):
        found = divergences.chernoff_information(side)
        np.testing.assert_allclose(found, both, rtol=1e-14)


def test_derivatives():
    def value(s, q, n, t):
        return divergences.renyi(_sampled(s, q, n).add, order=t)

    slopes = jitted(jax.grad(value, argnums=(0, 1, 2, 3)))
    for t in (0.5, 1.0, 2.5, 20.0):
        at = 0.9, 0.05, 3.0, t
        gradient = slopes(*at)
        with mp.workdps(28):
            h = mp.mpf("1e-8")
            for k, slope in enumerate(gradient):
                ends = []
                for side in (1, -1):
                    s, q, n, order = (
                        mp.mpf(x) + (side * h if k == i else 0)
                        for i, x in enumerate(at)
                    )
                    if order == 1:  # the derivative in other parameters, at 1 exactly
                        order += mp.mpf("1e-14")
                    ends.append(n * _log_moment(s, q, 1 - order) / (order - 1))
                truth = (ends[0] - ends[1]) / (2 * h)
                assert abs(exact(slope) / truth - 1) < 1e-11, (t, k)


def _allocated_moment(batches, noise, order):
    """log E_P[(dQ/dP)^m] of random allocation: m! / t^m [x^m] (sum M_k x^k / k!)^t."""
    with mp.workdps(30):
        moment = lambda k: mp.e ** (mp.mpf(k * (k - 1)) / (2 * mp.mpf(noise) ** 2))
        one = [moment(k) / mp.factorial(k) for k in range(order + 1)]
        power = [mp.mpf(1)] + order * [mp.mpf(0)]
        for _ in range(batches):
            power = [
                sum(power[i] * one[k - i] for i in range(k + 1))
                for k in range(order + 1)
            ]
        return mp.log(power[order] * mp.factorial(order) / batches**order)


def test_guarantees_of_random_allocation_are_bounds():
    """Its divergences are values without the far tail, which rules at high orders."""
    orders = np.asarray([2.0, 12.0, 32.0])
    scheme = fdp.sampling.RandomAllocation(num_batches=8)
    run = fdp.DPSGD(noise_multiplier=1.0, sampling=scheme, num_steps=16)
    truth = [float(2 * _allocated_moment(8, 1, int(m)) / (m - 1)) for m in orders]
    known = divergences.renyi_dp(run, orders=orders).divergences
    assert np.all(truth <= np.asarray(known))
    assert np.all(np.asarray(known) <= (1 + 2e-9) * orders)
    rho = float(divergences.zcdp(run))
    assert np.max(truth / orders) <= rho == pytest.approx(1.0, rel=1e-9)
    free = fdp.RenyiDP(orders, np.zeros(3))
    both = fdp.compose(run, free).divergence(orders)
    assert np.all(truth <= np.asarray(both))
    assert float(divergences.renyi(run, order=2.0)) == pytest.approx(truth[0], rel=1e-6)


def test_derivatives_at_edges_are_finite():
    def full(q):
        return divergences.renyi(_sampled(1.0, q).remove, order=2.0)

    # d/dq log(1 + q^2 (e - 1)) at q = 1.
    np.testing.assert_allclose(jax.grad(full)(1.0), 2 * (np.e - 1) / np.e, rtol=1e-12)
    families = fdp.Laplace, fdp.RandomizedResponse, fdp.Gaussian

    @jitted
    def slopes(x, order):
        value = lambda x, t, family: divergences.renyi(family(x), order=t)
        each = jax.grad(value, argnums=(0, 1))
        return [each(x, order, family) for family in families]

    for order in (0.5, 1.0, 2.0):
        assert np.all(np.isfinite(slopes(1.3, order)))


def test_transformations_and_float32():
    sigmas = jnp.array([0.8, 1.0, 2.0])
    value = lambda s: divergences.renyi(_sampled(s, 0.1, 4.0), order=3.0)
    loop = [float(value(float(s))) for s in sigmas]
    mapped = jitted(jax.vmap(value))(sigmas)
    np.testing.assert_allclose(mapped, loop, rtol=1e-14)
    with jax.enable_x64(False):
        both = jitted(
            jax.value_and_grad(
                lambda s, q, n, t: divergences.renyi(_sampled(s, q, n), order=t)
            )
        )
        value, slope = both(1.0, 0.1, 4.0, 3.0)
        tiny, _ = both(4.0, 1e-6, 1.0, 1.0)
        assert value.dtype == slope.dtype == tiny.dtype == jnp.float32
    np.testing.assert_allclose(value, loop[1], rtol=1e-7)
    np.testing.assert_allclose(tiny, 0.5e-12 * math.expm1(1 / 16), rtol=1e-5)


def test_functionals_of_a_trade_off_function():
    mu, f = 0.8, fdp.tradeoff.Gaussian(0.8)
    d = fdp.divergences
    found = d.kl(f), d.renyi(f, order=3.0), d.auc(f), d.total_variation(f)
    truth = (
        mu**2 / 2,
        3 * mu**2 / 2,
        stats.norm.cdf(mu / 2**0.5),
        1 - 2 * stats.norm.sf(mu / 2),
    )
    np.testing.assert_allclose(found, np.stack(truth), rtol=1e-9)
    pair = fdp.tradeoff.TradeOff.from_probabilities([0.7, 0.3], [0.4, 0.6])
    truth = 0.4 * np.log(4 / 7) + 0.6 * np.log(2)
    np.testing.assert_allclose(d.kl(pair), truth, rtol=1e-12)


@pytest.mark.parametrize(
    "function",
    [
        divergences.kl,
        divergences.zcdp,
        divergences.gdp,
        divergences.auc,
        divergences.clt_gdp,
        divergences.chernoff_information,
        divergences.max_divergence,
        divergences.renyi_dp,
    ],
)
def test_only_mechanisms(function):
    with pytest.raises(TypeError, match=f"of {function.__name__} must be a mechanism"):
        function(fdp.ZCDP(1.0))


def _by_trapezoids(order, noise, locations, p, q):
    """D_t(Q||P) of two mixtures of normal laws: the trapezoid rule is exact here."""
    ends = -40 * noise - 3 * order, 40 * noise + 3 * order
    x = np.linspace(*ends, 100_001)
    squares = -0.5 * np.square((x - np.asarray(locations)[:, None]) / noise)
    with np.errstate(divide="ignore"):
        log_p, log_q = (logsumexp(squares.T + np.log(w), axis=1) for w in (p, q))
    step = (ends[1] - ends[0]) / (x.size - 1) / (noise * math.sqrt(2 * math.pi))
    tilted = order * log_q + (1 - order) * log_p
    top = np.max(tilted)
    return (top + np.log(step * np.sum(np.exp(tilted - top)))) / (order - 1)


@pytest.mark.parametrize("noise", [1.0, 6.0])
def test_mixtures_at_all_orders(noise):
    """As exact at high orders, which ends of tables made infinite or 1e-5 too large."""
    orders, none = np.array([0.5, 1.5, 5.0, 19.0, 20.0, 200.0]), [0.0] * 2
    places, probs = [0.0, 1.0, 2.0], [0.9, 0.08, 0.02]
    mixture = fdp.MixtureOfGaussians(noise, shifts=places, probs=probs)
    step = _sampled(noise, 0.1, 1)
    one = dataclasses.replace(step, relation=fdp.NeighboringRelation.REPLACE_ONE)
    share = [0.81, 0.18, 0.01]
    own = [*none, *share], [*share[::-1], *none]
    for mechanism, at, p, q in (
        (mixture, places, [1.0, 0.0, 0.0], probs),
        (one.group(2), np.arange(-2.0, 3.0), own[1], own[0]),
    ):
        for side, laws in (("remove", (p, q)), ("add", (q, p))):
            found = divergences.renyi(getattr(mechanism, side), order=orders)
            truth = [_by_trapezoids(t, noise, at, *laws) for t in orders]
            np.testing.assert_allclose(found, truth, rtol=1e-10)
    known = divergences.renyi_dp(mixture, orders=orders)
    worst = divergences.renyi(mixture, order=orders)
    assert np.all(known.divergences >= worst)
    np.testing.assert_allclose(known.divergences, worst, rtol=2e-9)
    assert float(divergences.renyi(mixture, order=INF)) == INF


def test_components_of_the_least_weight_rule_high_orders():
    """All 40 take part with 1e-240: of M_t that component alone is a lower bound."""
    for prob, k, t in ((1e-6, 40, 200.0), (1e-9, 40, 1000.0), (1e-201, 1, 2000.0)):
        run = _sampled(1.0, prob, 1).group(k)
        least = (t * k * math.log(prob) + 0.5 * t * (t - 1) * k**2) / (t - 1)
        assert least <= float(divergences.renyi(run.remove, order=t))
        assert least <= float(divergences.renyi_dp(run, orders=[t]).divergences[0])


@pytest.mark.parametrize("order", [0.5, 1.0, 2.0, 8.0])
def test_losses_known_by_their_masses(order):
    noise = fdp.DiscreteGaussian(2.0)
    assert float(divergences.renyi(noise, order=order)) == pytest.approx(
        order / 8, rel=1e-12
    )


@pytest.mark.parametrize("order", [0.5, 1.0002, 1.1, 8.0])
def test_masses_have_their_digits_next_to_order_one(order):
    """Noise of density exp(-|x|^1.5), by quadrature: to the 1e-6 that is documented."""
    ends = [-40, -10, -5, -2, -1, -0.5, 0, 0.25, 0.5, 0.75, 1, 1.5, 2, 5, 20, 80]
    found = divergences.renyi(fdp.GeneralizedGaussian(1.0, shape=1.5), order=order)
    with mp.workdps(25):
        power, t = mp.mpf(1.5), mp.mpf(order)
        whole = lambda x: mp.exp(-(abs(x) ** power))
        tilted = lambda x: whole(x - 1) ** t * whole(x) ** (1 - t)
        moment, total = (mp.mpf(mp.quad(f, ends)) for f in (tilted, whole))
        assert abs(exact(found) / (mp.log(moment / total) / (t - 1)) - 1) < 1e-6
