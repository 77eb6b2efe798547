"""Solving a mechanism's parameter for a target, and differentiating the solution."""

import dataclasses
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import (
    ahead_of_time,
    is_traced,
)
from .._internal._precision import float_dtype, in_float64
from .._internal._search import least_whole
from ..curves import (
    Status,
    with_gradient,
)
from ..levy import LevyTriplet
from ..losses import AUTO, Method
from ..mechanisms import AbstractMechanism, AbstractRenyi, View, require_mechanism
from ..selection import SelectBest
from ._calibration import Calibration
from ._require import require_target
from ._solved import found_for, in_single, made_ready, meets
from ._targets import AbstractTarget, UnreachableTarget, require_reachable
from .unknowns import Selector, Unknown, find_unknown

_LARGEST_GROUP = 64


@explained
@ahead_of_time
def calibrate(
    mechanism: AbstractMechanism | AbstractRenyi | SelectBest | View,
    target: AbstractTarget,
    *,
    solve_for: Selector,
    within: tuple[float, float] | None = None,
    whole: bool = False,
) -> Calibration:
    """Finds the parameter at which a mechanism just meets a target.

    Works under `jax.jit`, `jax.vmap` and `jax.grad`, with respect to the target and
    all other parameters.

    Args:
        mechanism: A mechanism; the value of the parameter solved for, if it has one,
            is ignored.  Or its `.using(engine)`, which then answers.  Otherwise, where
            the contour engine can certify a loose value only (rare participation and
            little noise), the grid is asked as well, but not under `jax.grad` and
            `jax.vmap` by themselves.  Or a `SelectBest`, or a guarantee by Renyi
            divergences, `ZCDP` and its compositions, for targets of the privacy
            profile.
        target: Of `fdp_jax.targets`.
        solve_for: The parameter: its name ("noise_multiplier": the least noise;
            "sampling_prob", "num_steps": the largest), its path where there are several
            of that name ("parts.0.noise_multiplier"), or a function that selects it as
            in `equinox.tree_at`.  If that is an array (as in a `Schedule`), or several
            parameters, a common factor is found that multiplies their values.  "size"
            finds the largest group (in Python: not under transformations).
        within: The range searched, (low, high); by default all values that make sense
            for a parameter of that name.
        whole: Whether the value must be a whole number; always so for the `num_steps`
            of mechanisms that have no fractional powers.

    Returns:
        The value, the completed mechanism, where the target binds, and a status.

    Guarantee:
        The certified (pessimistic) privacy loss at the solution meets the target; for
        `targets.ApproxDP` as delta(epsilon) <= delta.  (The query `epsilon(delta=)` is
        certified on its own and can lie above the target by the width of its bracket,
        about 1e-11.)  Whether the loss rises or falls with the parameter is found out
        by evaluation where it is not known.  If the whole range meets the target, the
        value is its riskier end.

    Differentiable in:
        The target and all other parameters, by the implicit function theorem: twice
        (once for `targets.MuGDP` with delta = 0 unless Gaussian noise is behind it, and
        for `SelectBest`),
        with the derivative of the active constraint where another one takes over.
        Whole numbers have derivative zero.

    Raises:
        ValueError: If `solve_for` is not a parameter of the mechanism, or another one
            is not set, or the target's reference has another neighboring relation.
        TypeError: If `mechanism` is not a mechanism.
        UnreachableTarget: If no value meets the target.  Under a transformation the
            status is VACUOUS instead and the value NaN, for this member of a batch
            alone; only arguments that are out of range stop the whole batch.

    Example:
        >>> import fdp_jax as fdp
        >>> found = fdp.calibrate(
        ...     fdp.DPSGD(sampling_prob=0.01, num_steps=1000),
        ...     fdp.targets.ApproxDP(epsilon=8.0, delta=1e-5),
        ...     solve_for="noise_multiplier",
        ... )
        >>> print(f"{found.value:.6f}")
        0.586260
    """
    _checks.require(
        not (isinstance(mechanism, AbstractTarget) and hasattr(target, "loss")),
        "calibrate takes the mechanism first, and then the target",
        wrong=TypeError,
    )
    whole = _checks.flag("whole", whole)
    method = AUTO
    if isinstance(mechanism, View) and mechanism.direction == "both":
        mechanism, method = mechanism.mechanism, mechanism.method
    if isinstance(mechanism, AbstractRenyi | SelectBest):
        require_target(target)
        _checks.require(
            target.of_profile and solve_for != "size",
            "selections and guarantees by Renyi divergences are calibrated to "
            "ApproxDP, Advantage or BayesError, not for groups: got "
            f"{type(target).__name__} and solve_for = {solve_for!r}",
            wrong=TypeError,
        )
    else:
        mechanism = require_mechanism("mechanism", mechanism)
        require_target(target).require_relation(mechanism.relation)
    require_reachable(target)
    if isinstance(solve_for, str) and isinstance(mechanism, AbstractMechanism):
        if solve_for == "size":
            return _largest_group(mechanism, target, method)
        plain = within is None and not whole
        rescaled = mechanism.rescaled(solve_for) if plain else None
        if rescaled is not None:
            return _in_other_unit(mechanism, target, solve_for, method, *rescaled)
    unknown = find_unknown(mechanism, solve_for, within=within, whole=whole)
    unknown.filled(mechanism).require_complete()
    open_mechanism = _with_known_parts(unknown.left_open(mechanism))
    more_leak = unknown.counts and unknown.leaks > 0 and not unknown.factor
    missed = more_leak and not is_traced((mechanism, target))
    # Parts of a step have wide bounds, which may be no smaller than those of one.
    for least in {unknown.lowest, max(unknown.lowest, 1.0)}:
        missed = missed and target.is_missed(unknown.put(mechanism, np.float64(least)))
    if missed:
        raise UnreachableTarget(_why_not(open_mechanism, target, unknown))
    found = found_for(open_mechanism, target, unknown, method)
    known = not is_traced(found.status)
    if known and int(found.status) == Status.VACUOUS:
        raise UnreachableTarget(_why_not(open_mechanism, target, unknown))
    return Calibration(
        found.value,
        unknown.put(mechanism, found.value),
        target,
        found.status,
        found.binding,
        found.leaks,
        found.at_end,
        unknown.name,
    )


