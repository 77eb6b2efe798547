r"""A bound on |characteristic function| at all frequencies from one on.

With a0 = 1 - P(X > 0) - Q(X > 0) >= 0, the mass without loss,

    T(w + i tau) = a0 + sum over powers w and 1 - w of \int phi R^power e^{+-i tau X},

and each integral may be moved to t + i b(t), b(0) = 0, b < pi / (2 r), where
e^{i tau X} has modulus e^{-tau arg R}, arg R >= 0: it falls with tau, so that a bound
for one frequency is one for all beyond.  (For the other sign the line is mirrored.)
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..._internal._blocked_sum import blocked_sum
from ..._internal._rotation import rotation
from ..._internal._special import log1p, log_turned
from ..._internal._tolerances import ENVELOPE_SUM
from .._subsampled_gaussian._integrand import growth_of
from ._integrand import NODES, Integrand, nodes_of, place_of
from ._place import Location, right_tail, shape_at

_FIRST, _SPACING, _BLOCKS = -9.0, 0.36, 64
_SCALES = 1.0, 0.5
"""Of the lines that are tried, beside the best small one."""
_LEAST = -9.0
"""log T below which its coarse value is not known well enough."""


class _Lines(eqx.Module):
    """For both powers: the line rise times `shape_at`, bent to stay below a cap."""

    order: Float[Array, ""]
    log: Float[Array, ""]
    frequency: Float[Array, ""]
    spacing: Float[Array, ""]
    powers: Float[Array, "2 1 1"]
    rises: Float[Array, "2 k 1"]
    caps: Float[Array, "2 1 1"]

    def at(self, one: Integrand, t: Array) -> tuple[Array, Array, Array]:
        """p, b and its derivative."""
        p = one.share(t)
        shape, slope = shape_at(one, t, p)
        line = self.rises * shape
        bent = 1 + line / self.caps
        return p, line / bent, self.rises * slope / jnp.square(bent)


def log_envelope(one: Integrand, located: Location, frequency: Array) -> Array:
    """See the module's docstring."""
    lines, blocks = _lines(one, located, frequency)
    _, (fall, rise) = blocked_sum(_block, blocks, one, lines)
    change = (1 + ENVELOPE_SUM) * rise - (1 - ENVELOPE_SUM) * fall
    change = change + _beside(one, located, lines)
    allowance = 64 * jnp.finfo(change.dtype).eps
    bound = jnp.sum(jnp.min(change, axis=1)) + allowance
    bound = jnp.where((located.log > _LEAST) & (bound < 0), bound, 0)
    return log1p(jnp.maximum(bound, -1 + allowance))


def _lines(
    one: Integrand, located: Location, frequency: Array
) -> tuple[_Lines, Int[Array, ""]]:
    order = located.order
    powers = jnp.stack([order, 1 - order])
    # Where the power is negative, its modulus grows with the distance.
    angle = jnp.minimum(0.9 * jnp.pi, 8 / jnp.sqrt(jnp.maximum(-powers, 1)))
    caps = jnp.minimum(angle / (2 * one.half), 6)
    scales = jnp.asarray(_SCALES, order.dtype)
    length = located.end - _FIRST
    blocks = jnp.clip(jnp.ceil(length / (_SPACING * NODES)), 1, _BLOCKS)
    lines = _Lines(
        order=order,
        log=located.log,
        frequency=frequency,
        spacing=length / (blocks * NODES - 1),
        powers=powers[:, None, None],
        rises=(frequency * located.lean[:, None] * scales)[:, :, None],
        caps=caps[:, None, None],
    )
    return lines, blocks.astype(jnp.int32)


def _block(index: Array, one: Integrand, lines: _Lines) -> tuple:
    """Fall and rise of both integrands' sizes along the lines."""
    t, slope = place_of(
        nodes_of(index, jnp.asarray(_FIRST, lines.log.dtype), lines.spacing)
    )
    log_weight = one.log_base(t) + lines.powers * one.loss_at(t) - lines.log
    p, b, b_slope = lines.at(one, t)
    versine, sine = rotation(2 * one.half * b)
    modulus, turn = log_turned(p, versine, sine)
    exponent = 0.5 * jnp.square(b) + lines.powers * modulus - lines.frequency * turn
    exponent = exponent + 0.5 * log1p(jnp.square(b_slope))
    log_weight = jnp.broadcast_to(log_weight, exponent.shape)
    change, _ = growth_of(log_weight, exponent)
    change = change * (slope * lines.spacing)
    rise, fall = (jnp.sum(jnp.maximum(x, 0), axis=-1) for x in (change, -change))
    return (), (fall, rise)


def _beside(one: Integrand, located: Location, lines: _Lines) -> Float[Array, "2 k"]:
    """Bounds on the integrals along the lines beside the nodes, over T.

    Near zero a line is as long as its two sides together; e^{-tau arg R} is at most 1.
    """
    first, _ = place_of(jnp.full_like(located.log, _FIRST))
    p, b, _ = lines.at(one, first)
    angle = 2 * one.half * lines.caps
    worst = jnp.maximum(-lines.powers, 0) * -jnp.log(jnp.cos(0.5 * angle))
    lifted = 0.5 * jnp.square(lines.caps) + worst
    near = jnp.maximum(lines.powers, 0) * one.loss_at(first) + one.log_base(0 * first)
    # 2 p (1 - p) at its largest from zero on.
    q = one.sampling_prob
    spread = 2 * jnp.maximum(p * (1 - p), q * (1 - q))
    spread = jnp.where((q < 0.5) & (p > 0.5), 0.5, spread)
    versine, _ = rotation(2 * one.half * b)
    modulus = jnp.minimum(lines.powers, 0) * 0.5 * log1p(spread * versine)
    near = near + 0.5 * jnp.square(b) + modulus
    left = jnp.exp(near - located.log) * (first + b)
    steepest = 1 + 0.5 * one.half * lines.rises
    right = 2 * right_tail(one, located) * steepest * jnp.exp(lifted)
    return (left + right)[..., 0]
