"""Sums over the nodes of a pair of normal mixtures, as many as a tolerance asks for.

The proofs are in `_normal_mixtures.py` and `_normal_rules.py`.  An order w of E_P[e^(w
X)] belongs to the shift c = w - 1 of the pair as given, or to c = -w of the exchanged
one, whose loss is -X: of these the one with c >= -1/2 is taken.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import fori_loop, stop_gradient
from jaxtyping import Array, Bool, Float, Int

from .._internal._blocked_sum import blocked_sum, sums
from .._internal._special import log1p
from ._normal_mixtures import (
    FAR,
    LOST,
    UNIT,
    Frame,
    bend,
    densities,
    kept_slip,
    log_kept,
    rough_logs,
    rough_slip,
    where,
)
from ._normal_rules import late_start, law_error, rule, rule_error, turned_error

NODES = 256
"""Nodes in a block."""
_UNSEEN = 1e-17
"""The rule's error at the last frequency that does not matter to so many steps."""
_FEW = 16
"""Blocks of nodes that see how losses rotate."""
MOST = 64
"""Blocks of nodes at most, where a sum is one of many."""
_BLOCKS = np.unique(np.round(2 ** np.arange(0, 12.5, 0.5)))
_ENOUGH = np.searchsorted(_BLOCKS, 4)
"""Place of the number of blocks where no number will do: moments are rough then."""
_OVERFLOW = 200.0
"""By how much tilted densities may exceed what a few nodes show of them."""
_ALIKE = 2
"""Shifts that have nodes in common."""
UNIT_MASS = 1 / np.sqrt(2 * np.pi)
_HIGHEST = 60.0
"""Log of more than any term of a sum that is next to nothing."""


class Nodes(eqx.Module):
    """A trapezoid rule for M(c + iy) up to a frequency, without derivative."""

    sign: Float[Array, ""]
    """1 for the pair as given, -1 for the exchanged one."""
    shift: Float[Array, ""]
    low: Float[Array, ""]
    step: Float[Array, ""]
    blocks: Int[Array, ""]
    complete: Bool[Array, ""]
    """Whether it has all the nodes that the tolerance asks for."""
    peak: Float[Array, ""]
    """Log of about the largest tilted density at a node."""

    def places(self, index: Array) -> Float[Array, " n"]:
        """The nodes of a block."""
        return self.low + self.step * (index * NODES + np.arange(float(NODES)))

    def missed(self, frame: Frame, frequency: Array | float = 0.0) -> Array:
        """A bound of the rule's error at frequencies, over M(c)."""
        error = rule_error(frame, self.shift, self.step, frequency)
        return error + LOST * bend(frame, self.shift)


def directed(loss: Any, sign: Array) -> Frame:
    """The pair of a single release, as given (1) or exchanged (-1)."""
    pairs, _ = loss.normal_mixtures()
    return jax.tree.map(lambda x: x[0], pairs).directed(sign).frame()


def nodes_for(
    loss: Any,
    order: Array,
    log_tolerance: Array | float,
    frequency: Array | float = 0,
    most: int = MOST,
) -> Nodes:
    """The fewest nodes whose error is within a tolerance, in `most` blocks at most.

    Of all that they hold only the shift has a derivative: in the order, 1 or -1.
    """
    sign, moving = _side(order)
    loss, order, shift = stop_gradient((loss, order, moving))
    frame = directed(loss, sign)
    low, length = rule(frame, shift, 2)
    start = jnp.maximum(low, late_start(frame, shift))
    low, length = start, length - (start - low)
    numbers = _BLOCKS[most >= _BLOCKS]
    steps = length / (NODES * numbers - 1)
    fits = rule_error(frame, shift, steps, frequency) <= jnp.exp(log_tolerance)
    complete = jnp.any(fits)
    best = jnp.where(complete, jnp.argmax(fits), _ENOUGH)
    blocks = jnp.asarray(numbers, jnp.int32)[best]
    found = Nodes(sign, shift, low, steps[best], blocks, complete, shift)

    def higher(index: Array, peak: Array, nodes: Nodes = found) -> Array:
        t = nodes.places(index)
        value, _, _, log_p, _ = loss.at(sign * t)
        return jnp.maximum(peak, jnp.max(order * value + log_p))

    # Between a few nodes they may be larger by so much.
    hidden = 0.125 * bend(frame, shift) * jnp.square(steps[0])
    unseen = jnp.where(hidden > _OVERFLOW, blocks, 0)
    few = dataclasses.replace(found, step=steps[0])
    peak = higher(jnp.zeros_like(blocks), jnp.full_like(low, -jnp.inf), few)
    peak = fori_loop(0, unseen, higher, peak)
    return dataclasses.replace(found, shift=moving, peak=peak)


