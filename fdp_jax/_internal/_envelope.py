"""Derivatives of an optimal value, by the envelope theorem."""

import functools
from collections.abc import Callable

import jax
from jaxtyping import Array, Float, PyTree

from ._implicit import implicit_root


class _Slope:
    """First-order condition of an objective; equal for equal objectives."""

    def __init__(self, objective: Callable[[Array, PyTree, PyTree], Array]):
        self.objective = objective

    def __hash__(self) -> int:
        return hash((_Slope, self.objective))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Slope) and self.objective == other.objective

    def __call__(self, point: Array, args: PyTree, aux: PyTree) -> Array:
        return jax.grad(self.objective)(point, args, aux)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def optimal_value(
    objective: Callable[[Array, PyTree, PyTree], Array],
    value: Float[Array, ""],
    point: Float[Array, ""],
    args: PyTree,
    aux: PyTree,
) -> Float[Array, ""]:
    """Gives an optimal value found elsewhere its derivatives.

    The first derivative needs no derivative of the point (envelope theorem); higher
    ones take it from the first-order condition, at no cost unless asked for.

    Args:
        objective: Differentiable function without closed-over tracers.
        value: `objective(point, args, aux)`.
        point: Where its derivative in the first argument vanishes.
        args: What the optimum depends on: a PyTree of floating-point arrays.
        aux: Constants.
    """
    del objective, point, args, aux
    return value


@optimal_value.defjvp
def _optimal_value_jvp(
    objective: Callable[[Array, PyTree, PyTree], Array], primals: tuple, tangents: tuple
) -> tuple[Array, Array]:
    value, point, args, aux = primals
    value = optimal_value(objective, value, point, args, aux)
    point = implicit_root(_Slope(objective), point, args, aux)
    _, tangent = jax.jvp(lambda a: objective(point, a, aux), (args,), (tangents[2],))
    return value, tangent
