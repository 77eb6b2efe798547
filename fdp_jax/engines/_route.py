"""Which engine answers, from static facts, and a loss that is safe to evaluate."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..losses import ComposedLoss

_ANY_COUNT = 1000.0
METHODS = ("auto", "closed_form", "spectral", "grid")
"""Engines that can be asked for; "auto" takes the first that serves."""


def route(loss: ComposedLoss) -> str:
    """Which engine answers, from static facts alone.

    Raises:
        ValueError: If the engine asked for cannot.
    """
    single = loss.counts[0].dtype == jnp.float32
    available = {
        "closed_form": loss.has_closed_form,
        "spectral": loss.analytic,
        "grid": loss.on_grid and not single,
    }
    method = loss.method.name
    if method == "auto":
        if loss.has_closed_form:
            return "closed_form"
        # The grid engine needs float64.
        method = "spectral" if loss.decays or (single and loss.analytic) else "grid"
    if available[method]:
        return method
    if method == "grid" and single:
        raise ValueError('method "grid" needs float64: leave native_float32()')
    others = [repr(name) for name, yes in available.items() if yes]
    raise ValueError(
        f"method {method!r} is not available for this composition: use 'auto' or "
        + " or ".join(others)
    )


def neutral(loss: ComposedLoss) -> tuple[Bool[Array, ""], ComposedLoss]:
    """Whether nothing is released, and a loss that is safe to evaluate regardless."""
    nothing = jnp.stack([count == 0 for count in loss.counts]).all()
    counts = tuple(jnp.where(nothing, _ANY_COUNT, count) for count in loss.counts)
    safe = ComposedLoss(loss.terms, counts, loss.single, loss.method)
    safe = safe.uncut() if route(loss) == "spectral" else safe
    return nothing, safe.absorbed().with_ends()


def over(signs: Float[Array, " s"], one: Callable[[Array], Array]) -> Array:
    """A function of the direction, for each of them."""
    return jnp.stack([one(sign) for sign in signs])
