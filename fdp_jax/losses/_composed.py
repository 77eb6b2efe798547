"""Composition: independent losses add, so log-moment functions add."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import optimization_barrier, stop_gradient
from jaxtyping import Array, Float

from .._internal._arithmetic import two_product
from .._internal._concrete import is_traced, known
from .._internal._logs import times
from .._internal._special import log1mexp, safe_log
from ._analytic import is_analytic
from ._base import AbstractLoss, outward
from ._closed_form import AbstractClosedForm
from ._schedule import ScheduleLoss

_MOST_STEPS = 256
"""Of a schedule, for which a grid is worth its time where a contour is known."""
_NEVER = -1e5
"""A logarithm of nothing that is safe to calculate with."""


@dataclasses.dataclass(frozen=True)
class Method:
    """Which engine has to answer, and on how many points if it is the grid."""

    name: str = "auto"
    """One of `engines.METHODS`."""
    points: int = 1 << 17
    split: bool = True
    """Whether laws of many steps may be split by the largest one: programs that can do
    so take about three times as long to compile."""


AUTO = Method()


class ComposedLoss(eqx.Module):
    """The loss of independent releases: `counts[i]` times `terms[i]`.

    Counts may be real numbers where the losses allow it.
    """

    terms: tuple[AbstractLoss, ...]
    counts: tuple[Float[Array, ""], ...]
    single: bool = eqx.field(static=True, default=False)
    """Known to be at most one release, whatever the parameters."""
    method: Method = eqx.field(static=True, default=AUTO)
    ends: "_Ends | None" = None
    """Calculated once and for all, see `with_ends`."""
    nothing: Float[Array, ""] | None = None
    """Of a loss that is safe to evaluate regardless: 1 if nothing is released, else 0,
    and no number if a parameter is none.

    A float, so that a loss can be differentiated.
    """

    @property
    def symmetric(self) -> bool:
        """Whether both directions have the same trade-off function."""
        return all(term.symmetric for term in self.terms)

    @property
    def analytic(self) -> bool:
        """Whether the contour engine can handle it."""
        return all(term.pairs or is_analytic(term) for term in self.terms)

    @property
    def on_grid(self) -> bool:
        """Whether the grid engine can handle it, and in time: it does step by step."""
        schedules = [x for x in self.terms if isinstance(x, ScheduleLoss)]
        steps = (x.counts.size for x in schedules if x.by_steps)
        many = self.analytic and max(steps, default=0) > _MOST_STEPS
        return all(term.on_grid for term in self.terms) and not many

    @property
    def decays(self) -> bool:
        """Whether the characteristic function is known and tends to zero."""
        return self.analytic and any(term.decays for term in self.terms)

    @property
    def has_closed_form(self) -> bool:
        """Whether there is a closed form, from static facts alone."""
        first, alone = self.terms[0], len(self.terms) == 1
        alike = all(type(term) is type(first) for term in self.terms)
        reach = {"one release": alone and self.single, "one kind": alone}
        reach |= {"nothing": False, "all kinds": True}
        return alike and reach[first.in_closed_form]

    def closed_form(self, sign: Float[Array, ""]) -> AbstractClosedForm:
        """The closed form for one direction, 1 for "remove" and -1 for "add"."""
        return self.terms[0].closed_form(self.terms, self.counts, sign)

    def gathered(self) -> "ComposedLoss":
        """This loss with a schedule for each kind of pairs of which there are many.

        A line stacks them anyway, and a grid takes them by one loop.  Of known whole
        counts: others are answered for between whole ones.
        """
        if len(self.terms) < 3:
            return self
        kinds: dict[Any, list[tuple[Any, Array]]] = {}
        stacked = lambda *x: (jnp if is_traced(x) else np).stack(x)
        for i, (term, count) in enumerate(zip(self.terms, self.counts, strict=True)):
            leaves, structure = jax.tree.flatten(term)
            number = known(count)
            whole = number is not None and number == np.round(number) > 0
            alone = term.by_steps or term.in_closed_form == "all kinds"
            alike = whole and term.pairs and is_analytic(term) and not alone
            key = (structure, *map(np.shape, leaves)) if alike else i
            kinds.setdefault(key, []).append((term, count))
        pairs = []
        for own in kinds.values():
            if len(own) > 2:
                stack, counts = jax.tree.map(stacked, *own)
                own = [(ScheduleLoss.of(stack, counts), jnp.ones_like(counts[0]))]
            pairs += own
        terms, counts = zip(*pairs, strict=True)
        return dataclasses.replace(self, terms=terms, counts=counts)

    def tabulated(self) -> "ComposedLoss":
        """This loss, prepared for many evaluations of moments."""
        terms = tuple(term.tabulated() for term in self.terms)
        return dataclasses.replace(self, terms=terms)

    def uncut(self) -> "ComposedLoss":
        """This loss with nothing left out of any term, as transforms need it."""
        terms = tuple(term.uncut() for term in self.terms)
        return dataclasses.replace(self, terms=terms, ends=None)

    def absorbed(self) -> "ComposedLoss":
        """This loss, with powers of terms in place of counts where they are known."""
        terms, counts = [], []
        for term, count in zip(self.terms, self.counts, strict=True):
            some = count > 0
            power = term.powered(jnp.where(some, count, 1.0))
            if power is not None:
                term, count = power, jnp.where(some, 1.0, 0.0)
            terms.append(term)
            counts.append(count)
        return dataclasses.replace(
            self, terms=tuple(terms), counts=tuple(counts), ends=None
        )

    def with_ends(self) -> "ComposedLoss":
        """This loss with its ends calculated, for callers that need them several times.

        No estimate takes a derivative of the range, nor of what only bounds know: at
        the ends of the parameters' ranges there may be none.
        """
        ends = self.calculated_ends()
        fixed = lambda e: (e.loss_range, e.log_supported, e.log_truncated)
        ends = eqx.tree_at(fixed, ends, stop_gradient(fixed(ends)))
        return dataclasses.replace(self, ends=ends)

    def with_moving_ends(self) -> "ComposedLoss":
        """This loss with its ends calculated, all of their derivatives included."""
        return dataclasses.replace(self, ends=self.calculated_ends())

    def without_ends(self) -> "ComposedLoss":
        """This loss without calculated ends, to differentiate all that it holds."""
        return dataclasses.replace(self, ends=None)

    def loss_range(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Essential infimum and supremum of the finite part of X, rounded outward."""
        return self._known_ends().loss_range

    def moving_range(self) -> Float[Array, "2"]:
        """The ends of the loss but for roundings, with their derivatives."""
        each = [
            times(count, jnp.stack(term.loss_range()))
            for term, count in zip(self.terms, self.counts, strict=True)
        ]
        return functools.reduce(jnp.add, each)

    def range_error(self) -> Float[Array, ""]:
        """Excess of the ends over the truth, beyond a few roundings."""
        pairs = zip(self.terms, self.counts, strict=True)
        errors = [times(count, term.range_error()) for term, count in pairs]
        return jnp.sum(jnp.stack(errors))

    def log_finite_mass(self, sign: Float[Array, ""]) -> Float[Array, ""]:
        """Log of the probability that no loss is infinite, or of a lower bound of it.

        Under Q for the pair as given (`sign` 1), under P for it exchanged (-1).  Losses
        that were cut off count as infinite there.
        """
        return _of(self._known_ends().log_finite, sign)

    def log_supported_mass(self, sign: Float[Array, ""]) -> Float[Array, ""]:
        """Log of the probability that no loss is infinite, of what is not cut off."""
        return _of(self._known_ends().log_supported, sign)

    def log_infinite_mass(self, sign: Float[Array, ""]) -> Float[Array, ""]:
        """Log of the probability that some loss is infinite, also where it is tiny."""
        return _of(self._known_ends().log_infinite, sign)

    def log_truncated_mass(self, sign: Float[Array, ""]) -> Float[Array, ""]:
        """Log of a bound on the probability of outputs that were left out."""
        return _of(self._known_ends().log_truncated, sign)

    def _known_ends(self) -> "_Ends":
        return self.calculated_ends() if self.ends is None else self.ends

    @jax.jit
    def calculated_ends(self) -> "_Ends":
        """The ends of the sum, from those of its terms."""
        outers, logs, masses = [], [], []
        for term, count in zip(self.terms, self.counts, strict=True):
            own = term.ends()
            least, most = own.loss_range
            outers.append(_product_downward(count, jnp.stack([least, -most])))
            infinite = jnp.minimum(own.log_infinite, 0)
            least_finite = jnp.minimum(own.log_finite, log1mexp(-infinite))
            logs.append(times(count, jnp.stack([least_finite, own.log_finite])))
            mass = jnp.stack([own.log_infinite, own.log_truncated])
            masses.append(jnp.maximum(mass + safe_log(count), _NEVER))
        outer = functools.reduce(_sum_downward, outers)
        finite, supported = functools.reduce(jnp.add, logs)
        tiny = finite > -1e-12
        mostly = log1mexp(-jnp.where(tiny, -1, finite))
        # The union bound: the sum of count times mass.
        union = functools.reduce(jnp.logaddexp, masses)
        infinite, truncated = jnp.where(union < 0.5 * _NEVER, -jnp.inf, union)
        return _Ends(
            loss_range=(outer[0], -outer[1]),
            log_finite=finite,
            log_supported=supported,
            log_infinite=jnp.where(tiny, infinite, mostly),
            log_truncated=jnp.minimum(truncated, 0),
        )


class _Ends(eqx.Module):
    """A loss at its ends; of two masses, direction "remove" first."""

    loss_range: tuple[Float[Array, ""], Float[Array, ""]]
    log_finite: Float[Array, "2"]
    log_supported: Float[Array, "2"]
    log_infinite: Float[Array, "2"]
    log_truncated: Float[Array, "2"]


def _of(sides: Float[Array, "2"], sign: Array) -> Array:
    return jnp.where(sign > 0, sides[0], sides[1])


def _product_downward(count: Array, value: Array) -> Array:
    """Count value, or a little less where that is rounded."""
    product = times(count, value)
    _, error = two_product(*jnp.broadcast_arrays(count, value))
    exact = (count == 1) | (stop_gradient(error) == 0)
    return jnp.where(exact, product, outward(product, product)[0])


def _sum_downward(one: Array, other: Array) -> Array:
    """The sum, or a little less where that is rounded."""
    total = one + other
    one, other, rounded = optimization_barrier(stop_gradient((one, other, total)))
    added = rounded - one
    exact = (one - (rounded - added)) + (other - added) == 0
    return jnp.where(exact, total, outward(total, total)[0])
