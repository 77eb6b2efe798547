"""Random trees of dp_accounting's events, and dp_accounting's own answers for them."""

import math
import random

import pytest

dpa = pytest.importorskip("dp_accounting")
ev, Theirs = dpa.dp_event, dpa.NeighboringRelation
make = dpa.pld.privacy_loss_distribution
GAUSSIAN = ("gaussian",)
SAMPLED = ("sampled", "gaussian")
ALL = {
    Theirs.ADD_OR_REMOVE_ONE: (*SAMPLED, "laplace", "slaplace", "discrete", "mixture"),
    Theirs.REPLACE_SPECIAL: (*SAMPLED, "laplace", "discrete", "mixture", "response"),
    Theirs.REPLACE_ONE: (*SAMPLED, "response"),
}


def release(rng: random.Random, kind: str):
    noise = round(math.exp(rng.uniform(-0.2, 1.5)), 3)
    prob = rng.choice([0.5, 0.1, 0.02])
    if kind == "gaussian":
        return ev.GaussianDpEvent(noise)
    if kind == "sampled":
        inner = ev.PoissonSampledDpEvent(prob, ev.GaussianDpEvent(noise))
        return ev.PoissonSampledDpEvent(0.5, inner) if rng.random() < 0.2 else inner
    if kind == "laplace":
        return ev.LaplaceDpEvent(noise)
    if kind == "slaplace":
        return ev.PoissonSampledDpEvent(prob, ev.LaplaceDpEvent(noise))
    if kind == "discrete":
        return ev.DiscreteLaplaceDpEvent(1 / noise, rng.randint(1, 2))
    if kind == "response":
        return ev.RandomizedResponseDpEvent(rng.uniform(0.2, 0.9), rng.randint(2, 3))
    return ev.MixtureOfGaussiansDpEvent(noise, [0.0, 1.0, 2.0], [1 - prob, prob, 0.0])


def tree(rng: random.Random, kinds, num_kinds: int = 1, depth: int = 2):
    """A tree of releases of a few kinds.

    Mostly one setting of each, so that many trees share their programs.
    """
    kinds = sorted(rng.sample(kinds, min(num_kinds, len(kinds))))
    settings = {kind: [release(rng, kind) for _ in range(2)] for kind in kinds}
    parts = [_node(rng, settings[kind], depth) for kind in kinds]
    if rng.random() < 0.2:
        parts.append(ev.NoOpDpEvent())
    return ev.ComposedDpEvent(parts) if len(parts) > 1 else parts[0]


def _node(rng: random.Random, settings, depth: int):
    choice = rng.random() if depth else 1.0
    if choice < 0.5:
        once = _node(rng, settings, depth - 1)
        return ev.SelfComposedDpEvent(once, rng.randint(1, 6))
    if choice < 0.75:
        once = _node(rng, settings, depth - 1)
        return ev.ComposedDpEvent([once, once, _node(rng, settings, 0)])
    return settings[0] if rng.random() < 0.8 else settings[1]


def releases(event, count: int = 1):
    """The releases of a tree with their numbers, an independent walk."""
    if isinstance(event, ev.NoOpDpEvent):
        return
    if isinstance(event, ev.ComposedDpEvent):
        for part in event.events:
            yield from releases(part, count)
    elif isinstance(event, ev.SelfComposedDpEvent):
        yield from releases(event.event, event.count * count)
    else:
        yield event, count


def total_mu(event, relation) -> float:
    """Of a tree of Gaussians, closed form."""
    shift = 2 if relation is Theirs.REPLACE_ONE else 1
    found = [n * (shift / e.noise_multiplier) ** 2 for e, n in releases(event)]
    return math.sqrt(sum(found))


def pld_of(event, relation, *, pessimistic: bool):
    """dp_accounting's distribution of a whole tree, rounded up or down.

    Not by its accountant, which counts repeated randomized response once.
    """
    parts = list(releases(event))
    # The losses of mixtures are slow to invert, so their grid is coarser.
    mixed = any(isinstance(e, ev.MixtureOfGaussiansDpEvent) for e, _ in parts)
    options = {
        "pessimistic_estimate": pessimistic,
        "value_discretization_interval": 1e-3 if mixed else 1e-4,
    }
    total = None
    for one, count in parts:
        found = _one(one, relation, options, 1.0)
        found = found.self_compose(count) if count > 1 else found
        total = found if total is None else total.compose(found)
    assert total is not None
    return total


def _one(event, relation, options, prob: float):
    smooth = options | {"use_connect_dots": options["pessimistic_estimate"]}
    if isinstance(event, ev.PoissonSampledDpEvent):
        prob *= event.sampling_probability
        return _one(event.event, relation, options, prob)
    if isinstance(event, ev.GaussianDpEvent):
        smooth["neighboring_relation"] = relation
        return make.from_gaussian_mechanism(
            event.noise_multiplier, sampling_prob=prob, **smooth
        )
    if isinstance(event, ev.LaplaceDpEvent):
        return make.from_laplace_mechanism(
            event.noise_multiplier, sampling_prob=prob, **smooth
        )
    if isinstance(event, ev.DiscreteLaplaceDpEvent):
        return make.from_discrete_laplace_mechanism(
            event.noise_parameter, event.sensitivity, **options
        )
    if isinstance(event, ev.RandomizedResponseDpEvent):
        return make.from_randomized_response(
            event.noise_parameter,
            event.num_buckets,
            neighboring_relation=relation,
            **options,
        )
    assert isinstance(event, ev.MixtureOfGaussiansDpEvent)
    return make.from_mixture_gaussian_mechanism(
        event.standard_deviation, event.sensitivities, event.sampling_probs, **smooth
    )
