"""Every kind of target: round trips, derivatives, and where it binds."""

# Tests give wrong types on purpose, and numbers of any kind.
# pyright: reportArgumentType=false

import functools
import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from reference import dpsgd_truth
from scipy import optimize
from scipy.stats import norm

import fdp_jax as fdp
from fdp_jax import Status, targets

G_HALF = fdp.tradeoff.Gaussian(0.5)


def _run(sigma, q, steps):
    return fdp.DPSGD(noise_multiplier=sigma, sampling_prob=q, num_steps=steps)


def _below(run, reference, delta, most=4.0):
    """Whether delta is at most the reference's and delta, on a grid."""
    epsilons = np.linspace(0.0, most, 41)
    allowed = reference.delta(epsilon=epsilons, bound=fdp.Bound.OPTIMISTIC)
    return np.all(run.delta(epsilon=epsilons) <= allowed + delta)


def _within_a_bracket(found, target):
    room = found.upper - found.lower
    return found.estimate <= target.value and found.upper <= target.value + room


# kind: (a target for a random number in (0, 1), whether a run certainly meets it)
KINDS = {
    "ApproxDP": (
        lambda u: targets.ApproxDP(epsilon=0.3 + 5 * u, delta=10 ** (-4 - 4 * u)),
        # What is proved is delta(epsilon) <= delta; the query for epsilon has a
        # certificate of its own and can be 1e-11 above.
        lambda run, t: run.delta(epsilon=t.epsilon) <= t.delta,
    ),
    "ErrorRates": (
        lambda u: targets.ErrorRates(alpha=0.001 + 0.1 * u, beta=0.85 - 0.3 * u),
        lambda run, t: run.beta(alpha=t.alpha) >= t.beta,
    ),
    "Advantage": (
        lambda u: targets.Advantage(0.05 + 0.4 * u),
        lambda run, t: run.advantage() <= t.advantage,
    ),
    "BayesError": (
        lambda u: targets.BayesError(prior=0.3 + 0.5 * u, error=0.1 + 0.06 * u),
        lambda run, t: run.bayes_error(prior=t.prior) >= t.error,
    ),
    "BayesErrorShare": (
        lambda u: targets.BayesError(error=0.5 + 0.4 * u),
        lambda run, t: bool(
            np.all(
                run.bayes_error(prior=np.array([0.2, 0.5, 0.7]))
                >= t.error * np.array([0.2, 0.5, 0.3])
            )
        ),
    ),
    "Reconstruction": (
        lambda u: targets.Reconstruction(kappa=0.02 + 0.1 * u, value=0.2 + 0.3 * u),
        lambda run, t: (
            fdp.comparison.reconstruction_bound(run, kappa=t.kappa) <= t.value
        ),
    ),
    "TradeOff": (
        lambda u: targets.TradeOff(G_HALF, delta=10 ** (-5 - 4 * u)),
        lambda run, t: _below(run, G_HALF, t.delta),
    ),
    "DeltaDivergence": (
        lambda u: targets.DeltaDivergence(G_HALF, value=0.01 + 0.05 * u),
        # That of the query is another certificate, of about the same width.
        lambda run, t: _within_a_bracket(fdp.delta_divergence(G_HALF, run).value, t),
    ),
    "MuGDP": (
        lambda u: targets.MuGDP(0.3 + u, delta=1e-8),
        # Where it binds is about 5 mu.
        lambda run, t: _below(run, fdp.tradeoff.Gaussian(t.mu), t.delta, 10 * t.mu),
    ),
}
CASES = [
    pytest.param(k, id=k, marks=[pytest.mark.slow] * (k != "ApproxDP")) for k in KINDS
]


@pytest.mark.parametrize("kind", CASES)
def test_round_trip_on_random_configurations(kind):
    make, meets = KINDS[kind]
    random = np.random.default_rng(20)
    for _ in range(20 if kind == "ApproxDP" else 5):
        u = random.uniform()
        q, steps = 10 ** random.uniform(-2.5, -1.3), 10 ** random.uniform(3, 4)
        target = make(u)
        found = fdp.calibrate(
            _run(None, q, steps), target, solve_for="noise_multiplier"
        )
        sigma = float(found.value)
        assert meets(_run(sigma, q, steps), target), (q, steps, u)
        if sigma < 0.3 and int(found.status) == Status.LOOSE:
            # Fractional powers of a transform that comes near zero: safe, and said so.
            continue
        assert int(found.status) == Status.TIGHT
        assert not meets(_run(sigma * 0.999, q, steps), target), (q, steps, u)


