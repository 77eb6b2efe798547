"""Matrix mechanisms: sensitivities over all patterns, and published numbers."""

import functools
import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
from programs import jitted

import fdp_jax as fdp
from fdp_jax.mechanisms._pattern import Pattern
from fdp_jax.mechanisms._tree import Tree, _by_level

CYCLIC = fdp.sampling.CyclicPoisson


def _lower(column, n):
    matrix = np.zeros((n, n))
    for distance, entry in enumerate(column):
        matrix += entry * np.eye(n, k=-distance)
    return matrix


def _worst(strategy, most, apart, *, cyclic):
    """All patterns, and all signs of contributions, of which products are as large."""
    n, worst = strategy.shape[1], 0.0
    for size in range(1, most + 1):
        for pattern in itertools.combinations(range(n), size):
            gaps = np.diff(pattern)
            if np.all(gaps == apart) if cyclic else np.all(gaps >= apart):
                columns = strategy[:, pattern]
                for signs in itertools.product((1, -1), repeat=size):
                    worst = max(worst, float(np.linalg.norm(columns @ signs)))
    return worst


@pytest.mark.parametrize(
    ("column", "most", "apart", "cyclic"),
    [
        ([1, 0.5, 0.25], 3, 3, False),
        ([1, 0.7, 0.6, 0.5, 0.4, 0.3], 3, 2, False),
        ([1, -0.5], 4, 2, False),
        ([1, 0.7, 0.6, 0.5, 0.4, 0.3], 3, 2, True),
        ([1, -0.7, 0.6], 1, 9, False),
        ([0.5, 1.0, 0.25], 1, 9, False),
        ([1.0] * 9, 2, 4, False),
    ],
)
def test_sensitivity_of_toeplitz_strategies(column, most, apart, cyclic):
    limits = {"max_participations": most, "min_separation": apart, "cyclic": cyclic}
    found = fdp.MatrixMechanism(1.0, column, num_steps=9, **limits).sensitivity()
    truth = _worst(_lower(column, 9), most, apart, cyclic=cyclic)
    assert float(found) == pytest.approx(truth, rel=1e-12)


def test_sensitivity_is_rounded_up_in_single_precision():
    """Who divides noise by it may not claim more than is true."""
    with jax.enable_x64(False):
        for square in (2, 3, 7, 11, 13):
            run = fdp.MatrixMechanism(1.0, np.ones(square), min_separation=square)
            assert float(run.sensitivity()) ** 2 >= square
            assert float(run.sensitivity()) ** 2 <= square * (1 + 5e-7)
            tree = fdp.MatrixMechanism.tree(1.0, 2 ** (square - 1))
            assert float(tree.sensitivity()) ** 2 >= square


def test_sensitivity_of_matrices():
    random = np.random.default_rng(5)
    banded = np.tril(random.normal(size=(10, 10)))
    banded[np.subtract.outer(np.arange(10), np.arange(10)) > 2] = 0
    run = fdp.MatrixMechanism(1.0, banded, max_participations=3, min_separation=3)
    found = run.sensitivity()
    assert float(found) == pytest.approx(_worst(banded, 3, 3, cyclic=False), rel=1e-12)
    # Products of one sign: exact; else never below, and close to vectors that attain.
    positive = np.abs(random.normal(size=(7, 9)))
    every_other = functools.partial(
        fdp.MatrixMechanism,
        1.0,
        max_participations=3,
        min_separation=2,
        cyclic=True,
    )
    found = every_other(positive).sensitivity()
    assert float(found) == pytest.approx(_worst(positive, 3, 2, cyclic=True), rel=1e-12)
    mixed = random.normal(size=(7, 9))
    found = every_other(mixed).sensitivity()
    assert float(found) >= _worst(mixed, 3, 2, cyclic=True) * (1 - 1e-12)


