"""Sampling schemes, against all batches of all tiny data sets."""

import itertools
import math

import batches
import equinox as eqx
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax import sampling
from fdp_jax.mechanisms import resolve

EPSILONS = np.array([-0.4, 0.0, 0.5, 1.5])
VALUES = (-1.0, -0.4, 0.0, 1.0)
ADD, REPLACE, ZERO = "add_or_remove_one", "replace_one", "zero_out"
GRID = 2e-7
"""What the brute force is off by."""


def run(scheme, relation, num_steps=1, noise=1.0):
    return fdp.DPSGD(
        noise_multiplier=noise,
        sampling=scheme,
        num_steps=num_steps,
        relation=relation,
    )


def neighbors(relation, others, values=VALUES, empty=0.0):
    """Pairs of data sets: without the record, and with it."""
    for rest in itertools.combinations_with_replacement(values, others):
        if relation == ADD:
            yield from ((list(rest), [*rest, x]) for x in (0.6, 1.0))
        elif relation == ZERO:
            yield from (([*rest, empty], [*rest, x]) for x in (0.6, 1.0))
        else:
            pairs = itertools.permutations((-1.0, 0.0, 1.0), 2)
            yield from (([*rest, x], [*rest, y]) for x, y in pairs)


def leaks(law, pairs, noise=1.0, thresholds=EPSILONS, points=None):
    """The largest delta of all pairs, remove and add."""
    found = np.zeros((2, len(thresholds)))
    for without, with_record in pairs:
        p, q = law(without), law(with_record)
        both = batches.deltas(p, q, noise, thresholds, points)
        found = np.maximum(found, both)
    return found


def ends(mechanism, thresholds=EPSILONS):
    """Bounds of delta, remove and add."""
    views = mechanism.remove, mechanism.add
    found = [view.bounds(epsilon=thresholds) for view in views]
    return np.array([x.lower for x in found]), np.array([x.upper for x in found])


def twice(law):
    return lambda records: batches.both(law(records), law(records))


def check(mechanism, law, pairs, attained=None, points=None, slack=GRID):
    """Nothing leaks more than the upper end; something, what the lower end says."""
    lower, upper = ends(mechanism)
    found = leaks(law, pairs, points=points)
    assert np.all(found <= upper + slack)
    assert np.all(lower <= upper)
    known = found if attained is None else leaks(law, [attained], points=points)
    assert np.all(lower <= np.maximum(known[0], known[1]) + slack)
    return lower, upper, found


# ---------------------------------------------------------------------- fixed size


def test_one_batch_of_a_fixed_size():
    law = lambda records: batches.fixed_size(records, 1)
    step = run(sampling.FixedSize(batch_size=1, dataset_size=3), REPLACE)
    truth = leaks(law, neighbors(REPLACE, 2)).max(axis=0)
    for found in ends(step):
        np.testing.assert_allclose(found.max(axis=0), truth, atol=1e-6)


@pytest.mark.parametrize(("size", "records"), [(2, 3), (1, 3)])
def test_batches_with_replacement(size, records):
    law = lambda data: batches.with_replacement(data, size)
    step = run(sampling.WithReplacement(batch_size=size, dataset_size=records), REPLACE)
    _, upper, found = check(step, law, neighbors(REPLACE, records - 1))
    if size == 1:  # little more is claimed than is leaked
        truth = np.broadcast_to(found.max(axis=0), upper.shape)
        np.testing.assert_allclose(upper, truth, rtol=1e-4)


@pytest.mark.slow
def test_larger_batches_of_a_fixed_size():
    law = lambda records: batches.fixed_size(records, 2)
    step = run(sampling.FixedSize(batch_size=2, dataset_size=4), ZERO)
    lower, upper, found = check(step, law, neighbors(ZERO, 3))
    np.testing.assert_allclose(upper, found, atol=1e-6)
    right = EPSILONS >= 0
    np.testing.assert_allclose(lower[0, right], found[0, right], atol=1e-6)


@pytest.mark.slow
def test_two_batches_of_a_fixed_size():
    once = lambda records: batches.fixed_size(records, 1)
    step = run(sampling.FixedSize(batch_size=1, dataset_size=3), REPLACE, 2)
    attained = [-1.0, -1.0, -1.0], [-1.0, -1.0, 1.0]
    pairs = neighbors(REPLACE, 2, (-1.0, 0.0, 1.0))
    lower, upper, found = check(step, twice(once), pairs, attained, 201, 1e-4)
    truth = leaks(twice(once), [attained], points=801)
    truth = np.tile(truth.max(axis=0), (2, 1))
    np.testing.assert_allclose(lower, truth, atol=1e-5)
    assert np.all(upper - lower < 0.1)
    assert np.any(upper > lower + 1e-3)
    # Where others are not equal no more is found.
    assert np.all(found <= upper)


