"""Derivatives of a root, by the implicit function theorem."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def implicit_root(
    residual: Callable[[Array, PyTree, PyTree], Array],
    root: Float[Array, ""],
    args: PyTree,
    aux: PyTree,
) -> Float[Array, ""]:
    """Gives a root found elsewhere the derivative its equation implies.

    The equation is `residual(root, args, aux) = 0`.  The rule refers to the root
    through this very function, so derivatives of every order are right.  (One Newton
    step at a `stop_gradient` root, the usual short cut, has a wrong second one.)

    Args:
        residual: Differentiable function without closed-over tracers, with a nonzero
            derivative in its first argument.
        root: The solution; carries no derivative of its own.
        args: What the solution depends on: a PyTree of floating-point arrays.
        aux: Constants; no derivative flows through them.
    """
    del residual, args, aux
    return root


@implicit_root.defjvp
def _implicit_root_jvp(
    residual: Callable[[Array, PyTree, PyTree], Array], primals: tuple, tangents: tuple
) -> tuple[Array, Array]:
    root, args, aux = primals
    root = implicit_root(residual, root, args, aux)
    slope, gradient = jax.grad(residual, argnums=(0, 1))(root, args, aux)
    products = jax.tree.map(jnp.vdot, gradient, tangents[1])
    shift = sum(jax.tree.leaves(products), start=jnp.zeros_like(root))
    # A zero slope belongs to a root that is not used.
    return root, -shift / jnp.where(slope == 0, 1, slope)
