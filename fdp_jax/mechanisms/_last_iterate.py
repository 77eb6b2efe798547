"""The last iterate of noisy gradient descent on a strongly convex objective."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Real

from .._internal import _checks
from .._internal._precision import in_float64
from ..losses import ComposedLoss, GaussianLoss
from ._base import AbstractMechanism, one_release
from ._exact import Exact, Family
from ._fields import (
    NOISE,
    STEPS,
    Search,
    as_float,
    as_number,
    parameter,
    with_noise_over,
)
from ._relations import ADD_OR_REMOVE_ONE, relation_field


class LastIterate(AbstractMechanism):
    """The last iterate of noisy full-batch gradient descent, where no other is told.

    x <- Pi(x - step_size (gradient(x) + noise)), with independent normal noise in every
    step and Pi a projection onto a convex set (or nothing).  A step without its noise
    brings any two points together by the factor c: c = max(|1 - step_size m|,
    |1 - step_size M|) if the objective is m-strongly convex and M-smooth.  The last
    iterate is mu-GDP with

        mu^2 = (1 + c) / (1 - c) (1 - c^N) / (1 + c^N) / noise_multiplier^2,

    at most (1 + c) / (1 - c) / noise_multiplier^2 for any number of steps N, and that
    of N released steps where c = 1.  Quadratic objectives that differ by a linear term
    attain it, if c = 1 - step_size m.

    All that must be proved, for every data set: gradients that are clipped record by
    record are in general not those of a convex objective, and drawn batches are another
    mechanism.  The constants are those of the whole objective, a regularizer included.

    Args:
        noise_multiplier: Standard deviation of the noise on the gradient over the L2
            distance of neighbors' gradients at any one point, in (0, inf).
        contraction: c, in [0, 1].
        num_steps: N, a whole number.
        relation: The neighboring relation the distance refers to.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> import fdp_jax as fdp
        >>> last = fdp.LastIterate(20.0, contraction=0.9, num_steps=1000)
        >>> print(f"{last.epsilon(delta=1e-6):.4f}")
        0.9149
        >>> print(f"{fdp.Gaussian(20.0).repeat(1000).epsilon(delta=1e-6):.4f}")
        8.3062

    References:
        Bok, Su, Altschuler (2024), "Shifted Interpolation for Differential Privacy",
        on strongly convex losses and full batches.
    """

    noise_multiplier: Real[ArrayLike, ""] | None = parameter(
        "noise_multiplier", _checks.finite_positive, NOISE, default=None
    )
    contraction: Real[ArrayLike, ""] | None = parameter(
        "contraction",
        _checks.probability,
        Search(1, 1e-6, 1.0, 0.5),
        default=None,
        kw_only=True,
    )
    num_steps: Real[ArrayLike, ""] | None = parameter(
        "num_steps", _checks.positive_count, STEPS, default=None, kw_only=True
    )
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)

    def _numbers(self) -> tuple[Any, ...]:
        fields = self.noise_multiplier, self.contraction, self.num_steps
        return tuple(map(as_number, fields))

    # The gradients of a group are `size` times as far apart.
    _group = with_noise_over

    def exact(self) -> Exact:
        return Exact(Family.GAUSSIAN, (_mu(*self._numbers()),))

    def loss(self) -> ComposedLoss:
        return one_release(GaussianLoss(1 / _mu(*map(as_float, self._numbers()))))


@in_float64(cast_out=False)
def _mu(noise: Array, contraction: Array, steps: Array) -> Float[Array, ""]:
    """With c = e^-h it is sqrt(tanh(N h / 2) / tanh(h / 2)) / noise: no 1 - c."""
    noise, c, steps = map(jnp.asarray, (noise, contraction, steps))
    small, inner = c < 0.5, (c >= 0.5) & (c < 1)
    low, half = jnp.where(small, c, 0.25), -0.5 * jnp.log(jnp.where(inner, c, 0.75))
    power = jnp.power(low, steps)
    direct = (1 + low) / (1 - low) * (1 - power) / (1 + power)
    near_one = jnp.where(inner, jnp.tanh(steps * half) / jnp.tanh(half), steps)
    return jnp.sqrt(jnp.where(small, direct, near_one)) / noise
