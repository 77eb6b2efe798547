"""Options that are one of a few: taken by member or name, anything else refused.

Whatever is no member fails every `is` comparison, and so would count silently as the
choice that is compared with last.
"""

import functools
import inspect
from typing import Any

import jax.numpy as jnp
import pytest
from test_api import _public_functions

import fdp_jax as fdp


def _wants(name, function):
    """A call without anything to compute with: a wrong option is noticed before."""
    known = {"alpha": 0.1, "epsilon": 1.0, "delta": 1e-5, "fpr": 0.1, "prior": 0.1}
    known |= {"tnr": 0.1, "kappa": 0.1, "distance": 1, "connected": True}
    known |= {"dimension": 2, "null_prob": 0.5, "mass": 0.1}
    known |= dict.fromkeys(("log_density", "log_prior_density"), -1.0)
    needed = {
        key: known.get(key)
        for key, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty and key not in (name, "args")
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    return lambda option: function(**needed, **{name: option})


class Untouched(fdp.AbstractGuarantee):
    """A guarantee that cannot be asked."""

    def _asked(self, *value: Any, **named: Any) -> Any:
        raise AssertionError(f"asked at {value or named}")

    _solve = _profile = _error_rate_bounds = _asked


F, ZERO = fdp.tradeoff.Gaussian(1.0), jnp.zeros(())
OWNERS = {
    "fdp.AbstractGuarantee": Untouched(),
    "fdp.tradeoff.AbstractTradeOff": F,
    "fdp.Bounds": fdp.Bounds(ZERO, ZERO, ZERO, jnp.asarray(fdp.Status.TIGHT)),
}
MADE = {
    "ApproxDP": {"epsilon": 1.0, "delta": 0.1},
    "DPSGD": {"noise_multiplier": 1.0, "sampling_prob": 0.1, "num_steps": 2},
    "FromLogDensities": {
        "log_density_without": lambda x: -0.5 * x**2,
        "log_density_with": lambda x: -0.5 * (x - 1) ** 2,
        "support": (-9.0, 10.0),
        "log_beyond": -40.0,
    },
    "FromLossDistribution": dict.fromkeys(
        ("log_cdf_without", "log_sf_without", "log_cdf_with", "log_sf_with"),
        lambda x: 0.0 * x - 0.5,
    )
    | {"loss_range": (-1.0, 1.0)},
    "FromProbabilities": {"without_record": [0.6, 0.4], "with_record": [0.4, 0.6]},
    "FromTradeOffPoints": {"alpha": [0.0, 0.2, 1.0], "beta": [1.0, 0.2, 0.0]},
    "KaryRandomizedResponse": {"epsilon": 1.0, "num_categories": 3},
    "MatrixMechanism": {"noise_multiplier": 1.0, "strategy": [1.0, 0.5]},
    "MixtureOfGaussians": {
        "noise_multiplier": 1.0, "shifts": [0.0, 1.0], "probs": [0.5, 0.5]
    },
    "PoissonMechanism": {"offset": 1.0, "gain": 1.0},
    "Sensitivity": {"value": 1.0, "norm": "l2", "relation": "zero_out"},
    "Staircase": {"epsilon": 1.0, "gamma": 0.5},
}  # fmt: skip
"""Arguments of classes with a relation; of others a first one of 1 will do."""

NAMES = {
    "bound": ("pessimistic", "estimate", "optimistic"),
    "relation": ("add_or_remove_one", "replace_one", "zero_out"),
    "alternative": ("greater", "less", "two-sided"),
    "method": ("unbiased", "bonferroni"),
    "norm": ("l1", "l2", "absolute"),
    "scale": ("linear", "log", "logit"),
    "kind": ("bayes_error", "difference", "tradeoff", "profile"),
    "direction": ("remove", "add", "both"),
}
FLAGS = (
    "connected",
    "convex",
    "cyclic",
    "log_concave",
    "monotonic",
    "symmetric",
    "whole",
)
NOT_OPTIONS = (
    *("fdp.DiscreteGaussian scale", "fdp.DiscreteLaplace scale"),
    *("fdp.DistributedDiscreteGaussian scale", "fdp.Skellam scale"),
    "fdp.Skellam.of_vectors scale",
    *("fdp.SubordinatedGaussian scale", "fdp.levy.SubordinatedGaussian scale"),
    *("fdp.targets.AbstractTarget.require_relation relation",),
    *("fdp.targets.AllOf.require_relation relation",),
    *("fdp.interop.from_execution_plan relation",),
    # Checked behind other arguments.
    "fdp.DistributedDiscreteGaussian relation",
    *("fdp.audit.clopper_pearson alternative", "fdp.plot.audit scale"),
)
"""Numbers of that name, what only gets a mechanism's relation passed on, and what may
be left out."""


def _options():
    for owner, function in _public_functions():
        if inspect.isclass(function) and issubclass(function, Exception):
            continue
        for name in inspect.signature(function).parameters:
            known = name in NAMES or name in FLAGS
            if name == "norm" and owner.startswith("fdp.training."):
                continue  # a number
            if known and f"{owner} {name}" not in NOT_OPTIONS:
                yield pytest.param(owner, function, name, id=f"{owner} {name}")
    gaussian = fdp.Gaussian(1.0)
    using, view = gaussian.using, fdp.mechanisms.View
    clipped = fdp.Sensitivity.of_clipped_sum
    for owner, function, name in (
        ("fdp.AbstractMechanism.using", using, "method"),
        ("fdp.mechanisms.View", functools.partial(view, gaussian), "direction"),
        ("fdp.Sensitivity", functools.partial(clipped, 1.0, norm="l2"), "relation"),
        ("fdp.Sensitivity", functools.partial(clipped, 1.0), "norm"),
    ):
        if name == "norm":
            function = functools.partial(function, relation="zero_out")
        yield pytest.param(owner, function, name, id=f"{owner} {name} 2")


def _call(owner, function, name):
    start, _, last = owner.rpartition(".")
    if start in OWNERS:
        bound_method = getattr(OWNERS[start], last)
        extra = {"upper_is_pessimistic": True} if last == "pick" else {}
        return _wants(name, functools.partial(bound_method, **extra))
    if isinstance(function, functools.partial):
        return lambda option: function(**{name: option})
    chosen = "relation", "monotonic", "norm", "cyclic"
    if name in chosen and inspect.isclass(function):
        arguments = dict(MADE.get(last, {}))
        arguments.pop(name, None)
        first = (
            ()
            if arguments
            or last in ("Accountant", "BlatantNonPrivacy", "PerfectPrivacy")
            else (1.0,)
        )
        return lambda option: function(*first, **arguments, **{name: option})
    if last == "HyperPrior":
        return lambda option: function(lambda x: 0 * x + 1, **{name: option})
    return _wants(name, function)


@pytest.mark.parametrize(("owner", "function", "name"), list(_options()))
def test_an_option_that_is_no_choice_is_refused_before_anything_is_computed(
    owner, function, name
):
    call = _call(owner, function, name)
    if name in FLAGS:
        for wrong in ("no", "True", None, 1, 0.0):
            with pytest.raises(ValueError, match=f"{name} must be True or False, got"):
                call(wrong)
        return
    for wrong, error in {
        "sideways": ValueError,
        f"{NAMES[name][0]} ": ValueError,
        "": ValueError,
        None: TypeError,
        True: TypeError,
        0: TypeError,
        fdp.Status.VACUOUS: TypeError,
    }.items():
        with pytest.raises(error, match=f"^{name} must be one of .*, got") as raised:
            call(wrong)
        assert "\n" not in str(raised.value)
        names = NAMES[name] if owner != "fdp.AbstractMechanism.using" else ("grid",)
        assert any(repr(choice) in str(raised.value) for choice in names)


CLOSED = fdp.Laplace(1.0), F, fdp.Gaussian(1.0).bounds(delta=1e-5)


@pytest.mark.parametrize("bound", fdp.Bound)
def test_a_bound_is_taken_by_name_and_by_value(bound):
    for text in (bound.name, bound.value):
        for guarantee in CLOSED[:2]:
            found = guarantee.epsilon(delta=1e-5, bound=text)
            assert found == guarantee.epsilon(delta=1e-5, bound=bound)
        for side in (True, False):
            picked = CLOSED[2].pick(text, upper_is_pessimistic=side)
            assert picked == CLOSED[2].pick(bound, upper_is_pessimistic=side)


@pytest.mark.parametrize("relation", fdp.NeighboringRelation)
def test_a_relation_is_taken_by_name_and_by_value(relation):
    for text in (relation.name, relation.value):
        assert fdp.Gaussian(1.0, relation=text).relation is relation
        assert fdp.LevyTriplet(1.0, relation=text).relation is relation
        one = fdp.Sensitivity.of_clipped_sum(1.0, norm="l2", relation=text)
        other = fdp.Sensitivity.of_clipped_sum(1.0, norm="l2", relation=relation)
        assert one.relation is relation
        assert one.value == other.value
    run = {"noise_multiplier": 1.0, "sampling_prob": 0.1, "num_steps": 2}
    assert fdp.DPSGD(**run, relation=relation.value).relation is relation


def test_a_report_of_a_category_is_never_absent():
    with pytest.raises(ValueError, match="relation must be one of 'replace_one', 'zer"):
        fdp.KaryRandomizedResponse(1.0, num_categories=3, relation="add_or_remove_one")
