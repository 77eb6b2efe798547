"""Training: sampling, clipping, noise and account that cannot be mismatched.

In comes a mechanism with a number of records; out come training steps whose guarantee
is that mechanism's.
"""

from ._canaries import (
    gradient_scores as gradient_scores,
    insert_canaries as insert_canaries,
    loss_scores as loss_scores,
)
from ._check import check as check
from ._clipping import (
    AbstractClipping as AbstractClipping,
    AdaptiveClipping as AdaptiveClipping,
    AutomaticClipping as AutomaticClipping,
    FlatClipping as FlatClipping,
    PerLayerClipping as PerLayerClipping,
)
from ._fit import Trained as Trained, fit as fit
from ._gradients import (
    GradientSum as GradientSum,
    gradient_sum as gradient_sum,
    per_example_gradients as per_example_gradients,
)
from ._noise import NoiseState as NoiseState, add_noise as add_noise
from ._plan import Plan as Plan, Progress as Progress
from ._trainer import (
    Diagnostics as Diagnostics,
    Trainer as Trainer,
    TrainingState as TrainingState,
)
