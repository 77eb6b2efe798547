"""What is released: mechanisms, their neighbors and their two directions."""

import abc
import dataclasses
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from .._internal._picture import Lines
from .._internal._record import described, refuse
from .._internal._show import Call
from ..curves import (
    AbstractGuarantee,
    Bounds,
    Curve,
    ProfilePoint,
    Range,
    pessimistic,
    with_attained,
)
from ..losses import AUTO, AbstractLoss, ComposedLoss, Method
from ._arithmetic import NoArithmetic
from ._exact import Exact
from ._fields import Declared, option, options_of, pieces
from ._joint import Shared
from ._names import NamesToAsk
from ._relations import REPLACE_ONE, NeighboringRelation
from ._resolve import has_ladder, resolve
from ._sampling import Sampling
from ._using import check_method, check_points, choices


class _Query(NamesToAsk, AbstractGuarantee):
    """Answers by the engines, for the direction of the concrete class."""

    _warns = True

    @abc.abstractmethod
    def _subject(self) -> tuple["AbstractMechanism", str, Method]:
        """The mechanism, the direction to ask for, and the engine."""

    @explained(method=check_method, split=_checks.flag)
    def using(
        self, method: str, *, points: int | None = None, split: bool = True
    ) -> "View":
        """This guarantee, computed by a given engine.

        Args:
            method: "closed_form"; "contour" (sums of transforms along a line of the
                complex plane, of all smooth losses; formerly "spectral"); "grid"
                (discretized losses composed by FFT); or "auto", the default: one after
                the other while the answer is loose.  Inside of `jax.jit` (on CPUs)
                "auto" calls back to the programs of plain calls; a named engine is part
                of the program.
            points: For "grid": how many grid points, a power of two from 2^10 to 2^26;
                2^17 if not given ("auto" takes 2^13 where they hold the lattice of
                discrete noise).  What the certificate allows for falls with the
                square, time and memory grow in proportion: for very many releases.
            split: Whether the law of many steps of DP-SGD may be split by its largest
                one, which rare participations and few steps need.  Programs without
                that compile in less than half the time; what they cannot certify then
                is LOOSE.

        Returns:
            An object with the same queries.

        Raises:
            ValueError: If there is no such engine, or (from a query) if it is not
                available for this composition.
        """
        if points is not None:
            check_points(method, points)
        mechanism, direction, _ = self._subject()
        size = Method.points if points is None else int(points)
        return View(mechanism, direction, Method(method, size, split))

    def _has_ladder(self) -> bool:
        return has_ladder(self)

    def _solve(self, delta: Any) -> Bounds:
        return resolve(self).first._solve(delta)

    def _profile(self, epsilon: Any) -> ProfilePoint:
        return resolve(self).profile(epsilon)

    def _error_rate_bounds(self, alpha: Any) -> tuple[Bounds, Bounds]:
        return resolve(self).first._error_rate_bounds(alpha)

    def _settled(
        self,
        ask: Callable[[AbstractGuarantee], Bounds],
        known: Callable[[], Range],
        *,
        both: bool,
        upper: bool,
    ) -> Bounds:
        subject = resolve(self)
        found = subject.settled(ask, known, upper=upper)
        if subject.attained is None or not both:
            return found
        direction = subject.whole.direction
        if subject.attained.relation is REPLACE_ONE:
            direction = "both"  # either data set may be the one with the record
        below = View(subject.attained, direction)
        other = below._settled(ask, known, both=True, upper=upper)
        return with_attained(found, other, known(), upper=upper)


def _mark(mechanism: Any) -> Any:
    """No leaf, or one without entries, for the options that are not the default."""
    stated = options_of(mechanism)
    if not stated:
        return ()
    return np.zeros((0, 1 + zlib.crc32(", ".join(stated).encode()) % 65_521))


