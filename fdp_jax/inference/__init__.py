"""Private tests, confidence intervals and releases of counts and proportions."""

from ._binomial import (
    PrivateTest as PrivateTest,
    binomial_interval_from as binomial_interval_from,
    binomial_p_value as binomial_p_value,
    binomial_power as binomial_power,
    binomial_sample_size as binomial_sample_size,
    binomial_threshold as binomial_threshold,
    most_powerful_test as most_powerful_test,
)
from ._private import (
    free_p_value as free_p_value,
    is_private_test as is_private_test,
    privacy_excess as privacy_excess,
    private_statistic as private_statistic,
)
from ._proportions import (
    semi_private_power as semi_private_power,
    semi_private_threshold as semi_private_threshold,
    two_proportion_interval_from as two_proportion_interval_from,
    two_proportion_p_value as two_proportion_p_value,
)
from ._release import (
    Release as Release,
    binomial_interval as binomial_interval,
    binomial_test as binomial_test,
    release_count as release_count,
    two_proportion_test as two_proportion_test,
)
from ._unbiased import (
    UnbiasedTest as UnbiasedTest,
    unbiased_power as unbiased_power,
    unbiased_test as unbiased_test,
)
