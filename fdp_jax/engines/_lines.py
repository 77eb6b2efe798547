"""Certified profiles of sums of independent losses along a line of the complex plane.

With M(c + iy) the product of the terms' transforms (`losses/_normal_mixtures.py`) and z
= c + iy, the profile is delta(eps) = T(eps) - left - right for every c > 0 and h > 0,

    T(eps) = (h / pi) Re sum'_k M(c + i k h) e^(-z_k eps) / (z_k (1 + z_k)),

where the sum's first term counts half, and the aliases are e^(c m R) delta(eps + m R),
R = 2 pi / h, for m < 0 and m > 0 (Poisson summation).  For -1 < c < 0 the same holds of
-(1 - delta), which is accurate where delta is close to one.  Nothing is searched for:

1. Chernoff bounds of M on a mesh of shifts c tell the place (by Laplace's method), a
   proved bound of delta or 1 - delta, and the shift and the period R with which aliases
   do not matter.  Aliases on the other side of c = 0 tend to e^(c m R): these are
   subtracted exactly, and what is too much of them is bounded by the mesh, too.
2. An envelope of |M| that falls with y tells how many frequencies there are.
3. The table of frequencies is made once, for all thresholds.  Every term's transform
   comes with a bound on its error, and so does the sum.
4. An epsilon is found by Newton's method in the table (`_root.py`).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from .._internal._blocked_sum import sums
from ..losses import rule_error, where
from ._line_mesh import (
    BLOCK,
    DIGITS,
    SHIFTS,
    UNIT,
    Mesh,
    Place,
    Stack,
    chernoff_mesh,
    locate,
    orders_at,
)
from ._line_terms import ROW, Along, add_other, add_pair, pair_line

MOST = 4096
"""Frequencies at most in sums over pairs alone."""
_ENDS = np.append(np.arange(16, 64, 8), 64 * 2.0 ** np.arange(0, 9.5, 0.5)).round()
"""Numbers of frequencies after which a sum may end."""
_LEVELS = 16 * 4.0 ** np.arange(7)
"""Numbers of frequencies up to which errors of a rule are bounded together."""


class Line(eqx.Module):
    """The profile near a place: a table of frequencies, and all that is certain."""

    sign: Float[Array, "..."]
    shift: Float[Array, "..."]
    step: Float[Array, "..."]
    """h."""
    blocks: Int[Array, "..."]
    table: Float[Array, "2 f"]
    """Amplitudes and angles of the terms of T e^(c eps) / M(c)."""
    lead: Float[Array, "..."]
    """Log M(c)."""
    lead_error: Float[Array, "..."]
    center: Float[Array, "..."]
    center_size: Float[Array, "..."]
    error: Float[Array, "..."]
    """Of the sum, but for that of M(c), and with what was left out."""
    moment: Float[Array, "..."]
    """Of amplitudes times y."""
    bounds: Float[Array, "..."]
    aliases: Float[Array, "..."]
    log_lost: Float[Array, "..."]
    log_cut: Float[Array, "..."]
    """Log of what caps leave out of delta, at most."""
    epsilon: Float[Array, "..."]
    """The place."""
    lows: Float[Array, "... m"]
    node_steps: Float[Array, "... m"]
    """The rules of all terms."""
    kept: Float[Array, "... m n"]
    """Log of what their caps keep, at the nodes."""
    turned: Float[Array, "... m b"]
    """Their continuous angles at the first frequency of each block."""
    plans: tuple[PyTree, ...]
    """Of the terms that are no pairs ..."""
    others_turned: tuple[Float[Array, "... b"], ...]
    """... and their angles."""

    @property
    def side(self) -> Array:
        """1 where the sum is delta, -1 where it is -(1 - delta)."""
        return jnp.sign(self.shift)


@jax.jit
def make_line(stack: Stack, mesh: Mesh, place: Place) -> Line:
    """The table of all frequencies along the line that was chosen."""
    frames, counts, others = stack.frames, stack.counts, stack.others
    c, h = jnp.asarray(SHIFTS)[place.row], 2 * np.pi / place.period
    most = max((BLOCK * term.most_blocks for term in others), default=MOST)
    ends_at, levels = _ENDS[most >= _ENDS], _LEVELS[4 * most >= _LEVELS]
    ends = h * (ends_at - 1.0)
    falls, whole, made = jnp.zeros(ends.shape), jnp.zeros(4), None
    lows, steps = mesh.lows[:, place.row], jnp.zeros_like(counts)
    if frames is not None:
        steps = mesh.lengths[:, place.row] * (1 / (stack.nodes - 1))
        reach, own = (ends, h * levels), mesh.variances[:, place.row]
        # The product falls enough if every release does by its share.
        shares = own / jnp.maximum(counts * jnp.sum(own), 1e-300)
        heights = 0.9 * np.sqrt(90) * jnp.sqrt(jnp.minimum(shares, 1.0))
        each = lambda x: pair_line(x[0], x[1], x[2], c, reach, x[3], stack.nodes)
        made = lax.map(each, (frames, lows, steps, heights))
        logs, errors = made.log_m, made.log_m_error + 4 * UNIT * jnp.abs(made.log_m)
        centers = counts * made.mean
        whole = jnp.stack([counts * logs, counts * errors, centers, jnp.abs(centers)])
        whole = jnp.sum(where(counts > 0, whole, 0.0), axis=1)
        logs = counts[:, None] * (made.log_envelope + 1e-12)
        falls = jnp.sum(where((counts > 0)[:, None], logs, 0.0), axis=0)
    order = orders_at(c, stack.sign)
    located = tuple(term.locate(order) for term in others)
    terms = list(zip(others, stack.other_counts, located, strict=True))

    def tail(i: Array) -> Array:
        """Log of what is beyond an end: at most |M(c + iY)| by the sum of 1/y^2."""
        fall, y = falls[i], ends[i]
        for term, count, at in terms:
            each = count * term.log_envelope(at, y)
            fall = fall + where(count > 0, each, 0.0)
        return fall - jnp.log(y * h)

    # The log of what does not matter to the sum: where less is beyond, it ends.
    wanted = place.log_value - mesh.upper[place.row] + c * place.epsilon
    wanted = wanted - jnp.log(h / np.pi) - DIGITS

    def halve(_: Array, span: Array) -> Array:
        middle = (span[0] + span[1]) // 2
        short, more = tail(middle) < wanted, jnp.minimum(middle + 1, ends.size - 1)
        return where(short, span.at[1].set(middle), span.at[0].set(more))

    span = jnp.asarray([0, ends.size - 1], np.int32)
    last, _ = lax.fori_loop(0, ends.size.bit_length(), halve, span)
    beyond = tail(last)
    ended = beyond < wanted + (DIGITS - stack.least_digits)
    # A sum that does not end has no certificate; its first term alone has slopes that
    # are about right, those of Laplace's method.
    number = where(ended, jnp.asarray(ends_at, np.int32)[last], np.int32(1))
    tolerance = where(ended, np.log(2 * UNIT) - 2, 1e4)
    plans = tuple(
        term.prepare(at, h * number, tolerance - jnp.log1p(count))
        for term, count, at in terms
    )
    for term, count, plan in zip(others, stack.other_counts, plans, strict=True):
        log, error = term.log_mgf(plan)
        error = error + 4 * UNIT * jnp.abs(log)
        center = stack.sign * term.center(plan)
        each = count * jnp.stack([log, error, center, jnp.abs(center)])
        whole = whole + where(count > 0, each, 0.0)
    lead, lead_error, center, center_size = whole
    ended = ended & (lead_error < 1e-3)
    if made is not None and frames is not None:
        # Nor has one whose rules know nothing of its last term.
        y = h * (number - 1.0)
        off = jax.vmap(lambda frame, step: rule_error(frame, c, step, y))(frames, steps)
        turned = jnp.min(where(y < h * levels, made.turned, jnp.inf), axis=1)
        known = jnp.isfinite(jnp.minimum(off, turned)) | (counts == 0)
        ended = ended & jnp.all(known)
    number = where(ended, number, np.int32(1))
    blocks = (number + (BLOCK - 1)) // BLOCK

    along = Along(stack.sign, c, h, blocks, h * levels)
    # Frequencies evaluated together may go beyond the end.
    room = max((term.together for term in others), default=0)
    logs, turned = jnp.zeros((4, most + room)), jnp.zeros((0, 1))
    if made is not None and frames is not None:
        each = frames, counts, steps, made
        logs, turned = lax.scan(lambda x, one: add_pair(x, along, *one), logs, each)
    others_turned = []
    for term, count, plan in zip(others, stack.other_counts, plans, strict=True):
        logs, begun = add_other(logs, along, term, count, plan)
        others_turned.append(begun)
    few = UNIT * (4 * BLOCK + 40 + 4 * (counts.size + len(others)))

    def finish(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        table, total = state
        power, phase, relative, astray = lax.dynamic_slice(
            logs, (ROW, BLOCK * i), (4, BLOCK)
        )
        k = BLOCK * i + np.arange(BLOCK)
        y = h * k
        near, far = c * c + y * y, jnp.square(1 + c) + y * y
        weight = where(k > 0, where(k < number, 1.0, 0.0 * y), 0.5)
        weight = weight * lax.rsqrt(near * far)
        amplitude = weight * jnp.exp(power)
        small = amplitude * jnp.expm1(jnp.minimum(relative, 1.0))
        wrong = where(relative < 1, small, weight * jnp.exp(power + relative))
        wrong = wrong + amplitude * (where(astray > 0, 2.0, 0.0) + few)
        wrong = where(k < number, wrong, 0.0)
        more = sums((wrong, amplitude * y), 0)
        phase = phase - jnp.arctan2(y * (1 + 2 * c), c * (1 + c) - y * y)
        new = jnp.stack([amplitude, phase])
        table = lax.dynamic_update_slice(table, new, (ROW, BLOCK * i))
        return table, total + jnp.stack(more)

    state = jnp.zeros((2, most)), jnp.zeros(2)
    table, (error, moment) = lax.fori_loop(ROW, blocks, finish, state)
    cuts = 0 * counts if frames is None else where(counts > 0, counts * frames.cut, 0.0)
    return Line(
        sign=stack.sign,
        shift=c,
        step=h,
        blocks=blocks,
        table=table,
        lead=lead,
        lead_error=lead_error,
        center=center,
        center_size=center_size,
        error=error + where(ended, jnp.exp(beyond), jnp.inf),
        moment=moment,
        bounds=place.bounds,
        aliases=where(ended, place.aliases, -jnp.inf),
        log_lost=stack.log_lost,
        log_cut=jnp.log(jnp.sum(cuts)),
        epsilon=place.epsilon,
        lows=lows,
        node_steps=steps,
        kept=jnp.zeros((0, 1)) if made is None else made.kept,
        turned=turned,
        plans=plans,
        others_turned=tuple(others_turned),
    )


def line_of(stack: Stack, target: Array, *, inverse: bool) -> Line:
    """The line for a threshold, or for a log delta (`inverse`)."""
    mesh = chernoff_mesh(stack)
    place = locate(mesh, target, inverse=inverse, log_mass=stack.log_mass)
    return make_line(stack, mesh, place)
