"""Compositions with few outputs, against the enumeration of all of them."""

import itertools
import math

import jax
import numpy as np
import pytest
from programs import jitted

import fdp_jax as fdp
from fdp_jax import Status

SKEWED = [0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.6, 0.1]


def _two_points(epsilon, delta=0.0):
    """Masses under P and Q of the worst pair of (epsilon, delta)-DP."""
    up, down = (
        (1 - delta) / (1 + math.exp(-epsilon)),
        (1 - delta) / (1 + math.exp(epsilon)),
    )
    return [up, down, delta, 0.0], [down, up, 0.0, delta]


CASES = {
    "pure": (
        fdp.compose(*(fdp.PureDP(x) for x in (0.1, 0.2, 0.7))),
        [_two_points(x) for x in (0.1, 0.2, 0.7)],
    ),
    "approximate, repeated": (
        fdp.compose(
            fdp.ApproxDP(epsilon=1.0, delta=1e-3).repeat(3), fdp.PureDP(0.31).repeat(2)
        ),
        [_two_points(1.0, 1e-3)] * 3 + [_two_points(0.31)] * 2,
    ),
    "outputs without a loss": (
        fdp.compose(fdp.FromProbabilities(*SKEWED).repeat(2), fdp.PureDP(0.4)),
        [SKEWED, SKEWED, _two_points(0.4)],
    ),
    "one kind": (fdp.FromProbabilities(*SKEWED).repeat(3), [SKEWED] * 3),
}


def _enumerated(parts):
    """Masses of all outputs together, of both members of the pair."""
    sides = (itertools.product(*side) for side in zip(*parts, strict=True))
    return [np.array([math.prod(x) for x in side]) for side in sides]


def _delta(p, q, epsilon):
    return math.fsum(np.maximum(q - math.exp(epsilon) * p, 0))


def _beta(p, q, alpha):
    """Of the most powerful test, by outputs in the order of their quotients."""
    order = np.argsort(-np.where(p > 0, q / np.where(p > 0, p, 1), np.inf))
    x, y = np.cumsum(p[order]), np.cumsum(q[order])
    return 1 - np.interp(alpha, np.append(0, x), np.append(0, y))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_answers_are_those_of_all_outputs(case, direction):
    run, parts = CASES[case]
    p, q = _enumerated(parts)
    if direction == "add":
        p, q = q, p
    side = getattr(run, direction)
    for epsilon in (-0.3, 0.0, 0.45, 1.9):
        found, truth = side.bounds(epsilon=epsilon), _delta(p, q, epsilon)
        assert (found.method, int(found.status)) == ("closed_form", Status.TIGHT)
        assert found.lower <= truth * (1 + 1e-14)
        assert truth <= found.upper * (1 + 1e-14)
        assert float(found.estimate) == pytest.approx(truth, rel=1e-11)
        if truth > 0.01:
            back = side.bounds(delta=truth)
            assert back.lower <= epsilon + 1e-13
            assert back.upper >= epsilon - 1e-13
    for alpha in (0.01, 0.3, 0.8):
        found, truth = side.bounds(alpha=alpha), _beta(p, q, alpha)
        assert int(found.status) == Status.TIGHT
        assert found.lower <= truth + 1e-14
        assert truth <= found.upper + 1e-14


def test_where_there_are_too_many_another_engine_answers():
    """PureDP(.2) runs 600 times, and the law of both is a product of binomials."""
    run = fdp.compose(fdp.PureDP(0.2).repeat(600), fdp.PureDP(0.4))
    assert run.bounds(epsilon=3.0).method != "closed_form"
    few = fdp.compose(fdp.PureDP(0.2).repeat(50), fdp.PureDP(0.4).repeat(8))
    k, m = np.meshgrid(np.arange(51), np.arange(9), indexing="ij")
    loss = (0.2 * (2 * k - 50) + 0.4 * (2 * m - 8)).ravel()
    fifty, eight = ([math.comb(n, i) for i in range(n + 1)] for n in (50, 8))
    ways = np.outer(fifty, eight)
    base = (1 + math.exp(0.2)) ** -50 * (1 + math.exp(0.4)) ** -8
    q = (base * ways * np.exp(0.2 * k + 0.4 * m)).ravel()
    truth = math.fsum(np.maximum(q * -np.expm1(3.0 - loss), 0))
    found = few.bounds(epsilon=3.0)
    assert found.method == "closed_form"
    assert found.lower <= truth * (1 + 1e-13)
    assert truth <= found.upper * (1 + 1e-13)


def test_programs_and_derivatives():
    def delta(size):
        run = fdp.compose(fdp.PureDP(size).repeat(2), fdp.PureDP(0.3))
        return run.delta(epsilon=0.2, bound="estimate")

    def truth(size):
        p, q = _enumerated([_two_points(size)] * 2 + [_two_points(0.3)])
        return _delta(p, q, 0.2)

    sizes = np.array([0.27, 0.9])
    expected = [truth(x) for x in sizes]
    np.testing.assert_allclose(jax.vmap(jitted(delta))(sizes), expected, rtol=1e-12)
    slopes = [(truth(x + 1e-6) - truth(x - 1e-6)) / 2e-6 for x in sizes]
    np.testing.assert_allclose([jax.grad(delta)(x) for x in sizes], slopes, rtol=1e-7)
