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

Outcomes that never happen may rule M(c): of a rare component with a large loss, the
tilted law is around centers many times as far out.  With a cap, both laws have the
density of what is kept of them,

    k(t) = Phi(RATE (T - t)),   E_P[1 - k] <= E_Q[1 - k] <= cut

(the loss rises with t).  k is entire, |k(t + iv)| <= e^(RATE^2 v^2 / 2) k(t) (integrate
the normal density along a line at that height) and so is 1 - k, and -(log k)'' <=
RATE^2.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from .._internal._special import log1p
from .._internal._tolerances import NORMAL_TAIL

REACH = 9.7
"""Windows end where integrands have fallen by a factor e^(-REACH^2 / 2) = 4e-21."""
LOST = 1e-20
"""What is beyond of an integrand, over its integral and `bend`: at most 2 e^(-47) / 9.7
of its largest value, and the integral is sqrt(2 pi / bend) of that at least."""
LEAST = 1e-200
"""Weight below which a component is left out; what it weighs counts as lost."""
_EARLY = np.append(0.0, 1.5 * 1.5 ** np.arange(23.0))
_BEYOND_CAP = np.append([4.4, 5.0, 5.8], 7 * 1.35 ** np.arange(20.0))
"""Where a window may end early, without a cap, and beyond one."""
RATE = 2.0
"""One over the width in which a cap falls."""
FAR, _UNCAPPED = 18.0, 1e9
"""How far beyond a cap nodes may lie, for there k is 1e-284; and no cap's place."""
_NOWHERE = 1e300
"""How far below all others the density of a component is that is left out."""
_LARGE = 600.0
"""Exponent from which on numbers are scaled down."""
UNIT = 2.0**-53


@functools.partial(jax.jit, inline=True)
def where(condition: ArrayLike, yes: ArrayLike, no: ArrayLike) -> Array:
    """`jnp.where` in two equations: of a condition or value of the full shape."""
    shape = jnp.broadcast_shapes(*(jnp.shape(x) for x in (condition, yes, no)))
    full = lambda x: jnp.broadcast_to(x, shape)
    return lax.select(*(full(x) for x in (condition, yes, no)))


class Frame(NamedTuple):
    """Facts of a pair anywhere on the line; of two laws, P first."""

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
    early: Float[Array, " e"]
    """Zero, and places where a window may end early."""
    early_logs: Float[Array, "2 e"]
    """A and B there."""
    early_slopes: Float[Array, "2 e"]
    """A' and B' there."""
    top: Float[Array, ""]
    """The place T of the cap."""
    curved: Float[Array, ""]
    """A bound of -(log k)''."""
    cut: Float[Array, ""]
    """E_Q[1 - k], at most."""

    def capped(self, log_cut: Float[Array, ""]) -> "Frame":
        """The pair without outcomes that Q has with that probability at most.

        E[1 - k] = Phi((d - T) / w) of a component, w^2 = 1 + 1 / RATE^2, and Phi(-x) <=
        e^(-x^2 / 2) / 2.  A logarithm of -inf is for no cap.
        """
        d, k = self.gaps + self.base[:, None], self.gaps.shape[1]
        weights = self.log_weights + self.gone
        logs = weights[1] + (np.log(k) - log_cut)
        reach = np.sqrt(1 + RATE**-2) * jnp.sqrt(2 * jnp.maximum(logs, 0.0))
        top = jnp.max(where(logs > 0, d[1] + reach, -jnp.inf))
        # Of a law of one component nothing is rare: `range` is the least it can be.
        some = (top < _UNCAPPED) & (top > 0) & (self.range > 1e-3)
        early = where(some, jnp.append(0.0, top + _BEYOND_CAP), self.early)
        logs, slopes = _laws_at(d, weights, early)
        return self._replace(
            early=early,
            early_logs=logs,
            early_slopes=slopes,
            top=where(some, top, _UNCAPPED),
            curved=where(some, RATE**2, 0.0),
            cut=where(some, jnp.exp(log_cut), 0.0),
        )


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

    @jax.jit
    def frame(self) -> Frame:
        """Facts of the pair anywhere."""
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
        early = jnp.asarray(_EARLY)
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
            early,
            *_laws_at(self.centers[None], logs + gone, early),
            *jnp.asarray([_UNCAPPED, 0.0, 0.0]),
        )


