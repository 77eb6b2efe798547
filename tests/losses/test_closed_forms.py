import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from programs import jitted

import fdp_jax as fdp
from fdp_jax.losses import GaussianForm, LaplaceForm, LogisticForm
from fdp_jax.losses._amplification import SubsampledForm
from fdp_jax.losses._two_point import TwoPointForm

CHECKS = pathlib.Path(__file__).parents[1] / "data" / "checks.json"


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True), mp.workdps(60):
        yield


@pytest.fixture(scope="module")
def checks():
    return {c["id"]: c for c in json.loads(CHECKS.read_text())}


def with_prefix(checks, *prefixes):
    found = [c for key, c in checks.items() if key.startswith(prefixes)]
    assert found
    return found


def tail(x):
    return mp.erfc(x / mp.sqrt(2)) / 2


def log_pair(delta, rest):
    """Logs of a profile and its complement, from the smaller of the two."""
    if delta < 0.5:
        return (mp.log(delta) if delta > 0 else -mp.inf), mp.log1p(-delta)
    return mp.log1p(-rest), (mp.log(rest) if rest > 0 else -mp.inf)


def assert_logs_close(values, exact, rtol):
    """Relative agreement of logarithms; subnormal ones count as zero."""
    for value, truth in zip(np.asarray(values), exact, strict=True):
        if truth == -mp.inf:
            assert value == -np.inf
        elif abs(truth) < 1e-300:
            assert abs(value) < 1e-299
        else:
            assert abs((mp.mpf(float(value)) - truth) / truth) < rtol, (value, truth)


def derivatives(*functions):
    """Jitted gradient and Hessian of the stacked functions of one point.

    Compiled once per family of functions, which is what takes the time here.
    """

    def stacked(point, *rest):
        return jnp.stack([f(point, *rest) for f in functions])

    first = jax.jacrev(stacked)
    return jitted(lambda *a: (first(*a), jax.jacfwd(first)(*a)))


def assert_derivatives(gradient, hessian, exact, point, rtol):
    """One gradient and Hessian against differences of `exact`."""
    with mp.workdps(110):
        at = tuple(mp.mpf(float(p)) for p in point)
        step = mp.mpf(10) ** -25
        for i in range(len(point)):
            unit = [int(i == j) for j in range(len(point))]
            expected = float(mp.diff(exact, at, tuple(unit), h=step))
            np.testing.assert_allclose(gradient[i], expected, rtol, 1e-13)
            for j in range(i, len(point)):
                order = list(unit)
                order[j] += 1
                expected = float(mp.diff(exact, at, tuple(order), h=step))
                np.testing.assert_allclose(hessian[i, j], expected, 100 * rtol, 1e-10)


class Of:
    """The methods of a closed form, as functions of its parameter and of theirs."""

    def __init__(self, kind):
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        def call(parameter, *args):
            form = self._kind(jnp.asarray(parameter))
            return getattr(form, name)(*map(jnp.asarray, args))

        return call


_gaussian, _laplace, _logistic = Of(GaussianForm), Of(LaplaceForm), Of(LogisticForm)


def without_nan(values):
    return not any(np.isnan(v).any() for v in jax.tree.leaves(values))


# Gaussian


def gaussian_exact(mu, epsilon):
    mu, epsilon = mp.mpf(float(mu)), mp.mpf(float(epsilon))
    with mp.workdps(300):
        a = epsilon / mu - mu / 2
        alpha = tail(a + mu)
        rest = tail(-a) + mp.exp(epsilon) * alpha
        return log_pair(tail(a) - mp.exp(epsilon) * alpha, rest), mp.log(alpha)


@pytest.fixture(scope="module")
def gaussian_grid():
    rng = np.random.default_rng(0)
    mu = 10 ** rng.uniform(-8, 1.5, 120)
    z = np.concatenate([rng.normal(size=60), rng.normal(size=60) * 8])
    epsilon = np.clip(mu * z + rng.choice([-0.5, 0, 0.5], 120) * mu**2, -500, 1e6)
    epsilon[:3] = 0, -1e-12, 1e-12
    return mu, epsilon, [gaussian_exact(*pair) for pair in zip(mu, epsilon)]  # noqa: B905


def test_gaussian_profile_and_complement(gaussian_grid):
    mu, epsilon, exact = gaussian_grid
    value = jitted(_gaussian.log_delta)(mu, epsilon)
    assert_logs_close(value, [e[0][0] for e in exact], 2e-13)
    value = jitted(_gaussian.log_rest)(mu, epsilon)
    assert_logs_close(value, [e[0][1] for e in exact], 5e-13)
    value = jitted(_gaussian.log_alpha)(mu, epsilon)
    assert_logs_close(value, [e[1] for e in exact], 5e-13)


gaussian_derivatives = derivatives(
    lambda p: _gaussian.log_delta(p[0], p[1]),
    lambda p: _gaussian.log_rest(p[0], p[1]),
)


@pytest.mark.parametrize(
    ("mu", "epsilon"), [(1.0, 0.7), (0.03, 0.2), (3.0, -2.0), (2.0, 20.0)]
)
def test_gaussian_derivatives(mu, epsilon):
    delta = lambda m, e: tail(e / m - m / 2) - mp.exp(e) * tail(e / m + m / 2)
    exact = lambda m, e: mp.log(delta(m, e)), lambda m, e: mp.log1p(-delta(m, e))
    gradient, hessian = gaussian_derivatives(jnp.asarray([mu, epsilon]))
    for i in range(2):
        assert_derivatives(gradient[i], hessian[i], exact[i], (mu, epsilon), 1e-12)


def test_gaussian_epsilon_is_the_root():
    rng = np.random.default_rng(1)
    mu = 10 ** rng.uniform(-8, 1.5, 60)
    log_delta = -(10 ** rng.uniform(-10, 2, 60))
    epsilon = np.asarray(jitted(_gaussian.epsilon)(mu, log_delta))
    for m, e, target in zip(mu, epsilon, log_delta, strict=True):
        (value, rest), alpha = gaussian_exact(m, e)
        target = mp.mpf(float(target))
        # Distance to the root from the residual, in the better conditioned form.
        if target < -0.7:
            error = (value - target) * mp.exp(value - e - alpha)
        else:
            error = (mp.log(-mp.expm1(target)) - rest) * mp.exp(rest - e - alpha)
        assert abs(error) < 2e-14 * abs(e)


