"""Chernoff bounds of sums of losses on a mesh of shifts, and the place of a profile.

See `_lines.py`, of which this is the first step.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Float, Int

from ..losses import (
    ComposedLoss,
    Frame,
    NormalMixtures,
    mesh_moments,
    where,
)

BLOCK = 64
"""Frequencies in a block, a square."""
UNIT = 2.0**-53
DIGITS = 37.0
"""Minus the log of the wanted relative error of a truncation, or of an alias."""
_FINEST = float(1 << 17)
"""Largest product of shift and threshold: towards a largest loss all is rounding."""
_FREE = 2.0
"""Cancellation, as the log of a factor, that is not worth a longer period."""
# Finer where few rare steps begin to rule most runs.
_ratios = np.repeat([1.25, 1.12, 1.25, 1.6, 10], [24, 43, 22, 29, 4])
_shifts = np.append([1e-6, 0.0025], 0.0025 * np.cumprod(_ratios))
_inner = -1 / (1 + np.exp(np.linspace(-5.0, 5.0, 12)))
# No shift but that of an order 1 + c may weigh a threshold.
SHIFTS = (1 + np.concatenate([_inner, _shifts])) - 1
RIGHT = SHIFTS > 0
_PAYOFF = np.concatenate(
    [
        np.zeros(_inner.size),
        _shifts * np.log(_shifts / (1 + _shifts)) - np.log1p(_shifts),
    ]
)
"""Log of the largest (1 - e^-u) e^(-c u), u > 0; of 1 - delta it is 1."""
_GAP = np.abs(SHIFTS - SHIFTS[:, None])
_STEEP = 1 / np.where(_GAP == 0, 1e-300, _GAP)
_LEFT = np.where((SHIFTS[:, None] > SHIFTS) & ~RIGHT, 0, np.inf)
_LOWER = np.where((SHIFTS[:, None] > SHIFTS) & RIGHT, 0, np.inf)
"""By contour and bound: which of them bound aliases on the left, infinite if not; with
and without what these tend to."""
_BEYOND = np.where((SHIFTS[:, None] < SHIFTS) & RIGHT, 0, np.inf)
_WIDTH = 2 * np.pi * (1 + 2 * SHIFTS + 2 * SHIFTS**2)
_POLE = np.sqrt(2 * np.pi) * np.abs(SHIFTS * (1 + SHIFTS))
"""The integrand's width, of which (variance + 1/c^2 + 1/(1+c)^2) is the inverse."""
_SEEN = SHIFTS > 1e-3
_NEVER, _NEVER_RIGHT = np.where(_SEEN, 0, np.inf), np.where(RIGHT, np.inf, 0)
"""By contour: where no place is.  Next to zero are bounds alone: delta is at most M."""
_NARROWEST = 1.01 * np.pi * BLOCK / (1.3 * np.sqrt(2 * DIGITS))
"""A normal law's frequencies are no fewer than half a block."""


def log_payoff(shift: Array) -> Array:
    """Log of the least C with (1 - e^-t)_+ <= C e^(c t), for c >= 0."""
    # c log c - (1 + c) log(1 + c), without cancellation.
    inverse = 1 / jnp.where(shift > 0, shift, 1)
    return -shift * jnp.log1p(inverse) - jnp.log1p(shift)


class Terms(NamedTuple):
    """A composition: all pairs of normal mixtures as one stack, and other losses."""

    pairs: NormalMixtures | None
    counts: Float[Array, " m"]
    """How often each of the pairs adds."""
    others: tuple[Any, ...]
    other_counts: tuple[Float[Array, ""], ...]


def terms_of(loss: ComposedLoss) -> Terms:
    """The parts of a composition, in the direction "remove"."""
    each = list(zip(loss.terms, loss.counts, strict=True))
    others = [(term, n) for term, n in each if not term.pairs]
    stacks = [(*term.normal_mixtures(), n) for term, n in each if term.pairs]
    kinds = tuple(term for term, _ in others), tuple(n for _, n in others)
    if not stacks:
        return Terms(None, jnp.zeros(0), *kinds)
    width = max(pairs.centers.shape[1] for pairs, *_ in stacks)

    def padded(pairs: NormalMixtures) -> NormalMixtures:
        more = width - pairs.centers.shape[1]
        # Components of no weight, where there is one anyway.
        again = jnp.repeat(pairs.centers[:, :1], more, axis=1)
        return NormalMixtures(
            jnp.concatenate([pairs.centers, again], axis=1),
            jnp.pad(pairs.weights, ((0, 0), (0, 0), (0, more))),
        )

    counts = jnp.concatenate([own * n for _, own, n in stacks])
    parts = [padded(pairs) for pairs, *_ in stacks]
    join = lambda *x: x[0] if len(x) == 1 else jnp.concatenate(x)
    return Terms(jax.tree.map(join, *parts), counts, *kinds)


def directed(pairs: NormalMixtures, sign: Array) -> NormalMixtures:
    """Stacked pairs as given (1), or exchanged (-1)."""
    return jax.vmap(lambda pair: pair.directed(sign))(pairs)


