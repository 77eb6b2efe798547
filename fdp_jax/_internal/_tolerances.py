"""The numbers that certificates rest on: what each means and why it may be relied on.

A bracket is wide enough because of three kinds of numbers:

- *proved*: the certificate holds whatever the number is, because it counts what the
  number costs, or because a theorem gives it. The number decides the width alone.
- *budgeted*: more than the roundings come to that an inspection of the operations
  finds.
- *measured*: more than the errors found by comparison with exact numbers.
  `tests/internal/test_tolerances.py` measures every one of them again.

Not here are roundings that are counted where they occur, so many units in the last
place for one expression (`8 * eps * (1 + size)`): these are budgeted. Neither are
numbers that only decide how long a search lasts or what input is accepted.
"""

import enum
from typing import NamedTuple


class Kind(enum.Enum):
    """Why a number may be relied on."""

    PROVED = "proved"
    BUDGETED = "budgeted"
    MEASURED = "measured"


class Tolerance(NamedTuple):
    """One entry of the ledger."""

    value: float
    kind: Kind
    meaning: str


LEDGER: dict[str, Tolerance] = {}


def _entered(name: str, value: float, kind: Kind, meaning: str) -> float:
    LEDGER[name] = Tolerance(value, kind, meaning)
    return value


# -------------------------------------------------------------- elementary operations

ELEMENTARY = _entered(
    "ELEMENTARY",
    4.0,
    Kind.MEASURED,
    "Units in the last place by which exp, expm1 and log of XLA and of NumPy are off, "
    "of a logarithm those of 1 + |log|: twice what was measured.",
)
LOG_OPERATIONS = _entered(
    "LOG_OPERATIONS",
    1e-14,
    Kind.BUDGETED,
    "Rounding of a few operations on the logarithm of a probability, over 1 + |log|.",
)
LOG_DIFFERENCE = _entered(
    "LOG_DIFFERENCE",
    1e-15,
    Kind.BUDGETED,
    "The same of each of two logarithms whose powers are subtracted, over 8 + |log|.",
)
CANCELLED = _entered(
    "CANCELLED",
    1e-12,
    Kind.BUDGETED,
    "Share of a mass that rounding may have made, where another mass is taken off it.",
)
CROSSING = _entered(
    "CROSSING",
    4.0,
    Kind.BUDGETED,
    "Units in the last place by which two computations of one number may cross.",
)

# ------------------------------------------------------------------------ closed forms

CLOSED_FORM = _entered(
    "CLOSED_FORM",
    1e-12,
    Kind.MEASURED,
    "Error of a closed form's log delta and log(1 - delta), over 1 + |log|.",
)
ATOM_MASS = _entered(
    "ATOM_MASS",
    1e-13,
    Kind.MEASURED,
    "Relative error of an output's probability, as a mechanism gives it.",
)
SKELLAM_MASS = _entered(
    "SKELLAM_MASS",
    2e-12,
    Kind.MEASURED,
    "Relative error of a probability of Skellam noise.",
)
LEAST_QUOTIENT = _entered(
    "LEAST_QUOTIENT",
    1e-150,
    Kind.BUDGETED,
    "Probability from which on a quotient of two and its derivative keep their digits.",
)

# ------------------------------------------------------------------- contour integrals

VOID = _entered(
    "VOID",
    40.0,
    Kind.PROVED,
    "Error of an exponent that voids a certificate, unless its term is tiny: a larger "
    "one counts as this much.",
)

# -------------------------------------------------------- splitting by the largest step

SPLIT_REST = _entered(
    "SPLIT_REST",
    1e-6,
    Kind.BUDGETED,
    "Relative rounding of the bounds of what is left out of all bands.",
)
BAND_QUADRATURE = _entered(
    "BAND_QUADRATURE",
    1e-9,
    Kind.BUDGETED,
    "Relative error of the trapezoid rule for a band's modulus along a line, and of "
    "the bound of its error where that is smaller.",
)
BAND_SUM = _entered(
    "BAND_SUM",
    1e-11,
    Kind.BUDGETED,
    "Relative rounding of a sum over a band's nodes in a bound.",
)
ENVELOPE = _entered(
    "ENVELOPE",
    0.05,
    Kind.BUDGETED,
    "Error of the trapezoid rule for the logarithm of a band's envelope, which sums a "
    "smooth positive function.",
)
LINE_SUM = _entered(
    "LINE_SUM",
    0.01,
    Kind.BUDGETED,
    "Relative error of the trapezoid rule for the modulus of an integrand along a "
    "line, and for what a line takes off a characteristic function and adds to it.",
)
DEAD_SQUARE = _entered(
    "DEAD_SQUARE",
    1e-30,
    Kind.BUDGETED,
    "|1 + x|^2 below which nothing but rounding is left of 1 + x.",
)
LEAST_SUM = _entered(
    "LEAST_SUM",
    1e-304,
    Kind.BUDGETED,
    "More than a sum of numbers that underflow.",
)

