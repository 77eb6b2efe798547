"""Likelihood ratios, draws and bounds, against sums over all patterns."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax._internal._compilation import jit_on_its_own
from fdp_jax.montecarlo import _proposals
from fdp_jax.montecarlo._model import make_model
from fdp_jax.montecarlo._proposals import ORDERS, SHIFTS, Choice
from fdp_jax.montecarlo._read import read

# One program each: their operations alone are thousands of small ones.


@jit_on_its_own
def draw_remove(model, choice, seed, samples):
    key = jax.random.wrap_key_data(seed)
    return _proposals.draw_remove(model, choice, key, samples)


@jit_on_its_own
def draw_add(model, found, choice, seed, samples):
    key = jax.random.wrap_key_data(seed)
    return _proposals.draw_add(model, found, choice, key, samples)


choose = jit_on_its_own(_proposals.choose)
proposals = jit_on_its_own(_proposals.proposals)
log_ratio = jit_on_its_own(lambda model, inner: model.log_ratio(inner))
masses = jit_on_its_own(
    lambda model, factor: (model.most_mass(factor), model.tilted_mass(factor))
)
bounds = jit_on_its_own(
    lambda parts, epsilon: (parts.order_bounds(epsilon), parts.shift_bounds(epsilon))
)
made_model = jit_on_its_own(make_model)
seed = lambda number: jax.random.key_data(jax.random.key(number))
STEPS = 9


def logsumexp(values, axis=-1, b: Any = 1.0):
    most = np.max(values, axis=axis, keepdims=True)
    terms = np.exp(values - most)
    terms *= b
    return np.log(terms.sum(axis)) + most.squeeze(axis)


RNG = np.random.default_rng(7)
TOEPLITZ = np.array([1.0, 0.6, 0.3])
LONG = 1 / np.sqrt(1 + np.arange(STEPS))
GENERAL = np.tril(RNG.uniform(0.0, 1.0, (STEPS, STEPS)))
BANDED = GENERAL * (np.subtract.outer(np.arange(STEPS), np.arange(STEPS)) < 3)
MINSEP, DEALT = fdp.sampling.MinSeparation, fdp.sampling.RandomAllocation


def as_matrix(strategy, n=STEPS):
    strategy = np.asarray(strategy, float)
    if strategy.ndim == 2:
        return strategy
    first = np.zeros(n)
    first[: strategy.size] = strategy
    return np.array(
        [[first[i - j] if i >= j else 0 for j in range(n)] for i in range(n)]
    )


def separated(n, p, b, warm=True):
    """Patterns and their probabilities, straight from the definition."""
    law = {}

    def go(pattern, wait, prob):
        if prob == 0:
            return
        if len(pattern) == n:
            law[pattern] = law.get(pattern, 0) + prob
        elif wait:
            go((*pattern, 0), wait - 1, prob)
        else:
            go((*pattern, 1), b - 1, prob * p)
            go((*pattern, 0), 0, prob * (1 - p))

    total = 1 + (b - 1) * p
    for wait in range(b if warm else 1):
        start = (1 if wait == 0 else p) / total if warm else 1.0
        go((), wait, start)
    return law


def cyclic(n, p, groups):
    law = {}
    turns = range(0, n, groups)
    for bits in itertools.product((0, 1), repeat=len(turns)):
        pattern = np.zeros(n, int)
        pattern[list(turns)] = bits
        law[tuple(pattern)] = float(np.prod([p if x else 1 - p for x in bits]))
    return law


def dealt(n, t, same):
    epochs = -(-n // t)
    law = {}
    draws = itertools.product(range(t), repeat=1 if same else epochs)
    for chosen in draws:
        places = [chosen[0 if same else e] + e * t for e in range(epochs)]
        pattern = np.isin(np.arange(n), places).astype(int)
        key = tuple(pattern)
        law[key] = law.get(key, 0) + 1 / t ** len(chosen)
    return law


CASES = {
    "disjoint": (MINSEP(0.3, min_separation=3), TOEPLITZ, separated(STEPS, 0.3, 3)),
    "disjoint, matrix": (MINSEP(0.3, min_separation=4), BANDED, None),
    "longer than the run": (
        MINSEP(0.2, min_separation=12),
        LONG,
        separated(STEPS, 0.2, 12),
    ),
    "cold": (
        MINSEP(0.3, min_separation=3, warm_start=False),
        TOEPLITZ,
        separated(STEPS, 0.3, 3, False),
    ),
    "overlapping": (MINSEP(0.4, min_separation=2), TOEPLITZ, separated(STEPS, 0.4, 2)),
    "all bands": (MINSEP(0.4, min_separation=3), LONG, separated(STEPS, 0.4, 3)),
    "general": (MINSEP(0.4, min_separation=2), GENERAL, separated(STEPS, 0.4, 2)),
    "general, cold": (
        MINSEP(0.7, min_separation=2, warm_start=False),
        GENERAL,
        separated(STEPS, 0.7, 2, False),
    ),
    "Poisson": (fdp.sampling.Poisson(0.3), TOEPLITZ, separated(STEPS, 0.3, 1)),
    "certain": (MINSEP(1.0, min_separation=4), TOEPLITZ, separated(STEPS, 1.0, 4)),
    "cyclic": (
        fdp.sampling.CyclicPoisson(0.3, num_groups=2),
        LONG,
        cyclic(STEPS, 0.3, 2),
    ),
    "cyclic, disjoint": (
        fdp.sampling.CyclicPoisson(0.3, num_groups=4),
        TOEPLITZ,
        cyclic(STEPS, 0.3, 4),
    ),
    "same batch": (DEALT(4, same_every_epoch=True), GENERAL, dealt(STEPS, 4, True)),
    "anew": (DEALT(3), TOEPLITZ, dealt(STEPS, 3, False)),
    "anew, begun": (DEALT(4), BANDED, dealt(STEPS, 4, False)),
    "anew, apart": (DEALT(4), np.ones(1), dealt(STEPS, 4, False)),
    "one epoch": (DEALT(12), LONG, dealt(STEPS, 12, False)),
}
CASES["disjoint, matrix"] = (*CASES["disjoint, matrix"][:2], separated(STEPS, 0.3, 4))


def case(name, noise=0.8):
    """The model, and all patterns with their means and probabilities."""
    scheme, strategy, law = CASES[name]
    run = fdp.MatrixMechanism(noise, strategy, num_steps=STEPS, sampling=scheme)
    got = read(run)
    with jax.enable_x64(True):
        model = made_model(
            jax.numpy.asarray(got.strategy),
            jax.numpy.asarray(noise),
            STEPS,
            got.how,
            got.shape.bands,
        )
    patterns = np.array(list(law))
    means = patterns @ as_matrix(strategy).T / noise
    return model, means, np.array(list(law.values()))


@pytest.mark.parametrize("name", CASES)
def test_laws_of_patterns_add_to_one(name):
    assert np.isclose(case(name)[2].sum(), 1.0)


@pytest.mark.parametrize("name", CASES)
def test_likelihood_ratios_are_sums_over_patterns(name):
    model, means, probs = case(name)
    scheme, strategy, _ = CASES[name]
    columns = as_matrix(strategy) / 0.8
    releases = RNG.normal(size=(STEPS, 5)) * 2
    logs = means @ releases - 0.5 * np.sum(means**2, axis=1)[:, None]
    expected = logsumexp(np.log(probs)[:, None] + logs, axis=0)
    inner = columns.T @ releases
    cyclic_groups = getattr(scheme, "num_groups", None)
    if cyclic_groups is not None:
        inner = inner[:: int(cyclic_groups)]
    if isinstance(scheme, DEALT):
        inner = _by_place(inner, scheme)
    with jax.enable_x64(True):
        found = log_ratio(model, jax.numpy.asarray(inner))
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


def _by_place(inner, scheme):
    t = int(scheme.num_batches)
    epochs = -(-STEPS // t)
    padded = np.concatenate([inner, np.zeros((epochs * t - STEPS, inner.shape[1]))])
    if scheme.same_every_epoch or epochs == 1:
        return padded.reshape(epochs, t, -1).sum(axis=0)
    return padded


@pytest.mark.parametrize("name", CASES)
def test_drawn_releases_have_the_law_of_the_pair(name):
    # E_Q R = 1, and E_P of the log ratio by drawing patterns and noise with NumPy.
    model, means, probs = case(name)
    rng = np.random.default_rng(3)
    chosen = rng.choice(len(probs), 40_000, p=probs / probs.sum())
    releases = means[chosen] + rng.normal(size=(chosen.size, means.shape[1]))
    logs = releases @ means.T - 0.5 * np.sum(means**2, axis=1)
    expected = logsumexp(logs, axis=1, b=probs)
    with jax.enable_x64(True):
        parts = proposals(model)
        plain = choose(parts, "remove", jax.numpy.asarray(-50.0))
        losses, weights = draw_remove(model, plain, seed(1), 20_000)
        np.testing.assert_array_equal(weights, 0.0)
        plain = choose(parts, "add", jax.numpy.asarray(-50.0))
        reverse, others = draw_add(model, parts, plain, seed(2), 20_000)
        np.testing.assert_allclose(others, 0.0, atol=1e-12)
    for power in (1, 2):
        gap = np.mean(losses**power) - np.mean(expected**power)
        assert abs(gap) < 5 * np.std(expected**power) / np.sqrt(13_000)
    bounded = np.minimum(np.exp(-np.asarray(reverse)), 2.0)
    noise = rng.normal(size=(40_000, means.shape[1]))
    logs = noise @ means.T - 0.5 * np.sum(means**2, axis=1)
    wanted = np.minimum(np.exp(logsumexp(logs, axis=1, b=probs)), 2.0)
    assert abs(bounded.mean() - wanted.mean()) < 5 * wanted.std() / np.sqrt(13_000)


@pytest.mark.parametrize("name", CASES)
def test_bounds_of_masses_hold_for_all_patterns(name):
    model, means, probs = case(name)
    gram = means @ means.T
    for factor in (1.0, 2.0, 5.0):
        worst = np.max(logsumexp(factor * gram, axis=1, b=probs))
        square = logsumexp(factor * np.diagonal(gram), b=probs)
        with jax.enable_x64(True):
            most, tilted = masses(model, jax.numpy.asarray(factor))
        assert most >= worst - 1e-11
        assert tilted >= square - 1e-11
        if "same" in name or name in ("one epoch", "anew, apart"):
            assert most <= worst + 1e-11  # vertices of a polytope: exact


@pytest.mark.parametrize(
    # That draws begin cold is tested by the law of the pair above.
    "name",
    [x for x in CASES if x != "general, cold"],
)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_all_proposals_average_to_one_delta_within_their_bounds(name, direction):
    model, means, probs = case(name, noise=1.5)
    epsilon = 0.7
    rng = np.random.default_rng(5)
    releases = rng.normal(size=(60_000, means.shape[1]))
    if direction == "remove":
        releases += means[rng.choice(len(probs), 60_000, p=probs / probs.sum())]
    logs = releases @ means.T - 0.5 * np.sum(means**2, axis=1)
    losses = logsumexp(logs, axis=1, b=probs) * (1 if direction == "remove" else -1)
    plain = np.maximum(-np.expm1(epsilon - losses), 0)
    error = plain.std() / np.sqrt(plain.size)
    with jax.enable_x64(True):
        parts = proposals(model)
        by_order, by_shift = bounds(parts, jax.numpy.asarray(0.0))
        numbers = [2, 3] if direction == "remove" else [9, 13, SHIFTS.size + 5]
        for number in numbers:
            if direction == "remove":
                base, slope = by_order[number - 1], number - 1.0
            else:
                base = by_shift[number]
                slope = np.tile(SHIFTS, 2)[number]
            # With their kinds, so that the programs are those of the test before.
            kinds = zip((number, base, slope), (int, float, float), strict=True)
            choice = Choice(*(jax.numpy.asarray(x, kind) for x, kind in kinds))
            key = seed(number)
            if direction == "remove":
                losses, weights = draw_remove(model, choice, key, 20_000)
            else:
                losses, weights = draw_add(model, parts, choice, key, 20_000)
            kept = np.maximum(-np.expm1(epsilon - np.asarray(losses)), 0)
            values = kept * np.exp(np.asarray(weights))
            assert values.max() <= np.exp(base - slope * epsilon) * (1 + 1e-9)
            gap = abs(values.mean() - plain.mean())
            room = 5 * np.hypot(error, values.std() / np.sqrt(values.size))
            # Maurer and Pontil's, since rare large values may be missing.
            rare = 7 * 15 * np.exp(base - slope * epsilon) / (3 * values.size)
            assert gap < room + rare
    assert ORDERS > 3
