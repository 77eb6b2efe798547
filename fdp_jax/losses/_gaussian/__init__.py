"""The Gaussian pair."""

from ._closed_form import GaussianForm as GaussianForm
from ._loss import (
    GaussianLoss as GaussianLoss,
    normal_cells as normal_cells,
    total_mu as total_mu,
)
