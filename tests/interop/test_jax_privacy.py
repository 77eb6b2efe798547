"""JAX-Privacy: its plans, calibrated by this package, and its training accountants."""

import dataclasses
import warnings

import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax.interop import calibrate_plan, from_execution_plan

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    jax_privacy = pytest.importorskip("jax_privacy")
    dp_accounting = pytest.importorskip("dp_accounting")
    execution_plan = pytest.importorskip("jax_privacy.experimental.execution_plan")

pytestmark = pytest.mark.filterwarnings("ignore")
DELTA = 1e-5
RATES = fdp.targets.ErrorRates(alpha=0.01, beta=0.95)
Theirs = dp_accounting.NeighboringRelation
accounting = jax_privacy.accounting


def _config(relation=Theirs.REPLACE_SPECIAL, *, pld=True, bands=4, **change):
    kind = dp_accounting.pld.PLDAccountant if pld else fdp.interop.FdpAccountant
    options = {
        "iterations": 100,
        "strategy": np.linspace(1.0, 0.4, bands),
        "epsilon": 1.0,
        "delta": DELTA,
        "sampling_prob": 0.4,
        "accountant": kind(relation),
    }
    if relation is Theirs.ADD_OR_REMOVE_ONE:
        kinds = jax_privacy.batch_selection.PartitionType
        options["partition_type"] = kinds.INDEPENDENT
    return execution_plan.BandMFExecutionPlanConfig(**(options | change))


def _noise(plan):
    return plan.dp_event.event.event.noise_multiplier


@pytest.mark.parametrize("relation", list(Theirs))
def test_their_plan_by_our_accountant(relation):
    theirs, ours = (_config(relation, pld=pld) for pld in (True, False))
    assert _noise(ours.plan) <= _noise(theirs.plan)
    assert ours.plan.dp_event.count == 25
    run = from_execution_plan(ours)
    assert isinstance(run, fdp.DPSGD)
    assert run.num_steps == 25
    assert run.epsilon(delta=DELTA) <= 1.0
    # A plan does not tell its relation.
    assert run.epsilon(delta=DELTA) == from_execution_plan(
        ours.plan, relation=relation
    ).epsilon(delta=DELTA)
    # Of their plan the guarantee is no worse than what was asked for.
    assert from_execution_plan(theirs).epsilon(delta=DELTA) <= 1.0


@pytest.mark.parametrize("relation", list(Theirs))
@pytest.mark.parametrize("change", [{}, {"sampling_prob": 1.0}, {"iterations": 4}])
def test_a_calibrated_plan(relation, change):
    config = _config(relation, **change)
    found = calibrate_plan(config)
    # Of a single step under REPLACE_ONE the bracket is 1.3e-8 wide.
    assert found.noise_multiplier <= _noise(config.plan) * (1 + 1e-8)
    assert found.noise_multiplier == _noise(found.plan)
    epsilon = float(from_execution_plan(found).epsilon(delta=DELTA))
    assert 1.0 - 1e-5 <= epsilon <= 1.0
    # Nothing else has changed, and the plan can be had.
    assert found.accountant is config.accountant
    assert found.sampling_prob == config.sampling_prob
    assert found.plan.batch_selection_strategy == config.plan.batch_selection_strategy


def test_other_targets():
    found = from_execution_plan(calibrate_plan(_config(), RATES))
    assert 0.95 <= float(found.beta(alpha=0.01)) <= 0.95 + 1e-5
    bare = _config(epsilon=None, delta=None, noise_multiplier=1.0)
    assert calibrate_plan(bare, RATES).noise_multiplier < 100
    with pytest.raises(ValueError, match="target must be given"):
        calibrate_plan(bare)


# The examples of the docstrings here.
def test_our_examples():
    make = execution_plan.BandMFExecutionPlanConfig.default
    run = from_execution_plan(
        make(
            num_bands=1,
            iterations=1000,
            epsilon=None,
            delta=None,
            noise_multiplier=2.0,
            sampling_prob=0.01,
        )
    )
    assert float(run.epsilon(delta=DELTA)) == pytest.approx(0.6220, abs=5e-5)
    config = make(
        num_bands=4, iterations=1000, epsilon=1.0, delta=DELTA, sampling_prob=0.4
    )
    noise = calibrate_plan(config).noise_multiplier
    assert noise <= _noise(config.plan)
    assert noise == pytest.approx(23.67, abs=5e-3)
    assert calibrate_plan(config, RATES).noise_multiplier == pytest.approx(
        9.32, abs=5e-3
    )


