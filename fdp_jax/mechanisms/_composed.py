"""Composition of mechanisms on the same data."""

from typing import Any, ClassVar, overload

import jax
import numpy as np
from jaxtyping import ArrayLike, Real

from .._internal import _checks
from ..losses import ComposedLoss, LaplaceLoss, TwoPointLoss
from ._base import AbstractMechanism, NeighboringRelation
from ._fields import as_float, is_one
from ._renyi import AbstractRenyi, compose_renyi

_WHOLE = (LaplaceLoss, TwoPointLoss)
"""Losses whose fractional powers are not those of any mechanism."""


class Composition(AbstractMechanism):
    """Independent mechanisms run on the same data, `num_steps[i]` times `parts[i]`.

    Made by `compose` and `repeat`.
    """

    parts: tuple[AbstractMechanism, ...]
    num_steps: tuple[Real[ArrayLike, ""], ...]

    relation: ClassVar[NeighboringRelation] = NeighboringRelation.ADD_OR_REMOVE_ONE

    def __init__(
        self, parts: tuple[AbstractMechanism, ...], num_steps: tuple[Any, ...]
    ):
        self.parts = parts
        checked = []
        for part, count in zip(parts, num_steps, strict=True):
            whole = any(isinstance(t, _WHOLE) for t in _terms(part))
            check = _checks.count if whole else _checks.nonnegative
            checked.append(_checks.scalar("num_steps", check("num_steps", count)))
        self.num_steps = tuple(checked)

    def require_complete(self) -> None:
        for part in self.parts:
            part.require_complete()

    def simplified(self) -> AbstractMechanism:
        parts, num_steps = [], []
        for part, times in zip(self.parts, self.num_steps, strict=True):
            inner = part.simplified()
            if isinstance(inner, Composition) and is_one(times):
                parts += inner.parts
                num_steps += inner.num_steps
            else:
                parts.append(inner)
                num_steps.append(times)
        if len(parts) == 1 and is_one(num_steps[0]):
            return parts[0]
        return Composition(tuple(parts), tuple(num_steps))

    def loss(self) -> ComposedLoss:
        terms, counts = [], []
        for part, times in zip(self.parts, self.num_steps, strict=True):
            loss = part.loss()
            terms += loss.terms
            counts += [count * as_float(times) for count in loss.counts]
        return ComposedLoss(tuple(terms), tuple(counts))


def _terms(part: AbstractMechanism) -> tuple:
    """The kinds of loss of a mechanism whose parameters may still be open."""
    if isinstance(part, Composition):
        return tuple(t for p in part.parts for t in _terms(p))
    open_leaves = any(value is None for value in vars(part).values())
    return () if open_leaves else jax.eval_shape(part.loss).terms


def _compose_renyi(parts: tuple) -> AbstractRenyi:
    for part in parts:
        if not isinstance(part, AbstractRenyi):
            raise TypeError(
                "compose cannot mix mechanisms with ZCDP or RenyiDP, got "
                f"{type(part).__name__}: reduce it with divergences.renyi_dp first"
            )
    return compose_renyi(*parts)


@overload
def compose(*mechanisms: AbstractMechanism) -> AbstractMechanism: ...
@overload
def compose(*mechanisms: AbstractRenyi) -> AbstractRenyi: ...


def compose(*mechanisms: Any) -> Any:
    """All of these mechanisms on the same data, with independent randomness.

    Args:
        *mechanisms: At least one, all under the same neighboring relation.  `ZCDP` and
            `RenyiDP` compose among themselves, at the orders that one lists.

    Returns:
        The composition, a mechanism.  The order does not matter.

    Raises:
        ValueError: If there is none, or the relations differ.
        TypeError: If an argument is not a mechanism, or only some are black boxes.

    Example:
        >>> import fdp_jax as fdp
        >>> both = fdp.compose(fdp.Gaussian(1.0).repeat(3), fdp.Gaussian(2.0))
        >>> print(f"{both.epsilon(delta=1e-5):.6f}")
        8.803463
    """
    if not mechanisms:
        raise ValueError("compose needs at least one mechanism, got none")
    if any(isinstance(mechanism, AbstractRenyi) for mechanism in mechanisms):
        return _compose_renyi(mechanisms)
    for mechanism in mechanisms:
        if not isinstance(mechanism, AbstractMechanism):
            raise TypeError(f"compose takes mechanisms, got {mechanism!r}")
    relations = {mechanism.relation.name for mechanism in mechanisms}
    if len(relations) > 1:
        raise ValueError(
            "mechanisms must share one neighboring relation, got "
            + " and ".join(sorted(relations))
        )
    return Composition(tuple(mechanisms), tuple(np.float64(1) for _ in mechanisms))
