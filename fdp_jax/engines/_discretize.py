"""The grid engine's first step: one privacy loss moved to a grid.

See `_grid.py` for the method.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import optimization_barrier, stop_gradient
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from .._internal._arithmetic import ULP
from .._internal._tolerances import ATOM_MASS, ATOM_PLACE, IRRELEVANT_MASS
from ..losses import (
    AbstractLoss,
    Atoms,
    Cells,
    ComposedLoss,
    RevealedLoss,
    ScheduleLoss,
    single_losses,
)
from ._line_mesh import RIGHT, SHIFTS, Place, orders_at

_ENOUGH = 600.0
"""-log of what may be left of a copy one period away."""
_TRIED = 1024
"""Spacings tried for one that holds several lattices."""
_REACH = 50.0
"""-log of the tilted mass of a single loss left out on either side."""


class Grid(eqx.Module):
    """The choices made before anything is composed; constants for derivatives."""

    sign: Float[Array, ""]
    shift: Float[Array, ""]
    spacing: Float[Array, ""]
    first: tuple[Int[Array, "..."], ...]
    """Index of the first grid point of each single loss, in units of the spacing; of a
    schedule, of all its steps."""
    counts: tuple[Int[Array, ""], ...]
    center: Float[Array, ""]
    """A threshold around which half a period of the profile is certified."""
    whole: Bool[Array, ""]
    """Whether all counts are whole numbers and everything fits on the grid."""
    bounds: Float[Array, " r"]
    """See `Place`."""
    sides: Float[Array, "2"]
    """The Chernoff shifts left and right of `shift` for what wraps around."""
    log_scales: tuple[Float[Array, "..."], ...]
    """Log-moments at `shift`: log of about the tilted mass of each, likewise."""
    size: int = eqx.field(static=True)
    """Grid points."""


class Discrete(eqx.Module):
    """One term on the grid.  Every entry is divided by e^log_scale."""

    tilted: Float[Array, "2 n"]
    """Q-mass times e^{c y} at the grid points: of the upper law, and of the test, whose
    P-mass is that of the upper law.  The second has no derivative."""
    log_scale: Float[Array, ""]
    top: Float[Array, ""]
    """Q-mass above the grid, taken for infinite (not tilted)."""
    moved: Float[Array, ""]
    """Bound on the distance of point masses from where they are taken to be."""
    sound: Bool[Array, ""]
    """Whether the errors of all masses that matter are known."""


@jax.jit
def plan_grid(
    loss: ComposedLoss, sign: Array, place: Place, gap: ArrayLike = 0.0
) -> Grid:
    """Chooses tilt, spacing and offsets for thresholds near one, with c > 0.

    If the threshold is not known so well, `gap` says how far off it may be: half a
    period covers it, and the tilt does not bury it in rounding.
    """
    loss = stop_gradient(loss.tabulated())
    shift = jnp.minimum(jnp.asarray(SHIFTS)[place.row], 12 / jnp.asarray(gap, float))
    period = jnp.maximum(place.period, 6 * gap)
    shifts = jnp.asarray(SHIFTS[RIGHT])
    orders = orders_at(jnp.append(shifts, shift), sign)

    def single(one: tuple[Any, Array]) -> tuple[Array, Array, Array]:
        term, count = one
        if term.by_steps:
            return lax.map(single, (term.steps, count * term.counts))
        own = term.rough_moments(orders)[0]
        return *_single_range(term, count, sign, shifts - shift, own), own[-1]

    singles = [single(one) for one in single_losses(loss.terms, loss.counts)]
    for low, high, _ in singles:
        period = jnp.maximum(period, jnp.max(high - low))
    size = loss.method.points
    spacing = 1.02 * period / (size - 8)
    spacing = _aligned(loss, spacing)
    # Of the center's copies one period away.
    copies = place.bounds[RIGHT] - shifts * place.epsilon
    away = jnp.abs(shifts - shift) * spacing * size
    # Of far shifts masses that are rounded away say nothing.
    copies = copies - away + 10 * jnp.maximum(away - _ENOUGH, 0)
    sides = [
        shifts[jnp.argmin(jnp.where(there, copies, jnp.inf))]
        for there in (shifts < shift, shifts > shift)
    ]
    first = tuple(jnp.floor(low / spacing).astype(int) - 1 for low, *_ in singles)
    counts = tuple(jnp.round(count).astype(int) for count in loss.counts)
    whole = jnp.stack(
        [
            jnp.abs(count - jnp.round(count)) <= 1e-9 * (1 + count)
            for count in loss.counts
        ]
        + [x.whole for x in loss.terms if isinstance(x, RevealedLoss | ScheduleLoss)]
    )
    whole = jnp.all(whole)
    return stop_gradient(
        Grid(
            sign=sign,
            shift=shift,
            spacing=spacing,
            first=first,
            counts=counts,
            center=place.epsilon,
            whole=whole & jnp.isfinite(spacing) & (shift > 0),
            bounds=jnp.where(RIGHT | whole, place.bounds, jnp.inf),
            sides=jnp.stack(sides),
            log_scales=tuple(log_scale for *_, log_scale in singles),
            size=size,
        )
    )


def _single_range(
    term: AbstractLoss, count: Array, sign: Array, distance: Array, moments: Array
) -> tuple[Array, Array]:
    """The range of one tilted loss, by Chernoff bounds and its support."""
    ratio = moments[:-1] - moments[-1]
    reach = _REACH + jnp.log1p(count) + ratio
    ends = reach / jnp.where(distance == 0, 1, distance)
    low = jnp.max(jnp.where(distance < 0, ends, -jnp.inf))
    high = jnp.min(jnp.where(distance > 0, ends, jnp.inf))
    least, most = term.loss_range()
    least, most = jnp.where(sign > 0, least, -most), jnp.where(sign > 0, most, -least)
    return jnp.maximum(low, least), jnp.minimum(high, most)


def _aligned(loss: ComposedLoss, spacing: Array) -> Array:
    """A spacing, no smaller, that puts the first point masses on the grid.

    And the others that have a lattice, if one that is hardly larger does.
    """
    units = _units(loss)
    if not units:
        return spacing
    ratios = jnp.stack(units)[:, None] / units[0]
    steps = jnp.floor(units[0] / spacing)
    tried = jnp.maximum(steps - np.arange(float(_TRIED)), 0.9 * steps)
    places = tried * ratios
    off = jnp.abs(places - jnp.round(places)) / (1 + places)
    steps = tried[jnp.argmax(jnp.max(off, axis=0) < 0.5 * ATOM_PLACE)]
    return jnp.where(steps >= 1, units[0] / jnp.maximum(steps, 1), spacing)


def _units(loss: ComposedLoss) -> list[Array]:
    """The units of the lattices of point masses that have one."""
    units = (x.lattice() for x, _ in single_losses(loss.terms, loss.counts))
    return [y for x in units if x is not None for y in jnp.atleast_1d(x)]


def carried(loss: ComposedLoss, grid: Grid) -> Grid:
    """The grid, which moves with the point masses that are on it.

    Kinks of the profile are grid points then, and none has to be drawn on by others.
    """
    units = _units(loss)
    if not units:
        return grid
    unit = jnp.where(units[0] > 0, units[0], 1.0)
    spacing = grid.spacing * (unit / stop_gradient(unit))
    return dataclasses.replace(grid, spacing=spacing)


@jax.jit
def discretize(
    term: AbstractLoss, grid: Grid, first: Int[Array, ""], log_scale: Float[Array, ""]
) -> Discrete:
    """Moves one term's masses to the grid points from number `first` on.

    Whatever is tilted is divided by e^log_scale.
    """
    points = (first + jnp.arange(grid.size)).astype(grid.spacing.dtype) * grid.spacing
    cells, ends = _cells_and_ends(term, grid, points)
    inner, sound = _with_cells(cells, grid, points, log_scale)
    outer, ends_sound = _with_ends(ends, grid, points, log_scale)
    bottom, top = outer
    inner = inner.at[0, 0].add(bottom)
    tilted, top = with_atoms(term.atoms(), grid, first, log_scale, (inner, top))
    return Discrete(
        tilted,
        log_scale,
        stop_gradient(top),
        atoms_moved(term.atoms(), grid),
        sound & ends_sound,
    )


def log_moments(
    tilted: Float[Array, " n"], first: Int[ArrayLike, ""], grid: Grid
) -> Float[Array, "2"]:
    """Logs of sums of masses times e^{c y}, c being either of the grid's `sides`."""
    points = (first + jnp.arange(grid.size)) * grid.spacing
    logs = jnp.log(jnp.maximum(stop_gradient(tilted), 1e-300))
    return logsumexp(logs + (grid.sides - grid.shift)[:, None] * points, axis=1)