# ---------------------------------------------------------------------------- the grid

ATOM_PLACE = _entered(
    "ATOM_PLACE",
    1e-13,
    Kind.PROVED,
    "Distance from a grid point, in steps over 1 + their number, at which a point mass "
    "counts as on it; the certificate counts the move.",
)
IRRELEVANT_MASS = _entered(
    "IRRELEVANT_MASS",
    1e-40,
    Kind.BUDGETED,
    "Tilted mass of a cell whose own error does not matter.",
)
RARE_JUMPS = _entered(
    "RARE_JUMPS",
    1e-16,
    Kind.PROVED,
    "Tilted probability of more jumps than an error of their sizes is counted for, by "
    "Chernoff's bound; below the rounding, which is counted.",
)

# ----------------------------------------------------------------- random allocation

NORMAL_TAIL = _entered(
    "NORMAL_TAIL",
    16.0,
    Kind.MEASURED,
    "Units in the last place by which a normal tail by erfc is off, besides what the "
    "rounding of its argument does.",
)

LATTICE_SUM = _entered(
    "LATTICE_SUM",
    1e-10,
    Kind.BUDGETED,
    "Relative rounding of a sum of positive numbers over the lattice, or of two such.",
)
CLOSE_TO_LATTICE = _entered(
    "CLOSE_TO_LATTICE",
    1e-9,
    Kind.PROVED,
    "Distance from a lattice point, in steps, at which an atom of a likelihood ratio "
    "is put onto it; the masses next to it are raised by what that may do.",
)
QUANTIZED_MASS = _entered(
    "QUANTIZED_MASS",
    3e-8,
    Kind.PROVED,
    "Relative error of the probability of a quantized sum, above which the output is "
    "left out; losses count as off by what is below it.",
)
GAUSS_RULE = _entered(
    "GAUSS_RULE",
    5e-15,
    Kind.PROVED,
    "Relative error of a Gauss rule with 16 nodes for the law of X over a cell, by its "
    "size on an ellipse around the cell.",
)

# ------------------------------------------------------------------- truncated batches

BINOMIAL_TAIL = _entered(
    "BINOMIAL_TAIL",
    1e-12,
    Kind.MEASURED,
    "Error of the logarithm of a binomial law's tail from k on, over 1 + |log| + "
    "|k - mean|, up to 1e8 trials: by a Gauss rule with 80 nodes.",
)

SIGN_TAIL = _entered(
    "SIGN_TAIL",
    1e-11,
    Kind.MEASURED,
    "Relative error of the tail of the mean of at most 1e12 signs, and within 8 "
    "deviations of its excess, which is too large beyond: by a Gauss rule with 22 "
    "nodes.",
)

# ----------------------------------------------------------------- trade-off functions

QUANTIZED_POWER = _entered(
    "QUANTIZED_POWER",
    1e-13,
    Kind.BUDGETED,
    "How much a quantized test's log power moves with the rounding of its threshold, "
    "over 1 + reach^2 / 10.",
)
MEET = _entered(
    "MEET",
    1e-14,
    Kind.BUDGETED,
    "Rounding of delta of a convex hull, absolutely.",
)

# --------------------------------------------------------------------------- training

CLIPPED_LENGTH = _entered(
    "CLIPPED_LENGTH",
    1e-6,
    Kind.BUDGETED,
    "Relative rounding in float32 of the factor that a gradient is scaled down with, "
    "and of products with it; so much is a clipping norm below what is stated. Lengths "
    "are never too small.",
)
SAME_NOISE = _entered(
    "SAME_NOISE",
    1e-7,
    Kind.BUDGETED,
    "Share of a noise multiplier by which that of a resumed training may differ: what "
    "is added is 1e-6 more than stated, of which roundings in float32 take 2e-7.",
)
