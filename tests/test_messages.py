"""Wrong calls: one line that names the argument, the value and what is right."""

# What is wrong here a type checker would notice as well.
# pyright: reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import enum
import inspect
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fdp_jax as fdp
from fdp_jax._internal import _checks
from fdp_jax._internal._calls import explained
from fdp_jax.montecarlo._read import _nonnegative

RUN = {"noise_multiplier": 1.0, "sampling_prob": 0.1, "num_steps": 2}
M = fdp.Laplace(1.0)
OPEN = fdp.DPSGD(sampling_prob=0.1, num_steps=2)
T = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5)
F = fdp.tradeoff.Gaussian(1.0)
NOISE = "noise_multiplier"


COUNTS = fdp.audit.Counts(
    true_positives=9, false_negatives=1, false_positives=1, true_negatives=9
)
PLAN = fdp.training.Plan(fdp.DPSGD(**RUN), num_records=10, clipping=1.0)
TRAINER = fdp.training.Trainer(PLAN, lambda model, example: 0.0, optax.sgd(1.0))


def _run(**changes):
    return fdp.DPSGD(**RUN | changes)


# What is called, and words that the message must hold.
TABLE = {
    # Numbers beyond all floats, some of which Python does not even print.
    "huge group": (lambda: M.group(10**400), "size must be in [1, 64], got 1000000"),
    "vast group": (lambda: M.group(10**5000), "size must be in", "of 16610 bits"),
    "vast noise": (lambda: fdp.Gaussian(10**5000), "noise_multiplier", "16610 bits"),
    "vast delta": (lambda: M.epsilon(delta=10**5000), "delta must", "16610 bits"),
    "float size": (lambda: M.group(np.float32(2)), "Python integer, got 2.0"),
    # Names of peers, of papers, and misspelt ones.
    "sigma": (lambda: fdp.DPSGD(sigma=1.0), "'sigma'", "did you mean noise_multiplier"),
    "sample_rate": (lambda: fdp.DPSGD(sample_rate=0.1), "mean sampling_prob"),
    "steps": (lambda: fdp.DPSGD(steps=3), "mean num_steps"),
    "q": (lambda: fdp.DPSGD(q=0.1), "'q'", "mean sampling_prob"),
    "noise_multipler": (lambda: fdp.DPSGD(noise_multipler=1), "mean noise_multiplier"),
    "num_step": (lambda: fdp.DPSGD(num_step=1), "mean num_steps"),
    "relatoin": (lambda: fdp.DPSGD(relatoin="zero_out"), "mean relation"),
    "nonsense": (lambda: fdp.DPSGD(learning_rate=1.0), "no argument 'learning_rate'"),
    "laplace sensitivity": (lambda: fdp.Laplace(scale=1.0), "mean noise_multiplier"),
    "gaussian std": (lambda: fdp.Gaussian(stddev=1.0), "mean noise_multiplier"),
    "approx eps": (lambda: fdp.ApproxDP(eps=1.0, delta=0.0), "mean epsilon"),
    "target eps": (lambda: fdp.targets.ApproxDP(eps=1, delta=0.1), "mean epsilon"),
    "target_delta": (lambda: M.epsilon(target_delta=1e-5), "epsilon", "mean delta"),
    "target_epsilon": (lambda: M.delta(target_epsilon=1.0), "mean epsilon"),
    "eps": (lambda: M.delta(eps=1.0), "'eps'", "mean epsilon"),
    "fpr for alpha": (lambda: M.beta(fpr=0.1), "mean alpha"),
    "alpha for fpr": (lambda: M.tpr(alpha=0.1), "mean fpr"),
    "prior misspelt": (lambda: M.bayes_error(pior=0.5), "mean prior"),
    "bounds of eps": (lambda: M.bounds(eps=1.0), "epsilon="),
    "bounds of target_delta": (lambda: M.bounds(target_delta=0.1), "delta="),
    "solve": (lambda: fdp.calibrate(OPEN, T, solve=NOISE), "mean solve_for"),
    "parameter": (lambda: fdp.calibrate(OPEN, T, parameter=NOISE), "mean solve_for"),
    "wole": (lambda: fdp.calibrate(OPEN, T, solve_for=NOISE, wole=1), "mean whole"),
    "fixed size q": (lambda: fdp.sampling.FixedSize(lot_size=3), "mean batch_size"),
    "poisson q": (lambda: fdp.sampling.Poisson(sample_rate=0.1), "mean prob"),
    "capacity": (lambda: fdp.Accountant(capasity=3), "mean capacity"),
    "gaussian mu": (lambda: fdp.tradeoff.Gaussian(mju=1.0), "mean mu"),
    # Attributes.
    "get_epsilon": (lambda: M.get_epsilon(1e-5), "'get_epsilon'", "mean epsilon"),
    "get_privacy_spent": (lambda: M.get_privacy_spent(delta=1e-5), "mean epsilon"),
    "epsilons": (lambda: M.epsilons, "mean epsilon"),
    "with_": (lambda: M.with_(noise_multiplier=2.0), "dataclasses.replace"),
    "replace": (lambda: M.replace(noise_multiplier=2.0), "dataclasses.replace"),
    "compose method": (lambda: M.compose(M), "fdp_jax.compose"),
    "self_compose": (lambda: M.self_compose(3), "mean repeat"),
    "rate_of_tpr": (lambda: M.rate_of_tpr(0.1), "mean tpr"),
    "sigma attribute": (lambda: M.sigma, "mean noise_multiplier"),
    "bounds attribute": (lambda: M.bounds(delta=0.1).lowr, "mean lower"),
    "target attribute": (lambda: T.eps, "targets.ApproxDP", "mean epsilon"),
    "module name": (lambda: fdp.GaussianMechanism, "mean Gaussian"),
    "module dpsgd": (lambda: fdp.Dpsgd, "mean DPSGD"),
    "module calibrat": (lambda: fdp.calibrat, "mean calibrate"),
    "module renyi": (lambda: fdp.renyi_dp, "fdp_jax.divergences.renyi_dp"),
    "module advantage": (lambda: fdp.Advantage, "fdp_jax.targets.Advantage"),
    # Positions.
    "by position": (lambda: fdp.DPSGD(1.0, 0.1, 2), "by name", "noise_multiplier="),
    "epsilon position": (lambda: M.epsilon(1e-5), "by name", "epsilon(delta=...)"),
    "delta position": (lambda: M.delta(1.0), "by name", "delta(epsilon=...)"),
    "beta position": (lambda: M.beta(0.1), "by name", "beta(alpha=...)"),
    "tpr position": (lambda: M.tpr(0.1), "by name", "tpr(fpr=...)"),
    "bayes position": (lambda: M.bayes_error(0.5), "by name", "bayes_error(prior=...)"),
    "bounds position": (lambda: M.bounds(1e-5), "bounds", "by name"),
    "target position": (lambda: fdp.targets.ApproxDP(1.0, 1e-5), "by name", "epsilon="),
    "rates position": (lambda: fdp.targets.ErrorRates(0.1, 0.5), "by name", "alpha="),
    "solve_for position": (lambda: fdp.calibrate(OPEN, T, NOISE), "solve_for=..."),
    "gaussian two": (lambda: fdp.Gaussian(1.0, 2.0), "Gaussian", "noise_multiplier"),
    "subsampled three": (lambda: fdp.PoissonSubsampled(M, 0.1, 3), "mechanism"),
    # Missing ones.
    "epsilon without": (lambda: M.epsilon(), "needs delta", "epsilon(delta=...)"),
    "delta without": (lambda: M.delta(), "needs epsilon"),
    "bounds without": (lambda: M.bounds(), "delta="),
    "bounds with two": (lambda: M.bounds(delta=0.1, alpha=0.1), "exactly one"),
    "no solve_for": (lambda: fdp.calibrate(OPEN, T), "needs solve_for"),
    "no target": (lambda: fdp.calibrate(OPEN, solve_for=NOISE), "needs target"),
    "half a target": (lambda: fdp.targets.ApproxDP(epsilon=1.0), "needs delta"),
    "no categories": (lambda: fdp.KaryRandomizedResponse(1.0), "needs num_categories"),
    # Numbers out of range.
    "negative noise": (lambda: _run(noise_multiplier=-1.0), NOISE, "-1", "positive"),
    "zero noise": (
        lambda: _run(noise_multiplier=0.0), NOISE, "0.0", "positive", "epsilon is inf"
    ),
    "no noise": (lambda: fdp.Laplace(0), NOISE, "got 0:", "BlatantNonPrivacy()"),
    "a direction in an account": (
        lambda: fdp.Accountant().step(fdp.Gaussian(1.0).remove), "compose(one, other)"
    ),
    "nan noise": (lambda: _run(noise_multiplier=np.nan), NOISE, "nan", "positive"),
    "prob": (lambda: _run(sampling_prob=1.5), "sampling_prob", "1.5", "[0, 1]"),
    "negative steps": (lambda: _run(num_steps=-1), "num_steps", "-1", "at least 0"),
    "infinite steps": (lambda: _run(num_steps=np.inf), "num_steps", "inf", "finite"),
    "delta 2": (lambda: M.epsilon(delta=2.0), "delta", "2", "[0, 1]"),
    "delta nan": (lambda: M.epsilon(delta=np.nan), "delta", "nan", "[0, 1]"),
    "delta array": (lambda: M.epsilon(delta=[0.1, -0.2]), "delta", "-0.2", "[0, 1]"),
    "epsilon nan": (lambda: M.delta(epsilon=np.nan), "epsilon", "nan", "a number"),
    "alpha": (lambda: M.beta(alpha=-0.1), "alpha", "-0.1", "[0, 1]"),
    "prior": (lambda: M.bayes_error(prior=1.1), "prior", "1.1", "[0, 1]"),
    "target delta": (
        lambda: fdp.targets.ApproxDP(epsilon=1.0, delta=-1.0), "delta", "-1"
    ),
    "target epsilon": (
        lambda: fdp.targets.ApproxDP(epsilon=np.nan, delta=0.1), "epsilon", "nan"
    ),
    "advantage": (lambda: fdp.targets.Advantage(1.5), "advantage", "1.5"),
    "batch size": (
        lambda: fdp.sampling.FixedSize(batch_size=11, dataset_size=10), "batch_size"
    ),
    "categories": (
        lambda: fdp.KaryRandomizedResponse(1.0, num_categories=1), "num_categories", "1"
    ),
    "points": (lambda: M.using("grid", points=1000), "points", "1000", "power of two"),
    "num_points": (lambda: M.curve(num_points=3), "num_points", "3", "[8, 1048576]"),
    "group": (lambda: M.group(0), "size", "0", "[1, 64]"),
    "sensitivity": (
        lambda: fdp.Sensitivity(-1.0, norm="l2", relation="zero_out"), "-1"
    ),
    "half steps": (lambda: M.repeat(2.5), "num_steps", "2.5", "whole"),
    "probs": (
        lambda: fdp.MixtureOfGaussians(1.0, shifts=[0.0, 1.0], probs=[0.5, 0.6]),
        *("probs", "sum 1", "1.1"),
    ),
    "lengths": (
        lambda: fdp.MixtureOfGaussians(1.0, shifts=[0.0], probs=[0.5, 0.5]),
        *("shifts", "probs", "1 and 2"),
    ),
    # Things of another kind.
    "text noise": (lambda: _run(noise_multiplier="1"), NOISE, "'1'", "positive"),
    "no sensitivity": (
        lambda: fdp.canonical_noise(fdp.tradeoff.Gaussian(1.0), sensitivity=None),
        "sensitivity must be a finite positive number",
        "None",
    ),
    "no mu": (lambda: fdp.tradeoff.Laplace(None), "mu must be", "None"),
    "no share": (
        lambda: fdp.tradeoff.Subsampled(fdp.tradeoff.Gaussian(1.0), None),
        "sampling_prob",
        "None",
    ),
    "bare sensitivity": (
        lambda: fdp.Gaussian.for_sensitivity(2.0, scale=3.0),
        "sensitivity must be a Sensitivity",
        "got 2",
    ),
    "none delta": (lambda: M.epsilon(delta=None), "delta", "None"),
    "boolean noise": (lambda: _run(noise_multiplier=True), NOISE, "True"),
    "complex noise": (lambda: _run(noise_multiplier=1j), NOISE, "1j"),
    "array noise": (lambda: _run(noise_multiplier=[1.0, 2.0]), NOISE, "jax.vmap"),
    "array steps": (lambda: _run(num_steps=jnp.arange(3)), "num_steps", "jax.vmap"),
    "array laplace": (lambda: fdp.Laplace(np.ones(2)), NOISE, "jax.vmap"),
    "array target": (
        lambda: fdp.targets.ApproxDP(epsilon=np.ones(3), delta=0.1),
        *("epsilon", "jax.vmap"),
    ),
    "array mu": (lambda: fdp.tradeoff.Gaussian([1.0, 2.0]), "mu", "jax.vmap"),
    "relation": (
        lambda: _run(relation="replace"), "'replace'", "'replace_one'", "'zero_out'"
    ),
    "relation number": (lambda: _run(relation=1), "relation", "'replace_one'", "1"),
    "relation case": (lambda: _run(relation="Replace_One"), "'replace_one'"),
    "engine": (lambda: M.using("fft"), "method", "'fft'", "'grid'"),
    "bound": (lambda: M.epsilon(delta=0.1, bound="upper"), "bound", "'pessimistic'"),
    "sampling text": (lambda: fdp.DPSGD(sampling="poisson"), "sampling", "'poisson'"),
    "sampling twice": (
        lambda: _run(sampling=fdp.sampling.Poisson(0.1)), "sampling_prob", "left out"
    ),
    "class": (
        lambda: fdp.calibrate(fdp.DPSGD, T, solve_for=NOISE),
        *("class", "fdp_jax.DPSGD()"),
    ),
    "class composed": (lambda: fdp.compose(fdp.Laplace, M), "fdp_jax.Laplace()"),
    "class subsampled": (
        lambda: fdp.PoissonSubsampled(fdp.Laplace, 0.1), "fdp_jax.Laplace()"
    ),
    "class compared": (lambda: fdp.compare(fdp.Laplace, M), "fdp_jax.Laplace()"),
    "class target": (
        lambda: fdp.calibrate(OPEN, fdp.targets.ApproxDP, solve_for=NOISE),
        *("class", "fdp_jax.targets.ApproxDP("),
    ),
    "class sampling": (
        lambda: fdp.DPSGD(sampling=fdp.sampling.FixedSize), "sampling.FixedSize("
    ),
    "mechanism for a target": (
        lambda: fdp.calibrate(
            OPEN, fdp.ApproxDP(epsilon=1.0, delta=1e-5), solve_for=NOISE
        ),
        *("target", "got fdp_jax.ApproxDP(", "mean fdp_jax.targets.ApproxDP(epsilon="),
    ),
    "trade-off for a target": (
        lambda: fdp.calibrate(OPEN, F, solve_for=NOISE), "fdp_jax.targets.TradeOff("
    ),
    "tuple for a target": (
        lambda: fdp.calibrate(OPEN, (1.0, 1e-5), solve_for=NOISE),
        *("target", "fdp_jax.targets.ApproxDP(epsilon=..., delta=...)"),
    ),
    "number for a target": (
        lambda: fdp.calibrate(OPEN, 1.0, solve_for=NOISE), "target", "fdp_jax.targets"
    ),
    "target for a mechanism": (
        lambda: fdp.calibrate(T, OPEN, solve_for=NOISE),
        "calibrate takes the mechanism first, and then the target",
    ),
    "trade-off for a mechanism": (
        lambda: fdp.calibrate(F, T, solve_for=NOISE), "mechanism", "fdp_jax.Gaussian("
    ),
    "scale a tuple": (
        lambda: fdp.scale_to_budget(M, (1.0, 1e-5)), "target", "targets.ApproxDP("
    ),
    "direction for a mechanism": (
        lambda: fdp.compose(M, M.remove), "whole mechanism", "compose(one, other)."
    ),
    "number for a mechanism": (lambda: fdp.compose(M, 3), "mechanism", "3"),
    "unknown solve_for": (
        lambda: fdp.calibrate(OPEN, T, solve_for="sigma"),
        *("solve_for", "'sigma'", NOISE),
    ),
    # Arithmetic.
    "m + m": (lambda: M + M, "fdp_jax.compose"),
    "z + z": (lambda: fdp.ZCDP(0.1) + fdp.ZCDP(0.2), "fdp_jax.compose"),
    "sum": (lambda: sum([M, M]), "fdp_jax.compose"),
    "m * 3": (lambda: M * 3, "repeat(3)"),
    "3 * m": (lambda: 3 * M, "repeat(3)"),
    "m @ m": (lambda: M @ M, "fdp_jax.compose"),
    "list composed": (lambda: fdp.compose([M, M]), "compose(*"),
    "tuple composed": (lambda: fdp.compose((M, M)), "compose(*"),
    "nothing composed": (lambda: fdp.compose(), "compose", "at least one"),
    "two relations": (
        lambda: fdp.compose(M, fdp.Laplace(1.0, relation="replace_one")),
        *("relation", "REPLACE_ONE"),
    ),
    "schedule lengths": (
        lambda: fdp.Schedule(
            lambda s, q: fdp.PoissonSubsampled(fdp.Gaussian(s), q),
            *(jnp.ones(2), jnp.ones(3)),
        ),
        *("parameters[1]", "2 and 3"),
    ),
    # Parameters that are not set.
    "not set": (lambda: OPEN.epsilon(delta=0.1), NOISE, "not set", "solve_for="),
    "not set in a part": (
        lambda: fdp.compose(M, fdp.Gaussian()).epsilon(delta=0.1), NOISE, "not set"
    ),
    "account open": (lambda: fdp.Accountant().step(OPEN), NOISE, "not set"),
    # Objects of another kind, where what is given would be asked or called.
    "plot of a number": (
        lambda: fdp.plot.tradeoff(3), "source", "a mechanism", "such as", "got 3"
    ),
    "picture of a number": (lambda: fdp.plot.save(3, "x.png"), "source", "got 3"),
    "picture of one direction": (
        lambda: fdp.plot.profile(M.remove), "both directions", "plot.overlay"
    ),
    "axes": (lambda: fdp.plot.tradeoff(M, 3), "ax must be axes", "got 3"),
    "report of a number": (
        lambda: fdp.reports.privacy_report(3, delta=1e-5), "mechanism", "got 3"
    ),
    "group of a number": (lambda: fdp.limits.group_guarantee(3, 2), "f must be", "3"),
    "bracket of a number": (lambda: fdp.tradeoff.TradeOff.of(3), "guarantee", "got 3"),
    "left of a number": (
        lambda: fdp.Accountant().remaining(3, M), "target", "fdp_jax.targets", "got 3"
    ),
    "spent of a number": (lambda: fdp.Accountant().spent(3), "target", "got 3"),
    "a target is no claim": (
        lambda: fdp.audit.falsifies(T, COUNTS), "mean fdp_jax.ApproxDP(epsilon="
    ),
    "no evidence": (lambda: fdp.audit.falsifies(M, 3), "Counts, Scores or OneRun"),
    "schedule of a number": (lambda: fdp.Schedule(3, [1.0]), "step", "function"),
    "family": (
        lambda: fdp.design.minimize(len, 3, 1.0, T, solve_for=NOISE), "family", "got 3"
    ),
    "curve for a number": (lambda: fdp.tradeoff.Gaussian(M), "mu must", "fdp_jax.Lap"),
    "key": (lambda: fdp.canonical_noise(F).sample(0), "key", "jax.random", "got 0"),
    "monte carlo key": (lambda: fdp.monte_carlo(_run(), key=0), "key", "got 0"),
    "range": (
        lambda: fdp.calibrate(OPEN, T, solve_for=NOISE, within=3), "within", "(low,"
    ),
    "threshold": (
        lambda: fdp.audit.Scores([1.0], [0.0], threshold="best"),
        *("'best'", "'ranks'", "'dkw'", "a number", "Split"),
    ),
    "column": (
        lambda: fdp.sweep(
            fdp.DPSGD, {"noise": [1.0]}, queries={"epsilon": {"delta": 0.1}}
        ),
        *("['noise']", "mean noise_multiplier"),
    ),
    "no question": (lambda: PLAN.progress(), "exactly one", "delta=", "none"),
    "no state": (lambda: TRAINER.step(3, None), "state", "init", "got 3"),
    "optimizer": (
        lambda: fdp.training.Trainer(PLAN, lambda model, example: 0.0, 3),
        *("optax", "got 3"),
    ),
    "nothing to train": (
        lambda: TRAINER.init(jax.random.key(0), jnp.ones(2, int)),
        *("trainable", "floating-point"),
    ),
    "loss of a vector": (
        lambda: fdp.training.per_example_gradients(lambda w, x: w, *(jnp.ones(2),) * 2),
        *("loss", "one real number", "[2]"),
    ),
    "budget": (
        lambda: fdp.accounting.GaussianFilter(1.0).step(fdp.Gaussian(0.1)),
        *("budget", "100.0", "of 1"),
    ),
    # Targets out of reach, with the numbers that are in reach.
    "no delta": (
        lambda: fdp.calibrate(OPEN, fdp.targets.ApproxDP(epsilon=1.0, delta=0.0),
                              solve_for=NOISE),
        *("(1, 0)-DP", "delta must lie in"),
    ),
    "negative epsilon": (
        lambda: fdp.calibrate(OPEN, fdp.targets.ApproxDP(epsilon=-1.0, delta=1e-5),
                              solve_for=NOISE),
        *("(-1, 1e-05)-DP", "1 - e^epsilon"),
    ),
    # Names at the top that are asked of a mechanism, or are elsewhere.
    "module eps": (lambda: fdp.eps, "'eps'", "mechanism.epsilon(...)"),
    "module delta": (lambda: fdp.delta, "mechanism.delta(...)"),
    "module tpr": (lambda: fdp.tpr, "mechanism.tpr(...)"),
    "module get_epsilon": (lambda: fdp.get_epsilon, "mechanism.epsilon(...)"),
    "module noise": (lambda: fdp.get_noise_multiplier, "did you mean calibrate"),
    "step as of opacus": (
        lambda: fdp.Accountant().step(noise_multiplier=1.0, sample_rate=0.1),
        *("'noise_multiplier'", "step(fdp_jax.DPSGD("),
    ),
    "tp": (lambda: fdp.audit.Counts(tp=3), "mean true_positives"),
    "no threshold": (
        lambda: fdp.audit.Counts.from_scores([1.0], [0.0]), "needs threshold"
    ),
    "no epochs": (
        lambda: fdp.training.Plan.for_target(T, num_records=9, clipping=1.0),
        "needs num_epochs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_a_wrong_call_says_in_one_line_what_is_right(case):
    call, *words = TABLE[case]
    with pytest.raises((ValueError, TypeError, AttributeError)) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    assert len(message) < 300
    assert "object at 0x" not in message
    missing = [word for word in words if word not in message]
    assert not missing, message


def test_there_are_enough_of_them():
    assert len(TABLE) >= 165


@pytest.mark.parametrize("save", ["account", "training", "picture"])
@pytest.mark.parametrize(
    ("path", "words"),
    [("none/x.png", "no folder '{}/none'"), (".", "the folder"), (3, "got 3")],
)
def test_a_file_that_cannot_be_written_is_named_before_it_is_made(
    tmp_path, save, path, words
):
    calls = {
        "account": fdp.Accountant().save,
        "training": lambda path: TRAINER.save(
            path, TRAINER.init(jax.random.key(0), jnp.ones(2))
        ),
        "picture": lambda path: fdp.plot.save(M, path),
    }
    given = path if path == 3 else tmp_path / path
    with pytest.raises((OSError, TypeError)) as raised:
        calls[save](given)
    assert words.format(tmp_path) in str(raised.value)
    assert str(raised.value).startswith("path ")
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


# Public names that are not called by users, or whose calls are another library's.
_RESULTS = {
    *("Attack", "CanonicalCheck", "Comparison", "Interval"),
    *("Interval.of", "LossAtoms", "PostProcessing", "PrivacyReport", "PublishedRun"),
    "Receipt",
    *("Sweep", "TradeOffPoints", "Verdict", "accountant_class"),
    *("accountant_config_class", "checked", "native_float32"),
    *("opacus_accountant_class", "published_runs", "round_down", "round_up"),
}


def _public_callables():
    """Functions, classes and their class methods, by name."""
    own = lambda x: str(getattr(x, "__module__", "")).startswith("fdp_jax")
    rooms = [getattr(fdp, name) for name in fdp.__all__]
    for room in [fdp, *(x for x in rooms if isinstance(x, types.ModuleType))]:
        for name in dir(room):
            if name.startswith("_") or name == "FdpAccountant":
                continue  # the latter is made where dp_accounting is installed
            found = getattr(room, name)
            if callable(found) and own(found):
                yield name, found
            for part in dir(found) if isinstance(found, type) else ():
                is_own = isinstance(inspect.getattr_static(found, part), classmethod)
                if own(found) and is_own and not part.startswith("_"):
                    yield f"{name}.{part}", getattr(found, part)


def test_every_public_call_explains_a_name_that_it_does_not_know():
    poor = {}
    for name, found in _public_callables():
        kinds = enum.Enum, BaseException
        if inspect.isabstract(found) or name.endswith(".unchecked"):
            continue
        if isinstance(found, type) and issubclass(found, kinds):
            continue
        try:
            found(nonsense=1)
        except (TypeError, ValueError) as error:
            # Where all names are taken, what is missing is said.
            said = f"{error}"
            if "has no argument 'nonsense'" in said or " needs " in said:
                continue
            poor[name] = said
    poor.pop("Columns")  # takes all names, those of the columns
    assert poor.keys() == _RESULTS


# Calls that take numbers apart, and are made where these are traced.
OUTSIDE = {
    "privacy_report": lambda x: fdp.reports.privacy_report(fdp.Gaussian(x), delta=0.1),
    "receipt": lambda x: fdp.reports.privacy_report(fdp.Gaussian(1.0), delta=x),
    "tradeoff": lambda x: fdp.plot.tradeoff(fdp.Gaussian(x)),
    "compare": lambda x: fdp.plot.compare(fdp.Gaussian(x), fdp.Gaussian(2.0)),
    "Scores": lambda x: fdp.audit.Scores(x[None], x[None]),
    "remaining": lambda x: fdp.Accountant().remaining(
        fdp.targets.ApproxDP(epsilon=x, delta=1e-5), fdp.Gaussian(1.0)
    ),
    "sweep": lambda x: fdp.sweep(
        fdp.Gaussian, {"noise_multiplier": x}, queries={"epsilon": {"delta": 0.1}}
    ),
    "epochs": lambda x: fdp.training.Plan.for_target(
        T, num_records=32, batch_size=4, num_epochs=x, clipping=1.0
    ),
    "rate": lambda x: fdp.training.Plan.for_target(
        *(T,),
        num_records=32,
        sampling=fdp.sampling.Poisson(x),
        num_epochs=1,
        clipping=1.0,
    ),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_calls_that_need_known_numbers_say_so_in_one_line(case):
    with pytest.raises(TypeError) as caught:
        jax.jit(lambda x: OUTSIDE[case](x) and 0.0)(0.5)
    said = f"{caught.value}"
    assert said.endswith(" needs known numbers: call it outside of jit, vmap, grad")


def test_a_mistake_of_a_users_function_keeps_its_own_message():
    def asked(x, **row):
        return 1.0 if x > 0 else 2.0

    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(lambda x: fdp.divergences.f_divergence(fdp.Gaussian(x), asked))(1.0)


def _tulap():
    return fdp.canonical_noise(fdp.tradeoff.ApproxDP(epsilon=1.0, delta=0.0))


def _kernel(matrix):
    return fdp.experiments.MarkovKernel(matrix).matrix


# What is compiled, a number or array that it must refuse, and the end of the message.
TRACED = {
    "range": (fdp.Laplace, -2.5, "positive number, got -2.5"),
    "sum": (
        lambda x: fdp.MixtureOfGaussians(1.0, shifts=[0.0, 1.0], probs=x),
        *([0.5, 0.625], "sum 1 (to 1e-08), got a sum of 1.125"),
    ),
    "beside": (
        lambda x: _checks.beside(x, jnp.ones(2), lambda x, y, _: x > y, "x must be"),
        *([0.5, 1.5], "x must be, got 1.5"),
    ),
    "rows": (_kernel, [[0.5, 0.5], [0.5, 0.25]], "rows with sum 1, got a sum of 0.75"),
    "measures": (
        lambda x: fdp.limits.MeasureInterval(jnp.zeros(2), x),
        *([0.0, -2.5], "at most log_upper, got a log_upper of -2.5"),
    ),
    "no measure": (
        lambda x: fdp.limits.MeasureInterval(jnp.full(2, -jnp.inf), x).mean_bounds(
            jnp.ones(2)
        ),
        *([-np.inf, -np.inf], "has no mean, got at most -inf"),
    ),
    "vertices": (
        lambda x: fdp.tradeoff.PiecewiseLinear([0.0, 0.5, 1.0], x),
        *(
            [1.0, 0.625, 0.0],
            "beta = 0 at alpha = 1, got a wrong point with beta = 0.625",
        ),
    ),
    "records": (
        lambda x: fdp.inference.binomial_power(
            _tulap(),
            *(x, 0.5, 0.6),
            alpha=0.05,
        ),
        *(2.0**24, "where it is traced, got 16777216"),
    ),
    "jumps": (
        lambda x: fdp.LevyTriplet(jumps=[1.0, 699.0], rates=x),
        *([1.0, 8.0], "below e^700, got 8"),
    ),
    "monte carlo": (_nonnegative, [1.0, -0.5], "Monte Carlo accounting, got -0.5"),
    "filter": (
        lambda x: fdp.accounting.GaussianFilter(1.0).step(fdp.Gaussian(1.0), count=x),
        *(3.0, "ask fits() before, got count = 3"),
    ),
    "other noise": (
        lambda x: _tulap().made_for(x).sensitivity,
        *(2.0, "sensitivity must be that of the noise, got 2"),
    ),
    "trivial": (
        lambda x: fdp.canonical_noise(fdp.tradeoff.Gaussian(x)),
        *(0.0, "(f = Id), got mu = 0"),
    ),
}


@pytest.mark.parametrize("case", TRACED)
def test_a_compiled_program_says_which_number_it_refuses(case):
    make, value, words = TRACED[case]
    compiled = jax.jit(lambda x: jax.tree.leaves(make(x)))
    with pytest.raises(fdp.TracedValueError) as raised:
        fdp.checked(compiled)(jnp.asarray(value))
    message = str(raised.value)
    assert message.endswith(words), message
    assert "\n" not in message
    assert len(message) < 300


@explained(
    how=_checks.one_of(("up", "down")),
    size=_checks.whole_in(1, 9),
    share=_checks.number(_checks.share),
)
def _declared(size, share=0.5, *, how="up", rest=None, **others):
    """Gives what it got."""
    return size, share, how, rest, others


def test_arguments_are_what_their_checks_return_however_they_are_given():
    usual = (3, 0.5, "up", None, {})
    assert _declared(3) == _declared(size=3) == _declared(3, np.float32(0.5)) == usual
    assert type(_declared(3, np.float32(0.5))[1]) is float
    assert _declared(3, how="down", more=1) == (3, 0.5, "down", None, {"more": 1})
    assert inspect.signature(_declared).parameters["share"].default == 0.5


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((0,), {}, r"^size must be in \[1, 9\], got 0$"),
        ((3, 0.0), {}, r"^share must be in \(0, 1\], got 0$"),
        ((3,), {"share": None}, "^share must be in"),
        # Choices come first: nothing is computed for one that is none.
        ((0,), {"how": "left"}, "^how must be one of"),
        ((), {}, "^_declared needs size, as in"),
        ((3, 0.5, 4), {}, "^_declared takes only size, share without a name"),
        ((3,), {"size": 4}, "multiple values for argument 'size'"),
    ],
)
def test_a_declared_check_refuses_in_one_line(args, named, message):
    with pytest.raises((TypeError, ValueError), match=message):
        _declared(*args, **named)


def test_what_is_left_out_by_none_is_not_checked():
    share = _checks.one(_checks.share)
    optional = explained(share=share)(lambda share=None: share)
    assert [optional(), optional(None), optional(0.5)] == [None, None, 0.5]
    with pytest.raises(ValueError, match=r"^share must be"):
        optional(2.0)
