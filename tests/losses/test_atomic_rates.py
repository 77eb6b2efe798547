"""Error rates of listed outputs, against sums and hulls of rational numbers."""

import itertools
import math
import random
from fractions import Fraction

import jax
import numpy as np
import pytest
from programs import jitted

from fdp_jax.losses._atomic import AtomicForm, AtomicLoss

OUTPUTS, LEVELS = 9, 16
TINY = Fraction(1, 10**300), Fraction(1, 10**26), Fraction(1, 10**16)
"""Error rates, and their distances from 1."""


def _log(number):
    """The logarithm, of numbers below all floats as well."""
    if number <= 0:
        return -math.inf
    if number > Fraction(1, 2):
        return math.log1p(-float(1 - number))
    power = number.denominator.bit_length() - number.numerator.bit_length()
    return math.log(number * 2**power) - power * math.log(2)


def _law(rng, kind):
    """Probabilities under P and Q: some zero, tiny, equal or next to equal."""
    draws = {
        "zeros": lambda: Fraction(rng.randrange(4)),
        "tiny": lambda: Fraction(1, 10 ** rng.choice([0, 1, 5, 20, 60, 280])),
        "powers": lambda: Fraction(1, 2 ** rng.randrange(60)),
        "close": lambda: 1 + Fraction(rng.randrange(5), 10 ** rng.choice([3, 10, 15])),
    }
    weights = [[draws[kind]() for _ in range(OUTPUTS)] for _ in range(2)]
    return [[x / sum(row) for x in row] for row in weights]


def _vertices(p, q):
    """Type I and II errors of the most powerful tests without lots."""
    order = sorted(
        zip(p, q, strict=True), key=lambda x: (x[0] > 0, -x[1] / (x[0] or 1))
    )
    alpha, beta, found = Fraction(0), Fraction(1), []
    for mass, other in order:
        if mass > 0:
            found.append((alpha, beta))
        alpha, beta = alpha + mass, beta - other
    return [*found, (alpha, beta)]


def _hull(points):
    kept = []
    for x in sorted(set(points)):
        if kept and kept[-1][0] == x[0]:
            continue
        while len(kept) > 1:
            (a, b), (c, d) = kept[-2:]
            if (d - b) * (x[0] - a) < (x[1] - b) * (c - a):
                break
            kept.pop()
        kept.append(x)
    return kept


def _value(hull, alpha):
    for (a, b), (c, d) in itertools.pairwise(hull):
        if a <= alpha <= c:
            return b + (d - b) * (alpha - a) / (c - a)
    return hull[-1][1]


def _asked(both):
    def ask(log_p, log_q, log_alpha, log_tnr):
        one = AtomicLoss(log_p, log_q)
        other = AtomicForm(one.exchanged()) if both else None
        return jax.vmap(lambda a, t: AtomicForm(one).error_rates(other, a, t))(
            log_alpha, log_tnr
        )

    return jitted(ask)


ASK = {both: _asked(both) for both in (False, True)}


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", ["zeros", "tiny", "powers", "close"])
def test_error_rates_hold_relatively_at_vertices_and_next_to_0_and_1(kind, both):
    rng = random.Random(f"{kind} {both}")
    wide = 0
    for _ in range(12):
        p, q = _law(rng, kind)
        points = _vertices(p, q) + (_vertices(q, p) if both else [])
        hull = _hull(points)
        alphas = [*TINY, *(1 - x for x in TINY), *(x for x, _ in hull if 0 < x < 1)]
        alphas = [*alphas, *(Fraction(rng.random()) for _ in range(LEVELS))][:LEVELS]
        vertices = {x for x, _ in hull}
        logs = [np.array([_log(x) for x in row]) for row in (p, q, alphas)]
        known = np.array([_log(1 - x) for x in alphas])
        rates = ASK[both](*logs, known)
        for i, alpha in enumerate(alphas):
            beta = _value(hull, alpha)
            for found, truth in zip(rates, (beta, 1 - beta), strict=True):
                low, estimate, high = (
                    float(x[i]) for x in (found.lower, found.estimate, found.upper)
                )
                slack = 4e-16 * (1 + abs(_log(truth))) if truth > 0 else 0
                assert low - slack <= _log(truth) <= high + slack, (p, q, alpha)
                assert low <= estimate <= high
                # At a vertex a bend of f makes them wide.
                steep = alpha in vertices or truth < Fraction(1, 10**290)
                wide += not steep and high - low > 1e-6
    assert wide <= 2
