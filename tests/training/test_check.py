"""Loaders against plans: what is found, and how seldom without reason."""

import itertools
import math
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import stats

import fdp_jax as fdp
from fdp_jax import training
from fdp_jax.training import _check

ROOT = pathlib.Path(__file__).parents[2]
N, SIZE = 1500, 150
FIXED = fdp.sampling.FixedSize(batch_size=SIZE, dataset_size=N)
SHUFFLED = fdp.sampling.ShuffledEpochs(num_batches=10)


def _plan(sampling: Any = 0.1, relation="add_or_remove_one", records=N, steps=50):
    scheme: dict[str, Any] = (
        {"sampling_prob": sampling}
        if isinstance(sampling, float)
        else {"sampling": sampling}
    )
    run = fdp.DPSGD(noise_multiplier=1.1, num_steps=steps, relation=relation, **scheme)
    return training.Plan(run, num_records=records, clipping=1.0)


POISSON = _plan()
PLANS = {
    "poisson": POISSON,
    "fixed": _plan(FIXED, "replace_one"),
    "shuffled": _plan(SHUFFLED, "zero_out"),
}


def _poisson(seed, number=50, prob=0.1):
    random = np.random.default_rng(seed)
    return [np.flatnonzero(random.random(N) < prob) for _ in range(number)]


def _fixed(seed, number=50, replace=False):
    random = np.random.default_rng(seed)
    return [random.choice(N, SIZE, replace=replace) for _ in range(number)]


def _epochs(seed, size=SIZE, number=3):
    random = np.random.default_rng(seed)
    orders = [random.permutation(N) for _ in range(number)]
    return [order[i : i + size] for order in orders for i in range(0, N, size)]


def _sizes(loader):
    return [len(x) for x in loader]


DATA = {"x": jnp.zeros((SIZE, 2)), "y": jnp.zeros(SIZE)}
AGAIN = "batch 20 is batch 0 again"
DEALT = "twice in the first 10 batches"

FLAGS = [np.isin(range(N), x) for x in _poisson(1)]