class AbstractMechanism(Declared, NoArithmetic, _Query):
    """A mechanism under a stated neighboring relation.

    Queries on the mechanism itself hold for both directions of the relation;
    `.remove` and `.add` look at one each.  Numeric parameters are leaves: they may be
    traced, differentiated and batched with `jax.vmap`.

    `equinox.tree_serialise_leaves` writes the leaves alone.  So that what was saved
    under another relation (or for another number of categories, ...) is refused by
    `equinox.tree_deserialise_leaves` rather than taken for this mechanism, options
    other than the default ones leave a mark among the leaves: an array without entries,
    whose shape says which they are.  The class itself leaves none.
    """

    _static_options: Any = eqx.field(init=False, repr=False, default=())
    """The mark, the first leaf: what stands there in a file without one is a number."""

    _one_release: ClassVar[bool] = True
    _divisible: ClassVar[bool] = False
    """Of the class: what `releases_once` and `has_fractional_powers` say."""
    _for_one_record: ClassVar[tuple[str, str]] = "", ""
    """Of what there is no guarantee for groups of records, and why."""

    def __check_init__(self):
        object.__setattr__(self, "_static_options", _mark(self))

    if TYPE_CHECKING:  # a field of this class would come before all others
        relation: ClassVar[Any]
        """The `NeighboringRelation` that the parameters and the guarantee refer to."""

    def _shown(self, parent: Any) -> Call:
        """With the relation, but for parts of a mechanism that has the same."""
        shown = super()._shown(parent)
        entries = [entry for entry in shown.entries if entry[0] != "relation"]
        told = isinstance(parent, AbstractMechanism)
        if not (told and parent.relation is self.relation):
            entries.append(("relation", self.relation))
        return Call(shown.name, entries)

    def _drawn(self) -> Lines | None:
        exact = self.exact()
        return None if exact is None else exact.lines()

    @abc.abstractmethod
    def loss(self) -> ComposedLoss:
        """The privacy loss of the dominating pair, direction "remove"."""

    def made_of(self) -> "list[AbstractMechanism]":
        """The mechanisms among its fields."""
        return pieces(self, AbstractMechanism)

    def made_with(self, others: "Iterable[AbstractMechanism]") -> Self:
        """This mechanism, made of other ones, unchecked."""
        rest = iter(others)
        is_one = lambda x: x is not self and isinstance(x, AbstractMechanism)
        replaced = lambda x: next(rest) if is_one(x) else x
        return jax.tree.map(replaced, self, is_leaf=is_one)

    def simplified(self) -> "AbstractMechanism":
        """An equal mechanism with the simplest structure that concrete counts allow.

        A single release often has a closed form; whether there is one must be known
        before the numbers are traced.
        """
        return self

    def exact(self) -> Exact | None:
        """The trade-off function in closed form, where it has one of a named family."""
        return None

    def alone(self, way: str) -> "AbstractMechanism":
        """One with the same guarantee in a direction, or "both" of them together.

        Its composition need not have that of this one's.
        """
        return self

    def attained(self) -> "AbstractMechanism | None":
        """A mechanism that leaks no more than this one does for some data sets.

        Where the pair of `loss` is only known to dominate, lower bounds of what is
        leaked (upper ones of error rates) are this one's.  None if they are the pair's.
        What is made of other mechanisms leaks no more where these do not.
        """
        parts = self.made_of()
        found = [part.attained() for part in parts]
        if all(one is None for one in found):
            return None
        pairs = zip(parts, found, strict=True)
        return self.made_with(part if one is None else one for part, one in pairs)

    def rescaled(self, solve_for: str) -> "tuple[AbstractMechanism, Any] | None":
        """This guarantee with a parameter in another unit, if one is simpler.

        Args:
            solve_for: Its name.

        Returns:
            A mechanism with a single open parameter of that name, and the factor that
            takes its value to this mechanism's; or None.  So what `calibrate` searches
            does not depend on the numbers that the factor is made of.
        """

    def releases_once(self) -> bool:
        """Whether this is a single release, whatever the parameters."""
        return self._one_release

    def has_fractional_powers(self) -> bool:
        """Whether it may be repeated any real number of times, and not only whole ones.

        Known without its numbers, so also where these are traced or not yet set.
        """
        return self._divisible

    def takes_fractions(self, index: int = 0) -> bool:
        """Whether its own `num_steps` (the one of an index) may be any real number."""
        return False

    def require_many(self, index: int = 0) -> None:
        """Raises `ValueError` if more than one of its `num_steps` share randomness."""

    def known_steps(self) -> tuple[float | None, float | None]:
        """Sampling probability and number of its steps, as far as they are known.

        Not known is what is traced or not set, or differs from step to step.
        """
        return None, 1.0 if self.releases_once() else None

    def as_steps(self) -> tuple[tuple["AbstractMechanism", Any], ...]:
        """The single releases that it consists of, and how often each is made."""
        return ((self, 1),)

    def shares(self) -> frozenset[Shared]:
        """Parts that later releases of the same run may share with it, beside the data.

        Nothing if whatever is random is drawn anew in each of its releases, given the
        data: these alone compose as they stand.  Known from the structure, also where
        numbers are traced or not yet set.
        """
        return frozenset().union(*(part.shares() for part in self.made_of()))

    _scheme: ClassVar[Sampling | None] = None
    """The scheme by which it samples itself."""

    def samplings(self) -> frozenset[Sampling]:
        """Schemes by which records are drawn, for reports: all that occur.

        Empty if every record takes part in everything.
        """
        own = frozenset() if self._scheme is None else frozenset({self._scheme})
        return own.union(*(part.samplings() for part in self.made_of()))

    @explained(size=_checks.whole_in(1, 64))
    def group(self, size: int) -> "AbstractMechanism":
        """This mechanism's guarantee for `size` records changed in the same way.

        For Poisson-subsampled Gaussians, additive noise and compositions of these this
        is the exact pair; otherwise the trade-off function 1 - (1 - f)^(size), size
        times composed as a function (Dong, Roth, Su 2022, Theorem 2.14).

        Args:
            size: Number of records, 1 to 64.

        Returns:
            A mechanism, whose relation counts groups.

        Raises:
            ValueError: If size is not a whole number from 1 to 64, or the group's
                guarantee is not available.
        """
        return self if size == 1 else self._group(size)

    def _group(self, size: int) -> "AbstractMechanism":
        from ._group import Group

        what, why = self._for_one_record
        _checks.require(not what, f"size must be 1 for {what}", f"{size}: {why}")
        return Group(self, size)

    def _subject(self):
        return self, "both", AUTO

    @property
    def remove(self) -> "View":
        """With the record (Q) against without (P): dp-accounting's pmf_remove."""
        return View(self, "remove")

    @property
    def add(self) -> "View":
        """Without the record against with it: the pair exchanged."""
        return View(self, "add")

    @explained
    def repeat(self, num_steps: Any) -> "AbstractMechanism":
        """This mechanism, run `num_steps` times on the same data.

        Args:
            num_steps: Number of releases, at least 0.  Real numbers are allowed for
                Gaussian and Poisson-subsampled Gaussian mechanisms, where they
                interpolate the guarantee smoothly; others take whole numbers.

        Returns:
            The composition, a mechanism.

        Raises:
            ValueError: If num_steps is negative or NaN, or releases would share
                randomness (see `compose`).
        """
        from ._composed import Composition

        return Composition((self,), (num_steps,))

    @explained(num_points=_checks.whole_in(8, 1 << 20))
    def curve(self, *, num_points: int = 129) -> Curve:
        """The whole guarantee on a shared grid, as certified data.

        Args:
            num_points: Thresholds eps >= 0 in each direction (static, at least 8);
                there are as many negative ones.

        Returns:
            A `Curve`, with the queries of a mechanism.

        Raises:
            ValueError: If num_points is out of range or a parameter is not set.
        """
        asked = resolve(self)
        found = asked.curve(np.linspace(0.0, 1.0, num_points))
        return found if asked.attained is None else pessimistic(found)