def _laws_at(
    centers: Float[Array, "#2 k"], logs: Float[Array, "2 k"], places: Float[Array, " e"]
) -> tuple[Float[Array, "2 e"], Float[Array, "2 e"]]:
    """Log densities of both laws and their slopes, at some places."""
    d = centers[..., None]
    powers = d * (places - 0.5 * d) + logs[..., None]
    top = jnp.max(powers, axis=1)
    shares = jnp.exp(powers - top[:, None])
    mass = jnp.sum(shares, axis=1)
    return top + jnp.log(mass), jnp.sum(shares * d, axis=1) / mass


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
    """Log densities of both laws with small absolute errors, see `rough_slip`.

    One component after the other: XLA computes exponentials within a sum one by one.
    """
    each = lambda x: x[..., None, None]
    # What is left out is below all others, and weighs nothing.
    bends = frame.bends - jnp.maximum(frame.gone, -_NOWHERE)
    columns = [each(x.T) for x in (frame.gaps, bends, frame.weights)]

    def add(known: tuple[Array, Array], part: list) -> tuple[tuple[Array, Array], None]:
        (top, total), (gap, bent, weight) = known, part
        power = gap * t - bent
        lower = jnp.exp(-jnp.abs(power - top))
        total = where(power > top, total * lower + weight, total + weight * lower)
        return (jnp.maximum(power, top), total), None

    gap, bent, weight = (x[0] for x in columns)
    first = gap * t - bent, weight + 0 * t
    (top, total), _ = lax.scan(add, first, [x[1:] for x in columns], unroll=2)
    base = each(frame.base)
    return top + jnp.log(total) + base * (t - 0.5 * base)


def rough_slip(frame: Frame, farthest: Float[Array, "..."]) -> Float[Array, "..."]:
    """Their roundings in units, and of sums with t^2, where |t| <= `farthest`.

    A component is scaled anew by all those that are larger: by as many exponentials, of
    distances that add up to that of the largest one.
    """
    widest = jnp.max(jnp.abs(frame.high)) + jnp.max(jnp.abs(frame.low))
    slip = 60 + 4 * frame.gaps.shape[-1] - 2 * jnp.min(frame.log_weights)
    return slip + 14 * widest * (farthest + widest) + 2 * jnp.square(farthest)


def log_kept(frame: Frame, t: Float[Array, "..."]) -> Float[Array, "..."]:
    """Log k, see `kept_slip`."""
    x = RATE * jnp.minimum(t - frame.top, 1.05 * FAR)
    return jnp.log(0.5 * lax.erfc(np.sqrt(0.5) * x))


def kept_slip(frame: Frame, t: Float[Array, "..."]) -> Float[Array, "..."]:
    """Its rounding in units: of a normal tail and its logarithm, and of t - T.

    Far below the cap erfc is next to two, and has its digits.
    """
    x = RATE * (t - frame.top)
    above, near = jnp.maximum(x, 0.0), jnp.maximum(x + 4, 0.0)
    tail = 2 * NORMAL_TAIL * (1 + 2 * (1 + above) * above) + above * above
    return 8 + where(near > 0, tail + 4 * near * jnp.abs(t), 0.0)


def bend(frame: Frame, shift: Float[Array, "..."]) -> Float[Array, "..."]:
    """A bound of -g'', of what is kept."""
    own = 0.25 * jnp.square(frame.range_p) * jnp.maximum(shift, 0.0)
    return 1 + frame.curved + own
