"""The loss thresholds of most powerful tests, whichever the engine."""

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._arithmetic import ULP
from .._internal._interval import Interval, exactly, sound
from .._internal._tolerances import CLOSED_FORM
from ..losses import ComposedLoss
from ._bounds import select
from ._route import engine_of, neutral, numbers_alone


def threshold(
    loss: ComposedLoss, sign: Float[Array, ""], alpha: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The loss threshold of the most powerful test of type I error `alpha`.

    Returns:
        The (real) threshold and the scale on which the profile varies there, numbers
        without derivative.
    """
    nothing, loss = neutral(stop_gradient(loss))
    tiny = jnp.finfo(alpha.dtype).tiny
    alpha = stop_gradient(jnp.clip(alpha, tiny, 1 - ULP))
    log_alpha, log_not_alpha = jnp.log(alpha), jnp.log1p(-alpha)
    found, scale = engine_of(loss).threshold(loss, sign, log_alpha, log_not_alpha)
    return jnp.where(nothing, 0, found), scale


def exact_rates(
    loss: ComposedLoss,
    signs: Float[Array, " s"],
    log_alpha: Float[Array, ""],
    log_tnr: Float[Array, ""],
) -> tuple[Interval, Interval] | None:
    """Logs of f and 1 - f of the worst direction where all kinks are known."""
    nothing, loss = neutral(loss)
    found = engine_of(loss).exact_rates(loss, signs, log_alpha, log_tnr)
    if found is None:
        return None
    found = tuple(sound(x, -jnp.inf, 0.0) for x in numbers_alone(found, loss))
    beta, power = (exactly(x, CLOSED_FORM) for x in (log_tnr, log_alpha))
    return select(nothing, (beta, power), found)
