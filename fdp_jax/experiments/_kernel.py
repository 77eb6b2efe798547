"""Markov kernels between finite sets, as stochastic matrices."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._precision import in_float64
from .._internal._record import Record
from ..curves import AbstractGuarantee, Bound
from ..tradeoff import TradeOff

_SUM_ERROR = 1e-8


class MarkovKernel(Record):
    """A kernel from finitely many inputs to finitely many outputs.

    Args:
        matrix: Row i is the law of the output for input i; shape (inputs, outputs),
            entries at least 0, every row with sum 1 (to 1e-8, or about 1e-6 if it is
            a float32 array; it is then divided by the sum).

    Raises:
        ValueError: If it is no stochastic matrix.

    Example:
        >>> import numpy as np
        >>> from fdp_jax.experiments import MarkovKernel
        >>> report = MarkovKernel([[0.75, 0.25], [0.25, 0.75]])  # of one bit
        >>> twice = report.both(report)
        >>> seen = twice.then(MarkovKernel.of_map([0, 1, 1, 2]))  # only their sum
        >>> print(f"{seen.tradeoff([(0, 1), (1, 0)]).beta(alpha=0.1):.4f}")
        0.4000
    """

    matrix: Float[Array, "inputs outputs"]

    def __init__(self, matrix: Any):
        matrix = _checks.numbers("matrix", matrix)
        _checks.require(
            matrix.ndim == 2 and matrix.size,
            "matrix must have two axes",
            f"the shape {matrix.shape}",
        )
        slack = _checks.rounding(matrix, _SUM_ERROR)
        share = lambda x: (x >= 0) & (x <= 1 + slack)
        matrix = _checks.checked("matrix", matrix, "in [0, 1]", share)
        matrix = _checks.error_if(
            matrix,
            lambda x: ~(abs(x.sum(axis=1) - 1) <= slack),
            "matrix must have rows with sum 1",
            lambda x: x.sum(axis=1),
            kind="a sum of",
        )
        known = not isinstance(matrix, jax.Array)
        self.matrix = _normalized(matrix) if known else _combined(jnp.asarray, matrix)

    def _made(self, how: Callable[..., Array], *matrices: Any) -> "MarkovKernel":
        """A kernel with a matrix that is stochastic by construction.

        Not checked again: rounding may have moved it.
        """
        matrix = _combined(how, *matrices)
        return eqx.tree_at(lambda kernel: kernel.matrix, self, matrix)

    def _requires(self, other: Any, count: int) -> None:
        """Another kernel with so many inputs, or an error."""
        inputs = require_kernel("other", other).matrix.shape[0]
        _checks.require(inputs == count, f"other must have {count} inputs", inputs)

    def _known(self) -> np.ndarray:
        """The matrix, unless it is traced."""
        return np.asarray(_checks.concrete("matrix", self.matrix), np.float64)

    @classmethod
    def of_map(cls, values: Any, num_outputs: int | None = None) -> "MarkovKernel":
        """A deterministic map; as post-processing, a partition of the outputs.

        Args:
            values: The image of every input, whole numbers from 0.
            num_outputs: Of the outputs; one more than the largest value if not given.

        Returns:
            The kernel.

        Raises:
            ValueError: If a value is no whole number in range.
        """
        values = np.asarray(values)
        _checks.require(
            values.ndim == 1 and values.size and values.dtype.kind in "iu",
            "values must be a vector of integers",
            f"{values!r}",
        )
        count = int(values.max()) + 1 if num_outputs is None else num_outputs
        count = _checks.whole("num_outputs", count, 1, 1 << 20)
        _checks.require(
            values.min() >= 0 and values.max() < count,
            f"values must be in [0, {count - 1}]",
            values,
        )
        return cls(np.eye(count)[values])

    @classmethod
    @explained(probs=_checks.probabilities)
    def mixture(cls, kernels: Any, *, probs: Any) -> "MarkovKernel":
        """One of several kernels at random, without telling which one.

        Args:
            kernels: Kernels of one shape.
            probs: Their probabilities, with sum 1.

        Returns:
            The convex combination.

        Raises:
            ValueError: If the shapes differ or these are no probabilities.
            TypeError: If one is no kernel.
        """
        kernels = tuple(require_kernel("kernels", kernel) for kernel in kernels)
        shapes = {kernel.matrix.shape for kernel in kernels}
        _checks.require(
            len(shapes) == 1 and len(kernels) == probs.shape[0],
            "kernels must be as many as probs and of one shape",
            shapes,
        )
        return kernels[0]._made(_mean, probs, tuple(k.matrix for k in kernels))

    def then(self, other: "MarkovKernel") -> "MarkovKernel":
        """The composition: the other kernel applied to this one's output.

        Args:
            other: A kernel with as many inputs as this one has outputs.

        Returns:
            The kernel whose matrix is the product.

        Raises:
            ValueError: If the numbers differ.
            TypeError: If it is no kernel.
        """
        self._requires(other, self.matrix.shape[1])
        return self._made(jnp.matmul, self.matrix, other.matrix)

    def both(self, other: "MarkovKernel") -> "MarkovKernel":
        """Both kernels on the same input, independently: composed mechanisms.

        Args:
            other: A kernel with as many inputs.

        Returns:
            The kernel to pairs of outputs, the second one changing first.

        Raises:
            ValueError: If the numbers differ.
            TypeError: If it is no kernel.
        """
        self._requires(other, self.matrix.shape[0])
        return self._made(_pairs, self.matrix, other.matrix)

    def product(self, other: "MarkovKernel") -> "MarkovKernel":
        """Both kernels, each on an input of its own.

        Args:
            other: Any kernel.

        Returns:
            The kernel from pairs of inputs to pairs of outputs.

        Raises:
            TypeError: If it is no kernel.
        """
        require_kernel("other", other)
        return self._made(jnp.kron, self.matrix, other.matrix)

    @explained(values=_checks.vector_of(_checks.nonnegative))
    def of_measure(self, values: Any) -> Float[Array, " outputs"]:
        """The measure of the outputs, from one of the inputs: a row vector.

        Args:
            values: Masses of the inputs, at least 0; probabilities or not.

        Returns:
            sum_i values_i matrix_ij, with the same total.

        Raises:
            ValueError: If there are not as many as inputs, or one is negative.
        """
        return _acted(self._of_length(values, 0), self.matrix)

    @explained(values=_checks.vector_of(_checks.finite))
    def of_function(self, values: Any) -> Float[Array, " inputs"]:
        """The mean of a function of the output, at every input: a column vector.

        Args:
            values: The function at the outputs, finite numbers.

        Returns:
            sum_j matrix_ij values_j.

        Raises:
            ValueError: If there are not as many as outputs, or one is not finite.
        """
        return _acted(self.matrix, self._of_length(values, 1))

    def _of_length(self, values: Any, axis: int) -> Any:
        count, kind = self.matrix.shape[axis], ("inputs", "outputs")[axis]
        _checks.require(
            values.shape[0] == count,
            f"values must be one for each of {count} {kind}",
            values.shape[0],
        )
        return values

    def tradeoff(self, neighbors: Any) -> TradeOff:
        """The largest f for which the kernel is f-DP: inf of T over neighbors, convex.

        Args:
            neighbors: Ordered pairs of inputs, shape (pairs, 2); for a symmetric
                relation name both orders.

        Returns:
            The exact curve: T of two rows is the chord of its Neyman-Pearson tests, and
            the largest trade-off function below several ones is the lower convex hull
            of all their vertices.

        Raises:
            ValueError: If there are no pairs or an input does not exist.
            TypeError: If the matrix is traced.
        """
        return TradeOff.from_error_rates(*self._vertices(neighbors))

    @explained(tolerance=_checks.tolerance)
    def satisfies(
        self, guarantee: AbstractGuarantee, neighbors: Any, *, tolerance: float = 1e-12
    ) -> bool:
        """Whether the kernel is f-DP over a neighboring relation.

        Args:
            guarantee: A trade-off function, or one direction of a mechanism.
            neighbors: Ordered pairs of inputs.
            tolerance: By how much rounding may miss.

        Returns:
            True if f <= T at all vertices of every pair's T, and so everywhere: f is
            convex and T is linear in between.

        Raises:
            ValueError: If there are no pairs, an input does not exist, or the tolerance
                is negative or not finite.
            TypeError: If the matrix is traced.
        """
        alpha, beta = self._vertices(neighbors)
        least = guarantee.beta(alpha=alpha, bound=Bound.OPTIMISTIC)
        return bool(np.all(np.asarray(least) <= beta + tolerance))

    @explained(epsilon=_checks.number(_checks.nonnegative), tolerance=_checks.tolerance)
    def is_private(
        self, *, epsilon: float, distances: Any, tolerance: float = 1e-12
    ) -> bool:
        """Whether d_mult(row i, row j) <= epsilon d(i, j) for all pairs of inputs.

        That is pure epsilon-DP as an inequality between two metrics, over a metric on
        data sets; see `hamming` for the usual one.  Pairs of secrets, as in Pufferfish,
        are inputs whose rows are the laws of the output given either of them: a pair
        that is to be kept secret has distance 1, all others inf.

        Args:
            epsilon: In [0, inf).
            distances: d(i, j) in [0, inf], a symmetric square matrix with zeros on its
                diagonal; inf for data sets that no path of neighbors joins.
            tolerance: By how much rounding may miss.

        Returns:
            Whether it holds.

        Raises:
            ValueError: If an argument is out of range or not of the right shape.
            TypeError: If the matrix is traced.

        Example:
            >>> import numpy as np
            >>> from fdp_jax.experiments import MarkovKernel, hamming
            >>> bit = MarkovKernel([[0.75, 0.25], [0.25, 0.75]])
            >>> data = [(0, 0), (0, 1), (1, 0), (1, 1)]
            >>> both = bit.product(bit)
            >>> both.is_private(epsilon=np.log(3.0), distances=hamming(data))
            True

        References:
            Bailie and Gong (2023), Definition 3; Kifer and Machanavajjhala (2014).
        """
        matrix = self._known()
        found = np.asarray(_checks.nonnegative_or_inf("distances", distances), float)
        square = (len(matrix), len(matrix))
        _checks.require(
            found.shape == square
            and np.all(found == found.T)
            and not np.diag(found).any(),
            f"distances must be a symmetric matrix of the shape {square} with zeros on "
            "its diagonal",
            f"one of the shape {found.shape}",
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(matrix)
            gaps = np.abs(logs[:, None] - logs)
            allowed = np.where(np.isinf(found), np.inf, epsilon * found)
        # Outputs that neither of two inputs can have are no difference.
        gaps = np.where(np.isnan(gaps), 0.0, gaps).max(axis=2)
        return bool(np.all(gaps <= allowed + tolerance))

    def _vertices(self, neighbors: Any) -> tuple[np.ndarray, np.ndarray]:
        matrix = self._known()
        pairs = np.asarray(neighbors)
        two = pairs.ndim == 2 and pairs.shape[1] == 2 and len(pairs)
        inputs = f"inputs from 0 to {len(matrix) - 1}"
        _checks.require(
            two and pairs.dtype.kind in "iu",
            f"neighbors must be pairs of {inputs}, whole numbers",
            f"{neighbors!r}",
        )
        _checks.require(
            pairs.min() >= 0 and pairs.max() < len(matrix),
            f"neighbors must be {inputs}",
            f"{neighbors!r}",
        )
        found = [TradeOff.from_probabilities(matrix[i], matrix[j]) for i, j in pairs]
        logs = ((f.knots.log_alpha, f.knots.log_beta) for f in found)
        alpha, beta = (np.exp(np.concatenate(x)) for x in zip(*logs, strict=True))
        return alpha, beta


@explained
def hamming(values: Any) -> Float[np.ndarray, "inputs inputs"]:
    """In how many records data sets of one size differ, for all pairs of them.

    Args:
        values: Data sets, a sequence of sequences of one length.

    Returns:
        The symmetric matrix of distances.

    Raises:
        ValueError: If there are none or their lengths differ.
    """
    rows = [tuple(row) for row in values]
    lengths = sorted({len(row) for row in rows})
    _checks.require(
        len(lengths) == 1,
        "values must be data sets of one length",
        f"the lengths {lengths}",
    )
    pairs = [
        [sum(x != y for x, y in zip(a, b, strict=True)) for b in rows] for a in rows
    ]
    return np.asarray(pairs, float)


def require_kernel(name: str, value: Any) -> MarkovKernel:
    """The argument, if it is a kernel."""
    return _checks.instance(name, value, MarkovKernel, "a MarkovKernel")


def _normalized(matrix: Any) -> Any:
    """Rows over their sums, which are 1 but for rounding."""
    return matrix / matrix.sum(axis=1, keepdims=True)


@in_float64(cast_out=False)
def _combined(how: Callable[..., Array], *matrices: Any) -> Array:
    """A stochastic matrix made of others, with sums of rows that are 1 to rounding."""
    return _normalized(how(*matrices))


def _pairs(a: Array, b: Array) -> Array:
    return (a[:, :, None] * b[:, None, :]).reshape(a.shape[0], -1)


def _mean(probs: Array, matrices: tuple[Array, ...]) -> Array:
    return jnp.tensordot(probs, jnp.stack(matrices), axes=1)


@in_float64(cast_out=False)
def _acted(a: Array, b: Array) -> Array:
    return a @ b