def _cells_and_ends(
    term: AbstractLoss, grid: Grid, points: Array
) -> tuple[Cells, Cells]:
    """The cells right of each point; below the first point and from the last one on."""
    # Barrier: XLA would compute these anew for each of their uses.
    inner = optimization_barrier(_cells(term, grid.sign, points, points + grid.spacing))
    # Apart from the others, since wide cells may take more work each.
    infinity = jnp.full((), jnp.inf, points.dtype)
    low, high = jnp.stack([-infinity, points[-1]]), jnp.stack([points[0], infinity])
    return inner, _cells(term, grid.sign, low, high)


def _with_cells(
    cells: Cells, grid: Grid, points: Array, log_scale: Array
) -> tuple[Float[Array, "2 n"], Bool[Array, ""]]:
    """Tilted masses of the cells right of each point.

    Also whether the errors of all masses that matter are known.
    """
    h, c = grid.spacing, grid.shift
    step = jnp.expm1(h)
    # Masses are raised by their possible error: the upper bound stays one.
    found = cells.error + stop_gradient(_placing_error(grid, points, log_scale))
    error = jnp.minimum(found, 1)
    inner = cells.loss - points
    share = jnp.expm1(jnp.clip(inner + 2 * error, 0, h)) / step
    # P-mass times the tilted likelihood ratio of the lower end.
    mass = jnp.exp(cells.log_mass + error + (1 + c) * points - log_scale)
    lower, upper = mass * (1 - share), mass * share * jnp.exp((1 + c) * h)
    # Of the test: the loss's own ratio in place of that of the point.
    down = jnp.minimum(inner, h) - 3 * error
    lower = _both_laws(lower, down)
    # The last cell's upper end is off the grid; see `_with_ends`.
    upper = _both_laws(upper, down - h).at[:, -1].set(0)
    sound = jnp.all((found < 1) | (mass < IRRELEVANT_MASS))
    return lower + jnp.roll(upper, 1, axis=1), sound


