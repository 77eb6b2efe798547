"""Numbers from other libraries' test suites, each rechecked independently of them.

`tests/data/peer_vectors.json` says with every number how far it is to be trusted: its
tolerance, whether it is a truth or an upper bound ("pessimistic grid"), and the value
that an independent recheck by integration, summation or closed form gave.  Where there
is such a recheck, it is what we compare with, to all of its digits.

Programs are shared: noise that is not subsampled counts as subsampled with probability
1, mixtures are padded with parts of probability 0, and one loop asks for all entries of
one structure.

Not tested here: Renyi, zero-concentrated and Gaussian DP (`*rdp*`, `*zcdp*`, `gdp_*`),
confidence intervals and the Tulap distribution function (`dp_ci*`, `tulap_cdf`), other
libraries' own error models (`*_prv`, `*_clt`), and truncated Poisson sampling, which is
not in the catalogue.
"""

import math
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import peer_vectors

import fdp_jax as fdp
from fdp_jax import Bound

REPLACE_ONE = fdp.NeighboringRelation.REPLACE_ONE
PRINTED = 2e-11
"""Of the rechecks: 12 significant digits of numbers up to 1, and as much again."""


# ------------------------------------------------------------------- from params to us


def _release(params: dict, scale: str, *, noise: float | None = None):
    """One release under the entry's relation; `noise` replaces the scale named."""
    kind, adjacency = params["mechanism"], params.get("adjacency", "remove")
    prob, moved = params.get("sampling_prob", 1.0), params["sensitivity"]
    noise = params[scale] if noise is None else noise
    if kind == "gaussian":
        if adjacency == "replace_one":
            return _gaussian_replaced(noise, moved, prob)
        inner = fdp.Gaussian(noise / moved)
    elif kind == "laplace":
        inner = fdp.Laplace(noise / moved)
    elif kind == "discrete_laplace":
        inner = fdp.DiscreteLaplace(1 / noise, sensitivity=moved)
    else:
        assert kind == "discrete_gaussian"
        most = params.get("truncation_bound")
        inner = fdp.DiscreteGaussian(noise, sensitivity=moved, truncation=most)
    discrete = kind.startswith("discrete")
    return inner if prob == 1 and not discrete else fdp.PoissonSubsampled(inner, prob)


def _gaussian_replaced(noise: float, clipping_norm: float, prob: float):
    if prob == 1:
        moved = fdp.Sensitivity.of_clipped_sum(
            clipping_norm, norm="l2", relation=REPLACE_ONE
        )
        return fdp.Gaussian.for_sensitivity(moved, scale=noise)
    return fdp.DPSGD(
        noise_multiplier=noise / clipping_norm,
        sampling_prob=prob,
        num_steps=1,
        relation=REPLACE_ONE,
    )


def _mixture(params: dict):
    shifts, probs = params["sensitivities"], params["sampling_probs"]
    idle = [0.0] * (3 - len(shifts))
    return fdp.MixtureOfGaussians(
        params["standard_deviation"], shifts=shifts + idle, probs=probs + idle
    )


def _side(mechanism, params: dict):
    adjacency = params.get("adjacency", "both")
    return (
        getattr(mechanism, adjacency) if adjacency in ("remove", "add") else mechanism
    )


def _dpsgd(params: dict, **changes):
    p = {"noise_multiplier": 1.0, "sampling_prob": 1.0, **params, **changes}
    return fdp.DPSGD(
        noise_multiplier=p["noise_multiplier"],
        sampling_prob=p["sampling_prob"],
        num_steps=p["compositions"],
    )


# -------------------------------------------------------------------------- comparison

_RECHECK = re.compile(r"rechecked ok: ([-+.0-9e]+) by (direct|closed form|root of)")


def _rechecked(entry: dict) -> float | None:
    found = _RECHECK.search(entry["note"])
    return float(found[1]) if found else None


def _agree(bounds, entry: dict) -> None:
    """Inside the bracket, and the estimate as near as the number is known."""
    truth, slack = _rechecked(entry), PRINTED
    if truth is None:
        truth, slack = entry["value"], entry["tolerance"]
    else:
        assert truth == pytest.approx(entry["value"], abs=entry["tolerance"])
    shown = entry["params"], truth, bounds
    assert bounds.lower <= bounds.estimate <= bounds.upper, shown
    assert bounds.lower - slack <= truth <= bounds.upper + slack, shown
    # One release on 2^17 points: cells are some 1.5e-4 wide, their squares 2e-8.
    assert abs(bounds.estimate - truth) <= slack + 2e-8 * truth, shown
    assert bounds.upper - bounds.lower <= 3e-8, shown