class MeshMoments(NamedTuple):
    """log M from above, mean and variance of the tilted loss, at some shifts."""

    upper: Float[Array, " r"]
    mean: Float[Array, " r"]
    variance: Float[Array, " r"]
    low: Float[Array, " r"]
    length: Float[Array, " r"]
    """Of the windows."""


@jax.jit
def mesh_moments(frame: Frame, shifts: Float[Array, " r"]) -> MeshMoments:
    """Moments to few digits; no derivative.

    A rule's error falls like e^(-2 pi v / h) with v < pi / range of the centers, and
    counts as often as there are releases.  Shifts that follow each other have nodes in
    common, those of all their windows: most of the time is the densities'.
    """
    nodes = 48 * max(frame.gaps.shape[-1] - 1, 2)
    low, length = rule(frame, shifts, 2)
    alike = lambda x: x.reshape(-1, 1 if shifts.size % _ALIKE else _ALIKE)
    c, first = alike(shifts), jnp.min(alike(low), axis=1, keepdims=True)
    end = alike(low + length)
    last = jnp.max(end, axis=1, keepdims=True)
    step = (last - first) * (1 / (nodes - 1))
    t, seen = first + step * np.arange(float(nodes)), end + step
    logs = rough_logs(frame, t)[:, :, None]
    loss, base = logs[1] - logs[0], (log_kept(frame, t) - 0.5 * t * t)[:, None]
    # Up to a node beyond the window's own end: what is farther was bounded.
    far = t[:, None] > seen[..., None]
    g = where(far, -jnp.inf, base + logs[1] + c[..., None] * loss)
    peak = jnp.max(g, axis=2)
    p = jnp.exp(g - peak[..., None])
    mass, mean, second = sums((p, p * loss, p * loss * loss), 2)
    mean, second = mean / mass, second / mass
    variance = jnp.maximum(second - mean * mean, 0.0) + 1e-14 * second
    # The rule's error; or that of convex interpolation, whatever the rule: on a cell g
    # is at most its chord and bend (t - t_i) (t_(i+1) - t) / 2.
    curved = bend(frame, c)
    error = 2 * rule_error(frame, c, step, 0.0)
    error = where(error < 1, error, jnp.inf)
    error = jnp.minimum(error, 0.125 * curved * step * step) + LOST * curved
    slip = (1 + 2 * jnp.abs(c)) * rough_slip(frame, seen - 2 * first) + kept_slip(
        frame, seen
    )
    rounded = UNIT * (2 * nodes + 16 + 4 * jnp.abs(peak) + 2 * slip)
    upper = peak + jnp.log(mass * step * UNIT_MASS) + (error + rounded)
    # No rule sees what lies so far beyond the cap that nothing is kept there.
    upper = where(end > frame.top + FAR, jnp.inf, upper)
    upper, mean, variance = (x.reshape(-1) for x in (upper, mean, variance))
    return MeshMoments(upper, mean, variance, low, length)


@jax.jit
def rotating_nodes(
    loss: Any, order: Array, frequencies: Float[Array, " l"]
) -> tuple[Nodes, Float[Array, " l"]]:
    """Nodes that see how far losses rotate where tilted densities are not small.

    With the rule's relative errors up to some frequencies; no derivative.
    """
    loss, order = stop_gradient((loss, order))
    sign, shift = _side(order)
    frame = directed(loss, sign)
    low, step = rule(frame, shift, _FEW * NODES)
    t = low + step * np.arange(float(_FEW * NODES))
    logs, shares, _ = densities(frame, t)
    tilted = (1 + shift) * logs[1] - shift * logs[0] - 0.5 * t * t
    weights, peak = jax.nn.softmax(tilted), jnp.max(tilted)
    errors = turned_error(frame, shift, t, weights, shares, frequencies)
    blocks, complete = jnp.full_like(peak, _FEW, jnp.int32), errors[-1] < _UNSEEN
    return Nodes(sign, shift, low, step, blocks, complete, peak), errors


