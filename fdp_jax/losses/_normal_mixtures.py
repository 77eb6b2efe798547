"""Pairs of two mixtures of normal laws, as the nodes of a certified quadrature.

With P = sum_i p_i N(c_i, s^2), Q = sum_i q_i N(c_i, s^2), x = s t and d_i = c_i / s,
the log densities over N(0, s^2) are

    A(t) = log sum_i p_i e^(d_i t - d_i^2/2),   B(t) = the same of q,

and all that an engine asks of the pair is an integral over the line,

    M(c + iy) = E_P[(dQ/dP)^(1 + c + iy)] = int e^(g(t) + iy l(t)) dt / sqrt(2 pi),
    g = (1 + c) B - c A - t^2/2,   l = B - A,   c > -1,

by the trapezoid rule: its nodes are the loss.  Exchanging P and Q and turning the line
around gives the other direction, so that only one has to be known.  What follows holds
for every pair whose centers of P are not right of those of Q:

- A and B are convex, with slopes between the least and the largest center of their
  law, and A'' <= r_P^2 / 4 (a variance on an interval of length r, the range of a law's
  centers).  So -g'' <= bend(c) = 1 + max(c, 0) r_P^2 / 4.
- On Im t = v: |e^B| is at most its value on the line, and |e^A| at least cos(v r_P / 2)
  times it (all rotations e^(i d v) are within half of that of the one in the middle).
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

REACH = 9.7
"""Windows end where integrands have fallen by a factor e^(-REACH^2 / 2) = 4e-21."""
LOST = 1e-20
"""What is beyond of an integrand, over its integral and `bend`: at most 2 e^(-47) / 9.7
of its largest value, and the integral is sqrt(2 pi / bend) of that at least."""
LEAST = 1e-200
"""Weight below which a component is left out; what it weighs counts as lost."""
_EARLY = np.asarray([12.0, 14, 17, 20, 25, 30, 37, 45, 60, 80, 120, 180])
"""Where a window may end early."""
_LARGE = 600.0
"""Exponent from which on numbers are scaled down."""
UNIT = 2.0**-53


def where(condition: ArrayLike, yes: ArrayLike, no: ArrayLike) -> Array:
    """`jnp.where` in two equations: of a condition or value of the full shape."""
    shape = jnp.broadcast_shapes(*(jnp.shape(x) for x in (condition, yes, no)))
    full = lambda x: jnp.broadcast_to(x, shape)
    return lax.select(*(full(x) for x in (condition, yes, no)))


def log1p(x: Array) -> Array:
    """log(1 + x) to a few units; the library's is off by 240 units on [-1/2, -0.29]."""
    far = x < -0.25
    low, high = jnp.minimum(x, 0.0), jnp.maximum(x, -0.25)
    return where(far, jnp.log(1 + low), lax.log1p(high))


class Frame(NamedTuple):
    """What is known of a pair anywhere on the line; of two laws, P first."""

    weights: Float[Array, "2 k"]
    log_weights: Float[Array, "2 k"]
    """At least that of the least weight that counts."""
    gone: Float[Array, "2 k"]
    """0, and -inf for components that are left out."""
    base: Float[Array, "2"]
    """Center of the heaviest component."""
    gaps: Float[Array, "2 k"]
    """d_i less that."""
    bends: Float[Array, "2 k"]
    """(d_i^2 - base^2) / 2."""
    low: Float[Array, "2"]
    high: Float[Array, "2"]
    """The least and the largest center."""
    range_p: Float[Array, ""]
    range: Float[Array, ""]
    """Of the centers of P; of those of either law, or a little more."""
    turn: Float[Array, ""]
    """|Im l| <= turn v on Im t = v."""
    slope: Float[Array, ""]
    """A'(0)."""
    early_logs: Float[Array, " e"]
    early_slopes: Float[Array, " e"]
    """B and B' at places where a window may end."""


class Rule(NamedTuple):
    """A trapezoid rule for given shifts c, which have the leading axes."""

    low: Float[Array, "..."]
    """The first node."""
    step: Float[Array, "..."]


class Densities(NamedTuple):
    """Log densities of both laws at some places, P first."""

    logs: Float[Array, "2 ..."]
    shares: Float[Array, "2 k ..."]
    """Posterior probabilities of the components."""
    slips: Float[Array, "2 ..."]
    """Rounding of the logarithms, in units."""


