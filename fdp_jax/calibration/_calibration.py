"""What a calibration found."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._internal._concrete import is_traced
from .._internal._record import Record
from .._internal._show import Call, members, short
from .._internal._text import round_down, round_up
from ..curves import Status
from ..mechanisms import AbstractMechanism, AbstractRenyi
from ..selection import SelectBest
from ._targets import AbstractTarget

_MOST = 400
"""Characters in which a guarantee shows its mechanism."""


class Calibration(Record):
    """The solution of a calibration.

    `value` is rounded to the private side: the certified guarantee of `mechanism`
    meets the target.  Its derivative is that of the exact solution.
    """

    value: Float[Array, ""]
    """The parameter, or the common factor of several; NaN if there is none."""
    mechanism: AbstractMechanism | AbstractRenyi | SelectBest
    """The mechanism with the value put in."""
    target: AbstractTarget
    status: Int[Array, ""] = eqx.field(metadata=members(Status))
    """A `Status`: VACUOUS if no value could be certified to meet the target, LOOSE if
    the certificate at the one that was is wide, or if it is more than half a percent
    off the estimate's root.  It is about the pair of the mechanism: where that only
    dominates, `mechanism.bounds` says how far off it may be."""
    binding: dict[str, Array]
    """Where the target binds: "alpha", "epsilon" or "prior" for those that speak of a
    whole curve, "active" (an index) for several targets; no derivatives."""
    leaks: Float[Array, ""]
    """+1 if the privacy loss grows with the value, -1 if it falls."""
    at_end: Bool[Array, ""]
    """Whether the value is the riskier end of the range searched: all of that range
    meets the target, and so may values beyond it."""
    solve_for: str = eqx.field(static=True)

    def _shown(self, parent: Any) -> Call:
        """Without the sign, and without what says nothing here."""
        shown = super()._shown(parent)
        known_end = not is_traced(self.at_end) and not np.any(self.at_end)
        dull = {"leaks": True, "binding": not self.binding, "at_end": known_end}
        return Call(shown.name, [e for e in shown.entries if not dull.get(e[0])])

    @property
    def guarantee(self) -> str:
        """The guarantee in one line (outside jit).

        It says what is guaranteed, to which neighbors, the value found, whether the
        certified bound is tight or only of a pair that dominates, the mechanism and how
        it must sample.
        """
        if int(self.status) == Status.VACUOUS:
            return (
                f"no {self.solve_for} could be certified for {self.target.describe()}"
            )
        # What is known by Renyi divergences alone states no relation.
        stated = getattr(self.mechanism, "relation", None)
        relation = "" if stated is None else f"{stated.value.replace('_', ' ')}, "
        private_side = round_up if float(self.leaks) < 0 else round_down
        end = " (the end of the range searched)" if bool(self.at_end) else ""
        # The mechanism of a group is not the one that was asked about.
        what = "" if self.solve_for == "size" else f": {self._of_what()}"
        mechanism, kind = self.mechanism, Status(int(self.status)).name.lower()
        pair = isinstance(mechanism, AbstractMechanism) and mechanism.attained()
        if kind == "tight" and pair:
            kind = "of a pair that dominates"
        return (
            f"{self.target.describe()}, {relation}"
            f"{self.solve_for} = {private_side(float(self.value), 10)}{end}, "
            f"certified upper bound ({kind}){what}"
        )

    def _of_what(self) -> str:
        """The rest of the mechanism, and how it must sample, in one line."""
        mechanism = self.mechanism
        shown = mechanism._shown(mechanism)
        # Of an array a common factor was found.
        said = lambda name, x: x is None or (name == self.solve_for and not jnp.ndim(x))
        shown.entries = [entry for entry in shown.entries if not said(*entry)]
        whole = short(shown, most=_MOST, parent=mechanism)
        schemes = getattr(mechanism, "samplings", frozenset)()
        return ", ".join([whole, *sorted(x.value for x in schemes)])
