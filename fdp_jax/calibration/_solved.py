"""The solution of a calibration, by one engine or several."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, PyTree

from .. import engines
from .._internal import _checks
from .._internal._batching import one_by_one
from .._internal._concrete import (
    evaluates_at_once,
    held_fixed,
    holds_anywhere,
    is_traced,
    outside_transformations,
)
from .._internal._host import (
    asked_of_host,
    calls_the_host,
    closes_over_traced,
    may_ask_the_host,
    on_one_cpu,
    whole_programs,
)
from .._internal._implicit import implicit_root
from .._internal._precision import (
    float_dtype,
    in_float64,
    round_down_to_single,
)
from ..comparison.sources import Request
from ..curves import (
    Status,
    over_signs,
    signs_of,
    with_gradient,
)
from ..losses import AUTO, ComposedLoss, Method
from ..mechanisms import (
    AbstractMechanism,
    AbstractRenyi,
    View,
    is_rare,
    loss_like,
    needs_no_splitting,
)
from ..selection import SelectBest
from ._search import Solution, solve
from ._targets import AbstractTarget, Margin
from .unknowns import Unknown

_TIGHT = 5e-3
"""How far off its root a value may be to be called certified, relatively.  Those
for whole curves are a thousandth off where all is well."""
_SPARE = 100
"""Logits are steeper than that in no parameter's logarithm, about."""
_NUDGES, _FIRST_NUDGE = 8, 1e-12
"""Steps, and the first one's relative size, in which a value is moved until met."""
_NARROW = 1e-6
"""Width of the certificate that queries call certified, relative to what is limited."""
_FEW_POINTS = 1 << 12
"""Of a grid that says about where rates are met that are asked for one by one."""


class Solved(eqx.Module):
    """The fields of a `Calibration` that a search finds."""

    value: Array
    status: Array
    binding: dict[str, Array]
    leaks: Array
    at_end: Array


def found_for(
    mechanism: AbstractMechanism | SelectBest,
    target: AbstractTarget,
    unknown: Unknown,
    method: Method,
) -> Solved:
    """The solution, by the programs of plain calls wherever a program may call back."""
    asked = mechanism, target
    here = method != AUTO or not calls_the_host()
    if isinstance(mechanism, SelectBest):
        here = not is_traced(jax.tree.map(held_fixed, asked))
        _checks.require(
            here or on_one_cpu(),
            "selections are calibrated outside of jit and vmap, or on one CPU device",
            wrong=TypeError,
        )
    if here or not is_traced(asked) or closes_over_traced((asked, unknown)):
        with whole_programs(method != AUTO):
            found = _best(*asked, unknown, method)
        batch = method == AUTO and evaluates_at_once() and is_traced(found.status)
        doubt = batch and holds_anywhere(found.status == Status.LOOSE)
        if not doubt or not may_ask_the_host() or closes_over_traced((asked, unknown)):
            return found
    number, flag = (jax.ShapeDtypeStruct((), x) for x in (float_dtype(), bool))
    status, names = jax.ShapeDtypeStruct((), np.int32), list(target.binds)
    kinds = [(number, True), (status, False), (number, False), (flag, False)]

    def on_host(asked: tuple[AbstractMechanism, AbstractTarget]) -> list[Array]:
        found = _best(*asked, unknown, method)
        where = [found.binding[name] for name in names]
        return [found.value, found.status, found.leaks, found.at_end, *where]

    value, status, leaks, at_end, *where = asked_of_host(
        on_host, asked, [*kinds, *[(number, False) for _ in names]]
    )
    return Solved(value, status, dict(zip(names, where, strict=True)), leaks, at_end)


