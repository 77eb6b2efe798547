"""What differential privacy leaves open to inference: bounds for any model and test."""

from ._groups import group_guarantee as group_guarantee
from ._likelihood import (
    laplace_sum_bounds as laplace_sum_bounds,
    local_bounds as local_bounds,
    marginal_bounds as marginal_bounds,
    posterior_bounds as posterior_bounds,
    posterior_density_bounds as posterior_density_bounds,
)
from ._measures import (
    MeasureInterval as MeasureInterval,
    d_mult as d_mult,
    density_ratio_metric as density_ratio_metric,
)
from ._power import (
    adversary_error as adversary_error,
    bit_distances as bit_distances,
    coupled_power_bound as coupled_power_bound,
    event_bounds as event_bounds,
    odds_tail_bound as odds_tail_bound,
    power_bound as power_bound,
    pure_power_bound as pure_power_bound,
)
