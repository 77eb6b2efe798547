"""One certified side of a guarantee as a polygon, as close as is asked for."""

from ._bracket import one_side as one_side
