"""Monte Carlo accounting: bounds that hold with a stated probability, from samples.

For runs whose pair is a mixture of very many laws, where no bound by proof is known.
Nothing that is proved makes use of them.
"""

from ._answer import (
    ConfidenceBounds as ConfidenceBounds,
    MonteCarlo as MonteCarlo,
    monte_carlo as monte_carlo,
)