class NormalMixtures(eqx.Module):
    """The pair, in units of the noise."""

    centers: Float[Array, " k"]
    """d_i; those of P must not lie right of those of Q."""
    weights: Float[Array, "2 k"]
    """p and q, with sum 1: the heaviest one is taken to be what the others leave, so
    that nothing is lost of a rare one."""

    @classmethod
    def alone(
        cls,
        noise: Float[Array, ""],
        centers: ArrayLike,
        weights: ArrayLike,
    ) -> "tuple[NormalMixtures, Float[Array, ' 1']]":
        """One release with noise of this deviation, as a stack of one."""
        one = jnp.ones_like(noise)[None]
        return cls(jnp.asarray(centers)[None] / noise, jnp.asarray(weights)[None]), one

    def directed(self, sign: Float[Array, ""]) -> "NormalMixtures":
        """The pair as given (1), or exchanged (-1)."""
        exchanged = jnp.where(sign > 0, self.weights, self.weights[::-1])
        return NormalMixtures(sign * self.centers, exchanged)

    def log_lost(self) -> Float[Array, ""]:
        """Log of a bound on the weight of all components that are left out."""
        left_out = (self.weights > 0) & (self.weights < LEAST)
        most = np.log(LEAST * 2 * self.centers.size)
        return jnp.where(jnp.any(left_out), most, -jnp.inf)

    def frame(self) -> Frame:
        """What is known of the pair anywhere."""
        kept = self.weights >= LEAST
        # The slope in a weight is that at zero, too.
        left_out = stop_gradient(where(kept, 0.0 * self.weights, self.weights))
        weights = self.weights - left_out
        logs = stop_gradient(jnp.log(jnp.maximum(weights, LEAST)))
        gone = where(kept, 0.0 * logs, -jnp.inf)
        heavy = jnp.argmax(weights, axis=1)[:, None]
        chosen = np.arange(self.centers.size) == heavy
        base = jnp.sum(chosen * self.centers, axis=1)
        gaps = self.centers - base[:, None]
        bends = 0.5 * gaps * (self.centers + base[:, None])
        # Posterior means of the centers: of P at zero, of Q farther out.
        places = np.append(0.0, _EARLY)
        centers = self.centers[:, None]
        powers = centers * (places - 0.5 * centers) + (logs + gone)[..., None]
        top = jnp.max(powers, axis=1, keepdims=True)
        shares = jnp.exp(powers - top)
        mass = jnp.sum(shares, axis=1)
        slopes = jnp.sum(shares * centers, axis=1) / mass
        values = top[:, 0] + jnp.log(mass)
        low = jnp.min(self.centers - gone, axis=1)
        high = jnp.max(self.centers + gone, axis=1)
        widths = high - low
        return Frame(
            weights,
            logs,
            gone,
            base,
            gaps,
            bends,
            low,
            high,
            widths[0],
            jnp.maximum(jnp.max(widths), 1e-3),
            jnp.max(high - low[::-1]),
            slopes[0, 0],
            values[1, 1:],
            slopes[1, 1:],
        )


def densities(frame: Frame, t: Float[Array, " n"]) -> Densities:
    """Log densities at some places, to full relative accuracy.

    Around the heaviest component: log sum_i w_i e^(v_i) = log(1 + sum_i w_i (e^(v_i) -
    1)), where the sum is at least 1/k - 1.  Where some v_i is beyond 600 all are scaled
    down by what is too much; the 1 is not seen there, since e^600 w_i > e^139.
    """
    gaps, base = frame.gaps[..., None], frame.base[:, None]
    weights = frame.weights[..., None]
    powers = gaps * t - frame.bends[..., None]
    top = jnp.max(powers + frame.gone[..., None], axis=1)
    over = stop_gradient(jnp.maximum(top - _LARGE, 0.0))
    scaled = jnp.minimum(powers - over[:, None], _LARGE)
    grown = weights * jnp.expm1(scaled)
    total = log1p(jnp.sum(grown, axis=1))
    logs = over + total + base * (t - 0.5 * base)
    shares = weights * jnp.exp(scaled - total[:, None])
    # What the exponents' roundings do, and those of the weights.
    size = jnp.abs(gaps) * (jnp.abs(t) + jnp.abs(gaps) + 2 * jnp.abs(base)[:, None])
    part = jnp.abs(grown) * jnp.exp(-total)[:, None]
    slips = 6 * shares * size + part * (16 - 2 * frame.log_weights[..., None])
    slips = jnp.sum(slips, axis=1) + 4 * jnp.abs(total) + 2 * over
    return Densities(
        logs, shares, slips + 4 * jnp.abs(base) * (jnp.abs(t) + jnp.abs(base))
    )


