"""The command line: answers, files, exit statuses, one-line errors."""

import importlib.util
import json
import math
import os
import subprocess
import sys

import pytest
from scipy.stats import norm

import fdp_jax as fdp
from fdp_jax import mechanisms, plot
from fdp_jax.cli import _answers, _claims, _options, _warm, main
from fdp_jax.cli._expression import _CONSTRUCTORS, mechanism_in
from fdp_jax.cli._options import number

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
            "ab",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_calibrate_other_parameters_and_targets(name, fixed, target, capsys):
    flags = {
        "eps": ["--epsilon", "2", "--delta", "1e-6"],
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
        ["epsilon", *RUN, "--del", "1e-5"],
        ["epsilon", "--noise", "1", *RUN[2:], "--delta", "1e-5"],
        ["compare", *RUN, "--other-num", "3"],
        ["completion", "powershell"],
        ["nonsense"],
        [],
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
    ("flag", "meant"),
    [
        ("--sigma", "--noise-multiplier"),
        ("--sample_rate=0.1", "--sampling-prob"),
        ("--num-step", "--num-steps"),
        ("--eps", None),
    ],
)
def test_a_wrong_option_is_named_before_those_that_are_missing(flag, meant, capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["epsilon", flag, "1"])
    assert leaving.value.code == 2
    hint = f": did you mean {meant}?" if meant else ""
    expected = f"there is no option {flag.partition('=')[0]}{hint}"
    assert capsys.readouterr().err == f"fdp-jax epsilon: error: {expected}\n"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["calibrate", "--help"], 0),
        (["epsilon"], 2),
        (["epsilon", "--sigma", "1"], 2),
        (["epsilon", *RUN[:2], *RUN[4:], "--delta", "1e-5"], 2),
        # Numbers, files and descriptions that need no library to be refused.
        (["epsilon", *RUN, "--delta", "1e-5", "2"], 2),
        (["compare", *RUN, "--other-num-steps", "-1"], 2),
        (["epsilon", *RUN, "--delta", "1e-5", "--json", "/no folder/x"], 2),
        (["verify", "/no folder/x"], 2),
        (["sweep", "/no folder/x", "--out", "x"], 2),
        (["calibrate", *RUN, "--epsilon", "1", "--delta", "1e-5"], 2),
        (["tpr", "--mechanism", "Laplace(2)", *RUN, "--fpr", "0.1"], 2),
    ],
)
def test_help_and_errors_of_usage_do_not_wait_for_jax(arguments, status):
    code = (
        "import sys, time; began = time.process_time()\n"
        "sys.argv[0] = '/usr/bin/fdp-jax'\n"
        "from fdp_jax.cli import main\n"
        f"try: status = main({arguments!r})\n"
        "except SystemExit as leaving: status = leaving.code\n"
        "heavy = {'jax', 'numpy', 'scipy', 'equinox'} & set(sys.modules)\n"
        "print(status, sorted(heavy), time.process_time() - began)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    *_, last = done.stdout.splitlines()
    assert last.startswith(f"{status} [] ")
    assert float(last.split()[-1]) < 0.5  # CPU seconds; JAX takes one more


def test_an_answer_does_not_wait_for_what_it_has_no_use_for():
    code = (
        "import sys; sys.argv[0] = '/usr/bin/fdp-jax'\n"
        "from fdp_jax.cli import _dispatch\n"
        "print(sorted({'scipy.stats', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


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
        ["--solve-for", "learning_rate", "--delta", "1e-5"],
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


@pytest.mark.parametrize(
    ("flag", "name", "words"),
    [
        ("--json", "missing/answer.json", "no folder"),
        ("--json", "", "folder"),
        ("--plot", "missing/picture.png", "no folder"),
        ("--plot", "picture.nonsense", ".png"),
        ("--plot", "picture", ".png"),
    ],
)
def test_outputs_are_checked_before_anything_is_computed(
    flag, name, words, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(mechanisms.DPSGD, "bounds", None)
    path = str(tmp_path / name)
    assert main(["epsilon", *RUN, "--delta", "1e-5", flag, path]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.strip().splitlines()) == 1
    assert flag in output.err
    assert words in output.err


def test_a_missing_matplotlib_is_noticed_before(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(mechanisms.DPSGD, "bounds", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    path = str(tmp_path / "picture.png")
    assert main(["epsilon", *RUN, "--delta", "1e-5", "--plot", path]) == 2
    assert "extra 'plot'" in capsys.readouterr().err


def test_json_goes_to_standard_output_alone(capsys):
    assert main(["epsilon", *RUN, "--delta", "1e-5", "1e-6", "--json", "-"]) == 0
    output = capsys.readouterr()
    answer = json.loads(output.out)
    assert len(output.err.splitlines()) == 2
    first, second = answer["answers"]
    assert first["epsilon"]["lower"] <= EPSILON <= first["epsilon"]["upper"]
    assert second["at"] == {"delta": 1e-6}
    assert second["epsilon"]["lower"] > first["epsilon"]["upper"]
    assert answer["run"]["sampling"] == "poisson"


def test_perfect_privacy_is_explained(capsys):
    run = ["--noise-multiplier", "inf", *RUN[2:]]
    assert main(["epsilon", *run, "--delta", "1e-5"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("epsilon <= -0.0000")
    assert "exceeds the advantage" in text


def test_a_whole_number_of_steps(tmp_path, capsys):
    known = ["--noise-multiplier", "1", "--sampling-prob", "0.01"]
    target = ["--epsilon", "2", "--delta", "1e-6"]
    path = str(tmp_path / "answer.json")
    asked = ["--solve-for", "num-steps", "--whole", "--json", path]
    assert main(["calibrate", *asked, *known, *target]) == 0
    # From tests/data/dpsgd_truth.json and bisection: 874 steps do, 875 do not.
    assert capsys.readouterr().out.splitlines()[0] == "num_steps = 874"
    assert json.loads((tmp_path / "answer.json").read_text())["run"]["num_steps"] == 874


def test_verify_tells_that_dp_accounting_has_no_such_sampling(tmp_path, capsys):
    path = str(tmp_path / "answer.json")
    run = "--sampling fixed-size --batch-size 250 --dataset-size 1500 --num-steps 60"
    rest = "--noise-multiplier 2 --relation replace-one --delta 1e-5"
    assert main(["epsilon", *run.split(), *rest.split(), "--json", path]) == 0
    assert main(["verify", path]) == 0
    assert "dp-accounting: no answer for this run (Unsupp" in capsys.readouterr().out


def test_verify(tmp_path, capsys):
    path = tmp_path / "answer.json"
    asked = ["epsilon", *RUN, "--delta", "1e-5", "--json", str(path)]
    assert main(asked) == 0
    assert main(["verify", str(path)]) == 0
    text = capsys.readouterr().out
    assert "by engine grid" in text
    assert "confirmed to" in text
    assert "dp-accounting: 1.828" in text

    answer = json.loads(path.read_text())
    answer["epsilon"]["upper"] = 1.8
    path.write_text(json.dumps(answer))
    assert main(["verify", str(path), "--json", "-"]) == 3
    output = capsys.readouterr()
    assert "CONTRADICTED" in output.err
    found = json.loads(output.out)
    assert found["verdict"] == "contradicted"
    assert [one["verdict"] for one in found["bounds"]] == ["contradicted", "confirmed"]

    answer["epsilon"]["upper"] = 2.5
    path.write_text(json.dumps(answer))
    assert main(["verify", str(path)]) == 0
    assert "not everything could be confirmed" in capsys.readouterr().out


_STATED = (
    '{"command": "epsilon", "query": "%s", "at": %s, '
    '"epsilon": {"lower": 0, "upper": %s}, "run": {"mechanism": "Laplace(2)"}}'
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "no JSON file"),
        pytest.param("[" * 100_000, "no JSON file", id="nested"),
        ("[]", "no answer"),
        ("{}", "which run"),
        ('{"run": {"size": 3}}', "which run"),
        ('{"run": {"mechanism": "Laplace", "relation": 5}}', "relation must be one of"),
        (_STATED % ("epsilon", '{"alpha": 0.1}', 1), "lacks 'delta'"),
        (_STATED % ("epsilon", '{"delta": 1e-5}', "NaN"), "must be a number, got nan"),
        (
            _STATED % ("epsilon", '{"delta": 0.1}', '1, "estimate": 2'),
            "between the bounds",
        ),
        (
            '{"run": {"mechanism": "Laplace(2)"}, '
            '"parameters": {"noise_multiplier": 3}}',
            "parameters must be those of its run: noise_multiplier is 2, got 3",
        ),
        ('{"run": {"noise_multiplier": 1, "num_steps": 2}}', "--sampling-prob"),
        (
            '{"command": "epsilon", "query": "epsilon", "run": {"noise_multiplier": 1, '
            '"num_steps": 2, "sampling_prob": 0.5}}',
            "lacks 'at'",
        ),
        (
            '{"command": "calibrate", "target": {"advantage": "abc"}, "run": '
            '{"mechanism": "Laplace(2)"}}',
            "'advantage' in the file must be a number, got 'abc'",
        ),
        (
            '{"command": "calibrate", "target": {"advantage": null}, "run": '
            '{"mechanism": "Laplace(2)"}}',
            "'advantage' in the file must be a number, got None",
        ),
        (
            '{"command": "demo", "run": {"noise_multiplier": 1, "num_steps": 2, '
            '"sampling_prob": 0.5}}',
            "written by",
        ),
    ],
)
def test_verify_refuses_other_files(text, words, tmp_path, capsys):
    path = tmp_path / "answer.json"
    path.write_text(text)
    assert main(["verify", str(path)]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert words in error


def test_compare(capsys):
    asked = ["compare", *RUN, "--other-noise-multiplier", "1.5", "--json", "-"]
    assert main(asked) == 0
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert found["verdict"] == "a dominates"
    assert found["runs"]["b"] == found["runs"]["a"] | {"noise_multiplier": 1.5}
    assert "a = DPSGD" in output.err


def test_compare_needs_another_run(capsys):
    assert main(["compare", *RUN]) == 2
    assert "--other-" in capsys.readouterr().err


def test_a_picture_says_of_which_run_it_is(tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr(plot, "save", lambda *_, title: titles.append(title))
    path = str(tmp_path / "picture.png")
    assert main(["epsilon", *RUN, "--delta", "1e-5", "--plot", path]) == 0
    for words in (
        "noise multiplier 1,",
        "num steps 1000",
        "sampling prob 0.01",
        "1.82",
    ):
        assert words in titles[0]


def test_a_closed_pipe_is_quiet():
    command = [sys.executable, "-m", "fdp_jax.cli", "completion", "bash"]
    if importlib.util.find_spec("shtab") is None:
        command = [sys.executable, "-m", "fdp_jax.cli", "epsilon", *RUN]
        command += ["--delta", "2", "--json", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        error = process.stderr.read()
    assert "Broken" not in error
    assert "Traceback" not in error
    assert process.returncode in (2, 141)


@pytest.mark.skipif(
    importlib.util.find_spec("shtab") is not None, reason="shtab is installed"
)
def test_completions_name_what_they_need(capsys):
    assert main(["completion", "bash"]) == 2
    assert "fdp-jax[completion]" in capsys.readouterr().err


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


def test_demo_without_matplotlib_has_no_picture(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fdp_jax.cli._demo.published_runs", lambda: _first(3))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["demo", "--output", str(tmp_path)]) == 0
    assert "No picture: it needs matplotlib" in capsys.readouterr().out
    assert [x.name for x in tmp_path.iterdir()] == ["report.json"]


def _first(count):
    return fdp.data.published_runs()[:count]


_AT_HALF = math.exp(-0.25)
# A question about a mechanism, and the answer: of Laplace noise delta(epsilon) is
# 1 - e^((epsilon - 1/b)/2) and the advantage 1 - e^(-1/(2b)); of k-ary randomized
# response the advantage is (e^epsilon - 1) / (e^epsilon + k - 1).
ANSWERS = {
    "epsilon --mechanism Laplace(2) --delta 1e-6": (
        *("epsilon <=", 0.5 + 2 * math.log1p(-1e-6)),
    ),
    "epsilon --mechanism Laplace --noise-multiplier 2 --delta 1e-6": (
        *("epsilon <=", 0.5 + 2 * math.log1p(-1e-6)),
    ),
    "delta --mechanism Laplace(2) --epsilon 0.1": ("delta <=", 1 - math.exp(-0.2)),
    "advantage --mechanism Laplace(2)": ("advantage <=", 1 - _AT_HALF),
    "bayes-error --mechanism Laplace(2) --prior 1/2": ("bayes_error >=", _AT_HALF / 2),
    "beta --mechanism Gaussian(2.0) --alpha 0.05": (
        *("beta >=", norm.cdf(norm.isf(0.05) - 0.5)),
    ),
    "tpr --mechanism fdp.Gaussian(noise_multiplier=4/2) --fpr 0.05": (
        *("tpr <=", norm.sf(norm.isf(0.05) - 0.5)),
    ),
    "advantage --mechanism KaryRandomizedResponse(1,num_categories=4)": (
        *("advantage <=", (math.e - 1) / (math.e + 3)),
    ),
    "calibrate --mechanism Laplace --epsilon 1 --delta 1e-6": (
        *("noise_multiplier =", 1 / (1 - 2 * math.log1p(-1e-6))),
    ),
    # Of randomized response (1 - d) e^x = d + e^epsilon.
    "calibrate --mechanism PureDP(9) --epsilon 1 --delta 1e-6 --solve-for epsilon0": (
        *("epsilon0 =", math.log((1e-6 + math.e) / (1 - 1e-6))),
    ),
}


@pytest.mark.parametrize("asked", ANSWERS)
def test_any_mechanism(asked, tmp_path, capsys):
    path = tmp_path / "answer.json"
    words, truth = ANSWERS[asked]
    assert main([*asked.split(), "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(words)
    found = float(printed.split()[2])
    below = words.endswith(">=") or words == "epsilon0 ="
    assert (found <= truth) if below else (found >= truth)
    assert found == pytest.approx(truth, rel=1e-8)
    # The file says which mechanism it is about, as `verify` reads it.
    document = json.loads(path.read_text())
    mechanism = _claims.run_in(document)
    text = asked.split()[2].removeprefix("fdp.")
    assert type(mechanism).__name__ == text.partition("(")[0]
    for claim in _claims.claims_of(document):
        bounds = mechanism.bounds(**claim.query)
        assert bounds.lower <= claim.value * (1 + 1e-12)
        assert bounds.upper >= claim.value * (1 - 1e-12)


@pytest.mark.parametrize(
    ("text", "mechanism"),
    [
        ("Laplace(2).repeat(3)", fdp.Laplace(2.0).repeat(3)),
        (
            "compose(Laplace(2), fdp.Gaussian(noise_multiplier=3))",
            fdp.compose(fdp.Laplace(2.0), fdp.Gaussian(3.0)),
        ),
        (
            "PoissonSubsampled(Gaussian(1), 256/60000).group(2)",
            fdp.PoissonSubsampled(fdp.Gaussian(1.0), 256 / 60000).group(2),
        ),
        (
            "MixtureOfGaussians(1, shifts=[0, 1], probs=(0.5, 0.5))",
            fdp.MixtureOfGaussians(1.0, shifts=[0.0, 1.0], probs=[0.5, 0.5]),
        ),
        (
            "SelectBest(Laplace(inf), repetitions=selection.Poisson(mean=3))",
            fdp.SelectBest(
                fdp.Laplace(math.inf), repetitions=fdp.selection.Poisson(mean=3.0)
            ),
        ),
        (
            "AboveThreshold.with_gaussian_noise(8, num_queries=100).repeat(1)",
            fdp.AboveThreshold.with_gaussian_noise(8.0, num_queries=100).repeat(1),
        ),
        (
            "Laplace.for_sensitivity("
            "Sensitivity(2, norm='l1', relation=ZERO_OUT), scale=4)",
            fdp.Laplace(2.0, relation="zero_out"),
        ),
        (
            "compose(MatrixMechanism.tree(6, num_steps=8), Gaussian(2))",
            fdp.compose(fdp.MatrixMechanism.tree(6.0, num_steps=8), fdp.Gaussian(2.0)),
        ),
    ],
)
def test_mechanisms_are_read_as_they_are_written(text, mechanism):
    assert repr(mechanism_in(text)) == repr(mechanism)


def test_all_ways_to_make_a_mechanism_can_be_written():
    """But for those that check nothing, or are the package's own."""
    made = {
        name
        for kind in vars(mechanisms).values()
        for base in (kind.__mro__ if isinstance(kind, type) else ())
        for name, value in vars(base).items()
        if isinstance(value, classmethod | staticmethod)
        and base.__module__.startswith("fdp_jax")
        and not name.startswith("_")
    }
    assert made - {"together", "unchecked"} == set(_CONSTRUCTORS)


def test_what_is_printed_is_read():
    scheme = fdp.sampling.FixedSize(batch_size=2, dataset_size=7)
    run = {"noise_multiplier": 0.1 + 0.2, "num_steps": 3, "relation": "replace_one"}
    alone = fdp.Gaussian(1 / 3, relation="replace_one")
    mechanism = fdp.compose(fdp.DPSGD(sampling=scheme, **run), alone)
    fields = fdp.KaryRandomizedResponse(1 / 3, num_categories=3)
    pure = fdp.ApproxDP(epsilon=0.1, delta=1e-7, relation="zero_out")
    for one in (mechanism, mechanism.repeat(2), alone.group(2), fields, pure):
        again = mechanism_in(repr(one))
        assert repr(again) == repr(one)
        assert again.relation is one.relation


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "name of one, or a call such as"),
        ("Laplac", "did you mean Laplace"),
        ("Foo", "there are AboveThreshold"),
        ("Laplace(2", "a call such as"),
        ("3", "a call such as"),
        ("Laplace(1/0)", "a call such as"),
        ("Laplace(2**3)", "a call such as"),
        ("Laplace(scale=2)", "mean noise_multiplier"),
        ("Laplace(-2)", "positive number, got -2"),
        ("Laplace(2).loss()", "may be followed by .group(...) and .repeat(...)"),
        ("__import__('os').repeat(3)", "name of one, got '__import__'"),
        ("SelectBest(FixedSize(relation=ZERO_OUT))", "nothing to FixedSize"),
        ("Laplace.unchecked(noise_multiplier=2)", "name of one, got 'unchecked'"),
        ("compose.tree(2)", "has no attribute 'tree'"),
        ("Laplace.__init__(2)", "name of one, got '__init__'"),
        ("().__class__", "a call such as"),
        ("Poisson(0.1).repeat(2)", "has no attribute 'repeat'"),
        ("Laplace(2)(3)", "callable"),
        ("Laplace([2, 'a'])", "noise_multiplier"),
        ("(" * 300, "a call such as"),
    ],
)
def test_other_texts_are_no_mechanisms(text, words, capsys):
    assert main(["advantage", "--mechanism", text]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.strip().splitlines()) == 1
    assert words in output.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--mechanism Laplace --num-steps 3", "no argument 'num_steps'"),
        ("--mechanism Laplace(2) --num-steps 3", "--num-steps means nothing beside"),
        ("--mechanism Laplace", "noise_multiplier of Laplace is not set"),
        ("--num-steps 3", "--noise-multiplier must be given, or a --mechanism"),
    ],
)
def test_descriptions_that_do_not_fit_are_one_line(arguments, words, capsys):
    assert main(["advantage", *arguments.split()]) == 2
    output = capsys.readouterr()
    assert len(output.err.strip().splitlines()) == 1
    assert words in output.err


def test_too_deep_a_call_is_one_line(capsys, monkeypatch):
    def without_end():
        return without_end()

    # (CPython 3.13.0 crashes where what calls itself takes any number of arguments.)
    monkeypatch.setattr(_answers, "run_of", lambda *_: without_end())
    assert main(["advantage", "--mechanism", "Laplace(2)"]) == 2
    assert capsys.readouterr().err.startswith("fdp-jax advantage: error: maximum rec")


def test_the_names_that_are_listed_are_public_mechanisms(capsys):
    assert main(["advantage", "--mechanism", "Foo"]) == 2
    _, _, listed = capsys.readouterr().err.partition("there are ")
    names = listed.strip().split(", ")
    assert {"Laplace", "DPSGD", "SelectBest", "ZCDP"} <= set(names) <= set(dir(fdp))
    for name in names:
        assert issubclass(getattr(fdp, name), fdp.AbstractGuarantee)


def test_mechanisms_of_two_kinds_are_compared(capsys):
    both = ["--mechanism", "Laplace(2)", "--other-mechanism", "Laplace(3)"]
    assert main(["compare", *both, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "a dominates"  # less noise
    assert found["runs"]["b"] == {"mechanism": "Laplace(3)"}


def test_warm_asks_the_usual_questions(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FDP_JAX_CACHE", str(tmp_path))
    assert main(["warm", "--kinds", "laplace"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"kept in {tmp_path}"
    monkeypatch.setenv("FDP_JAX_CACHE", "off")
    assert main(["warm", "--kinds", "laplace"]) == 2
    assert "FDP_JAX_CACHE is off" in capsys.readouterr().err
    assert set(_options.WARM) == set(_warm._KINDS)


@pytest.mark.slow
def test_after_warm_nothing_is_compiled(tmp_path):
    environment = os.environ | {"FDP_JAX_CACHE": str(tmp_path)}
    program = [sys.executable, "-m", "fdp_jax.cli"]
    run = lambda *words: subprocess.run([*program, *words], env=environment, check=True)
    run("warm", "--kinds", "laplace")
    before = sorted(tmp_path.iterdir())
    assert before
    run("epsilon", "--mechanism", "Laplace(3)", "--delta", "1e-6")
    run("tpr", "--mechanism", "Laplace(3)", "--fpr", "0.01")
    assert sorted(tmp_path.iterdir()) == before


def test_runs_as_a_program():
    command = [sys.executable, "-m", "fdp_jax.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fdp-jax ")


SCHEMES = {
    "fixed-size --batch-size 100 --dataset-size 10000 --relation replace-one": (
        "epsilon <= 14.82"
    ),
    "with-replacement --batch-size 100 --dataset-size 10000 --relation replace-one": (
        "epsilon <= 18.16"
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
