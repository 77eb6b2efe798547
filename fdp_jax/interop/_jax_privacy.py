"""JAX-Privacy's execution plans and training accountants."""

import dataclasses
import functools
from typing import Any, cast

from .._internal import _checks
from .._internal._calls import explained
from ..calibration import AbstractTarget, calibrate, targets
from ..mechanisms import AbstractMechanism
from ._accountant import accountant_class
from ._from_event import from_dp_event
from ._library import library, public, relation_of
from ._to_event import to_dp_event


@explained
def from_execution_plan(plan: Any, *, relation: Any = None) -> AbstractMechanism:
    """The mechanism that an execution plan of JAX-Privacy runs.

    Args:
        plan: A `jax_privacy.experimental.execution_plan.DPExecutionPlan`, or the
            configuration of one, such as `BandMFExecutionPlanConfig`.  A configuration
            with an epsilon is calibrated by its own accountant first.
        relation: The neighboring relation, of this package or of dp_accounting.  The
            configuration of a plan tells it, by its accountant; a plan does not.

    Returns:
        The mechanism of its `dp_event`, see `from_dp_event`.  Noise multipliers divide
        by the clipping norm under each relation.  (Under REPLACE_ONE the noise that a
        plan of JAX-Privacy 2.0 adds is twice what its event says: the guarantee holds,
        and is not the best.)

    Raises:
        TypeError: If it is neither.
        NotImplementedError: If its event is not supported;
            it is named, with what is missing.
        ValueError: If a relation is missing, or is not the configuration's.

    References:
        jax_privacy 2.0.0, experimental/execution_plan.py.  That banded matrix
        factorization is a composition of subsampled Gaussian mechanisms, which its
        events rest on, was shown by Choquette-Choo et al. (2023),
        https://arxiv.org/abs/2306.08153.

    Example:
        A plan that is calibrated already, of any accountant, and all queries of it::

            config = BandMFExecutionPlanConfig.default(
                num_bands=1, iterations=1000, epsilon=None, delta=None,
                noise_multiplier=2.0, sampling_prob=0.01,
            )
            run = fdp.interop.from_execution_plan(config)
            run.epsilon(delta=1e-5)  # 0.6220
            run.beta(alpha=0.1)
    """
    given = None if relation is None else relation_of(relation)
    event, said = _event(plan), _relation_of_plan(plan)
    if given is None:
        relation = said
    elif said is not None and given is not said:
        raise ValueError(
            f"relation must be {said.value!r}, which the plan has, got {relation!r}"
        )
    _checks.require(
        relation is not None,
        "relation must be given with a plan, which does not tell it: pass that of "
        "the accountant that the plan was calibrated with, or its configuration",
    )
    return from_dp_event(event, relation=relation)


@explained
def calibrate_plan(config: Any, target: AbstractTarget | None = None) -> Any:
    """The configuration of a plan of JAX-Privacy with the noise that meets a target.

    Their own calibration is by this package too if the configuration's accountant is
    `FdpAccountant(relation)`.  This function knows all other targets, and the noise
    multiplier that it finds can be read.

    Args:
        config: A `jax_privacy.experimental.execution_plan.BandMFExecutionPlanConfig`.
        target: Of `fdp_jax.targets`; by default the (epsilon, delta)-DP that the
            configuration asks for.

    Returns:
        A configuration that differs in its `noise_multiplier`, which meets the target
        for certain and is set instead of epsilon and delta.

    Raises:
        TypeError: If it is no configuration of a plan.
        NotImplementedError: If its event is not supported; it is named.
        ValueError: If there is no target, or it has another neighboring relation.
        UnreachableTarget: If no noise meets the target.

    Example:
        ::

            config = BandMFExecutionPlanConfig.default(
                num_bands=4, iterations=1000, epsilon=1.0, delta=1e-5, sampling_prob=0.4
            )
            found = fdp.interop.calibrate_plan(config)
            found.noise_multiplier  # 23.67
            found.plan  # is run as any other
            rates = fdp.targets.ErrorRates(alpha=0.01, beta=0.95)
            fdp.interop.calibrate_plan(config, rates).noise_multiplier  # 9.32
    """
    _checks.require(
        hasattr(config, "plan") and hasattr(config, "noise_multiplier"),
        "config must be the configuration of an execution plan of jax_privacy",
        type(config).__name__,
        TypeError,
    )
    if target is None:
        _checks.require(
            config.epsilon is not None,
            "target must be given for a configuration without epsilon and delta",
        )
        target = targets.ApproxDP(epsilon=config.epsilon, delta=config.delta)
    change = functools.partial(dataclasses.replace, config, epsilon=None, delta=None)
    run = from_execution_plan(change(noise_multiplier=1.0))
    found = calibrate(run, target, solve_for="noise_multiplier")
    # In their units: they divide by C where this package may divide by 2 C.
    event = to_dp_event(cast(AbstractMechanism, found.mechanism))
    while hasattr(event, "event"):
        event = event.event
    return change(noise_multiplier=event.noise_multiplier)


@functools.cache
def accountant_config_class() -> type:
    """`FdpAccountantConfig`, a `jax_privacy.accounting.DpAccountantConfig`.

    With it JAX-Privacy's training accountants, and so all of its `calibrate_...`, use
    this package.

    Its accountants are `FdpAccountant`s for records that are added or removed, and
    bound the events that the training accountant composes.  `DpsgdTrainingAccountant`
    and `SingleReleaseTrainingAccountant` take it;
    `DpsgdTrainingUserLevelAccountant` insists on its own.

    Returns:
        The class, which `fdp_jax.interop.FdpAccountantConfig` is too.

    Raises:
        ImportError: If jax_privacy is not installed.

    Example:
        ::

            accountant = jax_privacy.accounting.DpsgdTrainingAccountant(
                fdp.interop.FdpAccountantConfig()
            )
            jax_privacy.accounting.calibrate_noise_multiplier(
                target_epsilon=2.0, target_delta=1e-5, accountant=accountant,
                batch_sizes=50, num_updates=100, num_samples=1000,
            )  # 1.35
    """
    accounting = library("FdpAccountantConfig", "jax_privacy").accounting

    @dataclasses.dataclass
    class FdpAccountantConfig(accounting.DpAccountantConfig):
        """Asks for `FdpAccountant`s."""

        def create_accountant(self) -> Any:
            """A new accountant, of records that are added or removed."""
            return accountant_class()()

    return public(FdpAccountantConfig, "FdpAccountantConfig")


def _relation_of_plan(plan: Any) -> Any:
    """The neighboring relation, if it is said."""
    source = getattr(plan, "accountant", plan)
    found = getattr(source, "neighboring_relation", None)
    return None if found is None else relation_of(found)


def _event(plan: Any) -> Any:
    if hasattr(plan, "dp_event"):
        return plan.dp_event
    if hasattr(plan, "plan"):
        return plan.plan.dp_event
    raise TypeError(
        "plan must be an execution plan of jax_privacy, or its configuration, "
        f"got {type(plan).__name__}"
    )
