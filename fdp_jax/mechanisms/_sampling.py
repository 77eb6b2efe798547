"""How records are drawn for a step: what a guarantee assumes of the training loop."""

import enum


class Sampling(enum.Enum):
    """A scheme by which records enter steps, as reports state it."""

    POISSON = "Poisson sampling"
    """Every record enters every step with one probability, independently."""

    @property
    def caveat(self) -> str:
        """What a guarantee that assumes the scheme does not cover."""
        return _CAVEATS[self]


_CAVEATS = {
    Sampling.POISSON: (
        "Shuffled or fixed-size batches are not Poisson sampling: for these\n"
        "the numbers above are no proven guarantee."
    ),
}
