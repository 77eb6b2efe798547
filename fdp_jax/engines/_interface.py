"""What every engine offers."""

import abc
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._internal._interval import Interval
from ..losses import ComposedLoss
from ._bounds import Profile


class AbstractPlan(eqx.Module):
    """An engine's plan for the neighborhood of a threshold, by direction."""

    sign: eqx.AbstractVar[Float[Array, "..."]]

    @abc.abstractmethod
    def profile(self, loss: ComposedLoss, epsilons: Float[Array, " e"]) -> Profile:
        """One direction's profile, whose estimates have derivatives."""

    def search(
        self,
        loss: ComposedLoss,
        epsilons: Float[Array, " e"],
        least: Float[Array, " e"],
        *,
        anew: bool = True,
    ) -> "tuple[Profile, AbstractPlan]":
        """One direction's profile without derivative, and the plan for that.

        Args:
            loss: The composed loss.
            epsilons: Thresholds >= 0.
            least: What another direction leaks at least; one that leaks less everywhere
                needs no more than a bound that says so.
            anew: Whether to look for another plan where this one leaves doubt.
        """
        return self.profile(loss, epsilons), self

    def resolution(self, scale: Float[Array, ""]) -> Float[Array, ""]:
        """About the least distance at which thresholds show the pieces of a profile.

        Args:
            scale: Of the profile around the anchor.
        """
        return 1e-5 * scale

    def prepare(self, loss: ComposedLoss) -> "AbstractPlan":
        """The plans of stacked directions, ready for `log_delta` at all thresholds."""
        return self

    def log_delta(self, loss: ComposedLoss, epsilons: Float[Array, " e"]) -> Interval:
        """One direction's log delta at thresholds >= 0, without derivative."""
        none = jnp.full_like(epsilons, -jnp.inf)
        return self.search(loss, epsilons, none)[0].log_delta


class Target(NamedTuple):
    """The delta whose epsilon is sought, as engines need it."""

    log_delta: Float[Array, ""]
    """All of it."""
    finite: Float[Array, " s"]
    """What is left of it for finite losses, by direction."""
    slack: Float[Array, "s 2"]
    """By how much the latter may be less, for the lower and the upper end."""
    largest: Float[Array, " s"]
    """All of it, with what was truncated: for the lower end."""


class AbstractEngine(eqx.Module):
    """One way from a composed loss to certified numbers.

    `sign` is +1 for the direction "remove" (the pair as given) and -1 for "add" (the
    pair exchanged).  Losses have been made safe by `neutral`.
    """

    name: eqx.AbstractVar[str]
    """As users ask for it."""
    anchored: ClassVar[bool] = False
    """Whether a plan says little of thresholds that are far from its own."""
    coarse: ClassVar[bool] = False
    """Whether every threshold takes long, and is known only roughly beforehand."""

    @abc.abstractmethod
    def serves(self, loss: ComposedLoss) -> bool:
        """Whether it can handle a loss, from static facts alone."""

    def made_safe(self, loss: ComposedLoss) -> ComposedLoss:
        """The loss in the form in which the engine takes it."""
        return loss

    @abc.abstractmethod
    def plan(
        self,
        loss: ComposedLoss,
        signs: Float[Array, " s"],
        anchor: Float[Array, ""],
        gap: ArrayLike,
    ) -> AbstractPlan:
        """Plans of stacked directions for thresholds at most `gap` from an anchor."""

    @abc.abstractmethod
    def epsilon(
        self, loss: ComposedLoss, signs: Float[Array, " s"], target: Target
    ) -> Interval:
        """The epsilon of a delta, for the worst direction."""

    @abc.abstractmethod
    def threshold(
        self,
        loss: ComposedLoss,
        sign: Float[Array, ""],
        log_alpha: Float[Array, ""],
        log_not_alpha: Float[Array, ""],
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The threshold of a type I error, and the scale of the profile there."""

    def exact_rates(
        self,
        loss: ComposedLoss,
        signs: Float[Array, " s"],
        log_alpha: Float[Array, ""],
        log_tnr: Float[Array, ""],
    ) -> tuple[Interval, Interval] | None:
        """Logs of f and 1 - f where all kinks of f are known, else None."""