def _side(order: Array) -> tuple[Array, Array]:
    """The direction and the shift of an order."""
    right = order > 0.5
    return jnp.where(right, 1.0, -1.0), jnp.where(right, order - 1, -order)


class Tilted(eqx.Module):
    """The loss and tilted densities at some nodes."""

    loss: Float[Array, " n"]
    """X."""
    slope: Float[Array, " n"]
    """X'."""
    weights: Float[Array, " n"]
    """Times e^-peak."""
    size: Float[Array, " n"]
    """Relative rounding of the weights, in units."""
    loss_slip: Float[Array, " n"]
    log_base: Float[Array, " n"]
    """Log of the density of the direction's P over dt."""


def tilted_at(loss: Any, nodes: Nodes, index: Array) -> Tilted:
    """The integrand at the nodes of a block."""
    t = nodes.places(index)
    # The exchanged pair's outputs are turned around.
    x, slope, slip, log_p, base_slip = loss.at(nodes.sign * t)
    given = nodes.sign > 0
    order = jnp.where(given, 1 + nodes.shift, -nodes.shift)
    weights = jnp.exp(order * x + log_p - nodes.peak)
    size = jnp.abs(order) * slip + 16 + base_slip
    log_base = jnp.where(given, 0.0, x) + log_p
    return Tilted(x, slope, weights, size, slip, log_base)


class Moments(eqx.Module):
    """Lambda with a bound of its error, Lambda' and Lambda''."""

    value: Float[Array, ""]
    error: Float[Array, ""]
    mean: Float[Array, ""]
    variance: Float[Array, ""]


@jax.jit
def moments_on(loss: Any, nodes: Nodes) -> Moments:
    """Moments at the order that nodes are for, with derivatives in their shift.

    M(c) - 1 = E_P[e^(w l) - 1 - w (e^l - 1)] has all digits of an M(c) next to one.
    """
    sums, slips = blocked_sum(_sums, nodes.blocks, (loss, nodes.shift), nodes)
    mass, first, second, excess = sums
    rounded, near_slip = slips
    unit = nodes.step * UNIT_MASS
    direct = nodes.peak + jnp.log(mass * unit)
    near = jnp.abs(direct) < 0.25
    value = jnp.where(near, log1p(jnp.where(near, excess * unit, 0.0)), direct)
    mean = first / mass
    frame = stop_gradient(directed(loss, nodes.sign))
    missed, terms = nodes.missed(frame), nodes.blocks + NODES + 16
    laws = (2 + nodes.shift) * 2 * law_error(frame, nodes.step)
    error = jnp.where(
        near,
        2 * (laws + 2 * missed + UNIT * unit * near_slip),
        2 * missed + UNIT * (2 * terms + rounded / mass + 4 * jnp.abs(nodes.peak)),
    )
    error = jnp.where(missed < 0.1, error, jnp.inf)
    variance = jnp.maximum(second / mass - mean * mean, UNIT * second / mass)
    return Moments(value, stop_gradient(error), mean, variance)


def _sums(index: Array, args: tuple[Any, Array], nodes: Nodes) -> tuple:
    loss, shift = args
    nodes = dataclasses.replace(nodes, shift=shift)
    at, w = tilted_at(loss, nodes, index), 1 + nodes.shift
    # Of the pair in its direction.
    own_loss = nodes.sign * at.loss
    grown, lifted = _growth(at.log_base, w * own_loss)
    one, risen = _growth(at.log_base, own_loss)
    own = at.size + (1 + w) * jnp.abs(at.loss) + nodes.blocks + NODES
    near_slip = (jnp.abs(grown) + w * jnp.abs(one)) * own
    near_slip = near_slip + w * jnp.abs(lifted - risen) * at.loss_slip
    p, x = at.weights, at.loss
    main = p, p * x, p * x * x, grown - w * one
    each = lambda rows: tuple(jnp.sum(row) for row in rows)
    return each(main), each((p * at.size, near_slip))


def _growth(log_base: Array, exponent: Array) -> tuple[Array, Array]:
    """e^base (e^exponent - 1) and e^(base + exponent), without overflow."""
    base, big = jnp.exp(log_base), exponent > 1
    lifted = jnp.exp(jnp.minimum(log_base + exponent, _HIGHEST))
    change = base * jnp.expm1(jnp.where(big, 0, exponent))
    return jnp.where(big, lifted - base, change), lifted
