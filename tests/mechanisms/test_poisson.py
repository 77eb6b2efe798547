"""The Poisson mechanism for counts, and two Poisson counts as a loss."""

# Tests give wrong types on purpose, and numbers of any kind.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from reference import divisible_checks, exact
from scipy import stats

import fdp_jax as fdp
from fdp_jax import Bound
from fdp_jax._internal._counts import deviance, log_poisson
from fdp_jax.losses import PoissonLoss

PAIR = fdp.PoissonMechanism(1.0, 1.0)
EPSILONS = jnp.asarray([-1.3, 0.0, 0.4, 2.0])


def _log_pmf(k, mean):
    k, mean = mp.mpf(int(k)), mp.mpf(mean)
    return k * mp.log(mean) - mean - mp.loggamma(k + 1)


def _delta(low, high, epsilon, terms=400):
    """Sum of the positive parts, straight from the definition."""
    low, high, factor = mp.mpf(low), mp.mpf(high), mp.exp(mp.mpf(epsilon))
    p, q, total = mp.exp(-low), mp.exp(-high), mp.mpf(0)
    for k in range(terms):
        total += max(q - factor * p, 0)
        p, q = p * low / (k + 1), q * high / (k + 1)
    return total


def test_probabilities_are_accurate_in_both_tails():
    for mean in (0.3, 5.0, 2000.0):
        counts = np.unique(np.r_[0:40, np.round(mean * np.linspace(0.3, 2, 60))])
        found = log_poisson(counts, mean)
        for k, value in zip(counts, found, strict=True):
            truth = _log_pmf(k, mean)
            assert abs(exact(value) - truth) <= 2e-15 * (1 + abs(truth))
        where = counts > mean
        for k in counts[where][:: max(1, where.sum() // 8)]:
            truth = mp.gammainc(k, 0, mean, regularized=True)
            assert truth <= mp.exp(-exact(deviance(k, mean)))


@pytest.mark.parametrize("entry", divisible_checks("poismech"), ids=lambda e: e["id"])
def test_counts_elsewhere_leak_less(entry):
    # The neighbors y and y + 1 of the affine mechanism with means 1 + y.
    low, params = 1.0 + entry["params"]["y"], entry["params"]
    found = fdp.PoissonMechanism(low, 1.0).remove.beta(
        alpha=params["alpha"], bound=Bound.ESTIMATE
    )
    assert float(found) == pytest.approx(float(entry["value_str"]), rel=1e-13)
    assert float(found) >= float(PAIR.remove.beta(alpha=params["alpha"]))


def test_profile_of_both_directions_against_the_definition():
    for offset, gain in ((1.0, 1.0), (20.0, 0.5), (0.2, 6.0), (300.0, 30.0)):
        release = fdp.PoissonMechanism(offset, gain)
        high = offset + gain
        for side, pair in (
            (release.remove, (offset, high)),
            (release.add, (high, offset)),
        ):
            bounds = side.bounds(epsilon=EPSILONS)
            for i, epsilon in enumerate(EPSILONS):
                truth = _delta(*pair, float(epsilon), terms=1200)
                assert exact(bounds.lower[i]) <= truth <= exact(bounds.upper[i])
                gap = exact(bounds.upper[i]) - exact(bounds.lower[i])
                # The certificate of a closed form, rounding of the largest loss, and of
                # the logarithms of the masses: the least ones listed are about e^-690.
                room = 2e-11 * (1 + abs(mp.log(truth))) if truth else 0
                assert gap <= room * truth


def test_a_bounded_loss_in_one_direction_only():
    # X <= l2 - l1 where no count at all speaks for the record's absence.
    assert float(PAIR.add.epsilon(delta=0.0)) == pytest.approx(1.0, rel=1e-12)
    assert float(PAIR.remove.epsilon(delta=0.0)) == np.inf
    assert float(PAIR.log_delta(epsilon=200.0)) < -200


def test_repeating_adds_rates():
    # Sums of counts are sufficient: the same for any real number of releases.
    for times in (4, 0.5):
        run = PAIR.repeat(times).remove.bounds(epsilon=EPSILONS)
        for i, epsilon in enumerate(EPSILONS):
            truth = _delta(times, 2 * times, float(epsilon))
            assert exact(run.lower[i]) <= truth <= exact(run.upper[i])
            assert float(run.estimate[i]) == pytest.approx(float(truth), rel=1e-12)


def test_different_quotients_compose_on_the_grid():
    both = fdp.compose(PAIR, fdp.PoissonMechanism(2.0, 1.0))
    found = both.remove.bounds(epsilon=0.5)
    truth = mp.mpf(0)
    counts = range(60)
    first = [(mp.exp(_log_pmf(k, 1)), mp.exp(_log_pmf(k, 2))) for k in counts]
    second = [(mp.exp(_log_pmf(k, 2)), mp.exp(_log_pmf(k, 3))) for k in counts]
    for p, q in first:
        for r, s in second:
            truth += max(q * s - mp.exp(mp.mpf(0.5)) * p * r, 0)
    assert exact(found.lower) <= truth <= exact(found.upper)
    assert float(found.upper - found.lower) <= 1e-8


def test_order_theorem_on_random_pairs():
    # Rates l against m: the profile is smaller everywhere iff both conditions hold.
    rng = np.random.default_rng(0)
    epsilons = np.concatenate([-np.geomspace(1e-3, 8, 60), np.geomspace(1e-3, 8, 60)])
    counts = np.arange(120)

    def profile(low, high):
        p, q = (np.exp(np.asarray(log_poisson(counts, x))) for x in (low, high))
        return np.maximum(q - np.exp(epsilons)[:, None] * p, 0).sum(axis=1)

    held = 0
    for _ in range(80):
        low, base = rng.uniform(0.1, 4, 2)
        high, top = low + rng.uniform(0.05, 3), base + rng.uniform(0.05, 3)
        less = np.all(profile(low, high) <= profile(base, top) + 1e-13)
        expected = high - low <= top - base and high / low <= top / base
        if expected:
            held += 1
            assert less
    assert held >= 8
    # Necessity: each condition alone is not enough.
    assert np.any(profile(0.1, 1.0) > profile(3.0, 4.0) + 1e-3)  # quotient
    assert np.any(profile(10.0, 14.0) > profile(0.5, 2.0) + 1e-3)  # difference


def test_a_rate_of_one_s_own_is_drawn_with_the_law_it_states():
    def rate(data):
        return 3.0 + 2.0 * jnp.log1p(jnp.sum(data))

    bounds = {"largest_change": 2.0, "largest_log_change": 0.6}
    made = fdp.PoissonMechanism.lipschitz(**bounds, rate=rate)
    pair = fdp.PoissonMechanism.lipschitz(**bounds)
    assert float(made.offset) == float(pair.offset)
    data = np.array([1.0, 0.0, 4.0])
    mean = 3.0 + 2.0 * np.log(6.0)
    assert float(made.mean(data)) == pytest.approx(mean, rel=1e-12)
    keys = jax.random.split(jax.random.key(5), 4000)
    counts = jax.vmap(lambda key: made.sample(key, data))(keys)
    seen = np.bincount(np.asarray(counts, int), minlength=16)
    seen = np.append(seen[:15], seen[15:].sum())
    law = stats.poisson.pmf(np.arange(15), mean)
    law = np.append(law, 1 - law.sum())
    assert stats.chisquare(seen, 4000 * law)[1] > 1e-3
    with pytest.raises(TypeError, match="has no estimate"):
        made.estimate(3.0)
    with pytest.raises(TypeError, match="rate must be a function"):
        fdp.PoissonMechanism.lipschitz(**bounds, rate=2.0)
    wrong = fdp.PoissonMechanism.lipschitz(**bounds, rate=lambda x: -1.0)
    with pytest.raises(ValueError, match="rate must be positive"):
        wrong.sample(keys[0], data)


def test_lipschitz_form_has_the_pair_of_both_bounds():
    made = fdp.PoissonMechanism.lipschitz(largest_change=1.5, largest_log_change=0.4)
    low, high = float(made.offset), float(made.offset + made.gain)
    assert high - low == pytest.approx(1.5, rel=1e-14)
    assert np.log(high / low) == pytest.approx(0.4, rel=1e-13)
    with pytest.raises(ValueError, match=r"largest_log_change must be in \(0, 600\]"):
        fdp.PoissonMechanism.lipschitz(largest_change=1.0, largest_log_change=1000.0)


def test_group_of_records_moves_the_count_further():
    release = fdp.PoissonMechanism(2.0, 0.5, sensitivity=3.0)
    group = release.group(4)
    truth = _delta(2.0, 8.0, 0.4)
    found = group.remove.bounds(epsilon=EPSILONS)
    assert exact(found.lower[2]) <= truth <= exact(found.upper[2])


def test_estimate_is_unbiased_with_the_stated_variance():
    release = fdp.PoissonMechanism(3.0, 2.0)
    sample = release.sample(jax.random.key(1), jnp.full(40_000, 7.0))
    found = np.asarray(release.estimate(sample))
    variance = float(release.variance(7.0))
    assert variance == (3.0 + 14.0) / 4.0
    error = np.sqrt(variance / found.size)
    assert abs(found.mean() - 7.0) < 4 * error
    assert found.var() == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize("name", ["offset", "gain"])
def test_calibration_meets_its_target(name):
    target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5)
    family = fdp.PoissonMechanism(50.0, 1.0)
    found = fdp.calibrate(family, target, solve_for=name)
    reached = float(found.mechanism.delta(epsilon=1.0))
    assert 1e-5 * (1 - 1e-9) <= reached <= 1e-5


def test_gradients_and_batches():
    def delta(offset, gain):
        release = fdp.PoissonMechanism(offset, gain)
        return release.remove.delta(epsilon=0.4, bound=Bound.ESTIMATE)

    slope = jax.grad(delta, (0, 1))(2.0, 1.0)
    step = 1e-6
    for i, unit in enumerate(np.eye(2) * step):
        difference = _delta(2 + unit[0], 3 + unit.sum(), 0.4) - _delta(
            2 - unit[0], 3 - unit.sum(), 0.4
        )
        assert float(slope[i]) == pytest.approx(
            float(difference) / (2 * step), rel=1e-6
        )
    offsets = jnp.asarray([1.0, 2.0, 40.0])
    each = jax.vmap(lambda x: delta(x, 1.0))(offsets)
    for value, offset in zip(each, offsets, strict=True):
        truth = _delta(float(offset), float(offset) + 1, 0.4)
        assert float(value) == pytest.approx(float(truth), rel=1e-12)


def test_characteristic_function_against_its_definition():
    loss = PoissonLoss(jnp.asarray(2.0), jnp.asarray(3.5))
    order = jnp.asarray(0.7)
    plan = loss.prepare(loss.locate(order), jnp.asarray(10.0), jnp.asarray(-36.0))
    start, step = jnp.asarray(0.3), jnp.asarray(0.9)
    block = loss.log_characteristic(plan, start, step)
    x = mp.log(mp.mpf(3.5) / 2)
    total = lambda w: 2 * (mp.exp(w * x) - 1 - w * (mp.mpf(3.5) / 2 - 1))
    for k in (0, 5, 40):
        tau = exact(start) + k * exact(step)
        truth = total(mp.mpf(0.7) + 1j * tau) - total(mp.mpf(0.7))
        truth -= 1j * tau * exact(plan.center)
        found = mp.mpc(exact(block.real[k]), exact(block.imag[k]))
        assert abs(found - truth) <= exact(block.error[k]) <= 1e-13 * (1 + tau)


@pytest.mark.parametrize("mean", [3.0, 10.5, 300.0, 1e7, 1e10])
def test_law_of_the_sample(mean):
    # Cells of about equal chance; chi^2 with as many degrees of freedom.
    size, cells = 20_000, 20
    drawn = fdp.PoissonMechanism(0.5, 1.0).sample(
        jax.random.key(3), jnp.full(size, mean - 0.5)
    )
    ends = np.unique(stats.poisson.ppf(np.linspace(0, 1, cells + 1)[1:-1], mean))
    chances = np.diff(stats.poisson.cdf(ends, mean), prepend=0, append=1)
    place = np.searchsorted(ends, np.asarray(drawn))
    counts = np.bincount(place, minlength=chances.size)
    assert stats.chisquare(counts, size * chances).pvalue > 1e-4
    assert np.max(np.abs(np.asarray(drawn) - mean)) < 6.5 * np.sqrt(mean)


def test_counts_beyond_an_integer():
    # Without x64 there is no integer of this size, and no float64 but inside.
    release = fdp.PoissonMechanism(20.0, 1.0)
    with jax.enable_x64(False):
        for ask in (release.sample, jax.jit(lambda *x: release.sample(*x))):
            drawn = ask(jax.random.key(0), jnp.full(400, 1e10))
            off = (np.asarray(drawn, float) - 1e10) / 1e5
            assert abs(off.mean()) < 4 / 20
            assert 0.85 < off.std() < 1.15
    with pytest.raises(ValueError, match=r"offset \+ gain statistic must be at most"):
        release.sample(jax.random.key(0), 1e20)


def test_a_parameter_that_is_not_set_is_named():
    release = fdp.PoissonMechanism(20.0)
    for ask in (release.mean, release.variance, release.estimate):
        with pytest.raises(ValueError, match="gain of PoissonMechanism is not set"):
            ask(1.0)
    with pytest.raises(ValueError, match="gain of PoissonMechanism is not set"):
        release.sample(jax.random.key(0), 1.0)
