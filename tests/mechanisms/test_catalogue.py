"""Every mechanism against independent numbers, from delta = 1e-5 to 1e-30."""

import functools
import math
from collections.abc import Callable

import jax.numpy as jnp
import mpmath as mp
import pytest
from programs import jitted
from reference import catalogue_truth, exact

import fdp_jax as fdp

RELATIONS = {r.value: r for r in fdp.NeighboringRelation}
OF_EVERY_KIND = "kary_randomized_response", "discrete_gaussian", "subsampled_laplace"
REPLACE_ONE = fdp.NeighboringRelation.REPLACE_ONE


def _mixture_of_gaussians(sigma, shifts, weights):
    return fdp.MixtureOfGaussians(sigma, shifts=shifts, probs=weights)


def _subsampled(inner: Callable) -> Callable:
    def build(q, **params):
        return fdp.PoissonSubsampled(inner(**params), q)

    return build


def _discrete_laplace(parameter, sensitivity):
    return fdp.DiscreteLaplace(1 / parameter, sensitivity=sensitivity)


def _discrete_gaussian(sigma, sensitivity):
    return fdp.DiscreteGaussian(sigma, sensitivity=sensitivity)


BUILD: dict[str, Callable] = {
    "gaussian": lambda sigma: fdp.Gaussian(sigma),
    "laplace": lambda b: fdp.Laplace(b),
    "randomized_response": lambda epsilon0: fdp.RandomizedResponse(epsilon0),
    "kary_randomized_response": lambda epsilon0, num_categories, relation: (
        fdp.KaryRandomizedResponse(
            epsilon0, num_categories=num_categories, relation=RELATIONS[relation]
        )
    ),
    "approx_dp": lambda epsilon0, delta0: fdp.ApproxDP(
        epsilon=epsilon0, delta=float(delta0)
    ),
    "discrete_gaussian": _discrete_gaussian,
    "discrete_laplace": _discrete_laplace,
    "staircase": lambda epsilon0, gamma: fdp.Staircase(epsilon0, gamma=gamma),
    "exponential_mechanism": lambda epsilon0: fdp.ExponentialMechanism(epsilon0),
    "mixture_of_gaussians": _mixture_of_gaussians,
    "logistic": lambda scale: fdp.Logistic(scale),
    "generalized_gaussian": lambda scale, shape: fdp.GeneralizedGaussian(
        scale, shape=shape
    ),
    "subsampled_laplace": _subsampled(lambda b: fdp.Laplace(b)),
    "subsampled_discrete_laplace": _subsampled(_discrete_laplace),
    "subsampled_discrete_gaussian": _subsampled(_discrete_gaussian),
    "replace_one_subsampled_gaussian": lambda sigma, q: fdp.DPSGD(
        noise_multiplier=sigma, sampling_prob=q, num_steps=1, relation=REPLACE_ONE
    ),
    "probabilities": lambda p, q: fdp.FromProbabilities(
        [float(x) for x in p], [float(x) for x in q]
    ),
    "revealed_mixture": lambda weights, parts: fdp.RevealedMixture(
        [_part(**part) for part in parts], probs=weights
    ),
    "group_dpsgd_step": lambda sigma, q, group_size: fdp.PoissonSubsampled(
        fdp.Gaussian(sigma), q
    ).group(group_size),
    "heterogeneous": lambda parts: fdp.compose(*(_part(**part) for part in parts)),
}


def _part(mechanism, **params):
    return BUILD[mechanism](**params)


SLOW = {
    *("kary_randomized_response", "discrete_gaussian", "mixture_of_gaussians"),
    *("logistic", "generalized_gaussian", "subsampled_discrete_gaussian"),
    "replace_one_subsampled_gaussian",
}
"""Mechanisms of which a program with traced numbers takes more than five seconds."""


def _groups(mechanism: str, quantity: str) -> list:
    """Lists of entries that one call answers."""
    found: dict[str, list] = {}
    for entry in catalogue_truth():
        if (entry["mechanism"], entry["quantity"]) == (mechanism, quantity):
            asked = f"{entry['params']} {entry['count']} {entry['direction']}"
            found.setdefault(asked, []).append(entry)
    assert found
    return [*found.values()]


def _build(entry: dict):
    return BUILD[entry["mechanism"]](**entry["params"]).repeat(entry["count"])


@functools.partial(jitted, static_argnames=("direction", "given"))
def _ask(mechanism, values, direction, given):
    """One program for all parameters and counts of a mechanism."""
    side = getattr(mechanism, direction)
    return side.bounds(**{given: values})


def _contains(bounds, truths, width, rtol, trivial=-math.inf, read=lambda x: x):
    slack = mp.mpf("2e-14")  # parameters are decimals, rounded to floats
    ends = bounds.lower, bounds.estimate, bounds.upper
    for *found, truth in zip(*ends, truths, strict=True):
        size = 1 + abs(truth)
        lower, estimate, upper = (read(exact(x)) for x in found)
        assert lower <= truth + slack * size
        assert truth <= upper + slack * size
        assert upper - truth <= width * size
        assert truth - lower <= width * size or lower <= trivial
        assert abs(estimate - truth) <= rtol * size


@pytest.mark.parametrize(
    "mechanism",
    [pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW)) for x in BUILD],
)
def test_epsilon(mechanism):
    for entries in _groups(mechanism, "epsilon"):
        first = entries[0]
        deltas = jnp.asarray([float(e["delta"]) for e in entries])
        bounds = _ask(_build(first), deltas, first["direction"], "delta")
        # Next to the largest loss the grid resolves 1 / 2^17 of it; closer still the
        # optimistic end of epsilon may be the trivial one, log(1 - delta).
        truths = [mp.mpf(e["value"]) for e in entries]
        # Composed, choices leak less than the pair, which dominates them.
        dominated = mechanism == "exponential_mechanism" and first["count"] > 1
        trivial = math.inf if dominated else 0.0
        _contains(bounds, truths, 4e-5, 1e-6, trivial=trivial)
        positive = jnp.asarray([float(truth) > 1e-3 for truth in truths])
        assert jnp.sum(positive & (bounds.lower <= 0)) <= 1, first


@pytest.mark.parametrize("mechanism", OF_EVERY_KIND)
def test_delta(mechanism):
    # By logarithms: the truths are, and their errors are relative ones of delta.
    for entries in _groups(mechanism, "log_delta"):
        first = entries[0]
        epsilons = jnp.asarray([float(e["epsilon"]) for e in entries])
        bounds = _ask(_build(first), epsilons, first["direction"], "epsilon")
        truths = [mp.mpf(e["value"]) for e in entries]
        _contains(bounds, truths, 1e-6, 1e-7, read=mp.log)