def test_one_release_is_gaussian_in_every_relation():
    for relation, farther in (("zero_out", 1), ("replace_one", 2)):
        run = fdp.MatrixMechanism(3.0, [1.0, 0.5], num_steps=10, relation=relation)
        mu = farther * math.sqrt(1.25) / 3.0
        expected = fdp.Gaussian(1 / mu).epsilon(delta=1e-6)
        assert float(run.epsilon(delta=1e-6)) == pytest.approx(float(expected))
        assert run.exact() is not None


def test_tree_aggregation():
    """1,600 steps have intervals of eleven lengths; dp_accounting's bounds by RDP."""
    for noise, most in ((1.13, 19.74), (8.83, 2.04)):
        run = fdp.MatrixMechanism.tree(noise, 1600)
        assert float(run.sensitivity()) == pytest.approx(math.sqrt(11), rel=1e-12)
        assert float(run.epsilon(delta=1e-6)) < most


@pytest.mark.parametrize("cyclic", [False, True])
def test_trees_against_all_patterns(cyclic):
    for n, every in ((1, 1), (7, 7), (11, 11), (12, 12), (12, 5), (11, 4)):
        strategy = Tree(n, every).matrix()
        # Every step stands in one interval of each length up to its longest one.
        assert strategy.sum() == sum(x.bit_length() for x in _longest(n, every))
        for apart in range(1, n + 1):
            for most in range(1, -(-n // apart) + 1):
                pattern = Pattern(n, most, apart, cyclic)
                truth = _worst_sum(strategy, most, apart, cyclic=cyclic)
                assert Tree(n, every).squares(pattern) == (truth, truth)
                if not cyclic:
                    assert _by_level(Tree(n, every), pattern) >= truth


def _longest(n, every):
    """The length of the longest interval of its tree that a step is in."""
    for step in range(n):
        first = step - step % every
        length = min(every, n - first)
        place = step - first
        yield max(
            1 << level
            for level in range(length.bit_length())
            if ((place >> level) + 1) << level <= length
        )


def _worst_sum(strategy, most, apart, *, cyclic):
    """The largest sum of squares over all patterns, of entries at least 0."""
    best = 0
    for size in range(1, most + 1):
        for pattern in itertools.combinations(range(strategy.shape[1]), size):
            gaps = np.diff(pattern)
            if np.all(gaps == apart) if cyclic else np.all(gaps >= apart):
                best = max(best, int((strategy[:, pattern].sum(1) ** 2).sum()))
    return best


def test_trees_of_thousands_of_steps():
    """Twenty epochs by counting in every interval; clients at least 100 apart."""
    tree = functools.partial(fdp.MatrixMechanism.tree, 6.0)
    epochs = tree(4800, max_participations=20, min_separation=240, cyclic=True)
    assert float(epochs.sensitivity()) == pytest.approx(math.sqrt(798), rel=1e-12)
    assert float(epochs.epsilon(delta=1e-5)) == pytest.approx(30.4536, abs=5e-5)
    clients = tree(1600, max_participations=5, min_separation=100)
    assert float(clients.sensitivity()) == pytest.approx(math.sqrt(107), rel=1e-12)
    # Calibration, slopes and composition know it as that Gaussian.
    mu = lambda noise: math.sqrt(107) / noise
    family = fdp.MatrixMechanism.tree(
        None, 1600, max_participations=5, min_separation=100
    )
    target = fdp.targets.MuGDP(0.5)
    found = fdp.calibrate(family, target, solve_for="noise_multiplier")
    assert mu(float(found.value)) == pytest.approx(0.5, rel=1e-9)
    twice = clients.repeat(2).epsilon(delta=1e-5)
    expected = fdp.Gaussian(1 / (mu(6.0) * math.sqrt(2))).epsilon(delta=1e-5)
    assert float(twice) == pytest.approx(float(expected), rel=1e-9)
    # A tree each epoch: one participation in each.
    again = tree(
        4800, restart_every=240, max_participations=20, min_separation=240, cyclic=True
    )
    assert float(again.sensitivity()) == pytest.approx(math.sqrt(20 * 8), rel=1e-12)
    # Too many participations for the exact search: the truth is in between.
    often = tree(1 << 14, max_participations=512, min_separation=20)
    least, most = often.strategy.squares(often._pattern())
    assert least < most < 1.05 * least
    found = often.bounds(delta=1e-5)
    for end, squares in ((found.lower, least), (found.upper, most)):
        gaussian = fdp.Gaussian(6.0 / math.sqrt(squares)).epsilon(delta=1e-5)
        assert float(end) == pytest.approx(float(gaussian), rel=1e-6)
    assert often.exact() is None


def test_amplification_of_banded_strategies():
    """What jax_privacy's docstrings print for DP-SGD, and bands as groups of it."""
    run = fdp.MatrixMechanism(
        3.0, [1.0], num_steps=512, sampling=CYCLIC(0.1, num_groups=1)
    )
    assert float(run.epsilon(delta=1e-6)) == pytest.approx(3.77, abs=5e-3)
    scheme = CYCLIC(0.1, num_groups=3)
    column = np.asarray([1.0, 0.5, 0.25])
    banded = fdp.MatrixMechanism(
        3.0 * np.linalg.norm(column), column, num_steps=1536, sampling=scheme
    )
    found, least = (float(x.epsilon(delta=1e-6)) for x in (banded, run))
    # The sensitivity is rounded up.
    assert least <= found <= least * (1 + 1e-11)
    assert banded.samplings() == {fdp.sampling.Sampling.CYCLIC_POISSON}
    # One group for each step, and certain to be sampled: a single Gaussian.
    n = 6
    whole = fdp.MatrixMechanism(
        2.0, np.ones(n), sampling=CYCLIC(1.0, num_groups=n)
    ).epsilon(delta=1e-6)
    expected = fdp.Gaussian(2.0 / math.sqrt(n)).epsilon(delta=1e-6)
    assert float(whole) == pytest.approx(float(expected), rel=1e-9)


def test_slopes_reach_the_strategy():
    def mu(column):
        run = fdp.MatrixMechanism(2.0, column, num_steps=20)
        return run.sensitivity() / 2

    column = jnp.asarray([1.0, 0.5, 0.25])
    expected = column / jnp.linalg.norm(column) / 2
    np.testing.assert_allclose(jax.grad(mu)(column), expected, rtol=1e-12)

    def noise(column):
        run = fdp.MatrixMechanism(None, column, num_steps=20)
        target = fdp.targets.MuGDP(0.5)
        return fdp.calibrate(run, target, solve_for="noise_multiplier").value

    assert float(noise(column)) == pytest.approx(2 * np.linalg.norm(column), rel=1e-9)
    np.testing.assert_allclose(jitted(jax.grad(noise))(column), 4 * expected, rtol=1e-6)


def _running_sums(column, n):
    """Error of the running sums per noise, by NumPy."""
    inverse = np.linalg.inv(_lower(column, n))
    return np.linalg.norm(np.tril(np.ones((n, n))) @ inverse) / math.sqrt(n)


def test_the_best_banded_strategy_is_found_through_the_calibration():
    """Against a minimum by SciPy of a formula without a calibration.

    The noise is the sensitivity times what the same steps of DP-SGD need.
    """
    n, bands = 24, 3
    target = fdp.targets.ApproxDP(epsilon=2.0, delta=1e-6)
    scheme = CYCLIC(0.1, num_groups=bands)
    steps = fdp.DPSGD(sampling_prob=0.1, num_steps=n // bands)
    unit = float(fdp.calibrate(steps, target, solve_for="noise_multiplier").value)

    def by_numpy(rest):
        column = np.concatenate([[1.0], rest])
        return unit * np.linalg.norm(column) * _running_sums(column, n)

    best = scipy.optimize.minimize(by_numpy, np.zeros(bands - 1))

    def error(rest):
        column = jnp.concatenate([jnp.ones(1), rest])
        family = fdp.MatrixMechanism(None, column, num_steps=n, sampling=scheme)
        noise = fdp.calibrate(family, target, solve_for="noise_multiplier").value
        distance = jnp.arange(n)[:, None] - jnp.arange(n)
        first = jnp.zeros(n).at[:bands].set(column)
        strategy = jnp.where(distance >= 0, first[jnp.abs(distance)], 0.0)
        sums = jnp.linalg.solve(strategy.T, jnp.tril(jnp.ones((n, n))).T)
        return noise * jnp.linalg.norm(sums) / math.sqrt(n)

    optimizer = optax.lbfgs()

    @jitted
    def improve(rest, state):
        value, slope = optax.value_and_grad_from_state(error)(rest, state=state)
        change, state = optimizer.update(
            slope, state, rest, value=value, grad=slope, value_fn=error
        )
        return optax.apply_updates(rest, change), state

    rest = jnp.zeros(bands - 1)
    state = optimizer.init(rest)
    for _ in range(15):
        rest, state = improve(rest, state)
    np.testing.assert_allclose(rest, best.x, atol=1e-4)
    assert float(error(rest)) == pytest.approx(best.fun, rel=1e-8)


def test_noise_in_units_of_the_sensitivity_meets_the_target():
    target = fdp.targets.ApproxDP(epsilon=2.0, delta=1e-6)
    family = fdp.MatrixMechanism(
        None,
        [1.0, 0.5, 0.3],
        num_steps=30,
        sampling=CYCLIC(0.1, num_groups=3),
    )
    ask = functools.partial(fdp.calibrate, family, target, solve_for="noise_multiplier")
    found, searched = ask(), ask(within=(0.1, 100.0))
    reached = found.mechanism.bounds(epsilon=2.0)
    assert 1e-6 * (1 - 1e-9) < float(reached.upper) <= 1e-6
    assert float(found.value) == pytest.approx(float(searched.value), rel=1e-9)
    with jax.enable_x64(False):
        single = ask()
        assert single.value.dtype == np.float32
        assert float(single.mechanism.delta(epsilon=2.0)) <= 1e-6 * (1 + 1e-7)
    assert float(found.value) <= float(single.value) <= float(found.value) * 1.000001


@pytest.mark.parametrize(("bands", "power"), [(2, 0.7), (4, 0.5), (5, 0.3), (40, 0.6)])
def test_strategies_with_banded_inverses(bands, power):
    """By SciPy's binomial coefficients, and an inverse matrix."""
    n = 40
    make = fdp.MatrixMechanism
    run = make.bifr(1.0, n, bands=bands, power=power, min_separation=10)
    place = np.arange(bands)
    signs = (-1.0) ** place
    inverse = _lower(signs * scipy.special.binom(power, place), n)
    np.testing.assert_allclose(
        _lower(run.strategy, n), np.linalg.inv(inverse), rtol=1e-12, atol=1e-14
    )
    assert run.strategy.dtype == np.float64
    worst = [np.arange(n) == 10 * epoch for epoch in range(4)]
    truth = np.linalg.norm(_lower(run.strategy, n) @ np.sum(worst, axis=0))
    assert float(run.sensitivity()) == pytest.approx(truth, rel=1e-12)
    assert run.exact() is not None
    if bands == 2:
        other = make.lambda_cgd(1.0, n, share=power)
        np.testing.assert_allclose(other.strategy, power ** np.arange(n), rtol=1e-13)
    if power == 0.5:
        other = make.bisr(1.0, n, bands=bands)
        np.testing.assert_array_equal(other.strategy, run.strategy)
    if bands == n:  # the whole power, whose inverse is that of the other sign
        every = np.arange(n)
        whole = scipy.special.binom(every + power - 1, every)
        np.testing.assert_allclose(run.strategy, whole, rtol=1e-12)


def test_slopes_in_the_share_of_the_noise():
    n, share = 30, 0.5
    of = lambda x: fdp.MatrixMechanism.lambda_cgd(1.0, n, share=x).sensitivity()
    place = np.arange(n)
    length = np.linalg.norm(share**place)
    expected = np.sum(place * share ** (2.0 * place - 1)) / length
    assert float(of(share)) == pytest.approx(length, rel=1e-12)
    assert float(jax.grad(of)(share)) == pytest.approx(expected, rel=1e-12)
    assert float(jax.grad(of)(0.0)) == 0.0


@pytest.mark.parametrize("seed", range(6))
def test_bounds_where_the_worst_pattern_is_not_known(seed):
    """Between what the best search over signs finds and a bound that all obey."""
    random = np.random.default_rng(seed)
    for strategy in (
        random.normal(size=(7, 9)),
        random.uniform(size=(7, 9)),
        random.normal(size=5),
        random.uniform(size=5),
    ):
        for cyclic in (False, True):
            run = fdp.MatrixMechanism(
                2.0,
                strategy,
                num_steps=9,
                max_participations=3,
                min_separation=2,
                cyclic=cyclic,
            )
            matrix = strategy if strategy.ndim == 2 else _lower(strategy, 9)
            truth = _worst(matrix, 3, 2, cyclic=cyclic)
            assert truth <= float(run.sensitivity()) * (1 + 1e-12)
            assert float(run.sensitivity()) <= _by_entries(matrix, 3) * (1 + 1e-12)
            found = run.bounds(delta=1e-5)
            gaussian = float(fdp.Gaussian(2.0 / truth).epsilon(delta=1e-5))
            assert float(found.lower) <= gaussian * (1 + 1e-9)
            assert float(found.upper) >= gaussian * (1 - 1e-9)


def _by_entries(matrix, most):
    """What no pattern of so many columns exceeds: they may be parallel."""
    lengths = np.sort(np.linalg.norm(matrix, axis=0))[::-1]
    return lengths[0] * most


def test_contributions_that_cannot_all_turn_around():
    """Three columns at 120 degrees: products sum to 6 in size, but to at most 4.5.

    That is where contributions are at 120 degrees, too; orthogonal ones give 3.
    """
    angle = 2 * np.pi / 3 * np.arange(3)
    strategy = np.stack([np.cos(angle), np.sin(angle)])
    run = fdp.MatrixMechanism(1.0, strategy, min_separation=1, cyclic=True)
    found = run.bounds(delta=1e-5)
    of = lambda squares: float(fdp.Gaussian(squares**-0.5).epsilon(delta=1e-5))
    assert float(found.lower) == pytest.approx(of(3.0), rel=1e-6)
    assert float(found.upper) == pytest.approx(of(6.0), rel=1e-6)
    assert of(3.0) < of(4.5) < of(6.0)
    pair = run.group(2).bounds(delta=1e-5)
    assert float(pair.lower) == pytest.approx(of(12.0), rel=1e-6)
    assert float(pair.upper) == pytest.approx(of(24.0), rel=1e-6)


def test_traced_columns_have_bounds_too():
    @eqx.filter_jit
    def both(column):
        run = fdp.MatrixMechanism(
            1.0, column, num_steps=9, max_participations=3, min_separation=2
        )
        return run.sensitivity(), run.delta(epsilon=1.0, bound="optimistic")

    for column in ([1, 0.7, 0.6, 0.5], [0.5, 0.6, 0.7, 1.0]):
        column = np.asarray(column)
        found, least = both(column)
        truth = _worst(_lower(column, 9), 3, 2, cyclic=False)
        exact = float(fdp.Gaussian(1 / truth).delta(epsilon=1.0))
        falls = column[0] == 1
        assert float(found) == pytest.approx(truth, rel=1e-12 if falls else 0.05)
        assert float(found) >= truth * (1 - 1e-12)
        assert exact * (1 - 1e-9 if falls else 0.5) <= float(least) <= exact


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": 1.0}, "strategy must be a matrix, or the first column"),
        ({"strategy": [1.0, np.nan]}, "strategy must be a finite number, got nan"),
        ({"num_steps": 1}, r"num_steps must be in \[2, 1048576\], got 1"),
        ({"strategy": np.eye(3), "num_steps": 4}, "number of columns, 3, got 4"),
        ({"min_separation": 0}, r"min_separation must be in \[1, 2\], got 0"),
        (
            {"sampling": CYCLIC(0.1, num_groups=2), "max_participations": 3},
            "leave out max_participations",
        ),
        (
            {"num_steps": 100, "max_participations": 10},
            r"at most 1, of 100 steps with min_separation = 100 .*default\), got 10",
        ),
        (
            {"num_steps": 9, "max_participations": 4, "min_separation": 4},
            "must be at most 3, of 9 steps with min_separation = 4, got 4",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        fdp.MatrixMechanism(
            **{"noise_multiplier": 1.0, "strategy": [1, 0.5]} | arguments
        )


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        ("tree", {"restart_every": 5}, r"restart_every must be in \[1, 4\], got 5"),
        ("bisr", {"bands": 5}, r"bands must be in \[1, 4\], got 5"),
        ("bifr", {"bands": 2, "power": 1.5}, r"power must be in \[0, 1\], got 1.5"),
        ("lambda_cgd", {"share": -0.5}, r"share must be in \[0, 1\], got -0.5"),
        ("lambda_cgd", {"share": [0.5, 0.6]}, r"share must be one number, got an"),
    ],
)
def test_wrong_arguments_of_named_strategies_are_refused(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(fdp.MatrixMechanism, make)(1.0, 4, **arguments)


def test_other_schemes_are_refused():
    for scheme in (fdp.sampling.UserLevel(0.1), 0.1):
        with pytest.raises(TypeError, match="sampling must be"):
            fdp.MatrixMechanism(1.0, [1.0], num_steps=4, sampling=scheme)


def test_lower_bounds_of_amplified_columns_of_different_lengths():
    """Groups take part with columns of their own, of which the longest bounds all."""
    rate, matrix = 0.3, np.array([[1.0, 0, 0], [0.5, 0.3, 0], [0, 2, 0.7]])
    # The distance of the laws, if a record of the second group takes part once.
    mu = np.hypot(0.3, 2.0)
    exact = rate * (2 * scipy.stats.norm.cdf(mu / 2) - 1)
    run = fdp.MatrixMechanism(1.0, matrix, sampling=CYCLIC(rate, num_groups=2))
    found = run.remove.bounds(epsilon=0.0)
    # The first group's second column is shorter than the second group's only one.
    assert exact * (1 - 1e-5) <= found.lower <= exact
    assert found.upper >= exact
    account = fdp.Accountant().step(run)
    assert account.remove.bounds(epsilon=0.0).lower <= exact
    with pytest.raises(ValueError, match="not available"):
        run.group(2).epsilon(delta=1e-5)


def test_which_amplified_columns_are_as_long_as_the_longest():
    run: Any = lambda column, n, groups: fdp.MatrixMechanism(
        1.0, column, num_steps=n, sampling=CYCLIC(0.3, num_groups=groups)
    )
    assert run([1.0, 0.5, 0.2], 100, 10).attained() is None
    assert run([1.0, 0.5, 0.2], 93, 10).attained() is None
    assert run([1.0], 7, 3).attained() is None
    # The last column of the first group is cut off: one participation less.
    cut = run([1.0, 0.5, 0.2], 91, 10).attained()
    assert cut.num_steps == 81
    assert 1 / cut.noise_multiplier == pytest.approx(math.sqrt(1.29), rel=2e-6)
    # Or all of them as if each were as short, where that leaks more.
    short = run([1.0, 0.1], 4, 3).attained()
    assert short.num_steps == 4
    assert 1 / short.noise_multiplier == pytest.approx(1.0, rel=2e-6)
    traced = jitted(lambda x: run(x, 91, 10).attained().noise_multiplier * x.sum())
    assert traced(jnp.asarray([1.0, 0.5, 0.2])) == math.inf
