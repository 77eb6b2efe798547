r"""The grid engine: losses moved to a grid, composed by FFT, with a certificate.

Discretization ("connect the dots", Doroshenko et al. 2022).  The mass of a cell between
two grid points is split between them so that its mass under P and under Q is kept: a
mean-preserving spread of the likelihood ratio, so the new pair A' dominates the old,
A.  Its profile is the chord of the profile of A over every cell.

Composition.  The masses are tilted by e^{c y}, transformed, raised to their powers and
multiplied by the transform of the payoff's kernel: one inverse transform gives the
profile of the composition at every grid point, with relative accuracy in the far tail.
The wrap-around adds exactly sum_m e^{cmR} delta(eps + mR), as in `_contour.py`.

Lower bound.  Composition is linear in the profile of each factor,
delta_{A o B}(eps) = E[delta_A(eps - Y_B)], so exchanging the factors A' for A one at a
time costs sum_i E[s(eps - Y)], with s = delta_{A'} - delta_A at most the height of a
triangle over every cell and Y a sum of some factors of either kind.  Collapsing the
cells (a garbling, so still a lower bound) makes Y a grid sum minus bounded, nearly
centered errors, that is, s is replaced by its maximum over a window (Hoeffding 1963).
The expectation is one more inverse transform.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier, stop_gradient
from jaxtyping import Array, Bool, Float, Int

from ..losses import AbstractLoss, Cells, ComposedLoss
from ._bounds import Interval
from ._contour import Start, cheapest_shift, log_aliases
from ._saddle import order_of

_SIZE = 1 << 17
"""Grid points."""
_REACH = 50.0
"""-log of the tilted mass of a single loss left out on either side."""
_MISSED = 1e-14
"""Probability of leaving the window that Hoeffding's inequality allows for."""
_ATOM_ERROR = 1e-13
"""Relative error allowed for the mass of an atom, and for its place."""
_LOST = 1e-40
"""Tilted mass whose error does not matter."""
_LEVELS = 17


class Grid(eqx.Module):
    """What is chosen before anything is composed; constants for derivatives."""

    sign: Float[Array, ""]
    shift: Float[Array, ""]
    spacing: Float[Array, ""]
    first: tuple[Int[Array, ""], ...]
    """Index of the first grid point of each term's losses, in units of the spacing."""
    counts: tuple[Int[Array, ""], ...]
    center: Float[Array, ""]
    """A threshold around which half a period of the profile is certified."""
    whole: Bool[Array, ""]
    """Whether all counts are whole numbers and everything fits on the grid."""
    chernoff_shifts: Float[Array, " k"]
    chernoff_logs: Float[Array, " k"]
    moments: tuple[Float[Array, " k"], ...]
    """Of each term at the Chernoff shifts."""


class _Discrete(eqx.Module):
    """One term on the grid.  Every entry is divided by e^log_scale."""

    tilted: Float[Array, " n"]
    """Q-mass times e^{c y} at the grid points."""
    excess: Float[Array, " n"]
    """Height of the triangles s, tilted; entry j is the cell right of point j."""
    mean_excess: Float[Array, " n"]
    """About the mean of s over the cell."""
    slack: Float[Array, " n"]
    """Bound on what rounding has added to the tilted mass of each cell."""
    log_scale: Float[Array, ""]
    top: Float[Array, ""]
    """Q-mass above the grid, taken for infinite (not tilted)."""
    bottom: Float[Array, ""]
    """Tilted Q-mass lifted to the first grid point."""
    first_point: Float[Array, ""]
    sound: Bool[Array, ""]
    """Whether the errors of all masses that matter are known."""


class GridProfile(eqx.Module):
    """The tilted profile of a composition at grid points `index` * spacing.

    delta = values exp(log_scale - shift epsilon).
    """

    grid: Grid
    start: Int[Array, ""]
    log_scale: Float[Array, ""]
    upper: Float[Array, " m"]
    estimate: Float[Array, " m"]
    lower: Float[Array, " m"]
    """At the grid points; between them see `excess`."""
    excess: Float[Array, " m"]
    """What a chord of `lower` may exceed the lower bound by, right of each point."""
    alpha: Float[Array, " m"]
    """P(X > eps) e^eps on the same scale, an estimate."""
    log_top: Float[Array, ""]
    """Log of a mass to be added to `upper`, not tilted."""


