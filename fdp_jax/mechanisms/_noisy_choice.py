"""Choices by noisy numbers: the largest of several, those above a threshold."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks
from .._internal._special import log_ndtr
from ..losses import (
    ComposedLoss,
    GaussianLoss,
    LaplaceLoss,
    LogisticLoss,
    TwoPointLoss,
)
from ._base import AbstractMechanism, one_release
from ._black_box import AbstractChoice, PerfectPrivacy
from ._fields import (
    NOISE,
    Search,
    as_float,
    at_full_precision,
    option,
    parameter,
    product,
    with_noise_over,
)
from ._joint import Shared
from ._relations import ADD_OR_REMOVE_ONE, relation_field
from ._renyi import AbstractRenyi, RenyiDP, compose_renyi

_NOISES = ("laplace", "exponential", "gumbel")
_COUNTS = ("gaussian", "laplace")
_EITHER_WAY = Search(0, 1e-2, 1e12)
"""More noise hides counts, and lifts more of those that are the record's own."""
_ABOVE = Search(1, 1.0, 1e12, 10.0, counts=True)
_QUERIES = Search(1, 1.0, 1e12, 10.0)
_RATIO = Search(-1, 1e-3, 1e6)


class ReportNoisyMax(AbstractChoice):
    """The candidate whose score is the largest after independent noise was added.

    What counts for a set S of candidates is the difference X of the best noisy scores
    inside and outside of S, which neighbors move by at most 2 sensitivities (by one if
    the scores are monotonic).  Scores of different sensitivities count by the largest.

    - Gumbel noise is the exponential mechanism: X is logistic.
    - Exponential noise is permute-and-flip.  It and Laplace noise of scale b have a
      hazard rate of at most 1 / b, a maximum of independent ones as well; so X has a
      density of at most min(F, 1 - F) / b, and the pair of Laplace noise dominates.
      Of one release two candidates attain it with exponential noise; with Laplace noise
      its pure epsilon is approached far in the tails.

    The other end of `bounds` is, where the pair is not attained (Laplace noise, or more
    than one release), that of two candidates that change places.

    Gaussian noise has no such pair: what one more candidate adds has no bound.

    Args:
        noise_multiplier: Scale b of the noise over the sensitivity of a score, in
            (0, inf); pure epsilon = 2 / noise_multiplier, half of that for monotonic
            scores.
        noise: "laplace", "exponential" or "gumbel".
        monotonic: Whether a change of the data moves all scores the same way.
        relation: The neighboring relation the score's sensitivity refers to.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> chosen = fdp.ReportNoisyMax(10.0, noise="laplace")
        >>> print(f"{chosen.repeat(20).epsilon(delta=1e-6):.4f}")
        3.6709

    References:
        Dwork and Roth (2014), Section 3.3, for Laplace noise; Ding et al. (2021),
        for exponential noise.
    """

    noise_multiplier: Real[ArrayLike, ""] | None = parameter(
        "noise_multiplier", _checks.finite_positive, NOISE, default=None
    )
    noise: str = option(
        "noise", _checks.choice, _NOISES, default="laplace", kw_only=True
    )
    monotonic: bool = option("monotonic", _checks.flag, default=False, kw_only=True)
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    # The scores move `size` times as far.
    _group = with_noise_over

    def alone(self, way: str) -> AbstractMechanism:
        return self if self.noise == "laplace" else super().alone(way)

    def _halves(self):
        half = 0.5 / self._scale()
        tails = {
            "gumbel": jax.nn.sigmoid(half),
            "exponential": jnp.full_like(half, 0.5),
            "laplace": 0.5 + 0.25 * half,
        }
        return half, tails[self.noise]

    def _scale(self) -> Array:
        """The noise's scale over what two scores move apart."""
        return as_float(self.noise_multiplier) * (1.0 if self.monotonic else 0.5)

    def loss(self) -> ComposedLoss:
        noise, gumbel = self._scale(), self.noise == "gumbel"
        return one_release(LogisticLoss(1 / noise) if gumbel else LaplaceLoss(noise))


