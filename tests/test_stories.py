"""What users do in a sitting: the scripts of docs/stories, beside what is known."""

import json
import math
import pathlib
import re
import runpy

import dp_accounting
import jax
import numpy as np
import pytest
from scipy import stats

import fdp_jax as fdp

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = {path.stem: path for path in (ROOT / "docs" / "stories").glob("*.py")}
PAGE = (ROOT / "docs" / "stories.md").read_text(encoding="utf-8")
# DP-SGD with noise 1, sampling probability 0.01 and 1000 steps.
KNOWN = {
    (entry["kind"], entry.get("delta") or entry.get("eps") or entry["alpha"]): float(
        entry["value"]
    )
    for entry in json.loads((ROOT / "tests/data/dpsgd_truth.json").read_text())[
        "entries"
    ]
    if entry["config"] == "std_s1_q1e-2_n1e3" and entry["direction"] != "add"
}


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """Runs a script in an empty folder and compares what it prints; its names."""
    monkeypatch.chdir(tmp_path)

    def tell(name):
        names = runpy.run_path(str(SCRIPTS[name]), run_name="__main__")
        # What the page leaves out stands there as dots.
        parts = [re.escape(x.strip()) for x in _shown(name).split("...")]
        printed = capsys.readouterr().out.strip()
        assert re.fullmatch(".*".join(parts), printed, re.DOTALL), printed
        return names

    return tell


def _shown(name):
    """What the page says that a script prints."""
    code = f"```python\n{SCRIPTS[name].read_text(encoding='utf-8')}```\n"
    return PAGE.partition(code)[2].partition("```text\n")[2].partition("```")[0]


def _peer_epsilon(*runs, delta=1e-5):
    """By dp-accounting, of (noise multiplier, sampling probability, steps)."""
    accountant = dp_accounting.pld.PLDAccountant()
    for noise, prob, steps in runs:
        event = dp_accounting.GaussianDpEvent(float(noise))
        event = dp_accounting.PoissonSampledDpEvent(float(prob), event)
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, int(steps)))
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_page_shows_the_scripts_which_are_short(name):
    text = SCRIPTS[name].read_text(encoding="utf-8")
    assert f"(stories/{name}.py)\n\n```python\n{text}```\n" in PAGE
    assert _shown(name).strip()
    code = text.split('"""', 2)[2].splitlines()
    assert sum(bool(x.strip()) and not x.startswith("#") for x in code) <= 15


def test_there_are_ten_of_them_and_a_test_of_each():
    assert len(SCRIPTS) == 10
    assert PAGE.count("```python\n") == 10
    text = pathlib.Path(__file__).read_text(encoding="utf-8")
    assert {name for name in SCRIPTS if f'told("{name}")' in text} == SCRIPTS.keys()


def test_noise_is_calibrated_within_a_script_in_float32(told):
    with jax.enable_x64(False):
        names = told("calibrate_in_training_script")
        noise, parameters = names["noise"], np.zeros(3, np.float32)
        state = names["optimizer"].init(parameters)
        updates, _ = names["optimizer"].update(np.ones((8, 3)), state)
        assert np.all(np.isfinite(updates))
        assert names["found"].mechanism.epsilon(delta=1e-5) <= 1.0
    peer = _peer_epsilon((noise, 256 / 60_000, 3_500))
    assert peer == pytest.approx(1.0, rel=1e-3)


def test_an_account_is_kept_while_batches_and_noise_change(told):
    names = told("account_while_training")
    first, second = (1.2, 0.01, 300), (1.0, 0.02, 300)
    epsilon = names["accountant"].epsilon(delta=1e-5)
    assert epsilon == pytest.approx(_peer_epsilon(first, second), rel=1e-3)
    again, step = names["resumed"], names["step"]
    assert again.epsilon(delta=1e-5) == epsilon
    assert again.step(step).epsilon(delta=1e-5) > epsilon
    left = int(names["left"])
    for more, within in ((-1, True), (3, False)):  # dp-accounting rounds, too
        total = _peer_epsilon(first, (1.0, 0.02, 300 + left + more))
        assert (total <= 3.0) == within


def test_a_trade_off_curve_is_drawn_with_what_attackers_reach(told):
    curve = told("draw_tradeoff_curve")["curve"]
    assert pathlib.Path("tradeoff.pdf").read_bytes().startswith(b"%PDF")
    epsilon, advantage = KNOWN["eps", "1e-5"], KNOWN["delta", "0"]
    assert 0 <= curve.epsilon(delta=1e-5) / epsilon - 1 < 5.5e-4
    assert 0 <= curve.tpr(fpr=1e-3) / (1 - KNOWN["beta", "0.001"]) - 1 < 1e-3
    assert 0 <= curve.advantage() / advantage - 1 < 1e-4
    assert curve.bayes_error(prior=0.5) == pytest.approx((1 - advantage) / 2, rel=1e-4)