@pytest.mark.parametrize(
    ("alpha", "power", "target"),
    [
        (0.01, 0.028, targets.ErrorRates(alpha=0.01, beta=0.972)),
        (0.1, 0.117, targets.Reconstruction(kappa=0.1, value=0.117)),
    ],
    ids=["error rates", "reconstruction"],
)
def test_rates_of_one_sampled_release(alpha, power, target, monkeypatch):
    # power = (1 - q) alpha + q Phi(1 / noise - z), z the quantile of 1 - alpha.
    q, z = 0.02, norm.isf(alpha)
    exact = 1 / (z + norm.ppf((power - (1 - q) * alpha) / q))
    asked, margin = [], type(target).margin

    def counted(self, loss):
        asked.append(loss)
        return margin(self, loss)

    monkeypatch.setattr(type(target), "margin", counted)
    found = fdp.calibrate(_run(None, q, 1), target, solve_for="noise_multiplier")
    # A rough grid says where it is: no program of a search, and few other questions.
    kinds = [type(x).__name__ for x in asked]
    assert set(kinds) == {"View", "DPSGD"}
    assert kinds.count("DPSGD") <= 5
    assert found.status == Status.TIGHT
    assert float(found.value) == pytest.approx(exact, rel=1e-6)


# Jumps with and without a Gaussian part, and counts: what is solved for, and the factor
# by which it is on the other side of the target.
JUMPS = {
    "gaussian_and_jumps": (
        lambda t: fdp.LevyTriplet(
            0.5, jumps=[0.8, -0.5], rates=[0.7, 0.3], num_steps=t
        ),
        "num_steps",
        1.01,
    ),
    "one_jump": (
        lambda t: fdp.LevyTriplet(jumps=[0.5], rates=[0.7], num_steps=t),
        "num_steps",
        1.01,
    ),
    "two_jumps": (
        lambda t: fdp.LevyTriplet(jumps=[0.3, -0.2], rates=[0.7, 0.3], num_steps=t),
        "num_steps",
        1.01,
    ),
    "counts": (lambda mean: fdp.PoissonMechanism(mean, 1.0), "offset", 0.99),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("one_jump", "Advantage"),
        ("counts", "ApproxDP"),
        pytest.param("gaussian_and_jumps", "BayesError", marks=pytest.mark.slow),
        pytest.param("one_jump", "ErrorRates", marks=pytest.mark.slow),
        pytest.param("two_jumps", "TradeOff", marks=pytest.mark.slow),
        pytest.param("counts", "MuGDP", marks=pytest.mark.slow),
    ],
)
def test_round_trip_of_jumps(name, kind):
    make, unknown, factor = JUMPS[name]
    if kind == "MuGDP":
        # Kinks bind between the thresholds that `meets` looks at.
        factor = factor**10
    target, meets = KINDS[kind][0](0.4), KINDS[kind][1]
    found = float(fdp.calibrate(make(None), target, solve_for=unknown).value)
    # Two sizes are certified by the grid; lists of counts, which answer queries where
    # rates are known, have certificates of their own, 1e-11 away.
    engine = "grid" if name == "two_jumps" else "auto"
    assert meets(make(found).using(engine), target)
    assert not meets(make(factor * found), target)


# ------------------------------------------------------------- independent derivatives


def _noise(epsilon, log_delta, q, steps):
    target = targets.ApproxDP(epsilon=epsilon, delta=jnp.exp(log_delta))
    run = _run(None, q, steps)
    return fdp.calibrate(run, target, solve_for="noise_multiplier").value


_noise_and_slopes = jax.value_and_grad(_noise, argnums=(0, 1, 2, 3))
TRUTHS = [
    e for e in dpsgd_truth("eps") if "deps_dsigma" in e and e["direction"] == "remove"
]


# Slopes of epsilon itself: test_compilation.py, all of them.
@pytest.mark.parametrize("entry", TRUTHS[::4], ids=lambda e: e["id"])
def test_slope_in_epsilon_is_that_of_the_truth(entry):
    """d sigma / d eps = 1 / (d eps / d sigma), where the truth is known.

    The noise is never below the truth, and above by what the bracket of eps may be off.
    """
    point = float(entry["value"]), math.log(float(entry["delta"])), entry["q"]
    value, slope = jax.value_and_grad(_noise)(*point, float(entry["N"]))
    assert 0 < float(value) / entry["sigma"] - 1 < 1e-9
    assert float(slope) == pytest.approx(1 / float(entry["deps_dsigma"]), rel=1e-7)


