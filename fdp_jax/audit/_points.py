"""Points that the true trade-off function lies below, with confidence."""

import dataclasses
from typing import Any

import numpy as np
import scipy  # its parts load when they are used

from .._internal import _checks
from .._internal._calls import explained
from .._internal._hull import hull_below
from ._asked import least_beta, require_queries

_MOST_EPSILON = 700.0


@dataclasses.dataclass(frozen=True)
class TradeOffPoints:
    """Error rates that an attack attains: f(alpha) <= beta at all of them at once.

    f is the trade-off function of the outputs without (P) and with the canary (Q); its
    inverse, where the attack takes "out" for the positive guess, has the same points
    with their coordinates exchanged.

    Attributes:
        alpha: Upper limits of the attack's false positive rates, a vector.
        beta: Upper limits of its false negative rates, as many.
        confidence: With which all of them hold.
    """

    alpha: np.ndarray
    beta: np.ndarray
    confidence: float

    @explained(delta=_checks.number(_checks.probability))
    def epsilon(self, *, delta: Any) -> float:
        """Lower bound of the epsilon at which (epsilon, delta)-DP holds; at least 0.

        Args:
            delta: In [0, 1].

        Returns:
            The largest log((1 - delta - beta) / alpha) of all points, of the exchanged
            ones, and 0; in nats.

        Raises:
            ValueError: If delta is outside [0, 1].
        """
        above = 1.0 - delta - np.append(self.beta, self.alpha)
        error = np.append(self.alpha, self.beta)[above > 0]
        with np.errstate(divide="ignore"):
            gains = np.log(above[above > 0]) - np.log(error)
        return float(np.max(gains, initial=0.0))

    @explained(epsilon=_checks.one(_checks.nonnegative))
    def delta(self, *, epsilon: Any) -> float:
        """Lower bound of the delta at which (epsilon, delta)-DP holds.

        Args:
            epsilon: At least 0, in nats.

        Returns:
            The largest 1 - beta - e^epsilon alpha of all points and exchanged ones, at
            least 0.

        Raises:
            ValueError: If epsilon is negative or infinite.
        """
        if float(epsilon) > _MOST_EPSILON:
            return 0.0  # The factor overflows; of a smaller delta nothing is known.
        factor = np.exp(float(epsilon))
        ends = (self.alpha, self.beta), (self.beta, self.alpha)
        return max(0.0, *(float(np.max(1 - y - factor * x)) for x, y in ends))

    def mu(self) -> float:
        """Lower bound of the mu at which mu-Gaussian DP holds; at least 0."""
        below = self.alpha + self.beta < 1
        ndtri = scipy.special.ndtri
        quantiles = ndtri(self.alpha[below]) + ndtri(self.beta[below])
        return float(np.max(-quantiles, initial=0.0))

    def upper(self, *, alpha: Any) -> np.ndarray:
        """Upper bound of f at any false positive rates.

        Args:
            alpha: In [0, 1]; an array.

        Returns:
            The lower convex hull of the points, (0, 1) and (1, 0): f is convex and
            between blind guesses every attack can toss a coin.

        Raises:
            ValueError: If alpha is outside [0, 1].
        """
        alpha = np.asarray(_checks.probability("alpha", alpha))
        x = np.concatenate([[0.0], self.alpha, [1.0]])
        y = np.concatenate([[1.0], self.beta, [0.0]])
        return np.interp(alpha, *hull_below(x, y))

    def exclude(self, guarantee: Any) -> bool:
        """Whether some point lies below the guarantee's certified trade-off function.

        Args:
            guarantee: Anything that answers `beta(alpha=...)` or `tpr(fpr=...)`.

        Returns:
            True if the guarantee does not hold, at this confidence.

        Raises:
            TypeError: If the guarantee answers neither.
        """
        require_queries(guarantee)
        return bool(np.any(least_beta(guarantee, self.alpha) > self.beta))
