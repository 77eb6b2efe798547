"""Solving a mechanism's parameter for a target, and differentiating the solution."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient, while_loop
from jaxtyping import Array, Float, Int, PyTree

from .. import engines
from .._internal._implicit import implicit_root
from .._internal._precision import float_dtype, in_float64
from .._internal._text import round_down, round_up
from ..curves import Status
from ..curves._bounds import with_gradient
from ..curves._queries import over_signs, round_down_to_single, signs_of
from ..engines import Interval
from ..mechanisms import AbstractMechanism
from ._targets import AbstractTarget, UnreachableTarget

_STEPS = 60
_TOLERANCE = 1e-13
_CHECKS = 12


class _Unknown(eqx.Module):
    """A parameter that can be solved for, in its logarithm."""

    name: str = eqx.field(static=True)
    leaks: float = eqx.field(static=True)
    """+1 if the privacy loss grows with the parameter, -1 if it falls."""
    lowest: float = eqx.field(static=True)
    highest: float = eqx.field(static=True)
    start: float = eqx.field(static=True)


_UNKNOWNS = {
    unknown.name: unknown
    for unknown in (
        _Unknown("noise_multiplier", -1.0, 1e-2, 1e12, 1.0),
        _Unknown("sampling_prob", 1.0, 1e-15, 1.0, 1e-2),
        _Unknown("num_steps", 1.0, 1e-6, 1e15, 1e3),
        _Unknown("offset", -1.0, 1e-9, 1e5, 1.0),
        _Unknown("gain", 1.0, 1e-9, 1e5, 1.0),
    )
}


class Calibration(eqx.Module):
    """The solution of a calibration.

    `value` is rounded to the private side: the certified guarantee of `mechanism`
    meets the target.  Its derivative is that of the exact solution.
    """

    value: Float[Array, ""]
    mechanism: AbstractMechanism
    """The mechanism with the value put in."""
    target: AbstractTarget
    status: Int[Array, ""]
    """A `Status`: VACUOUS if no value could be certified to meet the target."""
    solve_for: str = eqx.field(static=True)

    @property
    def guarantee(self) -> str:
        """The guarantee in one line (outside jit)."""
        if int(self.status) == Status.VACUOUS:
            return (
                f"no {self.solve_for} could be certified for {self.target.describe()}"
            )
        relation = self.mechanism.relation.value.replace("_", " ")
        private_side = round_up if _UNKNOWNS[self.solve_for].leaks < 0 else round_down
        return (
            f"{self.target.describe()}, {relation}, "
            f"{self.solve_for} = {private_side(float(self.value), 10)}, "
            "certified upper bound"
        )


def calibrate(
    mechanism: AbstractMechanism, target: AbstractTarget, *, solve_for: str
) -> Calibration:
    """Finds the parameter at which a mechanism just meets a target.

    Works under `jax.jit`, `jax.vmap` and `jax.grad` (any order, by the implicit
    function theorem), with respect to the target and all other parameters.

    Args:
        mechanism: A mechanism; the value of the parameter solved for, if it has one,
            is ignored.
        target: Of `fdp_jax.targets`.
        solve_for: "noise_multiplier" or "offset" (the least), "sampling_prob", "gain"
            or "num_steps" (the largest; real-valued, so round it down).

    Returns:
        The value, the completed mechanism and a status.

    Guarantee:
        The certified (pessimistic) privacy loss at the solution meets the target.

    Raises:
        ValueError: If `solve_for` is not a parameter of the mechanism, or another one
            is not set.
        UnreachableTarget: If no value meets the target.  Under a transformation the
            status is VACUOUS instead, and the value that of no release.

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
    unknown = _find_unknown(mechanism, solve_for)
    open_mechanism = _put(mechanism, solve_for, None)
    _put(mechanism, solve_for, np.float64(unknown.start)).require_complete()
    inside, allowed = target.reachable()
    if not isinstance(inside, jax.core.Tracer) and not bool(inside):
        raise UnreachableTarget(
            f"target {target.describe()} is out of reach: {allowed}"
        )
    narrow = float_dtype() == np.float32
    value, status = _solve(open_mechanism, target, unknown=unknown, narrow=narrow)
    if not isinstance(status, jax.core.Tracer) and int(status) == Status.VACUOUS:
        raise UnreachableTarget(
            f"no {solve_for} in [{unknown.lowest:g}, {unknown.highest:g}] could be "
            f"certified to meet the target {target.describe()}"
        )
    return Calibration(
        value, _put(mechanism, solve_for, value), target, status, solve_for
    )


def _find_unknown(mechanism: AbstractMechanism, name: str) -> _Unknown:
    known = [n for n in _UNKNOWNS if n in vars(mechanism)]
    known = [n for n in known if not isinstance(getattr(mechanism, n), tuple)]
    if name not in known:
        raise ValueError(
            f"solve_for must be one of {known} for {type(mechanism).__name__}, "
            f"got {name!r}"
        )
    return _UNKNOWNS[name]


def _put(mechanism: AbstractMechanism, name: str, value: Any) -> AbstractMechanism:
    where = lambda m: getattr(m, name)
    return eqx.tree_at(where, mechanism, value, is_leaf=lambda x: x is None)


