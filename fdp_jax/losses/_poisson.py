"""Privacy loss of two Poisson counts: a multiple of the count, minus a constant."""

import dataclasses
import math
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Float

from .._internal._arithmetic import ULP
from .._internal._counts import deviance, log_poisson
from .._internal._divided import exp_divided
from .._internal._special import log1p
from ._analytic import CharacteristicBlock, relative
from ._atomic import AtomicLoss
from ._base import Jumps, outward
from ._cells import Cells
from ._closed_transform import ClosedTransformLoss

OUTPUTS = 4096
"""Counts that are looked at; enough for tails of e^-700 up to means about 2000."""
_DEEP = 710.0
_LARGEST = 700.0
"""Exponents from which on e^x may overflow."""
_HIGHEST = 299.0
"""Logarithms beyond which moments count as infinite."""


def normalized_jumps(
    jumps: Float[Array, "..."], log_rates: Float[Array, "..."], order: ArrayLike
) -> Float[Array, "..."]:
    """(e^{w x} - 1 - w (e^x - 1)) / (w (w - 1)) times the rates.

    The second divided difference is positive.  Infinite where it might exceed what
    `exp_divided` is good for.
    """
    value = jnp.square(jumps) * exp_divided(jumps, order * jumps, log_rates)
    top = log_rates + jnp.maximum(jnp.maximum(jumps, order * jumps), 0)
    return jnp.where(top > _HIGHEST, jnp.inf, value)


