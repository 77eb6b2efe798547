"""The Laplace pair."""

from . import _closed_form
from ._loss import LaplaceLoss as LaplaceLoss

laplace_formulas = _closed_form
