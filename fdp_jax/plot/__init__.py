"""Pictures of a curve: the trade-off function and the privacy profile.

`tradeoff` and `profile` take a mechanism or its curve and an optional matplotlib
`Axes`, draw on it and return it; figures are left to the caller. `save` writes both
to a file. Matplotlib is imported on the first call only (install the extra `plot`).
"""

from ._plot import (
    profile as profile,
    save as save,
    tradeoff as tradeoff,
)