# -- choosing the grid -------------------------------------------------------------


def plan_grid(loss: ComposedLoss, start: Start) -> Grid:
    """Chooses tilt, spacing and offsets for thresholds near one, with c > 0."""
    loss = stop_gradient(loss)
    sign = start.sign
    dtype = start.saddle.shift.dtype
    log_unit = jnp.log(jnp.asarray(jnp.finfo(dtype).eps, dtype))
    shift, _, period = cheapest_shift(start, log_unit)
    shifts = start.chernoff_shifts
    orders = order_of(jnp.append(shifts, shift), sign)
    moments = tuple(term.moments(orders)[0] for term in loss.terms)
    ranges = [
        _single_range(term, count, sign, shifts - shift, own)
        for term, count, own in zip(loss.terms, loss.counts, moments, strict=True)
    ]
    for low, high in ranges:
        period = jnp.maximum(period, high - low)
    spacing = 1.02 * period / (_SIZE - 8)
    spacing = _aligned(loss, spacing)
    first = tuple(jnp.floor(low / spacing).astype(int) - 1 for low, _ in ranges)
    counts = tuple(jnp.round(count).astype(int) for count in loss.counts)
    whole = jnp.stack(
        [
            jnp.abs(count - jnp.round(count)) <= 1e-9 * (1 + count)
            for count in loss.counts
        ]
    )
    return stop_gradient(
        Grid(
            sign=sign,
            shift=shift,
            spacing=spacing,
            first=first,
            counts=counts,
            center=start.saddle.epsilon,
            whole=jnp.all(whole) & jnp.isfinite(spacing) & (shift > 0),
            chernoff_shifts=shifts,
            chernoff_logs=start.chernoff_logs,
            moments=tuple(own[:-1] for own in moments),
        )
    )


def _single_range(
    term: AbstractLoss, count: Array, sign: Array, distance: Array, moments: Array
) -> tuple[Array, Array]:
    """Where one tilted loss lives, by Chernoff bounds and its support."""
    ratio = moments[:-1] - moments[-1]
    reach = _REACH + jnp.log1p(count) + ratio
    ends = reach / jnp.where(distance == 0, 1, distance)
    low = jnp.max(jnp.where(distance < 0, ends, -jnp.inf))
    high = jnp.min(jnp.where(distance > 0, ends, jnp.inf))
    least, most = term.loss_range()
    least, most = jnp.where(sign > 0, least, -most), jnp.where(sign > 0, most, -least)
    return jnp.maximum(low, least), jnp.minimum(high, most)


def _aligned(loss: ComposedLoss, spacing: Array) -> Array:
    """A spacing, no smaller, that puts the first point masses on the grid."""
    for term in loss.terms:
        loss_of_atoms = term.atoms().loss
        if loss_of_atoms.size:
            size = jnp.max(jnp.abs(loss_of_atoms))
            steps = jnp.floor(size / spacing)
            return jnp.where(steps >= 1, size / jnp.maximum(steps, 1), spacing)
    return spacing


# -- one term on the grid ----------------------------------------------------------