# Their docstrings' examples, jax_privacy/experimental/accounting.py.
def test_their_examples():
    make = execution_plan.accounting.dpsgd_event
    accountant = fdp.interop.FdpAccountant
    event = make(noise_multiplier=3, iterations=512, sampling_prob=0.1)
    theirs = dp_accounting.pld.PLDAccountant().compose(event).get_epsilon(1e-6)
    ours = accountant().compose(event).get_epsilon(1e-6)
    assert ours <= theirs
    assert round(ours, 2) == 3.77
    noise = dp_accounting.calibrate_dp_mechanism(
        accountant, lambda s: make(s, 512, sampling_prob=0.1), 1.0, 1e-6
    )
    assert round(noise, 2) == 9.66
    steps = dp_accounting.calibrate_dp_mechanism(
        accountant,
        lambda t: make(3.0, t, sampling_prob=0.1),
        2.0,
        1e-6,
        discrete=True,
        bracket_interval=dp_accounting.LowerEndpointAndGuess(1, 128),
    )
    assert steps == 155


RUNS = [
    {"batch_size": 50, "noise_multipliers": 2.0},
    {"batch_size": 50, "noise_multipliers": [(0, 2.0), (40, 1.5)]},
    {"batch_size": 10, "noise_multipliers": 2.0, "cycle_length": 4},
    {
        "batch_size": 10,
        "noise_multipliers": 2.0,
        "sampling_method": accounting.SamplingMethod.FIXED_BATCH_SIZE,
    },
]


@pytest.mark.parametrize("run", RUNS)
def test_their_training_accountant(run):
    run = accounting.DpParams(num_samples=1000, delta=DELTA, **run)
    ours, theirs = (
        accounting.DpsgdTrainingAccountant(config).compute_epsilon(100, run)
        for config in (
            fdp.interop.FdpAccountantConfig(),
            accounting.PldAccountantConfig(),
        )
    )
    # Both round up, ours to float32 where 64-bit numbers are off.
    assert theirs * (1 - 1e-3) <= ours <= theirs * (1 + 1e-7)


def test_their_calibration_of_trainings():
    given = {"target_epsilon": 2.0, "target_delta": DELTA, "num_samples": 1000}
    run = {"batch_sizes": 50, "num_updates": 100, "noise_multipliers": 2.0}
    found = {}
    for config in (fdp.interop.FdpAccountantConfig(), accounting.PldAccountantConfig()):
        accountant = accounting.DpsgdTrainingAccountant(config)
        found[type(config)] = [
            function(
                **given,
                **{name: value for name, value in run.items() if name != solved},
                accountant=accountant,
            )
            for function, solved in (
                (accounting.calibrate_noise_multiplier, "noise_multipliers"),
                (accounting.calibrate_num_updates, "num_updates"),
                (accounting.calibrate_batch_size, "batch_sizes"),
            )
        ]
    ours, theirs = found.values()
    assert ours[0] == pytest.approx(theirs[0], abs=0.01)  # the tolerance of theirs
    assert ours[1] >= theirs[1]
    assert ours[2] >= theirs[2]


def test_truncated_batches_are_read():
    config = _config(truncated_batch_size=20, num_examples=200)
    config = dataclasses.replace(config, epsilon=None, delta=None, noise_multiplier=1.0)
    scheme = fdp.sampling.Sampling.TRUNCATED_POISSON
    assert from_execution_plan(config).samplings() == {scheme}


def test_what_is_not_supported_is_named():
    with pytest.raises(TypeError, match=r"plan must be an execution plan .* got int"):
        from_execution_plan(3)
    with pytest.raises(TypeError, match=r"config must be .* got DPExecutionPlan"):
        calibrate_plan(_config(epsilon=None, delta=None, noise_multiplier=1.0).plan)
    bare = dataclasses.replace(
        _config(), epsilon=None, delta=None, noise_multiplier=1.0
    )
    with pytest.raises(ValueError, match="relation must be given"):
        from_execution_plan(bare.plan)
    with pytest.raises(ValueError, match="must be 'zero_out', which the plan has"):
        from_execution_plan(bare, relation="replace_one")
    with pytest.raises(ValueError, match="PLDAccountant"):
        accounting.DpsgdTrainingUserLevelAccountant(
            fdp.interop.FdpAccountantConfig()
        ).compute_epsilon(
            1,
            accounting.DpParams(
                noise_multipliers=1.0,
                num_samples=9,
                delta=DELTA,
                batch_size=1,
                examples_per_user=2,
            ),
        )
