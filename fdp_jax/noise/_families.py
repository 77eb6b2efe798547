"""Canonical noise in closed form: the construction, and log-concave laws.

The construction (Awan and Vadhan 2023, Definition 3.4) is uniform on [-1/2, 1/2], with
S(-1/2) = 1 - c and S(1/2) = c at the fixed point c of f, and continues by

    S(x + 1) = h(S(x)),   h(s) = f(1 - s).

With m the integer nearest to x and r = x - m, S(x) is h applied m times to
s_0 = c + (1 - 2 c) (1/2 - r).
"""

import abc
import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike

from .._internal._logs import LOG_HALF, LOG_SQRT_2PI, log_add
from .._internal._special import (
    log1mexp,
    log_ndtr,
    ndtri_from_logs,
    safe_log,
)
from ..mechanisms import (
    as_float,
)
from ..tradeoff import AbstractLocation, AbstractTradeOff, Gaussian, Laplace, Logistic
from ._recursion import FASTEST, CurveLaw
from .law import AbstractLaw, cell

_ROOT_2 = math.sqrt(2.0)
_TINY_EPSILON = 1e-14
_MOST_CELLS = 2.0**50


class AbstractShiftLaw(AbstractLaw):
    """The law of scale 1 / mu of a location family, its log-concave canonical noise."""

    mu: eqx.AbstractVar[ArrayLike]
    family: ClassVar[type[AbstractLocation]]
    """The trade-off functions of its shifts."""

    @abc.abstractmethod
    def place(self, log_s: Array, log_rest: Array) -> Array:
        """The x with log S(x) = log_s and log(1 - S(x)) = log_rest, both finite."""

    @abc.abstractmethod
    def beside(self, x: Array) -> Array:
        """The probability from 0 to x, negative for x < 0."""

    def tail_point(self, log_s):
        gone = jnp.isneginf(log_s)
        log_s = jnp.where(gone, LOG_HALF, log_s)
        y = self.place(log_s, log1mexp(-log_s))
        return jnp.where(gone, jnp.inf, jnp.where(y < 0, 0.0, y))


class NormalLaw(AbstractShiftLaw):
    """N(0, 1 / mu^2), the log-concave canonical noise of G_mu."""

    mu: ArrayLike
    family = Gaussian

    def log_tail(self, y):
        return log_ndtr(-as_float(self.mu) * y)

    def log_density(self, y):
        mu = as_float(self.mu)
        return jnp.log(mu) - 0.5 * jnp.square(mu * y) - LOG_SQRT_2PI

    def place(self, log_s, log_rest):
        return -ndtri_from_logs(log_s, log_rest) / as_float(self.mu)

    def beside(self, x):
        return 0.5 * jax.scipy.special.erf(as_float(self.mu) * x / _ROOT_2)

    def variance(self):
        return as_float(self.mu) ** -2.0

    def characteristic_function(self, t):
        return jnp.exp(-0.5 * jnp.square(t / as_float(self.mu)))


class DoubleExponentialLaw(AbstractShiftLaw):
    """Laplace noise of scale 1 / mu, the log-concave canonical noise of L_mu."""

    mu: ArrayLike
    family = Laplace

    def log_tail(self, y):
        return LOG_HALF - as_float(self.mu) * y

    def log_density(self, y):
        return jnp.log(0.5 * as_float(self.mu)) - as_float(self.mu) * y

    def place(self, log_s, log_rest):
        right = log_s <= log_rest
        gap = jnp.where(right, LOG_HALF - log_s, log_rest - LOG_HALF)
        return gap / as_float(self.mu)

    def beside(self, x):
        far = -0.5 * jnp.expm1(-as_float(self.mu) * jnp.where(x < 0, -x, x))
        return jnp.where(x < 0, -far, far)

    def variance(self):
        return 2 * as_float(self.mu) ** -2.0

    def characteristic_function(self, t):
        return 1 / (1 + jnp.square(t / as_float(self.mu)))


class LogisticLaw(AbstractShiftLaw):
    """Logistic noise of scale 1 / mu, its own log-concave canonical noise."""

    mu: ArrayLike
    family = Logistic

    def log_tail(self, y):
        return -jax.nn.softplus(as_float(self.mu) * y)

    def log_density(self, y):
        mu = as_float(self.mu)
        return jnp.log(mu) - mu * y - 2 * jax.nn.softplus(-mu * y)

    def place(self, log_s, log_rest):
        return (log_rest - log_s) / as_float(self.mu)

    def beside(self, x):
        return 0.5 * jnp.tanh(0.5 * as_float(self.mu) * x)

    def variance(self):
        return jnp.square(jnp.pi / as_float(self.mu)) / 3

    def characteristic_function(self, t):
        x = jnp.abs(jnp.pi * t / as_float(self.mu))
        small = x < 1e-4
        safe = jnp.where(small, 1.0, x)
        far = 2 * safe * jnp.exp(-safe) / -jnp.expm1(-2 * safe)
        return jnp.where(small, 1 - jnp.square(x) / 6, far)


