"""Markov kernels between finite sets, and Blackwell's theorem both ways."""

# Tests give wrong types on purpose.
# pyright: reportArgumentType=false

import itertools

import jax
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax.experiments import MarkovKernel, blackwell_order, hamming

RNG = np.random.default_rng(7)


def _random(inputs, outputs, power=1.0):
    rows = RNG.gamma(0.7, size=(inputs, outputs)) ** power
    return MarkovKernel(rows / rows.sum(axis=1, keepdims=True))


def _all_tests(p, q):
    """Error rates of every deterministic test, by enumeration."""
    chosen = (np.arange(2 ** len(p))[:, None] >> np.arange(len(p))) & 1
    return chosen @ p, (1 - chosen) @ q


def test_kernels_form_an_algebra():
    one, two, three = _random(3, 4), _random(4, 5), _random(5, 2)
    left, right = one.then(two).then(three), one.then(two.then(three))
    np.testing.assert_allclose(left.matrix, right.matrix, rtol=1e-13)
    same = one.then(MarkovKernel.of_map(range(4)))
    np.testing.assert_allclose(same.matrix, one.matrix, rtol=1e-15)
    mixed = MarkovKernel.mixture([one, _random(3, 4)], probs=[0.25, 0.75])
    np.testing.assert_allclose(mixed.matrix.sum(axis=1), 1, rtol=1e-14)
    # (A x B)(C x D) = AC x BD, and two kernels on one input are a part of that.
    other = _random(2, 4)
    both = one.product(other)
    np.testing.assert_allclose(
        both.then(two.product(two)).matrix,
        one.then(two).product(other.then(two)).matrix,
        rtol=1e-12,
    )
    copied = MarkovKernel.of_map([0, 4, 8], 9)  # x -> (x, x)
    np.testing.assert_allclose(
        copied.then(one.product(one)).matrix, one.both(one).matrix, rtol=1e-13
    )


def test_a_map_is_deterministic():
    matrix = MarkovKernel.of_map([1, 0, 1], 3).matrix
    np.testing.assert_array_equal(matrix, [[0, 1, 0], [1, 0, 0], [0, 1, 0]])


def test_tradeoff_of_a_relation_is_below_every_test_and_convex():
    kernel = _random(3, 7)
    pairs = [(0, 1), (1, 0), (1, 2), (2, 1)]
    f = kernel.tradeoff(pairs)
    alphas, betas = [], []
    for i, j in pairs:
        alpha, beta = _all_tests(kernel.matrix[i], kernel.matrix[j])
        alphas.append(alpha)
        betas.append(beta)
    alpha, beta = np.concatenate(alphas), np.concatenate(betas)
    alpha = np.clip(alpha, 0, 1)
    found = f.beta(alpha=alpha)
    assert np.all(np.asarray(found) <= beta + 1e-12)
    # And it is the largest: for every slope some test touches the supporting line.
    for slope in np.geomspace(1e-3, 1e3, 25):
        line = float(f.delta(epsilon=np.log(slope), bound=fdp.Bound.ESTIMATE))
        assert 1 - np.min(beta + slope * alpha) == pytest.approx(line, abs=1e-12)
    assert kernel.satisfies(f, pairs)
    assert not kernel.satisfies(fdp.tradeoff.Identity(), pairs)


@pytest.mark.slow
def test_composition_theorem_and_post_processing():
    # Two kernels on one input: the trade-off function of the tensor product.
    report = MarkovKernel([[0.75, 0.25], [0.25, 0.75]])
    twice = report.both(report).tradeoff([(0, 1), (1, 0)])
    alpha = np.asarray([0.01, 0.1, 0.5])
    run = fdp.RandomizedResponse(np.log(3.0)).repeat(2)
    np.testing.assert_allclose(
        twice.beta(alpha=alpha), run.beta(alpha=alpha), rtol=1e-9
    )
    kernel = _random(2, 6)
    coarse = kernel.then(MarkovKernel.of_map([0, 0, 1, 1, 2, 2]))
    fine = kernel.tradeoff([(0, 1)]).beta(alpha=alpha)
    assert np.all(coarse.tradeoff([(0, 1)]).beta(alpha=alpha) >= fine - 1e-14)


