"""Loaders of one's own, held against what is accounted."""

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
import scipy  # its parts load when they are used

from .._internal import _checks
from .._internal._calls import explained
from .._internal._show import short
from .._internal._text import round_up
from ..mechanisms import (
    ADD_OR_REMOVE_ONE,
    DPSGD,
    REPLACE_ONE,
    ZERO_OUT,
    AbstractSampling,
)
from ..sampling import FixedSize, Poisson, ShuffledEpochs
from ._plan import Plan

_MOST_STEPS = 1000
_TESTS = 4
"""Tests that share a probability of a false alarm."""
_SCHEMES = Poisson | FixedSize | ShuffledEpochs
_CERTAIN = -math.inf
_Finding = tuple[float, str, AbstractSampling | None]
"""The log probability of it by chance, what it is, and what accounts for it."""


_MADE = {
    "public": "",
    "dataset": "a number made of num_records",
    "drawn": "its size",
}
"""Numbers that the noisy sum may be divided by, and their origins."""


@explained(
    divisor=_checks.one_of(tuple(_MADE)),
    delta=_checks.one(_checks.rate),
    num_microbatches=_checks.whole_in(1, 1 << 20),
    dimension=_checks.whole_in(1, 1 << 50),
    failure_prob=_checks.one(_checks.open_share),
)
def check(
    plan: Plan,
    loader: Iterable[Any] | Callable[[int], Any],
    *,
    delta: float,
    num_microbatches: int = 1,
    divisor: str = "public",
    dimension: int | None = None,
    failure_prob: float = 1e-6,
) -> tuple[str, ...]:
    """Ways in which batches that were made elsewhere are not those of a plan.

    Batches are looked at for up to 1000 steps.  That nothing is found is no proof that
    they are drawn as the guarantee needs it.

    Args:
        plan: Of `DPSGD`, with Poisson sampling, batches of a fixed size or shuffled
            epochs.
        loader: An iterable of batches, or a function of their number, from 0.  A batch
            is its size (a whole number), the places of its records among all (whole
            numbers: a list or an array of one axis), flags for all records (the same of
            booleans), or arrays with one row for each of its records.
        delta: For which costs are stated, as epsilon.
        num_microbatches: Batches of the loader that make one step: parts of one draw,
            whose gradients are added up before noise is added once.
        divisor: "public" if the noisy sum is divided by nothing or by a number that
            does not depend on the data; "dataset" if by one that is made of the number
            of records; "drawn" if by the number of records in the batch.
        dimension: The number of parameters, for what a divisor tells.
        failure_prob: Probability that something is found in batches that are drawn as
            the plan says, at most.

    Returns:
        One line for each finding, with what it costs where that is known.

    Raises:
        TypeError: If the plan is another one, or the loader gives no batches.
        ValueError: If a number is out of range, or there are no batches.

    Example:
        >>> import fdp_jax as fdp, jax
        >>> run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=20)
        >>> plan = fdp.training.Plan(run, num_records=500, clipping=1.0)
        >>> loader = lambda step: plan.participants(jax.random.key(0), step)
        >>> fdp.training.check(plan, loader, delta=1e-5)
        ()

    References:
        Ville (1939) bounds how large a martingale ever becomes, Chernoff (1952) the
        tails of a binomial law.
    """
    scheme = _checks.instance("plan", plan, Plan, "a training.Plan").sampling
    _checks.require(
        isinstance(plan.mechanism, DPSGD) and isinstance(scheme, _SCHEMES),
        "plan must be of DPSGD with Poisson, FixedSize or ShuffledEpochs",
        short(plan.mechanism),
        TypeError,
    )
    _checks.require(
        hasattr(loader, "__iter__") or callable(loader),
        "loader must be iterable, or a function",
        short(loader),
        TypeError,
    )
    level = _checks.checked_scalar("failure_prob", _checks.open_share, failure_prob)
    level = float(level) / _TESTS
    steps = list(_steps(loader, num_microbatches, plan))
    _checks.require(
        steps, f"loader must give at least {num_microbatches} batches", "fewer"
    )
    places = [x for _, x in steps if x is not None]
    found = [
        *_of_divisor(plan, divisor, dimension),
        *_of_sizes(plan, [size for size, _ in steps], level),
        *(_of_places(plan, places) if len(places) == len(steps) else ()),
    ]
    found = [x for x in found if x[0] <= math.log(level)]
    if any(isinstance(other, ShuffledEpochs) for *_, other in found):
        # What is dealt out often has one size: that alone is not what it is.
        found = [x for x in found if not isinstance(x[2], FixedSize)]
    return tuple(
        text + _odds(x) + _cost(plan, other, delta) for x, text, other in found
    )