gaussian_epsilon = jitted(_gaussian.epsilon)
epsilon_derivatives = derivatives(lambda p: _gaussian.epsilon(p[0], p[1]))


@pytest.mark.parametrize(
    ("mu", "log_delta"),
    [
        (1.0, -11.0),
        (2.0, -0.05),
        pytest.param(1e-3, -3.0, marks=pytest.mark.slow),
    ],
)
def test_gaussian_epsilon_derivatives(mu, log_delta):
    start = mp.mpf(float(gaussian_epsilon(mu, log_delta)))
    bracket = start, start * (1 + mp.mpf(10) ** -12)
    tolerance = mp.mpf(10) ** -200

    def exact(m, l):
        delta = lambda e: tail(e / m - m / 2) - mp.exp(e) * tail(e / m + m / 2)
        return mp.findroot(lambda e: mp.log(delta(e)) - l, bracket, tol=tolerance)

    gradient, hessian = epsilon_derivatives(jnp.asarray([mu, log_delta]))
    assert_derivatives(gradient[0], hessian[0], exact, (mu, log_delta), 1e-11)


def test_gaussian_edges():
    inf = jnp.inf
    mu = jnp.asarray([0.0, 0.0, inf, 1.0, 1.0, 0.0])
    epsilon = jnp.asarray([-1.0, 1.0, 2.0, inf, -inf, 0.0])
    null = np.log(-np.expm1(-1.0))
    expected = [null, -inf, 0, -inf, 0, -inf]
    value = jitted(_gaussian.log_delta)(mu, epsilon)
    np.testing.assert_allclose(value, expected, rtol=1e-15)
    expected = [-1, 0, -inf, 0, -inf, 0]
    value = np.asarray(jitted(_gaussian.log_rest)(mu, epsilon))
    # No number tells mu = inf from 1e61, whose log(1 - delta) is -1e121.
    assert value[2] < -1e121
    np.testing.assert_allclose(np.where(value < -1e121, -inf, value), expected)
    log_delta = jnp.asarray([-inf, 0.0, -1.0, -1.0, -7e5])
    mu = jnp.asarray([1.0, 1.0, 0.0, inf, 1.0])
    expected = [inf, -inf, np.log(-np.expm1(-1.0)), inf, 1183.70321860047]
    value = jitted(_gaussian.epsilon)(mu, log_delta)
    np.testing.assert_allclose(value, expected, rtol=1e-13)


def test_gaussian_trade_off_function(checks):
    rates = jitted(_gaussian.log_rates)
    for check in with_prefix(checks, "01.gdp_f.mu"):
        mu, alpha = check["params"]["mu"], check["params"]["alpha"]
        value, _ = rates(mu, np.log(alpha), np.log1p(-alpha))
        # alpha near one is only known to its rounding error.
        slack = 1e-15 + 3e-16 / (1 - alpha)
        np.testing.assert_allclose(np.exp(value), check["value"], rtol=slack)
    _, power = rates(1.0, np.log(1e-12), np.log1p(-1e-12))
    np.testing.assert_allclose(np.exp(power), 7.9735801046410808e-10, rtol=1e-13)
    value, _ = rates(30.0, np.log(0.1), np.log(0.9))
    np.testing.assert_allclose(value, -416.65232732945067, rtol=1e-14)
    # alpha = 1 - 1e-300 is told apart from one.
    value, _ = rates(2.0, -1e-300, np.log(1e-300))
    np.testing.assert_allclose(value, float(mp.log(tail(mp.mpf("39.0471")))), rtol=1e-6)


def test_gaussian_check_values(checks):
    log_delta = jitted(_gaussian.log_delta)
    for check in with_prefix(checks, "01.gdp_delta.mu"):
        mu, epsilon = check["params"]["mu"], check["params"]["eps"]
        value = np.exp(log_delta(float(mu), float(epsilon)))
        np.testing.assert_allclose(value, check["value"], rtol=1e-13)
    np.testing.assert_allclose(log_delta(1.0, 50.0), -1233.8690831424055, rtol=1e-15)
    np.testing.assert_allclose(log_delta(0.1, 5.0), -1258.5480169642434, rtol=1e-15)
    epsilon = jitted(_gaussian.epsilon)(1.0, np.log(1e-5))
    np.testing.assert_allclose(epsilon, 4.3771780956812246, rtol=1e-15)


# One subsampled step


def one_step_exact(sigma, q, epsilon, sign):
    """delta, 1 - delta and alpha from the definition."""
    mu, x = 1 / sigma, sign * epsilon
    if mp.exp(x) <= 1 - q:
        if sign > 0:
            return -mp.expm1(epsilon), mp.exp(epsilon), mp.mpf(1)
        return mp.mpf(0), mp.mpf(1), mp.mpf(0)
    t = mp.log1p(mp.expm1(x) / q)
    a, b = t / mu - mu / 2, t / mu + mu / 2
    if sign > 0:
        alpha = tail(b)
        beta = (1 - q) * tail(-b) + q * tail(-a)
    else:
        alpha = (1 - q) * tail(-b) + q * tail(-a)
        beta = tail(b)
    rest = beta + mp.exp(epsilon) * alpha
    return 1 - rest, rest, alpha


