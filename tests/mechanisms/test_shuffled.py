"""Shuffled reports: exact laws of small data sets, published values, and the pair."""

import collections
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import jitted
from scipy import stats

import fdp_jax as fdp


def _pure(epsilon):
    return fdp.PureDP(epsilon, relation="replace_one")


def _deltas(mechanism, epsilons):
    """Plain calls, whose programs all randomizers share."""
    more = np.resize(np.asarray(epsilons, float), 6)
    found = mechanism.bounds(epsilon=more).upper
    return np.asarray(found, float)[: len(epsilons)]


# ------------------------------------------------------------ all data sets, exactly


def _histograms(rows):
    """The law of the multiset of reports, one law each."""
    law = {(): 1.0}
    for row in rows:
        found = collections.defaultdict(float)
        for reports, prob in law.items():
            for report, chance in enumerate(row):
                found[tuple(sorted((*reports, report)))] += prob * chance
        law = found
    return law


def _hockey_stick(p, q, epsilon):
    return sum(
        max(p.get(x, 0.0) - math.exp(epsilon) * q.get(x, 0.0), 0.0) for x in {*p, *q}
    )


def _worst(table, num_records, epsilons):
    """The largest delta of any two neighboring data sets of an alphabet."""
    inputs = range(len(table))
    found = np.zeros(len(epsilons))
    for rest in itertools.combinations_with_replacement(inputs, num_records - 1):
        laws = [_histograms([table[x], *(table[y] for y in rest)]) for x in inputs]
        for p, q in itertools.permutations(laws, 2):
            each = [_hockey_stick(p, q, epsilon) for epsilon in epsilons]
            found = np.maximum(found, each)
    return found


def _response(epsilon, k):
    table = np.full((k, k), 1.0) + np.expm1(epsilon) * np.eye(k)
    return table / table.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("k", "num_records"), [(2, 1), (2, 7), (3, 2), (3, 5), (4, 4)])
@pytest.mark.parametrize("epsilon", [0.4, 1.0, 2.5])
def test_no_data_set_of_responses_leaks_more(k, num_records, epsilon):
    epsilons = epsilon * np.asarray([0.0, 0.1, 0.3, 0.6, 0.9, 0.999])
    truth = _worst(_response(epsilon, k), num_records, epsilons)
    randomizer = fdp.RandomizedResponse(epsilon)
    if k > 2:
        randomizer = fdp.KaryRandomizedResponse(epsilon, num_categories=k)
    found = _deltas(fdp.Shuffled(randomizer, num_records=num_records), epsilons)
    assert np.all(truth <= found)
    if k == 2:
        # At the largest losses some data set attains it.
        assert truth[-1] == pytest.approx(found[-1], rel=1e-5)


@pytest.mark.parametrize(("epsilon", "k"), [(0.7, 3), (1.5, 10), (3.0, 40)])
def test_responses_of_many_categories_have_the_bound_of_their_blanket(epsilon, k):
    # Balle et al. (2019), Lemma 5.3, summed over all counts of the blanket's reports.
    num_records, odds = 60, math.exp(epsilon)
    epsilons = epsilon * np.asarray([0.02, 0.1, 0.2, 0.4])
    least = 1 / (odds + k - 1)
    m, r = np.meshgrid(np.arange(61), np.arange(61), indexing="ij")
    law = stats.binom.pmf(m, num_records, 2 * least)
    law = law * stats.binom.pmf(r, num_records - m, (k - 2) * least / (1 - 2 * least))
    a = np.arange(61)[:, None, None]
    law, b = stats.binom.pmf(a, m, 0.5) * law, np.maximum(m - a, 0)
    truth = []
    for t in np.exp(epsilons):
        total = a * (odds - t) + b * (1 - odds * t) + r * (1 - t)
        truth.append(np.sum(law * np.maximum(total, 0)) / num_records)
    randomizer = fdp.KaryRandomizedResponse(epsilon, num_categories=k)
    found = _deltas(fdp.Shuffled(randomizer, num_records=num_records), epsilons)
    assert np.all(found >= np.array(truth) * (1 - 1e-12))
    # R is rounded down to 17 values, which is less than a hundredth of an epsilon.
    assert found == pytest.approx(np.array(truth), rel=0.12)


