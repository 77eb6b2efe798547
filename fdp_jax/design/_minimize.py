"""Minimizing a cost subject to a privacy constraint, by elimination.

One parameter is solved for by `calibrate`, so that an unconstrained minimizer does the
rest and every design it looks at meets the target.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix as optx
from jaxtyping import Array, Bool, Float, PyTree

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import known
from .._internal._precision import float_dtype
from .._internal._record import Record
from ..calibration import AbstractTarget, Calibration, calibrate
from ..calibration.unknowns import Selector
from ..mechanisms import AbstractMechanism, View

Cost = Callable[[Any, Any], Any]
Family = Callable[[Any], AbstractMechanism | View]


class Design(Record):
    """A mechanism that meets its target at least cost; made by `minimize`."""

    params: PyTree
    """The free parameters."""
    calibration: Calibration
    """The parameter solved for, certified, and the completed mechanism."""
    cost: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    """Largest entry of the cost's gradient in the free parameters."""
    converged: Bool[Array, ""]

    @property
    def mechanism(self) -> AbstractMechanism:
        """The completed mechanism."""
        return cast(AbstractMechanism, self.calibration.mechanism)


@explained(
    cost=_checks.instance_of(Callable, "a function"),
    family=_checks.instance_of(Callable, "a function"),
    tolerance=_checks.number(_checks.finite_positive),
)
def minimize(
    cost: Cost,
    family: Family,
    start: PyTree,
    target: AbstractTarget,
    *,
    solve_for: Selector = "noise_multiplier",
    tolerance: float | None = None,
    max_num_steps: int = 100,
    optimizer: optax.GradientTransformation | None = None,
) -> Design:
    """The cheapest mechanism of a family that meets a target.

    Args:
        cost: Function (params, value) -> number, differentiable in JAX; `value` is that
            of the parameter solved for.
        family: Function params -> mechanism, with the parameter solved for left open
            (or to be scaled), or its `.using(engine)`.
        start: PyTree of floating-point numbers from which the search starts;
            unconstrained, so take logarithms of what must be positive.
        target: Of `fdp_jax.targets`.
        solve_for: The parameter that is eliminated; see `calibrate`.
        tolerance: Of params and cost, absolute and relative; 1e-6 (1e-3 in float32
            programs) if not given.
        max_num_steps: Steps of the optimizer.
        optimizer: An optax gradient transformation, for costs that are noisy or have
            many parameters; the BFGS method if not given.

    Returns:
        A `Design`: a local minimum (or a good point, if not `converged`).

    Guarantee:
        The certified privacy loss of the design meets the target, whether or not the
        search has converged.

    Raises:
        ValueError: If start or tolerance is out of range.
        UnreachableTarget: If the design found cannot meet the target.

    Example:
        >>> import fdp_jax as fdp, jax.numpy as jnp
        >>> target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5)
        >>> family = lambda log_ratio: fdp.compose(
        ...     fdp.Gaussian(1.0), fdp.Gaussian(jnp.exp(log_ratio))
        ... )
        >>> cost = lambda log_ratio, s: s**2 * (1 + 4 * jnp.exp(2 * log_ratio))
        >>> both = lambda m: [part.noise_multiplier for part in m.parts]
        >>> best = fdp.design.minimize(cost, family, 0.0, target, solve_for=both)
        >>> print(f"{jnp.exp(2 * best.params):.4f}")  # variances as 1 : 1/2
        0.5000
    """
    start = jax.tree.map(lambda x: jnp.asarray(x, float_dtype()), start)
    leaves = [known(x) for x in jax.tree.leaves(start)]
    _checks.require(
        leaves and all(x is None or np.all(np.isfinite(x)) for x in leaves),
        "start must hold finite numbers",
        start,
    )
    if tolerance is None:
        tolerance = 1e-6 if float_dtype() == np.float64 else 1e-3
    problem = _Problem(cost, family, solve_for)
    # Arrays, so that another target needs no other program.
    traced = jax.tree.map(jnp.asarray, target)
    solver = _solver(optimizer, tolerance)
    params, converged = _search(problem, solver, start, traced, max_num_steps)
    value, gradient = _value_and_gradient(problem, params, traced)
    # In Python again: what is returned is certified, or refused in words.
    found = calibrate(family(params), target, solve_for=solve_for)
    norm = jnp.max(jnp.stack([jnp.max(jnp.abs(g)) for g in jax.tree.leaves(gradient)]))
    return Design(params, found, value, norm, converged)


@explained
def pareto(
    cost: Cost,
    family: Family,
    start: PyTree,
    targets: Sequence[AbstractTarget],
    *,
    solve_for: Selector = "noise_multiplier",
    tolerance: float | None = None,
    max_num_steps: int = 100,
    optimizer: optax.GradientTransformation | None = None,
) -> list[Design]:
    """The cheapest mechanism for each of some targets: a front of privacy and cost.

    By continuation: each search starts where the one before ended, and all share one
    compiled program.

    Args:
        cost: See `minimize`.
        family: See `minimize`.
        start: Where the first search starts.
        targets: Of one kind, in an order in which neighbors are alike.
        solve_for: The parameter that is eliminated.
        tolerance: See `minimize`.
        max_num_steps: Steps for each target.
        optimizer: See `minimize`.

    Returns:
        One `Design` for each target.

    Guarantee:
        Each meets its target.

    Raises:
        UnreachableTarget: If one cannot.
    """
    designs = []
    for target in targets:
        found = minimize(
            cost,
            family,
            start,
            target,
            solve_for=solve_for,
            tolerance=tolerance,
            max_num_steps=max_num_steps,
            optimizer=optimizer,
        )
        start = found.params
        designs.append(found)
    return designs


class _Problem(eqx.Module):
    """The cost as a function of the free parameters alone."""

    cost: Cost = eqx.field(static=True)
    family: Family = eqx.field(static=True)
    solve_for: Selector = eqx.field(static=True)

    def __call__(self, params: PyTree, target: AbstractTarget) -> Array:
        found = calibrate(self.family(params), target, solve_for=self.solve_for)
        value = self.cost(params, found.value)
        # A line search steps back from what cannot be met.
        return jnp.where(jnp.isnan(value), jnp.inf, value)


def _solver(
    optimizer: optax.GradientTransformation | None, tolerance: float
) -> optx.AbstractMinimiser:
    if optimizer is None:
        return optx.BFGS(rtol=tolerance, atol=tolerance)
    kind, wanted = optax.GradientTransformation, "an optax gradient transformation"
    optimizer = _checks.instance("optimizer", optimizer, kind, wanted)
    return optx.OptaxMinimiser(optimizer, rtol=tolerance, atol=tolerance)


@eqx.filter_jit
def _search(
    problem: _Problem,
    solver: optx.AbstractMinimiser,
    start: PyTree,
    target: AbstractTarget,
    max_num_steps: int,
) -> tuple[PyTree, Array]:
    found = optx.minimise(
        problem,
        solver,
        start,
        target,
        max_steps=max_num_steps,
        throw=False,
    )
    return found.value, found.result == optx.RESULTS.successful


@eqx.filter_jit
def _value_and_gradient(
    problem: _Problem, params: PyTree, target: AbstractTarget
) -> tuple[Array, PyTree]:
    return jax.value_and_grad(problem)(params, target)
