r"""Moments of the privacy loss of one release (Kaissis et al. 2024, (8) to (12)).

    v1 = -int log|f'| = -E X = KL(P || Q),     v2 = int log^2 |f'| = E X^2,
    v3 = int |log|f'| + v1|^3 = E|X - E X|^3,  v4 = int |log|f'||^3 = E|X|^3,

X = log dQ/dP under P.  Nothing is differenced: v1 = E[e^X - 1 - X], whose integrand is
at least 0, and the variance v2 - v1^2 is an integral of its own.
"""

import functools
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf
from jaxtyping import Array, Float

from .._internal._precision import in_float64
from ..losses import (
    AbstractLoss,
    AtomicLoss,
    ComposedLoss,
    GaussianLoss,
    LaplaceLoss,
    SubsampledGaussianLoss,
    TwoPointLoss,
)
from ..mechanisms import AbstractMechanism, View, resolve

_REACH = 13.0
_PANELS, _POINTS = 24, 16
_SERIES = 0.05


class LossMoments(eqx.Module):
    """The functionals of f behind the central limit theorem, for one release."""

    v1: Float[Array, ""]
    """-E X."""
    v2: Float[Array, ""]
    """E X^2."""
    v3: Float[Array, ""]
    """E|X - E X|^3."""
    v4: Float[Array, ""]
    """E|X|^3; inf if some outputs are impossible under one of the two laws."""
    variance: Float[Array, ""]
    """v2 - v1^2, computed as such."""

    @property
    def eta(self) -> Float[Array, ""]:
        """v1 / sqrt(variance); N releases are about 2 sqrt(N) eta-GDP."""
        none = self.variance <= 0
        safe = jnp.where(none, 1.0, self.variance)
        return jnp.where(none, 0.0, self.v1 / jnp.sqrt(safe))

    @property
    def berry_esseen(self) -> Float[Array, ""]:
        """eta^3 v3 / v1^3 = v3 / variance^(3/2) >= 1; inf if there is no loss."""
        none = self.variance <= 0
        safe = jnp.where(none, 1.0, self.variance)
        return jnp.where(none, jnp.inf, self.v3 / safe**1.5)


def loss_moments(mechanism: Any) -> LossMoments:
    """Moments of the privacy loss of a single release.

    Args:
        mechanism: A mechanism that releases once (direction "remove"), or its
            `.remove` or `.add`: Gaussian, Laplace, (epsilon, 0)-DP, discrete ones, and
            DP-SGD with one step.

    Returns:
        `LossMoments`, relative accuracy about 1e-13, also for tiny losses.

    Guarantee:
        None: closed forms and quadrature.

    Differentiable in:
        All parameters.

    Raises:
        ValueError: If it is a composition or its loss is of another kind.
        TypeError: If it is no mechanism.

    Example:
        >>> import fdp_jax as fdp
        >>> found = fdp.comparison.loss_moments(fdp.Laplace(1.0))
        >>> print(f"{found.v1:.9f} {found.eta:.9f}")
        0.367879441 0.453726985

    References:
        Kaissis et al. (2024), equations (8) to (12).
    """
    if not isinstance(mechanism, AbstractMechanism | View):
        raise TypeError(
            "mechanism must be a mechanism, or its .remove or .add, got "
            f"{type(mechanism).__name__}"
        )
    subject = resolve(mechanism).whole
    loss = subject.composed
    if len(loss.terms) != 1 or not loss.single:
        raise ValueError(
            "mechanism must release once (give the number of releases separately), "
            f"got {type(mechanism).__name__}"
        )
    return _moments(loss, direction=subject.direction)


@in_float64
def _moments(loss: ComposedLoss, *, direction: str) -> LossMoments:
    sign = -1 if direction == "add" else 1
    found = _of_term(loss.terms[0], sign)
    # Nothing is released where the noise is infinite or nobody takes part.
    nothing = loss.counts[0] == 0
    values = [
        jnp.where(nothing, 0.0, x)
        for x in (found.v1, found.v2, found.v3, found.v4, found.variance)
    ]
    return LossMoments(*values)


@functools.singledispatch
def _of_term(term: AbstractLoss, sign: int) -> LossMoments:
    del sign
    raise ValueError(
        "mechanism must have a Gaussian, subsampled Gaussian, Laplace, two-point or "
        f"discrete loss, got {type(term).__name__}"
    )


@_of_term.register
def _(term: GaussianLoss, sign: int) -> LossMoments:
    del sign
    variance = term.precision()
    mu, mean = jnp.sqrt(variance), 0.5 * variance
    v3 = 2 * np.sqrt(2 / np.pi) * mu * variance
    # E|N(m, s^2)|^3 with m = s^2 / 2.
    bell = np.sqrt(2 / np.pi) * jnp.exp(-variance / 8) * (2 + variance / 4)
    v4 = variance * mu * bell
    v4 = v4 + mean * (mean**2 + 3 * variance) * erf(mu / np.sqrt(8))
    return LossMoments(mean, variance + mean**2, v3, v4, variance)


@_of_term.register
def _(term: TwoPointLoss, sign: int) -> LossMoments:
    del sign
    e = term.epsilon
    tanh = jnp.tanh(0.5 * e)
    rest = 1 - jnp.square(tanh)
    variance = jnp.square(e) * rest
    # The two places -e and e lie e (1 - tanh) and e (1 + tanh) from the mean.
    v3 = e**3 * 0.5 * rest * (jnp.square(1 - tanh) + jnp.square(1 + tanh))
    v4 = jnp.where(term.delta > 0, jnp.inf, e**3)
    return LossMoments(e * tanh, jnp.square(e), v3, v4, variance)


