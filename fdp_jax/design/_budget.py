"""Schedules that use up a budget exactly."""

from typing import cast

import jax

from .._internal._calls import explained
from ..calibration import AbstractTarget, Calibration, calibrate
from ..calibration.unknowns import Selector, find_unknown
from ..mechanisms import AbstractMechanism, compose


@explained
def scale_to_budget(
    mechanism: AbstractMechanism,
    target: AbstractTarget,
    *,
    solve_for: Selector = "noise_multiplier",
) -> AbstractMechanism:
    """The mechanism with parameters scaled by one factor so that it meets a target.

    For learning a schedule by gradient: free parameters go in, and what comes out
    meets the target exactly, at every iterate.

    Args:
        mechanism: A `Schedule`, or any mechanism.
        target: Of `fdp_jax.targets`.
        solve_for: What is scaled: see `calibrate`.

    Returns:
        The scaled mechanism.

    Guarantee:
        Its certified privacy loss meets the target.

    Differentiable in:
        All parameters and the target, see `calibrate`.  A common factor of the
        parameters that are scaled has no influence.

    Raises:
        ValueError: If `solve_for` is no parameter.
        UnreachableTarget: If no factor meets the target (NaN under transformations).

    Example:
        >>> import fdp_jax as fdp, jax.numpy as jnp
        >>> noise = fdp.Schedule(fdp.Gaussian, jnp.array([1.0, 1.0, 2.0, 2.0]))
        >>> target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5)
        >>> scaled = fdp.design.scale_to_budget(noise, target)
        >>> print(f"{scaled.epsilon(delta=1e-5):.6f}")
        1.000000
    """
    calibrated = calibrate(mechanism, target, solve_for=solve_for).mechanism
    return cast(AbstractMechanism, calibrated)


@explained
def spend_rest(
    spent: AbstractMechanism,
    rest: AbstractMechanism,
    target: AbstractTarget,
    *,
    solve_for: Selector = "noise_multiplier",
) -> Calibration:
    """The rest of a budget: a release scaled so that all together meets a target.

    Args:
        spent: What was released already; it stays as it is.
        rest: What is still to come.
        target: Of `fdp_jax.targets`, for both together.
        solve_for: The parameter of `rest` that is solved for or scaled.

    Returns:
        The calibration; its `mechanism` is the scaled rest alone.

    Guarantee:
        The certified privacy loss of both together meets the target.

    Differentiable in:
        All parameters of both and the target, see `calibrate`.

    Raises:
        ValueError: If `solve_for` is no parameter of the rest.
        UnreachableTarget: If the budget is spent (NaN under transformations).

    Example:
        >>> import fdp_jax as fdp
        >>> target = fdp.targets.ApproxDP(epsilon=2.0, delta=1e-5)
        >>> spent = fdp.Gaussian(4.0).repeat(2)
        >>> rest = fdp.Gaussian().repeat(3)
        >>> print(f"{fdp.design.spend_rest(spent, rest, target).value:.6f}")
        4.868807
    """
    chosen = find_unknown(rest, solve_for).leaves

    def in_rest(both):
        leaves = jax.tree.leaves(both.parts[1], is_leaf=lambda x: x is None)
        return [leaves[i] for i in chosen]

    found = calibrate(compose(spent, rest), target, solve_for=in_rest)
    parts = found.mechanism.parts  # pyright: ignore[reportAttributeAccessIssue]
    return Calibration(
        found.value,
        parts[1],
        target,
        found.status,
        found.binding,
        found.leaks,
        found.at_end,
        found.solve_for,
    )
