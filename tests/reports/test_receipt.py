"""Receipts: what they state, as JSON with a schema, as Markdown, read by verify."""

import importlib.resources
import json

import jax
import numpy as np
import pytest
from scipy import stats

import fdp_jax as fdp
from fdp_jax.cli import main
from fdp_jax.cli._claims import claims_of, run_in
from fdp_jax.reports import _receipt

# Sixteen steps of all records are one Gaussian mechanism with mu = 4 / 8.
RUN = fdp.DPSGD(noise_multiplier=8.0, sampling_prob=1.0, num_steps=16)
SCHEMA = json.loads(
    (importlib.resources.files("fdp_jax.reports") / "receipt.schema.json").read_text()
)


def _json(found):
    return json.loads(json.dumps(found.to_dict(), allow_nan=False))


@pytest.fixture(scope="module")
def gaussian():
    return fdp.reports.receipt(fdp.Gaussian(2.0), delta=1e-5, unit="one image")


@pytest.fixture(scope="module")
def trained():
    plan = fdp.training.Plan(RUN, num_records=10_000, clipping=1.5)
    notes = {"trust_model": "Whoever trains sees the records."}
    return fdp.reports.receipt(plan, delta=1e-5, unit="one user", notes=notes)


@pytest.mark.parametrize("name", ["gaussian", "trained"])
def test_mu_and_curve_hold_the_closed_forms(name, request):
    found = request.getfixturevalue(name)
    lower, upper = found.mu
    grid = np.linspace(0.0, 4.0, 401)
    exact = _profile(0.5, grid)
    # On a grid the profile is covered, and it is not by a smaller mu.
    assert np.all(exact <= _profile(upper, grid) + found.set_aside)
    assert np.any(exact > _profile(0.98 * lower, grid) + found.set_aside)
    for alpha, beta in found.curve.items():
        truth = stats.norm.cdf(stats.norm.isf(alpha) - 0.5)
        assert beta.lower <= truth <= beta.upper
        np.testing.assert_allclose(beta.estimate, truth, rtol=1e-6)


def _profile(mu, epsilon):
    above, below = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return stats.norm.cdf(above) - np.exp(epsilon) * stats.norm.cdf(below)


def test_receipt_of_a_plan_says_what_was_done(trained):
    assert "Poisson(prob=1)" in trained.sampler
    assert "1.5" in trained.clipping
    assert "over 10000," in trained.normalization
    assert "10000 records" in trained.normalization


def test_receipt_of_a_mechanism_says_what_it_does_not_know(gaussian):
    assert gaussian.clipping == gaussian.normalization == "Not stated."
    written = "Gaussian(noise_multiplier=2, relation=ADD_OR_REMOVE_ONE)"
    assert gaussian.run == {"mechanism": written}


@pytest.mark.parametrize(
    ("mechanism", "whole"),
    [
        (fdp.compose(fdp.Laplace(3.0).repeat(4), fdp.PureDP(0.1)), True),
        (fdp.PartitionSelection(4.0, threshold=25.0, max_partitions=3), True),
        (fdp.FromProbabilities([0.5, 0.5], [0.4, 0.6]), False),
        (fdp.Schedule(fdp.Gaussian, [1.0, 2.0]), False),
    ],
)
def test_what_is_written_out_in_full_can_be_read_back(mechanism, whole):
    run = _receipt._run(mechanism)
    assert (run is not None) == whole
    if whole:
        assert repr(run_in({"run": run})) == repr(mechanism)