@_of_term.register
def _(term: LaplaceLoss, sign: int) -> LossMoments:
    del sign
    mu = 1 / term.noise_multiplier
    v1 = excess(-mu)
    # X = 2 x - mu for noise x in [0, mu], with kinks of |X| and |X + v1| inside.
    cuts = jnp.stack([0 * mu, 0.5 * (mu - v1), 0.5 * mu, mu])
    x, weights = _panels(cuts)
    values = jnp.concatenate([jnp.stack([-mu, mu]), 2 * x - mu])
    ends = jnp.stack([jnp.ones_like(mu), jnp.exp(-mu)])
    return _sums(values, 0.5 * jnp.concatenate([ends, weights * jnp.exp(-x)]), v1)


@_of_term.register
def _(term: SubsampledGaussianLoss, sign: int) -> LossMoments:
    p, s = term.sampling_prob, term.noise_multiplier
    shift = 1 / s

    def gain(z: Array) -> Array:
        # dQ/dP - 1 at the output s z.
        return p * jnp.expm1(jnp.minimum((z - 0.5 * shift) * shift, 700.0))

    def weight(z: Array) -> Array:
        density = jnp.exp(-0.5 * jnp.square(z)) / np.sqrt(2 * np.pi)
        if sign > 0:
            return density
        other = jnp.exp(-0.5 * jnp.square(z - shift)) / np.sqrt(2 * np.pi)
        return (1 - p) * density + p * other

    def one_sided(w: Array) -> Array:
        # e^X - 1 - X >= 0 for the direction's own X.
        return log1p_excess(w if sign > 0 else -w / (1 + w))

    most = _REACH + (shift if sign < 0 else 0.0)
    start = jnp.full_like(p, -_REACH)
    zero = 0.5 * shift
    rough = jnp.stack([start, jnp.clip(zero, -_REACH, most), start * 0 + most])
    z, weights = _panels(rough)
    v1 = (weights * weight(z)) @ one_sided(gain(z))
    # |X + v1| has its kink where dQ/dP = e^-v1 (e^v1 in the other direction).
    safe = jnp.where(p > 0, p, 1.0)
    level = jnp.expm1(-sign * v1) / safe
    kink = zero + s * jnp.log1p(jnp.maximum(level, -1 + 1e-12))
    cuts = jnp.sort(
        jnp.clip(jnp.stack([start, zero, kink, most + 0 * start]), start, most)
    )
    z, weights = _panels(cuts)
    return _sums(sign * jnp.log1p(gain(z)), weights * weight(z), v1)


@_of_term.register
def _(term: AtomicLoss, sign: int) -> LossMoments:
    atoms = term.atoms()
    finite = jnp.isfinite(atoms.log_mass)
    loss = jnp.where(finite, sign * atoms.loss, 0.0)
    log_p = term.log_p if sign > 0 else term.log_q
    masses = jnp.where(finite, jnp.exp(jnp.where(finite, log_p, 0.0)), 0.0)
    found = _sums(loss, masses, masses @ excess(loss))
    whole = jnp.all(
        jnp.stack(jnp.broadcast_arrays(*term.log_infinite_masses())) == -jnp.inf
    )
    blow = lambda x: jnp.where(whole, x, jnp.inf)
    return LossMoments(*(blow(x) for x in _values(found)))


def _values(found: LossMoments) -> tuple[Array, ...]:
    return found.v1, found.v2, found.v3, found.v4, found.variance


def _sums(values: Array, masses: Array, v1: Array) -> LossMoments:
    centered = values + v1
    return LossMoments(
        v1=v1,
        v2=masses @ jnp.square(values),
        v3=masses @ jnp.abs(centered) ** 3,
        v4=masses @ jnp.abs(values) ** 3,
        variance=masses @ jnp.square(centered),
    )


def _panels(cuts: Float[Array, " c"]) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights between cuts, many panels each."""
    nodes, weights = np.polynomial.legendre.leggauss(_POINTS)
    parts = np.arange(_PANELS) / _PANELS
    low = cuts[:-1, None] + (cuts[1:] - cuts[:-1])[:, None] * parts
    half = (0.5 / _PANELS) * (cuts[1:] - cuts[:-1])[:, None, None]
    x = low[:, :, None] + half * (nodes + 1)
    return x.ravel(), (half * weights * jnp.ones_like(low)[:, :, None]).ravel()


def excess(x: Array) -> Array:
    """e^x - 1 - x without cancellation."""
    small = jnp.abs(x) < _SERIES
    safe = jnp.where(small, x, 0.0)
    series = jnp.zeros_like(safe)
    for k in range(11, 1, -1):
        series = (series + 1) * safe / k
    # x^2/2 (1 + x/3 (1 + x/4 (...))): the last step multiplied by x/2, once more by x.
    series = series * safe
    far = jnp.where(small, 1.0, x)
    return jnp.where(small, series, jnp.expm1(far) - far)


def log1p_excess(w: Array) -> Array:
    """W - log(1 + w) without cancellation, for w > -1."""
    small = jnp.abs(w) < _SERIES
    safe = jnp.where(small, w, 0.0)
    ratio = safe / (2 + safe)
    # log(1 + w) = 2 artanh(r), r = w / (2 + w); w - 2 r = w r.
    tail = jnp.zeros_like(safe)
    for k in range(15, 1, -2):
        tail = jnp.square(ratio) * (1 / k + tail)
    near = safe * ratio - 2 * ratio * tail
    far = jnp.where(small, 1.0, w)
    return jnp.where(small, near, far - jnp.log1p(far))