def test_poisson_pair_is_beaten_where_a_record_is_zeroed_out():
    law = lambda records: batches.fixed_size(records, 1)
    step = run(sampling.FixedSize(batch_size=1, dataset_size=3), ZERO)
    pair = {(0.0,): 2 / 3, (1.0,): 1 / 3}
    naive = batches.delta({(0.0,): 1.0}, pair, 1.0, EPSILONS)
    found = leaks(law, [([-1.0, -1.0, 0.0], [-1.0, -1.0, 1.0])])[0]
    assert np.all(found[2:] > naive[2:] + 1e-3)
    assert step.remove.bounds(epsilon=EPSILONS[2]).upper >= found[2] - GRID


def test_an_asymmetric_release_is_refused_under_replacement():
    """Other records may have either law, whatever the two of a pair are called."""
    p, q, rate = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.5, 0.0]), 0.3
    laws, found = (p, q), []
    for rest in laws:
        pairs = itertools.product(
            [rate * x + (1 - rate) * rest for x in laws], repeat=2
        )
        gaps = [y - math.exp(0.7) * x for x, y in pairs]
        found.append(max(np.maximum(gap, 0).sum() for gap in gaps))
    assert max(found) > 0.02 > min(found)
    base = fdp.FromProbabilities(p, q, relation=REPLACE)
    step = fdp.Subsampled(base, sampling.FixedSize(prob=rate))
    for view in (step, step.remove, step.add, step.repeat(2)):
        with pytest.raises(ValueError, match=r"same guarantee in both .*FromProbab"):
            view.delta(epsilon=EPSILONS)


@pytest.mark.parametrize("steps", [1, 2])
def test_randomized_response_under_replacement(steps):
    base = fdp.RandomizedResponse(1.0)
    step = fdp.Subsampled(base, sampling.FixedSize(prob=0.3), steps)
    yes = math.e / (1 + math.e)
    laws = [np.array([yes, 1 - yes]), np.array([1 - yes, yes])]
    truth = np.zeros(EPSILONS.size)
    for one, other, rest in itertools.product(laws, repeat=3):
        first, second = (0.3 * x + 0.7 * rest for x in (one, other))
        if steps == 2:
            first, second = (np.outer(x, x).ravel() for x in (first, second))
        gaps = second - np.exp(EPSILONS)[:, None] * first
        truth = np.maximum(truth, np.maximum(gaps, 0).sum(axis=1))
    found = step.bounds(epsilon=EPSILONS)
    assert np.all(truth <= found.upper + 1e-12)
    assert np.all(found.lower <= truth + 1e-12)
    np.testing.assert_allclose(found.lower, truth, atol=1e-5)


# ------------------------------------------------------------------------- Poisson


@pytest.mark.parametrize("relation", [ADD, ZERO, REPLACE])
def test_poisson(relation):
    law = lambda records: batches.poisson(records, 0.3)
    lower, upper, found = check(
        run(sampling.Poisson(0.3), relation), law, neighbors(relation, 2)
    )
    np.testing.assert_allclose(lower, found, atol=1e-6)
    np.testing.assert_allclose(upper, found, atol=1e-6)


@pytest.mark.parametrize("relation", [ADD, ZERO, REPLACE])
def test_a_rate_is_short_for_poisson(relation):
    numbers = {"noise_multiplier": 1.0, "num_steps": 3, "relation": relation}
    short = fdp.DPSGD(sampling_prob=0.3, **numbers)
    long = fdp.DPSGD(sampling=sampling.Poisson(0.3), **numbers)
    # The same laws are asked the same, so the answers are.
    for view in ("remove", "add"):
        one, other = (resolve(getattr(x, view)) for x in (short, long))
        assert one.known_steps == other.known_steps == (0.3, 3)
        for mine, theirs in ((one.first, other.first), (one.whole, other.whole)):
            assert mine.direction == theirs.direction
            assert eqx.tree_equal(mine.composed, theirs.composed)


# ---------------------------------------------------------------- truncated Poisson


