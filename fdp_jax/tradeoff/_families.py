"""Families in closed form, all symmetric; the formulas are those of the engines."""

import abc
import math
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Real

from .. import mechanisms
from .._internal import _checks
from .._internal._special import ndtri_from_logs, safe_log
from ..curves.logs import (
    Rates,
    closed,
    log_add,
    no_ends,
    plus,
    point_beside,
    symmetric_ends,
)
from ..curves.pointwise import both_logs
from ..engines import log_complement
from ..losses import GaussianForm, LaplaceForm, LogisticForm
from ..mechanisms import (
    as_float,
    product,
    quotient,
)
from ._base import AbstractSymmetric

_LOG_4 = math.log(4.0)


class AbstractLocation(AbstractSymmetric):
    """T(law, law moved by mu): groups of records add to the parameter."""

    mu: eqx.AbstractVar[Real[ArrayLike, ""]]
    _form: ClassVar[type[Any]]
    """The closed form of the pair, given mu."""
    _kind: ClassVar[Any]
    """The mechanism with such noise."""

    def _point(self, epsilon):
        form, size = self._form(as_float(self.mu)), jnp.abs(epsilon)
        logs = closed(form.log_delta(size)), closed(form.log_rest(size))
        return point_beside(epsilon, epsilon < 0, *logs)

    def _rates(self, log_alpha, log_tnr):
        found = self._form(as_float(self.mu)).log_rates(log_alpha, log_tnr)
        return Rates(*map(closed, found))

    def _ends(self):
        return no_ends(as_float(self.mu))

    def moved(self, distance: Any) -> "AbstractLocation":
        """The function of data sets `distance` >= 0 steps apart, a real number."""
        return type(self)(product(self.mu, distance))  # pyright: ignore[reportCallIssue]

    def as_mechanism(self) -> Any:
        """The mechanism of that name with noise multiplier 1 / mu, for mu > 0."""
        return self._kind(quotient(1, self.mu))


class Gaussian(AbstractLocation):
    """G_mu = T(N(0, 1), N(mu, 1)): f(alpha) = Phi(Phi^-1(1 - alpha) - mu).

    Args:
        mu: In [0, inf); the sensitivity over the standard deviation of the noise.

    Raises:
        ValueError: If it is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.Gaussian(1.0)
        >>> print(f"{f.beta(alpha=0.1):.6f} {f.delta(epsilon=1.0):.6f}")
        0.610856 0.126937

    References:
        Dong, Roth, Su (2022), Definition 2.6; Balle, Wang (2018) for the profile.
    """

    mu: Real[ArrayLike, ""] = _checks.field("mu", _checks.nonnegative)
    _form: ClassVar = GaussianForm
    _kind: ClassVar = mechanisms.Gaussian

    def _log_slope(self, log_alpha, log_tnr):
        mu = as_float(self.mu)
        return -mu * ndtri_from_logs(log_alpha, log_tnr) - 0.5 * jnp.square(mu)


class Laplace(AbstractLocation):
    """L_mu = T(Lap(0, 1), Lap(mu, 1)).

    1 - e^mu alpha up to alpha = e^-mu / 2, e^-mu / (4 alpha) up to 1/2, then
    e^-mu (1 - alpha).

    Args:
        mu: In [0, inf); the sensitivity over the scale of the noise.

    Raises:
        ValueError: If it is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.Laplace(1.0)
        >>> print(f"{f.beta(alpha=0.05):.6f} {f.advantage():.6f}")
        0.864086 0.393469

    References:
        Dong, Roth, Su (2022), Appendix.
    """

    mu: Real[ArrayLike, ""] = _checks.field("mu", _checks.nonnegative)
    _form: ClassVar = LaplaceForm
    _kind: ClassVar = mechanisms.Laplace

    def _log_slope(self, log_alpha, log_tnr):
        mu = as_float(self.mu)
        middle = -mu - _LOG_4 - 2 * log_alpha
        return jnp.where(log_alpha >= log_tnr, -mu, jnp.minimum(middle, mu))

    def _kinks(self):
        return as_float(self.mu)[None]


class Logistic(AbstractLocation):
    """T(Logistic(0, 1), Logistic(mu, 1)).

    f(alpha) = (1 - alpha) / (1 + (e^mu - 1) alpha).  Also what mechanisms of mu-bounded
    range guarantee, as the exponential mechanism is one.

    Args:
        mu: In [0, inf); the sensitivity over the scale of the noise.

    Raises:
        ValueError: If it is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.Logistic(1.0)
        >>> print(f"{f.beta(alpha=0.1):.6f} {f.delta(epsilon=0.5):.6f}")
        0.768031 0.077405

    References:
        Dong, Durfee, Rogers (2020) for bounded range.
    """

    mu: Real[ArrayLike, ""] = _checks.field("mu", _checks.nonnegative)
    _form: ClassVar = LogisticForm
    _kind: ClassVar = mechanisms.Logistic

    def _log_slope(self, log_alpha, log_tnr):
        mu = as_float(self.mu)
        return mu - 2 * log_add(log_tnr, mu + log_alpha)