@pytest.mark.parametrize("name", ["gaussian", "trained"])
def test_json_form_is_that_of_the_schema(name, request):
    jsonschema = pytest.importorskip("jsonschema")
    document = _json(request.getfixturevalue(name))
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert set(document) == set(SCHEMA["required"]) == set(SCHEMA["properties"])
    for wrong in ({"unit": ""}, {"status": "good"}, {"notes": {"trust": "all"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(SCHEMA).validate(document | wrong)


def test_infinite_ends_are_json_too():
    found = fdp.reports.receipt(fdp.Gaussian(1.0), delta=0.0, unit="one image")
    assert _json(found)["epsilon"]["upper"] == "inf"
    assert "| inf |" in found.markdown()


def test_markdown_has_all_topics_and_every_bound(trained):
    text = trained.markdown()
    titles = [x.lstrip("# ") for x in text.splitlines() if x.startswith("#")]
    assert titles == [
        *("Differential privacy", "Privacy parameters", "Unit of privacy"),
        *("Algorithm and accounting", "Trust model", "Utility and bias"),
        *("Data security and access control", "Data collection exposure"),
    ]
    assert "one user; neighbors: add or remove one record." in text
    assert "Whoever trains sees the records." in text
    assert text.count("Not stated.") == 3
    assert f"at most |\n| --- | --: | --: |\n| {'epsilon at delta = 1e-05'} |" in text


def test_verify_takes_every_bound_of_a_receipt(trained):
    document = _json(trained)
    found = [c for c in claims_of(document) if c.what.startswith("beta")]
    assert [c.query["alpha"] for c in found[::2]] == list(trained.curve)
    ends = [(x.upper, x.lower) for x in trained.curve.values()]
    assert [c.value for c in found] == [x for pair in ends for x in pair]
    assert [c.upper for c in found[:2]] == [True, False]
    assert len(claims_of(document)) == 6 + 3 + 2 + len(found)
    assert repr(run_in(document)) == repr(RUN)
    del document["curve"]
    with pytest.raises(ValueError, match="lacks 'curve'"):
        claims_of(document)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("guarantee", "(1, 1e-05)-DP, add or remove one record, no subsampling"),
        ("assumptions", {"relation": "replace one record", "sampling": "Poisson"}),
        ("mechanism", "Laplace"),
        ("sampler", "shuffled batches"),
        ("schema", "fdp_jax/receipt/2"),
        ("schema", None),
    ],
)
def test_verify_reads_the_words_of_a_receipt(trained, name, wrong):
    document = _json(trained)
    fdp.reports.require_words(RUN, document)
    with pytest.raises(ValueError, match=f"{name} must be that of its run"):
        fdp.reports.require_words(RUN, document | {name: wrong})
    # Words that are right of another number.
    with pytest.raises(ValueError, match="guarantee must be"):
        fdp.reports.require_words(RUN, document | {"delta": 1e-6})
    with pytest.raises(ValueError, match="status must be one of"):
        fdp.reports.require_words(
            RUN, document | {"epsilon": document["epsilon"] | {"status": ""}}
        )


@pytest.mark.slow
def test_verify_reads_a_receipt(gaussian, tmp_path, capsys):
    document = _json(gaussian)
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(document))
    assert main(["verify", str(path)]) == 0
    assert "beta at alpha = 0.05 at least" in capsys.readouterr().out

    document["curve"][2]["beta"]["lower"] += 0.01
    path.write_text(json.dumps(document))
    assert main(["verify", str(path)]) == 3
    assert "CONTRADICTED" in capsys.readouterr().out


def test_verify_reads_receipts_of_other_mechanisms(gaussian, tmp_path, capsys):
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(_json(gaussian)))
    assert main(["verify", str(path)]) == 0
    assert "CONTRADICTED" not in capsys.readouterr().out


def test_verify_refuses_receipts_it_has_no_words_for(gaussian, tmp_path, capsys):
    path = tmp_path / "receipt.json"
    document = _json(gaussian)
    for run, words in (
        (None, "which run"),
        ({"noise_multiplier": 1.0, "num_steps": 2, "sampling": "lottery"}, "lottery"),
    ):
        path.write_text(json.dumps(document | {"run": run}))
        assert main(["verify", str(path)]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "scheme",
    [
        fdp.sampling.ShuffledEpochs(num_batches=5),
        fdp.sampling.TruncatedPoisson(0.1, batch_size=250, dataset_size=1500),
        fdp.sampling.CyclicPoisson(0.5, num_groups=4),
        fdp.sampling.RandomAllocation(num_batches=10),
        fdp.sampling.RandomAllocation(num_batches=10, num_participations=2),
        fdp.sampling.FixedSize(batch_size=3, dataset_size=70),
        fdp.sampling.UserLevel(1 / 3, max_examples=2),
    ],
)
def test_runs_of_any_scheme_can_be_read_back(scheme):
    run = fdp.DPSGD(
        noise_multiplier=2.0, sampling=scheme, num_steps=20, relation="zero_out"
    )
    found = run_in({"run": _receipt._run(run)})
    assert repr(found) == repr(run)
    for one, other in zip(jax.tree.leaves(run), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unit": " "}, "unit must say what a record is, got ' '"),
        ({"unit": "one", "notes": {"trust": "all"}}, "notes must be one of"),
        ({"unit": "one", "delta": 2.0}, "delta must be"),
    ],
)
def test_wrong_arguments_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        fdp.reports.receipt(fdp.Gaussian(2.0), **{"delta": 1e-5} | options)