def _structures(entries: list[dict], *keys: str) -> list:
    """Groups of entries that one compiled program answers."""
    found: dict[str, list] = {}
    for entry in entries:
        p = entry["params"]
        sampled = "subsampled" if p.get("sampling_prob", 1) < 1 else "whole"
        parts = [p["mechanism"], p.get("adjacency", "both"), sampled]
        parts += [f"{key}={p[key]}" for key in keys if key in p]
        found.setdefault("-".join(parts), []).append(entry)
    assert found
    return [pytest.param(group, id=name) for name, group in found.items()]


def _delta_entries(*mechanisms: str) -> list[dict]:
    """Privacy profiles of one release by a single mechanism."""
    entries = peer_vectors("delta_of_epsilon", *mechanisms)
    return [e for e in entries if e["params"]["compositions"] == 1]


# ------------------------------------------------------------------- privacy profiles


@pytest.mark.parametrize("entries", _structures(_delta_entries("gaussian", "laplace")))
def test_profile_of_continuous_noise(entries):
    for entry in entries:
        p = entry["params"]
        scale = "standard_deviation" if p["mechanism"] == "gaussian" else "parameter"
        side = _side(_release(p, scale), p)
        _agree(side.bounds(epsilon=p["epsilon"]), entry)


DISCRETE = _structures(
    _delta_entries("discrete_laplace", "discrete_gaussian"), "sensitivity"
)
COMPILED = {
    "discrete_laplace": {("add", 4), ("remove", 4)},
    "discrete_gaussian": {("add", 1), ("remove", 3)},
}
"""Direction and sensitivity of the programs that are worth their compilation."""


@pytest.mark.parametrize("entries", DISCRETE)
def test_profile_of_discrete_noise(entries):
    for entry in entries:
        p = entry["params"]
        scale = "sigma" if "sigma" in p else "parameter"
        side = _side(_release(p, scale), p)
        truth = entry["value"], entry["tolerance"]
        found = _summed_delta(side, p["epsilon"])
        assert found == pytest.approx(_rechecked(entry), abs=PRINTED), p
        assert found == pytest.approx(truth[0], abs=truth[1]), p
        if (p["adjacency"], p["sensitivity"]) in COMPILED[p["mechanism"]]:
            _agree(side.bounds(epsilon=p["epsilon"]), entry)


def _summed_delta(side, epsilon: float) -> float:
    """delta of one discrete release: a sum over its losses, without an engine."""
    (loss,) = side.mechanism.loss().terms
    atoms = loss.atoms()
    x, p = np.asarray(atoms.loss), np.exp(np.asarray(atoms.log_mass))
    x = np.where(p > 0, x, 0)
    upper, lower = (math.exp(float(y)) for y in loss.log_infinite_masses())
    if side.direction == "remove":
        return upper + float(p @ np.maximum(np.exp(x) - math.exp(epsilon), 0))
    return lower + float(p @ np.maximum(1 - np.exp(epsilon + x), 0))


@pytest.mark.parametrize("entries", _structures(_delta_entries("mixture_of_gaussians")))
def test_profile_of_a_mixture_of_gaussians(entries):
    for entry in entries:
        p = entry["params"]
        _agree(_side(_mixture(p), p).bounds(epsilon=p["epsilon"]), entry)


def _only(quantity: str, mechanism: str, **known) -> list[dict]:
    found = [
        e
        for e in peer_vectors(quantity, mechanism)
        if all(e["params"].get(key) == value for key, value in known.items())
    ]
    assert found
    return found


def test_profile_of_three_gaussians():
    (entry,) = _only("delta_of_epsilon", "gaussian", compositions=3)
    run = fdp.Gaussian(math.sqrt(3)).repeat(3)
    _agree(run.bounds(epsilon=entry["params"]["epsilon"]), entry)


# Where one record is added or removed test_runs.py has the profile to more digits.
@pytest.mark.parametrize("adjacency", ["add_or_remove_one", "substitute"])
def test_profile_of_dpsgd(adjacency):
    for entry in _only(
        "delta_of_epsilon", "poisson_subsampled_gaussian", adjacency=adjacency
    ):
        p = entry["params"]
        run = _dpsgd(p)
        if adjacency == "substitute":
            run = fdp.DPSGD(
                noise_multiplier=p["noise_multiplier"],
                sampling_prob=p["sampling_prob"],
                num_steps=p["compositions"],
                relation=REPLACE_ONE,
            )
        found = run.delta(epsilon=p["epsilon"], bound=Bound.ESTIMATE)
        assert float(found) == pytest.approx(entry["value"], abs=entry["tolerance"])