@pytest.mark.parametrize(("relation", "most"), [(ADD, 2), (ZERO, 1), (REPLACE, 2)])
def test_truncated_poisson(relation, most):
    law = lambda records: batches.truncated(records, 0.5, most)
    scheme = sampling.TruncatedPoisson(0.5, batch_size=most, dataset_size=3)
    _lower, upper, found = check(run(scheme, relation), law, neighbors(relation, 2))
    assert np.all(upper - found < 0.06)


@pytest.mark.slow
def test_two_truncated_batches():
    law = lambda records: batches.truncated(records, 0.5, 1)
    scheme = sampling.TruncatedPoisson(0.5, batch_size=1, dataset_size=3)
    pairs = neighbors(ADD, 2, (-1.0, 1.0))
    check(run(scheme, ADD, 2), twice(law), pairs, points=201, slack=1e-4)


def test_vectors_leak_no_more():
    """The proofs say that one dimension is the worst."""
    rng = np.random.default_rng(0)
    scheme = sampling.TruncatedPoisson(0.5, batch_size=2, dataset_size=4)
    fixed = sampling.FixedSize(batch_size=2, dataset_size=4)
    laws = [
        (run(scheme, REPLACE), lambda r: batches.truncated(r, 0.5, 2, 2)),
        (run(fixed, REPLACE), lambda r: batches.fixed_size(r, 2, 2)),
    ]
    axes = np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
    for mechanism, law in laws:
        _, upper = ends(mechanism)
        for trial in range(25):
            angles = rng.uniform(0, 2 * math.pi, 5)
            points = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
            if trial % 2:
                points = axes[rng.integers(0, 4, 5)]
            *rest, x, y = points
            found = leaks(law, [([*rest, y], [*rest, x])], points=161)
            assert np.all(found <= upper + 1e-4)


# ------------------------------------------------------- cyclic, users, and shuffled


@pytest.mark.slow
def test_cyclic_poisson():
    """Three steps of two groups: what the first group's records leak."""
    once = lambda records: batches.poisson(records, 0.3)
    law = lambda records: batches.both(once(records), once(records))
    cyclic = run(sampling.CyclicPoisson(0.3, num_groups=2), ADD, 3)
    pairs = neighbors(ADD, 1, (0.0, 1.0))
    lower, upper, _ = check(cyclic, law, pairs, points=201, slack=1e-4)
    truth = leaks(law, neighbors(ADD, 0), points=801)
    np.testing.assert_allclose(lower, truth, atol=1e-5)
    np.testing.assert_allclose(upper, truth, atol=1e-5)


# To zero a user out is the same pair as to leave one out.
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_examples_of_a_user(relation):
    """Two examples of one user, all of whose values may be anything."""
    law = lambda records: batches.poisson(records, 0.3)
    users = run(sampling.UserLevel(0.3, max_examples=2), relation)
    values = (-1.0, -0.4, 0.0, 1.0)
    pairs = []
    for other in values:
        for own in itertools.combinations_with_replacement(values, 2):
            if relation == REPLACE:
                stand_ins = itertools.combinations_with_replacement(values, 2)
                pairs += [([other, *x], [other, *own]) for x in stand_ins]
            else:
                pairs.append(([other, 0.0, 0.0], [other, *own]))
    lower, upper, found = check(users, law, pairs)
    np.testing.assert_allclose(lower, found, atol=1e-6)
    np.testing.assert_allclose(upper, found, atol=1e-6)


@pytest.mark.parametrize("relation", [ZERO, REPLACE])
def test_shuffled_epochs(relation):
    law = lambda records: batches.shuffled(records, 2)
    epoch = run(sampling.ShuffledEpochs(2), relation, 2)
    far = 1.0 if relation == REPLACE else 0.0
    attained = [-1.0, -far], [-1.0, 1.0]
    pairs = neighbors(relation, 1, (-1.0, 0.0, 1.0))
    lower, upper, _ = check(epoch, law, pairs, attained, 401, 1e-4)
    assert np.all(lower[0, 1:] > 0.05)
    shift = 2.0 if relation == REPLACE else 1.0
    whole = batches.delta({(0.0,): 1.0}, {(shift,): 1.0}, 1.0, EPSILONS)
    np.testing.assert_allclose(upper, [whole, whole], atol=1e-6)


@pytest.mark.parametrize("relation", [ZERO, REPLACE])
def test_a_begun_epoch_is_not_attained_whole(relation):
    """One step of an epoch of two leaks what a batch of a fixed size does."""
    law = lambda records: batches.fixed_size(records, 1)
    begun = run(sampling.ShuffledEpochs(2), relation, 1)
    check(begun, law, neighbors(relation, 1))
