"""The data file of published runs is consistent with itself."""

import math

from fdp_jax.data import published_runs


def test_ids_are_unique_and_every_run_has_a_source():
    runs = published_runs()
    assert len({run.id for run in runs}) == len(runs) >= 9
    for run in runs:
        assert run.url.startswith("https://")
        assert len(run.source) > 50


def test_numbers_are_in_range_and_steps_follow_from_epochs():
    for run in published_runs():
        assert 0 < run.sampling_prob < 1
        assert 0 < run.delta < 1
        assert run.noise_multiplier > 0
        assert run.claimed_epsilon > 0
        if run.epochs is not None:
            exact = run.epochs * run.dataset_size / run.batch_size
            assert run.num_steps == math.ceil(exact)


def test_quoted_numbers_stand_in_the_source_text():
    for run in published_runs():
        assert (
            f"{run.claimed_epsilon:g}" in run.source
            or str(run.claimed_epsilon) in run.source
        )
        assert f"{run.noise_multiplier:g}" in run.source