def test_profile_of_a_noise_schedule():
    whole, shorter = peer_vectors(
        "delta_of_epsilon", "heterogeneous_poisson_subsampled_gaussian"
    )
    noises, probs = jnp.linspace(1.6, 1.8, 10), jnp.linspace(0.05, 0.06, 10)
    make = lambda s, q, n: fdp.DPSGD(noise_multiplier=s, sampling_prob=q, num_steps=n)
    for entry, last in ((whole, 10.0), (shorter, 0.0)):
        steps = jnp.full(10, 10.0).at[-1].set(last)
        run = fdp.Schedule(make, noises, probs, steps)
        found = float(run.delta(epsilon=1.0))
        # Not rechecked to more digits than the test of that library asks for.
        assert found == pytest.approx(entry["value"], abs=1e-9)


def test_profile_of_composed_black_boxes():
    (entry,) = peer_vectors("delta_of_epsilon", "eps_delta_composition")
    _agree(_black_boxes(entry["params"]).bounds(epsilon=3.0), entry)


def _black_boxes(params: dict):
    parts = params["parts"]
    return fdp.compose(*(fdp.ApproxDP(epsilon=e, delta=d) for e, d in parts))


# ---------------------------------------------------------------------------- epsilon


def test_epsilon_of_dpsgd():
    for entry in peer_vectors("epsilon_of_delta", "poisson_subsampled_gaussian"):
        p = entry["params"]
        if "dataset" in p:
            # Gradients of pairs of examples: the noise multiplier counts half.
            p = {
                "noise_multiplier": p["effective_noise_multiplier"],
                "sampling_prob": p["batch"] / p["dataset"],
                "compositions": p["epochs"] * p["dataset"] / p["batch"],
                "delta": p["delta"],
            }
        bounds = _dpsgd(p).remove.bounds(delta=p["delta"])
        shown = entry["params"], entry["value"], bounds
        slack = entry["tolerance"]
        assert abs(bounds.estimate - entry["value"]) <= slack, shown
        assert bounds.lower - slack <= entry["value"] <= bounds.upper + slack, shown
        assert bounds.upper - bounds.lower <= 1e-8, shown


def test_epsilon_between_whole_numbers_of_steps():
    (entry,) = peer_vectors("epsilon_of_delta_real_N", "poisson_subsampled_gaussian")
    p = entry["params"]
    found = _dpsgd(p).remove.epsilon(delta=p["delta"])
    assert float(found) == pytest.approx(entry["value"], abs=entry["tolerance"])


def test_epsilon_of_five_gaussians():
    (entry,) = peer_vectors("epsilon_of_delta", "gaussian")
    p = entry["params"]
    found = fdp.Gaussian(p["noise_multiplier"]).repeat(5).epsilon(delta=p["delta"])
    assert float(found) == pytest.approx(entry["value"], abs=entry["tolerance"])


@pytest.mark.parametrize("entry", peer_vectors("epsilon_of_delta_pld", None))
def test_epsilon_of_privacy_statements(entry):
    p = entry["params"]
    # Examples in pairs (microbatches) can move a sum by twice the clipping norm.
    noise = p["noise_multiplier"] / (2 if p["used_microbatching"] else 1)
    if p["sampling_prob"] is None:
        run = fdp.Gaussian(noise).repeat(math.ceil(p["num_epochs"]))
    else:
        steps = math.ceil(p["num_epochs"] / p["sampling_prob"])
        run = fdp.DPSGD(
            noise_multiplier=noise, sampling_prob=p["sampling_prob"], num_steps=steps
        )
    found = float(run.remove.epsilon(delta=p["delta"]))
    assert found == pytest.approx(entry["value"], abs=entry["tolerance"])


def test_pure_epsilon_of_subsampled_laplace():
    (entry,) = peer_vectors("epsilon_pure", "poisson_subsampled_laplace")
    p = entry["params"]
    step = fdp.PoissonSubsampled(fdp.Laplace(p["noise_multiplier"]), p["sampling_prob"])
    exact = 3 * math.log1p(0.2 * math.expm1(2))
    assert exact == pytest.approx(entry["value"], abs=entry["tolerance"])
    assert float(step.repeat(3).epsilon(delta=0.0)) == pytest.approx(exact, rel=1e-12)