@pytest.mark.parametrize(("epsilon", "k"), [(0.5, 3), (2.0, 16), (5.0, 300)])
def test_responses_of_many_categories_leak_nearly_that(epsilon, k):
    randomizer = fdp.KaryRandomizedResponse(epsilon, num_categories=k)
    found = fdp.Shuffled(randomizer, num_records=10**6).bounds(delta=1e-6)
    two = fdp.Shuffled(fdp.RandomizedResponse(epsilon), num_records=10**6)
    assert float(found.upper) <= float(found.lower) * 1.002
    assert float(found.upper) < 0.95 * float(two.epsilon(delta=1e-6))


def test_a_pair_that_may_hold_no_coin_is_no_bound():
    # What docs/releases.md says of three categories and more: two reports.
    epsilon, k = 1.0, 3
    odds, least = math.exp(epsilon), 1 / (math.exp(epsilon) + k - 1)
    others = {(0, 0): 1 - 2 * least, (1, 0): least, (0, 1): least}
    pairs = []
    for own in ((odds, 1.0), (1.0, odds)):
        law = collections.defaultdict(float)
        for (a, b), prob in others.items():
            law[a + 1, b] += prob * least * own[0]
            law[a, b + 1] += prob * least * own[1]
            law[a, b] += prob * (1 - least * (odds + 1))
        pairs.append(law)
    near = [epsilon * (1 - 1e-6)]
    found = _hockey_stick(pairs[0], pairs[1], near[0])
    (truth,) = _worst(_response(epsilon, k), 2, near)
    assert truth == pytest.approx(odds * found, rel=1e-3)


def test_no_data_set_of_other_randomizers_leaks_more():
    rng, num_records = np.random.default_rng(5), 4
    gaps = []
    for _ in range(8):
        # Rows of a pure epsilon of 1: extreme ones, and some between.
        table = np.where(rng.random((3, 4)) < 0.5, 1.0, math.e)
        table = table / table.sum(axis=1, keepdims=True)
        losses = np.log(table[:, None] / table[None])
        epsilon = float(np.max(losses))
        if epsilon < 0.1:
            continue
        epsilons = epsilon * np.asarray([0.0, 0.3, 0.6, 0.9])
        truth = _worst(table, num_records, epsilons)
        mechanism = fdp.Shuffled(_pure(epsilon), num_records=num_records)
        gaps.append(_deltas(mechanism, epsilons) - truth)
    assert len(gaps) > 4
    assert np.min(gaps) >= 0


# ------------------------------------------------------------------ published values


@pytest.mark.parametrize(
    ("randomizer", "num_records", "epsilon"),
    [
        (_pure(4.0), 10**5, 0.16976975),
        (_pure(1.0), 10**4, 0.05300532),
        (fdp.RandomizedResponse(1.0), 10**4, 0.04320616),
        (fdp.RandomizedResponse(4.0), 10**5, 0.11815307),
        (fdp.Laplace(0.25, relation="replace_one"), 10**5, 0.16976975),
    ],
)
def test_epsilons_of_other_implementations(randomizer, num_records, epsilon):
    found = fdp.Shuffled(randomizer, num_records=num_records).bounds(delta=1e-6)
    assert float(found.upper) == pytest.approx(epsilon, rel=2e-7)
    attained = isinstance(randomizer, fdp.KaryRandomizedResponse | fdp.PureDP)
    assert (float(found.lower) > 0.6 * epsilon) == attained


# ------------------------------------------------------------ what data sets do leak