def require_mechanism(name: str, value: Any) -> AbstractMechanism:
    """The argument, if it is a mechanism.

    Raises:
        TypeError: If it is not, with what was probably meant.
    """
    if isinstance(value, AbstractMechanism):
        return value
    _checks.require(
        not isinstance(value, View),
        f"{name} must be a whole mechanism",
        f"{described(value)}: take the direction or the engine of the whole, as in "
        "compose(one, other).remove",
        TypeError,
    )
    from .. import mechanisms

    wanted = "a mechanism"
    if isinstance(value, AbstractGuarantee):
        wanted += " or fdp_jax.tradeoff.dominating_pair(guarantee, relation=...)"
    refuse(name, value, wanted, mechanisms, mechanisms.DPSGD)


def require_guarantee(name: str, value: Any) -> AbstractGuarantee:
    """The argument, if it answers the queries of a guarantee.

    Raises:
        TypeError: If it does not, with what was probably meant.
    """
    if isinstance(value, AbstractGuarantee):
        return value
    from .. import mechanisms

    wanted = "a mechanism, one direction of it or a curve"
    refuse(name, value, wanted, mechanisms, mechanisms.DPSGD)


class View(_Query):
    """A mechanism's guarantee in one direction, or by a given engine."""

    mechanism: AbstractMechanism
    direction: str = option("direction", _checks.choice, ("remove", "add", "both"))
    method: Method = eqx.field(static=True, default=AUTO)

    def _shown(self, parent: Any) -> Call:
        shown = self.mechanism._shown(parent)
        shown.after += "" if self.direction == "both" else f".{self.direction}"
        if self.method != AUTO:
            shown.after += f".using({choices(self.method)})"
        return shown

    def _subject(self):
        return self.mechanism, self.direction, self.method

    @property
    def remove(self) -> "View":
        """The remove direction, by the same engine."""
        return self._one_way("remove")

    @property
    def add(self) -> "View":
        """The add direction, by the same engine."""
        return self._one_way("add")

    def _one_way(self, direction: str) -> "View":
        _checks.require(
            self.direction in ("both", direction),
            f"{direction} is not a part of one direction",
            wrong=AttributeError,
        )
        return dataclasses.replace(self, direction=direction)


class AbstractWrapped(AbstractMechanism):
    """Made of other mechanisms, whose relation it has."""

    @property
    def relation(self) -> NeighboringRelation:
        return self.made_of()[0].relation


def least_of(mechanism: AbstractMechanism) -> AbstractMechanism:
    """A mechanism that leaks no more, for some data sets: it may be itself."""
    found = mechanism.attained()
    return mechanism if found is None else found


def one_release(term: AbstractLoss) -> ComposedLoss:
    """A single release of a loss."""
    return ComposedLoss((term,), (jnp.ones(()),), single=True)
