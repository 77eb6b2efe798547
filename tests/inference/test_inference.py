"""Private tests and intervals against reference numbers, mpmath and enumeration."""

# Tests give wrong types on purpose, and numbers of any kind.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalOperand=false

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted
from reference import topic_checks
from scipy import stats

import fdp_jax as fdp
from fdp_jax import inference, tradeoff
from fdp_jax._internal._compilation import jit_on_its_own
from fdp_jax.inference import _counts

# One program each, not one for every operation.
_log_binomial = jit_on_its_own(jax.vmap(_counts.log_binomial, (0, None, None)))
_binomial_window = jit_on_its_own(_counts.binomial_window)
RTOL = 1e-12
PURE = tradeoff.ApproxDP(epsilon=1.0, delta=0.0)
APPROX = tradeoff.ApproxDP(epsilon=1.0, delta=0.05)
GDP = tradeoff.Gaussian(1.0)
# The reference numbers of G_1 are for its normal canonical noise.
NORMAL = fdp.canonical_noise(GDP, log_concave=True)
TULAP = fdp.canonical_noise(PURE)
KINDS = {"e1.n": TULAP, "G1.n": NORMAL, "e1.d0.05.n": fdp.canonical_noise(APPROX)}


def _binomial(n, prob):
    return stats.binom.pmf(np.arange(n + 1), n, prob)


def _entry(name):
    found = [e for e in topic_checks("03", name) if e["id"] == f"03.{name}"]
    return found[0]["value"]


# ------------------------------------------------------------------ probabilities


@pytest.mark.parametrize(
    ("n", "prob"), [(1, 0.3), (12, 0.5), (1000, 1e-4), (10**6, 0.37), (10**6, 2e-6)]
)
def test_binomial_probabilities(n, prob):
    sd = np.sqrt(n * prob * (1 - prob))
    x = np.unique(np.clip(np.round(n * prob + sd * np.linspace(-12, 12, 9)), 0, n))
    found = _log_binomial(x, np.asarray(float(n)), np.asarray(prob))
    with mp.workdps(40):
        p = mp.mpf(prob)
        exact = [
            mp.loggamma(n + 1) - mp.loggamma(int(k) + 1) - mp.loggamma(n - int(k) + 1)
            + k * mp.log(p) + (n - k) * mp.log1p(-p)
            for k in map(mp.mpf, x)
        ]  # fmt: skip
    np.testing.assert_allclose(found, np.asarray(exact, float), rtol=1e-12, atol=3e-13)
    length = _counts.window_length(n)
    window = _binomial_window(np.asarray(float(n)), np.asarray(prob), length)
    np.testing.assert_allclose(window.probs.sum(), 1, rtol=1e-12)


def test_certain_outcomes():
    for prob, x in ((0.0, 0), (1.0, 7)):
        window = _binomial_window(np.asarray(7.0), np.asarray(prob), 16)
        np.testing.assert_array_equal(window.probs, np.arange(16) == x)


# --------------------------------------------------------------- reference numbers


@pytest.mark.parametrize("kind", KINDS)
def test_most_powerful_tests(kind):
    noise, start = KINDS[kind], f"ump.{kind}10."
    test = inference.most_powerful_test(noise, _binomial(10, 0.5), alpha=0.05)
    np.testing.assert_allclose(test.threshold, _entry(start + "m"), rtol=RTOL)
    m = inference.binomial_threshold(noise, 10, 0.5, alpha=0.05)
    np.testing.assert_allclose(m, test.threshold, rtol=RTOL)
    power = inference.binomial_power(noise, 10, 0.5, 0.7, alpha=0.05)
    for entry in topic_checks("03", start):
        name = entry["id"].removeprefix("03." + start)
        if name.startswith("phi"):
            found = test.rejection[int(name[3:])]
        elif name == "power.7":
            found = power
        elif name in ("y", "c"):
            found = {"y": test.first, "c": test.at_first}[name]
        else:
            assert name == "m"
            continue
        np.testing.assert_allclose(found, entry["value"], rtol=RTOL)