def _discretize(term: AbstractLoss, grid: Grid, first: Int[Array, ""]) -> _Discrete:
    h, c, n = grid.spacing, grid.shift, _SIZE
    points = (first + jnp.arange(n)).astype(h.dtype) * h
    # Barriers: XLA would compute these anew for each of their uses.
    cells = optimization_barrier(_cells(term, grid.sign, points, points + h))
    ends = jnp.stack([points[0], points[-1] + h])
    infinity = jnp.full(1, jnp.inf, h.dtype)
    below = _cells(term, grid.sign, -infinity, ends[:1])
    above = _cells(term, grid.sign, ends[1:], infinity)
    log_scale = stop_gradient(term.moments(order_of(c, grid.sign)[None])[0][0])
    step = jnp.expm1(h)
    # Masses are raised by their possible error: the upper bound stays one.
    unit = 4 * jnp.finfo(h.dtype).eps
    found = cells.error + stop_gradient(unit * (1 + jnp.abs(points) / h))
    error = jnp.minimum(found, 1)
    inner = cells.loss - points + 2 * error
    share = jnp.expm1(jnp.clip(inner, 0, h)) / step
    # P-mass times the tilted likelihood ratio of the lower end.
    mass = jnp.exp(cells.log_mass + error + (1 + c) * points - log_scale)
    lower, upper = mass * (1 - share), mass * share * jnp.exp((1 + c) * h)
    bottom = jnp.exp(below.log_mass[0] + below.loss[0] + c * points[0] - log_scale)
    tilted = lower + jnp.roll(upper.at[-1].set(0), 1)
    spread = share * (1 - share)
    excess = mass * spread * step
    mean_excess = 0.5 * step * mass * jnp.maximum(spread - _within(mass), 0)
    slack = 8 * error * mass
    # Unless a mass that matters could not be computed.
    sound = jnp.all((found < 1) | (mass < _LOST))
    top = jnp.exp(above.log_mass[0] + above.loss[0])
    sums = tilted, excess, mean_excess, slack, bottom, top
    sums = _with_atoms(term, grid, first, log_scale, sums)
    tilted, excess, mean_excess, slack, bottom, top = sums
    # The last cell's upper end is off the grid.
    last = cells.log_mass[-1] + cells.loss[-1]
    return _Discrete(
        tilted.at[0].add(bottom),
        stop_gradient(excess),
        stop_gradient(mean_excess),
        stop_gradient(slack),
        log_scale,
        stop_gradient(top + jnp.exp(last)),
        stop_gradient(bottom),
        points[0],
        sound,
    )


def _with_atoms(
    term: AbstractLoss,
    grid: Grid,
    first: Int[Array, ""],
    log_scale: Array,
    sums: tuple[Array, ...],
) -> tuple[Array, ...]:
    """Adds the point masses to masses, excess and mean excess, bottom and top."""
    atoms = term.atoms()
    if not atoms.loss.size:
        return sums
    tilted, excess, mean_excess, slack, bottom, top = sums
    exchanged, keep = atoms.exchanged(), grid.sign > 0
    atoms = jax.tree.map(lambda a, b: jnp.where(keep, a, b), atoms, exchanged)
    h, c = grid.spacing, grid.shift
    step, place_in_steps = jnp.expm1(h), stop_gradient(atoms.loss) / h
    near = jnp.round(place_in_steps)
    off = jnp.abs(place_in_steps - near)
    on_grid = off <= _ATOM_ERROR * (1 + jnp.abs(place_in_steps))
    left = jnp.where(on_grid, near, jnp.floor(place_in_steps))
    share = jnp.expm1(jnp.clip(atoms.loss - left * h, 0, h)) / step
    # On the grid nothing is split, but if the atom moves it will be, half of the time
    # to the left: the derivative is the mean of both sides'.
    moved = jnp.expm1(atoms.loss - stop_gradient(atoms.loss))
    shares = jnp.where(
        on_grid,
        jnp.stack([-0.5 * jnp.exp(h) * moved / step, 1 + 0.5 * moved]),
        jnp.stack([0 * share, 1 - share]),
    )
    upper = jnp.where(on_grid, 0.5 * moved / step, share)
    raised = atoms.log_mass + 2 * _ATOM_ERROR
    mass = jnp.exp(raised + (1 + c) * left * h - log_scale)
    # Those off the grid count as its ends; their index is out of range, so dropped.
    place = left.astype(int) - first
    below, above = place < 1, place > _SIZE - 2
    index = jnp.where(below | above, 2 * _SIZE, place)
    start = first.astype(h.dtype) * h
    lifted = jnp.exp(atoms.log_mass + atoms.loss + c * start - log_scale)
    bottom = bottom + jnp.sum(jnp.where(below, lifted, 0))
    infinite = jnp.exp(atoms.log_mass + atoms.loss)
    top = top + jnp.sum(jnp.where(above, infinite, 0))
    for offset, part in ((-1, shares[0]), (0, shares[1]), (1, upper)):
        lift = jnp.exp((1 + c) * offset * h)
        tilted = tilted.at[index + offset].add(mass * part * lift)
    height = jnp.where(on_grid, 0, mass * share * (1 - share) * step)
    excess = excess.at[index].add(height)
    mean_excess = mean_excess.at[index].add(0.5 * height)
    # An atom moved onto the grid counts with what that does to the tilted mass.
    moved = _ATOM_ERROR * (1 + jnp.abs(place_in_steps) * (1 + c) * h)
    slack = slack.at[index].add(8 * mass * moved)
    return tilted, excess, mean_excess, slack, bottom, top


