"""Comparing guarantees: divergence, dominance, and what follows from them."""

from ._delta import (
    DeltaDivergence as DeltaDivergence,
    delta_divergence as delta_divergence,
    symmetrized_divergence as symmetrized_divergence,
)