# A plan, a loader, options, and a word of every line that comes out.
TABLE = {
    "poisson": ("poisson", _poisson(0), {}, []),
    "poisson by sizes": ("poisson", _sizes(_poisson(1)), {}, []),
    "poisson by flags": (
        *("poisson", lambda i: PLANS["poisson"].participants(jax.random.key(0), i)),
        *({}, []),
    ),
    "poisson as lists": ("poisson", (x.tolist() for x in _poisson(2)), {}, []),
    "poisson as lists of flags": (
        *("poisson", [np.isin(range(N), x).tolist() for x in _poisson(0)]),
        *({}, []),
    ),
    "epochs as lists of numbers of arrays": (
        *("poisson", lambda i: list(_epochs(1, number=5)[i]), {}, [DEALT]),
    ),
    "sizes that are arrays": (
        *("poisson", lambda i: jnp.sum(jnp.asarray(FLAGS[i])), {}, []),
    ),
    "pictures of two colours": (
        *("poisson", [np.zeros((SIZE, 9), bool)] * 50),
        *({}, ["50 of 50 batches have 150"]),
    ),
    "all twice": (
        *("poisson", [N] * 100, {"num_microbatches": 2}),
        *(["batches have 3000 records", "50 of 50 batches have 3000"],),
    ),
    "fixed": ("fixed", _fixed(0), {}, []),
    "fixed by its own draw": (
        *("fixed", lambda i: PLANS["fixed"].participants(jax.random.key(0), i)),
        *({}, []),
    ),
    "shuffled": ("shuffled", _epochs(0), {}, []),
    "shuffled by its own draw": (
        *("shuffled", lambda i: PLANS["shuffled"].participants(jax.random.key(0), i)),
        *({}, []),
    ),
    "shuffled by sizes": ("shuffled", [SIZE] * 30, {}, []),
    # Constant sizes are not Poisson's, whatever else is known of the batches.
    "fixed, not poisson": ("poisson", _fixed(1), {}, ["50 of 50 batches have 150"]),
    "sizes, not poisson": ("poisson", [SIZE] * 50, {}, ["50 of 50 batches have 150"]),
    "arrays, not poisson": ("poisson", [DATA] * 50, {}, ["50 of 50 batches have 150"]),
    "last one smaller": (
        *("poisson", ([SIZE] * 12 + [125]) * 3),
        *({}, ["36 of 39 batches have 150"]),
    ),
    "no dropped batch": ("poisson", [SIZE] * 5, {}, []),  # might well be by chance
    # A data loader with shuffle=True.
    "epochs, not poisson": ("poisson", _epochs(1), {}, [DEALT]),
    "epochs, not fixed": ("fixed", _epochs(2), {}, [DEALT]),
    "part of an epoch": ("poisson", _epochs(3)[:6], {}, ["in the first 6 batches"]),
    "two epochs of flags": (
        *("poisson", lambda i: PLANS["shuffled"].participants(jax.random.key(1), i)),
        *({}, [DEALT]),
    ),
    # Parts of a step.
    "microbatches": ("poisson", _poisson(3, 50, 0.025), {}, ["num_microbatches"]),
    "microbatches, told": (
        *("poisson", _sizes(_poisson(4, 200, 0.025)), {"num_microbatches": 4}, []),
    ),
    "another rate": ("poisson", _poisson(5, 50, 0.15), {}, ["not 150 as accounted"]),
    "another size": (
        "fixed",
        [150, 150, 149],
        {},
        ["batch 2 has 149 records, not 150"],
    ),
    # Records that are drawn twice.
    "with replacement": (
        *("fixed", _fixed(2, 5, replace=True), {}, ["times in batch 0, not once"]),
    ),
    "parts with common records": (
        *("fixed", [[*range(75)], range(75)], {"num_microbatches": 2}),
        *(["a record is 2 times in batch 0, not once"],),
    ),
    "begun within an epoch": (
        *("shuffled", _epochs(4)[:15] + _epochs(5)[:15]),
        *({}, ["a record is 2 times in epoch 1, not once"]),
    ),
    # Streams that begin anew.
    "resumed poisson": ("poisson", _poisson(6, 20) * 2, {}, [AGAIN]),
    "resumed fixed": ("fixed", _fixed(6, 20) * 2, {}, [AGAIN]),
    # What is divided by.
    "drawn": ("poisson", _poisson(7), {"divisor": "drawn"}, ["divided by its size"]),
    "records": (
        *("poisson", _poisson(7), {"divisor": "dataset"}, ["made of num_records"]),
    ),
    "sizes that are known": ("fixed", _fixed(7), {"divisor": "drawn"}, []),
    "records that are as many": ("fixed", _fixed(7), {"divisor": "dataset"}, []),
}


@pytest.mark.parametrize("case", TABLE)
def test_what_is_not_as_planned_is_found(case, monkeypatch):
    name, loader, options, words = TABLE[case]
    monkeypatch.setattr(_check, "_cost", lambda plan, other, delta: f"; {other}")
    found = training.check(PLANS[name], loader, delta=1e-5, **options)
    assert len(found) == len(words), found
    for line, word in zip(found, words, strict=True):
        assert word in line
        assert "\n" not in line


def test_an_endless_loader_is_looked_at_for_the_steps_of_the_plan(monkeypatch):
    monkeypatch.setattr(_check, "_cost", lambda plan, other, delta: "")
    asked = []
    training.check(POISSON, lambda i: asked.append(i) or 140 + 3 * (i % 8), delta=1e-5)
    assert asked == list(range(50))
    long = _plan(steps=10**6)
    endless = (140 + 3 * (i % 8) for i in itertools.count())
    training.check(long, endless, delta=1e-5)
    assert next(endless) == 140


