"""zCDP, Gaussian DP, area under the ROC curve and the two approximations."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from reference import checks, dpsgd_truth, exact, peer_vectors

import fdp_jax as fdp
from fdp_jax import Bound, divergences
from fdp_jax.losses import LaplaceLoss, TwoPointLoss

INF = math.inf
RUN = fdp.DPSGD(noise_multiplier=9.4, sampling_prob=0.328, num_steps=2000)
MU = 1.5685621993129137  # of a peer, for RUN


def _mu_of_pure(epsilon):
    p = 1 / (1 + mp.e ** mp.mpf(epsilon))
    return -2 * mp.sqrt(2) * mp.erfinv(2 * p - 1)


# ----------------------------------------------------------------------------- zCDP


@pytest.mark.parametrize(
    ("mechanism", "rho"),
    [
        (fdp.Gaussian(2.0).repeat(4), 0.5),
        (fdp.Laplace(1.0), math.exp(-1)),
        (fdp.RandomizedResponse(1.0).repeat(3), 3 * math.tanh(0.5)),
        (RUN, 2000 / (2 * 9.4**2)),
        (fdp.ApproxDP(epsilon=1.0, delta=1e-9), INF),
    ],
)
def test_zcdp_closed_forms(mechanism, rho):
    found = float(divergences.zcdp(mechanism))
    assert rho <= found * (1 + 1e-15)
    assert found <= rho * (1 + 1e-12)


@pytest.mark.parametrize(
    "side",
    [
        fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.3, num_steps=10).add,
        fdp.compose(fdp.Laplace(1.0), fdp.Gaussian(2.0)),
    ],
)
def test_zcdp_holds_at_every_order_and_is_close(side):
    orders = 1 + np.exp(np.linspace(-9, 9, 60))
    rho = float(divergences.zcdp(side))
    ratios = np.asarray(divergences.renyi(side, order=orders)) / orders
    assert np.all(ratios <= rho)
    assert np.max(ratios) >= rho * (1 - 2e-3)


def test_zcdp_derivative_where_moments_of_high_order_are_not_known():
    # The most distant component has the limit 2^2 / (2 noise^2).
    run = lambda s: fdp.MixtureOfGaussians(s, shifts=[0.0, 2.0], probs=[0.5, 0.5])
    slope = jax.grad(lambda s: divergences.zcdp(run(s).remove))(1.5)
    np.testing.assert_allclose(slope, -4 / 1.5**3, rtol=1e-6)


@pytest.mark.slow
def test_zcdp_derivative():
    def value(b):
        other = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=1e4)
        return divergences.zcdp(fdp.compose(fdp.Laplace(b), other).add)

    slope = (value(3 + 1e-3) - value(3 - 1e-3)) / 2e-3
    np.testing.assert_allclose(jax.grad(value)(3.0), slope, rtol=1e-3)


# ----------------------------------------------------------------------- Gaussian DP


@pytest.mark.slow
def test_pure_epsilon_as_gaussian():
    for epsilon in (1e-3, 0.2, 1.0, 4.0, 30.0):
        found = divergences.gdp(fdp.RandomizedResponse(epsilon))
        truth = _mu_of_pure(epsilon)
        assert truth <= exact(found.mu) <= truth * (1 + 1e-11), epsilon
        assert exact(found.mu_lower) <= truth, epsilon
        if 0.1 < epsilon < 10:
            assert exact(found.mu_lower) >= truth * (1 - 1e-6), epsilon


def test_gaussian_parameter_published():
    (entry,) = checks("pure_to_gdp")
    epsilon = entry["params"].get("eps", entry["params"].get("epsilon"))
    found = divergences.gdp(fdp.RandomizedResponse(epsilon)).mu
    np.testing.assert_allclose(found, entry["value"], rtol=1e-11)
    (entry,) = peer_vectors("gdp_mu_smallest", "randomized_response")
    p = entry["params"]["noise_parameter"]
    found = divergences.gdp(fdp.RandomizedResponse(math.log((2 - p) / p))).mu
    np.testing.assert_allclose(found, 0.25132269371, rtol=1e-10)
    assert abs(float(found) - entry["value"]) < entry["tolerance"]


@pytest.mark.slow
def test_gaussian_parameter_closed_forms():
    half = mp.e ** (mp.mpf(-1) / 2) / 2
    truth = -2 * mp.sqrt(2) * mp.erfinv(2 * half - 1)
    found = divergences.gdp(fdp.Laplace(1.0))
    assert truth <= exact(found.mu) <= truth * (1 + 1e-11)
    np.testing.assert_allclose(divergences.gdp(RUN).mu, 2000**0.5 / 9.4, rtol=1e-11)
    assert float(divergences.gdp(RUN).mu) >= 2000**0.5 / 9.4
    leaky = fdp.ApproxDP(epsilon=1.0, delta=1e-5)
    assert divergences.gdp(leaky).mu == INF
    assert divergences.gdp(leaky, delta=0.9e-5).mu == INF
    assert 1.2 < float(divergences.gdp(leaky, delta=1.1e-5).mu) < 1.2321


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "delta"),
    [(fdp.RandomizedResponse(0.3).repeat(10), 0.0), (RUN, 1e-10)],
)
def test_gaussian_parameter_certifies(mechanism, delta):
    found = divergences.gdp(mechanism, delta=delta)
    mu, lower = float(found.mu), float(found.mu_lower)
    assert lower <= mu <= lower * 1.01
    epsilons = np.linspace(0, 8, 33)
    other = fdp.Gaussian(1 / mu).delta(epsilon=epsilons, bound=Bound.OPTIMISTIC)
    own = mechanism.delta(epsilon=epsilons, bound=Bound.OPTIMISTIC)
    assert np.all(own <= other + delta + 1e-15)
    # A little less than the lower bound will not do somewhere.
    fine = np.linspace(0, 8, 801)
    other = fdp.Gaussian(1 / (0.999 * lower)).delta(epsilon=fine)
    assert np.any(mechanism.delta(epsilon=fine, bound=Bound.OPTIMISTIC) > other + delta)


@pytest.mark.slow
def test_peers_parameter_is_too_small():
    assert float(divergences.gdp(RUN, delta=1e-10).mu_lower) > MU


@pytest.mark.slow
def test_regret_published():
    (entry,) = peer_vectors(
        "gdp_regret_delta_divergence", "poisson_subsampled_gaussian"
    )
    assert entry["params"]["mu"] == MU
    found = float(divergences.gdp_regret(RUN, mu=MU))
    assert abs(found - entry["value"]) < entry["tolerance"]
    assert found > entry["value"]  # theirs is the maximum over a grid


def test_regret_is_the_largest_difference_of_bayes_errors():
    priors = np.append(np.linspace(0.5, 0.99, 491), 1 / (1 + math.exp(-1)))
    one, mu = fdp.Laplace(1.0), 1.2
    gap = one.bayes_error(prior=priors) - fdp.Gaussian(1 / mu).bayes_error(prior=priors)
    found = divergences.gdp_regret(one, mu=mu)
    np.testing.assert_allclose(found, np.max(gap), rtol=2e-5)
    np.testing.assert_allclose(
        divergences.gdp_regret(one, mu=INF), one.bayes_error(prior=0.5), rtol=1e-9
    )
    assert float(divergences.gdp_regret(one, mu=0.0)) == 0.0


@pytest.mark.slow
def test_gaussian_parameter_derivative():
    def value(s):
        run = fdp.DPSGD(noise_multiplier=s, sampling_prob=0.328, num_steps=2000)
        return divergences.gdp(run, delta=1e-8)

    slope = jax.grad(lambda s: value(s).mu)(9.4)
    low, high = (value(s).mu_lower for s in (9.4 - 1e-3, 9.4 + 1e-3))
    np.testing.assert_allclose(slope, (high - low) / 2e-3, rtol=1e-3)
    # Where the closed form is the answer.
    slope = jax.grad(lambda b: divergences.gdp(fdp.Gaussian(b)).mu)(2.0)
    np.testing.assert_allclose(slope, -0.25, rtol=1e-13)


# ---------------------------------------------------------------------------- areas


def test_area_published():
    for entry in checks("auc"):
        make = fdp.Gaussian if "G1" in entry["id"] else fdp.Laplace
        found = [divergences.auc(make(1.0), bound=b) for b in Bound]
        truth = mp.mpf(entry["value_str"])
        assert abs(exact(found[1]) / truth - 1) < 1e-9
        assert exact(found[2]) - 1e-15 <= truth <= exact(found[0]) + 1e-15
        assert float(found[0] - found[2]) < 1e-6


@pytest.mark.slow
def test_area_of_sampled_gaussians():
    one = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.3, num_steps=1)
    # One step: f = (1 - q)(1 - alpha) + q G_1 (remove), whose area mixes as well.
    truth = mp.mpf("0.7") / 2 + mp.mpf("0.3") * mp.ncdf(1 / mp.sqrt(2))
    high, middle, low = (exact(divergences.auc(one.add, bound=b)) for b in Bound)
    assert low <= truth <= high
    assert high - low < 3e-4
    assert abs(middle - truth) < 1e-7
    # Both directions: f (remove) up to slope -1, a straight piece, and mirrored.
    quantile = lambda a: mp.sqrt(2) * mp.erfinv(1 - 2 * a)
    f = lambda a: mp.mpf("0.7") * (1 - a) + mp.mpf("0.3") * mp.ncdf(quantile(a) - 1)
    with mp.workdps(15):
        joint = mp.ncdf(-0.5)
        other = f(joint)
        left = mp.quad(f, [0, 1e-8, 1e-3, joint])
        area = 2 * left - other * joint + (other**2 - joint**2) / 2
    high, middle, low = (exact(divergences.auc(one, bound=b)) for b in Bound)
    assert low <= 1 - area <= high
    assert abs(middle - (1 - area)) < 1e-7


# -------------------------------------------------------------------- approximations


def test_central_limit():
    sigma, q, n = 1.3232421875, 0.04, 90 / 0.04
    run = fdp.DPSGD(noise_multiplier=sigma, sampling_prob=q, num_steps=n)
    mu = float(divergences.clt_gdp(run))
    np.testing.assert_allclose(mu, q * math.sqrt(n * math.expm1(sigma**-2)), rtol=1e-13)
    # The published calibration to (8, 1e-5) of the "GDP accountant".
    assert abs(float(fdp.Gaussian(1 / mu).epsilon(delta=1e-5)) - 8) < 0.02
    np.testing.assert_allclose(
        divergences.clt_gdp(fdp.Gaussian(2.0).repeat(4)), 1.0, rtol=1e-13
    )
    e = 0.2
    # 2 KL / standard deviation = 2 e tanh(e / 2) / (e / cosh(e / 2)).
    found = divergences.clt_gdp(fdp.RandomizedResponse(e).repeat(9))
    np.testing.assert_allclose(found, 6 * math.sinh(e / 2), rtol=1e-12)
    assert divergences.clt_gdp(fdp.ApproxDP(epsilon=1.0, delta=0.1)) == INF


ALPHAS = np.array([0.0, 0.01, 0.1, 0.5, 0.9, 1.0])


@pytest.mark.slow
def test_edgeworth_is_exact_for_gaussians():
    found = divergences.edgeworth_beta(fdp.Gaussian(1.5).repeat(2), alpha=ALPHAS)
    truth = fdp.Gaussian(1.5).repeat(2).beta(alpha=ALPHAS)
    np.testing.assert_allclose(found, truth, atol=1e-13)


@pytest.mark.parametrize(
    ("config", "error"), [("std_s1_q1e-2_n1e3", 1.5e-4), ("mnist_s0.8", 1.5e-4)]
)
def test_edgeworth_improves_on_the_limit(config, error):
    entries = [e for e in dpsgd_truth("beta") if e["config"] == config]
    alphas, truth = (
        np.array([float(e[k]) for e in entries]) for k in ("alpha", "value")
    )
    noise, prob, steps = (entries[0][k] for k in ("sigma", "q", "N"))
    run = fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=steps)
    found = divergences.edgeworth_beta(run, alpha=alphas)
    limit = fdp.Gaussian(1 / divergences.clt_gdp(run)).beta(alpha=alphas)
    worst = np.max(np.abs(found - truth))
    assert worst < error
    assert worst < 0.1 * np.max(np.abs(limit - truth))


@pytest.mark.parametrize("size", [0.1, 1.0, 6.0])
def test_cumulants(size):
    x = mp.mpf(size)
    moments = [
        (
            LaplaceLoss(jnp.asarray(1 / size)),
            lambda w: mp.log(
                (w * mp.exp((w - 1) * x) + (w - 1) * mp.exp(-w * x)) / (2 * w - 1)
            ),
        ),
        (
            TwoPointLoss.of(jnp.asarray(size), jnp.asarray(0.0)),
            lambda w: mp.log(mp.cosh((w - 0.5) * x) / mp.cosh(x / 2)),
        ),
    ]
    for term, log_moment in moments:
        for included in (False, True):
            found = term.cumulants(included=included)
            truth = [mp.diff(log_moment, int(included), k) for k in (1, 2, 3, 4)]
            for one, other in zip(found, truth, strict=True):
                assert abs(exact(one) - other) < 1e-11 * x**2


@pytest.mark.slow
def test_edgeworth_derivative():
    def value(s, a):
        run = fdp.DPSGD(noise_multiplier=s, sampling_prob=0.01, num_steps=1e4)
        return divergences.edgeworth_beta(run, alpha=a)

    slopes = jax.grad(value, argnums=(0, 1))(1.0, 0.1)
    ends = [(value(1 + h, 0.1), value(1.0, 0.1 + h)) for h in (1e-6, -1e-6)]
    for k in range(2):
        np.testing.assert_allclose(
            slopes[k], (ends[0][k] - ends[1][k]) / 2e-6, rtol=1e-6
        )


@pytest.mark.parametrize(
    "value",
    [
        divergences.zcdp,
        divergences.auc,
        pytest.param(lambda run: divergences.gdp(run).mu, marks=pytest.mark.slow),
    ],
)
def test_float32_programs_round_outward(value):
    double = float(value(fdp.Laplace(3.0)))
    with jax.enable_x64(False):
        single = jitted(lambda b: value(fdp.Laplace(b)))(jnp.float32(3.0))
        assert single.dtype == jnp.float32
    assert double <= float(single) <= double * (1 + 3e-7)


@pytest.mark.parametrize("sigma", [0.3, 1.25])
def test_area_of_laplace_has_its_exact_derivative(sigma):
    found = jax.grad(lambda s: divergences.auc(fdp.Laplace(s)))(sigma)
    # 1 - e^-mu (1/2 + mu / 4) with mu = 1 / sigma.
    mu = 1 / sigma
    truth = -(mu**2) * math.exp(-mu) * (1 + mu) / 4
    assert float(found) == pytest.approx(truth, rel=1e-13)


_slopes_of_regret = jitted(
    jax.grad(lambda e, m: divergences.gdp_regret(fdp.PureDP(e), mu=m), (0, 1))
)


@pytest.mark.slow
@pytest.mark.parametrize("place", [(0.5, 0.25), (1.3465, 0.3428)])
def test_gradient_of_the_regret_follows_the_kink(place):
    def truth(epsilon, mu):
        tail = lambda x: 0.5 * jax.scipy.special.erfc(x / math.sqrt(2))
        near, far = epsilon / mu - 0.5 * mu, epsilon / mu + 0.5 * mu
        return (tail(near) - jnp.exp(epsilon) * tail(far)) / (1 + jnp.exp(epsilon))

    found = _slopes_of_regret(*place)
    np.testing.assert_allclose(found, jax.grad(truth, (0, 1))(*place), rtol=1e-8)


def test_mu_on_the_grid():
    """Compositions serve all thresholds of a round; mu = 2 Phi^-1(3/4) is known."""
    answer = fdp.FromProbabilities([0.75, 0.25], [0.25, 0.75])
    found = fdp.divergences.gdp(answer.using("grid"), delta=1e-10)
    exact = float(_mu_of_pure(math.log(3)))
    assert found.mu_lower <= exact <= found.mu * (1 + 1e-9)
    assert float(found.mu) == pytest.approx(exact, rel=1e-6)
