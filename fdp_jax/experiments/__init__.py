"""Finite statistical experiments: Markov kernels as matrices, and Blackwell's order.

A mechanism with finitely many data sets and outputs is a Markov kernel; what it gives
away is an experiment, and what is done to its output afterwards is a kernel again.
"""

from ._blackwell import (
    BlackwellOrder as BlackwellOrder,
    blackwell_order as blackwell_order,
)
from ._kernel import MarkovKernel as MarkovKernel, hamming as hamming