def _both_laws(mass: Float[Array, " n"], down: Array) -> Float[Array, "2 n"]:
    """Masses of the upper law, and of the test: e^down times these."""
    return jnp.stack([mass, stop_gradient(mass * jnp.exp(down))])


def _with_ends(
    ends: Cells, grid: Grid, points: Array, log_scale: Array
) -> tuple[tuple[Array, Array], Array]:
    """Tilted mass below the grid and Q-mass above it, its last cell included."""
    found = ends.error + _placing_error(grid, ends.loss, log_scale)
    error = stop_gradient(jnp.minimum(found, 1))
    log_mass = ends.log_mass + ends.loss + 2 * error
    edges = jnp.stack([points[0], points[-1]])
    tilted = jnp.exp(log_mass + grid.shift * edges - log_scale)
    sound = jnp.all((found < 1) | (tilted < IRRELEVANT_MASS))
    return (tilted[0], jnp.exp(log_mass[1])), sound


def _placing_error(grid: Grid, loss: Array, log_scale: Array) -> Array:
    """The effect of a threshold's rounding on the logarithm of a cell's tilted mass."""
    steps = jnp.abs(loss) * (1 / grid.spacing + 2 + grid.shift)
    return 4 * ULP * (1 + steps + jnp.abs(log_scale))


