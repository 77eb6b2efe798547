"""Derivatives of numbers found by search: roots, optima and other known values.

Each function returns a number found elsewhere and gives it the derivative that its
definition implies.  The rules refer to the number through the same functions, so
derivatives of every order are right.  (One Newton step at a `stop_gradient` root, the
usual short cut, has a wrong second derivative.)

JAX drops custom rules when it linearizes the body of a `lax.scan`, which matters from
second order on.  There the derivative is NaN, not silently wrong: see `_guarded`.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

Objective = Callable[[Array, PyTree, PyTree], Array]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def known_value(
    function: Callable[[PyTree, PyTree], PyTree],
    value: PyTree,
    args: PyTree,
    aux: PyTree,
) -> PyTree:
    """`value`, known to equal `function(args, aux)`, with that function's derivative.

    Args:
        function: Differentiable function without closed-over tracers.
        value: What it returns.
        args: What the value depends on: a PyTree of floating-point arrays.
        aux: Constants; no derivative flows through them.
    """
    del function, aux
    return jax.tree.map(lambda x: _guarded(x, args), value)


@known_value.defjvp
def _known_value_jvp(
    function: Callable[[PyTree, PyTree], PyTree], primals: tuple, tangents: tuple
) -> tuple[PyTree, PyTree]:
    value, args, aux = primals
    value = known_value(function, value, args, aux)
    _, tangent = jax.jvp(lambda a: function(a, aux), (args,), (tangents[1],))
    return value, tangent


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def implicit_root(
    residual: Objective, root: Float[Array, ""], args: PyTree, aux: PyTree
) -> Float[Array, ""]:
    """A root of `residual(root, args, aux) = 0`, with its derivative in `args`.

    Args:
        residual: Differentiable function without closed-over tracers, with a nonzero
            derivative in its first argument.
        root: The solution; carries no derivative of its own.
        args: What the solution depends on: a PyTree of floating-point arrays.
        aux: Constants; no derivative flows through them.
    """
    del residual, aux
    return _guarded(root, args)


@implicit_root.defjvp
def _implicit_root_jvp(
    residual: Objective, primals: tuple, tangents: tuple
) -> tuple[Array, Array]:
    root, args, aux = primals
    root = implicit_root(residual, root, args, aux)
    slope, gradient = jax.grad(residual, argnums=(0, 1))(root, args, aux)
    products = jax.tree.map(jnp.vdot, gradient, tangents[1])
    shift = sum(jax.tree.leaves(products), start=jnp.zeros_like(root))
    # A zero slope belongs to a root that is not used.
    return root, -shift / jnp.where(slope == 0, 1, slope)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def optimal_value(
    objective: Objective,
    value: Float[Array, ""],
    point: Float[Array, ""],
    args: PyTree,
    aux: PyTree,
) -> Float[Array, ""]:
    """An optimum `objective(point, args, aux)`, with its derivative in `args`.

    The first derivative needs no derivative of the point (envelope theorem); higher
    ones take it from the first-order condition, at no cost unless asked for.

    Args:
        objective: Differentiable function without closed-over tracers.
        value: The optimum.
        point: Where the derivative in the first argument vanishes.
        args: What the optimum depends on: a PyTree of floating-point arrays.
        aux: Constants; no derivative flows through them.
    """
    del objective, point, aux
    return _guarded(value, args)


@optimal_value.defjvp
def _optimal_value_jvp(
    objective: Objective, primals: tuple, tangents: tuple
) -> tuple[Array, Array]:
    value, point, args, aux = primals
    value = optimal_value(objective, value, point, args, aux)
    point = implicit_root(_Slope(objective), point, args, aux)
    _, tangent = jax.jvp(lambda a: objective(point, a, aux), (args,), (tangents[2],))
    return value, tangent


class _Slope:
    """First-order condition of an objective; equal for equal objectives."""

    def __init__(self, objective: Objective):
        self.objective = objective

    def __hash__(self) -> int:
        return hash((_Slope, self.objective))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Slope) and self.objective == other.objective

    def __call__(self, point: Array, args: PyTree, aux: PyTree) -> Array:
        return jax.grad(self.objective)(point, args, aux)


def _guarded(value: Array, args: PyTree) -> Array:
    """The value, with a NaN derivative: seen only where a rule has been dropped."""
    zero = jnp.zeros((), value.dtype)
    for leaf in jax.tree.leaves(args):
        zero = zero + jnp.sum(jnp.where(jnp.isfinite(leaf), leaf, 0) * 0)
    return value + jnp.sqrt(jnp.abs(zero))