class Stack(eqx.Module):
    """Terms in one direction, prepared."""

    sign: Float[Array, ""]
    frames: Frame | None
    counts: Float[Array, " m"]
    others: tuple[Any, ...]
    other_counts: tuple[Float[Array, ""], ...]
    log_lost: Float[Array, ""]
    """Of the weight of components that were left out, in all of them."""
    log_mass: Float[Array, ""]
    """Of the finite losses, under Q."""
    nodes: int = eqx.field(static=True)
    """Of each pair, along a line."""
    least_digits: float = eqx.field(static=True)
    """Minus the log of the least accurate truncation that is worth the sum: another
    engine may be asked in its place."""


@jax.jit
def prepared(loss: ComposedLoss, sign: Array) -> Stack:
    """The terms in a direction: as given (1), or exchanged (-1); no derivative."""
    terms = terms_of(stop_gradient(loss))
    frames, lost = None, jnp.full_like(sign, -jnp.inf)
    if terms.pairs is not None:
        pairs = directed(terms.pairs, sign)
        lost = jnp.max(pairs.log_lost()) + jnp.log(jnp.sum(terms.counts))
        frames = jax.vmap(NormalMixtures.frame)(pairs)
    others = tuple(term.tabulated() for term in terms.others)
    mass = stop_gradient(loss.log_supported_mass(sign))
    wide = frames is not None and frames.gaps.shape[-1] > 5
    finest = 4096 if terms.counts.size == 1 and not others else 2048
    return Stack(
        sign=sign,
        frames=frames,
        counts=terms.counts,
        others=others,
        other_counts=terms.other_counts,
        log_lost=lost,
        log_mass=mass,
        nodes=finest if wide or loss.method.split else 1024,
        least_digits=14.0 if loss.on_grid else 5.0,
    )


_CAP = 28.0
"""Minus the log of what caps may leave out of delta, relative to it."""


@jax.jit
def capped(stack: Stack, log_value: Array) -> Stack:
    """The terms without what never happens, for a delta of about that; see `Frame`.

    Products of what is kept are a law where counts are whole numbers: else no caps.
    """
    if stack.frames is None:
        return stack
    total = jnp.sum(stack.counts)
    whole = jnp.all(stack.counts == jnp.round(stack.counts))
    log_cut = where(whole, log_value - _CAP - jnp.log(total), -jnp.inf)
    frames = jax.vmap(Frame.capped, (0, None))(stack.frames, log_cut)
    return dataclasses.replace(stack, frames=frames)


class Mesh(NamedTuple):
    """Chernoff bounds on the mesh of shifts, and what tells places."""

    upper: Float[Array, " r"]
    """Upper bounds of log M(c)."""
    value: Float[Array, " r"]
    """Log M(c), about; infinite where nothing is known."""
    mean: Float[Array, " r"]
    """Of the tilted loss, about."""
    variance: Float[Array, " r"]
    lows: Float[Array, "m r"]
    lengths: Float[Array, "m r"]
    """Of the windows of every pair."""
    variances: Float[Array, "m r"]
    """Of the pairs, as often as they add."""


@jax.jit
def chernoff_mesh(stack: Stack) -> Mesh:
    """Upper bounds of log M(c) and the variance there, on the mesh of shifts."""
    total, none = jnp.zeros((4, SHIFTS.size)), jnp.zeros((0, SHIFTS.size))

    def add(total: Array, term: tuple[Frame, Array]) -> tuple[Array, tuple]:
        frame, count = term
        found = mesh_moments(frame, jnp.asarray(SHIFTS))
        upper = found.upper + 2 * UNIT * jnp.abs(found.upper)
        each = jnp.stack([upper, upper, found.mean, found.variance])
        each = where(count > 0, count * each, 0.0)
        total = total + each
        return total, (found.low, found.length, each[3])

    lows = lengths = variances = none
    if stack.frames is not None:
        each = stack.frames, stack.counts
        total, (lows, lengths, variances) = lax.scan(add, total, each)
    orders = orders_at(SHIFTS, stack.sign)
    for term, count in zip(stack.others, stack.other_counts, strict=True):
        upper, value, mean, variance = term.rough_moments(orders)
        mean = stack.sign * mean
        # Moments of a large loss are differences of terms as large as that.
        size = jnp.abs(upper) + (2 + np.abs(SHIFTS)) * jnp.abs(mean)
        each = jnp.stack([upper + 16 * UNIT * size, value, mean, variance])
        # What does not happen has no moments, not even infinite ones.
        total = total + where(count > 0, count * each, 0.0)
    # A bound that is not a number says nothing.
    upper, value, mean, variance = total
    known = jnp.isfinite(value) & jnp.isfinite(variance)
    upper = where(upper < jnp.inf, upper, jnp.inf)
    value, variance = where(known, value, jnp.inf), where(known, variance, 0.0)
    variance = jnp.maximum(variance, 0.0)
    return Mesh(upper, value, mean, variance, lows, lengths, variances)