@pytest.mark.parametrize(
    ("point", "sigma", "by_sigma", "others"),
    [
        # sigma, q, N, delta: epsilon and its derivatives in sigma; log delta, q and N.
        # Contour integrals with Richardson differences, as printed.
        (
            (1.8282366665, 1e-5, 0.01, 1e3),
            *(1, -3.82261015, (-0.1320030, 198.19407, 8.82872e-4)),
        ),
        (
            (8.1851229678, 1e-8, 0.01, 1e4),
            *(1, -15.46913041, (-0.2593130, 915.25027, 4.40491e-4)),
        ),
        (
            (0.8901485096, 1e-6, 0.01, 1.5e3),
            *(2, -0.55975978, (-0.0488164, 95.738937, 3.09984e-4)),
        ),
    ],
)
def test_slopes_in_other_parameters(point, sigma, by_sigma, others):
    epsilon, delta, q, steps = point
    value, slopes = _noise_and_slopes(epsilon, math.log(delta), q, steps)
    assert float(value) == pytest.approx(sigma, rel=1e-9)
    for mine, theirs in zip(slopes[1:], others, strict=True):
        # The truths have six to eight digits.
        assert float(mine) == pytest.approx(-theirs / by_sigma, rel=5e-6)


# ------------------------------------------------------------------------- closed forms


def test_gaussian_meets_mu_gdp_exactly():
    found = fdp.calibrate(
        fdp.Gaussian(), targets.MuGDP(0.7), solve_for="noise_multiplier"
    )
    assert float(found.value) == pytest.approx(1 / 0.7, rel=1e-10)


@pytest.mark.parametrize("delta", [0.0, 1e-12])
@pytest.mark.parametrize("whole", [False, True])
def test_a_step_that_is_too_much_is_told_without_a_search(monkeypatch, delta, whole):
    monkeypatch.setattr("fdp_jax.calibration._calibrate.found_for", pytest.fail)
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01)
    target = targets.MuGDP(1e-9, delta=delta)
    with pytest.raises(fdp.UnreachableTarget, match=r"no num_steps .* 1e-09-GDP"):
        fdp.calibrate(run, target, solve_for="num_steps", whole=whole)


@pytest.mark.parametrize(
    ("mechanism", "solve_for"),
    [
        (fdp.DistributedDiscreteGaussian(2.0), "num_shares"),
        (
            fdp.compose(fdp.Gaussian(2.0).repeat(9), fdp.Gaussian(3.0).repeat(9)),
            lambda m: m.parts[0].num_steps + m.parts[1].num_steps,
        ),
    ],
)
def test_what_leaks_less_or_comes_in_numbers_is_searched(
    monkeypatch, mechanism, solve_for
):
    def searched(*_):
        raise InterruptedError

    monkeypatch.setattr("fdp_jax.calibration._calibrate.found_for", searched)
    with pytest.raises(InterruptedError):
        fdp.calibrate(mechanism, targets.MuGDP(1e-3), solve_for=solve_for)


def test_a_step_that_is_not_too_much_is_searched():
    for delta in (0.0, 1e-6):
        assert not targets.MuGDP(0.5, delta=delta).is_missed(fdp.Gaussian(2.0))
    assert targets.MuGDP(0.4999).is_missed(fdp.Gaussian(2.0))


RUNS = {
    "Laplace": fdp.Laplace,
    "DPSGD": lambda s: _run(s, 0.01, 3e3),
}
EACH_RUN = pytest.mark.parametrize("name", ["Laplace", "DPSGD"])


@functools.cache
def _mu_gdp_and_slopes(name):
    """The noise and where it binds, with derivatives in mu and delta: one program."""

    def noise(mu, delta):
        target = targets.MuGDP(mu, delta=delta)
        found = fdp.calibrate(RUNS[name](None), target, solve_for="noise_multiplier")
        return found.value, found.binding["epsilon"]

    return jitted(jax.value_and_grad(noise, argnums=(0, 1), has_aux=True))


