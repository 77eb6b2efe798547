"""Mechanisms that a user describes: by probabilities, densities, curves or points."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import is_traced
from .._internal._hull import lower_hull
from ..losses import AtomicLoss, ComposedLoss, DensityLoss, DistributionLoss
from ._base import AbstractMechanism, one_release
from ._fields import as_float, several
from ._relations import ADD_OR_REMOVE_ONE, relation_field

_log_probability = _checks.numbers_that_are("at most 0", lambda x: x <= 0)


class FromProbabilities(AbstractMechanism):
    """A mechanism with finitely many outputs, by its two probability vectors.

    Args:
        without_record: P, the probabilities of the outputs without the record; at
            least 0, with sum 1.
        with_record: Q, those with the record.
        relation: The neighboring relation of the pair, which must be its worst pair.

    Raises:
        ValueError: If the vectors differ in length, are negative or do not add to 1.

    Example:
        >>> import fdp_jax as fdp
        >>> pair = fdp.FromProbabilities([0.5, 0.3, 0.2], [0.2, 0.3, 0.5])
        >>> print(f"{pair.beta(alpha=0.1):.4f}")
        0.7500
    """

    without_record: Any = several("without_record", _checks.probabilities)
    with_record: Any = several("with_record", _checks.probabilities)
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def __check_init__(self):
        _checks.same_length(
            "without_record", self.without_record, "with_record", self.with_record
        )

    def loss(self) -> ComposedLoss:
        p, q = as_float(self.without_record), as_float(self.with_record)
        # Sums that are off by rounding would be masses gained or lost.
        p, q = p / jnp.sum(p), q / jnp.sum(q)
        return one_release(AtomicLoss.of_probabilities(p, q))


def _function(name: str, **options: Any) -> Any:
    wanted = Callable, "a function (x, params)"
    one = lambda x: _checks.instance(name, x, *wanted)
    return eqx.field(static=True, converter=one, **options)


def _interval(name: str) -> Any:
    def ends(value: Any) -> tuple[Any, Any]:
        try:
            low, high = value
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be (low, high), got {value!r}") from error
        low, high = (
            _checks.checked_scalar(name, _checks.finite, x) for x in (low, high)
        )
        _require_increasing(name, low, high)
        return low, high

    return eqx.field(converter=ends, kw_only=True)


class FromLogDensities(AbstractMechanism):
    """One real output with densities P and Q whose ratio Q / P increases.

    Masses are Gauss-Legendre sums, whose error is estimated with a second rule; so
    bounds are as good as the densities are smooth.

    Args:
        log_density_without: Function (x, params) -> log-density of P, elementwise in
            JAX, finite on the support.
        log_density_with: The same of Q.
        support: (low, high), finite, where the densities are evaluated.
        params: PyTree of parameters that both get, differentiable.
        log_beyond: Log of a bound on either mass outside the support, which counts as
            an infinite loss.
        relation: The neighboring relation of the pair, which must be its worst pair.

    Raises:
        ValueError: If the support is not an interval, or (when a query finds out) if
            the ratio decreases somewhere.
        TypeError: If a log-density is not a function.

    Example:
        >>> import fdp_jax as fdp, jax
        >>> normal = jax.scipy.stats.norm.logpdf
        >>> pair = fdp.FromLogDensities(
        ...     lambda x, s: normal(x, 0.0, s),
        ...     lambda x, s: normal(x, 1.0, s),
        ...     support=(-39.0, 40.0),
        ...     params=1.0,
        ...     log_beyond=-750.0,
        ... )
        >>> print(f"{pair.delta(epsilon=1.0):.6f}")
        0.126937
    """

    log_density_without: Callable = _function("log_density_without")
    log_density_with: Callable = _function("log_density_with")
    support: tuple[Any, Any] = _interval("support")
    params: PyTree = eqx.field(default=(), kw_only=True)
    log_beyond: Any = _checks.field("log_beyond", _log_probability, kw_only=True)
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def loss(self) -> ComposedLoss:
        low, high = map(as_float, self.support)
        term = DensityLoss(
            log_p=self.log_density_without,
            log_q=self.log_density_with,
            parameters=jax.tree.map(as_float, self.params),
            low=low,
            high=high,
            log_beyond=as_float(self.log_beyond),
        )
        # A loss that falls may miss mass as well, but that is not what to say of it.
        (falls, drop), (misses, total) = _falls(term), _misses_mass(term)
        drops = (lambda _: falls), _FALLS, (lambda _: drop)
        term = _checks.error_if(term, *drops, kind="a fall by")
        leaks = (lambda _: misses & ~falls), _MISSES_MASS, (lambda _: total)
        term = _checks.error_if(term, *leaks, kind="the integral")
        return ComposedLoss((term,), (jnp.ones_like(low),), single=True)


_FALLS = (
    "log_density_with - log_density_without must increase over the support: order the "
    "outputs by their likelihood ratio, or use FromProbabilities"
)
_MISSES_MASS = (
    "log_density_without and log_density_with must integrate to 1 over the support, "
    "but for what log_beyond allows"
)


def _falls(term: DensityLoss) -> tuple[Array, Array]:
    """Whether the loss decreases anywhere by more than rounding, and by how much."""
    outputs, losses = term.outputs(), term.edges()
    sizes = [jnp.abs(f(outputs, term.parameters)) for f in (term.log_p, term.log_q)]
    rounding = 16 * jnp.finfo(losses.dtype).eps * (1 + jnp.maximum(*sizes))
    rises = jnp.diff(losses)
    down = -jnp.sum(jnp.minimum(rises, 0))
    # Rounding everywhere may be all there is: then the loss may as well decrease.
    in_part = ~jnp.all(rises >= -jnp.maximum(rounding[:-1], rounding[1:]))
    falls = in_part | ~(down <= 0.01 * (losses[-1] - losses[0]))
    return falls, -jnp.min(rises)


def _misses_mass(term: DensityLoss) -> tuple[Array, Array]:
    """Which of both densities do not integrate to 1, and the integrals."""
    cells = term.partition().cells
    masses = jnp.stack([cells.log_mass, cells.log_mass + cells.loss])
    total = jnp.sum(jnp.exp(masses), axis=1)
    allowed = 1e-6 + jnp.exp(term.log_beyond)
    return ~(jnp.abs(total - 1) <= allowed), total


class FromLossDistribution(AbstractMechanism):
    """A mechanism by the distribution functions of its privacy loss log dQ/dP.

    Each argument is a function (t, params) -> logarithm of a probability, elementwise
    in JAX, accurate where that is small.

    Args:
        log_cdf_without: log P(X <= t), X the loss without the record.
        log_sf_without: log P(X > t).
        log_cdf_with: log Q(Y <= t), Y the loss with the record.
        log_sf_with: log Q(Y > t).
        loss_range: (low, high), finite: the ends of the loss, which has no point
            masses.
        params: PyTree of parameters that all get, differentiable.
        relation: The neighboring relation of the pair, which must be its worst pair.

    Raises:
        ValueError: If loss_range is not an interval.
        TypeError: If an argument that must be a function is none.
    """

    log_cdf_without: Callable = _function("log_cdf_without", kw_only=True)
    log_sf_without: Callable = _function("log_sf_without", kw_only=True)
    log_cdf_with: Callable = _function("log_cdf_with", kw_only=True)
    log_sf_with: Callable = _function("log_sf_with", kw_only=True)
    loss_range: tuple[Any, Any] = _interval("loss_range")
    params: PyTree = eqx.field(default=(), kw_only=True)
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def loss(self) -> ComposedLoss:
        low, high = map(as_float, self.loss_range)
        return one_release(
            DistributionLoss(
                log_cdf_p=self.log_cdf_without,
                log_sf_p=self.log_sf_without,
                log_cdf_q=self.log_cdf_with,
                log_sf_q=self.log_sf_with,
                parameters=jax.tree.map(as_float, self.params),
                low=low,
                high=high,
            )
        )


class FromTradeOffPoints(AbstractMechanism):
    """A mechanism by points of its trade-off function, or of an attack's ROC curve.

    The guarantee is the lower convex hull of the points with (0, 1) and (1, 0).  For
    attack results it is what these attacks achieve, so no upper bound on the privacy
    loss.

    Args:
        alpha: False positive rates, in [0, 1].
        beta: False negative rates, in [0, 1].
        relation: The neighboring relation the points refer to.

    Raises:
        ValueError: If the vectors differ in length or are not rates.

    Example:
        >>> import fdp_jax as fdp
        >>> attacks = fdp.FromTradeOffPoints([0.1, 0.4], [0.6, 0.25])
        >>> print(f"{attacks.remove.beta(alpha=0.2):.4f}")
        0.4833
    """

    alpha_grid: Float[Array | np.ndarray, " k"]
    beta_grid: Float[Array | np.ndarray, " k"]
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    @explained(
        alpha=_checks.vector_of(_checks.probability),
        beta=_checks.vector_of(_checks.probability),
    )
    def __init__(self, alpha: Any, beta: Any, *, relation: Any = ADD_OR_REMOVE_ONE):
        _checks.same_length("alpha", alpha, "beta", beta)
        self.alpha_grid, self.beta_grid = lower_hull(alpha, beta)
        self.relation = relation

    def loss(self) -> ComposedLoss:
        alpha, beta = as_float(self.alpha_grid), as_float(self.beta_grid)
        p = jnp.append(jnp.diff(alpha, prepend=0.0), 1 - alpha[-1])
        q = jnp.append(-jnp.diff(beta, prepend=1.0), beta[-1])
        return one_release(AtomicLoss.of_probabilities(p, q))


def _require_increasing(name: str, low: Any, high: Any) -> None:
    """The ends of an interval, if they are known."""
    rises = is_traced(low, high) or np.asarray(low) < np.asarray(high)
    _checks.require(rises, f"{name} must be (low, high) with low < high", (low, high))
