r"""Blackwell's theorem, executable: a garbling, or a decision problem that refutes it.

For experiments A and B over the same inputs (rows), A is at least as informative as B
if and only if B = A K for a Markov kernel K, if and only if in every decision problem
the best expected payoff under A is at least that under B.  The linear program

    minimize  sum_ij |(A K - B)_ij|   over stochastic matrices K

has the value 0 exactly if there is a garbling.  Its dual is a decision problem: payoffs
G in [-1, 1] with

    value = sum_ij B_ij G_ij - sum_x max_j sum_i A_ix G_ij,

the payoff of naming the output of B, less the best payoff under A.  Both sides are
checked by arithmetic of their own: the solver is believed in neither case.
"""

import equinox as eqx
import numpy as np
import scipy  # its parts load when they are used
from jaxtyping import Float

from .._internal import _checks
from .._internal._calls import explained
from .._internal._record import Record
from ._kernel import MarkovKernel, require_kernel


class BlackwellOrder(Record):
    """Whether one finite experiment is at least as informative as another."""

    answer: str = eqx.field(static=True)
    """'yes', 'no', or 'undecided' (too close for the arithmetic)."""
    garbling: MarkovKernel
    """The kernel that comes closest to turning the one into the other."""
    residual: float
    """The largest error of an entry of that."""
    payoff: Float[np.ndarray, "inputs outputs"]
    """A decision problem: payoffs in [-1, 1] of actions (columns) for each input."""
    gap: float
    """By how much the less informative experiment (as it would be) does better there,
    in the sum over inputs; a positive gap refutes the order."""


@explained(tolerance=_checks.tolerance)
def blackwell_order(
    source: MarkovKernel, other: MarkovKernel, *, tolerance: float = 1e-9
) -> BlackwellOrder:
    """Decides whether `source` is at least as informative as `other`.

    Args:
        source: An experiment: a kernel whose inputs are the hypotheses.
        other: Another one with the same inputs.
        tolerance: Errors of entries up to this one count as rounding, and gaps as well.

    Returns:
        `BlackwellOrder`, with the garbling and the decision problem.

    Raises:
        ValueError: If the numbers of inputs differ, or the tolerance is negative or not
            finite.
        TypeError: If one is no kernel or a matrix is traced.
        RuntimeError: If the solver fails.

    Example:
        >>> from fdp_jax.experiments import MarkovKernel, blackwell_order
        >>> bit = MarkovKernel([[0.75, 0.25], [0.25, 0.75]])
        >>> worse = MarkovKernel([[0.6, 0.4], [0.4, 0.6]])
        >>> blackwell_order(bit, worse).answer, blackwell_order(worse, bit).answer
        ('yes', 'no')

    References:
        Blackwell (1953); Sherman (1951), Stein (1951).
    """
    for name, kernel in (("source", source), ("other", other)):
        require_kernel(name, kernel)
    a, b = source._known(), other._known()
    _checks.require(
        len(a) == len(b),
        "source and other must have the same inputs",
        f"{len(a)} and {len(b)}",
    )
    kernel, payoff = _solve(a, b)
    residual = float(np.max(np.abs(a @ kernel - b)))
    gap = float(np.sum(b * payoff) - np.sum(np.max(a.T @ payoff, axis=1)))
    yes, no = residual <= tolerance, gap > tolerance
    # Not both can hold but for the tolerance: sum |A K - B| >= gap.
    answer = "yes" if yes and not no else "no" if no and not yes else "undecided"
    return BlackwellOrder(answer, MarkovKernel(kernel), residual, payoff, gap)


def _solve(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kernel of least total error, and the payoffs of the dual problem."""
    (inputs, outputs), actions = a.shape, b.shape[1]
    size, cells = outputs * actions, inputs * actions
    slack = scipy.sparse.identity(cells)
    equal = scipy.sparse.hstack(
        [scipy.sparse.kron(a, scipy.sparse.identity(actions)), slack, -slack]
    )
    ones = scipy.sparse.kron(scipy.sparse.identity(outputs), np.ones((1, actions)))
    total = scipy.sparse.hstack([ones, scipy.sparse.csr_matrix((outputs, 2 * cells))])
    found = scipy.optimize.linprog(
        np.concatenate([np.zeros(size), np.ones(2 * cells)]),
        A_eq=scipy.sparse.vstack([equal, total]).tocsr(),
        b_eq=np.concatenate([b.ravel(), np.ones(outputs)]),
        method="highs",
    )
    _checks.require(
        found.x is not None,
        f"the linear program was not solved: {found.message}",
        wrong=RuntimeError,
    )
    kernel = np.maximum(found.x[:size].reshape(outputs, actions), 0)
    kernel = kernel / kernel.sum(axis=1, keepdims=True)
    payoff = found.eqlin.marginals[:cells].reshape(inputs, actions)
    return kernel, np.clip(payoff, -1, 1)
