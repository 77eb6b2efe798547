"""Queries of a composition's profile on a grid, between its points too."""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int

from .._internal._arithmetic import ULP
from .._internal._interval import Interval
from .._internal._roots import bisect
from .._internal._special import safe_log
from ._discretize import Grid

_AROUND = 4.0
"""Change of log delta, about, within which an epsilon is mostly found."""
_HALVINGS = 64
"""How often the range in which a root is sought is halved."""


class GridProfile(eqx.Module):
    """The tilted profile of a composition at grid points `index` * spacing.

    delta = values exp(log_scale - shift epsilon).
    """

    grid: Grid
    start: Int[Array, ""]
    log_scale: Float[Array, ""]
    upper: Float[Array, " m"]
    estimate: Float[Array, " m"]
    lower: Float[Array, " m"]
    """Of the upper law, from below."""
    gap: Float[Array, " m"]
    """Q-mass that the upper law has right of each point, and the test has not."""
    chernoff_logs: Float[Array, "2"]
    """Of bounds log delta <= logs - sides eps of the upper law, the grid's `sides`."""
    alpha: Float[Array, " m"]
    """P(X > eps) e^eps on the same scale, an estimate."""
    log_top: Float[Array, ""]
    """Log of a mass to be added to `upper`, not tilted."""
    moved: Float[Array, ""]
    """Bound on the distance of losses from where they are taken to be."""

    @property
    def points(self) -> Float[Array, " m"]:
        """The grid points."""
        h = self.grid.spacing
        return (self.start + jnp.arange(self.upper.size)).astype(h.dtype) * h


def grid_profile(
    profile: GridProfile, epsilons: Float[Array, " e"]
) -> tuple[Interval, Float[Array, " e"]]:
    """Log delta of the finite losses at some thresholds, and log P(X > eps).

    Only the estimate has a derivative, in the profile and in epsilon.
    """
    estimate = _log_estimate(profile, epsilons)
    fixed = stop_gradient(epsilons)
    # With all losses larger, or smaller, by as much as they may be off.
    upper = _log_upper(profile, fixed - profile.moved)
    lower = _log_lower(profile, fixed + profile.moved)
    cell, share, log_scale = _cell_at(profile, fixed)
    alpha = safe_log(_chord(profile, profile.alpha, cell, share))
    log_alpha = alpha + log_scale - fixed
    return Interval(lower, estimate, upper), log_alpha


def _log_upper(profile: GridProfile, epsilons: Array) -> Array:
    cell, share, log_scale = _cell_at(profile, epsilons)
    upper = safe_log(_chord(profile, profile.upper, cell, share)) + log_scale
    upper = jnp.where(_covered(profile, cell), upper, jnp.inf)
    sides = profile.grid.sides
    most = jnp.min(profile.chernoff_logs - sides * epsilons[:, None], axis=1)
    most = most + _rounding(profile, epsilons)
    upper = jnp.logaddexp(jnp.minimum(upper, most), profile.log_top)
    return upper + _rounding(profile, epsilons)


def _log_lower(profile: GridProfile, epsilons: Array) -> Array:
    # Left of all points delta is at least what it is there: no tilt applies.
    epsilons = jnp.maximum(epsilons, profile.points[2])
    cell, share, log_scale = _cell_at(profile, epsilons)
    lower = _chord(profile, profile.lower, cell, share)
    inside = jnp.log1p(share * jnp.expm1(profile.grid.spacing))
    gap = profile.gap[cell] * jnp.exp(profile.grid.shift * inside)
    lower = safe_log(lower - gap) + log_scale
    lower = lower - _rounding(profile, epsilons)
    return jnp.where(_covered(profile, cell), lower, -jnp.inf)


def _covered(profile: GridProfile, cell: Array) -> Array:
    return (cell > 0) & (cell < profile.upper.size - 3)


def grid_epsilon(
    profile: GridProfile, log_delta: Float[Array, ""], slack: Float[Array, "2"]
) -> Interval:
    """The epsilon of a given delta of the finite losses; no derivative.

    The lower and upper bound allow for errors `slack` of log delta.
    """
    profile, target = stop_gradient((profile, log_delta))
    first, last = profile.points[1], profile.points[-4]
    # Of the lower end, the estimate and the upper end.
    targets = jnp.stack([target + slack[0], target, target - slack[1]])

    def above(points: Array) -> Array:
        values = [
            _log_lower(profile, points[:1])[0],
            _log_estimate(profile, points[1:2])[0],
            _log_upper(profile, points[2:])[0],
        ]
        return jnp.stack(values) - targets

    # Far away rounding may hide what is known next to the center.
    center, reach = profile.grid.center, _AROUND / profile.grid.shift
    near = jnp.clip(center + jnp.stack([-reach, reach]), first, last)
    left, right = lax.map(lambda x: above(jnp.full_like(targets, x)), near)
    start = jnp.where(left > 0, near[0], first)
    end = jnp.where(right <= 0, near[1], last)
    high, low = bisect(above, end, start, _HALVINGS)
    lower, middle, upper = low[0] - profile.moved, high[1], high[2] + profile.moved
    # Ends of the search say nothing: only what was looked at does.
    inside = (low > first) & (high < last)
    upper = jnp.where(inside[2], upper, jnp.inf)
    lower = jnp.where(inside[0], lower, -jnp.inf)
    middle = jnp.where(inside[1], middle, profile.grid.center)
    return Interval(lower, jnp.clip(middle, lower, upper), upper)