@pytest.fixture(scope="module")
def one_step_grid():
    # As many points as in the grid of edge cases below, to compile once.
    rng = np.random.default_rng(3)
    sigma = 10 ** rng.uniform(-1, 4, 224)
    q = np.where(rng.random(224) < 0.1, 1.0, 10 ** rng.uniform(-12, 0, 224))
    sign = rng.choice([1.0, -1.0], 224)
    t = np.clip(rng.normal(size=224) * 4 / sigma, -20, 20)
    epsilon = sign * np.log1p(q * np.expm1(t))
    epsilon[:3] = 0.0, -3.0, -1e-12
    exact = []
    with mp.workdps(300):
        for row in zip(sigma, q, epsilon, sign, strict=True):
            delta, rest, alpha = one_step_exact(*(mp.mpf(float(v)) for v in row))
            log_alpha = mp.log(alpha) if alpha > 0 else -mp.inf
            exact.append((*log_pair(delta, rest), log_alpha))
    return (sigma, q, epsilon, sign), exact


def one_step_form(sigma, q, sign):
    return SubsampledForm(GaussianForm(1 / sigma), q, sign)


def one_step_all(sigma, q, epsilon, sign):
    return jnp.stack(one_step_form(sigma, q, sign).logs(epsilon))


one_step_values = jitted(jax.vmap(one_step_all))
one_step_jacobian = jitted(jax.vmap(jax.jacrev(one_step_all, (0, 1, 2))))


def test_one_step_values(one_step_grid):
    arguments, exact = one_step_grid
    values = np.asarray(one_step_values(*arguments))
    _, in_q, in_epsilon = (np.abs(j) for j in one_step_jacobian(*arguments))
    # Next to the end of its support the loss is ill-conditioned in q and epsilon:
    # allow for one rounding error of the arguments.
    moved = in_q * arguments[1][:, None] + in_epsilon * np.abs(arguments[2])[:, None]
    slack = 3e-13 * np.abs(values) + 3e-16 * moved
    # Next to one, delta and alpha have the digits of a probability.
    slack[:, [0, 2]] += 1e-15
    truths = [t for row in exact for t in row]
    for value, truth, room in zip(values.ravel(), truths, slack.ravel(), strict=True):
        if truth == -mp.inf:
            assert value == -np.inf
        else:
            assert abs(value - truth) <= max(room, 1e-299)


def test_one_step_check_values(checks):
    log_delta = jitted(lambda s, q, e, sign: one_step_form(s, q, sign).log_delta(e))
    for check in with_prefix(checks, "01.sgm_delta."):
        p = check["params"]
        sign = 1.0 if ".remove." in check["id"] else -1.0
        value = np.exp(log_delta(float(p["sigma"]), p["p"], p["eps"], sign))
        np.testing.assert_allclose(value, check["value"], rtol=1e-13)


one_step_derivatives = derivatives(
    lambda p, sign: one_step_form(p[0], p[1], sign).log_delta(p[2]),
    lambda p, sign: one_step_form(p[0], p[1], sign).log_rest(p[2]),
)


@pytest.mark.parametrize(
    ("sigma", "q", "epsilon", "sign"),
    [(0.8, 0.01, 0.4, 1.0), (5.0, 1e-6, 3e-7, -1.0), (1.0, 0.3, -0.2, -1.0)],
)
def test_one_step_derivatives(sigma, q, epsilon, sign):
    point = sigma, q, epsilon
    gradient, hessian = one_step_derivatives(jnp.asarray(point), sign)
    for i in range(2):
        exact = lambda s, r, e, k=i: mp.log(one_step_exact(s, r, e, sign)[k])
        assert_derivatives(gradient[i], hessian[i], exact, point, 1e-11)


def test_one_step_gradients_are_finite_everywhere():
    sigma, q, epsilon, sign = (
        g.ravel()
        for g in np.meshgrid(
            [0.1, 1.0, 1e4, np.inf],
            [1e-100, 1e-12, 0.3, 1.0],
            [-np.inf, -1e3, -1.0, 0.0, 0.1, 1e4, np.inf],
            [1.0, -1.0],
        )
    )

    values = one_step_values(sigma, q, epsilon, sign)
    assert without_nan(values)
    assert np.max(values) <= 0
    for gradient in one_step_jacobian(sigma, q, epsilon, sign):
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("release", [fdp.Gaussian(0.8), fdp.Laplace(1.0)])
def test_gradients_are_finite_where_nobody_is_sampled(release):
    step = lambda q: fdp.PoissonSubsampled(release, q)
    for question in (
        lambda q: step(q).delta(epsilon=0.5, bound="estimate"),
        lambda q: step(q).epsilon(delta=1e-5, bound="estimate"),
        lambda q: step(q).beta(alpha=0.1, bound="estimate"),
    ):
        assert np.isfinite(jax.grad(question)(0.0))


def one_step_epsilon(sigma, q, log_delta, sign):
    return one_step_form(sigma, q, sign).epsilon(log_delta)


def test_one_step_epsilon_is_the_inverse(one_step_grid):
    (sigma, q, epsilon, sign), exact = one_step_grid
    log_delta = np.asarray([float(e[0]) for e in exact])
    solve = jitted(jax.vmap(one_step_epsilon))
    found = np.asarray(solve(sigma, q, log_delta, sign))
    # What the rounding of log delta, or of log(1 - delta), leaves of epsilon.
    log_rest = np.asarray([float(e[1]) for e in exact])
    log_alpha = np.asarray([float(e[2]) for e in exact])
    small = log_delta < np.log(0.5)
    scale = np.where(small, log_delta, log_rest)
    used = np.isfinite(scale) & np.isfinite(log_alpha) & (log_delta < -1e-290)
    scale, found, epsilon = scale[used], found[used], epsilon[used]
    slack = np.exp(scale - epsilon - log_alpha[used]) * np.maximum(np.abs(scale), 1)
    error = np.abs(found - epsilon)
    assert (error <= 1e-14 * slack + 1e-12 * np.abs(epsilon)).all()
    assert used.sum() > 80