class _Excess:
    """Excess of the completed mechanism as a function of log(parameter)."""

    def __init__(self, unknown: _Unknown):
        self.unknown = unknown

    def __hash__(self) -> int:
        return hash((_Excess, self.unknown.name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Excess) and self.unknown.name == other.unknown.name

    def interval(self, t: Array, args: tuple[AbstractMechanism, AbstractTarget]):
        mechanism, target = args
        return target.excess(_put(mechanism, self.unknown.name, jnp.exp(t)).loss())

    def rough(self, t: Array, args: tuple[AbstractMechanism, AbstractTarget]) -> Array:
        """A cheap approximation: saddle points instead of contour integrals."""
        mechanism, target = args
        loss = _put(mechanism, self.unknown.name, jnp.exp(t)).loss()
        epsilon, log_delta = target.proxy()
        found = over_signs(
            lambda sign: engines.rough_log_delta(loss, sign, epsilon),
            signs_of(loss, "both"),
        )
        return jnp.max(found) - log_delta

    def __call__(self, t: Array, args: PyTree, aux: tuple[()]) -> Array:
        del aux
        return self.interval(t, args).estimate


@in_float64
def _solve(
    mechanism: AbstractMechanism,
    target: AbstractTarget,
    *,
    unknown: _Unknown,
    narrow: bool,
) -> tuple[Array, Array]:
    excess = _Excess(unknown)
    args = jax.tree.map(jnp.asarray, (mechanism, target))
    constant = stop_gradient(args)
    rough = _secant(
        lambda t: excess.rough(t, constant), unknown, _from_scratch(unknown)
    )
    t, slope = _secant(lambda t: excess(t, constant, ()), unknown, rough)
    exact = jnp.exp(implicit_root(excess, t, args, ()))
    t, met = _private_side(lambda t: excess.interval(t, constant), t, slope, unknown)
    met = met & target.reachable()[0]
    value = jnp.exp(t)
    if narrow:
        value = unknown.leaks * round_down_to_single(unknown.leaks * value)
    value = with_gradient(value, exact)
    value = jnp.where(met, value, jnp.inf if unknown.leaks < 0 else 0.0)
    status = jnp.where(met, Status.CERTIFIED, Status.VACUOUS)
    return value, status.astype(jnp.int32)


def _from_scratch(unknown: _Unknown) -> tuple[Array, Array]:
    """A start and a slope for want of better ones."""
    return jnp.asarray(np.log(unknown.start), float), jnp.asarray(5.0, float)


def _secant(
    excess: Callable[[Array], Array], unknown: _Unknown, start: tuple[Array, Array]
) -> tuple[Array, Array]:
    """The root of an excess in t = log(parameter), and its slope there.

    The secant method with short steps in a bracket, from a start and a slope.  Where
    there is no root, the end of the domain on that side.
    """
    leaks = unknown.leaks
    ends = sorted(leaks * np.log(np.asarray([unknown.lowest, unknown.highest])))
    first = leaks * start[0]

    def measure(u: Array) -> Array:
        value = excess(leaks * u)
        # Something that cannot be evaluated counts as leaking.
        return jnp.clip(jnp.where(jnp.isnan(value), jnp.inf, value), -1e9, 1e9)

    def unfinished(state):
        return (state["step"] < _STEPS) & (state["change"] > _TOLERANCE)

    def body(state):
        u, old, old_value = state["u"], state["old"], state["old_value"]
        value = measure(u)
        low = jnp.where(value <= 0, u, state["low"])
        high = jnp.where(value >= 0, u, state["high"])
        slope = (value - old_value) / jnp.where(u == old, 1, u - old)
        usable = (u != old) & (slope > 0)
        slope = jnp.where(usable, slope, state["slope"])
        target = u - jnp.clip(value / slope, -1, 1)
        # Open ends first: only a bracket of finite size can be halved.
        inside = (target > low) & (target < high)
        outside = jnp.clip(target, ends[0], ends[1])
        both = (low > -jnp.inf) & (high < jnp.inf)
        target = jnp.where(
            inside, outside, jnp.where(both, 0.5 * (low + high), outside)
        )
        # Rounding of the excess decides the last digits; a tiny one ends the search.
        settled = jnp.abs(value) <= 1e-13 * (1 + jnp.abs(slope))
        target = jnp.where(settled, u, target)
        return {
            "step": state["step"] + 1,
            "u": target,
            "low": low,
            "high": high,
            "old": u,
            "old_value": value,
            "slope": slope,
            "change": jnp.abs(target - u),
        }

    begin = {
        "step": jnp.zeros((), jnp.int32),
        "u": first,
        "low": jnp.full_like(first, -jnp.inf),
        "high": jnp.full_like(first, jnp.inf),
        "old": first,
        "old_value": jnp.zeros_like(first),
        "slope": start[1],
        "change": jnp.ones_like(first),
    }
    last = while_loop(unfinished, body, begin)
    return leaks * last["u"], last["slope"]


def _private_side(
    interval: Callable[[Array], Interval], t: Array, slope: Array, unknown: _Unknown
) -> tuple[Array, Array]:
    """Moves from the exact solution until the certificate meets the target."""
    leaks = unknown.leaks
    lowest = min(leaks * np.log(np.asarray([unknown.lowest, unknown.highest])))

    def unfinished(state):
        step, _, _, met = state
        return (step < _CHECKS) & ~met

    def body(state):
        step, u, margin, _ = state
        found = interval(leaks * u)
        met = found.upper <= 0
        over = jnp.where(jnp.isfinite(found.upper), found.upper / slope, margin)
        margin = jnp.maximum(4 * margin, 1.01 * over)
        moved = jnp.maximum(u - margin, lowest)
        return step + 1, jnp.where(met, u, moved), margin, met

    tiny = jnp.asarray(1e-13, t.dtype)
    start = (jnp.zeros((), jnp.int32), leaks * t - tiny, tiny, jnp.zeros((), bool))
    _, u, _, met = while_loop(unfinished, body, start)
    return leaks * u, met