@pytest.mark.slow
def test_power_is_that_of_any_canonical_noise():
    other = fdp.canonical_noise(GDP)
    power = inference.binomial_power(other, 10, 0.5, 0.7, alpha=0.05)
    np.testing.assert_allclose(
        power, _entry("ump.G1.uniformCND.n10.power.7"), rtol=RTOL
    )
    null = _binomial(10, 0.5)
    tests = [inference.most_powerful_test(n, null, alpha=0.05) for n in (other, NORMAL)]
    np.testing.assert_allclose(tests[0].rejection, tests[1].rejection, rtol=1e-11)
    assert abs(tests[0].threshold - tests[1].threshold) > 1e-4


@pytest.mark.parametrize("kind", ["e1.n", "G1.n"])
def test_one_sided_p_values(kind):
    entries = topic_checks("03", f"pvalue.{kind}10.")
    released = np.asarray([e["params"]["T"] for e in entries])
    ask = lambda z, side, prob: inference.binomial_p_value(
        z, KINDS[kind], 10, prob, alternative=side
    )
    found = ask(released, "greater", 0.5)
    np.testing.assert_allclose(found, [e["value"] for e in entries], rtol=RTOL)
    np.testing.assert_allclose(ask(released, "less", 0.5), 1 - found, rtol=1e-12)
    np.testing.assert_allclose(
        ask(10 - released, "less", 0.7), ask(released, "greater", 0.3), rtol=1e-12
    )


def test_two_sided_p_values_and_limits():
    args = 21.3, TULAP, 30
    p = inference.binomial_p_value(*args, 0.5)
    np.testing.assert_allclose(p, _entry("p2.e1.n30.Z21.3.th0.5"), rtol=RTOL)
    low, one = inference.binomial_interval_from(*args, alternative="greater")
    np.testing.assert_allclose(low, _entry("ci1.e1.n30.Z21.3.lower"), rtol=RTOL)
    assert one == 1
    low, high = inference.binomial_interval_from(*args)
    np.testing.assert_allclose(low, _entry("ci2.e1.n30.Z21.3.lower"), rtol=RTOL)
    np.testing.assert_allclose(high, _entry("ci2.e1.n30.Z21.3.upper"), rtol=RTOL)
    both = inference.binomial_interval_from(*args, method="bonferroni")
    one_sided = [
        inference.binomial_interval_from(*args, confidence=0.975, alternative=side)[i]
        for i, side in enumerate(("greater", "less"))
    ]
    np.testing.assert_allclose(both, one_sided, rtol=1e-10)
    # A count far outside of 0..n says nothing against the nearest end.
    np.testing.assert_array_equal(
        inference.binomial_interval_from(45.0, TULAP, 30)[1], 1.0
    )


def test_unbiased_test():
    test = inference.unbiased_test(TULAP, 10, 0.75, alpha=0.1)
    np.testing.assert_allclose(test.center, _entry("umpu.e1.n10.th0.75.k"), rtol=RTOL)
    np.testing.assert_allclose(
        test.threshold, _entry("umpu.e1.n10.th0.75.m"), rtol=RTOL
    )
    middle = inference.unbiased_test(TULAP, 10, 0.5, alpha=0.1)
    np.testing.assert_allclose(middle.center, 5, rtol=1e-9)
    x = np.arange(11)
    phi = TULAP.cdf(np.abs(x - test.center) - test.threshold)
    assert inference.is_private_test(phi, PURE)
    weight = _binomial(10, 0.75)
    np.testing.assert_allclose(weight @ phi, 0.1, rtol=1e-11)
    np.testing.assert_allclose(weight @ ((x - 7.5) * phi), 0, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["G1.n", "e1.d0.05.n"])
def test_two_sided_tests_by_enumeration(name):
    """Size, slope, privacy and power of every n up to 12, by all values of the sum."""
    noise, alpha, null, true = KINDS[name], 0.1, 0.3, 0.55

    for n in range(1, 13):
        test = inference.unbiased_test(noise, n, null, alpha=alpha)
        ask = lambda p, n=n: inference.unbiased_power(noise, n, null, p, alpha=alpha)
        power, slope = jax.value_and_grad(ask)(true)
        x = np.arange(n + 1)
        phi = np.asarray(noise.cdf(np.abs(x - test.center) - test.threshold))
        assert inference.is_private_test(phi, noise.tradeoff)
        weight = _binomial(n, null)
        np.testing.assert_allclose(weight @ phi, alpha, rtol=1e-10)
        np.testing.assert_allclose(weight @ ((x - n * null) * phi), 0, atol=1e-10)
        weight = _binomial(n, true)
        np.testing.assert_allclose(power, weight @ phi, rtol=1e-10)
        score = (x - n * true) / (true * (1 - true))
        np.testing.assert_allclose(slope, weight @ (score * phi), rtol=1e-9, atol=1e-15)
        assert power >= alpha - 1e-12  # unbiased; n = 1 tells nothing apart