def _cells(term: AbstractLoss, sign: Array, low: Array, high: Array) -> Cells:
    """The cells of one direction's loss."""
    positive = sign > 0
    found = term.cells(jnp.where(positive, low, -high), jnp.where(positive, high, -low))
    exchanged = found.exchanged()
    return jax.tree.map(lambda a, b: jnp.where(positive, a, b), found, exchanged)


def _within(mass: Array) -> Array:
    """About the variance of the likelihood ratio within a cell, over its width squared.

    1 / 12 where the density is smooth, and nothing where a cell stands out.
    """
    least = jnp.minimum(jnp.roll(mass, 1), jnp.roll(mass, -1))
    return jnp.square(jnp.minimum(least / jnp.maximum(mass, 1e-300), 1)) / 12


def _windowed(excess: Array, window: Int[Array, ""]) -> Array:
    """Maximum over the cells from `window` + 1 left to `window` right of each point."""
    total = 2 * window + 2
    covered, result = jnp.ones_like(total), excess
    for _ in range(_LEVELS + 1):
        move = jnp.minimum(covered, total - covered)
        result = jnp.maximum(result, _shift(result, move))
        covered = covered + move
    # Entry j now covers cells j, ..., j + total - 1.
    return _shift(result, -(window + 1))


def _shift(x: Array, by: Int[Array, ""]) -> Array:
    """Entry j becomes entry j + by; zero outside."""
    index = jnp.arange(x.size) + by
    inside = (index >= 0) & (index < x.size)
    return jnp.where(inside, x[jnp.clip(index, 0, x.size - 1)], 0)


# -- composition -------------------------------------------------------------------


