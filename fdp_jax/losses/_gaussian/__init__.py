"""The Gaussian pair."""

from . import _closed_form
from ._closed_form import GaussianForm as GaussianForm
from ._loss import GaussianLoss as GaussianLoss, normal_cells as normal_cells

gaussian_formulas = _closed_form
