"""The queries that every guarantee answers: mechanisms, directions and curves."""

import abc
import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._internal._calls import explained
from .._internal._concrete import ahead_of_time, evaluates_at_once, is_traced
from .._internal._host import asked_of_host
from .._internal._picture import Lines, page
from .._internal._precision import float_dtype
from .._internal._record import Record
from ._bounds import Bound, Bounds, Range, one_end
from ._by_name import BY_ARGUMENT, QUERIES, Query
from ._doubts import is_loose, leaves_doubt, warn_of_loose
from ._queries import ProfilePoint


def _question(fn: Callable[..., Bounds]) -> Any:
    """A question that compiled programs leave to the host if its guarantee says so.

    One about known numbers is answered as it is met, in programs too.  Batches are
    asked at once where they can be looked at, and row by row if that leaves doubt.
    """
    known = ahead_of_time(fn)

    @functools.wraps(fn)
    def ask(self: Any, name: str, argument: Any, **options: Any) -> Bounds:
        at_once = evaluates_at_once()
        if at_once or not (is_traced(self, argument) and self._has_ladder()):
            found = known(self, name, argument, **options)
            batch = at_once and is_traced(found.status)
            if not (batch and leaves_doubt(found) and self._has_ladder()):
                return found
        shape = jnp.shape(argument)
        number = jax.ShapeDtypeStruct(shape, float_dtype())
        status = jax.ShapeDtypeStruct(shape, np.int32)
        kinds = [(number, False), (number, True), (number, False), (status, False)]

        def on_host(asked: tuple[Any, Any]) -> list[Array]:
            found = fn(asked[0], name, asked[1], **options)
            return [found.lower, found.estimate, found.upper, found.status]

        lower, estimate, upper, status = asked_of_host(on_host, (self, argument), kinds)
        return Bounds(lower, estimate, upper, status, "auto")

    return ask


