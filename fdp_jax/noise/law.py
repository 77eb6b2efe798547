"""What every canonical noise law can do, at unit sensitivity."""

import abc
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._internal._logs import LOG_HALF
from .._internal._record import Record
from .._internal._special import log1mexp, safe_log
from ..mechanisms import as_float


class AbstractLaw(Record):
    """A continuous law, symmetric about 0, by the right half of its survival function.

    The survival function S = 1 - F is what has digits in the tail: F(-x) = S(x), and
    the quantile at u is minus the inverse of S at u.  All methods work on arrays.
    """

    fastest: ClassVar[float] = float("inf")
    """The largest frequency for which there is a characteristic function."""

    @abc.abstractmethod
    def log_tail(self, y: Float[Array, "..."]) -> Float[Array, "..."]:
        """Log S(y) for finite y >= 0."""

    @abc.abstractmethod
    def log_density(self, y: Float[Array, "..."]) -> Float[Array, "..."]:
        """Log of the density at finite y >= 0."""

    @abc.abstractmethod
    def tail_point(self, log_s: Float[Array, "..."]) -> Float[Array, "..."]:
        """The y >= 0 with log S(y) = log_s <= log(1/2); at -inf where S vanishes."""

    def end(self) -> Float[Array, ""]:
        """The least y with S(y) = 0, maybe inf."""
        return as_float(jnp.inf)

    @abc.abstractmethod
    def variance(self) -> Float[Array, ""]:
        """The second moment."""

    @abc.abstractmethod
    def characteristic_function(self, t: Float[Array, "..."]) -> Float[Array, "..."]:
        """E cos(t N), real because the law is symmetric."""

    # ------------------------------------------------------------- the whole line

    def log_sf(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Log S at any real x."""
        far, near = jnp.isinf(x), jnp.where(jnp.isinf(x), 0.0, x)
        tail = self.log_tail(jnp.where(near < 0, -near, near))
        value = jnp.where(near < 0, log1mexp(-tail), tail)
        return jnp.where(far, jnp.where(x > 0, -jnp.inf, 0.0), value)

    def sf(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """S at any real x."""
        return jnp.exp(self.log_sf(x))

    def cdf(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """F at any real x."""
        return self.sf(-x)

    def log_pdf(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Log of the density at any real x."""
        far = jnp.isinf(x)
        value = self.log_density(jnp.abs(jnp.where(far, 0.0, x)))
        return jnp.where(far, -jnp.inf, value)

    def isf(self, s: Float[Array, "..."]) -> Float[Array, "..."]:
        """The x with S(x) = s; the ends of the support at 0 and 1."""
        upper = s > 0.5
        log_s = safe_log(jnp.where(upper, 1 - s, s))
        # Not a minimum, which would halve the derivative at s = 1/2.
        y = self.tail_point(jnp.where(log_s > LOG_HALF, LOG_HALF, log_s))
        return jnp.where(upper, -y, y)

    def cdf_on_lattice(self, start: Array, length: int) -> Float[Array, " length"]:
        """F(start + j) for j = 0, ..., length - 1."""
        return self.cdf(start + jnp.arange(length, dtype=start.dtype))


def cell(y: Array) -> tuple[Array, Array]:
    """The nearest integer m (half rounds up) and the offset y - m in [-1/2, 1/2)."""
    m = stop_gradient(jnp.floor(y + 0.5))
    return m, y - m


def sample(law: AbstractLaw, key: Any, shape: tuple[int, ...]) -> Array:
    """Draws by inversion: one random word is a sign and 53 bits of the tail."""
    bits = jax.random.bits(key, shape, jnp.uint64)
    uniform = ((bits >> jnp.uint64(11)).astype(jnp.float64) + 0.5) * 2.0**-53
    y = law.tail_point(jnp.log(uniform) + LOG_HALF)
    return jnp.where(bits & jnp.uint64(1), -y, y)