def test_one_step_epsilon_derivatives_next_to_the_largest_loss():
    """Where epsilon in float64 is the end of the losses, -log(1 - q)."""
    s, q, delta = 0.14677800794890233, 0.007633845112539524, 1.5227513882563584e-24

    def exact(s, q, delta):
        """By the place x of the output at which the loss is epsilon."""

        def at(x):
            power = mp.log(1 - q + q * mp.exp((2 * x - 1) / (2 * s * s)))
            above = (1 - q) * mp.ncdf(x / s) + q * mp.ncdf((x - 1) / s)
            return mp.ncdf(x / s) - mp.exp(-power) * above, -power

        x = mp.findroot(lambda x: mp.log(at(x)[0] / delta), (-1, 1), solver="anderson")
        return at(x)[1]

    def epsilon(s, q, delta):
        step = fdp.DPSGD(noise_multiplier=s, sampling_prob=q, num_steps=1)
        return step.add.epsilon(delta=delta)

    found = jax.grad(epsilon, argnums=(0, 1, 2))(s, q, delta)
    numbers = [mp.mpf(x) for x in (s, q, delta)]
    for i, value in enumerate(found):
        with mp.workdps(80):
            step = numbers[i] * mp.mpf(10) ** -20
            ends = [[x + sign * step * (i == j) for j, x in enumerate(numbers)]
                    for sign in (1, -1)]  # fmt: skip
            truth = (exact(*ends[0]) - exact(*ends[1])) / (2 * step)
        np.testing.assert_allclose(float(value), float(truth), rtol=1e-9)


def test_one_step_epsilon_edges_and_gradient():
    solve = jitted(one_step_epsilon)
    value = lambda *a: float(solve(*a))
    assert value(1.0, 0.3, -np.inf, 1.0) == np.inf
    once = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.3, num_steps=1)
    np.testing.assert_allclose(once.add.epsilon(delta=0.0), -np.log(0.7))
    np.testing.assert_allclose(value(1.0, 0.3, -0.1, 1.0), np.log(-np.expm1(-0.1)))
    assert value(1.0, 0.3, 0.0, 1.0) == -np.inf

    def solution(point, sign):
        return one_step_epsilon(point[0], point[1], point[2], sign)

    def profile(point, epsilon, sign):
        return one_step_form(point[0], point[1], sign).log_delta(epsilon)

    both = jitted(jax.value_and_grad(solution))
    partials = jitted(jax.grad(profile, (0, 1)))
    point = jnp.asarray([0.9, 0.05, -6.0])
    for sign in (1.0, -1.0):
        epsilon, gradient = both(point, sign)
        in_point, slope = partials(point, epsilon, sign)
        expected = [-in_point[0] / slope, -in_point[1] / slope, 1 / slope]
        np.testing.assert_allclose(gradient, expected, rtol=1e-12)


# Two-point losses


def two_point_exact(epsilon0, delta0, n, epsilon):
    """delta, 1 - delta and P(X > eps) by adding up all outcomes."""
    p, q = 1 / (1 + mp.exp(-epsilon0)), 1 / (1 + mp.exp(epsilon0))
    keep = (1 - delta0) ** n
    delta = alpha = mp.mpf(0)
    mass = q**n
    for k in range(n + 1):
        loss = (2 * k - n) * epsilon0
        if loss > epsilon:
            delta -= mass * mp.expm1(epsilon - loss)
            alpha += mass * mp.exp(-loss)
        mass = mass * (n - k) / (k + 1) * p / q
    delta = 1 - keep + keep * delta
    return delta, 1 - delta, keep * alpha


@pytest.fixture(scope="module")
def two_point_grid():
    rng = np.random.default_rng(4)
    n = rng.choice([0, 1, 2, 3, 10, 30, 100], 60).astype(float)
    epsilon0 = 10 ** rng.uniform(-4, 1, 60)
    delta0 = rng.choice([0, 1e-12, 1e-6, 0.01, 0.5], 60)
    epsilon = rng.uniform(-1.1, 1.1, 60) * n * epsilon0
    exact = []
    with mp.workdps(500):
        for e0, d0, m, e in zip(epsilon0, delta0, n, epsilon, strict=True):
            row = (mp.mpf(float(v)) for v in (e0, d0, e))
            e0, d0, e = row
            delta, rest, alpha = two_point_exact(e0, d0, int(m), e)
            log_alpha = mp.log(alpha) if alpha > 0 else -mp.inf
            exact.append((*log_pair(delta, rest), log_alpha))
    return (epsilon0, delta0, n, epsilon), exact


def two_point_logs(epsilon0, delta0, n, epsilon):
    form = TwoPointForm(*map(jnp.asarray, (epsilon0, delta0, n)))
    return form.logs(jnp.asarray(epsilon))


def two_point_root(epsilon0, delta0, n, log_delta):
    form = TwoPointForm(*map(jnp.asarray, (epsilon0, delta0, n)))
    return form.epsilon(jnp.asarray(log_delta))


two_point_values = jitted(two_point_logs)
two_point_log_delta = jitted(lambda *args: two_point_logs(*args)[0])
two_point_epsilon = jitted(two_point_root)


def test_two_point_values(two_point_grid):
    arguments, exact = two_point_grid
    log_delta, log_rest, log_alpha = two_point_values(*arguments)
    assert_logs_close(log_delta, [e[0] for e in exact], 1e-12)
    assert_logs_close(log_rest, [e[1] for e in exact], 1e-12)
    # Next to one, alpha has the digits of a probability.
    for value, (*_, truth) in zip(np.asarray(log_alpha), exact, strict=True):
        slack = 1e-12 * abs(truth) + 4e-15 if truth > -mp.inf else 0.0
        assert value == float(truth) or abs(value - truth) < slack


def test_two_point_with_many_releases():
    n, epsilon0 = 10**6, 1e-3

    def exact(epsilon):
        e0, epsilon = mp.mpf(epsilon0), mp.mpf(float(epsilon))
        p, q = 1 / (1 + mp.exp(-e0)), 1 / (1 + mp.exp(e0))
        k = int(mp.floor((epsilon / e0 + n) / 2)) + 1
        log_mass = mp.loggamma(n + 1) - mp.loggamma(k + 1) - mp.loggamma(n - k + 1)
        mass = mp.exp(log_mass + k * mp.log(p) + (n - k) * mp.log(q))
        total = mp.mpf(0)
        while mass > total * mp.mpf(10) ** -25 or total == 0:
            total -= mass * mp.expm1(epsilon - (2 * k - n) * e0)
            mass = mass * (n - k) / (k + 1) * p / q
            k += 1
        return mp.log(total)

    with mp.workdps(35):
        epsilon = jnp.asarray([9.5003, 37.0004])  # delta down to 1e-300
        value = two_point_log_delta(epsilon0, 0.0, float(n), epsilon)
        for v, e in zip(np.asarray(value), np.asarray(epsilon), strict=True):
            assert abs(v - exact(e)) < 1e-11
    np.testing.assert_allclose(
        two_point_epsilon(epsilon0, 0.0, float(n), value), epsilon, rtol=1e-13
    )