def _steps(loader: Any, parts: int, plan: Plan) -> Iterator[tuple[int, Any]]:
    """Sizes of the steps' batches and, where they are told, places of the records."""
    each = loader if hasattr(loader, "__iter__") else map(loader, itertools.count())
    number = min(plan.num_steps, _MOST_STEPS) * parts
    batches = [_batch(x, plan.num_records) for x in itertools.islice(each, number)]
    for i in range(0, len(batches) - parts + 1, parts):
        sizes, places = zip(*batches[i : i + parts], strict=True)
        known = all(x is not None for x in places)
        yield sum(sizes), np.concatenate(places) if known else None


def _batch(batch: Any, records: int) -> tuple[int, np.ndarray | None]:
    """The size of a batch, and its records' places if these are what it is made of."""
    array = isinstance(batch, np.ndarray | jax.Array)
    if isinstance(batch, int | np.integer) or (
        array and batch.ndim == 0 and batch.dtype.kind in "iu"
    ):
        size = np.asarray(batch)[()]
        return _checks.whole("size of a batch", size, 0, records), None
    listed = isinstance(batch, list | tuple | range) and all(
        isinstance(x, int | np.integer | np.bool_) for x in batch
    )
    if listed or array:
        places = np.asarray(batch, None if np.size(batch) else int)
        if places.dtype == bool and places.shape == (records,):
            places = np.flatnonzero(places)
        if places.ndim == 1 and places.dtype.kind in "iu":
            if np.any((places < 0) | (places >= records)):
                raise ValueError(
                    f"places of records must be in [0, {records}), got {places.max()} "
                    f"at most and {places.min()} at least"
                )
            return places.size, places
    rows = {np.shape(x)[:1] for x in jax.tree.leaves(batch)}
    _checks.require(
        # Flags alone of another length are those of another number of records.
        len(rows) == 1
        and () not in rows
        and not (array and batch.ndim == 1 and batch.dtype.kind == "b"),
        f"loader must give sizes, places of records, flags for all {records} or arrays "
        "with one row for each record",
        f"{type(batch).__name__} {short(batch)}",
        TypeError,
    )
    return _checks.whole("size of a batch", rows.pop()[0], 0, records), None


def _of_divisor(plan: Plan, divisor: str, dimension: int | None) -> Iterator[_Finding]:
    """Leaks by the number that the noisy sum is divided by.

    Noise of d numbers with one deviation is told from noise with another by its length,
    whose square is that deviation's times a chi-square variable.
    """
    shared = divisor == "dataset" and plan.mechanism.relation is not ADD_OR_REMOVE_ONE
    if divisor == "public" or shared or not isinstance(plan.sampling, Poisson):
        return
    size, told = max(round(plan.expected_size), 2), "the more surely the larger a model"
    if dimension is not None:
        ratio = (size / (size - 1)) ** 2
        place = dimension * math.log(ratio) / (1 - 1 / ratio)
        one, other = scipy.special.chdtr(dimension, [place, place / ratio])
        told = f"of {dimension} parameters with advantage {one - other:.3g}"
    yield (
        _CERTAIN,
        f"a batch's sum is divided by {_MADE[divisor]}: one step's noise tells whether "
        f"that is {size} or {size - 1}, {told}",
        None,
    )


