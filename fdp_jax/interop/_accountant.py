"""An accountant with the interface of dp_accounting's."""

import functools
import math
from collections.abc import Callable
from typing import Any

from .._internal._calls import explained
from ._from_event import UnsupportedEvent, read
from ._library import library, public, relation_of
from ._steps import Steps


@functools.cache
def accountant_class() -> type:
    """`FdpAccountant`, a `dp_accounting.PrivacyAccountant` that answers by fdp_jax.

    It takes a `dp_accounting.NeighboringRelation`, or one of this package, and has
    their methods: `compose`, `supports`, `ledger`, `get_epsilon(target_delta)` and
    `get_delta(target_epsilon)`, which are certified upper bounds, as of the whole
    composition at once.  Its `mechanism` has all other queries.

        dp_accounting.calibrate_dp_mechanism(
            fdp.interop.FdpAccountant, make_event, target_epsilon, target_delta
        )

    It supports what `from_dp_event` does.

    Returns:
        The class, which `fdp_jax.interop.FdpAccountant` is too.

    Raises:
        ImportError: If dp_accounting is not installed.
    """
    dp_accounting = library("FdpAccountant")
    theirs = dp_accounting.NeighboringRelation

    class FdpAccountant(dp_accounting.PrivacyAccountant):
        """Accounts for events of dp_accounting by fdp_jax's certified upper bounds.

        Args:
            neighboring_relation: A `dp_accounting.NeighboringRelation` or a
                `fdp_jax.NeighboringRelation`.
        """

        def __init__(self, neighboring_relation: Any = theirs.ADD_OR_REMOVE_ONE):
            relation = relation_of(neighboring_relation)
            super().__init__(theirs[_THEIR_NAMES.get(relation.name, relation.name)])
            self._steps = Steps(relation)
            self._mechanism = self._steps.mechanism()

        def __repr__(self) -> str:
            return f"FdpAccountant({self.mechanism!r})"

        def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
            try:
                steps = list(read(event, self._steps.relation))
            except UnsupportedEvent as error:
                return self.CompositionErrorDetails(error.event, error.missing)
            if do_compose:
                self._steps.add(steps, count)
                self._mechanism = None
            return None

        @property
        def mechanism(self) -> Any:
            """The mechanism that all events so far are together."""
            if self._mechanism is None:
                self._mechanism = self._steps.mechanism()
            return self._mechanism

        def get_epsilon(self, target_delta: float) -> float:
            """An upper bound of epsilon, at least 0, at a delta in [0, 1]."""
            if not self._steps.is_private:
                return math.inf  # as theirs, at delta = 1 too
            return max(float(self.mechanism.epsilon(delta=target_delta)), 0.0)

        def get_delta(self, target_epsilon: float) -> float:
            """An upper bound of delta at any real epsilon."""
            return max(float(self.mechanism.delta(epsilon=target_epsilon)), 0.0)

    return public(FdpAccountant, "FdpAccountant")


@explained
def calibrate_dp_mechanism(
    make_fresh_accountant: Callable[[], Any],
    make_event_from_param: Callable[[Any], Any],
    target_epsilon: float,
    target_delta: float,
    bracket_interval: Any = None,
    discrete: bool = False,
    tol: float | None = None,
) -> float | int:
    """The parameter that meets a target, in the place of dp_accounting's function.

    It takes the same arguments and returns the same kind of number, but by this
    package's certified upper bounds of epsilon, whatever the accountant is.

    Args:
        make_fresh_accountant: A function that makes a `dp_accounting` accountant, of
            which the neighboring relation counts.
        make_event_from_param: The `dp_accounting.DpEvent` of a parameter.
        target_epsilon: At least 0, in nats.
        target_delta: In [0, 1].
        bracket_interval: Where to search, one of `dp_accounting`'s brackets.
        discrete: Whether the parameter is a whole number.
        tol: The tolerance in the parameter; 1e-6 by default, of whole numbers 1.

    Returns:
        A parameter whose event is certain to meet the target.

    Raises:
        ImportError: If dp_accounting is not installed.
        ValueError: If an argument is out of range, or no parameter is found.
    """
    theirs = library("calibrate_dp_mechanism")

    def fresh() -> Any:
        own = make_fresh_accountant()
        # Not empty is refused by their search, as it is of theirs.
        return accountant_class()(own.neighboring_relation).compose(own.ledger)

    return theirs.calibrate_dp_mechanism(
        fresh,
        make_event_from_param,
        target_epsilon,
        target_delta,
        bracket_interval,
        discrete,
        tol,
    )


_THEIR_NAMES = {"ZERO_OUT": "REPLACE_SPECIAL"}