@pytest.mark.parametrize("deviations", [0, 8])
def test_two_point_bounds_with_a_trillion_releases(deviations):
    """Tails of Bin(n, p) by the beta law of order statistics, in 60 digits."""
    n, epsilon0 = 10**12, 1e-6
    e0, epsilon = mp.mpf(epsilon0), mp.mpf(0.5 + deviations)
    k = int(mp.floor((epsilon / e0 + n) / 2)) + 1

    def tail_of(p):
        log_beta = mp.loggamma(k) + mp.loggamma(n - k + 1) - mp.loggamma(n + 1)
        log_density = lambda x: (k - 1) * mp.log(x) + (n - k) * mp.log1p(-x) - log_beta
        density = lambda x: mp.exp(log_density(x))
        # From p down over 40 standard deviations of 1 / (2 sqrt(n)).
        return mp.quad(density, [p - j * mp.mpf(5e-7) for j in range(40, -1, -1)])

    truth = tail_of(1 / (1 + mp.exp(-e0))) - mp.exp(epsilon) * tail_of(
        1 / (1 + mp.exp(e0))
    )
    found = fdp.PureDP(epsilon0).repeat(n).bounds(epsilon=float(epsilon))
    assert mp.mpf(float(found.lower)) <= truth <= mp.mpf(float(found.upper))
    assert int(found.status) == fdp.Status.TIGHT


def test_two_point_check_values(checks):
    log_delta = two_point_log_delta
    for check in with_prefix(checks, "01.compose.rr2."):
        value = log_delta(1.0, 0.0, 2.0, check["params"]["eps"])
        np.testing.assert_allclose(np.exp(value), check["value"], rtol=1e-14)


two_point_derivatives = derivatives(
    *(lambda p, n, k=k: two_point_logs(p[0], p[1], n, p[2])[k] for k in range(3))
)


@pytest.mark.parametrize(
    ("epsilon0", "delta0", "n", "epsilon"),
    [(0.3, 0.01, 20, 1.7), (1.0, 1e-6, 7, -2.2), (0.1, 0.2, 50, 0.33)],
)
def test_two_point_derivatives(epsilon0, delta0, n, epsilon):
    point = epsilon0, delta0, epsilon
    gradient, hessian = two_point_derivatives(jnp.asarray(point), float(n))
    for i in range(3):
        exact = lambda a, d, e, k=i: mp.log(two_point_exact(a, d, n, e)[k])
        assert_derivatives(gradient[i], hessian[i], exact, point, 1e-12)


def test_two_point_epsilon_is_the_inverse(two_point_grid):
    (epsilon0, delta0, n, epsilon), exact = two_point_grid
    log_delta = np.asarray([float(e[0]) for e in exact])
    log_rest = np.asarray([float(e[1]) for e in exact])
    log_alpha = np.asarray([float(e[2]) for e in exact])
    found = np.asarray(two_point_epsilon(epsilon0, delta0, n, log_delta))
    small = log_delta < np.log(0.5)
    scale = np.where(small, log_delta, log_rest)
    used = np.isfinite(log_alpha) & np.isfinite(scale) & (log_delta < -1e-290)
    scale, epsilon, found = scale[used], epsilon[used], found[used]
    slope = np.exp(log_alpha[used] + epsilon - scale)
    slack = np.maximum(np.abs(scale), 1) / slope
    # Where alpha is tiny against delta, the profile is flat and has no inverse.
    error = np.where(slope > 1e-6, np.abs(found - epsilon), 0.0)
    assert (error <= 1e-13 * slack + 1e-13 * np.abs(epsilon)).all()
    assert used.sum() > 30


def test_two_point_epsilon_derivatives():
    epsilon0, delta0, n, epsilon = 0.3, 0.01, 20, 1.7
    k = 13  # the first outcome with a loss above 1.7
    log_delta = float(two_point_values(epsilon0, delta0, float(n), epsilon)[0])

    def exact(e0, d0, l):
        p, q = 1 / (1 + mp.exp(-e0)), 1 / (1 + mp.exp(e0))
        keep = (1 - d0) ** n
        mass = [mp.binomial(n, j) * p**j * q ** (n - j) for j in range(n + 1)]
        upper = sum(mass[k:])
        alpha = sum(mass[j] * mp.exp(-(2 * j - n) * e0) for j in range(k, n + 1))
        return mp.log((1 - keep + keep * upper - mp.exp(l)) / (keep * alpha))

    point = epsilon0, delta0, log_delta
    gradient, hessian = derivatives(
        lambda p: two_point_root(p[0], p[1], float(n), p[2])
    )(jnp.asarray(point))
    assert_derivatives(gradient[0], hessian[0], exact, point, 1e-12)


def test_two_point_edges():
    inf = np.inf

    def value(epsilon0, delta0, n, delta):
        run = fdp.ApproxDP(epsilon=epsilon0, delta=delta0).repeat(n)
        return float(run.epsilon(delta=delta, bound="estimate"))

    assert value(1.0, 0.0, 5, 0.0) == 5.0  # pure DP
    assert value(1.0, 0.01, 5, 0.0) == inf
    assert value(1.0, 0.01, 5, 0.049) == inf  # 1 - 0.99^5 = 0.0490...
    assert value(1.0, 0.01, 5, 1.0) == -inf
    delta = float(np.exp(-1.0))
    np.testing.assert_allclose(value(0.0, 0.0, 5, delta), np.log1p(-delta))
    assert value(1.0, 1.0, 3, 0.1) == inf
    log_delta = two_point_log_delta
    assert float(log_delta(1.0, 0.0, 1.0, 1.0)) == -inf
    certain = log_delta(1.0, 0.01, 2.0, inf)
    np.testing.assert_allclose(np.exp(certain), 1 - 0.99**2, rtol=1e-13)