def test_free_p_value():
    (entry,) = topic_checks("03", "thm43")
    phi, null = [0.02, 0.06, 0.2], [0.5, 0.3, 0.2]
    found = inference.free_p_value(entry["params"]["T"], NORMAL, phi, null)
    np.testing.assert_allclose(found, entry["value"], rtol=RTOL)
    worse = inference.free_p_value(0.4, NORMAL, phi, [null, [0, 0, 1]])
    assert worse > found
    with pytest.raises(ValueError, match="null must be"):
        inference.free_p_value(0.4, NORMAL, phi, [0.5, 0.3, 0.1])
    # Valid, and rejects at alpha = E phi exactly as phi does.
    draws = inference.private_statistic(jax.random.key(0), NORMAL, np.full(4000, 0.06))
    assert abs(np.mean(np.asarray(draws) >= 0) - 0.06) < 5 * np.sqrt(0.06 / 4000)


def test_two_proportions():
    c = inference.semi_private_threshold(NORMAL, 10, 12, 8, alpha=0.05)
    np.testing.assert_allclose(c, _entry("semi.G1.n10.m12.z8.c"), rtol=RTOL)
    phi = NORMAL.cdf(2 * 6 - 8 - c)
    np.testing.assert_allclose(phi, _entry("semi.G1.n10.m12.z8.phi6"), rtol=RTOL)
    p = inference.two_proportion_p_value(
        3.4, 9.1, NORMAL, 10, 12, alternative="greater"
    )
    np.testing.assert_allclose(p, _entry("diffprop.G1.p"), rtol=RTOL)
    less = inference.two_proportion_p_value(
        3.4, 9.1, NORMAL, 10, 12, alternative="less"
    )
    np.testing.assert_allclose(p + less, 1, rtol=1e-12)


# ---------------------------------------------------------------- the three forms


def _form_one(f, null, alpha):
    """phi(x) = 0, c, 1 - f(phi(x - 1)): a search over y and c, in plain Python."""
    tpr = lambda a: float(f.tpr(fpr=a, bound=fdp.Bound.ESTIMATE))
    end = tpr(0.0)

    def test(y, c):
        phi = np.zeros(null.size)
        phi[y] = c
        for x in range(y + 1, null.size):
            phi[x] = tpr(phi[x - 1])
        return phi

    y = next(
        (y for y in range(null.size - 1, 0, -1) if null @ test(y, end) >= alpha), 0
    )
    low, high = (-60.0, 0.0) if y == 0 else (np.log(end) - 60, np.log(end))
    for _ in range(34):
        middle = (low + high) / 2
        below = null @ test(y, np.exp(middle)) < alpha
        low, high = (middle, high) if below else (low, middle)
    return test(y, np.exp(high))


@pytest.mark.parametrize("f", [PURE, APPROX, GDP], ids=["pure", "approx", "gdp"])
def test_three_forms_agree(f):
    null = _binomial(4, 0.4)
    test = inference.most_powerful_test(f, null, alpha=0.07)
    np.testing.assert_allclose(_form_one(f, null, 0.07), test.rejection, atol=3e-9)
    noise = fdp.canonical_noise(f)
    m = float(test.threshold)
    # Form 3: p <= alpha exactly where X + N >= m.
    p = inference.binomial_p_value(
        np.asarray([m - 1e-6, m + 1e-6]), noise, 4, 0.4, alternative="greater"
    )
    assert p[0] > 0.07 > p[1]