def _in_other_unit(
    mechanism: AbstractMechanism,
    target: AbstractTarget,
    name: str,
    method: Method,
    simpler: AbstractMechanism,
    scale: Array,
) -> Calibration:
    """The solution for a mechanism in which the unknown has another unit."""
    found = calibrate(View(simpler, "both", method), target, solve_for=name)
    unknown = find_unknown(mechanism, name)
    value = _scaled(
        found.value,
        scale,
        unknown,
        found.leaks,
        single=jnp.asarray(float_dtype() == np.float32),
    )
    completed = unknown.put(mechanism, value)
    return dataclasses.replace(found, value=value, mechanism=completed)


@in_float64
def _scaled(
    value: Array, scale: Array, unknown: Unknown, leaks: Array, *, single: Array
) -> Array:
    """The product, rounded so that its quotient by the scale is on the private side."""
    product = value * scale
    fixed = stop_gradient(product)
    moved = fixed + leaks * -4 * float(jnp.finfo(fixed.dtype).eps) * jnp.abs(fixed)
    moved = jnp.where(single, in_single(moved, unknown, leaks), moved)
    return with_gradient(moved, product)


def _with_known_parts(mechanism: AbstractMechanism) -> AbstractMechanism:
    """The leaves, with triplets that say whether they have no Gaussian part.

    As queries do (`simplified`): once all numbers are traced, nobody knows.
    """
    is_triplet = lambda part: isinstance(part, LevyTriplet)
    plain = lambda part: part.simplified() if is_triplet(part) else part
    return jax.tree.map(plain, mechanism, is_leaf=is_triplet)


def _why_not(mechanism: Any, target: AbstractTarget, unknown: Unknown) -> str:
    """The reason of a refusal, with what can be reached instead where that is known."""
    ends = unknown.lowest, unknown.highest
    found = [target.asked(unknown.put(mechanism, np.float64(end))) for end in ends]
    values = ", ".join(f"{float(x.estimate):.6g}" for x in found if x is not None)
    told = f": at the ends of that range {target.quantity()} is {values}"
    return (
        f"no {unknown.name} in [{unknown.lowest:g}, {unknown.highest:g}] could be "
        f"certified to meet the target {target.describe()}{told if values else ''}"
    )


def _largest_group(
    mechanism: AbstractMechanism, target: AbstractTarget, method: Method
) -> Calibration:
    """The most records that can change together, by bisection."""
    mechanism.require_complete()
    ready = made_ready(target)
    found: dict[int, dict[str, Array]] = {}

    def fails(size: int) -> bool:
        group = mechanism if size == 1 else mechanism.group(size)
        met, found[size] = meets(group, ready, method=method)
        return not bool(met)

    low = least_whole(fails, _LARGEST_GROUP) - 1
    _checks.require(
        low != 0,
        f"no group meets the target {target.describe()}: a single record does not",
        wrong=UnreachableTarget,
    )
    value = jnp.asarray(float(low), float_dtype())
    status = jnp.asarray(int(Status.TIGHT), jnp.int32)
    grows = jnp.ones((), float_dtype())
    group = mechanism.group(low)
    end = jnp.asarray(low == _LARGEST_GROUP)
    return Calibration(value, group, target, status, found[low], grows, end, "size")