def shift_law(f: AbstractTradeOff) -> AbstractShiftLaw | None:
    """The law of which f is the trade-off function of a shift by 1, if it is known."""
    for kind in (NormalLaw, DoubleExponentialLaw, LogisticLaw):
        if isinstance(f, kind.family):
            return kind(f.mu)
    return None


class ShiftConstruction(AbstractLaw):
    """The construction for the f of a location family: h(S_0(x)) = S_0(x + 1).

    In cell m it is the law's own middle, spread evenly over the cell, moved by m.
    """

    law: AbstractShiftLaw
    fastest = FASTEST

    def _gap(self) -> Array:
        """1 - 2 c."""
        return 2 * self.law.beside(as_float(0.5))

    def _center(self, r: Array) -> Array:
        """The x with S_0(x) = s_0."""
        log_c, gap = self.law.log_tail(as_float(0.5)), self._gap()
        sides = _log_sum(log_c, gap * (0.5 - r)), _log_sum(log_c, gap * (0.5 + r))
        return self.law.place(*sides)

    def log_tail(self, y):
        m, r = cell(y)
        return self.law.log_tail(self._center(r) + m)

    def log_density(self, y):
        m, r = cell(y)
        center = self._center(r)
        change = self.law.log_pdf(center + m) - self.law.log_pdf(center)
        return jnp.log(self._gap()) + change

    def tail_point(self, log_s):
        gone = jnp.isneginf(log_s)
        x = self.law.tail_point(jnp.where(gone, LOG_HALF, log_s))
        k = stop_gradient(jnp.maximum(jnp.ceil(x - 0.5), 0.0))
        return jnp.where(gone, jnp.inf, k + self.law.beside(x - k) / self._gap())

    def variance(self):
        return CurveLaw(self.law.family(self.law.mu)).variance()

    def characteristic_function(self, t):
        return CurveLaw(self.law.family(self.law.mu)).characteristic_function(t)


