"""Measured numbers of the ledger against errors, and what the others follow from."""

import collections
import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.special
from reference import exact

import fdp_jax as fdp
from fdp_jax._internal import _tolerances as tolerances
from fdp_jax._internal._binomial import log_binomial_tail
from fdp_jax._internal._tolerances import LEDGER, Kind
from fdp_jax.losses import GaussianForm, LaplaceForm, LogisticForm
from fdp_jax.losses._amplification import SubsampledForm
from fdp_jax.losses._shuffled import Means
from fdp_jax.losses._two_point import TwoPointForm

MEASURED = {}
"""Functions that return the largest error found of a kind, in the ledger's measure."""


def measures(*names):
    def register(function):
        for name in names:
            MEASURED[name] = functools.partial(function, name)
        return function

    return register


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True), mp.workdps(50):
        yield


def test_names_and_uses():
    sources = pathlib.Path(fdp.__file__).parent.rglob("*.py")
    words = re.compile(r"\b[A-Z_]+\b")
    uses = collections.Counter(
        word for p in sources for word in words.findall(p.read_text(encoding="utf-8"))
    )
    for name, entry in LEDGER.items():
        assert getattr(tolerances, name) == entry.value > 0
        assert entry.meaning.endswith(".")
        # Where it is entered there are two.
        assert uses[name] > 3, f"{name} is not used"


@pytest.mark.parametrize(
    "name", [n for n, entry in LEDGER.items() if entry.kind is Kind.MEASURED]
)
def test_measured_numbers_are_large_enough(name):
    found = float(MEASURED[name]())
    print(f"{name}: {found:.3g}")
    assert 0 < found <= LEDGER[name].value, f"{found:.3g} of {LEDGER[name].value:g}"


def table():
    """The ledger in Markdown, as `docs/engines.md` has it."""
    rows = (
        f"| {kind.value} | `{name}` | {entry.value:g} | {entry.meaning} |"
        for kind in Kind
        for name, entry in LEDGER.items()
        if entry.kind is kind
    )
    head = "| strength | name | value | meaning |", "| --- | --- | --: | --- |"
    return "\n".join([*head, *rows])


def test_the_documentation_has_the_ledger():
    root = pathlib.Path(__file__).parents[2]
    assert table() in (root / "docs/engines.md").read_text(encoding="utf-8"), table()


def largest(found, truth, scale):
    pairs = zip(np.asarray(found).ravel(), truth, strict=True)
    return max(abs(exact(x) - t) / scale(t) for x, t in pairs)


# -------------------------------------------------------------- elementary operations


@measures("ELEMENTARY")
def error_of_elementary_functions(name):
    rng = np.random.default_rng(0)
    worst = 0
    for dtype, far in ((np.float64, 700), (np.float32, 80)):
        x = np.r_[rng.uniform(-far, far, 500), -(10 ** rng.uniform(-9, 1, 500))]
        y = np.r_[10 ** rng.uniform(-30, 30, 500), rng.uniform(0.5, 2, 500)]
        x, y = x.astype(dtype), y.astype(dtype)
        for function, true, at, own in (
            (jnp.exp, mp.exp, x, 0),
            (jnp.expm1, mp.expm1, x, 0),
            (jnp.log, mp.log, y, 1),
        ):
            truth = [true(exact(v)) for v in at]
            # Those of compiled programs, and those of interpreted ones.
            for found in jax.jit(function)(at), getattr(np, true.__name__)(at):
                error = largest(found, truth, lambda t, o=own: o + abs(t))
                worst = max(worst, error / float(np.finfo(dtype).eps))
    return 2 * worst


def tail(x):
    return mp.erfc(x / mp.sqrt(2)) / 2


@measures("NORMAL_TAIL")
def error_of_normal_tails(name):
    z = np.r_[np.linspace(0, 37, 400), 10 ** np.linspace(-9, 0, 50)]
    compiled = jax.jit(lambda z: 0.5 * jax.scipy.special.erfc(z * np.sqrt(0.5)))(z)
    unit = float(np.finfo(float).eps)
    # As the masses of cells and what caps keep allow for it.
    scale = lambda z: (1 + 2 * (1 + z) * z) * unit
    pairs = [
        pair
        for found in (compiled, 0.5 * scipy.special.erfc(z * np.sqrt(0.5)))
        for pair in zip(np.asarray(found), z, strict=True)
    ]
    return max(abs(exact(x) / tail(exact(v)) - 1) / scale(v) for x, v in pairs)


# ------------------------------------------------------------------------ closed forms


def gaussian_pair(mu, epsilon):
    """delta(eps) and 1 - delta(eps)."""
    t = epsilon / mu
    above, below = mp.exp(epsilon) * tail(mu / 2 + t), tail(mu / 2 - t)
    return tail(t - mu / 2) - above, below + above


def laplace_pair(mu, epsilon):
    if epsilon >= mu:
        return mp.mpf(0), mp.mpf(1)
    return -mp.expm1((epsilon - mu) / 2), mp.exp((epsilon - mu) / 2)


