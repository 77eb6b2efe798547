"""Strategies of matrix mechanisms, by their names."""

from typing import TYPE_CHECKING, Any, Self

from .._internal import _checks
from .._internal._calls import explained
from ._banded_inverse import banded_inverse
from ._base import AbstractMechanism
from ._tree import Tree

_MOST_OF_TREE = 1 << 20
_MOST_OF_MATRIX = 1 << 12


class StrategiesByName(AbstractMechanism):
    """Ways to make a mechanism of a noise multiplier and a strategy."""

    if TYPE_CHECKING:

        def __init__(self, noise_multiplier: Any, strategy: Any, **options: Any): ...

    @classmethod
    def tree(
        cls,
        noise_multiplier: Any,
        num_steps: int,
        *,
        restart_every: int | None = None,
        **options: Any,
    ) -> Self:
        """Tree aggregation: noisy sums of all complete dyadic intervals of steps.

        The worst pattern of participations is found interval by interval, and no
        matrix is made.

        Args:
            noise_multiplier: As above.
            num_steps: n, at most 1048576; of sampled batches at most 4096.  A tree that
                is completed by steps without records has these among its n.
            restart_every: Steps after which a new tree begins, in [1, n]; by default
                there is one.
            **options: `max_participations` and so on, as above.

        Returns:
            The mechanism, with the intervals as rows of its strategy.  (Where
            `max_participations`, squared, times `min_separation` is above 2^20, or with
            `cyclic` times `num_steps` above 2^24, its sensitivity is an upper bound by
            the lengths of intervals.)

        Raises:
            ValueError: If a parameter is out of range.

        Example:
            >>> import fdp_jax as fdp
            >>> run = fdp.MatrixMechanism.tree(
            ...     6.0, 1600, max_participations=5, min_separation=100
            ... )
            >>> print(f"{run.sensitivity() ** 2:.0f}, {run.epsilon(delta=1e-5):.4f}")
            107, 8.3382

        References:
            Kairouz et al. (2021), arXiv:2103.00039, for training with trees and
            restarts.
        """
        most = _MOST_OF_TREE if options.get("sampling") is None else _MOST_OF_MATRIX
        n = _checks.whole("num_steps", num_steps, 1, most)
        every = n if restart_every is None else restart_every
        tree = Tree(n, _checks.whole("restart_every", every, 1, n))
        strategy = tree if most == _MOST_OF_TREE else tree.matrix()
        return cls(noise_multiplier, strategy, **options)

    @classmethod
    def bifr(
        cls,
        noise_multiplier: Any,
        num_steps: int,
        *,
        bands: int,
        power: Any,
        **options: Any,
    ) -> Self:
        """Banded inverse fractional root: noise made of that of `bands` steps.

        C^-1 is Toeplitz with the first coefficients of (1 - x)^power, so that the
        noise of a step is that of the `bands - 1` steps before, in part taken away
        again.  C has no bands, but its first column falls, and the worst pattern is
        known.

        Args:
            noise_multiplier: As above.
            num_steps: n, at most 1048576.
            bands: Bands of C^-1, the diagonal included, in [1, n].
            power: A number in [0, 1]: independent noise for 0.
            **options: `max_participations` and so on, as above.

        Returns:
            The mechanism, with the first column of C as its strategy.

        Raises:
            ValueError: If a parameter is out of range.

        Example:
            >>> import fdp_jax as fdp
            >>> run = fdp.MatrixMechanism.bifr(
            ...     2.0, 1000, bands=4, power=0.6, min_separation=100
            ... )
            >>> print(f"{run.epsilon(delta=1e-5):.4f}")
            11.9420

        References:
            Kalinin et al. (2026), arXiv:2605.18379, with BISR (power 1/2) and DP-lambda
            CGD (two bands) as special cases.
        """
        column = banded_inverse(num_steps, bands, power)
        return cls(noise_multiplier, column, **options)

    @classmethod
    def bisr(
        cls, noise_multiplier: Any, num_steps: int, *, bands: int, **options: Any
    ) -> Self:
        """Banded inverse square root, best for running sums over many epochs.

        Args:
            noise_multiplier: As above.
            num_steps: As of `bifr`.
            bands: As of `bifr`.
            **options: `max_participations` and so on, as above.

        Returns:
            `bifr` with power = 1/2.

        Raises:
            ValueError: If a parameter is out of range.

        References:
            Kalinin et al. (2025), arXiv:2505.12128.
        """
        return cls.bifr(noise_multiplier, num_steps, bands=bands, power=0.5, **options)

    @classmethod
    @explained(share=_checks.one(_checks.probability))
    def lambda_cgd(
        cls, noise_multiplier: Any, num_steps: int, *, share: Any, **options: Any
    ) -> Self:
        """DP-lambda CGD: of each step's noise a share is taken away in the next one.

        Args:
            noise_multiplier: As above.
            num_steps: As of `bifr`, at least 2.
            share: lambda, in [0, 1].
            **options: `max_participations` and so on, as above.

        Returns:
            `bifr` with two bands: the first column of C has the powers of the share.
            (The authors also divide the columns of C by their norms; that is another
            strategy, to be given as a matrix.)

        Raises:
            ValueError: If a parameter is out of range.

        References:
            Kalinin et al. (2026), arXiv:2601.22334.
        """
        return cls.bifr(noise_multiplier, num_steps, bands=2, power=share, **options)
