r"""Additive noise for many releases, learned by gradient.

The noise lives on a lattice of k points per unit of sensitivity, with masses
p_i = exp(-E_i / s^2) / Z, where E is even and convex: log-concave noise.  A shift by j
points then leaks most at j = k: the likelihood ratio is monotone in the output, so the
best tests are thresholds, and their power grows with j.  A density that is constant
between lattice points splits any other shift into two of those, so that one pair is all
there is to compose.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._logs import LOG_2
from ..calibration import AbstractTarget, calibrate
from ..losses import AtomicLoss, ComposedLoss
from ..mechanisms import (
    ADD_OR_REMOVE_ONE,
    NOISE,
    AbstractMechanism,
    FromProbabilities,
    Gaussian,
    as_float,
    one_release,
)
from ._minimize import minimize
from ._noise import NoiseDesign, expected_costs

_REACH = 8.0
"""Half the width of the lattice, in standard deviations of Gaussian noise."""
_POINTS = 1 << 14
"""Points of the grid while searching; results are certified on the usual number."""


@explained(num_steps=_checks.whole_in(1, 10**6), num_knots=_checks.whole_in(2, 256))
def learn_noise(
    cost: Callable[[Any], Any],
    target: AbstractTarget,
    *,
    num_steps: int,
    num_bins: int | None = None,
    num_knots: int = 12,
    start: Any = 0.0,
    max_num_steps: int = 60,
) -> NoiseDesign:
    """The log-concave noise of least expected cost for many releases of one number.

    Args:
        cost: Function of the noise (an array, in units of the sensitivity), at least 0
            and even.
        target: Of `fdp_jax.targets`, for all releases together.
        num_steps: The number of releases, at least 1; they may be adaptive.
        num_bins: Bins per unit of sensitivity; by default as many as make eight per
            standard deviation of Gaussian noise, at least one.
        num_knots: The curvature of -log density is piecewise log-linear in the distance
            from 0 with so many knots, from 2 to 256.
        start: Logarithms of that curvature at the knots, up to a constant, from which
            the search starts: 0 for Gaussian noise.
        max_num_steps: Steps of the BFGS method.

    Returns:
        A `NoiseDesign`; its `mechanism` is one release at a shift of one sensitivity,
        `deltas` is empty.

    Guarantee:
        The certified guarantee of `mechanism.repeat(num_steps)` meets the target, for
        every shift up to the sensitivity.

    Raises:
        ValueError: If an argument is out of range.
        UnreachableTarget: If no scale of the noise on this lattice meets the target.

    Example:
        >>> import fdp_jax as fdp, jax.numpy as jnp
        >>> target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-3)
        >>> best = fdp.design.learn_noise(
        ...     jnp.square, target, num_steps=16, num_knots=4, max_num_steps=4
        ... )
        >>> gauss = fdp.calibrate(
        ...     fdp.Gaussian().repeat(16), target, solve_for="noise_multiplier"
        ... )
        >>> bool(best.cost < gauss.value**2)
        True

    References:
        Dong, Su, Zhang (2021), "A central limit theorem for differentially private
        query answering": of many releases Gaussian noise is best in the limit.
    """
    family = Gaussian().repeat(float(num_steps))
    gauss = calibrate(family, target, solve_for="noise_multiplier").value
    if num_bins is None:
        num_bins = int(np.ceil(8 / float(gauss)))
    num_bins = _checks.whole("num_bins", num_bins, 1, 256)
    half = int(np.ceil(_REACH * float(gauss) * num_bins))
    costs = jnp.asarray(expected_costs(cost, half, num_bins)[half:])
    _checks.require(
        np.shape(start) in ((), (num_knots,)),
        f"start must be a number or have the shape ({num_knots},)",
        np.shape(start),
    )
    _checks.require(np.all(np.isfinite(start)), "start must be finite", start)
    logs = jnp.broadcast_to(jnp.asarray(start, float), (num_knots,))

    def noise(logs: Array) -> _LatticeNoise:
        energies = _energies(logs, half, float(gauss) * num_bins)
        return _LatticeNoise(None, energies, num_bins)

    def expected(logs: Array, value: Array) -> Array:
        weights = jax.nn.softmax(-noise(logs).energies / jnp.square(value))
        # On a logarithmic scale, so that tolerances are relative.
        return jnp.log(weights @ costs.astype(weights.dtype))

    best = minimize(
        expected,
        lambda logs: noise(logs).repeat(float(num_steps)).using("grid", points=_POINTS),
        logs,
        target,
        max_num_steps=max_num_steps,
        tolerance=1e-5,
    )
    found = calibrate(
        noise(best.params).repeat(float(num_steps)).using("grid"),
        target,
        solve_for="noise_multiplier",
    )
    energies = noise(best.params).energies
    right = np.asarray(jax.nn.softmax(-energies / jnp.square(found.value)))
    total = np.append(right[::-1], right) / 2
    pad = np.zeros(num_bins)
    p, q = np.append(total, pad), np.append(pad, total)
    edges = np.arange(-half, half + 1) / num_bins
    return NoiseDesign(
        edges,
        total * num_bins,
        float(right @ np.asarray(costs)),
        np.zeros(0),
        FromProbabilities(p / p.sum(), q / q.sum()),
    )


def _energies(logs: Array, half: int, unit: float) -> Float[Array, " m"]:
    """E_i of the lattice points right of 0: a convex function of their distance."""
    place = jnp.linspace(0.0, logs.size - 1.0, half)
    curvature = jnp.exp(jnp.interp(place, jnp.arange(logs.size), logs - jnp.mean(logs)))
    # Next to the first point is its mirror image: no slope at 0.
    slopes = jnp.cumsum(curvature)
    return (jnp.cumsum(slopes) - slopes) / unit**2


class _LatticeNoise(AbstractMechanism):
    """Masses proportional to exp(-energies / noise_multiplier^2), and mirrored."""

    noise_multiplier: Any = eqx.field(metadata=NOISE.metadata)
    energies: Float[Array, " m"]
    num_bins: int = eqx.field(static=True)

    @property
    def relation(self):
        return ADD_OR_REMOVE_ONE

    def loss(self) -> ComposedLoss:
        precision = 1 / jnp.square(as_float(self.noise_multiplier))
        right = jax.nn.log_softmax(-precision * as_float(self.energies))
        logs = jnp.append(right[::-1], right) - LOG_2
        none = jnp.full(self.num_bins, -jnp.inf, logs.dtype)
        pair = jnp.append(logs, none), jnp.append(none, logs)
        return one_release(AtomicLoss(*pair, symmetric=True))