@pytest.mark.parametrize(("k", "num_records"), [(3, 1), (3, 2), (3, 5), (4, 4), (5, 3)])
@pytest.mark.parametrize("epsilon", [0.4, 1.0, 2.5])
def test_lower_ends_are_those_of_a_third_category(k, num_records, epsilon):
    epsilons = epsilon * np.asarray([0.0, 0.1, 0.3, 0.6, 0.9, 0.999])
    table = _response(epsilon, k)
    rest = [table[2]] * (num_records - 1)
    whole = [_histograms([table[x], *rest]) for x in (0, 1)]
    # All but two categories together.
    table = np.column_stack([table[:, :2], table[:, 2:].sum(axis=1)])
    rest = [table[2]] * (num_records - 1)
    laws = [_histograms([table[x], *rest]) for x in (0, 1)]
    most, truth = (
        np.array([_hockey_stick(p, q, x) for x in epsilons]) for p, q in (whole, laws)
    )
    assert np.all(truth <= most * (1 + 1e-12))
    randomizers = [fdp.KaryRandomizedResponse(epsilon, num_categories=k)]
    for randomizer in randomizers + [_pure(epsilon)] * (k == 3):
        with jax.enable_x64(True):
            mechanism = fdp.Shuffled(randomizer, num_records=num_records)
            found = np.asarray(mechanism.bounds(epsilon=epsilons).lower)
        assert np.all(found <= truth)
        np.testing.assert_allclose(found, truth, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("epsilon", "k", "num_records"), [(0.5, 3, 2500), (2.0, 4, 6000), (5.0, 7, 40_000)]
)
def test_lower_ends_of_many_reports_are_below_a_sum_over_all(epsilon, k, num_records):
    odds = math.exp(epsilon)
    least = 1 / (odds + k - 1)
    # All numbers of coins that matter, and all of their signs.
    law = num_records - 1, 2 * least
    low, high = (int(stats.binom.ppf(x, *law)) for x in (1e-14, 1 - 1e-14))
    epsilons = epsilon * np.asarray([0.01, 0.04, 0.1])
    truth = np.zeros(3)
    own = np.array([odds, 1.0, 1.0 - (odds + 1) * least])
    for m in range(low + 1, high + 2):
        a = np.arange(m + 1)
        # By P(a, b) = e u M(a - 1, b) + u M(a, b - 1) + (1 - (e + 1) u) M(a, b).
        coin = stats.binom.pmf(m - 1, *law) * 2 * least / m
        fair = stats.binom.pmf(a, m, 0.5) * coin
        rest = own[2] * (num_records - m) / (1 - 2 * least)
        p, q = own[0] * a + own[1] * (m - a), own[1] * a + own[0] * (m - a)
        gaps = p + rest - np.exp(epsilons)[:, None] * (q + rest)
        truth += np.maximum(gaps, 0) @ fair
    randomizer = fdp.KaryRandomizedResponse(epsilon, num_categories=k)
    with jax.enable_x64(True):
        mechanism = fdp.Shuffled(randomizer, num_records=num_records)
        found = np.asarray(mechanism.bounds(epsilon=epsilons).lower)
    assert np.all(found <= truth * (1 + 1e-9))
    assert np.all(found >= 0.995 * truth)


def test_lower_ends_of_responses_hold_for_every_question():
    epsilon, num_records = 1.5, 4
    table = _response(epsilon, 3)
    laws = [_histograms([table[x], *[table[2]] * 3]) for x in (0, 1)]
    p, q = (np.array([law.get(x, 0.0) for x in {**laws[0], **laws[1]}]) for law in laws)
    known = fdp.FromProbabilities(p, q, relation="replace_one")
    responses = fdp.KaryRandomizedResponse(epsilon, num_categories=3)
    mechanism = fdp.Shuffled(responses, num_records=num_records)
    for question in ({"alpha": 0.1}, {"alpha": 0.4}, {"prior": 0.3}, {"delta": 0.05}):
        found, truth = mechanism.bounds(**question), known.bounds(**question)
        assert float(found.lower) <= float(truth.upper)
        assert float(truth.lower) <= float(found.upper)
    near = mechanism.bounds(alpha=0.2).upper
    assert float(near) == pytest.approx(float(known.beta(alpha=0.2)), rel=2e-3)
    assert float(mechanism.repeat(2).bounds(delta=1e-3).lower) <= 0
    # With two categories, and in rounds, there is none.
    two = fdp.Shuffled(fdp.RandomizedResponse(epsilon), num_records=num_records)
    assert float(two.bounds(delta=1e-3).lower) <= 0


@pytest.mark.parametrize(
    ("epsilon", "num_records"), [(0.5, 10**4), (2.0, 10**6), (4.0, 1e8)]
)
def test_below_the_closed_bound(epsilon, num_records):
    # Theorem 3.1 of arXiv:2012.12803, in its closed form.
    odds, log = math.exp(epsilon), math.log(4e6)
    inner = 8 * math.sqrt(odds * log / num_records) + 8 * odds / num_records
    bound = math.log1p(math.expm1(epsilon) / (odds + 1) * inner)
    assert epsilon <= math.log(num_records / (16 * log))
    found = fdp.Shuffled(_pure(epsilon), num_records=num_records)
    assert 0 < float(found.epsilon(delta=1e-6)) < bound


# -------------------------------------------------------------------------- the pair


