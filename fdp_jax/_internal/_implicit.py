"""Derivatives of numbers found by search: roots, optima and other known values.

Each function returns a number found elsewhere and gives it the derivative that its
definition implies.  The rules refer to the number through the same functions, so
derivatives of every order are right.  (One Newton step at a `stop_gradient` root, the
usual short cut, has a wrong second derivative.)

JAX drops custom rules when it linearizes the body of a `lax.scan`, which matters from
second order on.  There the derivative is NaN, not silently wrong: see `_guarded`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.lax import stop_gradient
from jaxtyping import Array, Float, PyTree

from ._shapes import Fixed

Objective = Callable[[Array, PyTree, PyTree], Array]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def known_value(
    function: Callable[[PyTree, PyTree], PyTree],
    value: PyTree,
    args: PyTree,
    aux: PyTree,
) -> PyTree:
    """`value`, known to equal `function(args, aux)`, with that function's derivative.

    Args:
        function: Differentiable function without closed-over tracers.
        value: What it returns.
        args: What the value depends on: a PyTree of floating-point arrays.
        aux: Constants; no derivative flows through them.
    """
    return jax.tree.map(lambda x: _guarded(x, args), value)


@known_value.defjvp
def _known_value_jvp(
    function: Callable[[PyTree, PyTree], PyTree], primals: tuple, tangents: tuple
) -> tuple[PyTree, PyTree]:
    value, args, aux = primals
    value = known_value(function, value, args, aux)
    _, tangent = jax.jvp(lambda a: function(a, aux), (args,), (tangents[1],))
    return value, tangent


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def implicit_root(
    residual: Objective, root: Float[Array, ""], args: PyTree, aux: PyTree
) -> Float[Array, ""]:
    """A root of `residual(root, args, aux) = 0`, with its derivative in `args`.

    Args:
        residual: Differentiable function without closed-over tracers, with a nonzero
            derivative in its first argument.
        root: The solution; carries no derivative of its own.
        args: What the solution depends on: a PyTree of floating-point arrays.
        aux: Constants; no derivative flows through them.
    """
    return _guarded(root, args)


@implicit_root.defjvp
def _implicit_root_jvp(
    residual: Objective, primals: tuple, tangents: tuple
) -> tuple[Array, Array]:
    root, args, aux = primals
    root = implicit_root(residual, root, args, aux)
    slope, gradient = jax.grad(residual, argnums=(0, 1))(root, args, aux)
    products = jax.tree.map(jnp.vdot, gradient, tangents[1])
    shift = sum(jax.tree.leaves(products), start=jnp.zeros_like(root))
    # A zero slope belongs to a root that is not used.
    return root, -shift / jnp.where(slope == 0, 1, slope)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def optimal_value(
    objective: Objective,
    value: Float[Array, ""],
    point: Float[Array, ""],
    args: PyTree,
    aux: PyTree,
) -> Float[Array, ""]:
    """An optimum `objective(point, args, aux)`, with its derivative in `args`.

    The first derivative needs no derivative of the point (envelope theorem); higher
    ones take it from the first-order condition, at no cost unless asked for.

    Args:
        objective: Differentiable function without closed-over tracers.
        value: The optimum.
        point: Where the derivative in the first argument vanishes.
        args: What the optimum depends on: a PyTree of floating-point arrays.
        aux: Constants; no derivative flows through them.
    """
    return _guarded(value, args)


@optimal_value.defjvp
def _optimal_value_jvp(
    objective: Objective, primals: tuple, tangents: tuple
) -> tuple[Array, Array]:
    value, point, args, aux = primals
    value = optimal_value(objective, value, point, args, aux)
    point = implicit_root(_Slope(objective), point, args, aux)
    _, tangent = jax.jvp(lambda a: objective(point, a, aux), (args,), (tangents[2],))
    return value, tangent


@dataclasses.dataclass(frozen=True)
class _Slope:
    """First-order condition of an objective; equal for equal objectives."""

    objective: Objective

    def __call__(self, point: Array, args: PyTree, aux: PyTree) -> Array:
        return jax.grad(self.objective)(point, args, aux)


def of_several(objective: Objective) -> Objective:
    """An objective, some numbers of one point, of several points along a last axis."""

    @functools.wraps(objective)
    def found(point: Array, args: PyTree, aux: PyTree) -> Array:
        one = lambda x: objective(x, args, aux)
        return jax.vmap(one, out_axes=-1)(point) if point.ndim else one(point)

    return found


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def optimum_or_kink(
    objective: Objective,
    look: Callable[..., tuple[Array, Array | None]],
    value: Float[Array, " k"],
    point: Float[Array, ""],
    args: PyTree,
    aux: PyTree,
) -> Float[Array, " k"]:
    """As `optimal_value`, of an objective that may have a kink where it is largest.

    A kink moves with the parameters: it is where the two smooth pieces beside it meet,
    which are known from the objective a little to its either side.  Kinks are told
    from smooth optima by the slopes beside them.

    Args:
        objective: As in `optimal_value`, of some numbers that have their optimum or
            kink at the same point; the first one tells whether it is a kink.  Takes
            several points as well, see `of_several`.
        look: Finds the objective's optimum next to a point (`kink_near`, or a function
            of the same arguments), and how far from it its pieces can be seen: zero if
            it is smooth, None if that is known before.
        value: The optima.
        point: About where the derivative in the first argument vanishes or changes its
            sign; the derivative is taken at the nearest such place.
        args: What the optimum depends on: a PyTree of floating-point arrays.
        aux: Constants; no derivative flows through them.
    """
    return _guarded(value, args)


@optimum_or_kink.defjvp
def _optimum_or_kink_jvp(
    objective: Objective, look: Callable, primals: tuple, tangents: tuple
) -> tuple[Array, Array]:
    value, point, args, aux = primals
    value = optimum_or_kink(objective, look, value, point, args, aux)
    point, step = look(objective, *stop_gradient((point, args, aux)))
    pieces = _Pieces(objective)
    # How the point moves matters for higher derivatives.
    smooth = implicit_root(_Slope(First(objective)), point, args, aux)
    if step is None:
        moved = lambda a: objective(smooth, a, aux)
        return value, jax.jvp(moved, (args,), (tangents[2],))[1]
    kink = implicit_root(pieces, point, args, (step, aux))
    at = jnp.where(step > 0, kink, smooth)
    left, right = pieces.beside(at, args, (step, aux), tangents[2])
    (slope, move), (other_slope, other_move) = left, right
    turn = (other_slope - slope)[0]
    # Without a kink the pieces are the same and nothing moves.
    shift = (move - other_move)[0] / jnp.where(step > 0, turn, 1.0)
    return value, move + jnp.where(step > 0, slope, 0.0) * shift


_STEP, _LEAST_STEP = 1e-6, 1e-9
"""How far from a kink its pieces are looked at, over its size, and at least."""
_LEAST_JUMP = 1e-9
"""Smaller jumps of the slope may be rounding errors."""
_ROUNDS, _REACH = 48, 2e-2
"""Of the search for the optimum, and how wide it may get, over the size."""


def kink_near(
    objective: Objective, point: Array, args: PyTree, aux: PyTree
) -> tuple[Array, Array]:
    """The optimum, and how far from it its pieces can be seen; zero if it is smooth."""
    first = First(objective)

    def slope(x: Array) -> Array:
        value, found = jax.value_and_grad(first)(x, args, aux)
        # Where the objective is not a number the optimum is not.
        return jnp.where(jnp.isfinite(value), found, jnp.sign(point - x) * jnp.inf)

    slopes = lambda places: jax.lax.map(slope, places)
    step = jnp.maximum(_STEP * jnp.abs(point), _LEAST_STEP)
    top = _nearest_top(slopes, point, step)
    offsets = jnp.asarray(_OFFSETS, step.dtype)
    # Not so far that the pieces bend, as logarithms do next to zero.
    steps = step * jnp.asarray(_SHARES, step.dtype)
    places = top + (steps[:, None] * offsets).ravel()
    values = jax.lax.map(lambda x: first(x, args, aux), places).reshape(steps.size, -1)
    change = jnp.max(values, axis=1) - jnp.min(values, axis=1)
    step = steps[jnp.argmax(change < _BEND)]
    jumps = jnp.diff(slopes(top + step * offsets))
    # A smooth slope changes over the middle as much as over both sides together.
    sides = jnp.abs(jumps[0]) + jnp.abs(jumps[2])
    kink = jnp.abs(jumps[1]) > 4 * sides + _LEAST_JUMP
    return top, jnp.where(kink & jnp.all(jnp.isfinite(jumps)), step, 0.0)


_SHARES = 1.0, 1e-2, 1e-4, 1e-6
"""Of the usual step, where the objective bends too much for it."""
_BEND = 1e-4
"""How much the objective may change over the places looked at."""
_OFFSETS = -2.0, -1.0, 1.0, 2.0
"""The places looked at, in steps: two on each piece, so that it can be drawn on."""


def _nearest_top(slopes: Callable[[Array], Array], point: Array, step: Array) -> Array:
    """The zero of a falling slope next to a point; the point itself if none is near."""

    def body(_: Array, state: tuple) -> tuple:
        low, high, inside = state
        third = (high - low) / 3
        places = jnp.where(
            inside, jnp.stack([low + third, high - third]), jnp.stack([low, high])
        )
        left, right = slopes(places)
        around = (left >= 0) & (right <= 0)
        far = high - low > _REACH * (1 + jnp.abs(point))
        less = jnp.where(left < 0, low, jnp.where(right > 0, places[1], places[0]))
        more = jnp.where(left < 0, places[0], jnp.where(right > 0, high, places[1]))
        wider = jnp.where(around | far, 0.0, 0.5 * (high - low))
        low = jnp.where(inside, less, low - wider)
        high = jnp.where(inside, more, high + wider)
        return low, high, inside | around

    start = point - step, point + step, jnp.zeros((), bool)
    low, high, inside = jax.lax.fori_loop(0, _ROUNDS, body, start)
    return jnp.where(inside, 0.5 * (low + high), point)


@dataclasses.dataclass(frozen=True)
class First(_Slope):
    """The first number of an objective; equal for equal objectives."""

    def __call__(self, point: Array, args: PyTree, aux: PyTree) -> Array:
        return self.objective(point, args, aux)[0]


@dataclasses.dataclass(frozen=True)
class _Pieces:
    """The difference of two pieces of an objective; equal for equal objectives."""

    objective: Objective

    def beside(self, point: Array, args: PyTree, aux: tuple, tangent: PyTree) -> Any:
        """Slopes and derivatives of both pieces, drawn on to the point between them."""
        step, aux = aux
        places = point + step * jnp.asarray(_OFFSETS, step.dtype)
        along = lambda x: self.objective(x, args, aux)
        moved = lambda a: self.objective(places, a, aux)
        slope = jax.jvp(along, (places,), (jnp.ones_like(places),))[1]
        move = jax.jvp(moved, (args,), (tangent,))[1]
        return [
            [2 * x[:, i] - x[:, j] for x in (slope, move)] for i, j in ((1, 0), (2, 3))
        ]

    def __call__(self, point: Array, args: PyTree, aux: tuple) -> Array:
        step, aux = aux
        places = point + step * jnp.asarray(_OFFSETS, step.dtype)
        found = self.objective(places, args, aux)[0]
        return (2 * found[1] - found[0]) - (2 * found[2] - found[3])


@dataclasses.dataclass(frozen=True)
class _Parted:
    """A function of any PyTree, of which some has no derivative.

    Equal for equal functions and structures.
    """

    function: Callable[..., Any]
    static: Fixed

    def __call__(self, *given: Any) -> Any:
        *point, arrays, (rest, aux) = given
        whole = eqx.combine(arrays, rest, self.static.tree())
        return self.function(*point, whole, aux)


def parted(
    function: Callable[..., Any], args: PyTree, aux: PyTree
) -> tuple[Callable[..., Any], PyTree, PyTree]:
    """An objective, its `args` and its `aux` of a function whose args are any PyTree.

    Args:
        function: A function of a point (or none), args and aux without closed-over
            tracers.
        args: What the value depends on; leaves that are no floating-point arrays have
            no derivative, and those that are no arrays must be hashable.
        aux: Constants.
    """
    arrays, others = eqx.partition(args, eqx.is_inexact_array)
    rest, static = eqx.partition(others, eqx.is_array)
    return _Parted(function, Fixed.of(static)), arrays, stop_gradient((rest, aux))


@jax.jit
def _guarded(value: Array, args: PyTree) -> Array:
    """The value, with a NaN derivative: seen only where a rule has been dropped."""
    numbers, _ = ravel_pytree(args)
    zero = jnp.sum(jnp.where(jnp.isfinite(numbers), numbers, 0) * 0)
    return value + jnp.sqrt(jnp.abs(zero))