def grid_threshold(
    profile: GridProfile,
    target: Float[Array, ""],
    log_not_target: Float[Array, ""],
    power: Bool[Array, ""],
) -> Float[Array, ""]:
    """The threshold from which log P(X > eps), or log Q(Y > eps), is below a target."""
    h, c, n = profile.grid.spacing, profile.grid.shift, profile.upper.size
    points = profile.points
    tail = profile.alpha + jnp.where(power, profile.estimate, 0)
    logs = safe_log(tail) + profile.log_scale - c * points
    logs = logs - jnp.where(power, 0, points)
    above = logs > target
    last = n - 1 - jnp.argmax(above[::-1])
    left, right = logs[last], logs[jnp.minimum(last + 1, n - 1)]
    share = jnp.where(left > right, (left - target) / (left - right), 0)
    between = points[last] + jnp.clip(share, 0, 1) * h
    # At a point mass the kink itself, a grid point, is better than any point between.
    near = points[jnp.clip(last + jnp.arange(-1, 3), 0, n - 1)]
    candidates = jnp.append(near, between)
    delta = jnp.exp(_log_estimate(profile, candidates))
    alpha = jnp.exp(jnp.where(power, log_not_target, target))
    error = jnp.exp(-candidates) * (1 - alpha - delta)
    gain = jnp.where(power, error, -(delta + jnp.exp(candidates) * alpha))
    found = candidates[jnp.argmax(gain)]
    return jnp.where(jnp.any(above), found, points[0])


def _rounding(profile: GridProfile, epsilons: Array) -> Array:
    """Rounding of log delta: scale, tilt, and a threshold's place in its cell."""
    size = jnp.abs(profile.log_scale) + jnp.abs(profile.grid.shift * epsilons)
    return stop_gradient(8 * ULP * (1 + size))


def _cell_at(profile: GridProfile, epsilon: Array) -> tuple[Array, Array, Array]:
    """The cell, the place in it, and the log of the scale there, without derivative.

    The place is on the scale of e^eps, on which chords are straight.
    """
    h = profile.grid.spacing
    place = epsilon / h - profile.start.astype(h.dtype)
    cell = jnp.clip(jnp.floor(place), 1, profile.upper.size - 3)
    inside = jnp.clip(place - cell, 0, 1) * h
    log_scale = stop_gradient(profile.log_scale - profile.grid.shift * epsilon)
    return cell.astype(int), jnp.expm1(inside) / jnp.expm1(h), log_scale


def _chord(profile: GridProfile, values: Array, cell: Array, share: Array) -> Array:
    """The chord of delta, on the tilted scale at the threshold itself."""
    h, c = profile.grid.spacing, profile.grid.shift
    inside = jnp.log1p(share * jnp.expm1(h))
    left = values[cell] * jnp.exp(c * inside)
    right = values[cell + 1] * jnp.exp(c * (inside - h))
    chord = (1 - share) * left + share * right
    # Where nothing is known both are infinite, and 0 inf is not a number.
    known = jnp.isfinite(left) & jnp.isfinite(right)
    return jnp.where(known, chord, left + right)


def _log_estimate(profile: GridProfile, epsilons: Float[Array, " e"]) -> Array:
    """Log delta by the cubic through four points whose slopes make it smooth.

    A chord where one of them is zero.
    """
    h, c = profile.grid.spacing, profile.grid.shift
    cell, *_ = _cell_at(profile, stop_gradient(epsilons))
    t = epsilons / h - (profile.start + cell).astype(h.dtype)
    near = profile.estimate[cell[:, None] + jnp.arange(-1, 3)]
    smooth = jnp.all(near > 0, axis=1)
    logs = jnp.log(jnp.where(smooth[:, None], near, 1.0))
    before, left, right, after = logs.T
    slope, next_slope = 0.5 * (right - before), 0.5 * (after - left)
    change = right - left
    bend = 3 * change - 2 * slope - next_slope
    twist = slope + next_slope - 2 * change
    cubic = left + t * (slope + t * (bend + t * twist))
    share = jnp.expm1(t * h) / jnp.expm1(h)
    chord = safe_log(_chord(profile, profile.estimate, cell, share))
    value = jnp.where(smooth, cubic, chord)
    return value + profile.log_scale - c * epsilons