@pytest.mark.parametrize(
    ("f", "n"),
    [
        *itertools.product([PURE, APPROX, GDP], [1, 3]),
        pytest.param(APPROX, 12, marks=pytest.mark.slow),
    ],
)
def test_by_enumeration_of_all_data_sets(f, n):
    test = inference.most_powerful_test(f, _binomial(n, 0.3), alpha=0.1)
    phi = np.asarray(test.rejection)
    data = np.asarray(list(itertools.product((0, 1), repeat=n)))
    sums = data.sum(axis=1)
    prob = lambda theta: np.prod(np.where(data == 1, theta, 1 - theta), axis=1)
    np.testing.assert_allclose(prob(0.3) @ phi[sums], 0.1, rtol=1e-11)
    np.testing.assert_allclose(
        prob(0.6) @ phi[sums],
        inference.binomial_power(f, n, 0.3, 0.6, alpha=0.1),
        rtol=1e-11,
    )
    codes = data @ (1 << np.arange(n))
    order = np.empty_like(codes)
    order[codes] = np.arange(codes.size)
    pairs = np.concatenate(
        [np.stack([order[codes], order[codes ^ (1 << i)]], axis=1) for i in range(n)]
    )
    excess = inference.privacy_excess(phi[sums], f, pairs=pairs)
    assert -1e-9 < excess < 1e-12  # private, and with nothing left over


def test_checker():
    # S2 Lemma 4.1 by hand: 0.6 against 1 - f(0.2) = e 0.2.
    np.testing.assert_allclose(
        inference.privacy_excess([0.1, 0.2, 0.6], PURE), 0.6 - np.e * 0.2, rtol=1e-12
    )
    # Infinite loss: phi may jump from 0 to delta, not further.
    assert inference.is_private_test([0.0, 0.05], APPROX)
    assert not inference.is_private_test([0.0, 0.051], APPROX)
    assert not inference.is_private_test([0.0, 1e-9], PURE)
    assert inference.is_private_test([0.3], PURE)
    with pytest.raises(ValueError, match="phi must be in"):
        inference.privacy_excess([0.1, 1.2], PURE)
    with pytest.raises(ValueError, match="pairs must be in"):
        inference.privacy_excess([0.1, 0.2], PURE, pairs=np.asarray([[0, 2]]))


def test_recursion_serves_as_well():
    """The same numbers through a curve known by its vertices only."""
    table = tradeoff.PrivacyProfile.from_points([1.0], [0.05])
    one = inference.most_powerful_test(table, _binomial(10, 0.5), alpha=0.05)
    np.testing.assert_allclose(one.threshold, _entry("ump.e1.d0.05.n10.m"), rtol=1e-11)
    assert inference.is_private_test(one.rejection, table)


# --------------------------------------------------------------- power and planning


def test_power_is_differentiable():
    def power(epsilon, theta):
        f = tradeoff.ApproxDP(epsilon=epsilon, delta=0.0)
        return inference.binomial_power(f, 40, 0.5, theta, alpha=0.05)

    slopes = jax.grad(power, argnums=(0, 1))(0.8, 0.7)
    step = 1e-5
    wanted = [
        (power(0.8 + step, 0.7) - power(0.8 - step, 0.7)) / (2 * step),
        (power(0.8, 0.7 + step) - power(0.8, 0.7 - step)) / (2 * step),
    ]
    np.testing.assert_allclose(slopes, wanted, rtol=1e-6)


def test_sample_size():
    size = lambda **k: inference.binomial_sample_size(TULAP, 0.5, 0.65, **k)
    n = size(alpha=0.05, power=0.8)
    ask = lambda n: inference.binomial_power(TULAP, n, 0.5, 0.65, alpha=0.05)
    assert ask(n) >= 0.8 > ask(n - 1)
    with pytest.raises(ValueError, match="max_records must be larger"):
        size(alpha=0.05, power=0.8, max_records=8)


