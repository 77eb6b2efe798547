"""The loss thresholds of most powerful tests, whichever the engine."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._batching import one_by_one
from .._internal._interval import log_complement
from ..losses import ComposedLoss, single_losses
from ._closed_queries import closed_threshold
from ._discretize import plan_grid
from ._grid import compose_grid
from ._grid_profile import grid_threshold
from ._profile import grid_engine_profile
from ._route import neutral, route
from ._spectral import (
    largest_loss,
    spectral_threshold,
    start_at_tail,
    tail_start_at_epsilon,
)

_CANDIDATES = 257


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
    alpha = stop_gradient(jnp.clip(alpha, tiny, 1 - jnp.finfo(alpha.dtype).eps))
    log_alpha, log_not_alpha = jnp.log(alpha), jnp.log1p(-alpha)
    engine = route(loss)
    if engine == "spectral":
        found, scale = spectral_threshold(loss, sign, log_alpha, log_not_alpha)
        return jnp.where(nothing, 0, found), scale
    if engine == "grid":
        found, scale = _search_grid_threshold(loss, sign, log_alpha, log_not_alpha)
        return jnp.where(nothing, 0, found), scale
    forms = loss.closed_form(sign), loss.closed_form(-sign)
    ends = largest_loss(loss, sign), largest_loss(loss, -sign)
    found = closed_threshold(forms, ends, log_alpha)
    return jnp.where(nothing, 0, found), jnp.ones_like(alpha)


@one_by_one
def _search_grid_threshold(
    loss: ComposedLoss, sign: Array, log_alpha: Array, log_not_alpha: Array
) -> tuple[Array, Array]:
    """The threshold of a type I error, and the scale of the profile there."""
    begin = start_at_tail(loss, sign, log_alpha, log_not_alpha)
    near = begin.threshold
    flip = near < 0
    sign = jnp.where(flip, -sign, sign)
    start = tail_start_at_epsilon(loss, sign, jnp.abs(near))
    # Between two point masses the saddle may be off by what lies between them.
    gap = _largest_gap(loss, jnp.minimum(log_alpha, log_not_alpha))
    profile = compose_grid(loss, plan_grid(loss, start, gap))
    # alpha at -e is the complement of the exchanged pair's power at e.
    logs = log_alpha, log_not_alpha
    target, other = jax.tree.map(lambda a, b: jnp.where(flip, b, a), logs, logs[::-1])
    infinite = jnp.where(flip, loss.log_infinite_mass(sign), -jnp.inf)
    target = target + log_complement(jnp.minimum(infinite - target, -1e-9))
    found = grid_threshold(profile, target, other, flip)
    return jnp.where(flip, -found, found), begin.scale


@one_by_one
def crossing(
    loss: ComposedLoss, thresholds: Float[Array, " 2"], alpha: Float[Array, ""]
) -> Float[Array, ""]:
    """Where between two thresholds the larger of both directions' power is least.

    For the grid engine; a number without derivative, about right.
    """
    _, loss = neutral(stop_gradient(loss))
    between = jnp.linspace(jnp.min(thresholds), jnp.max(thresholds), _CANDIDATES)
    center = 0.5 * (between[0] + between[-1])
    flip = center < 0
    distances = jnp.where(flip, -between, between)
    width = between[-1] - between[0]

    def log_delta(sign: Array) -> Array:
        start = tail_start_at_epsilon(loss, sign, jnp.abs(center))
        grid = plan_grid(loss, start, jnp.maximum(width, 1e-6))
        return grid_engine_profile(loss, grid, distances).log_delta.estimate

    deltas = jnp.exp(lax.map(log_delta, jnp.asarray([1.0, -1.0])))
    # delta(-e) = 1 - e^-e + e^-e delta_rev(e).
    below = -jnp.expm1(between) + jnp.exp(between) * deltas
    deltas = jnp.where(flip, below, deltas)
    power = jnp.max(deltas, axis=0) + jnp.exp(between) * alpha
    best = jnp.argmin(power)
    gap = deltas[0] - deltas[1]
    # The profiles cross next to it, or not at all.
    left = jnp.where(gap[best] * gap[jnp.maximum(best - 1, 0)] < 0, best - 1, best)
    right = jnp.minimum(left + 1, _CANDIDATES - 1)
    cross = gap[left] * gap[right] < 0
    share = gap[left] / jnp.where(cross, gap[left] - gap[right], 1)
    middle = between[left] + share * (between[right] - between[left])
    return jnp.where(cross, middle, between[best])


def _largest_gap(loss: ComposedLoss, log_alpha: Array) -> Float[Array, ""]:
    """The largest distance between neighboring point masses that matter."""
    largest = jnp.zeros_like(log_alpha)
    for term, _ in single_losses(loss.terms, loss.counts):
        jumps = term.compound_jumps()
        if jumps is not None:
            largest = jnp.maximum(largest, jumps.farthest())
            continue
        atoms = term.atoms()
        if atoms.loss.size > 1:
            mass = atoms.log_mass + jnp.maximum(atoms.loss, 0)
            matters = mass > log_alpha - 7
            # Those that do not are moved onto the first one that does.
            some = atoms.loss[jnp.argmax(mass)]
            gaps = jnp.diff(jnp.sort(jnp.where(matters, atoms.loss, some)))
            largest = jnp.maximum(largest, jnp.max(gaps))
    return largest
