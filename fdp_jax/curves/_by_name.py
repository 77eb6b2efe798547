"""The queries of a guarantee by their names: what each takes, and who answers it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from .._internal import _checks
from ._answers import (
    bayes_error_of,
    delta_of,
    log_delta_of,
    log_rest_of,
    threshold_of,
)
from ._bounds import (
    DELTA,
    EPSILON,
    LOGARITHM,
    Bounds,
    Range,
    bayes_error_range,
    beta_range,
    tpr_range,
)


class Query(NamedTuple):
    """A question that a guarantee answers with a certified interval."""

    name: str
    argument: str
    """What it is asked at, as users write it."""
    upper_is_pessimistic: bool
    """Whether the upper end is the one that never under-reports privacy loss."""
    answer: Callable[[Any, Any], Bounds]
    """A guarantee's primitive, and the conversion of what that finds."""
    known: Callable[[Any], Range]
    """What is true of the answer anyway, given the argument."""
    check: Callable[[str, Any], Any] = _checks.rate
    """Refuses other values of the argument."""


def _of_profile(convert: Callable[..., Bounds]) -> Callable[[Any, Any], Bounds]:
    """The conversion of the profile at the threshold that is asked about."""
    return lambda g, epsilon: convert(g._profile(epsilon))


def _bayes_error(guarantee: Any, prior: Any) -> Bounds:
    """The Bayes error, from the profile at the logit of the prior."""
    return bayes_error_of(guarantee._profile(threshold_of(prior)), prior)


def log_range(argument: Any) -> Range:
    """The range of the logarithm of a probability."""
    return LOGARITHM


_real = _checks.real
_ALL = (
    Query("epsilon", "delta", True, lambda g, x: g._solve(x), lambda _: EPSILON),
    Query("delta", "epsilon", True, _of_profile(delta_of), lambda _: DELTA, _real),
    Query("beta", "alpha", False, lambda g, x: g._error_rate_bounds(x)[0], beta_range),
    Query("tpr", "fpr", True, lambda g, x: g._error_rate_bounds(x)[1], tpr_range),
    Query("bayes_error", "prior", False, _bayes_error, bayes_error_range),
    Query("log_delta", "epsilon", True, _of_profile(log_delta_of), log_range, _real),
    Query("log_rest", "epsilon", False, _of_profile(log_rest_of), log_range, _real),
)
QUERIES = {query.name: query for query in _ALL}
BY_ARGUMENT = {query.argument: query for query in reversed(_ALL)}
"""What `bounds` is asked, by the argument that it is given."""
