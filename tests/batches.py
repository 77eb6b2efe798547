"""What tiny data sets leak, by listing every batch that a scheme may draw.

The law of what is released is then a mixture of normal laws whose places are listed,
and the hockey-stick divergence is a sum over a fine grid.
"""

import itertools
import math
from collections import defaultdict

import numpy as np

_HALF_WIDTH = 8.0


def _subsets(records):
    for kept in itertools.product((False, True), repeat=len(records)):
        yield kept, [x for x, here in zip(records, kept, strict=True) if here]


def _law(pairs):
    law = defaultdict(float)
    for place, prob in pairs:
        if prob > 0:
            law[tuple(np.round(place, 12))] += prob
    return dict(law)


def _sum(records, dimension=1):
    return np.sum([np.atleast_1d(x) for x in records], axis=0) + np.zeros(dimension)


def poisson(records, prob, dimension=1):
    """Places of the sum over a Poisson sample, each with its probability."""
    return truncated(records, prob, len(records), dimension)


def truncated(records, prob, most, dimension=1):
    """The same of a sample of which at most so many are kept, at random."""
    pairs = []
    for kept, batch in _subsets(records):
        weight = math.prod(prob if here else 1 - prob for here in kept)
        ways = list(itertools.combinations(batch, min(most, len(batch))))
        pairs += [(_sum(way, dimension), weight / len(ways)) for way in ways]
    return _law(pairs)


def fixed_size(records, size, dimension=1):
    """The same of a batch of a fixed size."""
    ways = list(itertools.combinations(records, size))
    return _law((_sum(way, dimension), 1 / len(ways)) for way in ways)


def with_replacement(records, size, dimension=1):
    """The same of a batch whose places are drawn one by one."""
    ways = list(itertools.product(records, repeat=size))
    return _law((_sum(way, dimension), 1 / len(ways)) for way in ways)


def shuffled(records, batches):
    """Places of the sums of an epoch's batches, one after the other."""
    size = len(records) // batches
    orders = list(itertools.permutations(records))
    return _law(
        ([sum(o[i * size : (i + 1) * size]) for i in range(batches)], 1 / len(orders))
        for o in orders
    )


def both(one, other):
    """Two independent releases."""
    return _law(
        (np.concatenate([x, y]), p * q)
        for (x, p), (y, q) in itertools.product(one.items(), other.items())
    )


def delta(without, with_record, noise, thresholds, points=None):
    """sup over events of Q(S) - e^eps P(S), for thresholds eps.

    Args:
        without: Places under P, each with its probability.
        with_record: Those under Q.
        noise: Standard deviation.
        thresholds: Values of eps.
        points: Of the grid along every axis.
    """
    return deltas(without, with_record, noise, thresholds, points)[0]


def deltas(without, with_record, noise, thresholds, points=None):
    """The same, followed by that of the exchanged pair."""
    places = np.array([*without, *with_record])
    dimension = places.shape[1]
    points = points or {1: 20_001, 2: 401}[dimension]
    axes = [
        np.linspace(
            x.min() - _HALF_WIDTH * noise, x.max() + _HALF_WIDTH * noise, points
        )
        for x in places.T
    ]
    volume = math.prod(x[1] - x[0] for x in axes)
    p, q = (_density(law, axes, noise) for law in (without, with_record))

    def row(p, q):
        gaps = (np.maximum(q - math.exp(eps) * p, 0) for eps in thresholds)
        return [volume * gap.sum() for gap in gaps]

    return np.array([row(p, q), row(q, p)])


def _density(law, axes, noise):
    total = 0.0
    for place, prob in law.items():
        each = [
            np.exp(-0.5 * ((x - c) / noise) ** 2) / (noise * math.sqrt(2 * math.pi))
            for x, c in zip(axes, place, strict=True)
        ]
        total = total + prob * (each[0] if len(each) == 1 else np.outer(*each))
    return total