class TulapLaw(AbstractLaw):
    """The construction for f_{eps,delta}: h(s) = e^-eps (s - delta) where it is used.

    S(x) = e^{-m eps} (s_0 - delta A_m), A_m = 1 + e^eps + ... + e^{(m-1) eps}: a
    density that is constant on [m - 1/2, m + 1/2] and falls by e^-eps from cell to
    cell until the support ends.  With eps = 0 it is uniform on [-1, 1] / (2 delta).
    """

    epsilon: ArrayLike
    delta: ArrayLike

    def _numbers(self) -> tuple[Array, Array, Array, Array]:
        """Eps, delta, c and 1 - 2 c."""
        epsilon, delta = as_float(self.epsilon), as_float(self.delta)
        c = (1 - delta) * jax.nn.sigmoid(-epsilon)
        return epsilon, delta, c, delta + (1 - delta) * jnp.tanh(0.5 * epsilon)

    def _growth(self, m: Array) -> Array:
        """A_m = (e^{m eps} - 1) / (e^eps - 1)."""
        epsilon = as_float(self.epsilon)
        small = epsilon < _TINY_EPSILON
        safe = jnp.where(small, 1.0, epsilon)
        grown = jnp.expm1(jnp.minimum(m * safe, 700.0)) / jnp.expm1(safe)
        return jnp.where(small, m * (1 + 0.5 * (m - 1) * epsilon), grown)

    def log_tail(self, y):
        epsilon, delta, c, gap = self._numbers()
        m, r = cell(y)
        # Counts beyond 1e15 belong to tails that are numbers only for delta = 0.
        left = c + gap * (0.5 - r) - delta * self._growth(m)
        return safe_log(left) - m * epsilon

    def log_density(self, y):
        epsilon, _, _, gap = self._numbers()
        inside = y <= stop_gradient(self.end())
        return jnp.where(inside, jnp.log(gap) - cell(y)[0] * epsilon, -jnp.inf)

    def tail_point(self, log_s):
        _, delta, c, gap = self._numbers()
        gone = jnp.isneginf(log_s) & (delta <= 0)
        log_s = jnp.where(gone, LOG_HALF, log_s)
        k = stop_gradient(self._steps(log_s))
        for move in (1.0, -1.0):  # rounding may have left the neighboring cell
            start = stop_gradient(self._moved(log_s, k))
            k = k + jnp.where(start < c, 1.0, 0.0) * (move > 0)
            k = k - jnp.where((start > 1 - c) & (k > 0), 1.0, 0.0) * (move < 0)
        y = k + (0.5 - self._moved(log_s, k)) / gap
        return jnp.where(gone, jnp.inf, y)

    def _steps(self, log_s: Array) -> Array:
        """Number of times that h has to be undone to reach [c, 1 - c]."""
        epsilon, delta, c, _ = self._numbers()
        zero = epsilon <= 0
        safe = jnp.where(zero, 1.0, epsilon)
        # log(e^eps - 1); a rounding error in k is mended by the caller.
        log_rate = jnp.where(safe > 30, safe, jnp.log(jnp.expm1(jnp.minimum(safe, 30))))
        goal = jnp.logaddexp(safe_log(c) + log_rate, safe_log(delta))
        here = jnp.logaddexp(log_s + log_rate, safe_log(delta))
        # Where those two almost agree, through their ratio less 1.
        s = jnp.exp(log_s)
        rate = jnp.where(zero, 1.0, jnp.expm1(jnp.minimum(safe, 1.0)) / safe)
        ratio = (c - s) / jnp.maximum(delta / rate + s * epsilon, 1e-300)
        grown = epsilon * ratio
        close = (grown < 1) & (epsilon < 1)
        inner = jnp.where(close & (grown > 1e-12), grown, 1.0)
        near = ratio * jnp.where(grown > 1e-12, jnp.log1p(inner) / inner, 1.0)
        return jnp.maximum(jnp.ceil(jnp.where(close, near, (goal - here) / safe)), 0.0)

    def _moved(self, log_s: Array, k: Array) -> Array:
        """S at a place k to the left."""
        epsilon, delta, _, _ = self._numbers()
        return jnp.exp(log_s + k * epsilon) + delta * self._growth(k)

    def end(self):
        return self.tail_point(jnp.asarray(-jnp.inf, as_float(self.delta).dtype))

    def _last_cell(self) -> tuple[Array, Array]:
        """The cell in which the support ends, and how much of it belongs to it."""
        end = self.end()
        bounded = end < _MOST_CELLS
        last, offset = cell(jnp.where(bounded, end, _MOST_CELLS))
        return last, jnp.where(bounded, offset + 0.5, 0.0)

    def variance(self):
        epsilon, _, _, gap = self._numbers()
        last, width = self._last_cell()
        ratio = jnp.exp(-epsilon)
        zeroth, _, second = geometric_sums(ratio, last - 1)
        left = last - 0.5
        part = width * (left * left + left * width + width * width / 3)
        part = jnp.where(width > 0, jnp.exp(-last * epsilon) * part, 0.0)
        return 2 * gap * (1 / 24 + second + zeroth / 12 + part)

    def characteristic_function(self, t):
        return jnp.vectorize(self._transform)(t)

    def _transform(self, t: Array) -> Array:
        epsilon, _, _, gap = self._numbers()
        last, width = self._last_cell()
        ratio = jnp.exp(jax.lax.complex(-epsilon, t))
        zeroth, _, _ = geometric_sums(ratio, last - 1)
        middle = jnp.where(width > 0, last - 0.5 + 0.5 * width, 0.0)
        turn = 0.5 * t / jnp.pi
        part = width * jnp.sinc(turn * width) * jnp.cos(t * middle)
        part = jnp.where(width > 0, jnp.exp(-last * epsilon) * part, 0.0)
        return gap * (jnp.sinc(turn) * (1 + 2 * zeroth.real) + 2 * part)


def _log_sum(log_c: Array, x: Array) -> Array:
    """log(c + x), also for c that is zero as a number."""
    c = jnp.exp(log_c)
    usual = c > 1e-290
    value = jnp.log(jnp.where(usual, c + x, 1.0))
    return jnp.where(usual, value, log_add(log_c, safe_log(x)))


def geometric_sums(
    ratio: Array, count: Array, bits: int = 51
) -> tuple[Array, Array, Array]:
    """Sums of z^m, m z^m and m^2 z^m for m = 1, ..., count, by doubling.

    Nothing but products and sums of terms: no cancellation where z is close to 1.
    """
    count = stop_gradient(jnp.clip(count, 0, 2.0**bits - 1)).astype(jnp.int64)
    one = jnp.ones_like(ratio)
    real = jnp.real(one)

    def double(state: tuple, bit: Array) -> tuple[tuple, None]:
        n, power, s0, s1, s2 = state
        t0, t1, t2 = s0, s1 + n * s0, s2 + 2 * n * s1 + n * n * s0
        s0, s1, s2 = s0 + power * t0, s1 + power * t1, s2 + power * t2
        n, power = 2 * n, power * power
        more = (count >> bit) & 1
        following = jnp.where(more, power * ratio, 0.0)
        power = jnp.where(more, power * ratio, power)
        n = n + more
        state = n, power, s0 + following, s1 + n * following, s2 + n * n * following
        return state, None

    start = (0.0 * real, one, 0.0 * one, 0.0 * one, 0.0 * one)
    state = jax.lax.scan(double, start, jnp.arange(bits - 1, -1, -1))[0]
    return state[2:]