def test_two_point_gradients_are_finite_everywhere():
    epsilon0, delta0, n, epsilon = (
        g.ravel()
        for g in np.meshgrid(
            [0.0, 1e-8, 1.0, 30.0, 800.0, 1e10],
            [0.0, 0.01, 1.0],
            [0.0, 1.0, 40.0],
            [-np.inf, -2e3, -1.0, 0.0, 1.0, 4.5, 1e6, np.inf],
        )
    )

    values = two_point_values(epsilon0, delta0, n, epsilon)
    assert without_nan(values)
    assert np.max(values) <= 0
    jacobian = jitted(jax.vmap(jax.jacrev(two_point_logs, (0, 1, 3))))
    for gradient in jax.tree.leaves(jacobian(epsilon0, delta0, n, epsilon)):
        assert np.isfinite(gradient).all()


# Laplace


def test_laplace_check_values(checks):
    for check in with_prefix(checks, "01.laplace_f.mu", "01.lap_f."):
        p = check["params"]
        logs = np.log(p["alpha"]), np.log1p(-p["alpha"])
        value, _ = _laplace.log_rates(p["mu"], *logs)
        np.testing.assert_allclose(np.exp(value), check["value"], rtol=1e-13)
    for check in with_prefix(checks, "01.laplace_delta.mu", "01.lap_delta."):
        p = check["params"]
        value = np.exp(_laplace.log_delta(p["mu"], p["eps"]))
        np.testing.assert_allclose(value, check["value"], rtol=1e-13)


def test_laplace_profile_is_the_expectation_over_the_loss():
    mu, epsilon = 1.5, np.linspace(-3, 3, 25)

    def exact(e):
        positive = lambda y: max(-mp.expm1(e - y), mp.mpf(0))
        density = lambda y: mp.exp((y - mu) / 2) / 4 * positive(y)
        cut = min(max(e, -mu), mu)
        atoms = positive(mu) / 2 + mp.exp(-mu) / 2 * positive(-mu)
        return atoms + mp.quad(density, [-mu, cut, mu])

    values = np.exp(_laplace.log_delta(mu, epsilon))
    truth = [float(exact(mp.mpf(float(e)))) for e in epsilon]
    np.testing.assert_allclose(values, truth, rtol=1e-13, atol=1e-30)


def test_laplace_epsilon_is_the_inverse():
    mu = np.asarray([0.5, 1.0, 3.0, 50.0])[:, None]
    epsilon = np.linspace(-1.5, 0.99, 21) * mu
    found = _laplace.epsilon(mu, _laplace.log_delta(mu, epsilon))
    np.testing.assert_allclose(found[:3], epsilon[:3], rtol=1e-12, atol=1e-13)
    ends = _laplace.epsilon(2.0, jnp.asarray([-jnp.inf, 0.0]))
    np.testing.assert_array_equal(ends, [2.0, -np.inf])


def test_laplace_trade_off_function_and_power_add_up():
    alpha = np.asarray([0.0, 1e-300, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0])[:, None]
    mu = np.asarray([0.0, 0.3, 2.0, np.inf])
    with np.errstate(divide="ignore"):
        logs = np.log(alpha), np.log1p(-alpha)
    beta, power = map(np.exp, _laplace.log_rates(mu, *logs))
    total = beta + power
    np.testing.assert_allclose(total, 1.0, rtol=1e-14)


def test_laplace_gradients_are_finite_everywhere():
    mu, epsilon = (
        g.ravel()
        for g in np.meshgrid([0.0, 1.0, 1e5, 1e300], [-np.inf, -1, 0, 1, 2, np.inf])
    )
    functions = (
        _laplace.log_delta,
        _laplace.log_rest,
        _laplace.log_alpha,
    )
    for function in functions:
        assert not np.isnan(function(mu, epsilon)).any()
        gradients = jitted(jax.vmap(jax.grad(function, (0, 1))))
        for gradient in gradients(mu, epsilon):
            assert np.isfinite(gradient).all()
    mu, log_delta = (
        g.ravel()
        for g in np.meshgrid([0.0, 1.0, 1e300], [-np.inf, -1e3, -1.0, -1e-10, 0.0])
    )
    assert not np.isnan(_laplace.epsilon(mu, log_delta)).any()
    gradients = jitted(jax.vmap(jax.grad(_laplace.epsilon, (0, 1))))
    for gradient in gradients(mu, log_delta):
        assert np.isfinite(gradient).all()


# One release of a sampled record


def discrete(p, q):
    """P(X > t), Q(X > t), P(X < t) and Q(X < t) of finitely many outputs."""

    def tails(ratio):
        more = [b > ratio * a for a, b in zip(p, q, strict=True)]
        less = [b < ratio * a for a, b in zip(p, q, strict=True)]
        return [
            mp.fsum(x for x, one in zip(law, chosen, strict=True) if one)
            for chosen in (more, less)
            for law in (p, q)
        ]

    return tails


def symmetric(tail):
    """The same of a symmetric pair without point masses, where P(X > t) is known."""

    def tails(ratio):
        t = mp.log(ratio)
        return tail(t), 1 - tail(-t), 1 - tail(t), tail(-t)

    return tails


laplace_tail = symmetric(lambda t: mp.exp(-(t + 1) / 2) / 2 if -1 < t < 1 else t < 1)
logistic_tail = symmetric(
    lambda t: mp.expm1((1 - t) / 2) / mp.expm1(1) if -1 < t < 1 else t < 1
)
OUTPUTS = [0.5, 0.3, 0.2, 0.0], [0.25, 0.5, 0.0, 0.25]
with mp.workdps(60):
    KEPT, FLIPPED = 1 / (1 + mp.exp(-2)), 1 / (1 + mp.exp(2))