class AboveThreshold(AbstractMechanism):
    """The sparse vector technique: which queries are above a threshold, until k are.

    One noisy threshold is drawn at the beginning; to each query new noise is added, and
    it is only told whether it is above.  After the k-th "above" nothing more is
    answered.  The number of queries below is not limited, and they may be chosen in
    view of the answers.  All noise is Laplace noise.  The cost is pure, epsilon1 of the
    threshold and epsilon2 of the queries:

        epsilon1 = 1 / noise_multiplier,
        epsilon2 = 2 k / (query_ratio noise_multiplier),

    half of epsilon2 for monotonic queries.  Long sequences of queries approach it, so
    no smaller pure epsilon holds; elsewhere the other end of `bounds` is the trivial
    one.  Numbers are not part of the answers: add noise anew to those above, and
    `compose` with that.

    Args:
        noise_multiplier: Scale of the threshold's noise over the sensitivity of a
            query, in (0, inf).
        num_above: k, after how many answers "above" it ends; a whole number.
        query_ratio: Scale of the queries' noise over that of the threshold's, in
            (0, inf).  If it is not given it is (2 k)^(1/3) (k^(1/3) for monotonic
            queries): then threshold and query together vary least for their epsilon.
        monotonic: Whether a change of the data moves all queries the same way.
        relation: The neighboring relation the queries' sensitivity refers to.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> search = fdp.AboveThreshold(10.0, num_above=4)
        >>> print(f"{search.epsilon(delta=0.0):.4f}")
        0.5000
        >>> print(f"{search.query_noise_multiplier:.1f}")
        20.0

    References:
        Lyu, Su, Li (2017), Theorem 2, and their allocation of epsilon for the ratio.
    """

    noise_multiplier: Real[ArrayLike, ""] | None = parameter(
        "noise_multiplier", _checks.finite_positive, NOISE, default=None
    )
    num_above: Real[ArrayLike, ""] | None = parameter(
        "num_above", _checks.positive_count, _ABOVE, default=1, kw_only=True
    )
    query_ratio: Real[ArrayLike, ""] | None = parameter(
        "query_ratio",
        _checks.finite_positive,
        _RATIO,
        default=None,
        kw_only=True,
    )
    _optional: ClassVar = ("query_ratio",)
    monotonic: bool = option("monotonic", _checks.flag, default=False, kw_only=True)
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    @staticmethod
    def with_gaussian_noise(
        noise_multiplier: Any,
        *,
        num_queries: Any,
        num_above: Any = 1,
        query_ratio: Any = None,
        monotonic: bool = False,
    ) -> "GaussianSearch":
        """A search with Gaussian noise, of a limited number of queries.

        Move the threshold by one sensitivity and the noise of each query above by two
        (by one for monotonic queries): every sequence of answers is then at least as
        likely with the other data, but for the density of the moved noise.  By
        convexity its Rényi divergence bounds that of each sequence, and of m queries
        there are at most N = min((m + 1)^k, (e m / k)^k) sequences:

            D_t <= t mu^2 / 2 + log(N) / (t - 1),
            mu^2 = (1 + 4 k / query_ratio^2) / noise_multiplier^2,

        with k in place of 4 k for monotonic queries.  A bound, which is not attained.

        Args:
            noise_multiplier: Standard deviation of the threshold's noise over the
                sensitivity of a query, in (0, inf), or None for `calibrate` to find.
            num_queries: m, after how many queries it ends at the latest.
            num_above: k, after how many answers "above" it ends.
            query_ratio: Standard deviation of the queries' noise over that of the
                threshold's; if it is not given, such that threshold and query together
                vary least: (4 k)^(1/4), and k^(1/4) for monotonic queries.
            monotonic: Whether a change of the data moves all queries the same way.

        Returns:
            A guarantee by Rényi divergences: it composes, and has every query.

        Raises:
            ValueError: If a number is out of range.

        Example:
            >>> import fdp_jax as fdp
            >>> search = fdp.AboveThreshold.with_gaussian_noise(8.0, num_queries=100)
            >>> print(f"{search.epsilon(delta=1e-6):.4f}")
            1.1769

        References:
            Zhu and Wang (2020) for a bound of the same kind, in the expected number of
            queries below.
        """
        return GaussianSearch(
            noise_multiplier,
            num_queries=num_queries,
            num_above=num_above,
            query_ratio=query_ratio,
            monotonic=monotonic,
        )

    def _moved(self) -> tuple[Any, Any]:
        """The cost of all answers "above" for a noise of 1, and the ratio."""
        cost = product(self.num_above, 1 if self.monotonic else 2)
        ratio = cost ** (1 / 3) if self.query_ratio is None else self.query_ratio
        return cost, ratio

    @property
    def query_noise_multiplier(self) -> Any:
        """Scale of the queries' noise over the sensitivity of a query."""
        return product(self.noise_multiplier, self._moved()[1])

    @property
    def epsilon0(self) -> Any:
        """The pure epsilon of all answers together."""
        return _pure_epsilon(*self._moved(), self.noise_multiplier)

    def attained(self) -> PerfectPrivacy:
        return PerfectPrivacy(relation=self.relation)

    def loss(self) -> ComposedLoss:
        epsilon = as_float(self.epsilon0)
        return one_release(TwoPointLoss.of(epsilon, jnp.zeros_like(epsilon)))


