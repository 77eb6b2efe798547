"""Solving a mechanism's parameter for a target, and differentiating the solution."""

import dataclasses
import functools

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
from .._internal._calls import explained
from .._internal._concrete import (
    ahead_of_time,
    evaluates_at_once,
    holds_anywhere,
    is_traced,
    outside_transformations,
)
from .._internal._host import asked_of_host, calls_the_host, closes_over_traced
from .._internal._implicit import implicit_root
from .._internal._precision import (
    accounts_in_float64,
    float_dtype,
    in_float64,
    narrow,
)
from ..comparison.sources import Request
from ..curves import (
    Status,
    over_signs,
    round_down_to_single,
    signs_of,
    with_gradient,
)
from ..levy import LevyTriplet
from ..losses import AUTO, ComposedLoss, Method
from ..mechanisms import AbstractMechanism, View, is_repeated, require_mechanism
from ._calibration import Calibration
from ._engines import by_contour, can_split, has_grid_too, needs_no_splitting
from ._require import require_target
from ._search import solve
from ._targets import AbstractTarget, Margin, UnreachableTarget, in_full
from .unknowns import Selector, Unknown, find_unknown

_LARGEST_GROUP = 64
_TIGHT = 5e-3
"""How far off its root a value may be to be called certified, relatively.  Those
for whole curves are a thousandth off where all is well."""
_NEAR = 1e-11
"""The same for the contour, whose values have to agree with those of other engines."""
_SPARE = 100
"""Logits are steeper than that in no parameter's logarithm, about."""
_NUDGES, _FIRST_NUDGE = 8, 1e-12
"""Steps, and the first one's relative size, in which a value is moved until met."""
_NARROW = 1e-6
"""Width of the certificate, as a difference of logits, that queries call certified."""


@explained
@ahead_of_time
def calibrate(
    mechanism: AbstractMechanism | View,
    target: AbstractTarget,
    *,
    solve_for: Selector,
    within: tuple[float, float] | None = None,
    whole: bool = False,
) -> Calibration:
    """Finds the parameter at which a mechanism just meets a target.

    Works under `jax.jit`, `jax.vmap` and `jax.grad`, with respect to the target and
    all other parameters.

    Args:
        mechanism: A mechanism; the value of the parameter solved for, if it has one,
            is ignored.  Or its `.using(engine)`, which then answers.  Otherwise, where
            the spectral engine can certify a loose value only (rare participation and
            little noise), the grid is asked as well, but not under `jax.grad` and
            `jax.vmap` by themselves.
        target: Of `fdp_jax.targets`.
        solve_for: The parameter: its name ("noise_multiplier": the least noise;
            "sampling_prob", "num_steps": the largest), its path where there are several
            of that name ("parts.0.noise_multiplier"), or a function that selects it as
            in `equinox.tree_at`.  If that is an array (as in a `Schedule`), or several
            parameters, a common factor is found that multiplies their values.  "size"
            finds the largest group (in Python: not under transformations).
        within: The range searched, (low, high); by default all values that make sense
            for a parameter of that name.
        whole: Whether the value must be a whole number; always so for the `num_steps`
            of mechanisms that have no fractional powers.

    Returns:
        The value, the completed mechanism, where the target binds, and a status.

    Guarantee:
        The certified (pessimistic) privacy loss at the solution meets the target; for
        `targets.ApproxDP` as delta(epsilon) <= delta.  (The query `epsilon(delta=)` is
        certified on its own and can lie above the target by the width of its bracket,
        about 1e-11.)  Whether the loss rises or falls with the parameter is found out
        by evaluation where it is not known.  If the whole range meets the target, the
        value is its riskier end.

    Differentiable in:
        The target and all other parameters, by the implicit function theorem: twice
        (once for `targets.MuGDP` with delta = 0 unless Gaussian noise is behind it),
        with the derivative of the active constraint where another one takes over.
        Whole numbers have derivative zero.

    Raises:
        ValueError: If `solve_for` is not a parameter of the mechanism, or another one
            is not set, or the target's reference has another neighboring relation.
        TypeError: If `mechanism` is not a mechanism.
        UnreachableTarget: If no value meets the target.  Under a transformation the
            status is VACUOUS instead and the value NaN, for this member of a batch
            alone; only arguments that are out of range stop the whole batch.

    Example:
        >>> import fdp_jax as fdp
        >>> found = fdp.calibrate(
        ...     fdp.DPSGD(sampling_prob=0.01, num_steps=1000),
        ...     fdp.targets.ApproxDP(epsilon=8.0, delta=1e-5),
        ...     solve_for="noise_multiplier",
        ... )
        >>> print(f"{found.value:.6f}")
        0.586260
    """
    whole = _checks.flag("whole", whole)
    method = AUTO
    if isinstance(mechanism, View) and mechanism.direction == "both":
        mechanism, method = mechanism.mechanism, mechanism.method
    mechanism = require_mechanism("mechanism", mechanism)
    require_target(target).require_relation(mechanism.relation)
    inside, allowed = in_full(target.reachable)
    if not is_traced(inside) and not bool(inside):
        raise UnreachableTarget(
            f"target {target.describe()} is out of reach: {allowed}"
        )
    if solve_for == "size":
        return _largest_group(mechanism, target, method)
    if isinstance(solve_for, str) and within is None and not whole:
        rescaled = mechanism.rescaled(solve_for)
        if rescaled is not None:
            return _in_other_unit(mechanism, target, solve_for, method, *rescaled)
    unknown = find_unknown(mechanism, solve_for, within=within, whole=whole)
    if not unknown.factor:
        unknown.put(mechanism, np.float64(unknown.start)).require_complete()
    else:
        mechanism.require_complete()
    open_mechanism = _with_known_parts(unknown.left_open(mechanism))
    found = _found(open_mechanism, target, unknown, method)
    known = not is_traced(found.status)
    if known and int(found.status) == Status.VACUOUS:
        raise UnreachableTarget(_why_not(open_mechanism, target, unknown, method))
    return Calibration(
        found.value,
        unknown.put(mechanism, found.value),
        target,
        found.status,
        found.binding,
        found.leaks,
        found.at_end,
        unknown.name,
    )