@pytest.mark.slow
@EACH_RUN
def test_mu_gdp_but_for_a_probability_has_derivatives(name):
    """The excess can be exactly zero at the root, which once made them vanish."""
    own = jax.value_and_grad(
        lambda s, epsilon: RUNS[name](s).delta(epsilon=epsilon, bound="estimate")
    )
    theirs = jax.value_and_grad(
        lambda mu, epsilon: fdp.tradeoff.Gaussian(mu).delta(epsilon=epsilon)
    )
    for mu, delta in [(0.8, 1e-8), (0.8, 1e-6), (1.1, 1e-8)]:
        (sigma, epsilon), slopes = _mu_gdp_and_slopes(name)(mu, delta)
        # Where they touch: delta_run = delta_mu + delta.
        value, by_sigma = map(float, own(sigma, epsilon))
        allowed, by_mu = map(float, theirs(mu, epsilon))
        assert value == pytest.approx(allowed + delta, rel=0.02)
        slope = by_sigma / value * (allowed + delta)
        assert float(slopes[0]) == pytest.approx(by_mu / slope, rel=5e-3)
        assert float(slopes[1]) == pytest.approx(1 / slope, rel=5e-3)


ZERO_ASIDE = {
    # The total variations are equal: 1 - e^{-1 / (2 s)} = 1 - 2 Phi(-mu / 2).
    "Laplace": lambda mu: -0.5 / (math.log(2) + jax.scipy.stats.norm.logcdf(-mu / 2)),
    "DPSGD": lambda mu: math.sqrt(3e3) / mu,
}


@pytest.mark.slow
@EACH_RUN
def test_mu_gdp_without_anything_aside_is_found_with_a_traced_zero(name):
    (value, _), (by_mu, _) = _mu_gdp_and_slopes(name)(0.8, 0.0)
    known, slope = jax.value_and_grad(ZERO_ASIDE[name])(0.8)
    assert float(value) == pytest.approx(float(known), rel=1e-10)
    assert float(by_mu) == pytest.approx(float(slope), rel=1e-9)


@pytest.mark.slow
def test_a_gaussian_below_its_own_trade_off_function():
    """The corner is set aside, so that a little less noise than 1 / mu will do."""
    target = targets.TradeOff(G_HALF, delta=1e-10)
    found = fdp.calibrate(fdp.Gaussian(), target, solve_for="noise_multiplier")
    # At eps = 0 the total variation 0.197 may be larger by 1e-10.
    assert float(found.value) == pytest.approx(2, rel=1e-9)
    epsilons = np.linspace(0, 5, 101)
    mine = found.mechanism.delta(epsilon=epsilons)
    assert np.all(mine <= G_HALF.delta(epsilon=epsilons) + 1e-10 * (1 + 1e-9))
    assert 0 <= found.binding["alpha"] <= 0.5


@pytest.mark.slow
def test_a_piecewise_linear_reference_is_two_guarantees():
    """f_{eps, delta} everywhere is the same as (eps, delta)-DP."""
    reference = fdp.tradeoff.ApproxDP(epsilon=1.0, delta=1e-3)
    found = fdp.calibrate(
        fdp.Gaussian(),
        targets.TradeOff(reference, delta=0.0),
        solve_for="noise_multiplier",
    )
    alone = fdp.calibrate(
        fdp.Gaussian(),
        targets.ApproxDP(epsilon=1.0, delta=1e-3),
        solve_for="noise_multiplier",
    )
    truth = _gaussian_noise(1.0, 1e-3)
    for value in map(float, (found.value, alone.value)):
        assert truth * (1 - 1e-13) < value < truth * (1 + 1e-10)
    assert float(found.binding["epsilon"]) == pytest.approx(1.0, abs=1e-6)


def _gaussian_noise(epsilon, delta):
    """The noise multiplier at which delta_G(epsilon) = delta."""

    def excess(log_sigma):
        sigma, epsilon_ = mp.exp(mp.mpf(log_sigma)), mp.mpf(epsilon)
        shift, half = epsilon_ * sigma, 1 / (2 * sigma)
        found = mp.ncdf(half - shift) - mp.exp(epsilon_) * mp.ncdf(-half - shift)
        return float(mp.log(found / delta))

    return math.exp(optimize.brentq(excess, 0.0, 4.0, xtol=1e-14))


@pytest.mark.parametrize(
    ("reference", "delta", "allowed"),
    [
        (fdp.tradeoff.Laplace(1.0), 1e-10, 1e-10),
        (fdp.tradeoff.Laplace(1.0), 1e-6, 1e-6),
        (fdp.tradeoff.ApproxDP(epsilon=1.0, delta=1e-5), 1e-10, 1e-5 + 1e-10),
        (fdp.tradeoff.ApproxDP(epsilon=1.0, delta=0.0), 1e-10, 1e-10),
    ],
)
def test_a_reference_with_a_largest_loss(reference, delta, allowed):
    """At that loss, where the reference has a kink, delta is all that is allowed."""
    target = targets.TradeOff(reference, delta=delta)
    found = fdp.calibrate(fdp.Gaussian(), target, solve_for="noise_multiplier")
    truth = _gaussian_noise(1.0, allowed)
    assert truth * (1 - 1e-12) < float(found.value) < truth * (1 + 1e-9)
    assert float(found.binding["epsilon"]) == pytest.approx(1.0, abs=1e-9)


