"""Derivatives of a root, by the implicit function theorem."""

import functools
from collections.abc import Callable

import jax
from jaxtyping import Array, Float, PyTree


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def implicit_root(
    residual: Callable[[Array, PyTree], Array], root: Float[Array, ""], args: PyTree
) -> Float[Array, ""]:
    """Gives a root found elsewhere the derivative that `residual(root, args) = 0` implies.

    The rule refers to the root through this very function, so derivatives of every
    order are right.  (One Newton step at a `stop_gradient` root, the usual short cut,
    has a wrong second derivative.)

    Args:
        residual: Differentiable function without closed-over tracers, with a nonzero
            derivative in its first argument.
        root: The solution; carries no derivative of its own.
        args: What the solution depends on.
    """
    del residual, args
    return root


@implicit_root.defjvp
def _implicit_root_jvp(
    residual: Callable[[Array, PyTree], Array], primals: tuple, tangents: tuple
) -> tuple[Array, Array]:
    root, args = primals
    root = implicit_root(residual, root, args)
    _, shift = jax.jvp(lambda a: residual(root, a), (args,), (tangents[1],))
    slope = jax.grad(residual)(root, args)
    return root, -shift / slope
