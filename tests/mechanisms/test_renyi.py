"""Black boxes: only what a theorem allows, and never better than the truth."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from reference import checks, exact, peer_vectors

import fdp_jax as fdp
from fdp_jax import Bound, divergences

INF = math.inf


def _log_gap(h):
    return h * mp.log(h / (1 + h)) - mp.log(1 + h)


def _log_delta_truth(rho, epsilon):
    """The least bound over all orders, by solving for the best one."""
    rho, epsilon = mp.mpf(rho), mp.mpf(epsilon)
    s = mp.findroot(
        lambda s: rho * (1 + 2 * mp.e**s) - epsilon - mp.log1p(mp.e**-s),
        (-60, 100),
        solver="anderson",
        tol=1e-40,
    )
    h = mp.e**s
    return h * (rho * (1 + h) - epsilon) + _log_gap(h)


def _variation_truth(divergence):
    """The largest v with v log((1 + v) / (1 - v)) <= D."""
    start = mp.tanh((divergence + mp.sqrt(2 * mp.mpf(divergence))) / 2)
    residual = lambda v: 2 * v * mp.atanh(v) - mp.mpf(divergence)
    return mp.findroot(residual, (start * 0.3, start), solver="anderson", tol=1e-40)


@pytest.mark.parametrize(
    ("rho", "epsilon"), [(0.5, 4.0), (0.05, 0.25), (1e-4, 0.1), (3.0, 1.0), (0.5, 30.0)]
)
def test_zcdp_log_delta(rho, epsilon):
    with mp.workdps(50):
        truth = _log_delta_truth(rho, epsilon)
        truth = min(truth, mp.log(_variation_truth(rho)))
    box = fdp.ZCDP(rho)
    found = exact(box.log_delta(epsilon=epsilon, bound=Bound.ESTIMATE))
    assert abs(found / truth - 1) < 1e-13
    assert truth <= exact(box.log_delta(epsilon=epsilon)) <= truth + abs(truth) * 1e-11


def test_zcdp_published():
    entries = peer_vectors("delta_of_epsilon_from_zcdp", None)  # pyright: ignore
    assert len(entries) == 3
    for entry in entries:
        p = entry["params"]
        box = fdp.ZCDP(p["rho"])
        found = float(box.delta(epsilon=p["epsilon"], bound=Bound.ESTIMATE))
        # What is published is Proposition 12 alone.
        truth = min(entry["value"], float(_variation_truth(p["rho"])))
        assert abs(found / truth - 1) < 1e-12
        assert float(box.delta(epsilon=p["epsilon"])) >= truth * (1 - 1e-12)
    for entry in checks("zcdp_delta"):
        if not entry["id"].endswith(".t"):
            found = fdp.ZCDP(0.5).delta(epsilon=4.0)
            np.testing.assert_allclose(found, entry["value"], rtol=1e-12)
    entries = peer_vectors("beta_of_alpha", "zcdp")
    assert len(entries) == 3
    for entry in entries:
        found = fdp.ZCDP(0.5).beta(alpha=entry["params"]["alpha"])
        assert abs(float(found) - entry["value"]) < entry["tolerance"]


def test_error_rates_published():
    single, every = checks("rdp_f")
    found = fdp.RenyiDP([2.0], [1.0]).beta(alpha=0.1)
    assert abs(exact(found) / mp.mpf(single["value_str"]) - 1) < 1e-11
    found = fdp.ZCDP(0.5).beta(alpha=0.1)
    assert abs(exact(found) / mp.mpf(every["value_str"]) - 1) < 1e-9


def test_epsilon_published():
    # The order grid is dense there; ours is finer still.
    (entry,) = peer_vectors("epsilon_from_rdp", "gaussian")
    sigma, delta = entry["params"]["noise_multiplier"], entry["params"]["delta"]
    found = float(fdp.ZCDP(0.5 / sigma**2).epsilon(delta=delta))
    assert abs(found - entry["value"]) < 1e-6
    orders = np.concatenate([1 + np.arange(1, 100) / 10, np.arange(12.0, 64)])
    entries = peer_vectors("epsilon_of_delta_rdp", "poisson_subsampled_gaussian")
    assert len(entries) == 2
    for entry in entries:
        p = entry["params"]
        run = fdp.DPSGD(
            noise_multiplier=p["noise_multiplier"],
            sampling_prob=p["sampling_prob"],
            num_steps=p["compositions"],
        )
        known = divergences.renyi_dp(run, orders=orders)
        found = float(known.epsilon(delta=p["delta"]))
        assert abs(found - entry["value"]) < entry["tolerance"]
        assert found > float(run.epsilon(delta=p["delta"]))


@pytest.mark.parametrize("make", [pytest.param("zcdp", marks=pytest.mark.slow), "list"])
def test_never_better_than_the_mechanism(make):
    truth = fdp.Laplace(0.6)
    if make == "zcdp":
        box = fdp.ZCDP(divergences.zcdp(truth))
    else:
        box = divergences.renyi_dp(truth, orders=[0.5, 1.0, 1.5, 2.0, 4.0, 16.0])
    alphas = np.array([1e-9, 1e-4, 0.01, 0.3, 0.8, 0.999])
    assert np.all(box.beta(alpha=alphas) <= truth.beta(alpha=alphas) + 1e-12)
    assert np.all(box.tpr(fpr=alphas) >= truth.tpr(fpr=alphas) * (1 - 1e-12))
    epsilons = np.array([-2.0, -0.1, 0.0, 0.5, 1.6, 1.7, 5.0])
    assert np.all(box.delta(epsilon=epsilons) >= truth.delta(epsilon=epsilons) - 1e-12)
    deltas = np.array([1e-12, 1e-5, 0.1, 0.6])
    assert np.all(box.epsilon(delta=deltas) >= truth.epsilon(delta=deltas) - 1e-12)
    priors = np.array([0.01, 0.3, 0.5, 0.9])
    pairs = box.bayes_error(prior=priors), truth.bayes_error(prior=priors)
    assert np.all(pairs[0] <= pairs[1] + 1e-12)
    assert box.advantage() >= truth.advantage()


def test_advantage_is_that_of_both_divergences():
    # Published: 0.4791 at rho = 1/2, where Pinsker's inequality gives 0.5.
    assert 0.4790 < fdp.ZCDP(0.5).advantage() < 0.4791
    for rho in (1e-6, 1e-3, 0.1, 0.5, 2.0, 10.0):
        with mp.workdps(50):
            truth = _variation_truth(rho)
        found = exact(fdp.ZCDP(rho).advantage())
        assert truth <= found <= truth * (1 + mp.mpf("1e-11"))
        pinsker, bretagnolle_huber = mp.sqrt(rho / 2), mp.sqrt(-mp.expm1(-rho))
        assert found < pinsker
        assert found < bretagnolle_huber
        # Gaussian noise of this rho is no less private than that.
        gaussian = fdp.Gaussian(1 / math.sqrt(2 * rho))
        assert exact(gaussian.advantage()) <= found
        enough = float(found * (1 + mp.mpf("1e-9")))
        assert fdp.ZCDP(rho).epsilon(delta=enough) <= 0
        error = exact(fdp.ZCDP(rho).bayes_error(prior=0.5))
        assert error <= (1 - truth) / 2
        assert error > (1 - truth) / 2 - mp.mpf("1e-11")


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 5.0, 30.0])
def test_randomized_response_attains_the_advantage(epsilon):
    # Its two divergences are epsilon tanh(epsilon / 2), its advantage the tanh.
    with mp.workdps(50):
        truth = mp.tanh(mp.mpf(epsilon) / 2)
        divergence = float(epsilon * truth * (1 + mp.mpf(2) ** -50))
    for box in (
        fdp.RenyiDP([1.0], [divergence]),
        fdp.RenyiDP([0.5, 1.0, 3.0], [divergence / 2, divergence, INF]),
    ):
        found = exact(box.advantage())
        assert truth <= found <= truth * (1 + mp.mpf("1e-11"))
        assert found <= 1
    assert fdp.RenyiDP([0.9], [divergence]).advantage() == 1


def test_derivative_of_the_advantage():
    value = lambda r: fdp.ZCDP(r).advantage()
    for rho in (0.05, 0.5, 4.0):
        with mp.workdps(40):
            slope = float(mp.diff(_variation_truth, mp.mpf(rho)))
        assert jax.grad(value)(rho) == pytest.approx(slope, rel=1e-9)
    assert np.isfinite(jax.grad(value)(0.0))
    assert fdp.ZCDP(0.0).advantage() == 0


def test_default_orders_are_no_weaker_than_those_of_others():
    run = fdp.DPSGD(noise_multiplier=0.7, sampling_prob=0.01, num_steps=120)
    known = divergences.renyi_dp(run)
    # Tensorflow-privacy publishes 3.2392 (by Rényi divergences) for this run.
    assert run.epsilon(delta=1e-5) < known.epsilon(delta=1e-5) < 3.2392
    theirs = [1 + x / 10 for x in range(1, 100)] + [*range(11, 64)]
    assert {*theirs, 128, 256, 512, 1024} <= {
        float(x) for x in np.asarray(known.orders)
    }


@pytest.mark.parametrize("rho", [0.5, 200.0])
@pytest.mark.parametrize("alpha", [1e-12, 0.3])
def test_error_rates_of_zcdp_are_no_worse_than_those_of_any_order(rho, alpha):
    orders = 1 + np.geomspace(1e-4, 1e4, 200)
    found = float(fdp.ZCDP(rho).beta(alpha=alpha))
    listed = float(fdp.RenyiDP(orders, rho * orders).beta(alpha=alpha))
    assert listed <= found * (1 + 1e-12)


def test_a_divergence_bounds_those_of_smaller_orders():
    falling, flat = (
        fdp.RenyiDP([2.0, 4.0], [3.0, 1.0]),
        fdp.RenyiDP([2.0, 4.0], [1.0] * 2),
    )
    for query in ({"delta": 0.3}, {"epsilon": 0.1}, {"alpha": 0.2}):
        one, other = falling.bounds(**query), flat.bounds(**query)
        np.testing.assert_allclose(one.upper, other.upper, rtol=1e-13)
        np.testing.assert_allclose(one.lower, other.lower, rtol=1e-13)


def test_epsilon_and_delta_are_inverse():
    box = fdp.ZCDP(0.3)
    for epsilon in (0.5, 2.0, 7.0):
        delta = box.delta(epsilon=epsilon, bound=Bound.ESTIMATE)
        found = float(box.epsilon(delta=delta, bound=Bound.ESTIMATE))
        # Different orders are best for the two, so this only bounds.
        assert found <= epsilon + 1e-12
        assert float(box.delta(epsilon=found)) >= float(delta) * (1 - 1e-12)


def test_composition():
    one, two = fdp.ZCDP(0.2), fdp.ZCDP(0.3)
    both = fdp.compose(one, two)
    assert isinstance(both, fdp.ZCDP)
    np.testing.assert_array_equal(both.rho, 0.5)
    np.testing.assert_array_equal(one.repeat(5).rho, 1.0)
    listed = fdp.RenyiDP([0.5, 2.0, 4.0], [0.1, 1.0, INF])
    np.testing.assert_allclose(listed.repeat(3).divergences, [0.3, 3.0, INF])
    np.testing.assert_allclose(listed.repeat(0).divergences, 0.0)
    mixed = fdp.compose(two, listed, listed)
    assert isinstance(mixed, fdp.RenyiDP)
    np.testing.assert_allclose(mixed.divergences, [0.5, 2.6, INF])
    other = fdp.RenyiDP([3.0], [0.7])
    mixed = fdp.compose(listed, other)
    assert isinstance(mixed, fdp.RenyiDP)
    np.testing.assert_allclose(mixed.divergences, [0.8, 1.7, INF])


def test_edges():
    listed = fdp.RenyiDP([2.0, 3.0], [0.4, INF])
    below = fdp.RenyiDP([0.5], [0.1])
    for box in (fdp.ZCDP(0.5), listed):
        found = box.epsilon(delta=np.array([0.0, 1.0]))
        np.testing.assert_array_equal(found, [INF, -INF])
        found = box.delta(epsilon=np.array([-INF, INF]))
        np.testing.assert_array_equal(found, [1.0, 0.0])
        np.testing.assert_array_equal(box.beta(alpha=np.array([0.0, 1.0])), [1.0, 0.0])
        np.testing.assert_array_equal(box.tpr(fpr=np.array([0.0, 1.0])), [0.0, 1.0])
        found = box.bayes_error(prior=np.array([0.0, 1.0]))
        np.testing.assert_array_equal(found, 0.0)
    assert below.epsilon(delta=1e-5) == INF
    assert below.delta(epsilon=1.0) == 1.0
    assert int(below.bounds(delta=1e-5).status) == fdp.Status.VACUOUS
    assert int(fdp.ZCDP(0.5).bounds(delta=1e-5).status) == fdp.Status.LOOSE
    # D_t(p||0) <= D allows 1 - p down to e^(-D (1 - t) / t) = e^-D at t = 1/2.
    np.testing.assert_allclose(below.beta(alpha=0.0), np.exp(-0.1), rtol=1e-13)
    np.testing.assert_allclose(below.beta(alpha=1e-250), np.exp(-0.1), rtol=1e-10)
    # An output that is new with probability 1 - e^-D has that divergence of order 1/2.
    kept = np.exp(-0.1)
    attained = fdp.FromProbabilities([1.0, 0.0], [kept, 1 - kept])
    np.testing.assert_allclose(divergences.renyi(attained, order=0.5), 0.1, rtol=1e-12)
    new = attained.delta(epsilon=INF, bound=Bound.OPTIMISTIC)
    assert new <= below.delta(epsilon=INF) <= new * (1 + 1e-12)
    nothing = fdp.ZCDP(0.0)
    assert float(nothing.delta(epsilon=0.0)) < 1e-40
    np.testing.assert_allclose(nothing.beta(alpha=0.3), 0.7, rtol=1e-12)
    everything = fdp.ZCDP(1e5)
    assert float(everything.beta(alpha=0.3)) == 0.0
    assert float(everything.delta(epsilon=1.0)) == 1.0


def test_derivatives():
    for name, at in [("delta", {"epsilon": 2.0}), ("epsilon", {"delta": 1e-5})]:
        value = lambda r, n=name, a=at: getattr(fdp.ZCDP(r), n)(**a)
        both = jitted(jax.value_and_grad(value))
        slope = (both(0.3 + 1e-6)[0] - both(0.3 - 1e-6)[0]) / 2e-6
        np.testing.assert_allclose(both(0.3)[1], slope, rtol=1e-7)
    value = lambda r, a: fdp.ZCDP(r).beta(alpha=a, bound=Bound.ESTIMATE)
    slopes = jitted(jax.grad(value, argnums=(0, 1)))(0.3, 0.1)
    ends = [(value(0.3 + h, 0.1), value(0.3, 0.1 + h)) for h in (1e-5, -1e-5)]
    for k in range(2):
        np.testing.assert_allclose(
            slopes[k], (ends[0][k] - ends[1][k]) / 2e-5, rtol=1e-5
        )
    listed = lambda d: fdp.RenyiDP(np.array([1.5, 4.0]), d).epsilon(delta=1e-5)
    found = jax.grad(listed)(jnp.array([0.3, INF]))
    np.testing.assert_array_equal(found, [1.0, 0.0])


def test_transformations_and_float32():
    rhos = jnp.array([0.1, 0.5])
    mapped = jitted(jax.vmap(lambda r: fdp.ZCDP(r).epsilon(delta=1e-5)))(rhos)
    loop = [float(fdp.ZCDP(float(r)).epsilon(delta=1e-5)) for r in rhos]
    np.testing.assert_allclose(mapped, loop, rtol=1e-13)
    with jax.enable_x64(False):
        value, slope = jitted(
            jax.value_and_grad(lambda r: fdp.ZCDP(r).epsilon(delta=1e-5))
        )(jnp.float32(0.5))
        beta = fdp.ZCDP(0.5).beta(alpha=0.1)
        kept = fdp.RenyiDP([2.0, 3.1], [0.4, 0.7]).repeat(3).divergences
        assert value.dtype == slope.dtype == beta.dtype == jnp.float32
        assert np.asarray(kept).dtype == np.float64
    assert loop[1] <= float(value) <= loop[1] * (1 + 2e-7)
    assert float(beta) <= float(fdp.ZCDP(0.5).beta(alpha=0.1))


def test_float32_programs():
    orders = np.arange(2.0, 33.0)
    truth = orders / (2 * 1.1**2)
    listed = lambda r: fdp.RenyiDP(orders=[2.0, 4.0], divergences=jnp.stack([r, 2 * r]))
    spent = lambda r: listed(r).repeat(10).epsilon(delta=1e-5)
    exact_sum = fdp.compose(
        fdp.RenyiDP(orders=[2.0], divergences=[0.7]),
        fdp.RenyiDP(orders=[2.0], divergences=[0.9]),
    )
    with jax.enable_x64(False):
        known = divergences.renyi_dp(fdp.Gaussian(1.1), orders=orders)
        assert np.all(np.asarray(known.divergences, np.float64) >= truth)
        traced = jitted(lambda s: divergences.renyi_dp(fdp.Gaussian(s), orders=orders))
        found = np.asarray(traced(1.1).divergences, np.float64)
        assert np.all(found >= orders / (2 * float(np.float32(1.1)) ** 2))
        # A float64 array is checked inside of a float32 program.
        single = jitted(spent)(0.1)
        same = fdp.compose(
            fdp.RenyiDP(orders=[2.0], divergences=[0.7]),
            fdp.RenyiDP(orders=[2.0], divergences=[0.9]),
        )
    np.testing.assert_allclose(single, spent(0.1), rtol=1e-5)
    two = jnp.asarray(2.0)
    assert same.divergence(two) == exact_sum.divergence(two) == 0.7 + 0.9


@pytest.mark.parametrize("order", [0.4, 1.0, 3.0])
def test_error_rates_have_derivatives_in_the_orders(order):
    alpha, most = mp.mpf(0.125), mp.mpf(0.5)

    def divergence(t, p, q):
        if t == 1:
            return p * mp.log(p / q) + (1 - p) * mp.log((1 - p) / (1 - q))
        return mp.log(p**t * q ** (1 - t) + (1 - p) ** t * (1 - q) ** (1 - t)) / (t - 1)

    def truth(t):
        both = lambda p: max(divergence(t, p, alpha), divergence(t, alpha, p))
        return 1 - mp.findroot(lambda p: both(p) - most, (0.2, 0.9), solver="anderson")

    beta = lambda t: fdp.RenyiDP(jnp.stack([t]), [0.5]).beta(alpha=0.125)
    step = mp.mpf(10) ** -5
    slope = (truth(order + step) - truth(order - step)) / (2 * step)
    assert float(jax.grad(beta)(order)) == pytest.approx(float(slope), rel=1e-7)
