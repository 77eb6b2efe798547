"""The transform of a pair of normal mixtures along a line, by sums over its nodes."""

import abc
import dataclasses
import functools
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import fori_loop, optimization_barrier, stop_gradient
from jaxtyping import Array, Float

from .._internal._arithmetic import ULP
from .._internal._blocked_sum import blocked_sum
from .._internal._special import log_one_plus
from .._internal._tolerances import DEAD_SQUARE
from .._internal._waves import wave_products, wave_sums
from ._analytic import FREQUENCY_BLOCK, AnalyticLoss, CharacteristicBlock
from ._normal_mixtures import NormalMixtures, densities
from ._normal_nodes import (
    NODES,
    Nodes,
    directed,
    mesh_moments,
    moments_on,
    nodes_for,
    rotating_nodes,
    tilted_at,
)
from ._normal_rules import envelope

_EXACT = -41.0
"""Log of a quadrature's relative error."""
_FINE = -120.0
"""The same for a rule that sees an envelope, whose strip is narrower."""
_HEIGHTS = 1.0, 0.5
"""Heights of an envelope's lines, over the best one of a normal law."""


class Located(eqx.Module):
    """The tilted law of a loss at a real order; no derivative."""

    order: Float[Array, ""]
    nodes: Nodes
    mass: Float[Array, ""]
    """Sum of all weights."""
    center: Float[Array, ""]
    """Tilted mean of X."""
    deviation: Float[Array, ""]
    """E_w|X - center|."""
    turn: Float[Array, ""]
    """Rounding of the transform, over the frequency."""
    slope: Float[Array, ""]
    """E_w of the loss's derivative in the place."""


class Plan(eqx.Module):
    """A rule for all frequencies up to one."""

    nodes: Nodes
    located: Located
    levels: Float[Array, " l"]
    """Frequencies ..."""
    turned: Float[Array, " l"]
    """... and bounds of the rule's relative error up to these."""