def _in_other_unit(
    mechanism: AbstractMechanism,
    target: AbstractTarget,
    name: str,
    method: Method,
    simpler: AbstractMechanism,
    scale: Array,
) -> Calibration:
    """What was found for a mechanism in which the unknown has another unit."""
    found = calibrate(View(simpler, "both", method), target, solve_for=name)
    unknown = find_unknown(mechanism, name)
    value = _scaled(found.value, scale, unknown, found.leaks, narrow=narrow())
    completed = unknown.put(mechanism, value)
    return dataclasses.replace(found, value=value, mechanism=completed)


@in_float64
def _scaled(
    value: Array, scale: Array, unknown: Unknown, leaks: Array, *, narrow: bool
) -> Array:
    """The product, rounded so that its quotient by the scale is on the private side."""
    product = value * scale
    fixed = stop_gradient(product)
    moved = fixed + leaks * -4 * float(jnp.finfo(fixed.dtype).eps) * jnp.abs(fixed)
    moved = _in_single(moved, unknown, leaks) if narrow else moved
    return with_gradient(moved, product)


def _with_known_parts(mechanism: AbstractMechanism) -> AbstractMechanism:
    """The same leaves, where triplets without a Gaussian part say so.

    As queries do (`simplified`): once all numbers are traced, nobody knows.
    """
    is_triplet = lambda part: isinstance(part, LevyTriplet)
    plain = lambda part: part.simplified() if is_triplet(part) else part
    return jax.tree.map(plain, mechanism, is_leaf=is_triplet)


class _Solved(eqx.Module):
    """The fields of a `Calibration` that a search finds."""

    value: Array
    status: Array
    binding: dict[str, Array]
    leaks: Array
    at_end: Array


def _found(
    mechanism: AbstractMechanism,
    target: AbstractTarget,
    unknown: Unknown,
    method: Method,
) -> _Solved:
    """The solution, by the programs of plain calls wherever a program may call back."""
    asked = mechanism, target
    here = method != AUTO or not (calls_the_host() and accounts_in_float64())
    if here or not is_traced(asked) or closes_over_traced((asked, unknown)):
        return _best(*asked, unknown, method)
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
    return _Solved(value, status, dict(zip(names, where, strict=True)), leaks, at_end)


