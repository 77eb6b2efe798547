"""Poisson counts whose likely values are listed."""

from ._listing import Counts as Counts, Listing as Listing
from ._loss import ListedPoissonLoss as ListedPoissonLoss