class NormalTransformLoss(AnalyticLoss):
    """A single release whose pair is two mixtures of normal laws."""

    symmetric: ClassVar[bool] = False
    decays: ClassVar[bool] = True
    pairs: ClassVar[bool] = True
    together: ClassVar[int] = 256
    most_blocks: ClassVar[int] = 256

    @abc.abstractmethod
    def normal_mixtures(self) -> tuple[NormalMixtures, Float[Array, " 1"]]:
        """The pair, as a stack of one."""

    @abc.abstractmethod
    def at(self, t: Array) -> tuple[Array, Array, Array, Array, Array]:
        """X and X' at outputs t in units of the noise, and the rounding of X in units.

        The others are log P's density over dt, but for a constant, and its rounding.
        """

    def moments(self, order):
        each = lambda w: moments_on(self, nodes_for(self, w, _EXACT))
        found = jax.vmap(each)(order)
        return found.value + found.error, found.mean, found.variance

    def rough_moments(self, order):
        # Of orders that are all at least zero, or all at most one.
        self, order = stop_gradient((self, order))
        given = jnp.min(order) >= 0
        sign, shifts = jnp.where(given, 1.0, -1.0), jnp.where(given, order - 1, -order)
        found = mesh_moments(directed(self, sign), shifts)
        # Also where no rule has digits: that of noise alone, rounded up.
        most = jnp.maximum(order * (order - 1), 0) * self.log_moment_ceiling(1.0)
        most = most * (1 + 8 * ULP)
        bounds = jnp.where(found.upper <= most, found.upper, most)
        return bounds, bounds, sign * found.mean, found.variance

    def locate(self, order):
        self, order = stop_gradient((self, order))
        nodes = nodes_for(self, order, _FINE)
        around = lambda x: blocked_sum(_spread, nodes.blocks, self, (nodes, x))[1]
        mass, mean, *_ = around(jnp.zeros_like(order))
        _, _, *sums = around(mean / mass)
        deviation, moved, size, slope = (x / mass for x in sums)
        return Located(
            order=order,
            nodes=nodes,
            mass=mass,
            center=mean / mass,
            deviation=deviation,
            turn=ULP * (moved + size * deviation),
            slope=slope,
        )

    def prepare(self, located, frequency, log_tolerance):
        nodes = nodes_for(self, located.order, log_tolerance, frequency)
        levels = frequency * 4.0 ** np.arange(-4.0, 1.0)
        plain = nodes, jnp.full_like(levels, jnp.inf)

        # A loop of one step or none, which others of a batch do not take.
        def others(index: Array, found: tuple) -> tuple:
            # Nothing depends on the index: XLA would do it all before the loop.
            _, order = optimization_barrier((index, located.order))
            return rotating_nodes(self, order, levels)

        nodes, turned = fori_loop(0, jnp.where(nodes.complete, 0, 1), others, plain)
        return Plan(nodes, located, levels, turned)

    def fastest_turn(self, plan):
        # From nodes that are close together.
        return 1.1 * plan.located.deviation

    def center(self, plan):
        return plan.located.center

    def log_mgf(self, plan):
        found = moments_on(self, plan.nodes)
        return found.value, found.error

    def log_characteristic(self, plan, start, step, count=FREQUENCY_BLOCK):
        nodes, located = plan.nodes, plan.located
        block = _Waves(math.isqrt(count))
        aux = nodes, located.center, start, step
        products, _ = blocked_sum(block, nodes.blocks, self, aux)
        total, versine, sine = (x[0] for x in wave_sums(products, block.m))
        tau = start + step * jnp.arange(count, dtype=start.dtype)
        real, angle, square = log_one_plus(versine / total, sine / total)
        # See `wave_sums`; half of a unit is rounding.
        terms = nodes.blocks + NODES + 16
        error = ULP * terms * jnp.minimum(2.5, 2 * tau * located.deviation)
        error = error + tau * located.turn
        frame = stop_gradient(directed(self, nodes.sign))
        near = tau <= plan.levels[:, None]
        turned = jnp.min(jnp.where(near, plan.turned[:, None], jnp.inf), axis=0)
        missed = jnp.minimum(nodes.missed(frame, tau), turned)
        error = error + 2 * (missed + nodes.missed(frame))
        error = error / jnp.sqrt(jnp.maximum(square, DEAD_SQUARE))
        error = error + 4 * ULP * jnp.hypot(real, angle)
        return CharacteristicBlock(real, angle, stop_gradient(error))

    def log_envelope(self, located, frequency):
        """Bounds |phi(tau)| for all tau >= `frequency` by moving the line of nodes."""
        self, nodes = stop_gradient(self), located.nodes
        heights = located.slope * frequency * jnp.asarray(_HEIGHTS)
        aux = nodes, heights, frequency
        _, (sizes, error) = blocked_sum(_moved, nodes.blocks, self, aux)
        missed = nodes.missed(directed(self, nodes.sign))
        # Of positive sums; the share is more than their roundings.
        bound = sizes / located.mass * (1 + 1e-12) + error + missed
        return jnp.minimum(jnp.log(jnp.min(bound)), 0)


def _spread(index: Array, loss: Any, aux: tuple[Nodes, Array]) -> tuple:
    """Mass, mean, distance from a center, two roundings and slope of the loss."""
    nodes, center = aux
    at = tilted_at(loss, nodes, index)
    p, far = at.weights, jnp.abs(at.loss - center)
    moved = far * at.size + 2 * at.loss_slip
    rows = p, p * at.loss, p * far, p * moved, p * at.size, p * at.slope
    return (), tuple(jnp.sum(row) for row in rows)


def _moved(index: Array, loss: Any, aux: tuple[Nodes, Array, Array]) -> tuple:
    """Sizes of the integrand on some lines, and the shares of the rules' errors."""
    nodes, heights, frequency = aux
    at, frame = tilted_at(loss, nodes, index), directed(loss, nodes.sign)
    shares = densities(frame, nodes.places(index)).shares
    along = functools.partial(
        envelope, frame, nodes.shift, nodes.step, shares, jnp.zeros_like(at.loss)
    )
    lines = jax.vmap(along)(heights)
    sizes = jnp.exp(lines.moduli - frequency * lines.angles) @ at.weights
    return (), (sizes, lines.error / nodes.blocks)


@dataclasses.dataclass(frozen=True)
class _Waves:
    """Inputs of `wave_sums` for m^2 frequencies, m even."""

    m: int

    def __call__(
        self, index: Array, loss: Any, aux: tuple[Nodes, Array, Array, Array]
    ) -> tuple:
        nodes, center, start, step = aux
        at = tilted_at(loss, nodes, index)
        value = at.loss - center
        return wave_products(at.weights[None], value, start, step, self.m), ()