RELEASES = {
    "laplace": (fdp.Laplace(1.0), laplace_tail),
    "logistic": (fdp.Logistic(1.0), logistic_tail),
    "outputs": (fdp.FromProbabilities(*OUTPUTS), discrete(*OUTPUTS)),
    "two points": (fdp.PureDP(2.0), discrete([FLIPPED, KEPT], [KEPT, FLIPPED])),
}


def sampled_delta(tails, q, epsilon, remove):
    """The power less e^eps times the size of the best test, from its definition."""
    x = mp.exp(epsilon if remove else -epsilon)
    if x <= 1 - q:
        return -mp.expm1(epsilon) if remove else mp.mpf(0)
    p_more, q_more, p_less, q_less = tails((x - (1 - q)) / q)
    if remove:
        return (1 - q) * p_more + q * q_more - x * p_more
    return p_less - ((1 - q) * p_less + q * q_less) / x


@pytest.mark.parametrize("remove", [True, False], ids=["remove", "add"])
@pytest.mark.parametrize("name", RELEASES)
def test_one_release_of_any_sampled_pair(name, remove):
    release, tails = RELEASES[name]
    step = fdp.PoissonSubsampled(release, 0.3)
    step = step.remove if remove else step.add
    truth = lambda e: sampled_delta(tails, mp.mpf(0.3), mp.mpf(float(e)), remove)
    epsilon = np.asarray([-0.5, -0.1, 0.0, 0.03, 0.1, 0.25, 0.3, 0.4])
    found = step.bounds(epsilon=epsilon)
    assert found.method == "closed_form"
    for i, e in enumerate(epsilon):
        lower, upper = (mp.mpf(float(x[i])) for x in (found.lower, found.upper))
        assert lower <= truth(e) <= upper <= lower + 1e-11
    delta = np.asarray([0.2, 0.08, 0.01])
    delta = delta[delta > float(truth(50.0))]
    found = step.bounds(delta=delta)
    for i, d in enumerate(delta):
        assert truth(found.upper[i]) <= d <= truth(found.lower[i])
        assert found.upper[i] - found.lower[i] < 1e-10


# Logistic


def logistic_exact(mu, epsilon):
    """delta, 1 - delta and alpha by the density of the law and its optimal test."""
    if epsilon >= mu or epsilon <= -mu:
        rest = mp.exp(min(epsilon, 0))
        return 1 - rest, rest, mp.mpf(epsilon < -mu or (epsilon == -mu < mu))
    # The likelihood ratio grows with the output.
    ratio = lambda x: mp.exp(mu) * ((1 + mp.exp(-x)) / (1 + mp.exp(mu - x))) ** 2
    h = mp.exp((mu - epsilon) / 2)
    x = mp.log((mp.exp(mu) - h) / (h - 1))
    assert abs(mp.log(ratio(x)) - epsilon) < mp.mpf(10) ** -30
    alpha, power = 1 / (1 + mp.exp(x)), 1 / (1 + mp.exp(x - mu))
    gain = power - mp.exp(epsilon) * alpha
    return gain, 1 - gain, alpha


def test_logistic_profile_is_that_of_the_optimal_test():
    rng = np.random.default_rng(5)
    mu = 10 ** rng.uniform(-6, 2, 120)
    epsilon = mu * np.where(
        rng.random(120) < 0.5,
        rng.uniform(-1, 1, 120),
        1 - 10 ** rng.uniform(-9, 0, 120),
    )
    epsilon[:4] = 0.0, 1.5 * mu[1], -1.5 * mu[2], -mu[3]
    form = LogisticForm(jnp.asarray(mu))
    found = np.asarray(form.logs(jnp.asarray(epsilon)))
    back = np.asarray(form.epsilon(jnp.asarray(found[0])))
    slip = np.asarray(form.loss_error(jnp.asarray(epsilon)))
    moved = np.asarray(form.logs(jnp.asarray(epsilon - slip)))[0]
    for i in range(120):
        truth = logistic_exact(mp.mpf(float(mu[i])), mp.mpf(float(epsilon[i])))
        logs = [mp.log(t) if t else -mp.inf for t in truth]
        room = abs(moved[i] - found[0, i]) if logs[0] > -mp.inf else 0
        for value, exact in zip(found[:, i], logs, strict=True):
            same = value == float(exact)
            assert same or abs(value - exact) <= 1e-14 * (1 + abs(exact)) + room
        if logs[0] > -mp.inf:
            # A slope of delta below 1 is all that rounding delta may be divided by.
            slope = mp.exp(epsilon[i] + float(logs[2]))
            room = 1e-15 * (1 + abs(logs[0])) * truth[0] / slope + 2 * slip[i]
            assert abs(back[i] - epsilon[i]) <= 4 * room + 1e-14 * abs(epsilon[i])
    ends = _logistic.epsilon(2.0, jnp.asarray([-jnp.inf, 0.0]))
    np.testing.assert_array_equal(ends, [2.0, -np.inf])