def rough_logs(frame: Frame, t: Float[Array, "r n"]) -> Float[Array, "2 r n"]:
    """Log densities of both laws with small absolute errors, see `rough_slip`."""
    each = lambda x: x[..., None, None]
    powers = each(frame.gaps) * t - each(frame.bends) + each(frame.gone)
    top = jnp.max(powers, axis=1)
    total = jnp.sum(each(frame.weights) * jnp.exp(powers - top[:, None]), axis=1)
    base = each(frame.base)
    return top + jnp.log(total) + base * (t - 0.5 * base)


def rough_slip(frame: Frame, farthest: Float[Array, "..."]) -> Float[Array, "..."]:
    """Their roundings in units, and of sums with t^2, where |t| <= `farthest`."""
    widest = jnp.max(jnp.abs(frame.high)) + jnp.max(jnp.abs(frame.low))
    slip = 60 - 2 * jnp.min(frame.log_weights) + 12 * widest * (farthest + widest)
    return slip + 2 * jnp.square(farthest)


def bend(frame: Frame, shift: Float[Array, "..."]) -> Float[Array, "..."]:
    """A bound of -g''."""
    return 1 + 0.25 * jnp.square(frame.range_p) * jnp.maximum(shift, 0.0)


def rule(frame: Frame, shift: Float[Array, "..."], count: int) -> Rule:
    """Nodes that see P, Q and what is tilted by a shift.

    Left of zero A' <= A'(0), right of it A' >= A'(0).  So for c >= 0, g' >= d_Q - c
    A'(0) - t left of zero and g' <= D_Q - c A'(0) - t right of it, with the least and
    the largest center d_Q and D_Q times 1 + c; REACH beyond where that is zero the
    integrand has fallen by e^(-REACH^2 / 2), and falls by e^-REACH per unit.

    The right end may come earlier, at T: if g' <= m - t up to T with m <= T - REACH
    the first holds, and by the chord of the convex B from T to the end as it was, and
    the tangent of A at 0, the second if that slope is below T - REACH, too.
    """
    positive = jnp.maximum(shift, 0.0)
    negative = jnp.minimum(shift, 0.0)
    least = (1 + shift) * frame.low[1] - positive * frame.slope
    most = (1 + shift) * frame.high[1] - positive * frame.slope
    least = least - negative * frame.low[0]
    most = most - negative * frame.high[0]
    first = jnp.minimum(jnp.min(frame.low), jnp.minimum(least, 0.0)) - REACH
    last = jnp.max(frame.high) + REACH
    end = jnp.maximum(most, 0.0)
    # The chord of B from where it may end, with an upper bound of B at the end.
    d, logs = frame.gaps[1] + frame.base[1], frame.log_weights[1] + frame.gone[1]
    far = jnp.max(d * end[..., None] - 0.5 * d * d + logs, axis=-1) + np.log(d.size)
    ahead = end[..., None] - _EARLY
    chord = (far[..., None] - frame.early_logs) / jnp.maximum(ahead, 1e-3)
    slope = frame.early_slopes + 0 * chord
    steepest = where(ahead > 1e-3, jnp.maximum(slope, chord), slope)
    steepest = (1 + shift)[..., None] * steepest - (shift * frame.slope)[..., None]
    fits = (steepest <= _EARLY - REACH - 1e-6) & (shift > 0)[..., None]
    early_end = jnp.min(where(fits, _EARLY, jnp.inf), axis=-1)
    last = jnp.maximum(last, jnp.minimum(end + REACH, early_end))
    return Rule(first, (last - first) * (1 / (count - 1)))