def test_a_noise_schedule_is_learned(told):
    """sum w s^2 is least, subject to sum s^-2 fixed, at s ~ w^(-1/4)."""
    names = told("learn_noise_schedule")
    found = np.asarray(names["noise"](names["z"]))
    shares = found * np.asarray(names["weights"]) ** 0.25
    np.testing.assert_allclose(shares, shares[0], rtol=1e-5)
    # Balle and Wang (2018), Theorem 8.
    mu = math.sqrt(np.sum(found**-2))
    delta = stats.norm.cdf(mu / 2 - 1 / mu) - math.e * stats.norm.cdf(-mu / 2 - 1 / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.slow  # gradients of calibrated noise are tested in tests/calibration
def test_batch_size_and_steps_are_chosen_by_gradient(told):
    names = told("choose_batch_size")
    batch = float(np.exp(names["z"]))
    noise = float(names["noise"](batch))

    def peer(batch, noise):
        steps = names["examples"] / batch
        return _peer_epsilon((noise, batch / names["records"], math.floor(steps)))

    assert peer(batch, noise) == pytest.approx(3.0, rel=2e-3)
    # With another batch size, what costs the same does not meet the target.
    cost = batch / names["examples"] + 10 * (noise / batch) ** 2
    for other in (0.75 * batch, 1.35 * batch):
        afforded = other * math.sqrt((cost - other / names["examples"]) / 10)
        assert peer(other, afforded) > 3.01


def test_configurations_are_swept(told):
    found = told("sweep_for_pareto_front")["found"]
    rows = [found[x] for x in ("noise_multiplier", "sampling_prob", "num_steps")]
    theirs = [_peer_epsilon(row) for row in zip(*rows, strict=True)]
    np.testing.assert_allclose(found["epsilon"], theirs, rtol=1e-3)
    assert pathlib.Path("front.pdf").read_bytes().startswith(b"%PDF")
    assert len(fdp.sweeps.load("sweep")) == 6


@pytest.mark.slow  # docs/comparing.md has the same runs
def test_two_published_runs_are_compared(told):
    names = told("compare_published_runs")
    # At prior 1/2 the Bayes error is half of what delta(0) leaves.
    excess = []
    for run in (names["other"], names["one"]):
        noise, prob, steps = run.noise_multiplier, run.sampling_prob, run.num_steps
        accountant = dp_accounting.pld.PLDAccountant()
        event = dp_accounting.GaussianDpEvent(float(noise))
        event = dp_accounting.PoissonSampledDpEvent(float(prob), event)
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, int(steps)))
        excess.append(accountant.get_delta(0.0) / 2)
    found = names["found"]
    assert float(found.prior) == pytest.approx(0.5, abs=1e-3)
    assert float(found.value.upper) == pytest.approx(excess[0] - excess[1], rel=2e-3)
    assert names["comparison"].verdict == "b dominates"  # is nowhere more private


def test_a_proportion_is_released(told):
    """The p-value is P(Binomial(n, 1/2) + N >= z), N of Tulap's law."""
    found = told("release_proportion")["found"]
    (released,) = found.released
    count = np.arange(101)
    # N is a difference of geometric variables plus a uniform one on (-1/2, 1/2).
    whole = np.arange(-400, 401)
    base = math.exp(-1)
    masses = (1 - base) / (1 + base) * base ** np.abs(whole)
    reach = np.asarray(released) - count[:, None] - whole
    above = np.clip(0.5 - reach, 0, 1) @ masses
    truth = stats.binom.pmf(count, 100, 0.5) @ above
    assert float(found.p_value) == pytest.approx(truth, rel=1e-9)


def test_canaries_give_a_lower_bound_beside_the_curve(told):
    names = told("audit_with_canaries")
    # Clopper and Pearson, with half of the level for each rate.
    tpr = stats.beta.ppf(0.025, 400, 601)
    fpr = stats.beta.ppf(0.975, 251, 750)
    # The other order of the two hypotheses proves less here.
    assert -1e-7 < names["shown"] / math.log((tpr - 1e-5) / fpr) - 1 <= 1e-12
    assert 0 <= names["curve"].epsilon(delta=1e-5) / KNOWN["eps", "1e-5"] - 1 < 5.5e-4
    assert pathlib.Path("audit.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow  # test_cli.py has reports, and verifies other answers
def test_a_report_is_verified(told):
    assert told("report_and_verify")["status"] == 0
    report = json.loads(pathlib.Path("report.json").read_text())
    truth, interval = KNOWN["eps", "1e-5"], report["epsilon"]
    assert interval["lower"] <= truth <= interval["upper"]
