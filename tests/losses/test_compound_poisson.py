"""Jumps of a few sizes by lists of counts, against sums of their own in mpmath."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.stats
from programs import jitted

import fdp_jax as fdp
from fdp_jax import Bound, Status
from fdp_jax.losses import AtomicLoss, listed_jumps
from fdp_jax.mechanisms import resolve

mp: Any = mpmath
mp.mp.dps = 40

PAIRS = [
    ([0.8, -0.5], [0.7, 0.3]),
    ([-0.3, -0.11], [4.0, 9.0]),
    ([1.0, -0.7, 0.2], [0.2, 0.1, 0.5]),
    ([0.3, 0.2, 0.1, -0.1], [0.02, 0.01, 0.03, 0.05]),
    ([0.3, 0.2, -0.1, 0.7, -0.4, 0.25, 0.1], [2e-5, 3e-6, 1e-6, 2e-5, 3e-6, 1e-5, 0]),
]


def _outputs(jumps, rates):
    """Losses and masses under P and Q, down to 1e-30 under both."""
    sizes, means = [mp.mpf(x) for x in jumps], [mp.mpf(r) for r in rates]
    drift = mp.fsum(r - r * mp.exp(x) for x, r in zip(sizes, means, strict=True))
    columns = []
    for x, r in zip(sizes, means, strict=True):
        high, column, n = max(r, r * mp.exp(x)), [], 0
        mass = mp.exp(-r)
        while n <= high or mass * max(1, mp.exp(n * x)) > 1e-40:
            column.append((n * x, mass))
            n += 1
            mass *= r / n
        columns.append(column)
    larger = lambda loss, p: p * max(1, mp.exp(loss))
    found = [(drift, mp.mpf(1))]
    for i, column in enumerate(columns):
        # What all the others make of it at most.
        rest = mp.fprod(max(larger(*x) for x in left) for left in columns[i + 1 :])
        found = [
            (loss + x, p * mass)
            for (loss, p), (x, mass) in itertools.product(found, column)
            if larger(loss + x, p * mass) * rest > 1e-30
        ]
    return [(loss, p, p * mp.exp(loss)) for loss, p in found]


def _delta(outputs, epsilon):
    gamma = mp.exp(mp.mpf(epsilon))
    return mp.fsum(q - gamma * p for loss, p, q in outputs if loss > epsilon)


def _add(outputs):
    return [(-loss, q, p) for loss, p, q in outputs]


@pytest.mark.parametrize(
    ("jumps", "rates"),
    [pytest.param(*x, marks=[pytest.mark.slow] * (len(x[0]) == 4)) for x in PAIRS],
)
def test_profiles(jumps, rates):
    outputs = _outputs(jumps, rates)
    triplet = fdp.LevyTriplet(jumps=jumps, rates=rates)
    sides = [(triplet.remove, outputs), (triplet.add, _add(outputs))]
    for (side, truth), epsilon in itertools.product(sides, [-1.0, 0.0, 0.5, 2.0]):
        found, expected = side.bounds(epsilon=epsilon), _delta(truth, epsilon)
        assert float(found.lower) - 1e-25 <= expected <= float(found.upper)
        if expected > 1e-20:
            assert found.method == "closed_form"
            assert found.status == Status.TIGHT
            assert abs(float(found.estimate) / expected - 1) < 2e-13


def test_trade_off_function_and_bayes_error():
    jumps, rates = PAIRS[0]
    outputs = sorted(_outputs(jumps, rates), key=lambda x: -x[0])
    triplet = fdp.LevyTriplet(jumps=jumps, rates=rates)
    alpha = mp.mpf(0.1)
    left, power = alpha, mp.mpf(0)
    for _, p, q in outputs:
        share = min(1, left / p)
        left, power = left - share * p, power + share * q
        if left == 0:
            break
    found = triplet.remove.bounds(alpha=0.1)
    assert float(found.lower) <= 1 - power <= float(found.upper)
    assert abs(float(found.lower) - (1 - power)) < 1e-11
    error = mp.fsum(min(mp.mpf(0.3) * p, mp.mpf(0.7) * q) for _, p, q in outputs)
    found = triplet.remove.bounds(prior=0.3)
    assert float(found.lower) <= error <= float(found.upper)
    assert abs(float(found.estimate) / error - 1) < 1e-13


def test_epsilon_and_slopes():
    triplet = fdp.LevyTriplet(jumps=PAIRS[0][0], rates=PAIRS[0][1])
    outputs = _outputs(*PAIRS[0])
    found = triplet.remove.bounds(delta=1e-6)
    assert _delta(outputs, float(found.lower)) >= 1e-6
    assert _delta(outputs, float(found.upper)) <= 1e-6
    assert found.upper - found.lower < 1e-10
    slope = jax.grad(lambda e: triplet.remove.delta(epsilon=e))(0.5)
    alpha = mp.fsum(p for loss, p, _ in outputs if loss > 0.5)
    assert slope == pytest.approx(float(-mp.exp(0.5) * alpha), rel=1e-12)


@pytest.mark.parametrize(
    "rates", [[2.0], [0.7, 30.0], [0.1, 3.0, 5.0], [90.0, 90.0], [4e7]]
)
def test_what_is_not_listed_is_bounded(rates):
    sizes = np.log(2) * (1 + np.arange(len(rates))) / max(rates) ** 0.5
    found = listed_jumps(sizes, np.asarray(rates))
    assert found is not None
    assert found.missing is not None
    assert found.log_p.size <= 1 << 18
    for logs, missing in zip((found.log_q, found.log_p), found.missing, strict=True):
        total = scipy.special.logsumexp(logs)
        assert missing <= -77
        assert abs(total) < 2e-9 * (max(rates) > 1e6) + 1e-12
    # The count that is rarest of those listed is rarer than the bound allows for.
    assert np.min(found.log_p[np.isfinite(found.log_p)]) < found.missing[1]


def test_what_is_left_out_of_a_list_is_bounded_by_sums_over_all_counts():
    rates, sizes = np.asarray([1.3, 0.4]), np.asarray([0.7, -0.45])
    found = listed_jumps(sizes, rates)
    assert found is not None
    assert found.missing is not None
    drift = rates @ np.expm1(sizes)
    outputs = np.asarray(found.loss + drift)[np.isfinite(found.log_p)]
    outputs = set(np.round(outputs, 9).tolist())
    for law, missing in zip((rates * np.exp(sizes), rates), found.missing, strict=True):
        left = -mp.inf
        for n in itertools.product(range(200), repeat=2):
            if round(float(np.dot(sizes, n)), 9) not in outputs:
                log = sum(
                    k * mp.log(r) - r - mp.loggamma(k + 1)
                    for k, r in zip(n, law, strict=True)
                )
                left = max(left, log)
        # A thousand as likely ones are more than there are.
        assert left + mp.log(1000) <= float(missing)


def _delta_of_one_size(size, rate, epsilon):
    """By the tails of two Poisson variables, from the least count that matters."""
    size, mean, epsilon = mp.mpf(size), mp.mpf(rate), mp.mpf(epsilon)
    least = int(mp.ceil((epsilon + mean * mp.expm1(size)) / size))

    def tail(r):
        term = mp.exp(least * mp.log(r) - r - mp.loggamma(least + 1))
        total, n, peak = mp.mpf(0), least, term
        while n < r or term > 1e-30 * peak:
            n += 1
            total, term = total + term, term * r / n
            peak = max(peak, term)
        return total

    return tail(mean * mp.exp(size)) - mp.exp(epsilon) * tail(mean)


@pytest.mark.parametrize("rate", [1e5, 4e7])
def test_high_rates_against_one_poisson_pair(rate):
    size = 2 / np.sqrt(rate)
    triplet = fdp.LevyTriplet(jumps=[size, size], rates=[3.0, rate - 3.0])
    truth = _delta_of_one_size(size, rate, 1.0)
    found = triplet.remove.bounds(epsilon=1.0)
    assert float(found.lower) <= truth <= float(found.upper)
    assert found.upper / found.lower - 1 < 1e-8


@pytest.mark.parametrize("method", ["auto", "grid"])
@pytest.mark.parametrize(
    ("size", "rate", "epsilon"), [(1e-6, 1e4, 6e-4), (1.3e-9, 2000.0, 0.0)]
)
def test_small_jumps_are_not_rounded_with_the_rates(size, rate, epsilon, method):
    triplet = fdp.LevyTriplet(jumps=[size], rates=[rate])
    found = triplet.remove.using(method).bounds(epsilon=epsilon)
    truth = _delta_of_one_size(size, rate, epsilon)
    assert float(found.lower) <= truth <= float(found.upper)
    if method == "auto":
        assert abs(float(found.estimate) / truth - 1) < 1e-12


def test_a_count_of_high_mean_and_small_gain():
    mean, gain = 13702.245, 1.1375332086374267e-06
    found = fdp.PoissonMechanism(mean, gain).remove.bounds(epsilon=0.0)
    # Those of 13703 and more are likelier with the record.
    ends = mp.mpf(mean), mp.mpf(mean) + mp.mpf(gain)
    truth = mp.quad(lambda r: mp.exp(13702 * mp.log(r) - r), ends)
    truth *= mp.exp(-mp.loggamma(13703))
    assert float(found.lower) <= truth <= float(found.upper)
    assert abs(float(found.estimate) / truth - 1) < 1e-12


@pytest.mark.parametrize("share", [-1e-13, -1e-15, 0.0, 1e-15])
def test_next_to_the_largest_loss(share):
    size, rate = -28.15848365695825, 42676.00182193516
    triplet = fdp.LevyTriplet(jumps=[size], rates=[rate])
    largest = -mp.mpf(rate) * mp.expm1(mp.mpf(size))
    epsilon = float(largest * (1 + mp.mpf(share)))
    found = triplet.remove.bounds(epsilon=epsilon)
    # Nothing but no jump at all has a loss above it.
    truth = mp.exp(-mp.mpf(rate) * mp.exp(size)) * -mp.expm1(epsilon - largest)
    assert float(found.lower) <= max(truth, 0) <= float(found.upper)


@pytest.mark.parametrize(
    ("size", "rate"), [(18.0, 1.0), (24.0, 1e-3), (-17.0, 3e7), (14.0, 1.0)]
)
def test_rates_that_are_far_apart(size, rate):
    """One law has hardly any count above 60, and the other hardly any below."""
    triplet = fdp.LevyTriplet(jumps=[size], rates=[rate])
    means = sorted([rate, rate * np.exp(size)])
    low = scipy.stats.poisson.sf(60, means[0]), scipy.stats.poisson.cdf(60, means[1])
    for side in (triplet.remove, triplet.add):
        assert side.bounds(epsilon=1.0).upper >= 1 - np.e * sum(low)


@pytest.mark.parametrize("size", [-720.0, -746.0])
def test_rates_that_underflow(size):
    triplet = fdp.LevyTriplet(jumps=[size], rates=[1.0])
    for side, truth in (
        (triplet.remove, -np.expm1(-0.5)),
        (triplet.add, -np.expm1(-1.0)),
    ):
        found = side.bounds(epsilon=0.5)
        assert found.lower <= truth <= found.upper
        assert found.upper - found.lower < 1e-10
    rare = fdp.LevyTriplet(jumps=[0.6], rates=[1.74e-101 * np.exp(-0.6)])
    # Three counts have a chance of 1e-303, and a loss of 1.8.
    assert rare.remove.delta(epsilon=1.2 + 1e-9) > 3.96e-304


def test_compositions_of_counts():
    counts = fdp.PoissonMechanism(10.0, 1.0)
    both = fdp.compose(counts.repeat(2), fdp.PoissonMechanism(3.0, 2.0))
    first, second = np.log(11 / 10), np.log(5 / 3)
    same = fdp.LevyTriplet(jumps=[first, second], rates=[20.0, 3.0])
    (term,) = resolve(both).first.composed.terms
    assert isinstance(term, AtomicLoss)
    one, other = (x.bounds(epsilon=0.5) for x in (both, same))
    assert one.method == other.method == "closed_form"
    np.testing.assert_allclose(one.estimate, other.estimate, rtol=1e-13)


def test_enormous_small_and_missing_jumps():
    sizes = lambda jumps, rates: fdp.LevyTriplet(jumps=jumps, rates=rates)
    rare = sizes([0.8, 400.0], [0.7, 1e-170]).remove.bounds(epsilon=0.5)
    # Under Q of the rare jump: all but surely one.
    assert rare.upper == 1
    assert rare.lower > 1 - 1e-8
    tiny = sizes([1e-8, 2e-8], [0.5, 0.2]).remove.bounds(epsilon=0.0)
    truth = _delta(_outputs([1e-8, 2e-8], [0.5, 0.2]), 0.0)
    assert float(tiny.lower) <= truth <= float(tiny.upper)
    assert tiny.upper < tiny.lower * (1 + 1e-6)
    none = sizes([0.8, -0.5], [0.0, 0.0])
    assert none.delta(epsilon=0.5) == 0
    assert none.delta(epsilon=0.0, bound=Bound.ESTIMATE) == 0
    one = sizes([0.8, -0.5], [0.7, 0.0]).remove.bounds(epsilon=0.5)
    other = sizes([0.8], [0.7]).remove.bounds(epsilon=0.5)
    np.testing.assert_allclose(one.estimate, other.estimate, rtol=1e-14)


@pytest.mark.slow
def test_far_tails_are_left_to_the_grid():
    side = fdp.LevyTriplet(jumps=PAIRS[0][0], rates=PAIRS[0][1]).remove
    found = side.bounds(epsilon=300.0)
    assert found.upper < 1e-300
    assert side.log_delta(epsilon=300.0) < -1600


def test_comparisons():
    own, other = _outputs(*PAIRS[0]), _outputs(*PAIRS[2])
    one, two = (fdp.LevyTriplet(jumps=x, rates=r) for x, r in (PAIRS[0], PAIRS[2]))
    found = fdp.delta_divergence(two.remove, one.remove).value
    assert found.method == "closed_form"
    # The Bayes errors are linear in the prior between the losses that occur: of these
    # the likely ones are looked at.
    places = [x for x, p, q in own + other if max(p, q) > 1e-4]
    share = lambda e: 1 / (1 + mp.exp(e))
    gaps = [share(e) * (_delta(own, e) - _delta(other, e)) for e in places]
    np.testing.assert_allclose(float(found.estimate), float(max(gaps)), rtol=1e-11)
    assert float(found.lower) <= max(gaps) <= float(found.upper)
    assert found.upper - found.lower < 1e-10


@pytest.mark.slow
def test_gaussian_parameter_and_its_regret():
    counts, aside = fdp.PoissonMechanism(10.0, 1.0), 1e-6
    found = fdp.divergences.gdp(counts, delta=aside)
    assert found.mu_lower <= found.mu <= found.mu_lower * (1 + 1e-6)
    epsilons = np.linspace(0.0, 2.0, 2001)
    own = counts.delta(epsilon=epsilons, bound=Bound.OPTIMISTIC)
    gaussian = lambda mu: fdp.Gaussian(1 / mu).delta(epsilon=epsilons)
    assert np.all(own <= gaussian(found.mu) + aside)
    assert np.any(own > gaussian(0.9999 * found.mu_lower) + aside)
    # Between thresholds there may be a little more.
    regret = np.max((gaussian(found.mu) - own) / (1 + np.exp(epsilons)))
    assert -1e-9 <= found.regret - regret <= 1e-3 * regret


def test_traced_rates_are_left_to_the_grid():
    jumps, rates = PAIRS[0]

    def bounds(time):
        triplet = fdp.LevyTriplet(jumps=jumps, rates=rates).repeat(time)
        found = triplet.remove.bounds(epsilon=0.5)
        return found.lower, found.upper

    lower, upper = jitted(bounds)(1.0)
    truth = _delta(_outputs(jumps, rates), 0.5)
    assert float(lower) <= truth <= float(upper)
    with pytest.raises(ValueError, match="not available"):
        jitted(
            lambda r: (
                fdp.LevyTriplet(jumps=jumps, rates=jnp.stack([r, 0.3]))
                .remove.using("closed_form")
                .delta(epsilon=0.5)
            )
        )(0.7)


def test_inside_of_float32_programs():
    jumps, rates = PAIRS[0]
    with jax.enable_x64(False):
        found = fdp.LevyTriplet(jumps=jumps, rates=rates).remove.bounds(epsilon=0.5)
        assert found.upper.dtype == jnp.float32
    truth = _delta(_outputs(jumps, rates), 0.5)
    assert float(found.lower) <= truth <= float(found.upper)
    assert float(found.upper) / float(found.lower) - 1 < 1e-6


def test_lists_that_would_not_fit_into_memory():
    rates = [np.full(3, 1e6), np.full(1, 1e12), np.full(2, np.inf), np.full(450, 1e-18)]
    for many in rates:
        assert listed_jumps(np.linspace(0.1, 0.2, many.size), many) is None
