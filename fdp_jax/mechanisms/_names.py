"""The names that a shell completes."""

_HOOKS = """
    alone as_steps attained exact has_fractional_powers known_steps releases_once
    require_complete require_many rescaled samplings shares simplified takes_fractions
    unchecked
"""
"""Methods for the package and for new mechanisms."""


class NamesToAsk:
    """A class whose completed names are for those who ask questions."""

    def __dir__(self):
        return sorted(set(super().__dir__()) - set(_HOOKS.split()))
