"""The command line: answers, files, exit statuses, one-line errors."""

import json
import subprocess
import sys

import pytest

from fdp_jax.cli import main
from fdp_jax.cli._parser import number

RUN = ["--noise-multiplier", "1", "--sampling-prob", "1/100", "--num-steps", "1000"]
# From tests/data/dpsgd_truth.json: epsilon at delta = 1e-5 of this run.
EPSILON = 1.82823666651657688387


def test_epsilon_prints_an_upper_bound(capsys):
    assert main(["epsilon", *RUN, "--delta", "1e-5"]) == 0
    words = capsys.readouterr().out.split()
    assert words[:2] == ["epsilon", "<="]
    assert EPSILON <= float(words[2]) <= EPSILON * (1 + 1e-6)


def test_delta_and_epsilon_agree(capsys):
    assert main(["delta", *RUN, "--epsilon", "2"]) == 0
    printed = float(capsys.readouterr().out.split()[2])
    truth = 2.66557192476179e-06
    assert truth <= printed <= truth * (1 + 1e-6)


def test_json_holds_the_interval(tmp_path, capsys):
    path = tmp_path / "answer.json"
    assert main(["epsilon", *RUN, "--delta", "1e-5", "--json", str(path)]) == 0
    answer = json.loads(path.read_text())
    assert answer["query"] == "epsilon"
    assert answer["at"] == {"delta": 1e-5}
    assert answer["epsilon"]["lower"] <= EPSILON <= answer["epsilon"]["upper"]
    assert answer["epsilon"]["status"] == "certified"
    assert answer["parameters"]["num_steps"] == 1000
    assert "jax" in answer["versions"]


def test_report_names_its_assumptions(tmp_path, capsys):
    path, picture = tmp_path / "report.json", tmp_path / "report.png"
    arguments = [*RUN, "--delta", "1e-5", "--json", str(path), "--plot", str(picture)]
    assert main(["report", *arguments]) == 0
    text = capsys.readouterr().out
    assert "add or remove one record" in text
    assert "Poisson sampling" in text
    report = json.loads(path.read_text())
    assert report["assumptions"]["relation"] == "add or remove one record"
    assert report["directions"]["add"]["epsilon"]["upper"] < EPSILON
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_calibrated_noise_meets_the_target(capsys):
    fixed = ["--sampling-prob", "0.01", "--num-steps", "1000"]
    assert main(["calibrate", *fixed, "--epsilon", "8", "--delta", "1e-5"]) == 0
    sigma = capsys.readouterr().out.split()[2]
    again = ["--noise-multiplier", sigma, *fixed, "--delta", "1e-5"]
    assert main(["epsilon", *again]) == 0
    achieved = float(capsys.readouterr().out.split()[2])
    assert 8 * (1 - 1e-6) <= achieved <= 8


@pytest.mark.parametrize(
    ("name", "fixed", "target"),
    [
        ("num_steps", ["--noise-multiplier", "1", "--sampling-prob", "0.01"], "eps"),
        pytest.param(
            *("sampling_prob", ["--noise-multiplier", "1", "--num-steps", "1000"]),
            "eps",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "noise_multiplier",
            ["--sampling-prob", "0.01", "--num-steps", "1000"],
            "adv",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "noise_multiplier",
            ["--sampling-prob", "0.01", "--num-steps", "1000"],
            "ab",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_calibrate_other_parameters_and_targets(name, fixed, target, capsys):
    flags = {
        "eps": ["--epsilon", "2", "--delta", "1e-6"],
        "adv": ["--advantage", "0.1"],
        "ab": ["--alpha", "0.01", "--beta", "0.95"],
    }[target]
    assert main(["calibrate", "--solve-for", name, *fixed, *flags]) == 0
    words = capsys.readouterr().out.split()
    assert words[:2] == [name, "="]
    assert float(words[2]) > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["epsilon", *RUN],
        ["epsilon", *RUN, "--delta", "abc"],
        ["epsilon", *RUN, "--delta", "1/0"],
        ["nonsense"],
        [],
        ["calibrate", "--solve-for", "learning_rate", "--delta", "1e-5"],
    ],
)
def test_bad_usage_is_one_line_and_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.strip().splitlines()) == 1
    assert "error:" in output.err