def test_a_million_records():
    n, z = 10**6, 501_234.0
    p = inference.binomial_p_value(z, NORMAL, n, 0.5, alternative="greater")
    # X + N(0, 1) against the tail of X: the noise is small, its law nearly normal.
    sd = np.sqrt(n / 4 + 1)
    np.testing.assert_allclose(p, stats.norm.sf((z - n / 2) / sd), rtol=1e-3)
    x = np.arange(n // 2 - 20_000, n // 2 + 20_001)
    exact = stats.binom.pmf(x, n, 0.5) @ stats.norm.cdf(x - z)
    np.testing.assert_allclose(p, exact, rtol=1e-9)


def _tulap(delta):
    """Survival function and density of Tulap noise by Awan and Slavkovic, eps = 1."""
    b = np.exp(-1.0)
    q = 2 * delta * b / (1 - b + 2 * delta * b)

    def sf(t):
        size = np.abs(t)
        r = np.round(size)
        tail = b**r * (b + (r - size + 0.5) * (1 - b)) / (1 + b)
        tail = np.clip((tail - q / 2) / (1 - q), 0, 1)
        return np.where(t < 0, 1 - tail, tail)

    def pdf(t):
        inside = (sf(t) > 0) & (sf(t) < 1)
        return inside * b ** np.round(np.abs(t)) * (1 - b) / (1 + b) / (1 - q)

    return sf, pdf


@pytest.mark.parametrize(
    ("f", "delta", "end"),
    [(PURE, 0.0, 45.0), (APPROX, 0.05, None)],
    ids=["pure", "approx"],
)
def test_difference_against_a_double_sum(f, delta, end):
    n, m, x, y = 7, 5, 2.3, 3.9
    pooled = (x + y) / (n + m)
    found = inference.two_proportion_p_value(x, y, f, n, m, alternative="greater")
    sf, pdf = _tulap(delta)
    end = end or topic_checks("03", "support.e1.d0.05")[0]["value"]
    edges = np.append(np.arange(-45, 45.5, 0.5), [-end, end])
    weight = np.outer(_binomial(n, pooled), _binomial(m, pooled))
    nodes, rule = np.polynomial.legendre.leggauss(4)
    exact = 0.0
    for a, b in itertools.product(range(n + 1), range(m + 1)):
        # P(N2 / m - N1 / n >= s), by Gauss's rule between the edges of both.
        s = y / m - x / n - (b / m - a / n)
        cuts = np.unique(np.append(edges, np.clip((edges / m - s) * n, -45, 45)))
        half = 0.5 * np.diff(cuts)[:, None]
        v = cuts[:-1, None] + half * (1 + nodes)
        exact += weight[a, b] * np.sum(half * rule * pdf(v) * sf(m * (s + v / n)))
    np.testing.assert_allclose(found, exact, rtol=1e-11)


def test_semi_private_power_bounds_the_private_test():
    n = m = 12
    bound = inference.semi_private_power(NORMAL, n, m, 0.3, 0.7, alpha=0.1)
    size = inference.semi_private_power(NORMAL, n, m, 0.4, 0.4, alpha=0.1)
    np.testing.assert_allclose(size, 0.1, rtol=1e-10)
    rng = np.random.default_rng(5)
    runs = 1500
    x = rng.binomial(n, 0.3, runs) + rng.normal(size=runs)
    y = rng.binomial(m, 0.7, runs) + rng.normal(size=runs)
    ask = jitted(
        jax.vmap(
            lambda a, b: inference.two_proportion_p_value(
                a, b, NORMAL, n, m, alternative="greater"
            )
        )
    )
    share = np.mean(np.asarray(ask(x, y)) <= 0.1)
    error = np.sqrt(0.25 / runs)
    assert share < bound + 4 * error
    assert share > 0.8 * bound - 4 * error


# ---------------------------------------------------------------------- simulation


def test_size_power_and_coverage():
    runs, n, prob = 4000, 25, 0.35
    rng = np.random.default_rng(11)
    noise = TULAP.sample(jax.random.key(4), (runs,))
    z = rng.binomial(n, prob, runs) + np.asarray(noise)
    error = lambda p: 4.5 * np.sqrt(p * (1 - p) / runs)
    for side in ("greater", "less", "two-sided"):
        p = np.asarray(inference.binomial_p_value(z, TULAP, n, prob, alternative=side))
        if side == "two-sided":  # approximately unbiased, of level at most alpha
            assert np.mean(p <= 0.05) < 0.05 + error(0.05)
        else:
            assert abs(np.mean(p <= 0.05) - 0.05) < error(0.05)
    power = float(inference.binomial_power(TULAP, n, 0.2, prob, alpha=0.05))
    p = inference.binomial_p_value(z, TULAP, n, 0.2, alternative="greater")
    assert abs(np.mean(np.asarray(p) <= 0.05) - power) < error(power)
    # The limits invert these tests: theta is covered exactly where p > alpha.
    few = z[:40]
    ask = jitted(
        jax.vmap(
            lambda v: inference.binomial_interval_from(v, TULAP, n, confidence=0.9)
        )
    )
    low, high = ask(few)
    p = inference.binomial_p_value(few, TULAP, n, prob)
    np.testing.assert_array_equal((low <= prob) & (prob <= high), p >= 0.1)


@pytest.mark.slow
def test_size_and_power_of_two_proportions():
    runs, n, m = 800, 60, 40
    rng = np.random.default_rng(5)
    drawn = np.asarray(TULAP.sample(jax.random.key(6), (runs, 2)))

    @jitted
    def p_values(rows):
        ask = lambda r: inference.two_proportion_p_value(r[0], r[1], TULAP, n, m)
        return jax.lax.map(ask, rows)

    share = {}
    for other in (0.3, 0.6):
        x, y = rng.binomial(n, 0.3, runs), rng.binomial(m, other, runs)
        share[other] = np.mean(np.asarray(p_values(np.stack([x, y], 1) + drawn)) <= 0.1)
    # The level is approximate: some .01 are allowed beside the chance.
    assert abs(share[0.3] - 0.1) < 0.01 + 4.5 * np.sqrt(0.09 / runs)
    # The normal approximation's power, with the noise's variance in it.
    spread = sum(
        p * (1 - p) / k + float(TULAP.variance()) / k**2
        for p, k in ((0.3, n), (0.6, m))
    )
    power = stats.norm.cdf(0.3 / np.sqrt(spread) - stats.norm.isf(0.05))
    assert abs(share[0.6] - power) < 0.05


# ------------------------------------------------------------------------ releases


def test_releases():
    key = jax.random.key(8)
    count = inference.release_count(key, 120, APPROX, confidence=0.9)
    noise = fdp.canonical_noise(APPROX)
    np.testing.assert_allclose(count.estimate - 120, noise.sample(key))
    width = count.interval[1] - count.interval[0]
    np.testing.assert_allclose(width, 2 * noise.isf(0.05))
    found = inference.binomial_test(key, 62, 100, 0.5, PURE)
    args = found.released[0], TULAP, 100
    np.testing.assert_allclose(found.p_value, inference.binomial_p_value(*args, 0.5))
    np.testing.assert_allclose(found.interval, inference.binomial_interval_from(*args))
    assert "guarantee" in str(found)
    assert found.exact
    assert isinstance(found.guarantee, tradeoff.ApproxDP)
    twice = inference.binomial_interval(key, 62, 100, PURE, method="bonferroni")
    ends = inference.binomial_interval_from(*args, method="bonferroni")
    np.testing.assert_allclose(twice.interval, ends)
    only = inference.binomial_interval(key, 62, 100, PURE, alternative="less")
    assert only.p_value is None
    assert only.interval[0] == 0
    two = inference.two_proportion_test(key, 8, 12, 3, 9, NORMAL)
    assert not two.exact
    assert two.interval[0] < two.estimate < two.interval[1]
    covers = (two.interval[0] < 0) & (two.interval[1] > 0)
    assert covers == (two.p_value > 0.05)


def test_a_large_count_keeps_its_privacy_in_float32():
    """Rounded before its noise is added, 123456789 would move by 8, not by 1."""
    noise, keys = TULAP, jax.random.split(jax.random.key(1), 20000)
    with jax.enable_x64(False):

        def released(count):
            one = lambda key: inference.release_count(key, count, noise, confidence=0.9)
            return jax.vmap(lambda key: (one(key).released[0], one(key).interval))(keys)

        (first, _), (second, interval) = released(123456788), released(123456789)
    assert first.dtype == np.float32
    low = [np.mean(np.asarray(x, float) <= 123456784) for x in (first, second)]
    assert 1.0 < low[0] / low[1] < np.e * 1.06  # 6 standard deviations of the ratio
    ends = [np.asarray(x, np.float64) for x in interval]
    covered = np.mean((ends[0] <= 123456789) & (ends[1] >= 123456789))
    assert covered > 0.9
    assert "123456789" in str(inference.release_count(keys[0], 123456789, TULAP))


def test_derivatives_of_the_power_at_certain_outcomes():
    power = lambda p0, p1: inference.binomial_power(GDP, 10, p0, p1, alpha=0.05)
    for null, true, step in ((0.0, 0.0, 1e-6), (0.5, 1.0, -1e-6)):
        slope = (power(null, true + step) - power(null, true)) / step
        found = jax.grad(power, 1)(null, true)
        np.testing.assert_allclose(found, slope, rtol=1e-4)


def test_a_release_has_the_noise_it_says():
    wide = fdp.canonical_noise(PURE, sensitivity=2.0)
    found = inference.release_count(jax.random.key(0), 5, wide, sensitivity=2.0)
    assert found.noise.sensitivity == 2
    with pytest.raises(ValueError, match="sensitivity must be that of the noise"):
        inference.release_count(jax.random.key(0), 5, wide, sensitivity=1.0)


def test_traced_arguments_are_checked_too():
    @eqx.filter_jit
    def p_value(n):
        return inference.binomial_p_value(5.0, PURE, n, 0.5)

    with pytest.raises(Exception, match=r"num_records must be at most.*got 1000000000"):
        p_value(jnp.asarray(1e9))

    @eqx.filter_jit
    def difference(epsilon):
        f = tradeoff.ApproxDP(epsilon=epsilon, delta=0.0)
        return inference.two_proportion_p_value(120.0, 300.0, f, 400, 500)

    with pytest.raises(Exception, match=r"parameters are traced, got that at N = \d"):
        difference(jnp.asarray(0.002))

    narrow, key = fdp.canonical_noise(GDP, sensitivity=0.5), jax.random.key(0)
    for use in (
        lambda noise: inference.binomial_p_value(12.0, noise, 30, 0.5),
        lambda noise: inference.binomial_test(key, 12, 30, 0.5, noise).estimate,
    ):
        with pytest.raises(Exception, match=r"noise must have sensitivity 1.*got 0\.5"):
            eqx.filter_jit(use)(narrow)

    @jitted
    def free(null):
        return inference.free_p_value(1.0, PURE, [0.1, 0.2], null)

    null = np.asarray([[0.5, 0.5], [0.1, 0.9]])
    known = inference.free_p_value(1.0, PURE, [0.1, 0.2], null)
    np.testing.assert_allclose(free(null), known, rtol=1e-14)


def test_refusals():
    wide = fdp.canonical_noise(PURE, sensitivity=2.0)
    with pytest.raises(ValueError, match="noise must have sensitivity 1"):
        inference.binomial_threshold(wide, 10, 0.5, alpha=0.05)
    for bad, name in (
        (
            lambda: inference.binomial_threshold(TULAP, 0, 0.5, alpha=0.05),
            "num_records",
        ),
        (lambda: inference.binomial_threshold(TULAP, 9, 1.5, alpha=0.05), "null_prob"),
        (lambda: inference.binomial_threshold(TULAP, 9, 0.5, alpha=0.0), "alpha"),
        (
            lambda: inference.binomial_p_value(3.0, TULAP, 9, 0.5, alternative="both"),
            "alternative",
        ),
        (lambda: inference.unbiased_test(TULAP, 9, 1.0, alpha=0.1), "null_prob"),
        (
            lambda: inference.semi_private_threshold(TULAP, 4, 4, 9, alpha=0.1),
            "total",
        ),
        (
            lambda: inference.binomial_interval_from(3.0, TULAP, 9, confidence=1.0),
            "confidence",
        ),
        (
            lambda: inference.binomial_p_value(1.0, TULAP, 10**9, 0.5),
            "num_records must be at most 16777216",
        ),
        (
            lambda: inference.binomial_test(jax.random.key(0), 11, 10, 0.5, PURE),
            "count must be at most num_records, 10, got 11",
        ),
        (
            lambda: inference.two_proportion_test(jax.random.key(0), 1, 4, 5, 4, PURE),
            "count_y must be at most num_records_y",
        ),
        (
            lambda: inference.two_proportion_p_value(
                1.0, 2.0, tradeoff.ApproxDP(epsilon=1e-4, delta=0.0), 40, 50
            ),
            "noise must have P",
        ),
    ):
        with pytest.raises(ValueError, match=name):
            bad()