def _best(
    mechanism: AbstractMechanism | SelectBest,
    target: AbstractTarget,
    unknown: Unknown,
    method: Method,
) -> Solved:
    """The riskier of what the engines can certify, where more than one is asked."""
    if isinstance(mechanism, SelectBest):
        return _by_questions(mechanism, target, unknown)
    ask = functools.partial(
        _solve,
        mechanism,
        made_ready(target),
        unknown=unknown,
        single=jnp.asarray(float_dtype() == np.float32),
    )
    if isinstance(mechanism, AbstractRenyi):
        return ask(method=method)
    looks = evaluates_at_once()
    steps, like = _known_of(mechanism, unknown)
    splits = method.name != "grid" and engines.can_split(like)
    of_lines = method == AUTO and engines.route(like) == "contour"
    asks = (
        of_lines
        and target.at_one_point
        and not unknown.counts
        and outside_transformations()
    )
    spared = splits and (looks or needs_no_splitting(steps, like))
    first = dataclasses.replace(method, split=method.split and not spared)
    rough = Method("grid", points=_FEW_POINTS) if like.on_grid else AUTO
    if asks and splits and is_rare(steps, 1.0):
        found = _by_questions(mechanism, target, unknown, rough)
    else:
        found = ask(method=first)
        doubt = looks and holds_anywhere(found.status != Status.TIGHT)
        # Of the rates of a law that is split the program is the largest of all.
        if doubt and first != method and (target.of_profile or not asks):
            found = ask(method=method)
        if asks and int(found.status) != Status.TIGHT:
            other = _by_questions(mechanism, target, unknown, rough)
            found = found if int(other.status) == Status.VACUOUS else other
    found = _met(found, mechanism, target, unknown)
    done = asks or not looks or not of_lines or is_traced(found.status)
    if done or not like.on_grid or int(found.status) != Status.LOOSE:
        return found
    grid = Method("grid")
    held: list[Any] = jax.tree.map(held_fixed, [found, mechanism, target])
    with jax.core.eval_context():  # known numbers, of which nothing is differentiated
        completed = unknown.put(held[1], held[0].value)
        if not meets(completed, made_ready(held[2]), method=grid)[0]:
            return found
    other = ask(method=grid)
    # Not a number, if the grid has none, is not further.
    further = held_fixed(other.value) - held[0].value
    return other if held[0].leaks * further > 0 else found


def _known_of(mechanism: AbstractMechanism, unknown: Unknown) -> tuple[tuple, Any]:
    """The known steps, and the loss without its numbers: what no value decides."""
    steps = (None, None) if unknown.factor else mechanism.known_steps()
    return steps, loss_like(unknown.filled(mechanism))


def _met(
    found: Solved,
    mechanism: AbstractMechanism,
    target: AbstractTarget,
    unknown: Unknown,
) -> Solved:
    """The solution, or one next to it at which a query sees that the target is met.

    A query may be answered by another engine than the search's, whose bracket reaches
    a little farther.
    """
    if not outside_transformations() or not target.at_one_point:
        return found
    value, leaks = np.asarray(found.value), found.leaks
    if not np.isfinite(value):
        return found
    for count in range(_NUDGES):
        jump = count if unknown.whole else _FIRST_NUDGE * 8**count * np.abs(value)
        moved = value - leaks * jump * (count > 0)
        # NumPy's: JAX has no room for 10^15 in programs of float32.
        moved = jnp.asarray(np.clip(moved, unknown.lowest, unknown.highest))
        if float_dtype() == np.float32:
            moved = in_single(moved, unknown, leaks)
        if bool(target.is_met(unknown.put(mechanism, moved))):
            return dataclasses.replace(found, value=moved) if count else found
    return found


def made_ready(target: AbstractTarget) -> AbstractTarget:
    """The target with the losses of its references, for a compiled program."""
    is_request = lambda x: isinstance(x, Request)
    return jax.tree.map(
        lambda x: x.resolved() if is_request(x) else x, target, is_leaf=is_request
    )


def loss_of(mechanism: AbstractMechanism, method: Method) -> ComposedLoss:
    """The privacy loss of both directions together, to be handled by a given engine."""
    return dataclasses.replace(mechanism.alone("both").loss(), method=method)


@in_float64
def meets(
    mechanism: AbstractMechanism, target: AbstractTarget, *, method: Method
) -> tuple[Array, dict[str, Array]]:
    """Whether a mechanism certainly meets a target, and where it binds."""
    mechanism, target = jax.tree.map(jnp.asarray, (mechanism, target))
    found: Margin = target.margin(loss_of(mechanism, method))
    return found.excess.upper <= 0, dict(zip(target.binds, found.binding, strict=True))


@dataclasses.dataclass(frozen=True)
class Excess:
    """Margin of the completed mechanism as a function of the unknown's t."""

    unknown: Unknown
    method: Method

    def margin(
        self, value: Array, args: tuple[AbstractMechanism, AbstractTarget]
    ) -> Margin:
        mechanism, target = args
        mechanism = self.unknown.put(mechanism, value)
        if isinstance(mechanism, AbstractRenyi):
            return target.margin(mechanism)
        return target.margin(loss_of(mechanism, self.method))

    def rough(self, t: Array, args: tuple[AbstractMechanism, AbstractTarget]) -> Array:
        """A cheap approximation: saddle points instead of contour integrals."""
        mechanism, target = args
        if isinstance(mechanism, AbstractRenyi):
            return self(t, args, ())
        loss = self.unknown.put(mechanism, self.unknown.at(t)).loss()

        def at(epsilon: Array) -> Array:
            return over_signs(
                lambda sign: engines.rough_log_delta(loss, sign, epsilon),
                signs_of(loss, "both"),
            )

        epsilons, log_deltas = target.proxy()
        return jnp.max(jax.vmap(at)(epsilons) - log_deltas[:, None])

    def __call__(self, t: Array, args: PyTree, aux: tuple[()]) -> Array:
        return self.margin(self.unknown.at(t), args).excess.estimate