def _of_sizes(plan: Plan, sizes: list[int], level: float) -> Iterator[_Finding]:
    """Sizes that the scheme does not give, or hardly ever does."""
    scheme, records, steps = plan.sampling, plan.num_records, len(sizes)
    mean, expected = sum(sizes) / steps, plan.expected_size
    if not isinstance(scheme, Poisson):
        wrong = [(i, size) for i, size in enumerate(sizes) if size != expected]
        for i, size in wrong[:1]:
            yield _CERTAIN, f"batch {i} has {size} records, not {expected:g}", None
        return
    prob, share = expected / records, min(mean / records, 1.0)
    # The rate is no larger, but for the level (Clopper and Pearson 1934).
    total, number = records * steps, min(sum(sizes), records * steps)
    rest = scipy.special.betaincinv(total - number, number + 1, level)
    highest = 1 - float(rest) if number < total else 1.0
    # A Chernoff bound, for either side.
    entropy = scipy.special.rel_entr([share, 1 - share], [prob, 1 - prob]).sum()
    yield (
        math.log(2) - records * steps * entropy,
        f"batches have {mean:g} records in the mean, not {expected:g} as accounted "
        "(num_microbatches says how many make a step)",
        Poisson(highest),
    )
    # So many of one size, of whatever size: the mode is the likeliest.
    usual, often = collections.Counter(sizes).most_common(1)[0]
    mode = min(int((records + 1) * prob), records)
    likely = _log_choose(records, mode) + scipy.special.xlogy(mode, prob)
    likely += scipy.special.xlog1py(records - mode, -prob)
    yield (
        _log_choose(steps, often) + (often - 1) * likely,
        f"{often} of {steps} batches have {usual} records, whose number varies by "
        "Poisson sampling",
        FixedSize(batch_size=max(sizes), dataset_size=records)
        if 0 < max(sizes) <= records
        else None,
    )


def _of_places(plan: Plan, steps: list[np.ndarray]) -> Iterator[_Finding]:
    """Records that do not take part as they do by the scheme."""
    records, dealt = plan.num_records, isinstance(plan.sampling, ShuffledEpochs)
    length = round(records / plan.expected_size) if dealt else 1
    parts = [steps[i : i + length] for i in range(0, len(steps), length)]
    counts = [np.bincount(np.concatenate(x), minlength=1).max() for x in parts]
    most, which = max(counts), "epoch" if dealt else "batch"
    text = f"a record is {most} times in {which} {counts.index(most)}, not once"
    yield _CERTAIN if most > 1 else 0.0, text, None
    if dealt:
        return
    used, log_chance, number = np.zeros(records, bool), 0.0, 0
    for x in itertools.takewhile(lambda x: not used[x].any(), steps):
        # A batch has none of u records with probability (1 - q)^u, of a fixed size with
        # no larger one: 1 over the product is a (super)martingale until that fails.
        prob = plan.expected_size / records
        log_chance += scipy.special.xlog1py(used.sum(), -prob)
        used[x], number = True, number + 1
    yield (
        log_chance,
        f"no record is twice in the first {number} batches: they are dealt out, for "
        "which no amplification is proved",
        ShuffledEpochs(num_batches=records * number // max(used.sum(), 1)),
    )
    # Given its size, a batch is each of that size with the same probability.
    pairs, seen = len(steps) * (len(steps) - 1) / 2, {}
    for i, x in enumerate(steps):
        first = seen.setdefault(np.sort(x).tobytes(), i)
        if first < i:
            yield (
                math.log(pairs) - _log_choose(records, x.size),
                f"batch {i} is batch {first} again: a stream that begins anew draws "
                "nothing anew",
                None,
            )
            return


def _log_choose(of: int, number: int) -> float:
    return float(-scipy.special.betaln(number + 1, of - number + 1) - math.log(of + 1))


def _odds(log_chance: float) -> str:
    """A probability by chance, rounded up to a power of ten."""
    if log_chance == _CERTAIN:
        return ""
    power = math.ceil(log_chance / math.log(10))
    return f" (by chance with probability at most 1e{power})"


_HOW = {
    Poisson: "if each record is drawn by itself",
    FixedSize: "if every batch is drawn anew",
    ShuffledEpochs: "if every epoch is dealt out",
}
"""Schemes as assumptions: sizes and places do not tell how batches are drawn."""


def _cost(plan: Plan, other: AbstractSampling | None, delta: float) -> str:
    """The leak of a run by another scheme, beside what is accounted."""
    if other is None:
        return ""
    relation = plan.mechanism.relation
    if relation in other.refused:
        # What is usually claimed of either.
        relation = REPLACE_ONE if isinstance(other, FixedSize) else ZERO_OUT
    run = dataclasses.replace(
        plan.mechanism, sampling=other, sampling_prob=None, relation=relation
    )
    here, there = (
        round_up(float(x.bounds(delta=delta).upper), 4) for x in (plan.mechanism, run)
    )
    bound = f"epsilon is at most {there} ({relation.value}), not {here}"
    return f"; {_HOW[type(other)]}, {bound}"