def orders_at(shifts: Array | np.ndarray, sign: Array) -> Array:
    """Orders w of a contour: 1 + c for the pair as given, -c for it exchanged."""
    return where(sign > 0, 1 + jnp.asarray(shifts), -jnp.asarray(shifts))


def _least(bounds: Array, epsilons: Array, rows: np.ndarray) -> Float[Array, " e"]:
    logs = bounds[rows] - SHIFTS[rows] * epsilons[:, None]
    sizes = jnp.abs(bounds[rows]) + jnp.abs(SHIFTS[rows] * epsilons[:, None])
    return jnp.minimum(jnp.min(logs + 4 * UNIT * sizes, axis=1), 0.0)


def largest_log_delta(
    bounds: Float[Array, " r"], epsilons: Float[Array, " e"]
) -> Float[Array, " e"]:
    """Log of the best upper bound of delta on the mesh."""
    return _least(bounds, epsilons, RIGHT)


def largest_log_rest(
    bounds: Float[Array, " r"], epsilons: Float[Array, " e"]
) -> Float[Array, " e"]:
    """Log of the best upper bound of 1 - delta on the mesh."""
    return _least(bounds, epsilons, ~RIGHT)


class Place(NamedTuple):
    """The place of a profile, what the mesh says of it, and the line to take."""

    epsilon: Float[Array, ""]
    log_value: Float[Array, ""]
    """Log of delta, or of 1 - delta where the shift is negative, about."""
    bounds: Float[Array, " r"]
    """Less c eps: logs of upper bounds of delta, for c < 0 of 1 - delta."""
    row: Int[Array, ""]
    """Of the mesh: the shift."""
    period: Float[Array, ""]
    aliases: Float[Array, ""]
    """Log of the sum of e^(-|c| m R), m > 0, times what the profile tends to: of all
    aliases beyond c = 0, which are subtracted.  -inf where they are bounded instead."""

    def largest_epsilon(self, log_delta: Array) -> Float[Array, ""]:
        """The largest threshold of a log delta, by the bounds."""
        found = jnp.min(where(RIGHT, (self.bounds - log_delta) / SHIFTS, jnp.inf))
        return found + 8 * UNIT * jnp.abs(found)


def locate(
    mesh: Mesh,
    target: Array,
    *,
    inverse: bool,
    log_mass: Array | float = 0.0,
    tail: bool = False,
    for_grid: bool = False,
) -> Place:
    """The place for a threshold, or for a log delta (`inverse`), and its line.

    Args:
        mesh: Of the composition.
        target: The threshold or log delta.
        inverse: Which it is.
        log_mass: Of the finite losses.
        tail: Whether delta is wanted however close it is to one, and no alias is to be
            subtracted.
        for_grid: Whether a grid is planned: its width falls with the period, and more
            cancellation does not show.
    """
    bounds = mesh.upper + 4 * UNIT * (1 + jnp.abs(mesh.upper)) + _PAYOFF
    # The integrand at the saddle point, by Laplace's method.
    rough = mesh.value - 0.5 * jnp.log(mesh.variance * _POLE**2 + _WIDTH)
    if inverse:
        middle = np.zeros((), bool)
        each = where(_SEEN, (rough - target) / SHIFTS, jnp.inf)
        epsilon, log_value = jnp.min(each), target
        logs = rough - SHIFTS * epsilon
    else:
        epsilon, logs = target, rough - SHIFTS * target
        right, rest = jnp.min(logs + _NEVER), jnp.min(logs + _NEVER_RIGHT)
        middle = (rest < right) & (rest < log_mass - 1) & (not tail)
        log_value = jnp.minimum(where(middle, rest, right), 0.0)
    # The shortest period for which aliases drop below the digits wanted.
    need = (bounds - SHIFTS * epsilon + (DIGITS - log_value)) * _STEEP
    left = jnp.min(need + (_LOWER if tail else _LEFT), axis=1)
    right = jnp.min(need + _BEYOND, axis=1)
    deviations, free = (2.0, 4.0) if for_grid else (_NARROWEST, _FREE)
    narrowest = deviations * jnp.sqrt(mesh.variance)
    period = jnp.maximum(jnp.maximum(left, right), narrowest)
    falls = np.abs(SHIFTS) * period
    aliases = -falls - jnp.log(-jnp.expm1(-falls)) + log_mass
    aliases = jnp.full_like(aliases, -jnp.inf) if tail else aliases
    cost = jnp.maximum(jnp.maximum(logs, aliases) - (log_value + free), 0.0)
    usable = (bounds < jnp.inf) & (np.abs(SHIFTS) * jnp.abs(epsilon) < _FINEST)
    cost = where(usable, jnp.log(period) + cost, jnp.inf)
    # Where no line can be summed, its bounds are all that is known.
    cost = where(cost < 1e300, cost, 1e300) + where(middle, _NEVER_RIGHT, _NEVER)
    row = jnp.argmin(cost).astype(jnp.int32)
    return Place(epsilon, log_value, bounds, row, period[row], aliases[row])