@pytest.mark.parametrize("seed", range(12))
def test_a_garbling_is_found_where_there_is_one(seed):
    inputs, outputs, actions = 2 + seed % 4, 3 + seed % 5, 2 + seed % 3
    source, hidden = _random(inputs, outputs), _random(outputs, actions)
    found = blackwell_order(source, source.then(hidden))
    assert found.answer == "yes"
    again = source.then(found.garbling).matrix
    np.testing.assert_allclose(again, source.then(hidden).matrix, atol=1e-9)
    assert found.gap <= 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_a_decision_problem_refutes_the_order(seed):
    inputs = 2 + seed % 4
    source, other = _random(inputs, 4), _random(inputs, 5, power=1.5)
    found = blackwell_order(source, other)
    assert found.answer in ("yes", "no")
    # The certificate by itself: no decision rule reaches the payoff under `source`.
    assert np.all(np.abs(found.payoff) <= 1)
    own = np.sum(other.matrix * found.payoff)
    rules = (np.arange(5**4)[:, None] // 5 ** np.arange(4)) % 5
    scores = source.matrix.T @ found.payoff  # of an action after an output
    best = max(scores[np.arange(4), rule].sum() for rule in rules)
    assert own - best == pytest.approx(found.gap, abs=1e-12)
    if found.answer == "no":
        assert found.gap > 1e-9
        # Weak duality: no kernel comes closer than the gap.
        for _ in range(20):
            tried = source.then(_random(4, 5)).matrix
            assert np.abs(tried - other.matrix).sum() >= found.gap - 1e-12


@pytest.mark.parametrize("seed", range(10))
def test_two_hypotheses_are_ordered_as_their_tradeoff_functions(seed):
    # Blackwell (1953): for two inputs the order is that of the trade-off functions.
    source = _random(2, 4)
    other = _random(2, 4)
    if seed % 2:
        blurred = source.then(_random(4, 4))
        other = MarkovKernel.mixture([blurred, blurred], probs=[0.5, 0.5])
    f, g = source.tradeoff([(0, 1)]), other.tradeoff([(0, 1)])
    alpha = np.linspace(0, 1, 1001)
    below = np.all(
        np.asarray(f.beta(alpha=alpha)) <= np.asarray(g.beta(alpha=alpha)) + 1e-9
    )
    assert (blackwell_order(source, other).answer == "yes") == below


def test_kernels_are_pytrees():
    kernel = _random(3, 4)
    matrix = jax.jit(lambda k: k.then(MarkovKernel.of_map([0, 0, 1, 1])).matrix)(kernel)
    np.testing.assert_allclose(
        matrix[:, 0], kernel.matrix[:, :2].sum(axis=1), rtol=1e-14
    )


def test_products_are_stochastic_whatever_rounding_does():
    # 0.7 + 0.2 + 0.1 is 1.0000000000000002 by some orders of summation.
    all_one = MarkovKernel([[0.7, 0.2, 0.1]]).then(MarkovKernel.of_map([0, 0, 0]))
    np.testing.assert_array_equal(all_one.matrix, [[1.0]])
    above = MarkovKernel([[1 + 1e-15, 0.0], [0.5, 0.5]])
    np.testing.assert_array_equal(above.matrix, [[1, 0], [0.5, 0.5]])


def test_kernels_inside_of_float32_programs():
    logits = np.random.default_rng(3).normal(size=(4, 50)).astype(np.float32)
    first, second = [[0.7, 0.3], [0.2, 0.8]], [[0.9, 0.1], [0.4, 0.6]]
    one, two = MarkovKernel(first), MarkovKernel(second)
    with jax.enable_x64(False):
        soft = MarkovKernel(jax.nn.softmax(logits, axis=1))
        traced = jax.jit(lambda x: MarkovKernel(jax.nn.softmax(x, axis=1)).matrix)
        then, both, product, mixed = (
            jax.jit(lambda k, l, make=make: make(k, l).matrix)(one, two)
            for make in (
                MarkovKernel.then,
                MarkovKernel.both,
                MarkovKernel.product,
                lambda k, l: MarkovKernel.mixture([k, l], probs=[0.25, 0.75]),
            )
        )
        rows = np.asarray(traced(logits))
    exponents = np.exp(logits.astype(np.float64))
    truth = exponents / exponents.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(soft.matrix, truth, rtol=2e-6)
    np.testing.assert_allclose(rows, truth, rtol=2e-6)
    np.testing.assert_allclose(soft.matrix.sum(axis=1), 1, rtol=1e-14)
    np.testing.assert_allclose(then, np.dot(first, second), rtol=1e-6)
    pairs = np.einsum("ij,ik->ijk", first, second).reshape(2, 4)
    np.testing.assert_allclose(both, pairs, rtol=1e-6)
    np.testing.assert_allclose(product, np.kron(first, second), rtol=1e-6)
    mean = np.add(np.multiply(first, 0.25), np.multiply(second, 0.75))
    np.testing.assert_allclose(mixed, mean, rtol=1e-6)


@pytest.mark.parametrize("row", [[0.6, 0.4 + 1e-5], [0.6, 0.4 - 1e-5]])
def test_more_than_rounding_is_refused_in_float32(row):
    with pytest.raises(ValueError, match="matrix must have rows with sum 1"):
        MarkovKernel(jax.numpy.asarray([row], jax.numpy.float32))


def test_numbers_that_are_none():
    kernel = MarkovKernel([[0.5, 0.5], [0.2, 0.8]])
    with pytest.raises(ValueError, match="matrix must be numbers"):
        MarkovKernel([["a"]])
    for pair in ((0.0, 1.0), (0.0, np.nan)):
        with pytest.raises(ValueError, match="neighbors must be pairs of inputs"):
            kernel.tradeoff([pair])
    for tolerance in (-1.0, np.nan):
        with pytest.raises(ValueError, match="tolerance must be a finite number"):
            blackwell_order(kernel, kernel, tolerance=tolerance)
        with pytest.raises(ValueError, match="tolerance must be a finite number"):
            kernel.satisfies(fdp.tradeoff.Identity(), [(0, 1)], tolerance=tolerance)


def test_kernels_act_on_measures_and_on_functions():
    kernel, masses, values = _random(3, 4), RNG.gamma(1.0, size=3), RNG.normal(size=4)
    out = np.asarray(kernel.of_measure(masses))
    mean = np.asarray(kernel.of_function(values))
    for j in range(4):
        truth = sum(masses[i] * float(kernel.matrix[i, j]) for i in range(3))
        assert float(out[j]) == pytest.approx(truth, rel=1e-14)
    # The two actions are adjoint, and constants stay what they are.
    assert float(out @ values) == pytest.approx(float(masses @ mean), rel=1e-13)
    np.testing.assert_allclose(kernel.of_function(np.ones(4)), 1, rtol=1e-14)
    other = _random(4, 5)
    np.testing.assert_allclose(
        kernel.then(other).of_measure(masses), other.of_measure(out), rtol=1e-13
    )
    with pytest.raises(ValueError, match="values must be one for each of 4 outputs"):
        kernel.of_function([1.0, 2.0])
    with pytest.raises(ValueError, match="values must be"):
        kernel.of_measure([0.1, -0.1, 1.0])


def test_the_definition_over_a_metric():
    """Two bits, each reported with its own probability of a lie."""
    epsilons = 0.7, 1.2
    bits = [
        MarkovKernel(np.asarray([[1, b], [b, 1]]) / (1 + b))
        for b in np.exp(-np.asarray(epsilons))
    ]
    kernel = bits[0].product(bits[1])
    data = list(itertools.product((0, 1), repeat=2))
    steps = hamming(data)
    np.testing.assert_array_equal(steps[0], [0, 1, 1, 2])
    assert kernel.is_private(epsilon=1.2, distances=steps)
    assert not kernel.is_private(epsilon=1.2 - 1e-9, distances=steps)
    # A metric in which the bits weigh as much as they cost: everything is an equality.
    a = np.asarray(data)
    own = np.abs(a[:, None] - a) @ np.asarray(epsilons)
    assert kernel.is_private(epsilon=1.0, distances=own)
    assert not kernel.is_private(epsilon=1 - 1e-9, distances=own)
    # Secrets: the first bit, given which the second one is a fair coin.
    prior = MarkovKernel([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    secret = prior.then(kernel)
    pair = [[0.0, 1.0], [1.0, 0.0]]
    assert secret.is_private(epsilon=0.7, distances=pair)
    assert not secret.is_private(epsilon=0.7 - 1e-9, distances=pair)
    # What no path joins may be told apart, a neighbor may not.
    told = MarkovKernel(np.eye(2))
    assert told.is_private(epsilon=0.0, distances=[[0.0, np.inf], [np.inf, 0.0]])
    assert not told.is_private(epsilon=50.0, distances=pair)
    for bad in ([[0.0, 1.0]], [[0.0, 1.0], [2.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]]):
        with pytest.raises(ValueError, match="distances must be a symmetric matrix"):
            told.is_private(epsilon=1.0, distances=bad)
    with pytest.raises(ValueError, match="data sets of one length"):
        hamming([(0, 1), (0,)])
