"""Poisson trade-off functions and rounded observations."""

# Tests give wrong types on purpose, and numbers of any kind.
# pyright: reportArgumentType=false

import itertools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from reference import divisible_checks, exact

import fdp_jax as fdp
from fdp_jax import Bound
from fdp_jax.tradeoff import Poisson, QuantizedGaussian, quantized

ESTIMATE = Bound.ESTIMATE


def _checked(found, lower, entry):
    truth = mp.mpf(entry["value_str"])
    assert abs(exact(found) - truth) <= mp.mpf(10) ** -14 * truth
    assert exact(lower) <= truth * (1 + mp.mpf(10) ** -15)


@pytest.mark.parametrize("entry", divisible_checks("poisson_f"), ids=lambda e: e["id"])
def test_curve_of_two_counts(entry):
    p = entry["params"]
    f, alpha = Poisson(p["l1"], p["l2"]), p["alpha"]
    _checked(f.beta(alpha=alpha, bound=ESTIMATE), f.beta(alpha=alpha), entry)


@pytest.mark.parametrize(
    "entry",
    divisible_checks("poisson_delta", "poisson_delta_rev"),
    ids=lambda e: e["id"],
)
def test_profile_of_two_counts(entry):
    p = entry["params"]
    f = Poisson(p["l1"], p["l2"])
    found = f.delta(epsilon=p["eps"], bound=ESTIMATE)
    lower = f.delta(epsilon=p["eps"], bound=Bound.OPTIMISTIC)
    _checked(found, lower, entry)


@pytest.mark.parametrize(
    "entry", divisible_checks("poisson_sym"), ids=lambda e: e["id"]
)
def test_symmetrized_curve(entry):
    f = Poisson(1.0, 2.0).symmetrized()
    alpha = entry["params"]["alpha"]
    _checked(f.beta(alpha=alpha, bound=ESTIMATE), f.beta(alpha=alpha), entry)


def test_rates_of_zero():
    alpha = jnp.asarray([0.0, 1e-9, 0.1, 0.5, 1.0])
    cases = {
        (0.0, 0.0): 1 - alpha,
        (0.0, 2.0): np.exp(-2) * (1 - alpha),
        (2.0, 0.0): np.maximum(0, 1 - alpha * np.exp(2)),
        (1.5, 1.5): 1 - alpha,
    }
    for rates, truth in cases.items():
        found = Poisson(*rates).beta(alpha=alpha, bound=ESTIMATE)
        np.testing.assert_allclose(found, truth, rtol=1e-13, atol=1e-15)
    ends = jnp.asarray([-jnp.inf, jnp.inf])
    found = Poisson(0.0, 2.0).delta(epsilon=ends, bound=ESTIMATE)
    np.testing.assert_allclose(found, [1.0, 1 - np.exp(-2)], rtol=1e-14)
    np.testing.assert_array_equal(Poisson(2.0, 1.0).delta(epsilon=ends), [1.0, 0.0])


def _profile(p, q, epsilon):
    return np.sum(np.maximum(q - np.exp(epsilon)[:, None] * p, 0), axis=1)