class AbstractGuarantee(Record):
    """A privacy guarantee: a trade-off function, seen from several sides.

    P is the law of the output without the record (H0), Q with it (H1).  All queries
    are keyword-only, broadcast over arrays, run in float64 whatever the caller's
    precision, and work under `jax.jit`, `jax.vmap` and `jax.grad` (any order), also
    with respect to the guarantee's own parameters.

    Each returns a certified bound on the private side unless `bound` says otherwise.
    Where nothing better could be proved that is the trivial bound; `bounds` tells, and
    a mechanism warns (`LooseBoundWarning`, once per line of a program).
    """

    _warns: ClassVar[bool] = False
    """Whether something can be done about an answer that is not tight."""
    _queries: ClassVar[Mapping[str, Query]] = QUERIES
    """What is asked about it, by name."""

    def _drawn(self) -> Lines | None:
        """The trade-off function as lines, where they need no compiled program."""

    def _repr_html_(self) -> str | None:
        """The form that notebooks show; None where the text alone will do."""
        lines = None
        if not is_traced(self):
            with contextlib.suppress(Exception):  # printing never fails
                lines = self._drawn()
        return None if lines is None else page(repr(self), lines)

    def _has_ladder(self) -> bool:
        """Whether several engines would answer here, by plain calls."""
        return False

    # Three primitives answer every question.

    @abc.abstractmethod
    def _solve(self, delta: Any) -> Bounds:
        """Bounds of the least real epsilon with delta(epsilon) <= delta."""

    @abc.abstractmethod
    def _profile(self, epsilon: Any) -> ProfilePoint:
        """The privacy profile at real thresholds, infinite ones included."""

    @abc.abstractmethod
    def _error_rate_bounds(self, alpha: Any) -> tuple[Bounds, Bounds]:
        """Bounds of the type II error and of the power at type I errors."""

    def _settled(
        self,
        ask: "Callable[[AbstractGuarantee], Bounds]",
        known: Callable[[], Range],
        *,
        both: bool,
        upper: bool,
    ) -> Bounds:
        """The answer to a question about this guarantee.

        Guarantees that several engines know put it to more than one of them where the
        first answer is loose.

        Args:
            ask: The question, put to a guarantee.
            known: What is true of its answer anyway.
            both: Whether the end is asked for, too, that is not on the private side.
            upper: Whether the upper end is on that side.
        """
        return ask(self)

    @_question
    def _bounds_of(self, name: str, argument: Any, *, both: bool = True) -> Bounds:
        """Both ends of the answer to a query, at values of its argument."""
        query = self._queries[name]
        return self._settled(
            lambda g: query.answer(g, argument),
            lambda: query.known(jnp.asarray(argument)),
            both=both,
            upper=query.upper_is_pessimistic,
        )

    @explained
    def epsilon(
        self, *, delta: Any, bound: Bound | str = Bound.PESSIMISTIC
    ) -> Float[Array, "..."]:
        """The least real epsilon with delta(epsilon) <= delta.

        Args:
            delta: In [0, 1].
            bound: Which end of the certified interval.

        Returns:
            Epsilon in nats; negative where delta exceeds the advantage, -inf at
            delta = 1, inf where no finite epsilon will do.

        Guarantee:
            Upper bound by default.

        Differentiable in:
            delta and all parameters, except where delta is 0 or 1 and at the kinks of
            mechanisms with point masses (there, one side's derivative).

        Raises:
            ValueError: If delta is outside [0, 1] or subnormal, which programs take for
                zero (`EquinoxRuntimeError` if traced).
        """
        return self._end_of("epsilon", delta, bound)

    @explained
    def delta(
        self, *, epsilon: Any, bound: Bound | str = Bound.PESSIMISTIC
    ) -> Float[Array, "..."]:
        """The privacy profile: the largest Q(S) - e^eps P(S) over all events S.

        Args:
            epsilon: Any real number, in nats; infinities are allowed.
            bound: Which end of the certified interval.

        Returns:
            Delta in [0, 1].  It underflows near 1e-308 (1e-38 in float32 programs);
            `log_delta` does not.

        Guarantee:
            Upper bound by default.

        Raises:
            ValueError: If epsilon is NaN.
        """
        return self._end_of("delta", epsilon, bound)

    @explained
    def log_delta(
        self, *, epsilon: Any, bound: Bound | str = Bound.PESSIMISTIC
    ) -> Float[Array, "..."]:
        """Natural logarithm of `delta`, finite however small delta is.

        Args:
            epsilon: Any real number, in nats; infinities are allowed.
            bound: Which end of the certified interval.

        Returns:
            log delta, at most 0.

        Guarantee:
            Upper bound by default.

        Raises:
            ValueError: If epsilon is NaN.
        """
        return self._end_of("log_delta", epsilon, bound)

    @explained
    def beta(
        self, *, alpha: Any, bound: Bound | str = Bound.PESSIMISTIC
    ) -> Float[Array, "..."]:
        """The trade-off function: the least type II error at type I error alpha.

        Args:
            alpha: In [0, 1], the attacker's false positive rate.
            bound: Which end of the certified interval.

        Returns:
            The false negative rate of the best attack, in [0, 1 - alpha].

        Guarantee:
            Lower bound by default.

        Raises:
            ValueError: If alpha is outside [0, 1] or subnormal.
        """
        return self._end_of("beta", alpha, bound)

    @explained
    def tpr(
        self, *, fpr: Any, bound: Bound | str = Bound.PESSIMISTIC
    ) -> Float[Array, "..."]:
        """Power of the best attack, 1 - beta(alpha = fpr), accurate for small ones.

        Args:
            fpr: In [0, 1], the attacker's false positive rate.
            bound: Which end of the certified interval.

        Returns:
            The true positive rate, in [fpr, 1].

        Guarantee:
            Upper bound by default.

        Raises:
            ValueError: If fpr is outside [0, 1] or subnormal.
        """
        return self._end_of("tpr", fpr, bound)

    @explained
    def bayes_error(
        self, *, prior: Any, bound: Bound | str = Bound.PESSIMISTIC
    ) -> Float[Array, "..."]:
        """Least probability of error of an attacker with a prior, R(pi).

        Args:
            prior: In [0, 1], the probability of H0 (record absent).
            bound: Which end of the certified interval.

        Returns:
            min over alpha of prior alpha + (1 - prior) f(alpha).

        Guarantee:
            Lower bound by default.

        Raises:
            ValueError: If prior is outside [0, 1] or subnormal.
        """
        return self._end_of("bayes_error", prior, bound)

    @explained
    def advantage(
        self, *, bound: Bound | str = Bound.PESSIMISTIC
    ) -> Float[Array, "..."]:
        """Largest true positive rate minus false positive rate: delta(0), the TV.

        Args:
            bound: Which end of the certified interval.

        Returns:
            The membership advantage, in [0, 1].

        Guarantee:
            Upper bound by default.
        """
        return self.delta(epsilon=0.0, bound=bound)

    @explained
    def bounds(self, **query: Any) -> Bounds:
        """The certified interval behind a query, with its status.

        Args:
            **query: Exactly one of `delta` (gives bounds of epsilon), `epsilon` (of
                delta), `alpha` (of beta), `fpr` (of the power) or `prior` (of the
                Bayes error).

        Returns:
            `Bounds(lower, estimate, upper, status)`.

        Raises:
            TypeError: If the query is not one of these.
            ValueError: If its value is out of range.
        """
        if len(query) != 1 or not query.keys() <= BY_ARGUMENT.keys():
            raise TypeError(
                "bounds takes exactly one of delta=, epsilon=, alpha=, fpr= or prior=, "
                f"got {sorted(query) or 'none'}"
            )
        ((argument, value),) = query.items()
        asked = BY_ARGUMENT[argument]
        return self._bounds_of(asked.name, asked.check(argument, value))

    def _end_of(self, name: str, value: Any, bound: Bound | str) -> Array:
        """The end of an interval that a query returns, with a word if need be."""
        query, bound = self._queries[name], one_end(bound)
        value = query.check(query.argument, value)
        found = self._bounds_of(name, value, both=bound is Bound.OPTIMISTIC)
        if bound is not Bound.OPTIMISTIC and is_loose(found) and self._warns:
            warn_of_loose(name, found)
        return found.pick(bound, upper_is_pessimistic=query.upper_is_pessimistic)