def test_the_page_shows_what_is_found():
    """With what it costs by the scheme that the batches are of."""
    order = np.random.default_rng(0).permutation(N)
    loader = [order[i : i + SIZE] for i in range(0, N, SIZE)]
    found = training.check(POISSON, loader, delta=1e-5, divisor="drawn", dimension=4810)
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    words = lambda text: " ".join(text.split())
    assert len(found) == 2
    for line in found:
        assert line in words(page), line
    shuffled = fdp.DPSGD(
        noise_multiplier=1.1, sampling=SHUFFLED, num_steps=50, relation="zero_out"
    )
    stated = re.search(r"at most (\S+) \(zero_out\), not (\S+)$", found[1])
    assert stated is not None
    for text, run in zip(stated.groups(), (shuffled, POISSON.mechanism), strict=True):
        exact = float(run.epsilon(delta=1e-5))
        assert exact <= float(text) <= 1.001 * exact


def test_other_rates_and_sizes_cost_what_they_do():
    cases = (
        (fdp.sampling.Poisson(0.15), {"sampling_prob": 0.15}),
        (FIXED, {"sampling": FIXED, "relation": "replace_one"}),
    )
    for other, options in cases:
        run = fdp.DPSGD(noise_multiplier=1.1, num_steps=50, **options)
        exact = float(run.bounds(delta=1e-5).upper)
        stated = re.search(r"at most (\S+)", _check._cost(POISSON, other, 1e-5))
        assert stated is not None
        assert exact <= float(stated.group(1)) <= 1.001 * exact
    assert _check._cost(POISSON, None, 1e-5) == ""


def test_what_it_costs_is_no_less_than_of_the_rate_that_made_the_batches():
    # A batch or ten tell the rate by a margin; SciPy's interval has it independently.
    for seed, number, rate in ((0, 1, 0.2), (2, 3, 0.05), (7, 10, 0.2)):
        sizes = _sizes(_poisson(seed, number, rate))
        level = 1e-6 / _check._TESTS
        other: Any = next(_check._of_sizes(POISSON, sizes, level))[2]
        found = float(other.prob)
        assert found > rate
        total = sum(sizes)
        assert stats.binom.cdf(total, number * N, found) == pytest.approx(
            level, rel=1e-6
        )
        (line,) = training.check(POISSON, sizes, delta=1e-5)
        assert "if each record is drawn by itself, epsilon is at most" in line
    for sizes, most in (([N, N], 1.0), ([0], -math.expm1(math.log(1e-9) / N))):
        other: Any = next(_check._of_sizes(POISSON, sizes, 1e-9))[2]
        assert float(other.prob) == pytest.approx(most, rel=1e-12)


def _found(plan, loader):
    places = [np.asarray(x, int) for x in loader]
    sizes = [len(x) for x in loader]
    for log_chance, text, _ in itertools.chain(
        _check._of_sizes(plan, sizes, 1e-6), _check._of_places(plan, places)
    ):
        kind = "mean" if "mean" in text else re.sub(r"\d+", "#", text)[:24]
        yield kind, float(np.exp(log_chance))


@pytest.mark.parametrize("scheme", [0.5, 0.25, 0.7, "fixed"])
def test_chances_are_chances(scheme):
    """Of all loaders of three batches, by their exact probabilities."""
    records = 4 if scheme == "fixed" else 3
    subsets = [
        x for k in range(records + 1) for x in itertools.combinations(range(records), k)
    ]
    if scheme == "fixed":
        subsets = [x for x in subsets if len(x) == 2]
        law = fdp.sampling.FixedSize(batch_size=2, dataset_size=4)
        plan = _plan(law, "replace_one", records)
        weights = [1 / len(subsets)] * len(subsets)
    else:
        plan = _plan(scheme, records=records)
        weights = [
            scheme ** len(x) * (1 - scheme) ** (records - len(x)) for x in subsets
        ]
    chances: dict[str, list[tuple[float, float]]] = {}
    for loader in itertools.product(range(len(subsets)), repeat=3):
        weight = float(np.prod([weights[i] for i in loader]))
        for kind, chance in _found(plan, [subsets[i] for i in loader]):
            chances.setdefault(kind, []).append((chance, weight))
    for kind, rows in chances.items():
        stated, weight = np.array(sorted(rows)).T
        if kind.startswith("a record is"):
            assert np.all(stated == 1), kind  # never without reason
            continue
        # So often something as unlikely is found.
        often = np.cumsum(weight)
        last = np.r_[np.diff(stated) > 1e-9, True]
        assert np.all(often[last] <= stated[last] + 1e-12), kind
        # Of three records not even three pairs are too many to be the same.
        assert stated.min() < (0.6 if "again" not in kind or scheme == "fixed" else 2)
    assert len(chances) == (3 if scheme == "fixed" else 5)