class GaussianSearch(AbstractRenyi):
    """A search with Gaussian noise: see `AboveThreshold.with_gaussian_noise`."""

    noise_multiplier: Real[ArrayLike, ""] | None = parameter(
        "noise_multiplier", _checks.finite_positive, NOISE
    )
    num_queries: Real[ArrayLike, ""] | None = parameter(
        "num_queries", _checks.positive_count, _QUERIES, kw_only=True
    )
    num_above: Real[ArrayLike, ""] | None = parameter(
        "num_above", _checks.positive_count, _QUERIES, kw_only=True
    )
    query_ratio: Real[ArrayLike, ""] | None = parameter(
        "query_ratio", _checks.finite_positive, _RATIO, kw_only=True
    )
    _optional: ClassVar = ("query_ratio",)
    monotonic: bool = option("monotonic", _checks.flag, kw_only=True)
    shared: frozenset[Shared] | None = eqx.field(
        static=True, kw_only=True, default=None
    )

    _search: ClassVar = (11.5, 16.5, 9)
    orders: ClassVar = 1 + np.geomspace(1e-2, 1e12, 640)
    """Where it is listed if it is repeated or composed."""

    def divergence(self, order):
        queries, above = as_float(self.num_queries), as_float(self.num_above)
        cost = above * (1 if self.monotonic else 4)
        ratio = cost**0.25 if self.query_ratio is None else as_float(self.query_ratio)
        rho = 0.5 * (1 + cost / ratio**2) / as_float(self.noise_multiplier) ** 2
        some = jnp.minimum(above, queries)
        sequences = jnp.minimum(
            above * jnp.log1p(queries), some * (1 + jnp.log(queries / some))
        )
        # Divergences rise with the order: below the least sum it bounds them.
        excess = jnp.maximum(order - 1, jnp.sqrt(sequences / rho))
        return (rho * (1 + excess) + sequences / excess) * (1 + 1e-12)

    def _times(self, count):
        nothing = RenyiDP(self.orders, np.zeros(self.orders.size))
        return compose_renyi(nothing, self)._times(count)


class PartitionSelection(AbstractMechanism):
    """Noisy counts by partition, shown with their names where above a threshold.

    Which partitions exist (words, countries, pages) is not public.  A record counts
    once in each of at most k partitions; noise is added to the counts of those that
    have records, and what is not above the threshold is not shown.  Of the record's
    partitions j are its own alone and k - j others are in, too.  Counts of these move
    by 1 each.  One of its own is shown with the probability that noise lifts a count
    of 1 above the threshold, p, and tells the record.  So for every j

        k releases with noise of that scale, composed with (0, 1 - (1 - p)^k)-DP,

    leak at least as much, and compose.  Names alone may be shown as well.

    Args:
        noise_multiplier: Scale of the noise of a count, in (0, inf).
        threshold: Noisy counts above it are shown; a number.
        max_partitions: k, in how many partitions a record is at most.
        noise: "gaussian" or "laplace".
        relation: The neighboring relation; a record is added or removed.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> words = fdp.PartitionSelection(4.0, threshold=25.0, max_partitions=3)
        >>> print(f"{words.epsilon(delta=1e-6):.4f}")
        1.9256

    References:
        Korolova et al. (2009); Wilson et al. (2020), Section 3.5; Desfontaines, Voss,
        Gipson, Mandayam (2022).
    """

    noise_multiplier: Real[ArrayLike, ""] | None = parameter(
        "noise_multiplier", _checks.finite_positive, _EITHER_WAY, default=None
    )
    threshold: Real[ArrayLike, ""] | None = parameter(
        "threshold",
        _checks.finite,
        Search(-1, 1e-6, 1e12, 10.0),
        default=None,
        kw_only=True,
    )
    max_partitions: Real[ArrayLike, ""] | None = parameter(
        "max_partitions", _checks.positive_count, _ABOVE, default=1, kw_only=True
    )
    noise: str = option(
        "noise", _checks.choice, _COUNTS, default="gaussian", kw_only=True
    )
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)
    _one_release: ClassVar = False

    def __check_init__(self):
        _checks.require(
            self.relation is ADD_OR_REMOVE_ONE,
            "PartitionSelection is for records that are added or removed",
            self.relation.value,
        )

    def attained(self) -> PerfectPrivacy:
        return PerfectPrivacy(relation=self.relation)

    def loss(self) -> ComposedLoss:
        noise, count = as_float(self.noise_multiplier), as_float(self.max_partitions)
        above = (as_float(self.threshold) - 1) / noise
        if self.noise == "gaussian":
            each, hidden = GaussianLoss(noise), log_ndtr(above)
        else:
            each, half = LaplaceLoss(noise), 0.5 * jnp.exp(-jnp.abs(above))
            hidden = jnp.log1p(-jnp.where(above > 0, half, 1 - half))
        # Rounding of the place moves a tail by its square; beyond 40 nothing is shown.
        room = 4e-16 * (64 + jnp.square(jnp.clip(above, -40.0, 40.0)))
        shown = -jnp.expm1(count * hidden) * (1 + room)
        told = TwoPointLoss.of(jnp.zeros_like(noise), jnp.minimum(shown, 1.0))
        return ComposedLoss((each, told), (count, jnp.ones_like(noise)))


_pure_epsilon = at_full_precision(lambda cost, ratio, noise: (1 + cost / ratio) / noise)
