"""A running account of what a training has leaked so far."""

import os
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import numpy as np

from .._internal import _checks
from .._internal._calls import explained
from .._internal._concrete import known
from .._internal._search import least_whole
from .._internal._show import Call, Shown
from ..calibration import (
    AbstractTarget,
    UnreachableTarget,
    calibrate,
    require_reachable,
    require_target,
    targets,
)
from ..curves import Bounds, Curve, intersection
from ..losses import ComposedLoss
from ..mechanisms import (
    ADD_OR_REMOVE_ONE,
    AbstractMechanism,
    AbstractRenyi,
    Composition,
    Gaussian,
    NeighboringRelation,
    PoissonSubsampled,
    RenyiComposition,
    Sampling,
    Shared,
    compose_renyi,
    raise_shared,
    relation_field,
    require_joint,
    require_mechanism,
)
from ..tradeoff import dominating_pair
from ._file import read, write
from ._table import MOST, Kind, Table


class Accountant(AbstractMechanism):
    """The account of a run's leakage so far, step by step, whatever its settings were.

    A mechanism, the composition of all steps so far, with all queries of one.  Steps
    may be added inside of compiled training steps, with noise and sampling that are
    traced: that changes neither shapes nor structure once a kind of step has been
    added (Poisson-subsampled Gaussian steps always have).  Steps with equal settings
    share a row of the history, wherever they occur.

    Guarantees by Renyi divergences, such as `ZCDP`, are steps, too: they add up among
    themselves.  Beside other steps a query gives the better of two bounds: from the
    divergences of everything, and from the other steps' privacy loss together with the
    worst pair that the sum of these guarantees allows (`tradeoff.dominating_pair`).  It
    holds in whatever order the steps are taken (Vadhan, Zhang 2023, on interactive
    mechanisms that run beside each other, arXiv:2207.08335).

    Settings must not depend on what earlier steps released: for such choices see
    `fdp_jax.accounting.GaussianFilter` and the other filters and odometers.

    Args:
        relation: The neighboring relation of all steps.
        capacity: How many different settings of each kind of step there is room for
            inside of transformations; outside of them it grows by itself.  A query of
            a traced accountant takes time for all of them.

    Raises:
        ValueError: If the capacity is no whole number from 1 to 2^20.

    Example:
        >>> import fdp_jax as fdp
        >>> accountant = fdp.Accountant()
        >>> step = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=0.01, num_steps=1)
        >>> accountant = accountant.step(step, count=1000)
        >>> print(f"{accountant.epsilon(delta=1e-5):.4f}")
        1.5154
        >>> accountant.remaining(fdp.targets.ApproxDP(epsilon=2.0, delta=1e-5), step)
        725
    """

    tables: tuple[Table, ...]
    capacity: int = eqx.field(static=True)
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)
    _one_release: ClassVar = False

    def __init__(self, *, relation: Any = ADD_OR_REMOVE_ONE, capacity: int = 16):
        self.relation = relation
        self.capacity = _checks.whole("capacity", capacity, 1, 1 << 20)
        # Not converted yet: Equinox does so after this function.
        relation = _checks.member("relation", NeighboringRelation, relation)
        if relation is not NeighboringRelation.REPLACE_ONE:
            usual = PoissonSubsampled(Gaussian(1.0, relation=relation), 0.5)
            self.tables = (Table.empty(usual, self.capacity),)
        else:
            self.tables = ()

    def _shown(self, parent: Any) -> Call:
        shown = super()._shown(parent)
        steps = self.history if self._is_known() else Shown("traced")
        others = [entry for entry in shown.entries if entry[0] != "tables"]
        return Call(shown.name, [("history", steps), *others])

    @explained(count=_checks.one(_checks.count))
    def step(self, mechanism: Any, count: Any = 1) -> "Accountant":
        """The account after some more steps; this one stays as it is.

        Args:
            mechanism: What is released in a step: any mechanism, `ZCDP` or `RenyiDP`,
                or what a dominating pair stands for: a `Curve`, a `SelectBest` or a
                symmetric trade-off function.  Of DP-SGD and of compositions every
                step is entered as one.  Steps may be entered one by one, an epoch at a
                time or all at once: where records keep their batch in all epochs, what
                is entered is one run that goes on.
            count: How often, a whole number.

        Returns:
            The new accountant.

        Raises:
            TypeError: If it is not a mechanism or such a guarantee.
            ValueError: If it has another neighboring relation, or shares randomness
                with earlier steps (see `compose`), or numbers of steps are not whole,
                or there is no more room for another setting (inside of a
                transformation).
        """
        if isinstance(mechanism, AbstractRenyi):
            mechanism.require_complete()
            if mechanism.shares():
                raise_shared(mechanism, way_out="enter the run itself as a mechanism")
            return self._with(mechanism, count)
        mechanism = self._as_mechanism(mechanism)
        mechanism.require_complete()
        require_joint((self, mechanism), (1, count))
        found = self
        for one, times in mechanism.as_steps():
            found = found._with(one, _checks.count("num_steps", times * count))
        return found

    def _as_mechanism(self, step: Any) -> AbstractMechanism:
        """A mechanism that stands for a step, under this relation."""
        if isinstance(step, Curve):
            return dominating_pair(step, relation=self.relation)
        found = getattr(step, "as_mechanism", lambda: step)()
        require_mechanism("mechanism", found)
        _checks.require(
            found.relation is self.relation,
            f"steps must have the relation {self.relation.value!r} of this accountant",
            f"{found.relation.value!r}: start another one with "
            "Accountant(relation=...)",
        )
        return found

    def _with(self, step: Any, count: Any) -> "Accountant":
        kind, tables = Kind.of(step), self._by_kind()
        table = tables.get(kind) or Table.empty(step, self.capacity)
        tables[kind] = table.added(step, count)
        return self._of(tables.values())

    def _by_kind(self) -> dict[Kind, Table]:
        return {table.kind: table for table in self.tables}

    def _of(self, tables: Any) -> "Accountant":
        return eqx.tree_at(lambda a: a.tables, self, tuple(tables))

    def __add__(self, other: "Accountant") -> "Accountant":
        """All steps of both, which saw the same data."""
        if not isinstance(other, Accountant):
            return NotImplemented
        _checks.require(
            other.relation is self.relation,
            "accountants must share one neighboring relation",
            f"{self.relation.value!r} and {other.relation.value!r}",
        )
        require_joint((self, other), (1, 1))
        tables = self._by_kind()
        for kind, table in other._by_kind().items():
            tables[kind] = tables[kind].joined(table) if kind in tables else table
        return self._of(tables.values())

    def repeat(self, num_steps: Any) -> AbstractMechanism:
        """All steps so often; see `AbstractMechanism.repeat`.

        With guarantees by Renyi divergences, known numbers make an account, in which
        these divergences add: the worst pair that they allow would compose to more.
        """
        repeated, times = super().repeat(num_steps), known(num_steps)
        if times is None or times.ndim or times % 1 or self._renyi() is None:
            return repeated
        counts = [np.asarray(x.counts) * float(times) for x in self.tables if x.known]
        if len(counts) < len(self.tables) or np.max(np.concatenate(counts)) > MOST:
            return repeated
        counts = [count.astype(np.int32) for count in counts]
        return eqx.tree_at(lambda a: [x.counts for x in a.tables], self, counts)

    @property
    def history(self) -> tuple[tuple[AbstractMechanism, int], ...]:
        """The different steps so far, with their numbers.

        Raises:
            ValueError: Inside of a transformation that traces them.
        """
        _checks.require(
            self._is_known(), "the history is known outside of transformations only"
        )
        return tuple(entry for table in self.tables for entry in table.entries())

    @property
    def num_steps(self) -> Any:
        """The number of steps so far."""
        return sum(table.counts.sum() for table in self.tables)

    @explained
    def spent(self, target: AbstractTarget) -> Bounds:
        """The quantity that the target limits, as far as the run has got.

        Args:
            target: Of `fdp_jax.targets`: of an (epsilon, delta) it is the epsilon at
                that delta, of error rates beta at that alpha, and so on.

        Returns:
            `Bounds`, to be compared with the target.

        Raises:
            TypeError: If the target limits more than one number.
        """
        return require_target(target).spent_by(self)

    @explained
    def remaining(self, target: AbstractTarget, mechanism: Any) -> int | float:
        """The number of further steps that are certain to meet a target.

        Args:
            target: Of `fdp_jax.targets`.
            mechanism: The steps that are to come, as in `step`.

        Returns:
            The largest whole number; 0 if not even one does, inf if there is no end.

        Raises:
            ValueError: Inside of a transformation, for another relation, a target that
                `calibrate` does not take (but delta = 0), or shared randomness.
            TypeError: Of `ZCDP` or `RenyiDP`, if the target limits several numbers.
        """
        target, once = require_target(target), self.step(mechanism)
        _checks.require(
            once._is_known(), "remaining needs known numbers: ask it outside of jit"
        )
        if isinstance(target, targets.ApproxDP) and target.delta == 0:
            return self._most(target, mechanism, 0)
        require_reachable(target)
        if isinstance(mechanism, AbstractRenyi):
            if not target.at_one_point:
                target.spent_by(once)  # refuses
            left: int | float = 0
            if once._parted()[0].tables:  # worst pairs take less time
                left = self._most(target, mechanism, 0, Accountant.simplified)
            return left if np.isinf(left) else self._most(target, mechanism, int(left))
        # One question first: a search from a target that is spent takes long.
        met = target.is_met(self.simplified()) if self.history else None
        if met is not None and not bool(met):
            return 0
        mechanism = self._as_mechanism(mechanism)
        require_joint((self, mechanism), (1, None))
        count = sum(times for _, times in mechanism.as_steps())
        if not count > 0:
            return np.inf
        if len(once.history) > 1:
            done = Composition((self.simplified(), mechanism), (1.0, 1.0))
            left = _largest(done, "num_steps.1", target)
            if met is None or np.isinf(left) or self._renyi() is None:
                return left
            # All divergences together may show that there are more.
            return self._most(target, mechanism, int(left))
        # One setting alone: a single power, for which bounds are closest.
        step, _ = next(iter(once.history))
        most = _largest(Composition((step,), (1.0,)), "num_steps.0", target)
        left = most - self.num_steps
        return left if np.isinf(left) else max(int(left) // int(count), 0)

    def _most(
        self,
        target: AbstractTarget,
        step: Any,
        least: int,
        seen_as: Callable[["Accountant"], AbstractMechanism] = lambda account: account,
    ) -> int | float:
        """The largest number of steps, from a safe one on, that is seen to be safe."""
        limit = MOST - int(self.num_steps) - least
        at = lambda n: seen_as(self.step(step, least + n))
        first = least_whole(lambda n: not target.is_met(at(n)), limit)
        return np.inf if first > limit else least + first - 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the account to a file: at once or not at all.

        Args:
            path: Where to.

        Raises:
            ValueError: Inside of a transformation.
            TypeError: If a step holds functions, or is a mechanism of your own.
        """
        _checks.require(
            self._is_known(), "save needs known numbers: call it outside of jit"
        )
        write(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Accountant":
        """Reads what `save` wrote, bit by bit.

        Raises:
            ValueError: If the file is damaged or of another version.
        """
        relation, capacity, tables = read(path)
        return cls(relation=relation, capacity=capacity)._of(tables)

    def _is_known(self) -> bool:
        return all(table.known for table in self.tables)

    # ------------------------------------------------------------ as a mechanism

    def _parted(self) -> tuple["Accountant", "Accountant"]:
        """The steps of which all is known, and those of Renyi divergences alone."""
        used = [table for table in self.tables if not table.is_unused()]
        others, renyi = [x for x in used if not x.renyi], [x for x in used if x.renyi]
        return self._of(others), self._of(renyi)

    def _renyi(self) -> AbstractRenyi | None:
        """All guarantees by Renyi divergences together."""
        entries = self._parted()[1]._entries()
        return compose_renyi(*(x._times(n) for x, n in entries)) if entries else None

    def _pairs(self) -> tuple[AbstractMechanism, ...]:
        """The worst pair that these allow, if there are any."""
        renyi = self._renyi()
        return (
            () if renyi is None else (dominating_pair(renyi, relation=self.relation),)
        )

    def _entries(self) -> tuple[tuple[Any, Any], ...]:
        if self._is_known():
            return self.history
        used = [table for table in self.tables if not table.is_unused()]
        return tuple(
            entry
            for table in used
            for entry in zip(table.steps(), table.counts, strict=True)
        )

    def as_steps(self) -> tuple[tuple[AbstractMechanism, Any], ...]:
        pairs = tuple((pair, 1) for pair in self._pairs())
        return self._parted()[0]._entries() + pairs

    def shares(self) -> frozenset[Shared]:
        return frozenset().union(*(table.shares() for table in self.tables))

    def attained(self) -> AbstractMechanism | None:
        certain = [
            table
            for table in self.tables
            if not (table.renyi or table.shares() & _NOT_ATTAINED)
        ]
        if len(certain) < len(self.tables):
            others = self._of(certain)
            return others.attained() or others
        found = [table.attained() for table in self.tables]
        if all(one is None for one in found):
            return None
        pairs = zip(self.tables, found, strict=True)
        return self._of(table if one is None else one for table, one in pairs)

    def samplings(self) -> frozenset[Sampling]:
        used = [table.example() for table in self._parted()[0].tables]
        return frozenset().union(*(step.samplings() for step in used))

    def simplified(self) -> AbstractMechanism:
        if not self._is_known():
            return self._trimmed()
        rest = self._parted()[0]._trimmed()
        pairs = self._pairs()
        if pairs:
            parts = (rest.simplified(), *pairs) if rest.tables else pairs
            return Composition(parts, (1.0,) * len(parts)).simplified()
        if not rest.tables:
            return Gaussian(1.0, relation=self.relation).repeat(0)
        together = Shared.SAME_BATCH in rest.shares()
        if any(table.capacity > 1 for table in rest.tables) and not together:
            return rest
        steps, counts = zip(*self.history, strict=True)
        return Composition(steps, counts).simplified()

    def _trimmed(self) -> "Accountant":
        """Without what is known to be free."""
        used = [table for table in self.tables if not table.is_unused()]
        return self._of(table.trimmed() if table.known else table for table in used)

    def _settled(self, ask, known, *, both, upper):
        renyi, others = self._renyi(), self._parted()[0]
        if renyi is None:
            return super()._settled(ask, known, both=both, upper=upper)
        # The other end of the pair alone is no bound, and would cross.
        found = super()._settled(ask, known, both=True, upper=upper)
        other = ask(RenyiComposition(renyi, others) if others.tables else renyi)
        return intersection(found, other, known())

    def loss(self) -> ComposedLoss:
        parts, steps, counts = [pair.loss() for pair in self._pairs()], [], []
        for table in self._parted()[0].tables:
            if Shared.SAME_BATCH in table.shares():
                steps += table.steps()
                counts += list(table.counts)
            else:
                parts += table.losses()
        if steps:
            whole = Composition.unchecked(parts=tuple(steps), num_steps=tuple(counts))
            parts.append(whole.loss())
        return _joined(parts)

    def _group(self, size):
        mechanism = self.simplified()
        if mechanism is self or isinstance(mechanism, Accountant):
            return super()._group(size)
        return mechanism.group(size)


_NOT_ATTAINED = {Shared.SAME_BATCH, Shared.BEGUN_EPOCH}
"""Of tables of such steps it is not known what is leaked at least."""


def _joined(parts: list[ComposedLoss]) -> ComposedLoss:
    terms = tuple(term for part in parts for term in part.terms)
    return ComposedLoss(terms, tuple(n for part in parts for n in part.counts))


def _largest(
    mechanism: AbstractMechanism, solve_for: str, target: AbstractTarget
) -> int | float:
    """The largest whole number of steps that meets a target."""
    try:
        found = calibrate(mechanism, target, solve_for=solve_for, whole=True)
    except UnreachableTarget:
        return 0
    value = float(found.value)
    return np.inf if bool(found.at_end) else int(value)