@pytest.mark.parametrize(
    ("flag", "value", "name"),
    [
        ("--noise-multiplier", "-1", "noise_multiplier"),
        ("--noise-multiplier", "0", "noise_multiplier"),
        ("--noise-multiplier", "nan", "noise_multiplier"),
        ("--sampling-prob", "1.5", "sampling_prob"),
        ("--num-steps", "-3", "num_steps"),
        ("--delta", "2", "delta"),
    ],
)
def test_bad_values_name_the_argument(flag, value, name, capsys):
    arguments = ["epsilon", *RUN, "--delta", "1e-5"]
    arguments[arguments.index(flag) + 1] = value
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.strip().splitlines()) == 1
    assert name in output.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--sampling-prob", "0.01", "--epsilon", "1", "--delta", "1e-5"],
        [*RUN, "--epsilon", "1", "--delta", "1e-5"],
        ["--sampling-prob", "0.01", "--num-steps", "9", "--epsilon", "1"],
        ["--sampling-prob", "0.01", "--num-steps", "9"],
    ],
)
def test_incomplete_calibrations_are_refused(arguments, capsys):
    assert main(["calibrate", *arguments]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_unreachable_target_is_status_3(capsys):
    # No attack at a false positive rate of 1 % misses more than 99 %.
    fixed = ["--sampling-prob", "0.01", "--num-steps", "1000"]
    assert main(["calibrate", *fixed, "--alpha", "0.01", "--beta", "0.995"]) == 3
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert "0.99" in error


def test_unwritable_file_is_one_line(tmp_path, capsys):
    path = tmp_path / "missing" / "answer.json"
    assert main(["epsilon", *RUN, "--delta", "1e-5", "--json", str(path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_unknown_picture_format_is_one_line(tmp_path, capsys):
    path = tmp_path / "picture.nonsense"
    assert main(["epsilon", *RUN, "--delta", "1e-5", "--plot", str(path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_numbers_and_ratios():
    assert number("256/60_000") == 256 / 60_000
    assert number("1e-5") == 1e-5


def test_demo_writes_its_two_files(tmp_path, capsys):
    assert main(["demo", "--output", str(tmp_path)]) == 0
    assert "TensorFlow Privacy tutorial" in capsys.readouterr().out
    document = json.loads((tmp_path / "report.json").read_text())
    for run in document["runs"]:
        # Every claim in the file was made by a valid, looser method.
        assert run["epsilon"]["upper"] <= run["claimed_epsilon"], run["id"]
        assert run["noise_multiplier_for_claim"] <= run["noise_multiplier"], run["id"]
    assert (tmp_path / "tradeoff.png").stat().st_size > 10_000


def test_runs_as_a_program():
    command = [sys.executable, "-m", "fdp_jax.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fdp-jax ")


SCHEMES = {
    "fixed-size --batch-size 100 --dataset-size 10000 --relation replace-one": (
        "epsilon <= 14.82"
    ),
    "cyclic-poisson --sampling-prob 0.1 --num-groups 10": "epsilon <= 7.0466",
    "shuffled-epochs --num-batches 1000 --relation zero-out": "epsilon <= 4.377",
    "random-allocation --num-batches 1000": "epsilon <= 0.",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes(scheme, capsys):
    run = "epsilon --noise-multiplier 1 --num-steps 1000 --delta 1e-5 --sampling "
    assert main((run + scheme).split()) == 0
    assert capsys.readouterr().out.startswith(SCHEMES[scheme])


def test_the_rate_of_a_scheme_is_found(capsys):
    arguments = (
        "calibrate --noise-multiplier 1 --num-steps 1000 --solve-for sampling-prob "
        "--sampling cyclic-poisson --num-groups 10 --epsilon 7.0466026 --delta 1e-5"
    )
    assert main(arguments.split()) == 0
    assert "sampling_prob = 0.0999999" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("fixed-size --batch-size 5", "--dataset-size must be given with --sampling"),
        ("poisson", "--sampling-prob must be given with --sampling poisson"),
        ("poisson --sampling-prob 0.1 --num-batches 3", "--num-batches means nothing"),
        ("fixed-size --batch-size 5 --dataset-size 9", "relation must be REPLACE_ONE"),
    ],
)
def test_wrong_schemes_are_one_line(scheme, message, capsys):
    run = "epsilon --noise-multiplier 1 --num-steps 10 --delta 1e-5 --sampling "
    assert main((run + scheme).split()) == 2
    output = capsys.readouterr()
    assert len(output.err.strip().splitlines()) == 1
    assert message in output.err
