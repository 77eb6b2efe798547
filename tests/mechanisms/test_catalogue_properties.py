"""What must hold of all mechanisms: laws of composition, monotony, derivatives, groups.

Programs are shared where that is possible: many mechanisms are parts of one
composition, whose derivatives are checked all at once, and vectors of probabilities
are padded with zeros to one length.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from reference import catalogue_truth, exact

import fdp_jax as fdp
from fdp_jax import Bound

REPLACE_ONE = fdp.NeighboringRelation.REPLACE_ONE
ZERO_OUT = fdp.NeighboringRelation.ZERO_OUT


def _delta(mechanism, epsilon=0.3):
    return float(mechanism.delta(epsilon=epsilon, bound=Bound.ESTIMATE))


CELLS = 2e-8
"""The square of what a cell is wide where one release has 2^17 points, some 1.5e-4."""


def _holds(bounds, truth, rtol=1e-8):
    """The truth is inside, up to its own rounding, and the estimate near it.

    Estimates on a grid are good to a few units of 1e-9, absolutely where delta
    vanishes.
    """
    slack = 1e-13 * abs(truth)
    assert float(bounds.lower) <= truth + slack
    assert float(bounds.upper) >= truth - slack
    assert float(bounds.estimate) == pytest.approx(truth, rel=rtol, abs=1e-9)


# --------------------------------------------------------------- laws of composition

RESPONSE, GAUSSIAN = fdp.PureDP(0.5), fdp.Gaussian(1.5)
NOISE = fdp.DiscreteLaplace(2.0)


def test_composition_is_commutative_and_associative():
    whole = fdp.compose(RESPONSE, GAUSSIAN, NOISE)
    other = fdp.compose(NOISE, fdp.compose(RESPONSE, GAUSSIAN))
    one, two = whole.bounds(epsilon=0.7), other.bounds(epsilon=0.7)
    # The grid's spacing depends on the order: each estimate is off by 1e-9.
    assert float(one.estimate) == pytest.approx(float(two.estimate), rel=1e-7)
    assert max(one.lower, two.lower) <= min(one.upper, two.upper)


def test_repeating_a_composition_repeats_its_parts():
    nested = fdp.compose(RESPONSE.repeat(2), GAUSSIAN).repeat(3)
    flat = fdp.compose(RESPONSE.repeat(6), GAUSSIAN.repeat(3))
    assert _delta(nested, 1.2) == pytest.approx(_delta(flat, 1.2), rel=1e-10)


def test_perfect_privacy_is_neutral():
    with_nothing = fdp.compose(fdp.PerfectPrivacy().repeat(5), GAUSSIAN)
    for epsilon in (-1.0, 0.3, 4.0):
        found = _delta(with_nothing, epsilon)
        assert found == pytest.approx(_delta(GAUSSIAN, epsilon), rel=1e-10)


def test_blatant_non_privacy_absorbs():
    # Nothing is left to compile for: the infinite loss has probability 1.
    loss = fdp.compose(fdp.BlatantNonPrivacy(), GAUSSIAN).loss()
    for sign in (1.0, -1.0):
        assert float(loss.log_infinite_mass(jnp.asarray(sign))) == 0.0


# --------------------------------------- a mechanism through its probabilities alone

OUTPUTS = 5
"""All vectors of probabilities below have this length: one program."""


def _pair(p, q):
    pad = [0.0] * (OUTPUTS - len(p))
    return fdp.FromProbabilities(list(p) + pad, list(q) + pad)


def _twice(p, q, epsilon, direction="remove"):
    """delta of two releases, by enumeration."""
    if direction == "add":
        p, q = q, p
    joint = lambda x: np.multiply.outer(np.asarray(x), np.asarray(x)).ravel()
    return float(np.maximum(joint(q) - math.exp(epsilon) * joint(p), 0).sum())


def _both_twice(p, q, epsilon):
    return max(_twice(p, q, epsilon, side) for side in ("remove", "add"))


RESPONSES = [1 / (1 + math.e), math.e / (1 + math.e)]
VECTORS = {
    "randomized response": (RESPONSES, RESPONSES[::-1]),
    "k-ary": (
        [1 / (3 + math.e), 1 / (3 + math.e), 1 / (3 + math.e), math.e / (3 + math.e)],
        [math.e / (3 + math.e), 1 / (3 + math.e), 1 / (3 + math.e), 1 / (3 + math.e)],
    ),
    "disjoint": ([0.4, 0.6, 0.0, 0.0], [0.0, 0.0, 0.1, 0.9]),
    "lopsided": ([0.2, 0.5, 0.25, 0.05, 0.0], [0.3, 0.0, 0.1, 0.35, 0.25]),
    "equal": ([0.5, 0.5], [0.5, 0.5]),
    "nearly equal": ([0.5, 0.5], [0.5 + 1e-7, 0.5 - 1e-7]),
    "rare": ([1 - 1e-12, 1e-12], [1 - 1e-6, 1e-6]),
}


@pytest.mark.parametrize("name", VECTORS)
def test_probabilities_against_enumeration(name):
    p, q = VECTORS[name]
    for epsilon in (-0.7, 0.0, 0.3, 1.7):
        truth = _both_twice(p, q, epsilon)
        bounds = _pair(p, q).repeat(2).bounds(epsilon=epsilon)
        # Enumeration in float64 has its own rounding, which is absolute.
        assert float(bounds.lower) <= truth + 1e-15
        assert float(bounds.upper) >= truth - 1e-15
        # At a kink of the profile that is no grid point, the grid's spacing counts.
        assert float(bounds.estimate) == pytest.approx(truth, rel=3e-5, abs=1e-15)


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        ("randomized response", fdp.RandomizedResponse(1.0)),
        ("k-ary", fdp.KaryRandomizedResponse(1.0, num_categories=4)),
    ],
)
def test_probabilities_are_the_built_in_mechanism(name, mechanism):
    pair = _pair(*VECTORS[name])
    for epsilon in (0.3, 1.7):
        found = _delta(mechanism.repeat(2), epsilon)
        assert found == pytest.approx(_delta(pair.repeat(2), epsilon), rel=1e-8)


def test_merging_outputs_never_raises_delta():
    p, q = VECTORS["lopsided"]
    fine = _pair(p, q).repeat(2)
    for i, j in itertools.combinations(range(OUTPUTS), 2):
        merged = [np.delete(x, j) for x in (p, q)]
        for x, y in zip(merged, (p, q), strict=True):
            x[i] += y[j]
        coarse = _pair(*merged).repeat(2)
        for epsilon in (0.0, 0.6):
            # Data processing, up to the width of the certificates.
            one, two = coarse.bounds(epsilon=epsilon), fine.bounds(epsilon=epsilon)
            assert one.lower <= two.upper
            assert float(one.estimate) <= float(two.estimate) * (1 + 1e-7)


def test_order_of_outputs_is_irrelevant():
    p, q = VECTORS["lopsided"]
    truth = _delta(_pair(p, q).repeat(2))
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        mixed = _pair(np.asarray(p)[order], np.asarray(q)[order])
        assert _delta(mixed.repeat(2)) == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize(("scale", "epsilon"), [(0.2, 12.4), (0.3, 5.5), (0.5, 1.5)])
def test_estimates_of_narrow_discrete_noise_lie_within_their_bounds(scale, epsilon):
    x = [mp.mpf(k) for k in range(-40, 41)]
    masses = [mp.exp(-0.5 * (k / mp.mpf(scale)) ** 2) for k in x]
    total = mp.fsum(masses)
    moved = [mp.exp(-0.5 * ((k - 1) / mp.mpf(scale)) ** 2) for k in x]
    gains = [q - mp.exp(epsilon) * p for p, q in zip(masses, moved, strict=True)]
    truth = mp.fsum(max(gain, 0) for gain in gains) / total
    bounds = fdp.DiscreteGaussian(scale).bounds(epsilon=epsilon)
    assert exact(bounds.lower) <= truth * (1 + mp.mpf("1e-13"))
    assert exact(bounds.upper) >= truth * (1 - mp.mpf("1e-13"))
    assert bounds.lower <= bounds.estimate <= bounds.upper


# --------------------------------- a mechanism through densities or its loss's law


def _log_normal(x, location, scale):
    root = 0.5 * math.log(2 * math.pi)
    return -0.5 * jnp.square((x - location) / scale) - jnp.log(scale) - root


def _at_zero(x, scale):
    return _log_normal(x, 0.0, scale)


def _at_one(x, scale):
    return _log_normal(x, 1.0, scale)


def _normal_pair(scale):
    # The same two functions at every call: one program.
    return fdp.FromLogDensities(
        _at_zero,
        _at_one,
        support=(-60.0, 61.0),
        params=scale,
        log_beyond=-750.0,
    )


def test_gaussian_by_its_densities():
    pair, gaussian = _normal_pair(0.6), fdp.Gaussian(0.6)
    for epsilon in (-1.0, 0.3, 2.5):
        _holds(pair.bounds(epsilon=epsilon), _delta(gaussian, epsilon), CELLS)


def _logistic_delta(mu, epsilon):
    """(1 - e^{-(mu - eps) / 2})^2 / (1 - e^-mu) for |eps| < mu."""
    if epsilon < 0:
        return 1 - math.exp(epsilon) + math.exp(epsilon) * _logistic_delta(mu, -epsilon)
    if epsilon >= mu:
        return 0.0
    return math.expm1(0.5 * (epsilon - mu)) ** 2 / -math.expm1(-mu)


def _log_share(t, mu):
    """log (1 - e^{-(mu - t) / 2}) / (1 - e^-mu)."""
    inside = t < mu
    gap = jnp.where(inside, mu - t, 1.0)
    value = jnp.log(-jnp.expm1(-0.5 * gap)) - jnp.log(-jnp.expm1(-mu))
    return jnp.where(inside, value, -jnp.inf)


LOGISTIC = {
    "log_sf_without": lambda t, m: _log_share(t, m) - 0.5 * (m + t),
    "log_cdf_without": lambda t, m: _log_share(-t, m),
    "log_cdf_with": lambda t, m: _log_share(-t, m) - 0.5 * (m - t),
    "log_sf_with": lambda t, m: _log_share(t, m),
}


def _logistic_by_its_loss(mu):
    return fdp.FromLossDistribution(**LOGISTIC, loss_range=(-mu, mu), params=mu)


def test_logistic_noise_and_its_loss_distribution():
    mu = 2.0
    for epsilon in (-0.15, 0.0, 0.15):
        truth = _logistic_delta(mu, epsilon)
        for mechanism in (fdp.Logistic(1 / mu), _logistic_by_its_loss(mu)):
            _holds(mechanism.bounds(epsilon=epsilon), truth)


# ---------------------------------------------- domination, by enumerating outputs


def _permute_and_flip(scores, epsilon):
    """Probabilities of the chosen candidate; sensitivity 1."""
    n, keep = len(scores), np.exp(0.5 * epsilon * (np.asarray(scores) - max(scores)))
    chosen = np.zeros(n)
    for order in itertools.permutations(range(n)):
        left = 1.0
        for i in order:
            chosen[i] += left * keep[i] / math.factorial(n)
            left *= 1 - keep[i]
    return chosen


def _exponential(scores, epsilon):
    weights = np.exp(0.5 * epsilon * (np.asarray(scores) - max(scores)))
    return weights / weights.sum()


@pytest.mark.parametrize("monotonic", [False, True])
@pytest.mark.parametrize(
    ("law", "kind"),
    [
        (_permute_and_flip, fdp.PermuteAndFlip),
        (_exponential, fdp.ExponentialMechanism),
    ],
)
def test_selection_is_dominated_by_its_pair(law, kind, monotonic):
    mechanism = kind(1.5, monotonic=monotonic)
    random = np.random.default_rng(0)
    epsilons = (0.0, 0.3, 0.7, 1.1)
    bounds = [float(mechanism.delta(epsilon=e)) for e in epsilons]
    least = [math.inf] * len(epsilons)
    for _ in range(200):
        scores = np.round(random.uniform(0, 4, size=random.integers(2, 5)), 1)
        change = random.choice([0, 1] if monotonic else [-1, 1], size=scores.size)
        p, q = law(scores, 1.5), law(scores + change, 1.5)
        for i, epsilon in enumerate(epsilons):
            for a, b in ((p, q), (q, p)):
                delta = np.maximum(b - math.exp(epsilon) * a, 0).sum()
                assert delta <= bounds[i] + 1e-12  # rounding of the enumeration
                least[i] = min(least[i], bounds[i] - delta)
    # The worst cases come near: the bound is not one by being loose.
    assert least[0] < 0.25 * bounds[0]


# ------------------------------------------------------------------------- monotony


def _sampled(noise, prob, steps):
    return fdp.PoissonSubsampled(fdp.Laplace(noise), prob).repeat(steps)


def test_delta_is_monotone_in_noise_sampling_and_steps():
    here = _delta(_sampled(1.0, 0.1, 10))
    assert _delta(_sampled(1.2, 0.1, 10)) < here
    assert _delta(_sampled(1.0, 0.08, 10)) < here
    assert _delta(_sampled(1.0, 0.1, 9)) < here
    # No sampling and no steps release nothing.
    assert _delta(_sampled(1.0, 0.0, 10)) == 0
    assert _delta(_sampled(1.0, 0.1, 0)) == 0
    assert _delta(_sampled(math.inf, 0.1, 10)) == 0


def test_logistic_noise_is_monotone():
    deltas = [_delta(fdp.Logistic(s), 0.15) for s in (0.5, 1.0, 2.0, 4.0, 8.0)]
    assert all(a > b for a, b in itertools.pairwise(deltas))
    assert deltas[-1] == 0  # its largest loss is 1 / 8


# --------------------------------------------------------- one engine against another


@pytest.mark.parametrize("epsilon", [-0.5, 0.3, 0.95])
def test_laplace_on_the_grid(epsilon):
    release = fdp.Laplace(1.0)
    on_grid = release.using("grid").bounds(epsilon=epsilon)
    assert on_grid.method == "grid"
    _holds(on_grid, _delta(release, epsilon))


def test_a_subsampled_gaussian_on_the_grid():
    step = fdp.PoissonSubsampled(fdp.Gaussian(1.0), 0.2).remove
    for epsilon in (-0.05, 0.05, 0.5):
        truth = _delta(step, epsilon)
        _holds(step.using("grid").bounds(epsilon=epsilon), truth, CELLS)


@pytest.mark.parametrize("epsilon", [-0.05, 0.05, 0.5])
def test_a_subsample_of_a_subsample(epsilon):
    # Included in both with the product of the probabilities.
    once = fdp.PoissonSubsampled(fdp.Gaussian(1.0), 0.5)
    twice = fdp.PoissonSubsampled(once, 0.4)
    truth = fdp.PoissonSubsampled(fdp.Gaussian(1.0), 0.2)
    _holds(twice.remove.bounds(epsilon=epsilon), _delta(truth.remove, epsilon))


@pytest.mark.parametrize("epsilon", [-0.5, 0.1, 0.4])
def test_a_subsample_of_everything_is_no_subsample(epsilon):
    release = fdp.Laplace(1.0)
    step = fdp.PoissonSubsampled(release, 1.0)
    _holds(step.remove.bounds(epsilon=epsilon), _delta(release, epsilon))


# ------------------------------------------------------------------------ derivatives

PARTS = {
    "two": fdp.compose(fdp.PoissonSubsampled(fdp.Laplace(0.8), 0.2), fdp.Gaussian(2.0)),
    "discrete": fdp.compose(
        fdp.Gaussian(2.0, relation=REPLACE_ONE),
        fdp.DiscreteGaussian(2.3, truncation=20, relation=REPLACE_ONE),
        fdp.DiscreteLaplace(3.7, sensitivity=2, relation=REPLACE_ONE),
        fdp.KaryRandomizedResponse(0.9, num_categories=5),
        fdp.RandomizedResponse(0.41),
        fdp.ExponentialMechanism(0.77, relation=REPLACE_ONE),
        fdp.PermuteAndFlip(0.35, relation=REPLACE_ONE),
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("discrete", marks=pytest.mark.slow),
        pytest.param("two", marks=pytest.mark.slow),
    ],
)
def test_gradient_in_every_parameter_agrees_with_differences(name):
    leaves, structure = jax.tree.flatten(PARTS[name].parts)  # pyright: ignore[reportAttributeAccessIssue]
    leaves = [jnp.asarray(x, float) for x in leaves]

    @jitted
    def value(leaves):
        run = fdp.compose(*jax.tree.unflatten(structure, leaves))
        return run.log_delta(epsilon=0.9, bound=Bound.ESTIMATE)

    slopes = jitted(jax.grad(value))(leaves)
    for i, leaf in enumerate(leaves):
        for j in range(leaf.size):
            unit = jnp.zeros(leaf.size).at[j].set(1.0).reshape(leaf.shape)
            # The square of 1e-3 is lost, and the estimate's 1e-9 over 1e-3.
            step = 1e-3 * float(leaf.ravel()[j])
            low, high = (
                float(value([*leaves[:i], leaf + t * unit, *leaves[i + 1 :]]))
                for t in (-step, step)
            )
            found = float(slopes[i].ravel()[j])
            difference = (high - low) / (2 * step)
            assert found == pytest.approx(difference, rel=1e-4, abs=1e-5), (i, j)
            assert abs(found) > 1e-4


# ------------------------------------------------------------------------- relations


@pytest.mark.parametrize(
    "make",
    [
        lambda: fdp.compose(fdp.Gaussian(1.0), fdp.RandomizedResponse(1.0)),
        lambda: fdp.compose(
            fdp.Gaussian(1.0),
            fdp.Gaussian(1.0).repeat(2),
            fdp.Laplace(1.0, relation=ZERO_OUT),
        ),
        lambda: fdp.RevealedMixture(
            [fdp.Gaussian(1.0), fdp.PureDP(1.0, relation=ZERO_OUT)], probs=[0.5, 0.5]
        ),
    ],
)
def test_relations_cannot_be_mixed(make):
    with pytest.raises(ValueError, match="must share one neighboring relation, got"):
        make()


def test_relations_are_passed_on():
    inner = fdp.DiscreteLaplace(2.0, relation=ZERO_OUT)
    step = fdp.PoissonSubsampled(inner, 0.1)
    mixture = fdp.RevealedMixture([step, inner], probs=[0.5, 0.5])
    both = fdp.compose(step, inner)
    for made in (
        step,
        step.repeat(3),
        mixture,
        both,
        fdp.PureDP(1.0, relation=ZERO_OUT).group(2),
    ):
        assert made.relation is ZERO_OUT


# ------------------------------------------------------------------------------ groups


def test_group_of_additive_noise_is_a_farther_shift():
    for kind in (fdp.Gaussian, fdp.Laplace, fdp.Logistic):
        group = kind(3.0).group(3)
        assert type(group) is kind
        assert group.noise_multiplier == 1.0
    run = fdp.Gaussian(4.0).repeat(5).group(2)
    assert _delta(run) == pytest.approx(_delta(fdp.Gaussian(2.0).repeat(5)), rel=1e-13)


@pytest.mark.parametrize("kind", [fdp.DiscreteLaplace, fdp.DiscreteGaussian])
def test_group_of_discrete_noise_is_a_farther_shift(kind):
    group = kind(3.0, sensitivity=2).group(3)
    assert type(group) is kind
    assert (group.sensitivity, float(group.scale)) == (6, 3.0)


def test_group_of_dpsgd_on_all_of_the_data_is_gaussian():
    run = fdp.DPSGD(noise_multiplier=4.0, sampling_prob=1.0, num_steps=3)
    gaussian = fdp.Gaussian(2.0).repeat(3)
    for epsilon in (-0.4, 0.3, 3.0):
        _holds(run.group(2).bounds(epsilon=epsilon), _delta(gaussian, epsilon))
    assert run.group(1) is run


def _group_truth(kind: str, size: int) -> list[dict]:
    return [
        e
        for e in catalogue_truth()
        if e["mechanism"] == "group_privacy"
        and e["params"]["part"]["mechanism"] == kind
        and e["params"]["group_size"] == size
    ]


@pytest.mark.parametrize(
    ("kind", "mechanism", "size"),
    [
        ("approx_dp", fdp.ApproxDP(epsilon=1.0, delta=0.05), 2),
        ("approx_dp", fdp.ApproxDP(epsilon=1.0, delta=0.05), 3),
        ("laplace", fdp.Laplace(1.0), 2),
    ],
    ids=["ApproxDP 2", "ApproxDP 3", "Laplace 2"],
)
def test_trade_off_function_of_groups(kind, mechanism, size):
    entries = _group_truth(kind, size)
    assert len(entries) == 4
    alphas = jnp.asarray([float(e["alpha"]) for e in entries])
    bounds = mechanism.group(size).remove.bounds(alpha=alphas)
    for i, entry in enumerate(entries):
        truth = float(entry["value"])
        assert float(bounds.lower[i]) <= truth + 1e-14
        assert float(bounds.upper[i]) >= truth - 1e-14
        assert float(bounds.lower[i]) == pytest.approx(truth, rel=1e-8, abs=1e-9)


def test_group_is_refused_where_it_is_not_known():
    for mechanism in (
        fdp.ExponentialMechanism(1.0),
        fdp.PoissonSubsampled(fdp.Laplace(1.0), 0.1),
        fdp.MixtureOfGaussians(1.0, shifts=[1.0], probs=[1.0]),
    ):
        with pytest.raises(ValueError, match="group privacy is not available"):
            mechanism.group(2).delta(epsilon=0.1)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    "kind", [fdp.RandomizedResponse, lambda e: fdp.FromProbabilities(*_three(e))]
)
def test_outputs_without_a_loss_count_once_for_groups(kind, size):
    def masses(epsilon):
        (term,) = kind(epsilon).group(size).loss().terms
        return term.log_p, term.log_q

    epsilons = np.append(np.random.default_rng(5).uniform(0.01, 3, 40), 0.26817981907)
    ask = jitted(masses)
    for epsilon in epsilons:
        for logs in ask(epsilon):
            assert np.sum(np.exp(logs)) == pytest.approx(1, abs=1e-12)


def _three(epsilon):
    more, less = 0.4 / (1 + jnp.exp(-epsilon)), 0.4 / (1 + jnp.exp(epsilon))
    return jnp.stack([less, 0.6, more]), jnp.stack([more, 0.6, less])


def test_repeated_answers_of_a_pair_of_records():
    run = fdp.RandomizedResponse(0.268179819072184).group(2).repeat(8)
    # By the multinomial sum over the outputs, with 50 digits.
    for epsilon, truth in ((0.0, 0.5220487525016209), (0.35221641953, 0.44800566495)):
        found = run.bounds(epsilon=epsilon)
        assert found.lower <= truth * (1 + 1e-9)
        assert truth * (1 - 1e-9) <= found.upper
        assert found.upper - found.lower < 1e-4


@pytest.mark.parametrize("epsilon", [1e-13, 1e-14, 1e-16])
def test_groups_of_next_to_no_loss_have_some(epsilon):
    found = fdp.RandomizedResponse(epsilon).group(2).bounds(epsilon=0.0)
    assert found.lower <= epsilon * (1 + 1e-12) <= 1.1 * found.upper