def test_profile_beside_losses_on_one_side_of_zero():
    """The only finite loss is -2 or 2, and the thresholds lie on both sides of it."""
    epsilon = np.asarray([-3.0, -1.0, -1e-3, 0.0, 0.5, 1.9, 2.5])
    mass = np.exp(-2.0)
    some, none = np.asarray([mass, 1 - mass]), np.asarray([1.0, 0.0])
    for f, p, q in ((Poisson(2.0, 0.0), some, none), (Poisson(0.0, 2.0), none, some)):
        found = f.bounds(epsilon=epsilon)
        truth = _profile(p, q, epsilon)
        np.testing.assert_allclose(found.lower, truth, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(found.upper, truth, rtol=1e-10, atol=1e-14)
        assert np.all(found.upper >= truth * (1 - 1e-14))
        both = f.symmetrized().delta(epsilon=epsilon)
        worst = np.maximum(truth, _profile(q, p, epsilon))
        np.testing.assert_allclose(both, worst, rtol=1e-10, atol=1e-14)
    delta = lambda rate, e: Poisson(rate, 0.0).delta(epsilon=e, bound=ESTIMATE)
    slopes = jax.grad(delta, (0, 1))(2.0, 0.5)
    np.testing.assert_allclose(slopes, [np.exp(-1.5), -np.exp(-1.5)], rtol=1e-12)


def test_the_inverse_undoes_the_function():
    f = Poisson(3.0, 7.0)
    alpha = jnp.asarray([0.0, 1e-4, 0.1, 0.6, 1.0])
    beta = f.beta(alpha=alpha, bound=ESTIMATE)
    back = f.inverse().beta(alpha=beta, bound=ESTIMATE)
    np.testing.assert_allclose(back, alpha, rtol=1e-11, atol=1e-15)


def test_bernoulli_counts_tend_to_it_with_an_error_of_order_one_over_n():
    limit = float(Poisson(1.0, 2.0).beta(alpha=0.1, bound=ESTIMATE))
    errors = []
    for entry in divisible_checks("bern_limit"):
        n = entry["params"]["n"]
        counts = np.arange(n + 1.0)
        log_choose = np.asarray([float(mp.log(mp.binomial(n, int(k)))) for k in counts])
        laws = []
        for rate in (1.0, 2.0):
            q = rate / n
            laws.append(
                np.exp(log_choose + counts * np.log(q) + (n - counts) * np.log1p(-q))
            )
        keep = np.minimum(laws[0], laws[1]) > 1e-290
        p, q = (law[keep] / law[keep].sum() for law in laws)
        f = fdp.tradeoff.TradeOff.from_probabilities(p, q)
        found = float(f.beta(alpha=0.1, bound=ESTIMATE))
        assert found == pytest.approx(float(entry["value_str"]), rel=1e-11)
        errors.append(abs(found - limit) * n)
    assert max(errors) / min(errors) < 1.2
    assert max(errors) < 0.2


def test_derivatives_of_the_curve():
    def beta(one, other):
        return Poisson(one, other).beta(alpha=0.1, bound=ESTIMATE)

    found = jax.grad(beta, (0, 1))(1.0, 2.0)
    step = 1e-5
    for i, unit in enumerate(np.eye(2) * step):
        up, down = (beta(1.0 + s * unit[0], 2.0 + s * unit[1]) for s in (1, -1))
        assert float(found[i]) == pytest.approx(float(up - down) / (2 * step), rel=1e-7)
    each = jax.vmap(beta, (0, None))(jnp.asarray([0.5, 1.0]), 2.0)
    assert float(each[1]) == pytest.approx(float(beta(1.0, 2.0)), rel=1e-14)


# ----------------------------------------------------------------- rounded outputs


@pytest.mark.parametrize("entry", divisible_checks("quant"), ids=lambda e: e["id"])
def test_rounded_gaussians(entry):
    f, alpha = QuantizedGaussian(entry["params"]["mu"]), entry["params"]["alpha"]
    _checked(f.beta(alpha=alpha, bound=ESTIMATE), f.beta(alpha=alpha), entry)


def _binned(mu, width, offset):
    cuts = mp.mpf(offset) + mp.mpf(width) * mp.mpf(1) * np.arange(-60, 61)
    masses = []
    for mean in (0, mu):
        below = [mp.ncdf(c - mean) for c in cuts]
        masses.append([mp.mpf(b - a) for a, b in itertools.pairwise(below)])
    return masses


def test_profile_of_rounded_gaussians_against_the_sum():
    mu, width, offset = 1.3, 0.7, 0.2
    f = QuantizedGaussian(mu, width, offset)
    epsilons = jnp.asarray([-3.0, -0.4, 0.0, 0.8, 4.0])
    found = f.delta(epsilon=epsilons, bound=ESTIMATE)
    upper = f.delta(epsilon=epsilons)
    other = f.inverse().delta(epsilon=epsilons, bound=ESTIMATE)
    p, q = _binned(mu, width, offset)
    for i, epsilon in enumerate(epsilons):
        factor = mp.exp(exact(epsilon))
        truth = sum(max(b - factor * a, 0) for a, b in zip(p, q, strict=True))
        assert abs(exact(found[i]) - truth) <= mp.mpf(10) ** -13 * truth
        assert exact(upper[i]) >= truth
        back = sum(max(a - factor * b, 0) for a, b in zip(p, q, strict=True))
        assert abs(exact(other[i]) - back) <= mp.mpf(10) ** -12 * back


def test_curves_of_rounded_gaussians_next_to_their_cuts():
    """Widths below the threshold's last digits, and offsets of many widths."""
    random = np.random.default_rng(0)
    cases = [(1.0, 1e-15, 0.0, 0.3184919463833619), (0.0133, 8.2e-4, -5.6e11, 0.3)]
    for offset in (0.0, 1.0, -3.3e3, 1e7, 5.6e11):
        for _ in range(12):
            mu, width = 10 ** random.uniform(-3, 1), 10 ** random.uniform(-14, 1)
            alpha = random.choice([random.uniform(), 10 ** -random.uniform(1, 60)])
            cases.append((mu, width, offset, alpha))
    mu, width, offset, alpha = map(jnp.asarray, zip(*cases, strict=True))

    def ends(bound):
        one = lambda m, w, o, a: QuantizedGaussian(m, w, o).beta(alpha=a, bound=bound)
        return jitted(jax.vmap(one))(mu, width, offset, alpha)

    low, middle, high = map(ends, (Bound.PESSIMISTIC, ESTIMATE, Bound.OPTIMISTIC))
    cdf = lambda x: mp.erfc(-x / mp.sqrt(2)) / 2
    with mp.workdps(80):
        for i, case in enumerate(cases):
            m, w, o, a = map(mp.mpf, case)
            place = -mp.sqrt(2) * mp.erfinv(2 * a - 1)
            cut = o + mp.floor((place - o) / w) * w
            share = (a - cdf(-cut - w)) / (cdf(-cut) - cdf(-cut - w))
            truth = share * cdf(cut - m) + (1 - share) * cdf(cut + w - m)
            assert exact(low[i]) <= truth <= exact(high[i]), case
            assert abs(exact(middle[i]) - truth) <= 1e-12 * truth, case
            assert exact(high[i]) - exact(low[i]) <= 1e-8 * truth, case


def test_an_unknown_offset_gains_nothing():
    alpha = jnp.asarray([0.01, 0.2, 0.7])
    plain = fdp.tradeoff.Gaussian(1.0).beta(alpha=alpha, bound=ESTIMATE)
    offsets = jnp.linspace(0.0, 1.0, 33)
    beta = lambda o: QuantizedGaussian(1.0, 1.0, o).beta(alpha=alpha, bound=ESTIMATE)
    each = jax.vmap(beta)(offsets)
    assert np.all(np.asarray(each) >= np.asarray(plain) - 1e-14)
    # The infimum is attained where a cut passes through the threshold.
    places = jax.scipy.stats.norm.isf(alpha)
    worst = jax.vmap(beta)(places % 1.0)
    np.testing.assert_allclose(jnp.diag(worst), plain, rtol=1e-12)
    assert np.all(each.max(axis=0) > plain + 0.01)  # a known offset does gain
    assert float(QuantizedGaussian.with_unknown_offset(1.0).mu) == 1.0


def test_chords_of_any_monotone_family():
    cuts = jax.scipy.stats.norm.sf(jnp.arange(-8.0, 9.0))
    f = quantized(fdp.tradeoff.Gaussian(1.0), alpha=cuts)
    alpha = jnp.asarray([0.01, 0.05, 0.3, 0.7, 0.95])
    binned = QuantizedGaussian(1.0).beta(alpha=alpha, bound=ESTIMATE)
    np.testing.assert_allclose(f.beta(alpha=alpha), binned, rtol=1e-11)
    # Counts above a cut, as the Poisson family does: merging counts is a gain too.
    counts = quantized(Poisson(4.0, 6.0), alpha=[0.02, 0.3, 0.8])
    exact_curve = Poisson(4.0, 6.0).beta(alpha=alpha)
    assert np.all(counts.beta(alpha=alpha) >= exact_curve - 1e-12)


@pytest.mark.parametrize("rates", [(0.1, 0.1 + 1e-12), (7.3 + 1e-9, 7.3), (2.0, 3.0)])
def test_close_rates(rates):
    one, other = map(mp.mpf, rates)
    mass = lambda rate, k: mp.e**-rate * rate**k / mp.factorial(k)
    truth = sum(max(mass(other, k) - mass(one, k), 0) for k in range(120))
    found = Poisson(*rates).bounds(epsilon=0.0)
    assert mp.mpf(float(found.lower)) <= truth <= mp.mpf(float(found.upper))
    assert found.upper - found.lower < 1e-3 * float(truth)


def test_symmetric_maximum_of_counts_is_exact():
    """max(f, f^-1) at each alpha, both by enumeration."""

    def best(alpha, one, other):
        # Reject the counts with the largest odds, the last of them at random.
        order = range(80) if one > other else range(79, -1, -1)
        beta, left = mp.mpf(1), mp.mpf(alpha)
        mass = lambda rate, k: mp.exp(-rate) * mp.mpf(rate) ** k / mp.factorial(k)
        for k in order:
            share = min(1, left / mass(one, k))
            beta, left = beta - share * mass(other, k), left - share * mass(one, k)
        return beta

    f = Poisson(0.8, 2.5).symmetric_maximum()
    assert f.is_exact  # pyright: ignore[reportAttributeAccessIssue]
    for alpha in (0.05, 0.3, 0.7):
        truth = max(best(alpha, 0.8, 2.5), best(alpha, 2.5, 0.8))
        found = float(f.beta(alpha=alpha, bound=ESTIMATE))
        assert found == pytest.approx(float(truth), rel=1e-12)
        # An allowance for the rounding of sums over all counts.
        lower = exact(f.beta(alpha=alpha))
        assert truth * (1 - mp.mpf(10) ** -10) < lower <= truth
    assert float(f.beta(alpha=0.3)) == pytest.approx(0.225190, abs=1e-6)
