"""Composition of mechanisms on the same data."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, overload

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Real

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import is_traced
from .._internal._precision import in_float64
from ..losses import (
    Alternatives,
    ComposedLoss,
    revealed_mixture,
)
from ._base import AbstractMechanism, AbstractWrapped, require_mechanism
from ._exact import Exact, Family
from ._fields import (
    PROBABILITIES,
    STEPS,
    as_float,
    as_known,
    identity,
    is_one,
    product,
    several,
)
from ._joint import Shared, require_joint
from ._random_allocation import SameBatchEpochs
from ._renyi import AbstractRenyi, compose_renyi
from ._renyi_composition import RenyiComposition


class Composition(AbstractWrapped):
    """Independent mechanisms run on the same data, `num_steps[i]` times `parts[i]`.

    Made by `compose` and `repeat`.
    """

    parts: tuple[AbstractMechanism, ...]
    num_steps: tuple[Real[ArrayLike, ""], ...] = eqx.field(metadata=STEPS.metadata)
    _one_release: ClassVar = False

    def __init__(
        self, parts: tuple[AbstractMechanism, ...], num_steps: tuple[Any, ...]
    ):
        self.parts = parts
        self.num_steps = tuple(
            _checks.checked_scalar("num_steps", repetitions_of(part), count)
            for part, count in zip(parts, num_steps, strict=True)
        )
        require_joint(parts, self.num_steps)

    def known_steps(self) -> tuple[float | None, float | None]:
        if len(self.parts) != 1:
            return None, None
        prob, inner = self.parts[0].known_steps()
        times = as_known(self.num_steps[0])
        return prob, None if inner is None or times is None else inner * times

    def as_steps(self) -> tuple[tuple[AbstractMechanism, Any], ...]:
        return tuple(
            (step, None if count is None or times is None else count * times)
            for part, times in zip(self.parts, self.num_steps, strict=True)
            for step, count in part.as_steps()
        )

    def require_many(self, index: int = 0) -> None:
        require_joint((self.parts[index],), (None,))

    def has_fractional_powers(self) -> bool:
        return all(part.has_fractional_powers() for part in self.parts)

    def takes_fractions(self, index: int = 0) -> bool:
        return self.parts[index].has_fractional_powers()

    def simplified(self) -> AbstractMechanism:
        parts, num_steps = [], []
        joined = self._joined()
        for part, times in zip(joined.parts, joined.num_steps, strict=True):
            inner = part.simplified()
            if isinstance(inner, Composition):
                parts += inner.parts
                num_steps += [
                    n if is_one(times) else product(times, n) for n in inner.num_steps
                ]
            else:
                parts.append(inner)
                num_steps.append(times)
        parts, num_steps = _merged(parts, num_steps)
        if len(parts) == 1 and is_one(num_steps[0]):
            return parts[0]
        return Composition.unchecked(parts=parts, num_steps=num_steps)

    def exact(self) -> Exact | None:
        """Gaussian mechanisms together are one."""
        self.require_complete()
        parts = [part.exact() for part in self.parts]
        if any(part is None or part.family is not Family.GAUSSIAN for part in parts):
            return None
        return Exact(Family.GAUSSIAN, (_total_mu(self),))

    def loss(self) -> ComposedLoss:
        terms, counts = [], []
        joined = self._joined()
        for part, times in zip(joined.parts, joined.num_steps, strict=True):
            loss = part.loss()
            terms += loss.terms
            counts += [count * as_float(times) for count in loss.counts]
        return ComposedLoss(tuple(terms), tuple(counts))

    def _joined(self) -> "Composition":
        """With one part for all epochs in which a record keeps its batch."""
        if Shared.SAME_BATCH not in self.shares():
            return self
        steps = self.as_steps()
        kept = [(step, n) for step, n in steps if isinstance(step, SameBatchEpochs)]
        if not kept:
            return self
        others = [x for x in steps if not isinstance(x[0], SameBatchEpochs)]
        together = SameBatchEpochs.together(kept), np.float64(1)
        parts, num_steps = zip(*others, together, strict=True)
        return Composition.unchecked(parts=parts, num_steps=num_steps)

    def _group(self, size):
        parts = tuple(part.group(size) for part in self.parts)
        return Composition(parts, self.num_steps)


def repetitions_of(mechanism: AbstractMechanism) -> Callable[[str, Any], Any]:
    """The check of how often a mechanism is run: whole, unless it has any powers."""
    fractions = mechanism.has_fractional_powers()
    return _checks.nonnegative if fractions else _checks.count


def _merged(
    parts: list[AbstractMechanism], num_steps: list[Any]
) -> tuple[tuple[AbstractMechanism, ...], tuple[Any, ...]]:
    """Different parts, each as often as all that are known to equal it together."""
    found: dict[Any, tuple[AbstractMechanism, Any]] = {}
    for part, times in zip(parts, num_steps, strict=True):
        key = object() if is_traced(times) else identity(part)
        _, before = found.get(key, (part, 0.0))
        total = times if is_traced(times) else np.float64(before + np.asarray(times))
        found[key] = part, total
    merged, counts = zip(*found.values(), strict=True)
    return merged, counts


@in_float64(cast_out=False)
def _total_mu(composition: Composition) -> Array:
    loss = composition.loss()
    pairs = zip(loss.terms, loss.counts, strict=True)
    squares = [count * term.moments(jnp.zeros(()))[2] for term, count in pairs]
    total = sum(squares, start=jnp.zeros(()))
    some = total > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, total, 1.0)), 0.0)


def _compose_renyi(parts: tuple) -> AbstractRenyi:
    """All that is known by Renyi divergences alone, with all other mechanisms."""
    known, others = [], []
    for part in parts:
        if isinstance(part, RenyiComposition):
            known.append(part.known)
            others.append(part.mechanism)
        else:
            (known if isinstance(part, AbstractRenyi) else others).append(part)
    whole = compose_renyi(*known)
    return RenyiComposition(whole, compose(*others)) if others else whole


@overload
def compose(*mechanisms: AbstractMechanism) -> AbstractMechanism: ...
@overload
def compose(*mechanisms: AbstractRenyi) -> AbstractRenyi: ...
@overload
def compose(*mechanisms: Any) -> Any: ...


@explained
def compose(*mechanisms: Any) -> Any:
    """All of these mechanisms on the same data, with independent randomness.

    Runs of which a record keeps its batch (`same_every_epoch`) count as one that goes
    on, which leaks at least as much as runs that are drawn anew.  Where nothing of the
    kind is known, what shares randomness is refused: the noise of a `MatrixMechanism`
    is that of one run, and an epoch that was begun goes on with the same settings.

    Args:
        *mechanisms: At least one, all under the same neighboring relation.  `ZCDP` and
            `RenyiDP` compose among themselves, at the orders that one lists, and with
            mechanisms, of which the Renyi divergences then count.  A symmetric
            trade-off function and a `SelectBest` stand for their `as_mechanism()`.

    Returns:
        The composition, a mechanism; a guarantee by Renyi divergences if that is all
        that is known of a part.  The order does not matter.

    Raises:
        ValueError: If there is none, the relations differ, or they are not independent.
        TypeError: If an argument is not a mechanism.

    Example:
        >>> import fdp_jax as fdp
        >>> both = fdp.compose(fdp.Gaussian(1.0).repeat(3), fdp.Gaussian(2.0))
        >>> print(f"{both.epsilon(delta=1e-5):.6f}")
        8.803463
    """
    _checks.require(mechanisms, "compose needs at least one mechanism", "none")
    if any(isinstance(mechanism, AbstractRenyi) for mechanism in mechanisms):
        return _compose_renyi(mechanisms)
    # The class is asked, as an object without it would look for a similar name.
    mechanisms = tuple(
        m.as_mechanism() if hasattr(type(m), "as_mechanism") else m for m in mechanisms
    )
    _require_alike(mechanisms, "compose")
    return Composition(tuple(mechanisms), tuple(np.float64(1) for _ in mechanisms))


def _require_alike(mechanisms: tuple[AbstractMechanism, ...], caller: str) -> None:
    for mechanism in mechanisms:
        if isinstance(mechanism, list | tuple):
            raise TypeError(
                f"{caller} takes mechanisms, got a {type(mechanism).__name__} of "
                f"{len(mechanism)}: write compose(*mechanisms)"
            )
        require_mechanism(f"every part of {caller}", mechanism)
    relations = {mechanism.relation.name for mechanism in mechanisms}
    if len(relations) > 1:
        raise ValueError(
            "mechanisms must share one neighboring relation, got "
            + " and ".join(sorted(relations))
        )


class RevealedMixture(AbstractWrapped):
    """One of several mechanisms, chosen at random; which one is told.

    delta = sum_i probs[i] delta_i, with probabilities that do not depend on the data.

    Args:
        mechanisms: Mechanisms under one neighboring relation, compositions included.
            (Only a mixture of single releases can be subsampled.)
        probs: Their probabilities, shape (n,), with sum 1.

    Raises:
        ValueError: If the probabilities are none, or the relations differ.
        TypeError: If one is not a mechanism.

    Example:
        >>> import fdp_jax as fdp
        >>> either = fdp.RevealedMixture(
        ...     [fdp.Gaussian(1.0), fdp.Laplace(2.0)], probs=[0.3, 0.7]
        ... )
        >>> print(f"{either.advantage():.6f}")
        0.269717
    """

    mechanisms: Any = eqx.field(
        converter=lambda x: tuple(
            _checks.instance("mechanisms", x, Iterable, "a sequence of mechanisms")
        )
    )
    probs: Any = several("probs", _checks.probabilities, PROBABILITIES, kw_only=True)

    def __check_init__(self):
        count, length = len(self.mechanisms), self.probs.shape[0]
        _checks.require(
            count == length,
            "mechanisms and probs must have one length",
            f"{count} and {length}",
        )
        _require_alike(self.mechanisms, "RevealedMixture")

    def releases_once(self) -> bool:
        return all(mechanism.releases_once() for mechanism in self.mechanisms)

    def simplified(self) -> AbstractMechanism:
        return self.made_with(part.simplified() for part in self.mechanisms)

    def loss(self) -> ComposedLoss:
        probs = as_float(self.probs)
        probs = probs / probs.sum()
        losses = [mechanism.loss() for mechanism in self.mechanisms]
        groups = tuple(
            Alternatives(
                loss.terms, jnp.stack(loss.counts)[None], prob[None], loss.single
            )
            for loss, prob in zip(losses, probs, strict=True)
        )
        groups = tuple(group.absorbed() for group in groups)
        used = [jnp.any((g.counts > 0) & (g.probs > 0)) for g in groups]
        term = revealed_mixture(groups, jnp.zeros_like(probs[0]), idle=False)
        count = jnp.where(jnp.any(jnp.stack(used)), 1.0, 0.0).astype(probs.dtype)
        return ComposedLoss((term,), (count,), single=True)

    def _group(self, size):
        return self.made_with(part.group(size) for part in self.mechanisms)