def test_epsilon_of_composed_mixtures():
    entry, _ = peer_vectors("epsilon_of_delta", "heterogeneous")
    parts = entry["params"]["parts"]
    run = fdp.compose(*(_mixture(p).repeat(p["compositions"]) for p in parts))
    bounds = run.bounds(delta=entry["params"]["delta"])
    # An upper bound on a grid of 1e-4, which is about 1e-6 above the truth.
    assert float(bounds.estimate) == pytest.approx(entry["value"], abs=1e-5)
    assert bounds.lower <= entry["value"]


@pytest.mark.parametrize(
    "entry",
    peer_vectors("epsilon_of_delta_optimal_composition", "eps_delta_composition"),
)
def test_optimal_composition_of_black_boxes(entry):
    p = entry["params"]
    each = fdp.ApproxDP(epsilon=p["epsilon_each"], delta=p["delta_each"])
    run = each.repeat(p["compositions"])
    # The theorem offers every other multiple of epsilon: the least that will do.
    found = float(run.epsilon(delta=p["delta"]))
    assert entry["value"] - 2 * p["epsilon_each"] < found <= entry["value"]
    assert float(run.delta(epsilon=entry["value"])) <= p["delta"]


def test_advanced_composition_is_no_better():
    (entry,) = peer_vectors("epsilon_advanced_composition", None)
    p = entry["params"]
    run = fdp.PureDP(p["epsilon_each"]).repeat(p["compositions"])
    # The least of three theorems' bounds, each of which holds for every mechanism.
    found = float(run.epsilon(delta=p["slack"]))
    assert 0.5 * entry["value"] < found < entry["value"]


# ------------------------------------------------------------------------ error rates


def test_advantage_of_dpsgd():
    for entry in peer_vectors("advantage", "poisson_subsampled_gaussian"):
        found = _dpsgd(entry["params"]).remove.delta(epsilon=0.0)
        assert float(found) == pytest.approx(entry["value"], abs=entry["tolerance"])


def test_trade_off_function_of_dpsgd():
    for entry in peer_vectors("beta_of_alpha", "poisson_subsampled_gaussian"):
        p = entry["params"]
        bounds = _dpsgd(p).remove.bounds(alpha=p["alpha"])
        slack = entry["tolerance"]
        assert float(bounds.estimate) == pytest.approx(entry["value"], abs=slack)
        assert bounds.lower - slack <= entry["value"] <= bounds.upper + slack


def test_power_against_gaussian_noise():
    for entry in peer_vectors("tpr_at_fpr", "gaussian"):
        p = entry["params"]
        if p.get("compositions", 1) == 1:
            release = fdp.Gaussian(p["standard_deviation"] / p["sensitivity"])
        else:
            assert p["noise_multiplier"] == "sqrt(3)"
            release = fdp.Gaussian(math.sqrt(3)).repeat(3)
        found = float(release.tpr(fpr=p["fpr"]))
        truth = _rechecked(entry)
        assert truth == pytest.approx(entry["value"], abs=entry["tolerance"])
        assert found == pytest.approx(truth, rel=1e-10)  # digits of the recheck


def test_power_against_randomized_response():
    for entry in peer_vectors("tpr_at_fpr", "randomized_response"):
        p = entry["params"]
        k, lie = p["num_buckets"], p["noise_parameter"]
        report = fdp.KaryRandomizedResponse(
            math.log((k * (1 - lie) + lie) / lie), num_categories=k
        )
        if k == 2:
            report = fdp.RandomizedResponse(report.epsilon0)
        # Exact rational values, some of them at the kinks of the trade-off function.
        bounds = report.bounds(fpr=p["fpr"])
        assert float(bounds.estimate) == pytest.approx(entry["value"], abs=1e-11)
        assert float(bounds.upper) >= entry["value"] - 1e-14
        assert float(bounds.upper) <= entry["value"] + 1e-9


def test_power_against_composed_black_boxes():
    for entry in peer_vectors("tpr_at_fpr", "eps_delta_composition"):
        p = entry["params"]
        bounds = _black_boxes(p).bounds(fpr=p["fpr"])
        truth = float(entry["note"].rpartition("rechecked ok: ")[2].split()[0])
        assert truth == pytest.approx(entry["value"], abs=entry["tolerance"])
        assert float(bounds.estimate) == pytest.approx(truth, abs=PRINTED)
        assert bounds.upper >= truth - PRINTED


# ------------------------------------------------------------------------- calibration


