"""The queries of a guarantee by their names, with what each takes."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .._internal import _checks


class Query(NamedTuple):
    """A question that a guarantee answers with a certified interval."""

    argument: str
    """What it is asked at, as users write it."""
    upper_is_pessimistic: bool
    """Whether the upper end is the one that never under-reports privacy loss."""
    question: str
    """The method that knows both ends."""
    check: Callable[[str, Any], Any] = _checks.rate
    """Refuses other values of the argument."""
    options: Mapping[str, bool] = {}
    """Of that method."""


QUERIES = {
    "epsilon": Query("delta", True, "_epsilon_bounds"),
    "delta": Query("epsilon", True, "_delta_bounds", _checks.real),
    "beta": Query("alpha", False, "_rate_bounds", options={"power": False}),
    "tpr": Query("fpr", True, "_rate_bounds", options={"power": True}),
    "bayes_error": Query("prior", False, "_bayes_error_bounds"),
    "log_delta": Query("epsilon", True, "_log_delta_bounds", _checks.real),
}
BY_ARGUMENT = {query.argument: query for query in reversed(QUERIES.values())}
"""What `bounds` is asked, by the argument that it is given."""