def compose_grid(loss: ComposedLoss, grid: Grid) -> GridProfile:
    """The profile of the composition at half a period of grid points."""
    n, h, c = _SIZE, grid.spacing, grid.shift
    unit = jnp.finfo(h.dtype).eps
    parts = [
        _discretize(term, grid, first)
        for term, first in zip(loss.terms, grid.first, strict=True)
    ]
    total = jnp.sum(jnp.stack(grid.counts)).astype(h.dtype)
    slack = jnp.sqrt(0.5 * total * math.log(2 / _MISSED)) + 0.125 * h * total
    window = jnp.minimum(jnp.ceil(slack), jnp.maximum(total - 1, 0)).astype(int)
    logs, log_scale = jnp.zeros(n // 2 + 1, complex), jnp.zeros_like(h)
    transforms = []
    for part, count in zip(parts, grid.counts, strict=True):
        mass = jnp.sum(part.tilted)
        transform = jnp.fft.rfft(part.tilted / mass)
        transform = jnp.where(jnp.abs(transform) < 1e-150, 1e-150, transform)
        transforms.append((transform, mass))
        logs = logs + count * jnp.log(transform)
        log_scale = log_scale + count * (part.log_scale + jnp.log(mass))
    product = jnp.exp(logs)
    omega = 2 * jnp.pi * jnp.arange(n // 2 + 1) / n
    to_power = _geometric(c * h, omega)
    to_alpha = _geometric((1 + c) * h, omega)
    tail = 1 + jnp.conj(to_power)
    tilted = jnp.fft.irfft(product * jnp.conj(to_power - to_alpha), n)
    alpha = jnp.fft.irfft(stop_gradient(product * jnp.conj(to_alpha + 0.5)), n)
    certain = mean = jnp.zeros(n // 2 + 1, complex)
    top = missed = jnp.zeros_like(h)
    growth = jnp.zeros_like(grid.chernoff_shifts)
    sensitivity = 2 * jnp.abs(product)
    for part, count, own, (transform, mass) in zip(
        parts, grid.counts, grid.moments, transforms, strict=True
    ):
        rest = stop_gradient(product / transform)
        scaled = part.excess / stop_gradient(mass)
        highest = _windowed(scaled, window) * jnp.exp(c * (window + 2) * h)
        slack = jnp.fft.rfft(part.slack / stop_gradient(mass)) * tail
        certain = certain + count * rest * (jnp.fft.rfft(highest) + slack)
        smooth = 0.5 * (part.mean_excess + jnp.roll(part.mean_excess, 1))
        # With the last factor on the grid, no error is left at grid points.
        share = jnp.maximum(total - 1, 0) / jnp.maximum(total, 1)
        smooth = smooth / stop_gradient(mass)
        mean = mean + count * share * rest * jnp.fft.rfft(smooth)
        bottom = part.bottom / stop_gradient(mass)
        missed = missed + count * (_MISSED * jnp.max(scaled) + bottom)
        growth = growth + count * jnp.log1p(_moment_growth(grid, part, own))
        sensitivity = sensitivity + count * jnp.abs(rest)
        top = top + count * part.top
    kernel = jnp.abs(to_power - to_alpha)
    rounding = 8 * math.log2(n) * unit * jnp.sum(sensitivity * kernel) * 2 / n
    rounding = rounding + 8 * unit * jnp.max(jnp.abs(tilted))
    certain = jnp.fft.irfft(certain, n) + missed + rounding
    mean = jnp.fft.irfft(mean, n)
    # Rotate to thresholds around the center.
    offset = sum(
        jnp.mod(count, n) * jnp.mod(first, n)
        for count, first in zip(grid.counts, grid.first, strict=True)
    )
    start = jnp.round(grid.center / h).astype(int) - n // 4
    index = jnp.mod(start - offset + jnp.arange(n // 2), n)
    tilted, alpha, certain, mean = (x[index] for x in (tilted, alpha, certain, mean))
    error = 8 * unit * total
    epsilons = (start + jnp.arange(n // 2)).astype(h.dtype) * h
    aliases = jnp.exp(
        jnp.minimum(
            log_aliases(
                grid.chernoff_shifts, grid.chernoff_logs + growth, c, n * h, epsilons
            )
            - (log_scale - c * epsilons),
            700,
        )
    )
    upper = tilted * (1 + error) + rounding
    lower = tilted * (1 - error) - rounding - aliases
    estimate = tilted - stop_gradient(jnp.minimum(mean, 0.5 * tilted))
    log_top = jnp.log(jnp.maximum(top, 1e-320))
    sound = jnp.all(jnp.stack([part.sound for part in parts])) & grid.whole
    result = stop_gradient((upper, lower, certain, alpha, log_top))
    upper, lower, certain, alpha, log_top = result
    return GridProfile(
        grid=grid,
        start=start,
        log_scale=log_scale,
        upper=jnp.where(sound, upper, jnp.inf),
        estimate=estimate,
        lower=jnp.where(sound, lower, -jnp.inf),
        excess=jnp.maximum(certain, _shift(certain, jnp.ones_like(start))),
        alpha=alpha,
        log_top=log_top,
    )


def _moment_growth(
    grid: Grid, part: _Discrete, moments: Float[Array, " k"]
) -> Float[Array, " k"]:
    """By how much, relatively, E[e^{c Y}] of the discretized loss may be larger."""
    shifts, h = grid.chernoff_shifts, grid.spacing
    # The chord of x^(1 + c) over a cell.
    chord = 0.125 * jnp.square(jnp.expm1(h)) * jnp.abs((1 + shifts) * shifts)
    chord = chord * jnp.exp(h * (2 + jnp.abs(shifts)))
    # The mass lifted to the first point.
    lifted = part.log_scale + (shifts - grid.shift) * part.first_point - moments
    return chord + part.bottom * jnp.exp(jnp.minimum(lifted, 700))


def _geometric(decay: Array, omega: Array) -> Array:
    """sum_{m >= 1} e^{-m decay + i m omega}, conjugated below by its user."""
    # x / (1 - x) = 1 / (e^{decay + i omega} - 1), without cancellation.
    real = jnp.expm1(decay) - 2 * jnp.exp(decay) * jnp.square(jnp.sin(0.5 * omega))
    imag = jnp.exp(decay) * jnp.sin(omega)
    return 1 / (real + 1j * imag)


# -- queries -----------------------------------------------------------------------


def grid_profile(
    profile: GridProfile, epsilons: Float[Array, " e"]
) -> tuple[Interval, Float[Array, " e"]]:
    """Log delta of the finite losses at some thresholds, and log P(X > eps).

    Only the estimate has a derivative, in the profile and in epsilon.
    """
    estimate = _log_estimate(profile, epsilons)
    fixed = stop_gradient(epsilons)
    cell, share = _locate(profile, fixed)
    log_scale = profile.log_scale - profile.grid.shift * fixed
    log_scale = stop_gradient(log_scale)
    upper = _safe_log(_chord(profile, profile.upper, cell, share))
    upper = jnp.logaddexp(upper + log_scale, profile.log_top)
    lower = _chord(profile, profile.lower, cell, share)
    excess = _excess(profile, cell, share)
    lower = _safe_log(lower - excess) + log_scale
    covered = (cell > 0) & (cell < profile.upper.size - 3)
    upper = jnp.where(covered, upper, jnp.inf)
    lower = jnp.where(covered, lower, -jnp.inf)
    alpha = _safe_log(_chord(profile, profile.alpha, cell, share))
    log_alpha = alpha + log_scale - fixed
    return Interval(lower, estimate, upper), log_alpha


def grid_epsilon(profile: GridProfile, log_delta: Float[Array, ""]) -> Interval:
    """The epsilon of a given delta of the finite losses; no derivative."""
    profile, target = stop_gradient((profile, log_delta))
    h, n = profile.grid.spacing, profile.upper.size
    points = (profile.start + jnp.arange(n)).astype(h.dtype) * h
    log_scale = profile.log_scale - profile.grid.shift * points
    uppers = jnp.logaddexp(_safe_log(profile.upper) + log_scale, profile.log_top)
    left_too = jnp.maximum(profile.excess, _shift(profile.excess, -jnp.ones((), int)))
    lowers = _safe_log(profile.lower - left_too * jnp.exp(profile.grid.shift * h))
    lowers = lowers + log_scale
    middles = _safe_log(profile.estimate) + log_scale

    def last_above(values: Array) -> Array:
        """The last cell whose left end lies above the target."""
        above = values > target
        last = n - 1 - jnp.argmax(above[::-1])
        return jnp.where(jnp.any(above), last, -1)

    def solve(cell: Array, value, safe: Array) -> Array:
        """Bisection in one cell, keeping the side on which `value` is `safe`."""
        left = points[jnp.clip(cell, 0, n - 2)]

        def halve(_, ends):
            low, high = ends
            middle = 0.5 * (low + high)
            above = value(middle) > target
            return jnp.where(above, middle, low), jnp.where(above, high, middle)

        low, high = jax.lax.fori_loop(0, 45, halve, (left, left + h))
        return jnp.where(safe, high, low)

    def upper_at(x: Array) -> Array:
        return grid_profile(profile, x[None])[0].upper[0]

    def lower_at(x: Array) -> Array:
        return grid_profile(profile, x[None])[0].lower[0]

    def estimate_at(x: Array) -> Array:
        return _log_estimate(profile, x[None])[0]

    cells = [last_above(x) for x in (lowers, middles, uppers)]
    yes = jnp.ones((), bool)
    upper = solve(cells[2], upper_at, yes)
    middle = solve(cells[1], estimate_at, yes)
    lower = solve(cells[0], lower_at, ~yes)
    inside = [(cell > 0) & (cell < n - 4) for cell in cells]
    upper = jnp.where(inside[2], upper, jnp.inf)
    lower = jnp.where(inside[0], lower, -jnp.inf)
    middle = jnp.where(inside[1], middle, profile.grid.center)
    return Interval(lower, jnp.clip(middle, lower, upper), upper)


def grid_threshold(
    profile: GridProfile,
    target: Float[Array, ""],
    log_not_target: Float[Array, ""],
    power: Bool[Array, ""],
) -> Float[Array, ""]:
    """Where log P(X > eps), or log Q(Y > eps) if `power`, falls below a target."""
    h, c, n = profile.grid.spacing, profile.grid.shift, profile.upper.size
    points = (profile.start + jnp.arange(n)).astype(h.dtype) * h
    tail = profile.alpha + jnp.where(power, profile.estimate, 0)
    logs = _safe_log(tail) + profile.log_scale - c * points
    logs = logs - jnp.where(power, 0, points)
    above = logs > target
    last = n - 1 - jnp.argmax(above[::-1])
    left, right = logs[last], logs[jnp.minimum(last + 1, n - 1)]
    share = jnp.where(left > right, (left - target) / (left - right), 0)
    between = points[last] + jnp.clip(share, 0, 1) * h
    # At a point mass the kink itself, a grid point, is better than any point between.
    near = points[jnp.clip(last + jnp.arange(-1, 3), 0, n - 1)]
    candidates = jnp.append(near, between)
    delta = jnp.exp(_log_estimate(profile, candidates))
    alpha = jnp.exp(jnp.where(power, log_not_target, target))
    error = jnp.exp(-candidates) * (1 - alpha - delta)
    gain = jnp.where(power, error, -(delta + jnp.exp(candidates) * alpha))
    found = candidates[jnp.argmax(gain)]
    return jnp.where(jnp.any(above), found, points[0])


def _locate(profile: GridProfile, epsilon: Array) -> tuple[Array, Array]:
    """The cell, and the place in it on the scale of e^eps (chords are straight)."""
    h = profile.grid.spacing
    place = epsilon / h - profile.start.astype(h.dtype)
    cell = jnp.clip(jnp.floor(place), 1, profile.upper.size - 3)
    inside = jnp.clip(place - cell, 0, 1) * h
    return cell.astype(int), jnp.expm1(inside) / jnp.expm1(h)


def _chord(profile: GridProfile, values: Array, cell: Array, share: Array) -> Array:
    """The chord of delta, on the tilted scale at the threshold itself."""
    h, c = profile.grid.spacing, profile.grid.shift
    inside = jnp.log1p(share * jnp.expm1(h))
    left = values[cell] * jnp.exp(c * inside)
    right = values[cell + 1] * jnp.exp(c * (inside - h))
    return (1 - share) * left + share * right


def _excess(profile: GridProfile, cell: Array, share: Array) -> Array:
    h, c = profile.grid.spacing, profile.grid.shift
    inside = jnp.log1p(share * jnp.expm1(h))
    return profile.excess[cell] * jnp.exp(c * inside + c * h)


def _log_estimate(profile: GridProfile, epsilons: Float[Array, " e"]) -> Array:
    """Log delta by the cubic through four points whose slopes make it smooth."""
    h, c = profile.grid.spacing, profile.grid.shift
    cell, _ = _locate(profile, stop_gradient(epsilons))
    t = epsilons / h - (profile.start + cell).astype(h.dtype)
    near = profile.estimate[cell[:, None] + jnp.arange(-1, 3)]
    logs = _safe_log(near)
    before, left, right, after = logs.T
    slope, next_slope = 0.5 * (right - before), 0.5 * (after - left)
    change = right - left
    bend = 3 * change - 2 * slope - next_slope
    twist = slope + next_slope - 2 * change
    value = left + t * (slope + t * (bend + t * twist))
    return value + profile.log_scale - c * epsilons


def _safe_log(x: Array) -> Array:
    positive = x > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, x, 1)), -jnp.inf)