def _brackets(side: Callable, entry: dict, value: float, tolerance: float) -> None:
    """The target lies between what a little more and a little less noise give."""
    target, epsilon = entry["params"]["delta"], entry["params"]["epsilon"]
    ends = [
        side(value + step).delta(epsilon=epsilon, bound=Bound.ESTIMATE)
        for step in (-tolerance, tolerance)
    ]
    low, high = sorted(map(float, ends))
    assert low <= target <= high, (entry, low, high)


@pytest.mark.parametrize(
    "entries", _structures(peer_vectors("calibrated_standard_deviation", "gaussian"))
)
def test_calibrated_gaussian_noise(entries):
    for entry in entries:
        p = entry["params"]
        side = lambda s, p=p: _side(_release(p, "", noise=s), p)
        _brackets(side, entry, entry["value"], entry["tolerance"])


def test_calibrated_discrete_gaussian_noise():
    for entry in peer_vectors("calibrated_sigma", "discrete_gaussian"):
        p, tolerance = entry["params"], entry["tolerance"]
        side = lambda s, p=p: _side(_release(p, "", noise=s), p)
        ends = [
            _summed_delta(side(entry["value"] + t), p["epsilon"])
            for t in (-tolerance, tolerance)
        ]
        assert min(ends) <= p["delta"] <= max(ends), (p, ends)


def test_calibrated_subsampled_discrete_gaussian_noise():
    for entry in peer_vectors("calibrated_sigma", "discrete_gaussian"):
        p = entry["params"]
        if (p["sensitivity"], p["adjacency"]) == (1, "remove"):
            side = lambda s, p=p: _side(_release(p, "", noise=s), p)
            _brackets(side, entry, entry["value"], entry["tolerance"])


def test_calibrated_pure_discrete_laplace_noise():
    for entry in peer_vectors("calibrated_parameter", "discrete_laplace"):
        p = entry["params"]
        if "sampling_prob" not in p:
            continue
        # That method ignores delta and the direction: it finds the noise of pure
        # epsilon-DP, for both.
        low, high = _release(p, "", noise=entry["value"]).loss().loss_range()
        assert max(-float(low), float(high)) == pytest.approx(p["epsilon"], abs=1e-7)


@pytest.mark.parametrize("sensitivity", [0.5, 1])
def test_calibrated_laplace_noise(sensitivity):
    for entry in peer_vectors("calibrated_parameter", "laplace"):
        p = entry["params"]
        if p["sensitivity"] != sensitivity:
            continue
        run = lambda s, p=p: fdp.Laplace(s / p["sensitivity"]).repeat(p["compositions"])
        _brackets(run, entry, entry["value"], entry["tolerance"])


def test_calibrated_discrete_laplace_noise():
    for entry in peer_vectors("calibrated_parameter", "discrete_laplace"):
        p = entry["params"]
        if "sampling_prob" in p or p["sensitivity"] not in (1, 5):
            continue
        run = lambda a, p=p: fdp.DiscreteLaplace(
            1 / a, sensitivity=p["sensitivity"]
        ).repeat(p["compositions"])
        _brackets(run, entry, entry["value"], entry["tolerance"])


def test_calibrated_dpsgd_noise():
    quantities = "calibrated_noise_multiplier", "calibrated_standard_deviation"
    for quantity in quantities:
        for entry in peer_vectors(quantity, "poisson_subsampled_gaussian"):
            p = entry["params"]
            moved = p.get("sensitivity", 1)
            side = lambda s, p=p, moved=moved: (
                _dpsgd(
                    p
                    | {"noise_multiplier": s / moved, "compositions": p["compositions"]}
                ).remove
            )
            _brackets(side, entry, entry["value"], entry["tolerance"])


# --------------------------------------------------------------------------- gradients

SLOPES = {
    "d_epsilon_d_noise_multiplier": 0,
    "d_epsilon_d_sampling_prob": 1,
    "d_epsilon_d_compositions": 2,
    "d_epsilon_d_log_delta": 3,
}


@pytest.mark.slow  # test_runs.py has it to more digits
def test_gradient_of_epsilon_of_dpsgd():
    def epsilon(noise, prob, steps, log_delta):
        run = fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=steps)
        return run.remove.epsilon(delta=jnp.exp(log_delta))

    slopes = jax.jit(jax.grad(epsilon, argnums=(0, 1, 2, 3)))
    for quantity, index in SLOPES.items():
        for entry in peer_vectors(quantity, "poisson_subsampled_gaussian"):
            p = entry["params"]
            found = slopes(
                p["noise_multiplier"],
                p["sampling_prob"],
                float(p["compositions"]),
                math.log(p["delta"]),
            )[index]
            assert float(found) == pytest.approx(entry["value"], abs=entry["tolerance"])
