"""Canonical noise of any symmetric trade-off function, by its recursion.

A loop runs as many steps as the tail needs.  Its derivative is accumulated along the
way as a vector, one entry per parameter of f, so that reverse mode works through a
loop whose length is not known beforehand.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._implicit import implicit_root
from .._internal._logs import LOG_HALF
from .._internal._quadrature import between
from .._internal._special import safe_log
from ..curves.pointwise import rates_at
from ..mechanisms import as_float
from ..tradeoff import AbstractTradeOff, Laplace, PiecewiseLinear
from .law import AbstractLaw, cell

_NEARBY = 1e-12
_ORDER, _PANELS = 12, 3
_LEFT, _LAST = 1e-22, 1e6
"""Tails that are left out, and the most cells that are looked at."""
FASTEST = 30.0
"""The largest frequency that the nodes in a cell resolve."""


_elementwise = functools.partial(jnp.vectorize, excluded=(0,))
"""Of a method of scalars."""


class CurveLaw(AbstractLaw):
    """The construction for a function known without error: S(x + 1) = f(1 - S(x))."""

    tradeoff: AbstractTradeOff
    fastest = FASTEST

    def _middle(self) -> tuple[Array, Array]:
        """The fixed point c and 1 - 2 c = delta(0)."""
        zero = jnp.zeros((), jnp.result_type(float))
        point = self.tradeoff._point(zero)
        c = 0.5 * jnp.exp(point.log_rest.estimate)
        return c, jnp.exp(point.log_delta.estimate)

    def _start(self, r: Array) -> tuple[Array, Array]:
        """Log s_0 and log(1 - s_0)."""
        c, gap = self._middle()
        return jnp.log(c + gap * (0.5 - r)), jnp.log(c + gap * (0.5 + r))

    @_elementwise
    def log_tail(self, y: Float[Array, ""]) -> Float[Array, ""]:
        m, r = cell(y)
        return _iterated(self.tradeoff, *self._start(r), m)

    @_elementwise
    def log_density(self, y: Float[Array, ""]) -> Float[Array, ""]:
        m, r = cell(y)
        log_s, log_rest = self._start(r)

        def body(state: tuple) -> tuple:
            k, logs, total = state
            # At a kink the slope that belongs to the right limit in y.
            odds = logs[0] - logs[1]
            more = _NEARBY * jnp.exp(jnp.minimum(odds, 0))
            less = _NEARBY * jnp.exp(jnp.minimum(-odds, 0))
            slope = self.tradeoff._log_slope(logs[1] + more, logs[0] - less)
            return k + 1, _next(self.tradeoff, *logs), total + slope

        start = jnp.zeros_like(m), (log_s, log_rest), jnp.log(self._middle()[1])
        state = jax.lax.while_loop(_unfinished(m), body, start)
        return jnp.where(jnp.isneginf(state[1][0]), -jnp.inf, state[2])

    @_elementwise
    def tail_point(self, log_s: Float[Array, ""]) -> Float[Array, ""]:
        # S vanishes a step after the place y with S(y) = 1 - f(0), if that is positive.
        last = self.tradeoff._ends()
        log_last, log_other = last.log_end.estimate, last.log_start.estimate
        left = log_last > LOG_HALF  # y < 0
        end = jnp.isneginf(log_s)
        goal = jnp.where(end, jnp.where(left, log_other, log_last), log_s)
        known = jnp.isfinite(goal)
        y = self._inner_point(jnp.where(known, goal, LOG_HALF))
        y = jnp.where(end, 1 + jnp.where(left, -y, y), y)
        everything = left & jnp.isneginf(log_other)  # f(0) = 0
        return jnp.where(known, y, jnp.where(everything, 0.5, jnp.inf))

    def _inner_point(self, log_s: Array) -> Array:
        """The y >= 0 with log S(y) = log_s, finite."""
        fixed, given = stop_gradient((self, log_s))
        y = fixed._search(given)
        found = jnp.isfinite(y)
        args = self, jnp.where(found, log_s, LOG_HALF)
        root = implicit_root(_residual, jnp.where(found, y, 0.0), args, ())
        return jnp.where(found, root, y)

    def _search(self, log_s: Array) -> Array:
        """Undoes h, s <- 1 - f(s), until s is in [c, 1 - c]."""
        c, gap = self._middle()
        log_c = jnp.log(c)

        def undone(state: tuple) -> Array:
            return jnp.isfinite(state[1]) & (state[1] < log_c)

        def body(state: tuple) -> tuple:
            k, log_s, log_rest = state
            found = rates_at(self.tradeoff, log_s, log_rest)
            return k + 1, found.log_tpr.estimate, found.log_beta.estimate

        start = (jnp.zeros_like(log_s), log_s, safe_log(-jnp.expm1(log_s)))
        k, log_s, _ = jax.lax.while_loop(undone, body, start)
        return jnp.where(jnp.isneginf(log_s), jnp.inf, k + (0.5 - jnp.exp(log_s)) / gap)

    def end(self):
        return self.tail_point(jnp.full((), -jnp.inf, jnp.result_type(float)))

    def variance(self):
        return 4 * self._mean_of_tail(lambda y: y)

    def characteristic_function(self, t):
        one = lambda t: 1 - 2 * t * self._mean_of_tail(lambda y: jnp.sin(t * y))
        return jnp.vectorize(one)(t)

    def _breaks(self) -> Float[Array, " b"]:
        """Offsets in a cell at which S may have kinks, and its ends.

        One for each kink of f: from there on they are the same in every cell.
        """
        knots = getattr(self.tradeoff, "knots", None)
        if isinstance(self.tradeoff, PiecewiseLinear):
            knots = self.tradeoff._knots()
        half = 0.5 * jnp.ones(1)
        if isinstance(self.tradeoff, Laplace):
            logs = jnp.stack([LOG_HALF - as_float(self.tradeoff.mu), LOG_HALF + 0.0])
        elif knots is not None:
            logs = jnp.concatenate([knots.log_alpha, knots.log_tnr])
        else:
            return jnp.concatenate([-half, jnp.zeros(1), half])
        inside = jnp.isfinite(logs) & (logs <= LOG_HALF)
        places = self.tail_point(jnp.where(inside, logs, LOG_HALF))
        offsets = jnp.where(jnp.isfinite(places), cell(places)[1], 0.0)
        # A kink of f at 1 - alpha moves S at alpha, and its mirror image S at beta.
        offsets = jnp.concatenate([offsets, -offsets])
        return jnp.sort(jnp.concatenate([-half, jnp.zeros(1), offsets, half]))

    def _mean_of_tail(self, weight: Callable[[Array], Array]) -> Array:
        """The integral of weight(y) S(y) over y >= 0, cell by cell."""
        offsets, widths = between(stop_gradient(self._breaks()), _ORDER, _PANELS)
        log_s, log_rest = self._start(offsets)
        right = jnp.where(offsets > 0, widths, 0.0)
        first = jnp.sum(right * weight(offsets) * jnp.exp(log_s))
        step = jax.vmap(lambda a, b: _next(self.tradeoff, a, b))

        def body(state: tuple) -> tuple:
            m, logs, total, _ = state
            logs = step(*logs)
            tail = jnp.exp(logs[0])
            added = jnp.sum(widths * weight(m + offsets) * tail)
            return m + 1, logs, total + added, (m + 1) * jnp.max(tail)

        # Tails fall at least as a geometric sequence where they are small.
        going = lambda state: (state[3] > _LEFT) & (state[0] < _LAST)
        start = jnp.ones(()), (log_s, log_rest), first, jnp.ones(())
        _, _, total, left = jax.lax.while_loop(going, body, start)
        return jnp.where(left > _LEFT, jnp.nan, total)

    def cdf_on_lattice(self, start, length):
        # The survival function on a lattice is the orbit of one number.
        first = stop_gradient(jnp.clip(jnp.ceil(-start), 0, length))
        right = self._orbit(start + first, length)
        left = self._orbit(-(start + first - 1), length)
        j = jnp.arange(length)
        first = first.astype(j.dtype)
        right = 1 - right[jnp.clip(j - first, 0, length - 1)]
        return jnp.where(j < first, left[jnp.clip(first - 1 - j, 0, length - 1)], right)

    def _orbit(self, y: Array, length: int) -> Array:
        """S(y), S(y + 1), ... for y >= 0 (for y < 0 anything: it is not used)."""
        y = jnp.where(y < 0, 0.0, y)
        m, r = cell(y)
        log_s = _iterated(self.tradeoff, *self._start(r), m)

        def body(logs: tuple, _: None) -> tuple[tuple, Array]:
            return _next(self.tradeoff, *logs), logs[0]

        start = log_s, jnp.log1p(-jnp.exp(log_s))
        return jnp.exp(jax.lax.scan(body, start, None, length=length)[1])


def _residual(y: Array, args: tuple, aux: tuple[()]) -> Array:
    law, log_s = args
    return law.log_tail(y) - log_s


def _next(tradeoff: AbstractTradeOff, log_s: Array, log_rest: Array) -> tuple:
    """Log h(s) and log(1 - h(s))."""
    gone = jnp.isneginf(log_s)
    safe = jnp.where(gone, LOG_HALF, log_s), jnp.where(gone, LOG_HALF, log_rest)
    found = tradeoff._rates(safe[1], safe[0])
    return (
        jnp.where(gone, -jnp.inf, found.log_beta.estimate),
        jnp.where(gone, 0.0, found.log_tpr.estimate),
    )


def _unfinished(steps: Array):
    """Stops at the end of the support as well."""
    return lambda state: (state[0] < steps) & jnp.isfinite(state[1][0])


@jax.custom_jvp
def _iterated(tradeoff, log_s: Array, log_rest: Array, steps: Array) -> Array:
    """Log of h applied `steps` times to s."""

    def body(state: tuple) -> tuple:
        k, logs = state
        return k + 1, _next(tradeoff, *logs)

    start = jnp.zeros_like(steps), (log_s, log_rest)
    return jax.lax.while_loop(_unfinished(steps), body, start)[1][0]


@_iterated.defjvp
def _iterated_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    tradeoff, log_s, log_rest, steps = primals

    def step(tradeoff, log_s: Array, log_rest: Array) -> tuple[Array, Array]:
        # The complement moves with s, whatever digits it has.
        moved = log_s - stop_gradient(log_s)
        ratio = stop_gradient(jnp.exp(log_s - log_rest))
        return _next(tradeoff, log_s, stop_gradient(log_rest) - ratio * moved)

    slopes = jax.value_and_grad(step, argnums=(0, 1), has_aux=True)

    def body(state: tuple) -> tuple:
        k, logs, gradient, product = state
        (value, rest), (own, inner) = slopes(tradeoff, *logs)
        gradient = jax.tree.map(lambda g, o: inner * g + o, gradient, own)
        return k + 1, (value, rest), gradient, product * inner

    start = (
        *(jnp.zeros_like(steps), (log_s, log_rest)),
        *(jax.tree.map(jnp.zeros_like, tradeoff), jnp.ones_like(log_s)),
    )
    # The start and the derivative of the loop's input are all that is linear.
    state = jax.lax.while_loop(_unfinished(steps), body, start)
    _, (value, _), gradient, product = state
    parts = jax.tree.map(jnp.vdot, gradient, tangents[0])
    tangent = sum(jax.tree.leaves(parts), start=product * tangents[1])
    return value, jnp.where(jnp.isfinite(value), tangent, 0.0)
