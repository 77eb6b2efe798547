"""Observations that are rounded: what a partition of the outputs leaves to see."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks
from .._internal._calls import explained
from .._internal._special import log_ndtr, ndtri_from_logs
from .._internal._tolerances import LOG_DIFFERENCE, QUANTIZED_POWER
from ..curves import AbstractGuarantee, Bound
from ..curves.logs import (
    Point,
    Rates,
    closed,
    exact,
    log_add,
    log_subtract,
    no_ends,
    plus,
    widened,
)
from ..engines import Interval
from ..mechanisms import (
    as_float,
    at_full_precision,
)
from ._base import AbstractTradeOff
from ._families import Gaussian, Identity
from ._symmetric import riskier
from ._views import TradeOff

_FARTHEST = 1e6


@explained(alpha=_checks.vector_of(_checks.probability))
def quantized(guarantee: AbstractGuarantee, *, alpha: Any) -> TradeOff:
    """A guarantee, if only an interval of the likelihood ratio is told.

    Where the likelihood ratio increases with a real output (noise with a log-concave
    density, an exponential family), intervals of the output are intervals of the ratio:
    the tests "output above the k-th cut" stay possible, and all others are mixtures of
    them.  So the curve is the chord of f through the points alpha_k = P(output above
    the k-th cut) and lies above f.

    Args:
        guarantee: A trade-off function, or one direction of a mechanism.
        alpha: Probabilities without the record to lie above the cuts, a vector in
            [0, 1], known.

    Returns:
        The exact curve through certified lower bounds of f.

    Guarantee:
        Lower bound.  Only if the cuts do not depend on the data: with cuts at an
        unknown distance from the true value the worst distance counts, and over all
        distances that is f itself.

    Raises:
        ValueError: If alpha is outside [0, 1].

    Example:
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.quantized(fdp.tradeoff.Gaussian(1.0), alpha=[0.1, 0.5])
        >>> print(f"{f.beta(alpha=0.1):.4f} {f.beta(alpha=0.2):.4f}")
        0.6109 0.4978
    """
    beta = guarantee.beta(alpha=alpha, bound=Bound.PESSIMISTIC)
    return TradeOff.from_error_rates(alpha, beta)


class QuantizedGaussian(AbstractTradeOff):
    """G_mu if only the bin [offset + k width, offset + (k + 1) width) is told.

    P = N(0, 1), Q = N(mu, 1) and k any integer.  The vertices lie on G_mu, at
    alpha_k = Phi(-(offset + k width)), and f is linear between them: it is above G_mu
    and tends to it as the width falls to 0.

    The bins' offset from the true value must be known: where it may be anything, the
    vertices sweep all of G_mu, the infimum over offsets is G_mu itself, and rounding is
    no gain (`with_unknown_offset`).  A gain is real where the statistic lies on the
    bins' own lattice.

    Args:
        mu: In [0, inf).
        width: Of the bins, in standard deviations of the noise, in (0, inf).
        offset: Of one of the cuts from the mean without the record, any finite number.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.QuantizedGaussian(1.0)
        >>> print(f"{f.beta(alpha=0.3):.6f}")  # G_1(0.3) = 0.317
        0.358655

    References:
        Pandey, Maleki, Kulkarni (2025), (111) to (113), for the width 1.
    """

    mu: Real[ArrayLike, ""] = _checks.field("mu", _checks.nonnegative)
    width: Real[ArrayLike, ""] = _checks.field(
        "width", _checks.finite_positive, default=1.0
    )
    offset: Real[ArrayLike, ""] = _checks.field("offset", _checks.finite, default=0.0)

    @staticmethod
    def with_unknown_offset(mu: Any) -> Gaussian:
        """The infimum over all offsets: G_mu, whatever the width.

        For every alpha some offset has a cut, and so a vertex of f, right there.

        Args:
            mu: In [0, inf).

        Returns:
            The Gaussian trade-off function: rounding does not help.

        Raises:
            ValueError: If it is out of range.
        """
        return Gaussian(mu)

    def _cuts(self, place: Array) -> tuple[Array, Array]:
        """The cuts next to a place, that at it being the left one."""
        width = as_float(self.width)
        offset = lax.rem(as_float(self.offset), width)  # exact, and so are the cuts
        place = jnp.clip(place, -_FARTHEST, _FARTHEST)
        steps = jnp.floor((place - offset) / width)
        # The widest bins end beyond all numbers.
        last = jnp.minimum(offset + (steps + 1) * width, 1e300)
        return offset + steps * width, last

    def _point(self, epsilon):
        # The likelihood ratio is e^eps at eps / mu + mu / 2.
        mu = as_float(self.mu)
        apart = mu > 0
        safe = jnp.where(apart, mu, 1.0)
        first, last = self._cuts(epsilon / safe + 0.5 * safe)
        best = riskier(self._test(epsilon, first), self._test(epsilon, last))
        return riskier(best, Identity()._point(epsilon))

    def _test(self, epsilon: Array, cut: Array) -> Point:
        """Contribution to the profile of the test that rejects above a cut."""
        mu = as_float(self.mu)
        log_alpha, log_tnr = log_ndtr(-cut), log_ndtr(cut)
        log_beta, log_tpr = log_ndtr(cut - mu), log_ndtr(mu - cut)
        delta = _difference(log_tpr, plus(epsilon, log_alpha))
        reverse = _difference(log_tnr, plus(-epsilon, log_beta))
        rest = closed(log_add(log_beta, plus(epsilon, log_alpha)))
        return Point(delta, reverse, rest)

    def _rates(self, log_alpha, log_tnr):
        place = -ndtri_from_logs(log_alpha, log_tnr)
        first, last = self._cuts(place)
        mu = as_float(self.mu)
        # Of the smaller sides: differences of tails, not of their complements.
        right = log_tnr > log_alpha
        tail = lambda x: jnp.where(right, log_ndtr(-x), log_ndtr(x))
        here = jnp.where(right, log_alpha, log_tnr)
        # Either weight by itself: of tiny alpha one is tiny.
        gaps = jnp.expm1(jnp.stack([tail(last), tail(first)]) - here)
        sizes = jnp.abs(gaps)
        # Next to a cut alpha may lie outside of the cell by rounding: it is at the cut.
        inside = (gaps[0] < 0) != (gaps[1] < 0)
        first_is_near = sizes[1] <= sizes[0]
        at_cut = jnp.stack([first_is_near, ~first_is_near]).astype(sizes.dtype)
        total = jnp.sum(sizes, axis=0)
        inside = inside & (total > 0)
        weights = jnp.where(inside, sizes / jnp.where(inside, total, 1.0), at_cut)
        ends = jnp.stack([first, last]) - mu
        logs = jnp.log(jnp.maximum(weights, 1e-300))
        mean = lambda values: log_add(*(logs + values))
        # How much a test's power moves with the last digit of its threshold.
        reach = 1 + jnp.abs(stop_gradient(place)) + stop_gradient(mu)
        reach = jnp.where(jnp.isfinite(reach), reach, 1.0)
        rounding = QUANTIZED_POWER * (1 + 0.1 * jnp.square(reach))
        return Rates(
            widened(closed(mean(log_ndtr(ends))), rounding),
            widened(closed(mean(log_ndtr(-ends))), rounding),
        )

    def _ends(self):
        return no_ends(as_float(self.mu))

    def _log_slope(self, log_alpha, log_tnr):
        first, last = self._cuts(-ndtri_from_logs(log_alpha, log_tnr))
        mu = as_float(self.mu)
        upper = first > 0
        sign = jnp.where(upper, 1.0, -1.0)
        near, far = jnp.where(upper, first, last), jnp.where(upper, last, first)
        mass = lambda m: log_subtract(
            log_ndtr(-sign * (near - m)), log_ndtr(-sign * (far - m))
        )
        return mass(mu) - mass(0.0)

    def inverse(self) -> "QuantizedGaussian":
        """The pair in the other order: the bins seen from the other mean."""
        offset = _opposite(self.mu, self.width, self.offset)
        return QuantizedGaussian(self.mu, self.width, offset)


_opposite = at_full_precision(lambda mu, width, offset: mu - offset % width)


def _difference(log_more: Array, log_less: Array) -> Interval:
    """log(e^a - e^b), with the rounding of both for its bounds."""
    value = log_subtract(log_more, log_less)
    size = jnp.where(jnp.isfinite(log_more), jnp.abs(log_more), 0.0)
    room = LOG_DIFFERENCE * (8 + size)
    found = exact(value)
    lower = log_subtract(log_more - room, log_less + room)
    upper = log_subtract(log_more + room, log_less - room)
    return Interval(lower, found.estimate, jnp.minimum(upper, 0.0))