def test_largest_losses_that_the_search_is_not_told():
    """The kink of a mechanism's profile, in a given range, and steps of the noise."""
    target = targets.TradeOff(fdp.Laplace(1.0))
    found = fdp.calibrate(
        fdp.Gaussian(), target, solve_for="noise_multiplier", within=(1, 100)
    )
    assert float(found.value) == pytest.approx(5.867777749634, rel=1e-9)
    target = targets.TradeOff(fdp.tradeoff.Gaussian(1.2))
    run = fdp.Gaussian().repeat(5)
    found = fdp.calibrate(run, target, solve_for="noise_multiplier")
    assert float(found.value) == pytest.approx(math.sqrt(5) / 1.2, rel=1e-9)


def test_divergence_between_gaussians():
    """Both are Gaussian, so prior 1/2 decides: R = Phi(-mu / 2)."""
    target = targets.DeltaDivergence(G_HALF, value=0.02)
    found = fdp.calibrate(fdp.Gaussian(), target, solve_for="noise_multiplier")
    cdf = lambda x: 0.5 * math.erfc(-x / math.sqrt(2))
    mu = 1 / float(found.value)
    at_half = cdf(-0.25) - cdf(-mu / 2)
    assert at_half <= 0.02
    assert at_half == pytest.approx(0.02, rel=2e-3)


def test_the_active_target_is_reported():
    for epsilon, active in [(0.5, 0), (8.0, 1)]:
        both = targets.AllOf(
            targets.ApproxDP(epsilon=epsilon, delta=1e-6), targets.Advantage(0.25)
        )
        found = fdp.calibrate(fdp.Gaussian(), both, solve_for="noise_multiplier")
        assert int(found.binding["active"]) == active


# ---------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda: targets.BayesError(prior=0.3, error=0.3), "error must lie in"),
        (lambda: targets.BayesError(error=1.0), "error must lie in"),
        (lambda: targets.Reconstruction(kappa=0.2, value=0.1), r"value in \(kappa, 1"),
        (lambda: targets.MuGDP(0.0), "mu must be positive"),
        (lambda: targets.DeltaDivergence(G_HALF, value=0.5), "value must lie in"),
    ],
)
def test_out_of_reach(target, message):
    with pytest.raises(fdp.UnreachableTarget, match=message):
        fdp.calibrate(_run(None, 0.01, 1e3), target(), solve_for="noise_multiplier")


def test_targets_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match="at least one target"):
        targets.AllOf()
    with pytest.raises(TypeError, match=r"of fdp_jax\.targets"):
        targets.AllOf("epsilon")
    with pytest.raises(TypeError, match="reference must be"):
        targets.TradeOff(0.5)
    reference = fdp.Gaussian(1.0, relation=fdp.NeighboringRelation.REPLACE_ONE)
    with pytest.raises(ValueError, match="one under REPLACE_ONE"):
        fdp.calibrate(
            fdp.Gaussian(), targets.TradeOff(reference), solve_for="noise_multiplier"
        )


@pytest.mark.slow
def test_slopes_in_a_divergence():
    # Attained at prior 1/2: ndtr(-a / 2) - ndtr(-mu / 2) = x.
    def noise(x, a):
        target = fdp.targets.DeltaDivergence(fdp.tradeoff.Gaussian(a), value=x)
        return fdp.calibrate(fdp.Gaussian(), target, solve_for="noise_multiplier").value

    x, a = 0.02, 1.0
    value, slopes = jax.value_and_grad(noise, argnums=(0, 1))(x, a)
    with mp.workdps(30):
        error = mp.ncdf(-mp.mpf(a) / 2) - mp.mpf(x)
        mu = -2 * mp.sqrt(2) * mp.erfinv(2 * error - 1)
        by_x = -2 / mp.npdf(mu / 2) / mu**2
        by_a = -mp.npdf(mp.mpf(a) / 2) / mp.npdf(mu / 2) / mu**2
    assert float(value) == pytest.approx(float(1 / mu), rel=5e-3)
    assert float(slopes[0]) == pytest.approx(float(by_x), rel=1e-7)
    assert float(slopes[1]) == pytest.approx(float(by_a), rel=1e-7)