def logistic_pair(mu, epsilon):
    """Power less e^eps times the size of the test at the output where f' = -e^eps."""
    size = mp.expm1((mu - epsilon) / 2) / mp.expm1(mu)
    power = size * mp.exp(mu) / (1 + mp.expm1(mu) * size)
    delta = power - mp.exp(epsilon) * size
    return delta, 1 - delta


def two_point_pair(epsilon0, delta0, n, epsilon):
    keep = (1 - delta0) ** n
    q = 1 / (1 + mp.exp(-epsilon0))
    delta = rest = mp.mpf(0)
    for k in range(int(n) + 1):
        mass = mp.binomial(n, k) * q**k * (1 - q) ** (n - k)
        gain = -mp.expm1(epsilon - (2 * k - n) * epsilon0)
        delta, rest = delta + mass * max(gain, 0), rest + mass * min(1 - gain, 1)
    return (1 - keep) + keep * delta, keep * rest


def one_step_pair(sigma, q, epsilon, sign):
    """The larger side has the loss log(1 - q + q e^u), u = (x - 1/2) / sigma^2."""
    level = mp.exp(sign * epsilon)
    if level <= 1 - q:
        return (1 - level, level) if sign > 0 else (mp.mpf(0), mp.mpf(1))
    x = mp.mpf(1) / 2 + sigma**2 * mp.log((level - (1 - q)) / q)
    without = (tail(x / sigma), tail(-x / sigma))
    record = (tail((x - 1) / sigma), tail((1 - x) / sigma))
    mixed = [(1 - q) * a + q * b for a, b in zip(without, record, strict=True)]
    if sign > 0:
        return mixed[0] - level * without[0], mixed[1] + level * without[0]
    other = mp.exp(epsilon)
    return without[1] - other * mixed[1], without[0] + other * mixed[1]


def closed_forms(rng, count):
    """Functions of arrays, their exact values, and arguments."""
    mu, size = 10 ** rng.uniform(-3, 1.5, count), np.abs(rng.normal(size=count))
    yield (
        lambda m, e: GaussianForm(m).logs(e)[:2],
        gaussian_pair,
        (mu, mu * (mu / 2 + 3 * size)),
    )
    yield (
        lambda m, e: LaplaceForm(m).logs(e)[:2],
        laplace_pair,
        (mu, mu * rng.uniform(0, 0.99, count)),
    )
    yield (
        lambda m, e: LogisticForm(m).logs(e)[:2],
        logistic_pair,
        (mu, mu * rng.uniform(0, 0.99, count)),
    )
    few = count // 3
    epsilon0, n = (
        10 ** rng.uniform(-2, 0.5, few),
        np.round(10 ** rng.uniform(0, 2, few)),
    )
    delta0 = np.where(rng.uniform(size=few) < 0.5, 0, 10 ** rng.uniform(-9, -3, few))
    reach = n * np.tanh(epsilon0 / 2) + np.sqrt(n) * np.abs(rng.normal(size=few))
    yield (
        lambda e, d, n, at: TwoPointForm(e, d, n).logs(at)[:2],
        two_point_pair,
        (epsilon0, delta0, n, epsilon0 * np.minimum(reach, 0.97 * n)),
    )
    sigma, q = 10 ** rng.uniform(-0.5, 1, count), 10 ** rng.uniform(-4, -0.1, count)
    sign = np.where(np.arange(count) % 2, 1.0, -1.0)
    most = np.where(sign > 0, 3 * q / sigma, -0.97 * np.log1p(-q))
    yield (
        lambda s, q, e, sign: SubsampledForm(GaussianForm(1 / s), q, sign).logs(e)[:2],
        one_step_pair,
        (sigma, q, most * rng.uniform(0.01, 1, count), sign),
    )


@measures("CLOSED_FORM")
def error_of_closed_forms(name):
    rng, worst = np.random.default_rng(1), 0
    for function, pair, args in closed_forms(rng, 90):
        found = jax.jit(function)(*args)
        truths = [pair(*map(exact, point)) for point in zip(*args, strict=True)]
        for values, truth in zip(found, zip(*truths, strict=True), strict=True):
            logs = [(v, mp.log(t)) for v, t in zip(values, truth, strict=True) if t > 0]
            values, logs = zip(*logs, strict=True)
            worst = max(worst, largest(values, logs, lambda t: 1 + abs(t)))
    return worst


def atom_masses():
    """Masses of a mechanism's outputs, and the exact ones."""
    scale, far = 2.7, 40
    k = range(-far, far + 2)
    total = mp.nsum(
        lambda j: mp.exp(-(j**2) / (2 * exact(scale) ** 2)), [-mp.inf, mp.inf]
    )
    density = lambda j: mp.exp(-(mp.mpf(j) ** 2) / (2 * exact(scale) ** 2)) / total
    yield fdp.DiscreteGaussian(scale), {density(j) for j in k}
    odds = mp.exp(exact(1.3))
    # Three of the five categories are neither the one nor the other record's.
    response = {odds / (odds + 4), 1 / (odds + 4), 3 / (odds + 4)}
    yield fdp.KaryRandomizedResponse(1.3, num_categories=5), response
    shares = [exact(x) for x in (0.1, 0.25, 0.65)]
    yield fdp.FromProbabilities([0.1, 0.25, 0.65], [0.3, 0.3, 0.4]), set(shares)
    mean = exact(3.5)
    poisson = {mp.exp(-mean) * mean**j / mp.factorial(j) for j in range(60)}
    yield fdp.PoissonMechanism(3.5, 1.0), poisson


