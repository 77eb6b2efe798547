"""Which data sets are neighbors, and how far a statistic moves between them."""

import enum
from typing import Any

import equinox as eqx
from jaxtyping import ArrayLike, Real

from .._internal import _checks
from .._internal._calls import explained
from .._internal._record import Record
from ._fields import (
    OPTION,
    as_number,
)


class NeighboringRelation(enum.Enum):
    """Which data sets count as neighbors.

    Wherever one is taken, its name or its value will do: "replace_one".
    """

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    """One has a record that the other lacks."""
    REPLACE_ONE = "replace_one"
    """One record differs."""
    ZERO_OUT = "zero_out"
    """One record is replaced by an empty one, which contributes nothing."""


ADD_OR_REMOVE_ONE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE = NeighboringRelation.REPLACE_ONE
ZERO_OUT = NeighboringRelation.ZERO_OUT


def relation_field(default: NeighboringRelation) -> Any:
    """The relation a mechanism's parameters refer to; a static, keyword-only field."""
    return eqx.field(
        static=True,
        default=default,
        kw_only=True,
        converter=_relation,
        metadata=OPTION,
    )


def _relation(value: Any) -> NeighboringRelation:
    return _checks.member("relation", NeighboringRelation, value)


class Sensitivity(Record):
    """Largest change of a statistic by neighbors, in a stated norm and relation.

    Args:
        value: The largest distance, in (0, inf).
        norm: "l1", "l2", or "absolute" for a single number.
        relation: The neighboring relation it holds for.

    Raises:
        ValueError: If the value is not positive and finite or the norm is unknown.

    Example:
        >>> import fdp_jax as fdp
        >>> relation = fdp.NeighboringRelation.REPLACE_ONE
        >>> moved = fdp.Sensitivity.of_clipped_sum(1.0, norm="l2", relation=relation)
        >>> float(moved.value)
        2.0
    """

    value: Real[ArrayLike, ""] = _checks.field("sensitivity", _checks.finite_positive)
    norm: str = eqx.field(static=True, kw_only=True)
    relation: NeighboringRelation = eqx.field(
        static=True, kw_only=True, converter=_relation
    )

    def __check_init__(self):
        _checks.choice("norm", self.norm, _NORMS)

    @classmethod
    @explained(clipping_norm=_checks.finite_positive)
    def of_clipped_sum(
        cls, clipping_norm: Any, *, norm: str, relation: NeighboringRelation
    ) -> "Sensitivity":
        """Sensitivity of a sum of contributions, each clipped to a norm.

        Args:
            clipping_norm: Largest norm of one record's contribution, in (0, inf).
            norm: In which it is measured.
            relation: Replacing a record can move the sum by twice the clipping norm,
                adding, removing or zeroing it out by once.

        Returns:
            The sensitivity.

        Raises:
            ValueError: If clipping_norm is not positive and finite.
        """
        times = 2 if _relation(relation) is REPLACE_ONE else 1
        return cls(times * clipping_norm, norm=norm, relation=relation)

    def in_norm(self, *allowed: str) -> Any:
        """The value, if it is in a norm that a mechanism's theorem covers."""
        _checks.require(
            self.norm in allowed,
            f"sensitivity must be in one of the norms {allowed}",
            f"{self.norm!r}",
        )
        return as_number(self.value)


_NORMS = ("l1", "l2", "absolute")