def _best(
    mechanism: AbstractMechanism,
    target: AbstractTarget,
    unknown: Unknown,
    method: Method,
) -> _Solved:
    """The riskier of what the engines can certify, where more than one is asked."""
    ready = _ready(target)
    ask = functools.partial(
        _solve,
        mechanism,
        ready,
        unknown=unknown,
        narrow=narrow(),
        repeated=not unknown.factor and is_repeated(mechanism.known_steps()),
    )
    looks = evaluates_at_once() and accounts_in_float64()
    if (
        looks
        and method == AUTO
        and target.at_one_point
        and by_contour(mechanism, unknown)
    ):
        # As queries do: the smallest program first, if it says as much as the others.
        found = ask(method=Method("contour"), near=str(_NEAR))
        if not holds_anywhere(found.status != Status.TIGHT):
            return _met(found, mechanism, target, unknown)
    splits = method.name != "grid" and can_split(mechanism, unknown)
    if splits and (looks or needs_no_splitting(mechanism, unknown)):
        found = ask(method=dataclasses.replace(method, split=False))
        if not looks or not holds_anywhere(found.status != Status.TIGHT):
            return _met(found, mechanism, target, unknown)
    found = _met(ask(method=method), mechanism, target, unknown)
    known = not is_traced(found.status) and outside_transformations()
    if not (known and method == AUTO and accounts_in_float64()):
        return found
    if int(found.status) != Status.LOOSE or not has_grid_too(mechanism, unknown):
        return found
    other = ask(method=Method("grid"))
    # Not a number, if the grid has none, is not larger.
    riskier = bool(found.leaks * other.value > found.leaks * found.value)
    for one in (other, found) if riskier else (found,):
        asked = target.asked(unknown.put(mechanism, one.value))
        if asked is None:
            return one
        # What is asked next may be answered by other engines than the search's.
        if bool(asked[1]):
            return dataclasses.replace(one, status=asked[0].status)
    return found


def _met(
    found: _Solved,
    mechanism: AbstractMechanism,
    target: AbstractTarget,
    unknown: Unknown,
) -> _Solved:
    """The solution, or one next to it at which a query sees that the target is met.

    A query may be answered by another engine than the search's, whose bracket reaches
    a little farther.
    """
    if not outside_transformations() or not target.at_one_point:
        return found
    value, leaks = np.asarray(found.value), np.asarray(found.leaks)
    if not np.isfinite(value) or not by_contour(unknown.put(mechanism, value), unknown):
        return found
    for count in range(_NUDGES):
        jump = count if unknown.whole else _FIRST_NUDGE * 8**count * np.abs(value)
        moved = jnp.asarray(value - leaks * jump * (count > 0))
        moved = _in_single(moved, unknown, leaks) if narrow() else moved
        asked = target.asked(unknown.put(mechanism, moved))
        if asked is None or bool(asked[1]):
            return dataclasses.replace(found, value=moved) if count else found
    return found


def _ready(target: AbstractTarget) -> AbstractTarget:
    """The target with the losses of its references, for a compiled program."""
    is_request = lambda x: isinstance(x, Request)
    return jax.tree.map(
        lambda x: x.resolved() if is_request(x) else x, target, is_leaf=is_request
    )


def _loss(
    mechanism: AbstractMechanism, method: Method, repeated: bool = False
) -> ComposedLoss:
    """The privacy loss, to be handled by a given engine."""
    return dataclasses.replace(mechanism.loss(), method=method, repeated=repeated)


@dataclasses.dataclass(frozen=True)
class _Excess:
    """Margin of the completed mechanism as a function of the unknown's t."""

    unknown: Unknown
    method: Method
    repeated: bool = False
    """Whether it is known not to be a single release."""

    def margin(
        self, value: Array, args: tuple[AbstractMechanism, AbstractTarget]
    ) -> Margin:
        mechanism, target = args
        mechanism = self.unknown.put(mechanism, value)
        return target.margin(_loss(mechanism, self.method, self.repeated))

    def rough(self, t: Array, args: tuple[AbstractMechanism, AbstractTarget]) -> Array:
        """A cheap approximation: saddle points instead of contour integrals."""
        mechanism, target = args
        loss = self.unknown.put(mechanism, self.unknown.at(t)).loss()

        def at(epsilon: Array) -> Array:
            return over_signs(
                lambda sign: engines.rough_log_delta(loss, sign, epsilon),
                signs_of(loss, "both"),
            )

        epsilons, log_deltas = target.proxy()
        return jnp.max(jax.vmap(at)(epsilons) - log_deltas[:, None])

    def __call__(self, t: Array, args: PyTree, aux: tuple[()]) -> Array:
        del aux
        return self.margin(self.unknown.at(t), args).excess.estimate