def rule_error(
    frame: Frame,
    shift: Float[Array, "..."],
    step: Float[Array, "..."],
    frequency: Float[Array, "..."] | float,
) -> Float[Array, "..."]:
    """A bound of |sum - M(c + iy)| / M(c), for y >= 0, without what is beyond the ends.

    If an integrand is analytic for |Im t| <= v and its modulus there integrates to at
    most F, the trapezoid rule is off by at most 2 F / (e^(2 pi v / h) - 1) <= 4 F e^(-2
    pi v / h) where the latter is below 2 F.  On Im t = v, with a = v r_P / 2 < pi / 2,

        F / M(c) <= exp(v^2/2 + |y| v turn - max(c, 0) log cos a),

    for every v < pi / r; v is near where that is least.  (No mixture is zero there, so
    that both logarithms are analytic.)
    """
    rate = 2 * np.pi / step - frequency * frame.turn
    high = jnp.maximum(rate / bend(frame, shift), 0.0)
    high = jnp.minimum(high, 2.8 / frame.range)
    room = jnp.maximum(shift, 0) * jnp.log(jnp.cos(0.5 * frame.range_p * high))
    error = 4 * jnp.exp((0.5 * high - rate) * high - room)
    return where(2 * np.pi * high > 0.7 * step, error, jnp.inf)


def law_error(step: Float[Array, "..."]) -> Float[Array, "..."]:
    """The same for either law by itself, whose density is entire."""
    return 4 * jnp.exp(-2 * np.square(np.pi) / jnp.square(step)) + 2 * LOST


class Envelope(NamedTuple):
    """|M(c + iy)| <= M(c) E_c[e^(moduli - y angles)] (1 + error) for y and all beyond.

    E_c is over the nodes' normalized weights.
    """

    moduli: Float[Array, " n"]
    angles: Float[Array, " n"]
    error: Float[Array, ""]
    """Relative to M(c), for all y."""


def envelope(
    frame: Frame,
    shift: Float[Array, ""],
    step: Float[Array, ""],
    shares: Float[Array, "2 k n"],
    count: Float[Array, ""],
) -> Envelope:
    """Moves the line by a > 0: e^(iy l) becomes e^(-y Im l(t + ia)), with Im l >= 0.

    That is so since no center of P lies right of one of Q; so the modulus falls with y,

        |M(c + iy)| <= int e^(a^2/2 + Re[(1 + c) B - c A](t + ia) - y Im l(t + ia)).

    The trapezoid rule for this positive function is off by at most 4 exp(b^2/2 - 2 pi b
    / h - max(c, 0) log cos((a + b) r_P / 2)) for all y >= 0: continued to t + ib its
    parts are (B(t + ia + ib) + B(t - ia + ib)) / 2 and the same of A, of which moduli
    are as above, and y / 2 times -Im l(t + i(a + b)) + Im l(t + i(b - a)).  That is not
    positive if b <= a and (a + b) r < pi, since then Im l(t - i(a - b)) <= 0; and if
    (a + b) r <= pi/2, since Im l grows with the height that far (of B, d/dv Im is a
    mean of centers with weights w_i w_j cos((d_i - d_j) v) >= 0).

    `count` is how many releases there are: e^(a^2 count / 2) has to be gained back.
    """
    wide = frame.range
    a = jnp.minimum(0.9 * np.sqrt(90) * lax.rsqrt(count), 1.5 / wide)
    b = jnp.maximum(0.5 * np.pi / wide - a, jnp.minimum(a, 2.9 / wide - a))
    b = jnp.minimum(jnp.minimum(b, 6.0), 2 * np.pi / step)
    turns = (a * frame.gaps)[..., None]
    real = -2 * jnp.sum(shares * jnp.square(jnp.sin(0.5 * turns)), axis=1)
    imag = jnp.sum(shares * jnp.sin(turns), axis=1)
    angles = jnp.arctan2(imag, 1 + real) + (a * frame.base)[:, None]
    square = real * (2 + real) + jnp.square(imag)
    sizes = 0.5 * log1p(jnp.maximum(square, -1 + UNIT))
    room = jnp.maximum(shift, 0) * jnp.log(jnp.cos(0.5 * frame.range_p * (a + b)))
    error = 4 * jnp.exp(0.5 * a * a + (0.5 * b - 2 * np.pi / step) * b - room)
    fits = (2 * np.pi * b > 0.7 * step) & (frame.high[0] <= frame.low[1])
    return Envelope(
        0.5 * a * a + (1 + shift) * sizes[1] - shift * sizes[0],
        angles[1] - angles[0],
        where(fits, error, jnp.inf),
    )