@pytest.mark.parametrize(("size", "number"), [(150, 1), (3, 1), (20, 2), (20, 30)])
def test_one_steps_noise_tells_a_divisor_so_well(size, number):
    """Half the integral of the difference of two chi densities, by quadrature."""
    prob = size / N
    plan = _plan(prob)
    (found,) = _check._of_divisor(plan, "drawn", number)
    stated = re.search(r"advantage (\S+)$", found[1])
    assert stated is not None
    ratio = mp.mpf(size) / (size - 1)
    density = lambda r, s: mp.exp(-((r / s) ** 2) / 2) * r ** (number - 1) / s**number
    constant = 2 ** (mp.mpf(number) / 2 - 1) * mp.gamma(mp.mpf(number) / 2)
    apart = lambda r: abs(density(r, 1) - density(r, ratio)) / constant / 2
    nodes = [0, *np.linspace(0.5, 3, 26) * np.sqrt(number), 12 * np.sqrt(number) + 40]
    exact: Any = mp.quad(apart, nodes)
    assert float(stated.group(1)) == pytest.approx(float(exact), rel=6e-3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"loader": 3}, TypeError, "loader must be iterable, or a function, got 3"),
        ({"loader": [3.5]}, TypeError, "loader must give sizes, .* got float"),
        ({"loader": [None]}, TypeError, "loader must give sizes, .* got NoneType"),
        (
            {"loader": [-1]},
            ValueError,
            r"size of a batch must be in \[0, 1500\], got -1",
        ),
        ({"loader": [[0, N]]}, ValueError, r"must be in \[0, 1500\), got 1500 at most"),
        ({"loader": []}, ValueError, "loader must give at least 1 batches"),
        # As of another number of records.
        ({"loader": [np.ones(N + 1, bool)]}, TypeError, r"flags for all 1500 .* got"),
        (
            {"loader": [np.zeros((N + 1, 2))]},
            *(ValueError, r"size of a batch must be in \[0, 1500\], got 1501"),
        ),
        (
            {"loader": [(np.zeros((SIZE, 2)), np.zeros(7))]},
            *(TypeError, "one row for each record, got tuple"),
        ),
        (
            {"loader": [1], "num_microbatches": 2},
            *(ValueError, "must give at least 2 batches"),
        ),
        ({"num_microbatches": 0}, ValueError, "num_microbatches must be in"),
        ({"divisor": "mean"}, ValueError, "divisor must be one of .*'drawn'.*'mean'"),
        ({"divisor": "drawn", "dimension": 0}, ValueError, "dimension must be in"),
        ({"failure_prob": 1.0}, ValueError, "failure_prob"),
        ({"delta": 2.0, "loader": [SIZE] * 50}, ValueError, r"delta must be in \[0, 1"),
        (
            {"plan": _plan(fdp.sampling.RandomAllocation(num_batches=10))},
            *(TypeError, "plan must be of DPSGD with Poisson, .* got DPSGD"),
        ),
    ],
)
def test_wrong_calls_say_what_is_right(options, error, message):
    asked = {"plan": POISSON, "loader": _poisson(0), "delta": 1e-5} | options
    with pytest.raises(error, match=message) as caught:
        training.check(asked.pop("plan"), asked.pop("loader"), **asked)
    assert "\n" not in str(caught.value)
