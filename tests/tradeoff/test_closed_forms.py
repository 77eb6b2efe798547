"""Closed forms and what is made of them against reference values."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from reference import checks, exact
from scipy import stats

import fdp_jax as fdp
from fdp_jax import Bound, tradeoff

CLOSED = 1e-12


def _entries(*prefixes):
    """Entries of checks.json whose id starts with one of the prefixes."""
    topics = {p.split(".")[1] for p in prefixes}
    found = [e for e in checks(*topics) if e["id"].startswith(prefixes)]
    assert found
    return [pytest.param(e, id=e["id"]) for e in found]


def _agree(bounds, entry, width=1e-6):
    """The estimate has the printed digits, and a narrow bracket contains the truth."""
    truth = mp.mpf(entry["value_str"])
    truncated = abs(truth) * max(CLOSED, mp.mpf(10) ** (1 - entry["digits"]))
    lower, estimate, upper = map(exact, (bounds.lower, bounds.estimate, bounds.upper))
    assert abs(estimate - truth) <= truncated
    assert lower - abs(truth) * 1e-15 <= truth <= upper + abs(truth) * 1e-15
    assert lower <= estimate <= upper
    assert upper - lower <= width * abs(truth) + 1e-15


def _near(value, entry):
    truth = mp.mpf(entry["value_str"])
    assert abs(exact(value) - truth) <= CLOSED * abs(truth)


def _approx_dp(p):
    epsilon, delta = (p.get(n + "0", p.get(n)) for n in ("eps", "delta"))
    return tradeoff.ApproxDP(epsilon=epsilon, delta=delta)


FAMILIES = {
    "gdp": lambda p: tradeoff.Gaussian(p["mu"]),
    "laplace": lambda p: tradeoff.Laplace(p["mu"]),
    "epsdelta": _approx_dp,
    "sgm": lambda p: tradeoff.Subsampled(tradeoff.Gaussian(1 / p["sigma"]), p["p"]),
    "G1": lambda p: tradeoff.Gaussian(1.0),
    "Lap1": lambda p: tradeoff.Laplace(1.0),
}


def _family(entry):
    name = entry["id"].split(".")[1].split("_")[0]
    name = name if name in FAMILIES else entry["id"].split(".")[2]
    return FAMILIES[name](entry["params"])


@pytest.mark.parametrize(
    "entry", _entries("01.gdp_f.mu", "01.laplace_f", "01.epsdelta_f", "01.sgm_fp")
)
def test_beta(entry):
    f, alpha = _family(entry), entry["params"]["alpha"]
    if alpha < 0.99:
        _agree(f.bounds(alpha=alpha), entry)
    else:  # the table means the decimal number, which 1 - alpha in floats is not
        tnr = round(1 - alpha, 9)
        _near(f.beta_at_tnr(tnr=tnr, bound=Bound.ESTIMATE), entry)
        assert f.beta_at_tnr(tnr=tnr) <= entry["value"]


@pytest.mark.parametrize("mu", [1e-6, 0.7, 40.0])
def test_logistic(mu):
    """f(a) = (1 - a) / (1 + (e^mu - 1) a), and its profile by definition."""
    f, size = tradeoff.Logistic(mu), mp.mpf(mu)
    for alpha in (1e-300, 1e-3, 0.4, 1 - 1e-9):
        a = mp.mpf(alpha)
        beta = (1 - a) / (1 + mp.expm1(size) * a)
        miss = abs(exact(f.log_beta(alpha=alpha)) - mp.log(beta))
        assert miss < 2e-12 * (1 + abs(mp.log(beta)))
        found = f.bounds(fpr=alpha)
        power = mp.e**size * a / (1 + mp.expm1(size) * a)
        assert exact(found.lower) <= power <= exact(found.upper)
        slope = mp.e**size / (1 + mp.expm1(size) * a) ** 2
        assert abs(exact(f.log_slope(alpha=alpha)) - mp.log(slope)) < 1e-12 * (1 + size)
    for share in (-1.5, -0.9, -0.2, 0.0, 0.3, 0.999, 1.5):
        e = size * mp.mpf(share)
        # Where the slope is -e^eps: 1 + (e^mu - 1) alpha = e^{(mu - eps) / 2}.
        a = mp.expm1((size - min(max(e, -size), size)) / 2) / mp.expm1(size)
        delta = 1 - (1 - a) / (1 + mp.expm1(size) * a) - mp.e**e * a
        found = f.bounds(epsilon=float(e))
        at = exact(float(e))  # what the float is
        slack = abs(at - e) + mp.mpf(10) ** -300
        assert exact(found.lower) <= delta + slack
        assert exact(found.upper) >= delta - slack
        assert exact(found.upper) - exact(found.lower) <= 1e-10 * abs(delta) + slack
    place = 0.3 * mu
    bound = f.as_mechanism().delta(epsilon=place)  # on the grid
    np.testing.assert_allclose(bound, f.delta(epsilon=place), rtol=1e-3)
    group = fdp.limits.group_guarantee(f, 3)
    assert isinstance(group, tradeoff.Logistic)
    chain = tradeoff.Group(f, 3)
    np.testing.assert_allclose(group.beta(alpha=0.2), chain.beta(alpha=0.2), rtol=1e-9)


@pytest.mark.parametrize("entry", _entries("01.gdp_f.one_minus"))
def test_power(entry):
    _agree(_family(entry).bounds(fpr=entry["params"]["alpha"]), entry)


@pytest.mark.parametrize("entry", _entries("01.gdp_f.logf"))
def test_log_beta(entry):
    f = _family(entry)
    _near(f.log_beta(alpha=entry["params"]["alpha"], bound=Bound.ESTIMATE), entry)


@pytest.mark.parametrize(
    "entry", _entries("01.gdp_fixed", "01.laplace_fixed", "01.epsdelta_fixed")
)
def test_fixed_point(entry):
    f = _family(entry)
    _near(f.fixed_point(bound=Bound.ESTIMATE), entry)
    assert f.fixed_point() <= entry["value"] <= f.fixed_point(bound=Bound.OPTIMISTIC)


@pytest.mark.parametrize(
    "entry", _entries("01.gdp_delta", "01.laplace_delta", "01.epsdelta_delta")
)
def test_delta(entry):
    _agree(_family(entry).bounds(epsilon=entry["params"]["eps"]), entry)


@pytest.mark.parametrize("entry", _entries("01.gdp_logdelta"))
def test_log_delta(entry):
    f = _family(entry)
    _near(f.log_delta(epsilon=entry["params"]["eps"], bound=Bound.ESTIMATE), entry)


def test_conjugate():
    (entry,) = checks("conj")
    delta = tradeoff.Gaussian(1.0).delta(epsilon=0.5, bound=Bound.ESTIMATE)
    _near(delta - 1, entry)


def test_parameters_of_given_guarantees():
    (mu,), (sigma,) = checks("gdp_mu"), checks("gdp_sigma")
    for value, entry in ((mu["value"], mu), (1 / sigma["value"], sigma)):
        p = entry["params"]
        delta = tradeoff.Gaussian(value).delta(epsilon=p["eps"], bound=Bound.ESTIMATE)
        np.testing.assert_allclose(delta, p["delta"], rtol=1e-11)
    (entry,) = checks("pure_to_gdp")
    pure = tradeoff.ApproxDP(epsilon=1.0, delta=0.0).fixed_point(bound=Bound.ESTIMATE)
    gdp = tradeoff.Gaussian(entry["value"]).fixed_point(bound=Bound.ESTIMATE)
    np.testing.assert_allclose(pure, gdp, rtol=CLOSED)


@pytest.mark.parametrize("entry", _entries("01.gdp_eps"))
def test_epsilon(entry):
    _agree(_family(entry).bounds(delta=entry["params"]["delta"]), entry)


@pytest.mark.parametrize("entry", _entries("01.bayes.G1", "01.bayes.Lap1"))
def test_bayes_error(entry):
    _agree(_family(entry).bounds(prior=entry["params"]["pi"]), entry)


@pytest.mark.parametrize("entry", _entries("01.tv.G1", "01.tv.Lap1"))
def test_advantage(entry):
    _near(_family(entry).advantage(bound=Bound.ESTIMATE), entry)


@pytest.mark.parametrize("entry", _entries("01.sup_recovers"))
def test_best_threshold(entry):
    _near(tradeoff.Gaussian(1.0).log_slope(alpha=entry["params"]["alpha"]), entry)


@pytest.mark.parametrize("entry", _entries("01.sgm_sym"))
def test_symmetrized(entry):
    f = _family(entry).symmetrized()
    _agree(f.bounds(alpha=entry["params"]["alpha"]), entry, width=1e-4)


@pytest.mark.parametrize("entry", _entries("01.sgm_delta"))
def test_subsampled_profile(entry):
    f = _family(entry)
    f = f if ".remove." in entry["id"] else f.inverse()
    _agree(f.bounds(epsilon=entry["params"]["eps"]), entry)


def _kinks_of_group(epsilon, delta):
    """Where 1 - f(1 - f) bends: at the kinks of f, and where 1 - f reaches one."""
    fixed = (1 - delta) / (1 + np.exp(epsilon))
    reached = (fixed - delta) / np.exp(epsilon)
    flat = 1 - delta - np.exp(epsilon) * delta
    return sorted([reached, fixed, flat, 1 - delta])


def test_groups():
    (entry,) = checks("group2")
    f = tradeoff.Group(tradeoff.ApproxDP(epsilon=1.0, delta=0.05), 2)
    _agree(f.bounds(alpha=entry["params"]["alpha"]), entry)
    # The vertices of the composed function, by hand.
    alpha = np.asarray([0.0, *_kinks_of_group(1.0, 0.05), 1.0])
    beta = np.asarray(f.beta(alpha=alpha, bound=Bound.ESTIMATE))
    for epsilon in (-3.0, -0.5, 0.0, 1.5, 2.0, 3.0):
        found = f.bounds(epsilon=epsilon)
        delta = np.max(1 - beta - np.exp(epsilon) * alpha)
        np.testing.assert_allclose(found.estimate, delta, rtol=1e-12)
        assert found.lower <= delta * (1 + 1e-15) <= found.upper * (1 + 1e-14)
    (entry,) = checks("group3")
    f, truth = tradeoff.Group(tradeoff.Gaussian(0.5), 3), tradeoff.Gaussian(1.5)
    _agree(f.bounds(alpha=entry["params"]["alpha"]), entry)
    for epsilon in (-8.0, -1.0, 0.0, 1.0, 10.0, 20.0):
        found = f.bounds(epsilon=epsilon)
        delta = truth.delta(epsilon=epsilon, bound=Bound.ESTIMATE)
        np.testing.assert_allclose(found.estimate, delta, rtol=1e-11)
        assert found.lower <= delta <= found.upper


def test_mixture():
    (entry,) = checks("mix")
    parts = tradeoff.Gaussian(2.0), tradeoff.Laplace(1.0)
    f = tradeoff.Mixture(parts, probs=[0.3, 0.7])
    _agree(f.bounds(epsilon=0.5), entry)
    same = tradeoff.Mixture([parts[1], parts[1]], probs=[0.3, 0.7])
    for alpha in (1e-9, 0.1, 0.9):
        found = same.bounds(alpha=alpha)
        truth = parts[1].beta(alpha=alpha, bound=Bound.ESTIMATE)
        np.testing.assert_allclose(found.estimate, truth, rtol=1e-11)
        assert found.lower <= truth <= found.upper


def test_symmetric_functions_stay_what_they_are():
    parts = tradeoff.Gaussian(2.0), tradeoff.Laplace(1.0)
    f = tradeoff.Mixture(parts, probs=[0.3, 0.7]).symmetric_maximum()
    (entry,) = checks("mix")
    _agree(f.bounds(epsilon=0.5), entry)
    group = tradeoff.Group(tradeoff.Gaussian(0.5), 3)
    for f in (group.symmetric_maximum(), group.symmetrized(), group.inverse()):
        alpha = np.asarray([1e-9, 0.1, 0.9])
        truth = stats.norm.cdf(stats.norm.isf(alpha) - 1.5)
        beta = f.beta(alpha=alpha, bound=Bound.ESTIMATE)
        np.testing.assert_allclose(beta, truth, rtol=1e-11)
    # Of one direction of a sampled mechanism nothing of the kind is claimed.
    sided = tradeoff.Subsampled(tradeoff.Gaussian(1.0), 0.5)
    mixed = tradeoff.Mixture([sided, parts[0]], probs=[0.5, 0.5])
    assert mixed.inverse() is not mixed
    assert mixed.symmetrized() is not mixed


def test_inverse_of_inverse_and_of_subsampled():
    f = tradeoff.Subsampled(tradeoff.Laplace(1.0), 0.3)
    back = f.inverse()
    assert back.inverse() is f
    for alpha in (1e-10, 0.05, 0.5, 0.95):
        beta = f.beta(alpha=alpha, bound=Bound.ESTIMATE)
        again = back.beta(alpha=beta, bound=Bound.ESTIMATE)
        np.testing.assert_allclose(again, alpha, rtol=1e-9, atol=1e-15)
    prior = np.asarray([0.2, 0.6])
    np.testing.assert_allclose(
        back.bayes_error(prior=prior), f.bayes_error(prior=1 - prior), rtol=1e-11
    )


EDGES = {
    "identity": (tradeoff.Identity(), (1.0, 0.0), 0.0),
    "blatant": (tradeoff.BlatantNonPrivacy(), (0.0, 0.0), 1.0),
    "gaussian": (tradeoff.Gaussian(2.0), (1.0, 0.0), 0.0),
    "no loss": (tradeoff.Gaussian(0.0), (1.0, 0.0), 0.0),
    "laplace": (tradeoff.Laplace(2.0), (1.0, 0.0), 0.0),
    "approx": (tradeoff.ApproxDP(epsilon=1.0, delta=0.05), (0.95, 0.0), 0.05),
    "certain": (tradeoff.ApproxDP(epsilon=1.0, delta=1.0), (0.0, 0.0), 1.0),
    "never": (tradeoff.Subsampled(tradeoff.Laplace(1.0), 0.0), (1.0, 0.0), 0.0),
    "always": (tradeoff.Subsampled(tradeoff.Laplace(1.0), 1.0), (1.0, 0.0), 0.0),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name):
    f, betas, end = EDGES[name]
    rates = f.beta(alpha=np.asarray([0.0, 1.0]), bound=Bound.ESTIMATE)
    np.testing.assert_allclose(rates, betas, rtol=1e-15)
    ends = f.delta(epsilon=np.asarray([-np.inf, np.inf]), bound=Bound.ESTIMATE)
    np.testing.assert_allclose(ends, (1.0, end), rtol=1e-15)
    np.testing.assert_array_equal(f.bayes_error(prior=np.asarray([0.0, 1.0])), 0)
    for query in (
        lambda x: f.beta(alpha=x),
        lambda x: f.tpr(fpr=x),
        lambda x: f.bayes_error(prior=x),
        lambda x: f.delta(epsilon=10 * x - 5),
    ):
        values = np.asarray(query(np.asarray([1e-300, 1e-12, 0.25, 0.5, 0.75, 1.0])))
        assert np.all((values >= 0) & (values <= 1))


def test_gradients():
    def delta(mu, share, epsilon):
        f = tradeoff.Subsampled(tradeoff.Gaussian(mu), share)
        return f.delta(epsilon=epsilon)

    point = (1.2, 0.3, 0.4)
    found = jitted(jax.grad(delta, argnums=(0, 1, 2)))(*map(jnp.asarray, point))

    def truth(mu, share, epsilon):
        e = mp.log(1 + (mp.exp(epsilon) - 1) / share)
        a = e / mu - mu / 2
        return share * (mp.ncdf(-a) - mp.exp(e) * mp.ncdf(-a - mu))

    for i, value in enumerate(found):
        order = tuple(int(i == k) for k in range(3))
        np.testing.assert_allclose(
            value, float(mp.diff(truth, point, order)), rtol=1e-9
        )


@pytest.mark.slow
def test_gradients_are_finite():
    def beta(mu, share, alpha):
        f = tradeoff.Subsampled(tradeoff.Laplace(mu), share).symmetrized()
        return f.beta(alpha=alpha)

    for alpha in (0.0, 1.0):
        found = jax.grad(beta, argnums=(0, 1))(1.0, 0.2, alpha)
        assert np.all(np.isfinite(found))


@pytest.mark.parametrize(
    "f",
    [
        tradeoff.Gaussian(1.0),
        tradeoff.ApproxDP(epsilon=1.0, delta=0.05),
        tradeoff.Identity(),
    ],
    ids=lambda f: type(f).__name__,
)
def test_as_mechanism(f):
    mechanism = f.as_mechanism()
    assert isinstance(mechanism, fdp.AbstractMechanism)
    found = mechanism.delta(epsilon=0.3, bound=Bound.ESTIMATE)
    np.testing.assert_allclose(
        found, f.delta(epsilon=0.3, bound=Bound.ESTIMATE), rtol=1e-13
    )


def test_sampling_at_the_smallest_loss():
    """Next to log(1 - p), and with p next to 1, where differences lose digits."""
    pair = tradeoff.TradeOff.from_probabilities([0.5, 0.5, 0.0], [0.0, 0.5, 0.5])
    for share in (0.3, 0.07, 0.81):
        g = tradeoff.Subsampled(pair, share).inverse()
        assert 0 <= g.delta(epsilon=-np.log1p(-share)) < 1e-12
        assert np.isfinite(g.tpr(fpr=0.05))
    g = tradeoff.Subsampled(pair, 0.3).inverse()
    # P = (.5, .35 + .15, .15), so the best test of level .05 has power .05 / .7.
    np.testing.assert_allclose(g.beta(alpha=0.05), 1 - 0.05 / 0.7, rtol=1e-10)
    q, e = 1 - mp.mpf(10) ** -9, mp.mpf(20)
    # delta_rev(e) = 1 - e^e (1 - delta(-e)), by the definition of the pair.
    share = 1 - 1e-9
    q = mp.mpf(share)
    x = (mp.log(mp.e**-e - (1 - q)) - mp.log(q)) / 4 + 2
    delta = q * mp.ncdf(4 - x) + (1 - q - mp.e**-e) * mp.ncdf(-x)
    truth = 1 - mp.e**e * (1 - delta)
    found = tradeoff.Subsampled(tradeoff.Gaussian(4.0), share).inverse()
    bounds = found.bounds(epsilon=20.0)
    assert exact(bounds.lower) <= truth <= exact(bounds.upper)
    assert bounds.upper - bounds.lower < 1e-9 * bounds.upper


def _mixed_line(mu, alpha):
    f = tradeoff.Mixture(
        [tradeoff.Laplace(mu), tradeoff.Laplace(2 * mu)], probs=[0.5, 0.5]
    )
    return f.beta(alpha=alpha)


def _inverse_line(mu, alpha):
    return tradeoff.Subsampled(tradeoff.Laplace(mu), 0.375).inverse().beta(alpha=alpha)


def _mixed_truth(mu, alpha):
    """The tangent at eps = mu."""
    return 1 - 0.5 * (1 - jnp.exp(-0.5 * mu)) - jnp.exp(mu) * alpha


def _inverse_truth(mu, alpha):
    """The flat piece p (1 - x) e^-mu + (1 - p) (1 - x), solved for x."""
    return 1 - alpha / (0.375 * jnp.exp(-mu) + 0.625)


@pytest.mark.parametrize(
    ("found", "truth", "alpha"),
    [(_mixed_line, _mixed_truth, 0.0625), (_inverse_line, _inverse_truth, 0.25)],
    ids=["mixture", "inverse"],
)
def test_gradients_on_lines_between_kinks_that_move(found, truth, alpha):
    place = 1.25, alpha
    value, slopes = jitted(jax.value_and_grad(found, (0, 1)))(*place)
    assert value == pytest.approx(float(truth(*place)), rel=1e-12)
    np.testing.assert_allclose(slopes, jax.grad(truth, (0, 1))(*place), rtol=1e-10)
