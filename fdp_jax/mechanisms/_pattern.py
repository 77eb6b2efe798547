"""Steps in which a record may take part."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Rule by which a record may take part; no PyTree, since it sets shapes."""

    num_steps: int
    most: int
    apart: int
    cyclic: bool
    meets: bool = True
    """Whether columns of two participations may both have entries in a row."""