@in_float64
def _solve(
    mechanism: AbstractMechanism,
    target: AbstractTarget,
    *,
    unknown: Unknown,
    single: Array,
    method: Method,
) -> Solved:
    excess = Excess(unknown, method)
    args = jax.tree.map(jnp.asarray, (mechanism, target))

    @one_by_one
    def search(args: tuple[AbstractMechanism, AbstractTarget]) -> tuple:
        return solve(
            lambda value: excess.margin(value, args),
            lambda t: excess.rough(t, args),
            unknown,
            len(target.binds),
        )

    found, leaks = search(stop_gradient(args))
    root = implicit_root(excess, found.t, args, ()) if not unknown.whole else found.t
    return _rate(found, leaks, root, target, unknown=unknown, single=single)


def _rate(
    found: Solution,
    leaks: Array,
    root: Any,
    target: AbstractTarget,
    *,
    unknown: Unknown,
    single: Any,
) -> Solved:
    """What a search has found, with its status and the derivative of the root."""
    value = jnp.where(single, in_single(found.value, unknown, leaks), found.value)
    if not unknown.whole:
        # Where the whole range meets the target, nothing moves its end.
        value = with_gradient(value, unknown.at(jnp.where(found.inside, root, found.t)))
    met = found.met & target.reachable()[0]
    value = jnp.where(met, value, jnp.nan)
    tight = jnp.abs(value - unknown.at(found.t)) <= _TIGHT * jnp.abs(value)
    # Estimates may jump over the target, from where one falls back on a bound.
    tight = tight & (found.spare <= _SPARE * _TIGHT)
    tight = tight | unknown.whole | ~found.inside
    if target.at_one_point:
        tight = tight & (found.width * target.share() <= _NARROW)
    status = jnp.where(tight, Status.TIGHT, Status.LOOSE)
    status = jnp.where(met, status, Status.VACUOUS).astype(jnp.int32)
    binding = dict(zip(target.binds, found.binding, strict=True))
    return Solved(value, status, binding, leaks, found.at_end)


_rated = in_float64(_rate)


def _by_questions(
    mechanism: AbstractMechanism | SelectBest,
    target: AbstractTarget,
    unknown: Unknown,
    rough: Method = AUTO,
) -> Solved:
    """The solution for a guarantee that answers in many programs, by plain calls."""
    leaves, structure = jax.tree.flatten((mechanism, target))
    held = [np.asarray(held_fixed(x), np.result_type(x, np.float32)) for x in leaves]
    moving = [i for i, x in enumerate(leaves) if is_traced(x)]
    single = np.asarray(float_dtype() == np.float32)

    def margin(value: Any, *moved: Any, by: Method = AUTO) -> Margin:
        known = dict(enumerate(held)) | dict(zip(moving, moved, strict=False))
        run, goal = jax.tree.unflatten(structure, known.values())
        with jax.disable_jit(False):
            run = unknown.put(run, value)
            return goal.margin(run if by == AUTO else View(run, "both", by))

    near = lambda t: margin(unknown.at(t), by=rough).excess.estimate
    excess = lambda t, *moved: margin(unknown.at(t), *moved).excess.estimate
    with jax.core.eval_context(), jax.enable_x64(True):
        with jax.disable_jit():  # loops of Python
            found, leaks = solve(margin, near, unknown, len(target.binds))
        slopes = []
        if moving and not unknown.whole:
            at = found.t, *(jnp.asarray(held[i]) for i in moving)
            fall, *slopes = jax.grad(excess, tuple(range(len(at))))(*at)
            slopes = [np.asarray(-x / fall) for x in slopes]
    root = np.asarray(found.t)
    for i, slope in zip(moving, slopes, strict=False):
        # Only its derivative counts.
        root = root + jnp.vdot(slope, leaves[i] - stop_gradient(leaves[i]))
    return _rated(found, leaks, root, target, unknown=unknown, single=single)


def in_single(value: Array, unknown: Unknown, leaks: Array) -> Array:
    """Rounded to the private side, also of the products with a factor."""
    slack = 4 * float(jnp.finfo(jnp.float32).eps) if unknown.factor else 0.0
    moved = leaks * value - slack * jnp.abs(value)
    return leaks * round_down_to_single(moved)