class PoissonLoss(ClosedTransformLoss):
    """P = Poisson(rate_without), Q = Poisson(rate_with), both greater than 0.

    X = N x - (rate_with - rate_without) with x = log(rate_with / rate_without), so

        Lambda(w) = rate_without (e^{wx} - 1 - w (e^x - 1))
                  = w (w - 1) rate_without x^2 exp[0, x, wx].

    The sum of copies is a Poisson pair again, for every real number of them.
    """

    rate_without: Float[Array, ""]
    rate_with: Float[Array, ""]
    cut: bool = eqx.field(static=True, default=True)
    """Whether far counts are left out, as `atomic` does."""
    size: Float[Array, ""] | None = None
    """x, where it is known without the rounding of the rates."""
    change: Float[Array, ""] | None = None
    """rate_with - rate_without, likewise."""

    symmetric: ClassVar[bool] = False
    fractional: ClassVar[bool] = True
    decays: ClassVar[bool] = False

    @classmethod
    def of_jump(cls, jump: Float[Array, ""], rate: Float[Array, ""]) -> "PoissonLoss":
        """Jumps of one size, as many as a Poisson variable of mean `rate` under P."""
        change = rate * jnp.expm1(jump)
        return cls(rate, rate * jnp.exp(jump), size=jump, change=change)

    @classmethod
    def of_change(
        cls, rate: Float[Array, ""], change: Float[Array, ""]
    ) -> "PoissonLoss":
        """Rates that differ by a known number."""
        pair = cls(rate, rate + change, change=change)
        return dataclasses.replace(pair, size=pair.jump())

    def powered(self, count: Float[Array, ""]) -> "PoissonLoss":
        rates = count * self.rate_without, count * self.rate_with
        change = None if self.change is None else count * self.change
        return PoissonLoss(*rates, self.cut, self.size, change)

    def uncut(self) -> "PoissonLoss":
        return dataclasses.replace(self, cut=False)

    def gap(self) -> Float[Array, ""]:
        """rate_with - rate_without."""
        if self.change is None:
            return self.rate_with - self.rate_without
        return self.change

    def jump(self) -> Float[Array, ""]:
        """The loss of one more count."""
        if self.size is not None:
            return self.size
        rise = self.gap() / self.rate_without
        small = jnp.abs(rise) < 0.5
        far = jnp.log(self.rate_with) - jnp.log(self.rate_without)
        return jnp.where(small, log1p(jnp.where(small, rise, 0.0)), far)

    def normalized(self, order: Float[Array, "..."]) -> Float[Array, "..."]:
        """Lambda(w) / (w (w - 1)); inf where that is beyond e^299 or so."""
        return normalized_jumps(self.jump(), jnp.log(self.rate_without), order)

    def _log_moment(self, order: Float[Array, "..."]) -> Float[Array, "..."]:
        """Lambda, where it is known, or else an upper bound."""
        product, ratio = order * (order - 1), self.normalized(order)
        between = jnp.isinf(ratio) & (product <= 0)
        safe = jnp.where(between, 0.0, ratio)
        return jnp.where(between, self._highest(order), product * safe)

    def _highest(self, order: Float[Array, "..."]) -> Float[Array, "..."]:
        """An upper bound of Lambda at orders between 0 and 1, for rates beyond e^299.

        Half of the plain formula, where its terms do not cancel: far below any
        logarithm of a probability.
        """
        rates = self.rate_without, self.rate_with
        exponent = order * self.jump() + jnp.log(self.rate_without)
        tilted = jnp.exp(jnp.minimum(exponent, _LARGEST))
        drift = (1 - order) * rates[0] + order * rates[1]
        apart = stop_gradient(tilted) < 0.25 * stop_gradient(drift)
        apart = apart & (stop_gradient(exponent) < _LARGEST)
        return jnp.where(apart, 0.5 * (tilted - drift), 0.0)

    def _tilted_rate(self, order: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.exp(order * self.jump() + jnp.log(self.rate_without))

    def moments(self, order):
        jump, rate = self.jump(), self._tilted_rate(order)
        slope = jump * rate - self.gap()
        return self._log_moment(order), slope, jnp.square(jump) * rate

    # ------------------------------------------------------- for the contour engine

    def log_mgf(self, plan):
        value = self._log_moment(plan.order)
        return value, stop_gradient(32 * ULP * jnp.abs(value))

    def log_transform(self, plan, tau):
        jump = self.jump()
        scale = self._tilted_rate(plan.order)
        angle = tau * jump
        sine = jnp.sin(0.5 * angle)
        real = -2 * scale * jnp.square(sine)
        # The drift is zero but for its derivative.
        drift = self.moments(plan.order)[1] - plan.center
        imag = scale * (jnp.sin(angle) - angle) + tau * drift
        # The cosine and the sine move with the angle's rounding, all with the scale's.
        exponent = 6 + jnp.abs(plan.order * jump)
        size = 2 * exponent * jnp.square(sine) + (1 + exponent) * jnp.abs(angle)
        moved = jnp.abs(plan.center) + jnp.abs(self.gap())
        error = 4 * ULP * (scale * size + tau * moved)
        return CharacteristicBlock(real, imag, relative(error))

    # ----------------------------------------------------------- for the other engines

    def cells(self, low, high):
        return Cells.none(low, high)

    def atomic(self) -> AtomicLoss:
        """The loss by its point masses, with a bound on the counts that are left out.

        Left out are counts far above and far below both means.  On the side where the
        loss is positive they count as infinite under Q, on the other one under P;
        at thresholds eps >= 0 the other member of the pair does not matter there.
        """
        first = self._first()
        counts = first + jnp.arange(OUTPUTS, dtype=first.dtype)
        log_p, log_q = (
            log_poisson(counts, rate) for rate in (self.rate_without, self.rate_with)
        )
        missing = self._missing(first)
        # A loss is what is left of the gap and of a part of about that size.
        error = 4 * ULP * stop_gradient(jnp.abs(self.gap()))
        return AtomicLoss(
            log_p, log_q, missing=missing, loss=self.losses(), loss_error=error
        )

    def losses(self) -> Float[Array, " n"]:
        """Losses of the counts that `atomic` looks at."""
        first = self._first()
        counts = first + jnp.arange(OUTPUTS, dtype=first.dtype)
        return counts * self.jump() - self.gap()

    def _missing(self, first: Array) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Bounds of what `atomic` leaves out under Q and P, where it begins at `first`.

        Nothing is lost but rounding where the chance is below the smallest number.
        """
        last = first + (OUTPUTS - 1)
        low = jnp.where(self._rises(), self.rate_without, self.rate_with)
        high = jnp.where(self._rises(), self.rate_with, self.rate_without)
        none = jnp.asarray(-jnp.inf, first.dtype)
        below = jnp.where(first > 0, -deviance(jnp.maximum(first - 1, 0), low), none)
        above = -deviance(jnp.maximum(last + 1, high), high)
        upper = jnp.where(self._rises(), above, below)
        lower = jnp.where(self._rises(), below, above)
        return stop_gradient((upper, lower))

    def _rises(self) -> Array:
        return self.rate_with >= self.rate_without

    def _first(self) -> Float[Array, ""]:
        """The least count looked at: both tails are cut at about e^-level.

        By P(N <= m - t) <= e^{-t^2 / (2 m)} and P(N >= m + t) <= e^{-L} with
        t = 2 L / 3 + sqrt(2 L m), so level = s^2 solves a quadratic equation.
        """
        rates = stop_gradient((self.rate_without, self.rate_with))
        low, high = jnp.minimum(*rates), jnp.maximum(*rates)
        linear = math.sqrt(2) * (jnp.sqrt(low) + jnp.sqrt(high))
        spare = jnp.maximum(OUTPUTS - 2 - (high - low), 0.0)
        root = jnp.sqrt(jnp.square(linear) + 8 / 3 * spare)
        level = jnp.square(2 * spare / (linear + root))
        reach = jnp.sqrt(2 * jnp.minimum(level, _DEEP) * low)
        return jnp.maximum(jnp.floor(low - reach), 0.0)

    def atoms(self):
        return self.atomic().atoms()

    def loss_range(self):
        # At no count at all, and no bound on the other side.
        none = -self.gap()
        infinity = jnp.full_like(none, jnp.inf)
        least, most = outward(none, none, units=2)
        return (
            jnp.where(none > 0, -infinity, least),
            jnp.where(none < 0, infinity, most),
        )

    def log_infinite_masses(self):
        """Bounds of what `atomic` leaves out; the losses themselves are all finite."""
        if not self.cut:
            return super().log_infinite_masses()
        return self._missing(self._first())

    def log_truncated_masses(self):
        return self.log_infinite_masses()

    in_closed_form: ClassVar[str] = "one kind"

    @classmethod
    def closed_form(cls, terms, counts, sign):
        (term,), (count,) = terms, counts
        return term.powered(count).atomic().form(sign)

    def normalized_log_moment(self, order):
        return self.normalized(order)

    def log_moment_limit(self, sign):
        return jnp.where(sign * self.jump() > 0, jnp.inf, 0.0)

    def jumps_and_variance(self):
        return Jumps(jnp.zeros(()), self.jump()[None], self.rate_without[None])