def _pair(num_records, epsilon, prob):
    """Losses and masses with the record, of all outcomes of the coins."""
    tau, losses, masses = math.tanh(epsilon / 2), [], []
    for size in range(1, num_records + 1):
        a = np.arange(size + 1)
        x = 2 * a / size - 1
        weight = stats.binom.pmf(size - 1, num_records - 1, prob)
        losses.append(np.log1p(tau * x) - np.log1p(-tau * x))
        masses.append(weight * stats.binom.pmf(a, size, 0.5) * (1 + tau * x))
    return np.concatenate(losses), np.concatenate(masses)


def test_all_queries_of_a_single_round():
    epsilon, n = 1.0, 300
    losses, masses = _pair(n, epsilon, math.exp(-epsilon))
    mechanism = fdp.Shuffled(_pure(epsilon), num_records=n)
    epsilons = np.asarray([0.0, 0.05, 0.2, 0.5, 0.9])
    excess = -np.expm1(np.minimum(epsilons[:, None] - losses, 0))
    truth = excess @ masses
    found = _deltas(mechanism, epsilons)
    assert np.all(found >= truth * (1 - 1e-6))
    assert found == pytest.approx(truth, rel=1e-6)
    # Error rates: the best test rejects the largest losses.
    order = np.argsort(-losses)
    alpha = np.cumsum(masses[order] * np.exp(-losses[order]))
    beta = 1 - np.cumsum(masses[order])
    for level in (0.01, 0.3):
        expected = np.interp(level, alpha, beta)
        assert float(mechanism.beta(alpha=level)) == pytest.approx(expected, rel=1e-5)
    assert float(mechanism.epsilon(delta=0.0)) == pytest.approx(epsilon)
    # Each direction by itself is known by the list, which dominates.
    listed = _deltas(mechanism.remove, epsilons)
    assert np.all(listed >= truth * (1 - 1e-6))
    assert listed == pytest.approx(truth, rel=2e-2)


def test_rounds_compose():
    epsilon, n, rounds = 1.0, 300, 4
    losses, masses = _pair(n, epsilon, 2 / (1 + math.exp(epsilon)))
    mechanism = fdp.Shuffled(fdp.RandomizedResponse(epsilon), num_records=n)
    epsilons = np.asarray([0.1, 0.4, 0.8])
    step, ends = 2e-5, []
    for rounded in (np.floor, np.ceil):
        places = rounded(losses / step).astype(int)
        law = np.bincount(places - places.min(), masses)
        size = 1 << (rounds * law.size).bit_length()
        total = np.fft.irfft(np.fft.rfft(law, size) ** rounds, size)
        sums = (np.arange(size) + rounds * places.min()) * step
        excess = -np.expm1(np.minimum(epsilons[:, None] - sums, 0))
        ends.append(excess @ total)
    found = _deltas(mechanism.repeat(rounds), epsilons)
    assert np.all(ends[0] <= found * (1 + 1e-6))
    assert np.all(found <= ends[1] * (1 + 5e-3))


def test_one_record_has_no_cover():
    epsilons = np.asarray([0.0, 0.3, 0.9])
    alone = fdp.Shuffled(_pure(1.0), num_records=1)
    assert _deltas(alone, epsilons) == pytest.approx(_deltas(_pure(1.0), epsilons))
    # Nor is there any if reports all but tell what they are of.
    epsilon, n = 40.0, 1000
    found = _deltas(fdp.Shuffled(_pure(epsilon), num_records=n), epsilons)[0]
    assert found == pytest.approx(1.0, abs=1e-7)


def test_what_is_next_to_no_privacy_is_called_so():
    for epsilon, n in ((590.0, 10**9), (1000.0, 10**9)):
        mechanism = fdp.Shuffled(_pure(epsilon), num_records=n)
        assert float(mechanism.epsilon(delta=1e-6)) == pytest.approx(epsilon)
        assert float(mechanism.delta(epsilon=epsilon)) <= 0
    # A randomizer that is not pure, where nobody can see that it is not.
    ask = lambda noise: fdp.Shuffled(
        fdp.Gaussian(noise, relation="replace_one"), num_records=100
    ).epsilon(delta=1e-6)
    assert float(jitted(ask)(1.0)) == np.inf


