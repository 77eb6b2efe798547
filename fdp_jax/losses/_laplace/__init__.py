"""The Laplace pair."""

from ._closed_form import LaplaceForm as LaplaceForm
from ._loss import LaplaceLoss as LaplaceLoss