@measures("ATOM_MASS")
def error_of_masses(name):
    errors = []
    for mechanism, truths in atom_masses():
        (term,) = mechanism.loss().terms
        logs = [mp.log(t) for t in truths]
        found = [exact(x) for x in np.asarray(term.atoms().log_mass) if x > -80]
        errors += [min(abs(x - t) for t in logs) for x in found]
    assert len(errors) > 100
    return max(errors)


@measures("SKELLAM_MASS")
def error_of_skellam_masses(name):
    errors, find = [], jax.jit(lambda s: fdp.Skellam.unchecked(scale=s).loss())
    for scale in (0.01, 0.3, 1.0, 4.4, 4.5, 30.0, 300.0):
        (term,) = find(scale).terms
        logs, variance = (
            np.asarray(term.log_p)[(term.log_p.size - 1) // 2 :],
            exact(scale) ** 2,
        )
        for k in {0, 1, 17, int(3 * scale), int(20 * scale)}:
            truth = mp.log(mp.besseli(k, variance, maxterms=10**6)) - variance
            errors.append(abs(exact(logs[k]) - truth))
    return max(errors)


def binomial_tail(k, n, p):
    """Log P(Bin(n, p) >= k), by sums of its terms from k on or of those below."""
    p = exact(p)
    below = k < n * p
    j, total = (k - 1 if below else k), mp.mpf(0)
    log = mp.loggamma(n + 1) - mp.loggamma(j + 1) - mp.loggamma(n - j + 1)
    term = mp.exp(log + j * mp.log(p) + (n - j) * mp.log1p(-p))
    while 0 <= j <= n and term > total * mp.mpf(10) ** -25:
        total += term
        if below:
            term, j = term * j / (n - j + 1) * (1 - p) / p, j - 1
        else:
            term, j = term * (n - j) / (j + 1) * p / (1 - p), j + 1
    return mp.log1p(-total) if below else mp.log(total)


@measures("BINOMIAL_TAIL")
def error_of_binomial_tails(name):
    rng, errors, tail = np.random.default_rng(3), [], jax.jit(log_binomial_tail)
    for _ in range(150):
        n, p = int(10 ** rng.uniform(1, 7)), 10 ** rng.uniform(-4, -0.02)
        deviation = np.sqrt(n * p * (1 - p))
        k = np.round(n * p + deviation * rng.uniform(-6, 9))
        k = int(np.clip(k, 1, n))
        truth = binomial_tail(k, n, p)
        found = exact(tail(float(k), float(n), p))
        errors.append(abs(found - truth) / (1 + abs(truth) + abs(k - n * p)))
    return max(errors)


def sign_mean(size, x):
    """P(X > x) and E (X - x)_+ of the mean X of signs."""
    k = int(mp.floor(size * (1 + x) / 2)) + 1
    rest, scale = size - k, 1 / mp.sqrt(size)
    log = mp.loggamma(size + 1) - mp.loggamma(k + 1) - mp.loggamma(rest + 1)
    mass = mp.exp(log - size * mp.log(2))
    # An incomplete beta function, in pieces of its integrand's width.
    part = lambda t: mp.exp(rest * mp.log(2 - mp.exp(-t)) - k * t)
    ends = [scale * e for e in (0, 0.1, 1, 3, 10, 30)]
    tail = k * mass * mp.quad(part, [*ends, mp.inf])
    return tail, mass * k / size - x * tail


@measures("SIGN_TAIL")
def error_of_means_of_signs(name):
    rng, errors = np.random.default_rng(4), []
    found = jax.jit(lambda size, below: Means.of(size, below))
    for _ in range(40):
        size = int(10 ** rng.uniform(0, 12))
        depth = rng.uniform(0, 12)
        below = max(1 - depth / np.sqrt(size), rng.uniform())
        means = found(float(size), below)
        tail, excess = sign_mean(size, 1 - exact(below))
        far = exact(np.exp(means.log_excess())) / excess - 1
        errors.append(abs(exact(means.tail()) / tail - 1))
        errors.append(abs(far) if 1 - below < 8 / np.sqrt(size) else max(-far, 0))
    return max(errors)


# ----------------------------------------------------------------- proved and budgeted


def test_a_void_error_voids():
    # An error of one half or more counts as that much, and 1.4 times a smaller one
    # bounds |log(1 + z)|, |z| <= 1/2.
    assert -mp.log1p(mp.mpf(-0.5)) <= 0.5 * mp.mpf(1.4)
    assert mp.expm1(tolerances.VOID) > 1e17
