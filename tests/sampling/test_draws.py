"""Draws of every scheme: their laws, by exact tests with fixed keys."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from programs import jitted

import fdp_jax as fdp
from fdp_jax._internal import _draws

S = fdp.sampling
KEY = jax.random.key(5)
LEAST = 1e-4
"""Probability with which a right sampler would fail a test; the keys are fixed."""


def _drawn(scheme, records, steps, key=KEY):
    one = lambda step: scheme.participants(key, step, num_records=records)
    return np.asarray(jitted(jax.vmap(one))(jnp.arange(steps)))


def _fits(counts, probs):
    """The p-value of numbers of cases for their probabilities."""
    counts, expected = np.asarray(counts, float), np.asarray(probs) * np.sum(counts)
    few = expected < 5
    counts = np.append(counts[~few], counts[few].sum())
    expected = np.append(expected[~few], expected[few].sum())
    if expected[-1] < 1e-9 * expected.sum():
        assert counts[-1] == 0
        counts, expected = counts[:-1], expected[:-1]
    if counts.size == 1:
        return 1.0
    expected *= counts.sum() / expected.sum()
    return scipy.stats.chisquare(counts, expected).pvalue


def _sizes_fit(drawn, law):
    sizes = drawn.sum(axis=1)
    places = np.arange(drawn.shape[1] + 1)
    return _fits(np.bincount(sizes, minlength=places.size), law(places))


@pytest.mark.parametrize(
    ("scheme", "law"),
    [
        (S.Poisson(0.1), lambda n: scipy.stats.binom.pmf(n, 50, 0.1)),
        (S.UserLevel(0.2), lambda n: scipy.stats.binom.pmf(n, 50, 0.2)),
        (
            S.CyclicPoisson(0.3, num_groups=5),
            lambda n: scipy.stats.binom.pmf(n, 10, 0.3),
        ),
        (S.RandomAllocation(10), lambda n: scipy.stats.binom.pmf(n, 50, 0.1)),
        (S.FixedSize(batch_size=5, dataset_size=50), lambda n: (n == 5) * 1.0),
        (S.ShuffledEpochs(10), lambda n: (n == 5) * 1.0),
        (
            S.TruncatedPoisson(0.1, batch_size=6, dataset_size=50),
            lambda n: np.where(
                n < 6,
                scipy.stats.binom.pmf(n, 50, 0.1),
                (n == 6) * scipy.stats.binom.sf(5, 50, 0.1),
            ),
        ),
    ],
)
def test_sizes_of_batches_and_shares_of_records(scheme, law):
    drawn = _drawn(scheme, 50, 6000)
    assert _sizes_fit(drawn, law) > LEAST
    # No record, and no pair of records, is favored.
    often = drawn.sum(axis=0)
    if not isinstance(scheme, S.CyclicPoisson):
        assert _fits(often, np.full(50, 1 / 50)) > LEAST
        pairs = drawn.T.astype(float) @ drawn
        above = pairs[np.triu_indices(50, 1)]
        spread = np.sqrt(above.mean())
        assert np.max(np.abs(above - above.mean())) < 5.5 * spread
    again = _drawn(scheme, 50, 6000, jax.random.key(6))
    assert np.mean(drawn == again) < 1 - 1e-2


@pytest.mark.parametrize("same", [False, True])
def test_every_record_is_dealt_once_in_an_epoch(same):
    scheme = S.RandomAllocation(7, same_every_epoch=same)
    drawn = _drawn(scheme, 400, 21).reshape(3, 7, 400)
    np.testing.assert_array_equal(drawn.sum(axis=1), 1)
    place = drawn.argmax(axis=1)
    equal = np.mean(place[0] == place[1])
    assert equal == 1 if same else abs(equal - 1 / 7) < 0.08
    assert _fits(np.bincount(place[0], minlength=7), np.full(7, 1 / 7)) > LEAST


def test_several_participations_are_as_many_and_different():
    drawn = _drawn(S.RandomAllocation(6, num_participations=2), 3000, 6)
    np.testing.assert_array_equal(drawn.sum(axis=0), 2)
    first, second = np.sort(np.argsort(~drawn.T, axis=1, kind="stable")[:, :2]).T
    pairs = np.bincount(6 * first + second, minlength=36)
    assert _fits(pairs[pairs > 0], np.full(15, 1 / 15)) > LEAST


def _separated_law(prob, apart, warm, steps):
    """Probabilities of all patterns, step by step over those who still wait."""
    share = 1 / (1 + (apart - 1) * prob)
    start = {0: share} | dict.fromkeys(range(1, apart), prob * share)
    states: dict = {((), w): x for w, x in (start if warm else {0: 1.0}).items()}
    for _ in range(steps):
        following: dict = {}
        for (pattern, wait), mass in states.items():
            options = [(0, max(wait - 1, 0), 1.0)]
            if wait == 0:
                options = [(1, apart - 1, prob), (0, 0, 1 - prob)]
            for inside, then, chance in options:
                key = (*pattern, inside), then
                following[key] = following.get(key, 0.0) + mass * chance
        states = following
    law = np.zeros(2**steps)
    for (pattern, _), mass in states.items():
        law[int("".join(map(str, pattern)), 2)] += mass
    return law


@pytest.mark.parametrize(
    ("prob", "apart", "warm"),
    [(0.3, 3, True), (0.3, 3, False), (1.0, 4, True), (0.4, 1, True)],
)
def test_whoever_took_part_waits(prob, apart, warm):
    scheme = S.MinSeparation(prob, min_separation=apart, warm_start=warm)
    records, steps = 40_000, 7

    def one(memory, step):
        found, memory = scheme.next_participants(KEY, step, memory, num_records=records)
        return memory, found

    drawn = jax.lax.scan(one, scheme.memory(records), jnp.arange(steps))[1]
    drawn = np.asarray(drawn)
    patterns = drawn.T @ (1 << np.arange(steps)[::-1])
    law = _separated_law(prob, apart, warm, steps)
    assert _fits(np.bincount(patterns, minlength=law.size), law) > LEAST
    # Asked for out of order, from the key alone.
    for step in (0, 4):
        found = scheme.participants(KEY, step, num_records=records)
        np.testing.assert_array_equal(found, drawn[step])
    if warm:
        assert scheme.expected_size(records) == pytest.approx(
            records * law @ (np.arange(law.size) % 2), rel=1e-12
        )
        # Records are independent of each other: sums have a binomial law's spread.
        sums = drawn[5].reshape(200, -1).sum(axis=1)
        rate = float(scheme.rate())
        spread = np.sum((sums - 200 * rate) ** 2) / (200 * rate * (1 - rate))
        assert scipy.stats.chi2.cdf(spread, 200) > LEAST
        assert scipy.stats.chi2.sf(spread, 200) > LEAST


def test_groups_take_turns():
    drawn = _drawn(S.CyclicPoisson(1.0, num_groups=4), 10, 8)
    for step, batch in enumerate(drawn):
        np.testing.assert_array_equal(batch, np.arange(10) % 4 == step % 4)


def test_shuffled_epochs_are_partitions():
    drawn = _drawn(S.ShuffledEpochs(5), 40, 10).reshape(2, 5, 40)
    np.testing.assert_array_equal(drawn.sum(axis=1), 1)
    np.testing.assert_array_equal(drawn.sum(axis=2), 8)
    assert np.any(drawn[0] != drawn[1])


def test_what_is_kept_of_a_large_sample_does_not_depend_on_places():
    chosen = jnp.arange(20) % 2 == 0
    keys = jax.random.split(KEY, 5000)
    kept = jax.vmap(lambda key: _draws.subset_of(key, chosen, 3))(keys)
    kept = np.asarray(kept)
    np.testing.assert_array_equal(kept.sum(axis=1), 3)
    assert not kept[:, 1::2].any()
    assert _fits(kept.sum(axis=0)[::2], np.full(10, 0.1)) > LEAST


@pytest.mark.parametrize(
    "prob", [0.0, 2.0**-64, 1e-12, 2.0**-32, 1e-9, 1e-6, 0.1, 0.5, 1 - 2.0**-33, 1.0]
)
def test_probabilities_are_never_larger_than_stated(prob, monkeypatch):
    """Against all that two random words can be, near the end of those that count."""
    whole = lambda x: int(np.floor(np.longdouble(x) * 2.0**64))
    ends = divmod(whole(prob), 2**32)
    near = [np.clip(np.arange(-4, 5) + end, 0, 2**32 - 1) for end in ends]
    first, second = (x.ravel() for x in np.meshgrid(*near, indexing="ij"))
    numbers = [int(x) * 2**32 + int(y) for x, y in zip(first, second, strict=True)]

    def draw(prob):
        words = iter([first, second])
        bits = lambda *_: jnp.asarray(next(words).astype(np.uint32))
        monkeypatch.setattr(_draws.random, "bits", bits)
        return _draws.with_prob(KEY, prob, first.size)

    known = np.asarray(draw(np.float64(prob)))
    np.testing.assert_array_equal(known, [x < whole(prob) for x in numbers])
    with jax.enable_x64(False):
        single = np.float32(prob)
        found = np.asarray(jitted(draw)(single))
    over = np.asarray([x >= whole(float(single)) for x in numbers])
    assert not np.any(found & over)


@pytest.mark.parametrize(
    ("scheme", "records", "message"),
    [
        (S.FixedSize(prob=0.1), 55, "must make a whole batch"),
        (S.ShuffledEpochs(10), 55, "must be a multiple of num_batches = 10"),
        (
            S.TruncatedPoisson(0.1, batch_size=9, dataset_size=60),
            55,
            "must be 60, the dataset_size of batches of at most 9, got 55",
        ),
    ],
)
def test_numbers_of_records_that_do_not_fit_are_refused(scheme, records, message):
    with pytest.raises(ValueError, match=message):
        scheme.participants(KEY, 0, num_records=records)


def test_sizes_are_those_of_the_probability_that_is_accounted():
    """A calibration puts in another one: the batch then is that one's share."""
    scheme = S.FixedSize(batch_size=10, dataset_size=100)
    other = eqx.tree_at(lambda s: s.prob, scheme, 0.3)
    assert scheme.expected_size(100) == 10
    assert repr(scheme) == "sampling.FixedSize(batch_size=10, dataset_size=100)"
    assert other.expected_size(100) == 30
    assert repr(other) == "sampling.FixedSize(prob=0.3)"
    with pytest.raises(ValueError, match=r"must make a whole batch of its share 0\.3,"):
        other.participants(KEY, 0, num_records=99)