@in_float64
def _solve(
    mechanism: AbstractMechanism,
    target: AbstractTarget,
    *,
    unknown: Unknown,
    narrow: bool,
    method: Method,
    repeated: bool,
    near: str = str(_TIGHT),
) -> _Solved:
    excess = _Excess(unknown, method, repeated)
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
    value = found.value
    if narrow:
        value = _in_single(value, unknown, leaks)
    if not unknown.whole:
        # Where the whole range meets the target, nothing moves its end.
        root = implicit_root(excess, found.t, args, ())
        value = with_gradient(value, unknown.at(jnp.where(found.inside, root, found.t)))
    met = found.met & target.reachable()[0]
    value = jnp.where(met, value, jnp.nan)
    tight = jnp.abs(value - unknown.at(found.t)) <= float(near) * jnp.abs(value)
    # Estimates may jump over the target, from where one falls back on a bound.
    tight = tight & (found.spare <= _SPARE * float(near))
    tight = tight | unknown.whole | ~found.inside
    if target.at_one_point:
        tight = tight & (found.width <= _NARROW)
    status = jnp.where(tight, Status.TIGHT, Status.LOOSE)
    status = jnp.where(met, status, Status.VACUOUS).astype(jnp.int32)
    binding = dict(zip(target.binds, found.binding, strict=True))
    return _Solved(value, status, binding, leaks, found.at_end)


def _in_single(value: Array, unknown: Unknown, leaks: Array) -> Array:
    """Rounded to the private side, also of the products with a factor."""
    slack = 4 * float(jnp.finfo(jnp.float32).eps) if unknown.factor else 0.0
    moved = leaks * value - slack * jnp.abs(value)
    return leaks * round_down_to_single(moved)


def _why_not(
    mechanism: AbstractMechanism,
    target: AbstractTarget,
    unknown: Unknown,
    method: Method,
) -> str:
    """What can be reached instead."""
    reached = _reached(mechanism, _ready(target), excess=_Excess(unknown, method))
    ends = ", ".join(f"{float(x):.6g}" for x in np.sort(np.asarray(reached)))
    return (
        f"no {unknown.name} in [{unknown.lowest:g}, {unknown.highest:g}] could be "
        f"certified to meet the target {target.describe()}: at the ends of that range "
        f"{target.quantity()} is {ends}"
    )


@in_float64
def _reached(
    mechanism: AbstractMechanism, target: AbstractTarget, *, excess: _Excess
) -> Array:
    args = jax.tree.map(jnp.asarray, (mechanism, target))
    ends = jnp.asarray(excess.unknown.ends)
    one = lambda t: target.reached(excess(t, args, ()))
    return jax.lax.map(one, ends)


def _largest_group(
    mechanism: AbstractMechanism, target: AbstractTarget, method: Method
) -> Calibration:
    """The most records that can change together, by bisection."""
    mechanism.require_complete()
    ready = _ready(target)
    found = {1: _meets(mechanism, ready, method=method)}
    if not bool(found[1][0]):
        raise UnreachableTarget(
            f"no group meets the target {target.describe()}: a single record does not"
        )
    low, high = 1, _LARGEST_GROUP + 1
    while high - low > 1:
        # Guarantees of small groups cost least.
        middle = min(2 * low, (low + high) // 2)
        found[middle] = _meets(mechanism.group(middle), ready, method=method)
        low, high = (middle, high) if bool(found[middle][0]) else (low, middle)
    value = jnp.asarray(float(low), float_dtype())
    status = jnp.asarray(int(Status.TIGHT), jnp.int32)
    grows = jnp.ones((), float_dtype())
    group = mechanism.group(low)
    end = jnp.asarray(low == _LARGEST_GROUP)
    return Calibration(value, group, target, status, found[low][1], grows, end, "size")


@in_float64
def _meets(
    mechanism: AbstractMechanism, target: AbstractTarget, *, method: Method
) -> tuple[Array, dict[str, Array]]:
    """Whether a mechanism certainly meets a target, and where it binds."""
    mechanism, target = jax.tree.map(jnp.asarray, (mechanism, target))
    found: Margin = target.margin(_loss(mechanism, method))
    binding = dict(zip(target.binds, found.binding, strict=True))
    return found.excess.upper <= 0, binding