def with_atoms(
    atoms: Atoms,
    grid: Grid,
    first: Int[Array, ""],
    log_scale: Array,
    sums: tuple[Float[Array, "2 n"], Float[Array, ""]],
) -> tuple[Float[Array, "2 n"], Float[Array, ""]]:
    """Adds the point masses to tilted masses, and to the Q-mass above the grid."""
    if not atoms.loss.size:
        return sums
    tilted, top = sums
    exchanged, keep = atoms.exchanged(), grid.sign > 0
    atoms = jax.tree.map(lambda a, b: jnp.where(keep, a, b), atoms, exchanged)
    h, c = grid.spacing, grid.shift
    step, place_in_steps = jnp.expm1(h), stop_gradient(atoms.loss) / h
    near = jnp.round(place_in_steps)
    off = jnp.abs(place_in_steps - near)
    on_grid = off <= ATOM_PLACE * (1 + jnp.abs(place_in_steps))
    left = jnp.where(on_grid, near, jnp.floor(place_in_steps))
    share = jnp.expm1(jnp.clip(atoms.loss - left * h, 0, h)) / step
    parts = jnp.where(on_grid, 0, share)
    parts = stop_gradient(jnp.stack([0 * parts, 1 - parts, parts, 0 * parts]))
    shares = parts + _moves(atoms.loss / h - left, on_grid)
    size = (2 + c) * jnp.abs(atoms.loss) + jnp.abs(log_scale)
    rounded = 4 * ULP * stop_gradient(size)
    raised = atoms.log_mass + 2 * atoms.error + rounded
    mass = jnp.exp(raised + (1 + c) * left * h - log_scale)
    # Those off the grid count as its ends; their index is out of range, so dropped.
    place = left.astype(int) - first
    below, above = place < 1, place > grid.size - 2
    index = jnp.where(below | above, 2 * grid.size, place)
    start = first.astype(h.dtype) * h
    lifted = jnp.exp(raised + atoms.loss + c * start - log_scale)
    tilted = tilted.at[0, 0].add(jnp.sum(jnp.where(below, lifted, 0)))
    infinite = jnp.exp(raised + atoms.loss)
    top = top + jnp.sum(jnp.where(above, infinite, 0))
    down = atoms.loss - left * h - 4 * atoms.error - 2 * rounded
    for offset, part in zip((-1, 0, 1, 2), shares, strict=True):
        moved = mass * part * jnp.exp((1 + c) * offset * h)
        both = _both_laws(moved, down - offset * h)
        tilted = tilted.at[:, index + offset].add(both)
    return tilted, top


def atoms_moved(atoms: Atoms, grid: Grid) -> Float[Array, ""]:
    """The largest error of point masses: rounded losses, and those put onto the grid.

    Where a payoff is next to its kink, no change of the masses stands for that.
    """
    if not atoms.loss.size:
        return jnp.zeros_like(grid.spacing)
    h, place = grid.spacing, stop_gradient(atoms.loss) / grid.spacing
    off = jnp.abs(place - jnp.round(place))
    put = jnp.where(off <= ATOM_PLACE * (1 + jnp.abs(place)), off * h, 0)
    size = 4 * jnp.abs(atoms.loss) + 2 * jnp.abs(atoms.log_mass)
    moved = put + ULP * size
    # Beyond what masses are known to by themselves: losses are their quotients.
    moved = moved + jnp.maximum(2 * (atoms.error - ATOM_MASS), 0)
    return stop_gradient(jnp.max(jnp.where(jnp.isfinite(moved), moved, 0)))


def _moves(place: Array, on_grid: Array) -> Float[Array, "4 atoms"]:
    """Zero, with the derivatives of an atom's shares of the points -1, 0, 1 and 2.

    Where it is split between two points, the derivative of the chord belongs to the
    middle of the cell: that of the cubic through four points is right at the atom
    itself.  On the grid there may be a kink: the mean of both sides' slopes.
    """
    t = place
    cubic = (
        -t * (t - 1) * (t - 2) / 6,
        (t + 1) * (t - 1) * (t - 2) / 2,
        -(t + 1) * t * (t - 2) / 2,
        (t + 1) * t * (t - 1) / 6,
    )
    parabola = (t * (t - 1) / 2, 1 - t * t, t * (t + 1) / 2, 0 * t)
    found = jnp.stack(
        [jnp.where(on_grid, *x) for x in zip(parabola, cubic, strict=True)]
    )
    return found - stop_gradient(found)


def _cells(term: AbstractLoss, sign: Array, low: Array, high: Array) -> Cells:
    """The cells of one direction's loss."""
    positive = sign > 0
    found = term.cells(jnp.where(positive, low, -high), jnp.where(positive, high, -low))
    exchanged = found.exchanged()
    return jax.tree.map(lambda a, b: jnp.where(positive, a, b), found, exchanged)
