"""Gaussian losses at random times."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Real

from .._internal import _checks
from .._internal._precision import in_float64
from ..losses import ComposedLoss, SubordinatedGaussianLoss
from ._base import AbstractMechanism
from ._fields import (
    Search,
    as_float,
    parameter,
)
from ._relations import ADD_OR_REMOVE_ONE, relation_field


class SubordinatedGaussian(AbstractMechanism):
    r"""Gaussian DP of a random amount tau: X | tau ~ N(-tau / 2, tau), delta = E delta.

    The limit of a random number of weak releases, told or not: the loss is the same.
    With tau gamma distributed (index 0, shape a, scale b) it is variance-gamma, with
    an inverse Gaussian tau (index 1/2) normal inverse Gaussian; in general tau is a
    tempered stable subordinator,

        log E e^{-u tau} = shape (1 - (1 + scale u)^index) / index,

    of mean shape scale.

    All are infinitely divisible without a Gaussian part: `repeat(t)` multiplies the
    shape by any real t.  Their symmetric Levy density is not integrable at 0; that of
    variance-gamma is (a / |x|) exp(-x / 2 - |x| sqrt(1/4 + 2 / b)).

    For index 0 and total shapes below about 1 contour integrals converge slowly, and
    bounds may be loose (`Status.LOOSE`).

    Args:
        shape: In (0, inf).
        scale: In (0, inf).
        index: In [0, 1).
        relation: The neighboring relation of the pair.

    Raises:
        ValueError: If a parameter is out of range.

    Example:
        >>> from fdp_jax.levy import SubordinatedGaussian
        >>> print(f"{SubordinatedGaussian(2.0, 0.5).delta(epsilon=1.0):.6f}")
        0.124200

    References:
        Madan, Carr, Chang (1998); Barndorff-Nielsen (1997); Pandey, Maleki, Kulkarni
        (2025) for subordination.
    """

    shape: Real[ArrayLike, ""] | None = parameter(
        "shape", _checks.finite_positive, Search(1, 1e-6, 1e9), default=None
    )
    scale: Real[ArrayLike, ""] | None = parameter(
        "scale", _checks.finite_positive, Search(1, 1e-9, 1e9), default=None
    )
    index: Real[ArrayLike, ""] = parameter(
        "index", _checks.below_one, Search(0, 0.0, 0.999, 0.5), default=0.0
    )
    relation: Any = relation_field(ADD_OR_REMOVE_ONE)
    _one_release: ClassVar = False
    _divisible: ClassVar = True

    def loss(self) -> ComposedLoss:
        numbers = (as_float(x) for x in (self.shape, self.scale, self.index))
        term = SubordinatedGaussianLoss(*numbers)
        return ComposedLoss((term,), (jnp.ones_like(term.shape),))

    def levy_density(self, x: Any) -> Float[Array, "..."]:
        """The density of jumps under P, for index 0.

        Args:
            x: Sizes of jumps, other than 0: a number, or an array or list of them.

        Returns:
            (shape / |x|) exp(-x / 2 - |x| sqrt(1/4 + 2 / scale)).

        Raises:
            ValueError: If the index is not known to be 0 or a parameter is not set.
        """
        self.require_complete()
        _checks.require(
            float(np.asarray(self.index)) == 0,
            "index must be 0 for the density",
            self.index,
        )
        return _gamma_density(self, _checks.numbers("x", x))


@in_float64
def _gamma_density(subject: SubordinatedGaussian, x: Array) -> Array:
    rate = jnp.sqrt(0.25 + 2 / as_float(subject.scale))
    size = jnp.abs(x)
    return as_float(subject.shape) / size * jnp.exp(-0.5 * x - size * rate)