class _AbstractTwoPoint(AbstractSymmetric):
    """The function of losses of one size, but for infinite ones."""

    @abc.abstractmethod
    def _numbers(self) -> tuple[Array, Array]:
        """Epsilon and delta."""

    def _point(self, epsilon):
        # Vertices at alpha = 0, the fixed point and 1 - delta, for eps >= 0.
        size, (own, delta) = jnp.abs(epsilon), self._numbers()
        log_lost, log_keep = both_logs(delta)
        inside = size < own
        # 1 - delta(eps) = (1 - delta) (1 + e^eps) / (1 + e^eps0), and the rest of it
        # (1 - delta) (1 - e^{eps - eps0}) / (1 + e^-eps0).
        log_ratio = jnp.logaddexp(0.0, size) - jnp.logaddexp(0.0, own)
        log_rest = plus(log_keep, jnp.where(inside, log_ratio, 0.0))
        log_gain = log_complement(jnp.where(inside, size - own, -1.0))
        log_gain = jnp.where(inside, log_gain - jnp.logaddexp(0.0, -own), -jnp.inf)
        log_delta = log_add(log_lost, plus(log_keep, log_gain))
        return point_beside(epsilon, epsilon < 0, closed(log_delta), closed(log_rest))

    def _rates(self, log_alpha, log_tnr):
        epsilon, delta = self._numbers()
        steep, above = self._pieces(log_alpha, log_tnr)
        log_power = log_add(safe_log(delta), epsilon + log_alpha)
        log_power = jnp.where(steep, jnp.minimum(log_power, 0), -1.0)
        # 1 - alpha - delta from the complement of alpha.
        log_flat = safe_log(above) - epsilon
        log_beta = jnp.where(steep, log_complement(log_power), log_flat)
        other = log_complement(jnp.where(steep, -1.0, log_flat))
        return Rates(closed(log_beta), closed(jnp.where(steep, log_power, other)))

    def _pieces(self, log_alpha: Array, log_tnr: Array) -> tuple[Array, Array]:
        """Whether alpha is left of the fixed point, and 1 - delta - alpha."""
        epsilon, delta = self._numbers()
        log_fixed = safe_log(1 - delta) - jnp.logaddexp(0.0, epsilon)
        return log_alpha < log_fixed, jnp.exp(log_tnr) - delta

    def _ends(self):
        _, delta = self._numbers()
        return symmetric_ends(*map(closed, both_logs(delta)))

    def _log_slope(self, log_alpha, log_tnr):
        epsilon, _ = self._numbers()
        steep, above = self._pieces(log_alpha, log_tnr)
        return jnp.where(steep, epsilon, jnp.where(above > 0, -epsilon, -jnp.inf))


class ApproxDP(_AbstractTwoPoint):
    """f_{eps,delta}: the least curve of an (epsilon, delta)-DP mechanism.

    max(0, 1 - delta - e^eps alpha, e^-eps (1 - delta - alpha)); fixed point
    (1 - delta) / (1 + e^eps).  At the kinks the slope is that to the right.

    Args:
        epsilon: In [0, inf).
        delta: In [0, 1].

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> f = fdp.tradeoff.ApproxDP(epsilon=1.0, delta=0.05)
        >>> print(f"{f.beta(alpha=0.1):.6f} {f.delta(epsilon=0.0):.6f}")
        0.678172 0.489011

    References:
        Wasserman, Zhou (2010); Dong, Roth, Su (2022), Proposition 2.5.
    """

    epsilon0: Real[ArrayLike, ""]
    delta0: Real[ArrayLike, ""]

    def __init__(self, *, epsilon: Any, delta: Any):
        self.epsilon0 = _checks.checked_scalar("epsilon", _checks.nonnegative, epsilon)
        self.delta0 = _checks.checked_scalar("delta", _checks.probability, delta)

    def _numbers(self):
        return as_float(self.epsilon0), as_float(self.delta0)

    def _kinks(self):
        return as_float(self.epsilon0)[None]

    def as_mechanism(self) -> mechanisms.ApproxDP:
        """`fdp.ApproxDP` with these parameters."""
        return mechanisms.ApproxDP(epsilon=self.epsilon0, delta=self.delta0)


class Identity(_AbstractTwoPoint):
    """Id, 1 - alpha: perfect privacy, the largest trade-off function.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.tradeoff.Identity().beta(alpha=0.25):.2f}")
        0.75
    """

    def _numbers(self):
        return as_float(0.0), as_float(0.0)

    def as_mechanism(self) -> mechanisms.PerfectPrivacy:
        """`fdp.PerfectPrivacy`."""
        return mechanisms.PerfectPrivacy()


class BlatantNonPrivacy(_AbstractTwoPoint):
    """f = 0: the output tells whether the record was used.

    Example:
        >>> import fdp_jax as fdp
        >>> print(f"{fdp.tradeoff.BlatantNonPrivacy().advantage():.0f}")
        1
    """

    def _numbers(self):
        return as_float(0.0), as_float(1.0)

    def as_mechanism(self) -> mechanisms.BlatantNonPrivacy:
        """`fdp.BlatantNonPrivacy`."""
        return mechanisms.BlatantNonPrivacy()