def test_logistic_gradients_are_finite_everywhere():
    mu, epsilon = (
        g.ravel()
        for g in np.meshgrid([0.0, 1.0, 1e5], [-np.inf, -1, 0, 1, 2, 1e5, np.inf])
    )
    for function in (_logistic.log_delta, _logistic.log_rest, _logistic.log_alpha):
        values = function(mu, epsilon)
        assert not np.isnan(values).any()
        # The engine cuts a rounding off.
        assert np.max(values) <= 2.0**-53
        for gradient in jitted(jax.vmap(jax.grad(function, (0, 1))))(mu, epsilon):
            assert np.isfinite(gradient).all()
    mu, log_delta = (
        g.ravel()
        for g in np.meshgrid([0.0, 1.0, 1e5], [-np.inf, -1e3, -1.0, -1e-10, 0])
    )
    assert not np.isnan(_logistic.epsilon(mu, log_delta)).any()
    gradients = jitted(jax.vmap(jax.grad(_logistic.epsilon, (0, 1))))
    for gradient in gradients(mu, log_delta):
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("kind", [fdp.Gaussian, fdp.Laplace, fdp.Logistic])
@pytest.mark.parametrize("noise", [0.05, 0.8, 30.0])
def test_error_rates_of_one_release(kind, noise):
    """f(alpha) of the law's tails is inside of bounds, with no slack."""
    mu = 1 / mp.mpf(noise)

    def beta(alpha):
        if kind is fdp.Gaussian:
            return tail(mu + mp.sqrt(2) * mp.erfinv(2 * alpha - 1))
        if kind is fdp.Logistic:
            return (1 - alpha) / (1 + mp.expm1(mu) * alpha)
        if alpha < mp.exp(-mu) / 2:
            return 1 - mp.exp(mu) * alpha
        return mp.exp(-mu) * (1 / (4 * alpha) if alpha < 0.5 else 1 - alpha)

    alphas = [1e-9, 1e-3, 0.2, 0.5, 0.7, 0.999]
    for found, name in (
        (kind(noise).bounds(alpha=jnp.asarray(alphas)), "beta"),
        (kind(noise).bounds(fpr=jnp.asarray(alphas)), "tpr"),
    ):
        assert set(np.asarray(found.status)) == {int(fdp.Status.TIGHT)}
        for i, alpha in enumerate(alphas):
            truth = beta(mp.mpf(alpha))
            truth = truth if name == "beta" else 1 - truth
            lower, upper = (mp.mpf(float(x[i])) for x in (found.lower, found.upper))
            assert lower <= truth <= upper


# -- ends of the loss's range ------------------------------------------------------


@pytest.mark.parametrize(
    ("s", "q", "n", "delta"),
    [
        (1.0, 0.999999999999, 1.0, 0.0),
        (1.0, 0.3, 1.0, 0.0),
        (2.0, 0.1, 1000.0, 0.0),
        # So far out that the largest loss is the best bound there is.
        pytest.param(
            *(0.3760876613715774, 0.2698321539726237, 2.0, 1.3449300140603187e-160),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_largest_loss_is_rounded_outward(s, q, n, delta):
    """-N log(1 - q), which no epsilon of "add" exceeds, with no slack at all."""
    run = fdp.DPSGD(noise_multiplier=s, sampling_prob=q, num_steps=n).add
    found = run.bounds(delta=delta)
    most = -mp.mpf(n) * mp.log1p(-mp.mpf(q))
    assert mp.mpf(float(found.upper)) >= most
    assert mp.mpf(float(found.lower)) <= most
    if delta == 0:
        assert float(found.upper - found.lower) <= 1e-14 * float(found.upper)


@pytest.mark.parametrize("noise", [0.3, 0.7, 1.7])
def test_rounded_ends_of_laplace(noise):
    found = fdp.Laplace(noise).bounds(delta=0.0)
    most = 1 / mp.mpf(noise)
    assert mp.mpf(float(found.lower)) <= most <= mp.mpf(float(found.upper))


@pytest.mark.parametrize("epsilon", [-0.1, -1e-9, -5.0])
def test_no_release_is_rounded_outward(epsilon):
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.5, num_steps=0.0)
    delta = run.bounds(epsilon=epsilon)
    truth = -mp.expm1(mp.mpf(epsilon))
    assert mp.mpf(float(delta.lower)) <= truth <= mp.mpf(float(delta.upper))
    target = float(delta.estimate)
    back, truth = run.bounds(delta=target), mp.log1p(-mp.mpf(target))
    assert mp.mpf(float(back.lower)) <= truth <= mp.mpf(float(back.upper))


@pytest.mark.parametrize(
    ("noise", "prob", "alpha"),
    [
        (3.139, 2.27e-5, 2.609e-4),
        (0.5053, 6.309e-5, 0.55917),
        (0.5716, 1.19e-3, 6.96e-131),
        (20.0, 0.3, 1e-9),
        (0.3, 1e-5, 0.999),
    ],
)
def test_rates_of_one_step_are_tight_however_rarely_records_take_part(
    noise, prob, alpha
):
    """The loss varies on the scale of the sampling probability, and alpha with it."""
    with mp.workdps(160):
        q, s, alpha = mp.mpf(prob), mp.mpf(noise), mp.mpf(alpha)
        if alpha > 1e-20:
            x = mp.sqrt(2) * mp.erfinv(1 - 2 * alpha)
        else:
            deep = lambda x: mp.log(tail(x)) - mp.log(alpha)
            x = mp.findroot(deep, mp.sqrt(-2 * mp.log(alpha)))
        power = (1 - q) * alpha + q * tail(x - 1 / s)
        step = fdp.PoissonSubsampled(fdp.Gaussian(noise), prob).remove
        for found, truth in (
            (step.bounds(fpr=float(alpha)), power),
            (step.bounds(alpha=float(alpha)), 1 - power),
        ):
            assert int(found.status) == fdp.Status.TIGHT
            lower, upper = (
                mp.mpf(float(found.lower)),
                mp.mpf(float(found.upper)),
            )
            assert lower <= truth <= upper


@pytest.mark.parametrize("noise", [1e140, 1e155, 1e200, 1e300])
def test_noise_whose_square_overflows(noise):
    """delta(0) of G_mu is mu / sqrt(2 pi), about: small, but not nothing."""
    gaussian = fdp.Gaussian(noise)
    several = fdp.compose(gaussian, fdp.Gaussian(noise))
    steps = fdp.Schedule(fdp.Gaussian, np.full(3, noise))
    account = fdp.Accountant().step(gaussian, 4).step(fdp.Gaussian(2 * noise), 4)
    with jax.enable_x64(True):
        for guarantee, square in (
            (gaussian, 1),
            (several, 2),
            (steps, 3),
            (account, 5),
        ):
            truth = square**0.5 / noise / (2 * np.pi) ** 0.5
            found = guarantee.bounds(epsilon=0.0)
            assert found.lower <= truth <= found.upper
            assert found.upper == pytest.approx(truth, rel=1e-9)