def test_more_records_and_smaller_epsilons_leak_less():
    numbers = jnp.asarray([1.0, 10.0, 1e3, 3e4, 1e5, 1e8, 1e12])
    ask = jitted(
        jax.vmap(
            lambda e, n: fdp.Shuffled(_pure(e), num_records=n).epsilon(delta=1e-6),
        )
    )
    found = np.asarray(ask(jnp.full(7, 2.0), numbers))
    assert np.all(np.diff(found) < 0)
    found = np.asarray(ask(jnp.linspace(0.5, 3.5, 7), jnp.full(7, 1e5)))
    assert np.all(np.diff(found) > 0)


# ---------------------------------------------------------- derivatives, calibration


def test_derivative_in_the_randomizer():
    def ask(epsilon, rounds):
        mechanism = fdp.Shuffled(_pure(epsilon), num_records=1e5)
        mechanism = mechanism if rounds == 1 else mechanism.repeat(rounds)
        return mechanism.bounds(delta=1e-6).estimate

    with jax.enable_x64(True):
        for rounds in (1, 10):
            slope = float(jax.grad(ask)(4.0, rounds))
            ends = [float(ask(4.0 + h, rounds)) for h in (-0.02, 0.02)]
            assert slope == pytest.approx((ends[1] - ends[0]) / 0.04, rel=2e-3)


def test_calibrations():
    target = fdp.targets.ApproxDP(epsilon=0.1, delta=1e-6)
    fewest = fdp.calibrate(fdp.Shuffled(_pure(1.0)), target, solve_for="num_records")
    assert float(fewest.value) == round(float(fewest.value))
    for n, meets in ((float(fewest.value), True), (float(fewest.value) - 2, False)):
        reached = fdp.Shuffled(_pure(1.0), num_records=n).epsilon(delta=1e-6)
        assert (float(reached) <= 0.1) == meets
    most = fdp.calibrate(
        fdp.Shuffled(_pure(1.0), num_records=10**4),
        target,
        solve_for="randomizer.epsilon0",
    )
    reached = most.mechanism.epsilon(delta=1e-6)
    assert float(reached) == pytest.approx(0.1, rel=1e-6)


# ------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("randomizer", "num_records", "error", "message"),
    [
        (fdp.PureDP(1.0), 10, ValueError, "replacing its record.*ADD_OR_REMOVE_ONE"),
        (
            fdp.KaryRandomizedResponse(1.0, num_categories=3, relation="zero_out"),
            10,
            ValueError,
            "replacing its record.*ZERO_OUT",
        ),
        (
            fdp.ApproxDP(epsilon=1.0, delta=1e-9, relation="replace_one"),
            10,
            TypeError,
            "pure epsilon.*ApproxDP",
        ),
        (
            fdp.Gaussian(1.0, relation="replace_one"),
            10,
            TypeError,
            "pure epsilon.*Gaussian",
        ),
        (1.0, 10, TypeError, "randomizer must be a mechanism"),
        (_pure(1.0), 0, ValueError, r"num_records must be .*\[1, 1e12\], got 0"),
        (_pure(1.0), 2.5, ValueError, r"num_records must be .*got 2.5"),
        (
            _pure(1.0),
            1e13,
            ValueError,
            r"num_records must be .*got 1e\+?13|10000000000",
        ),
    ],
)
def test_refusals(randomizer, num_records, error, message):
    with pytest.raises(error, match=message):
        fdp.Shuffled(randomizer, num_records=num_records)


@pytest.mark.parametrize("epsilon0", [5.0, 20.0, 599.0, 650.0, 710.0, 1000.0])
def test_a_record_alone_has_what_its_randomizer_leaks(epsilon0):
    randomizer = fdp.PureDP(epsilon0, relation="replace_one")
    reports = fdp.Shuffled(randomizer, num_records=1)
    places = np.concatenate([[-3.0, 0.0, 1.0], epsilon0 - np.array([4.0, 0.5, 1e-3])])
    found, wanted = (x.bounds(epsilon=places) for x in (reports, randomizer))
    assert np.all(np.asarray(found.upper) >= np.asarray(wanted.lower))
    assert np.asarray(found.upper) == pytest.approx(np.asarray(wanted.upper), rel=1e-9)
    deltas = np.array([1e-9, 0.5, 0.6, 0.99, 0.999])
    found, wanted = (x.bounds(delta=deltas) for x in (reports, randomizer))
    assert np.all(np.asarray(found.upper) >= np.asarray(wanted.lower))
    wanted = pytest.approx(np.asarray(wanted.upper), rel=1e-7, abs=1e-8)
    assert np.asarray(found.upper) == wanted
