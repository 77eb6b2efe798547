"""A run that is entered piece by piece, through every door that repeats or composes.

Nobody can tell whether pieces are meant as one run that goes on or as several runs.
Either is refused in one line, or the answer is at least that of the whole run.  What is
answered is compared by losses, not by numbers: as many releases of each kind, or more.
"""

import dataclasses
import io
import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fdp_jax as fdp
from fdp_jax import sampling
from fdp_jax.accounting import _accountant
from fdp_jax.calibration.unknowns import find_unknown
from fdp_jax.losses import GaussianLoss
from fdp_jax.mechanisms import Composition, Shared
from fdp_jax.sampling import _allocated, _with_replacement
from fdp_jax.training import Plan

STEPS = 8
PIECES = (1, 2, 4)
"""Steps of a piece: one, a part of an epoch, an epoch."""


def dpsgd(scheme, relation="add_or_remove_one"):
    return lambda n: fdp.DPSGD(
        noise_multiplier=2.0, sampling=scheme, num_steps=n, relation=relation
    )


def matrix(column, **options):
    return lambda n: fdp.MatrixMechanism(2.0, column, num_steps=n, **options)


ALLOCATION = sampling.RandomAllocation
RUNS = {
    "Gaussian": lambda n: fdp.Gaussian(2.0).repeat(n),
    "DP-SGD": lambda n: fdp.DPSGD(noise_multiplier=2.0, sampling_prob=0.1, num_steps=n),
    "Poisson": dpsgd(sampling.Poisson(0.1)),
    "Poisson, replaced": dpsgd(sampling.Poisson(0.1), "replace_one"),
    "cyclic": dpsgd(sampling.CyclicPoisson(0.1, num_groups=3)),
    "users": dpsgd(sampling.UserLevel(0.1)),
    "examples": dpsgd(sampling.UserLevel(0.1, max_examples=3)),
    "fixed size": dpsgd(sampling.FixedSize(prob=0.1), "replace_one"),
    "with replacement": dpsgd(
        sampling.WithReplacement(batch_size=10, dataset_size=100), "replace_one"
    ),
    "truncated": dpsgd(sampling.TruncatedPoisson(0.1, batch_size=20, dataset_size=100)),
    "shuffled": dpsgd(sampling.ShuffledEpochs(4), "zero_out"),
    "allocation": dpsgd(ALLOCATION(4)),
    "allocation, 2 of 4": dpsgd(ALLOCATION(4, num_participations=2)),
    "allocation of any": lambda n: fdp.Subsampled(
        fdp.FromProbabilities([0.5, 0.5], [0.4, 0.6]), ALLOCATION(4), n
    ),
    "same batch": dpsgd(ALLOCATION(4, same_every_epoch=True)),
    "least separation": dpsgd(sampling.MinSeparation(0.1, min_separation=3)),
    "matrix, independent noise": matrix([1.0], min_separation=1),
    "matrix, amplified": matrix(
        [1.0, 0.5], sampling=sampling.CyclicPoisson(0.1, num_groups=3)
    ),
    "matrix": matrix([1.0, 0.5], min_separation=2),
}
REFUSED = {"matrix", "least separation"}
"""Which nothing but the whole run is answered for."""
SINGLE = {
    "repeat": lambda run, k, m: run(k).repeat(m),
    "compose": lambda run, k, m: fdp.compose(*[run(k)] * m),
    "nested": lambda run, k, m: fdp.compose(run(k).repeat(m - 1), run(k)),
    "of a composition": lambda run, k, m: fdp.compose(run(k)).repeat(m),
    "fields replaced": lambda run, k, m: dataclasses.replace(
        fdp.compose(run(k)), num_steps=(float(m),)
    ),
    "random number": lambda run, k, m: fdp.RandomRepeat(
        run(k), num_steps=[float(m)], probs=[1.0]
    ),
    "calibrated": lambda run, k, m: find_unknown(
        Composition((run(k),), (1.0,)), "num_steps.0"
    ).put(Composition((run(k),), (1.0,)), float(m)),
    "steps": lambda run, k, m: stepped(run, k, m),
    "count": lambda run, k, m: fdp.Accountant(relation=run(k).relation).step(
        run(k), count=m
    ),
    "sum": lambda run, k, m: stepped(run, k, m - 1) + stepped(run, k, 1),
    "account and more": lambda run, k, m: fdp.compose(stepped(run, k, m - 1), run(k)),
    "account twice": lambda run, k, m: stepped(run, k, m // 2).repeat(2),
    "remaining": lambda run, k, m: asked_for(run, k, m),
    "event": lambda run, k, m: fdp.interop.from_dp_event(
        fdp.interop.to_dp_event(run(k).repeat(m)), relation=run(k).relation
    ),
    "their accountant": lambda run, k, m: their_account(run, k, m),
}
ALWAYS = [door for door in SINGLE if door not in ("event", "their accountant")]
"""Doors that have to answer wherever an upper bound is known."""


def stepped(run, k, m):
    account = fdp.Accountant(relation=run(k).relation)
    for _ in range(m):
        account = account.step(run(k))
    return account


def their_account(run, k, m):
    account = fdp.interop.FdpAccountant(run(k).relation)
    return account.compose(fdp.interop.to_dp_event(run(k)), m).mechanism


def asked_for(run, k, m):
    """The mechanism whose number of steps `remaining` looks for."""
    asked = []
    search = _accountant._largest
    _accountant._largest = lambda *args: asked.append(args[:2]) or 0
    try:
        target = fdp.targets.MuGDP(1.0)  # none of one query, which would be asked first
        stepped(run, k, m - 1).remaining(target, run(k))
    finally:
        _accountant._largest = search
    ((mechanism, name),) = asked
    count = 1.0 if name == "num_steps.1" else m * float(run(k).as_steps()[0][1])
    return find_unknown(mechanism, name).put(mechanism, count)


def released(mechanism, kept=False):
    """How much of each kind of loss: of Gaussians the precision, else the number.

    Where a batch is kept, the precision of a single release of each kind.
    """
    found = {}
    loss = mechanism.simplified().loss()
    for term, count in zip(loss.terms, loss.counts, strict=True):
        leaves, structure = jax.tree.flatten(term)
        amount = count
        if kept or isinstance(term, GaussianLoss):
            leaves = [x for x in leaves if x is not term.noise_multiplier]
            amount = (1 if kept else count) / term.noise_multiplier**2
        # What is rounded outward may depend on the number of steps.
        key = structure, *(np.round(np.asarray(x), 12).tobytes() for x in leaves)
        more = max if kept else lambda x, y: x + y
        found[key] = more(found.get(key, 0.0), float(amount))
    return found


def answered(enter, run, k):
    """What a door makes of pieces of k steps, or why it does not."""
    try:
        return enter(run, k, STEPS // k), ""
    except (ValueError, TypeError, NotImplementedError) as error:
        return None, str(error)


@pytest.fixture
def epochs_are_counted(monkeypatch):
    """Of any release, whose loss in an epoch takes seconds to find.

    That of a batch with replacement is found once for its numbers.
    """
    count = lambda epoch: epoch.mechanism.loss()
    monkeypatch.setattr(_allocated.AllocatedEpoch, "loss", count)
    known, find = {}, _with_replacement._dominating

    def found(*numbers):
        key = tuple(np.asarray(x).tobytes() for x in numbers)
        return known[key] if key in known else known.setdefault(key, find(*numbers))

    monkeypatch.setattr(_with_replacement, "_dominating", found)


def require_at_least(pieces, whole, kept):
    found, wanted = released(pieces, kept), released(whole, kept)
    assert wanted
    for key, amount in wanted.items():
        assert found.get(key, 0.0) >= amount * (1 - 1e-12), (found, wanted)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.usefixtures("epochs_are_counted")
def test_pieces_are_at_least_the_whole_or_refused(name):
    run = RUNS[name]
    # Of a piece of the strategy nothing tells that there is more of it.
    sizes = [k for k in PIECES if k > 1 or not name.startswith("matrix")]
    whole, kept = run(STEPS), name == "same batch"
    for (door, enter), k in itertools.product(SINGLE.items(), sizes):
        pieces, error = answered(enter, run, k)
        if error:
            must = door in ALWAYS and name not in REFUSED
            # What is random in it is not put together.
            assert not must or (kept and door == "random number"), (door, k, error)
            assert len(error.splitlines()) == 1, (door, k, error)
            continue
        assert name not in REFUSED, (door, k)
        require_at_least(pieces, whole, kept)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.usefixtures("epochs_are_counted")
def test_a_run_is_entered_once_with_whatever_is_independent(name):
    run, other = RUNS[name](4), fdp.Gaussian(3.0, relation=RUNS[name](4).relation)
    if name == "least separation":
        with pytest.raises(ValueError, match="must have a proved pair"):
            run.repeat(1).loss()
        return
    alone = released(run)
    for once in (
        *(run.repeat(1), fdp.compose(run), fdp.RevealedMixture([run], probs=[1.0])),
        fdp.Accountant(relation=run.relation).step(run),
        fdp.RandomRepeat(run, num_steps=[1.0], probs=[1.0]),
    ):
        both = fdp.compose(once, other)
        assert both.shares() == run.shares()
        if not isinstance(once, fdp.RevealedMixture):
            assert released(once) == alone
            both = released(both)
            assert sum(both.values()) == pytest.approx(sum(alone.values()) + 1 / 9)


SHARING = {
    Shared.SAME_BATCH: RUNS["same batch"](4),
    Shared.NOISE: RUNS["matrix"](4),
    Shared.WAITING: RUNS["least separation"](4),
    Shared.BEGUN_EPOCH: RUNS["allocation"](2),
}


RENYI = fdp.RenyiDP([2.0], [9.0])
BUDGETS = (
    *(fdp.accounting.GaussianFilter(9.0), fdp.accounting.ZCDPFilter(9.0)),
    *(fdp.accounting.RenyiFilter(RENYI), fdp.accounting.GaussianOdometer()),
    *(fdp.accounting.ZCDPOdometer(), fdp.accounting.RenyiOdometer(RENYI)),
)


def test_what_a_run_shares_is_known_without_its_numbers():
    for what, run in SHARING.items():
        assert run.shares() == {what}
        assert fdp.compose(run, fdp.Gaussian(1.0)).shares() == {what}
    assert not RUNS["allocation"](4).shares()

    def traced(noise, steps):
        scheme = ALLOCATION(4, same_every_epoch=True)
        run = fdp.DPSGD(noise_multiplier=noise, sampling=scheme, num_steps=steps)
        assert run.shares() == {Shared.SAME_BATCH}
        repeated: Any = run.repeat(steps).loss()
        noise, (count,) = repeated.terms[0].noise_multiplier, repeated.counts
        with pytest.raises(ValueError, match="releases must be independent"):
            fdp.MatrixMechanism(1.0, [1.0, 0.5]).repeat(steps)
        return noise, count

    noise, count = jax.jit(traced)(2.0, 8.0)
    # Eight times two epochs.
    assert (float(noise), float(count)) == (2.0 / 4, 1.0)


@pytest.mark.parametrize("what", SHARING)
def test_doors_that_need_independent_releases_say_so(what):
    run, refusal = SHARING[what], "releases must be independent of earlier ones"
    once = 1 if what is Shared.BEGUN_EPOCH else 2
    for budget in BUDGETS:
        with pytest.raises(ValueError, match=refusal):
            budget.step(run, count=once)
    with pytest.raises((ValueError, TypeError), match=refusal):
        fdp.Schedule(lambda x: run, np.ones(2))
    if what is Shared.BEGUN_EPOCH:
        return  # pieces are at least the whole, if all have the same setting
    mixture = fdp.RevealedMixture([run, fdp.Gaussian(1.0)], probs=[0.5, 0.5])
    for refused in (
        lambda: fdp.compose(mixture, run),
        lambda: mixture.repeat(2),
        lambda: fdp.Accountant().step(mixture).step(run),
        lambda: fdp.RandomRepeat(run, num_steps=[1.0, 2.0], probs=[0.5, 0.5]),
        lambda: find_unknown(
            fdp.RandomRepeat(run, num_steps=[1.0], probs=[1.0]), "num_steps"
        ),
    ):
        with pytest.raises(ValueError, match=refusal):
            refused()
    if run.releases_once():
        with pytest.raises(ValueError, match=refusal):
            fdp.Subsampled(run, sampling.Poisson(0.1))
        with pytest.raises(ValueError, match=refusal):
            fdp.PoissonSubsampled(run, 0.1).repeat(2)


@pytest.mark.parametrize("what", SHARING)
def test_what_is_known_by_numbers_alone_shares_as_its_run(what):
    refusal = "releases must be independent of earlier ones"
    known, plain = (
        fdp.RenyiDP([2.0, 4.0], [1.0, 2.0], shared=shared)
        for shared in (SHARING[what].shares(), None)
    )
    rate = fdp.ZCDP(0.1, shared=known.shares())
    assert known.shares() == rate.shares() == {what}
    assert dataclasses.replace(known, orders=known.orders).shares() == {what}
    twice = [
        *(lambda x=x: x.repeat(2) for x in (known, rate)),
        *(lambda x=x: fdp.compose(x, plain, known) for x in (known, rate)),
        lambda: jax.jit(lambda n: known.repeat(n))(1.0),
    ]
    budget = fdp.accounting.RenyiFilter(plain.repeat(9))
    once = [lambda: known.repeat(1), lambda: fdp.compose(plain, known, fdp.ZCDP(0.1))]
    if what is Shared.BEGUN_EPOCH:
        twice += [*once, lambda: fdp.compose(known, plain), lambda: budget.step(known)]
    else:
        assert all(found().shares() == {what} for found in once)
        entered = budget.step(known).step(plain, count=3)
        np.testing.assert_allclose(entered.spent, [4.0, 8.0], rtol=1e-5)
        twice += [lambda: entered.fits(known), lambda: entered.step(SHARING[what])]
    for refused in twice:
        with pytest.raises(ValueError, match=refusal):
            refused()
    assert not plain.repeat(2).shares()


def test_a_guarantee_says_what_its_run_shares():
    run = SHARING[Shared.NOISE]
    for known in (run, run.remove, fdp.compose(run, fdp.Gaussian(1.0))):
        found = fdp.divergences.renyi_dp(known, orders=[2.0])
        assert found.shares() == {Shared.NOISE}
    assert not fdp.divergences.renyi_dp(fdp.Gaussian(1.0), orders=[2.0]).shares()


def test_a_run_that_shares_is_entered_once_into_a_budget():
    run, refusal = SHARING[Shared.NOISE], "releases must be independent of earlier"
    # Two bands of 1 and .5 of four steps, a record in every second one: 2.5 / 2^2.
    for budget in BUDGETS:
        entered = budget.step(run)
        of_gaussian = budget.step(fdp.Gaussian(math.sqrt(1.6)))
        np.testing.assert_allclose(entered.spent, of_gaussian.spent, rtol=1e-5)
        with pytest.raises(ValueError, match=refusal):
            entered.step(fdp.Gaussian(9.0)).step(run)
        # What was saved is not taken for an account of independent releases.
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, entered)
        file.seek(0)
        with pytest.raises(RuntimeError, match="changed shape"):
            eqx.tree_deserialise_leaves(file, budget)
        # Nor is it entered by a loop.
        with pytest.raises(TypeError, match="carry"):
            jax.lax.scan(lambda x, _: (x.step(run), None), budget, None, length=2)


def begun(noise, steps, batches=4):
    scheme = ALLOCATION(batches)
    return fdp.DPSGD(noise_multiplier=noise, sampling=scheme, num_steps=steps)


def test_a_begun_epoch_goes_on_with_the_same_settings_alone():
    # Six steps of an epoch of four, then others: these reach into two epochs.
    for other in (begun(1.0, 4), begun(1.0, 2), begun(2.0, 8, batches=8)):
        for refused in (
            lambda x=other: fdp.compose(begun(2.0, 6), x),
            lambda x=other: fdp.compose(x, begun(2.0, 6)).repeat(2),
            lambda x=other: fdp.Accountant().step(begun(2.0, 6)).step(x),
            lambda x=other: (
                fdp.Accountant().step(x) + fdp.Accountant().step(begun(2.0, 6))
            ),
        ):
            with pytest.raises(ValueError, match="make num_steps whole epochs"):
                refused()
    same = fdp.compose(begun(2.0, 6), begun(2.0, 4), begun(2.0, 1))
    require_at_least(same, begun(2.0, 16), False)
    account = fdp.Accountant().step(begun(2.0, 6)).step(begun(2.0, 1), count=3)
    require_at_least(account, begun(2.0, 20), False)
    assert len(account.history) == 1
    whole = fdp.compose(begun(2.0, 8), begun(1.0, 4), begun(2.0, 8, batches=8))
    assert sum(released(whole).values()) == 4
    # Of traced steps nobody can tell that they are the same.
    with pytest.raises(ValueError, match="make num_steps whole epochs"):
        jax.jit(
            lambda x: fdp.Accountant().step(begun(x, 6)).step(begun(x, 6)).num_steps
        )(2.0)


def test_kept_batches_add_up_with_their_noise():
    scheme = lambda t: ALLOCATION(t, same_every_epoch=True)
    run = lambda s, n, t=4: fdp.DPSGD(
        noise_multiplier=s, sampling=scheme(t), num_steps=n
    )
    # Precisions 8 / 4 + 2 / 1 + 1 / 4 (a begun epoch); of no noise's end nothing.
    parts = [run(2.0, 32), run(1.0, 8), run(2.0, 3), run(math.inf, 40)]
    account = fdp.Accountant()
    for part in parts:
        account = account.step(part)
    for found in (fdp.compose(*parts), account):
        loss: Any = found.simplified().loss()
        (term,) = loss.terms
        assert float(term.noise_multiplier) == pytest.approx((2 + 2 + 0.25) ** -0.5)
    # Fewer batches leak more.
    loss = fdp.compose(run(1.0, 8, 8), run(1.0, 6, 6)).loss()
    (term,) = loss.terms
    assert float(term.num_batches) == 6
    # What is certain to be leaked is known of one draw of whole epochs alone.
    attained: Any = lambda *parts: fdp.compose(*parts).simplified().attained()
    assert attained(run(1.0, 4), run(2.0, 8)) is None
    assert attained(run(1.0, 4), run(1.0, 3)).noise_multiplier == math.inf
    assert attained(run(1.0, 4), run(1.0, 5, 5)).noise_multiplier == math.inf

    def traced(noise):
        account = fdp.Accountant(capacity=2).step(run(noise, 8)).step(run(1.0, 4))
        terms: Any = account.loss().terms
        (term,) = (x for x in terms if hasattr(x, "num_batches"))
        attained: Any = account.attained()
        assert len(attained.tables) == 1
        return term.noise_multiplier

    assert float(jax.jit(traced)(2.0)) == pytest.approx(1.5**-0.5)


def deltas(p, q, epsilons):
    """Hockey-stick divergences in both directions."""
    rates = np.exp(epsilons)[:, None]
    return np.concatenate(
        [np.maximum(a - rates * b, 0).sum(axis=1) for a, b in ((p, q), (q, p))]
    )


@pytest.mark.parametrize(("first", "second"), [(2, 2), (2, 3), (3, 3)])
def test_one_draw_leaks_at_least_as_much_as_two(first, second):
    """Exactly, for releases of three outputs: what joining kept batches rests on."""
    rng = np.random.default_rng(0)
    epsilons = np.linspace(-3.0, 3.0, 25)
    for _ in range(20):
        releases = rng.dirichlet(np.ones(3), size=(2, 2))  # run, without and with

        def law(batches, inside, pair):
            rows = [pair[int(i == inside)] for i in range(batches)]
            return np.asarray([np.prod(x) for x in itertools.product(*rows)])

        def run(batches, index, inside, releases=releases):
            return law(batches, inside, releases[index])

        pairs = lambda t, u: np.outer(t, u).ravel()
        anew = [
            np.mean([run(t, i, j) for j in range(t)], axis=0)
            for i, t in enumerate((first, second))
        ]
        p = pairs(run(first, 0, None), run(second, 1, None))
        two = deltas(p, pairs(*anew), epsilons)
        t = min(first, second)
        p = pairs(run(t, 0, None), run(t, 1, None))
        q = np.mean([pairs(run(t, 0, j), run(t, 1, j)) for j in range(t)], axis=0)
        assert np.all(two <= deltas(p, q, epsilons) + 1e-13)


def test_the_same_batch_in_twenty_epochs():
    scheme = ALLOCATION(10, same_every_epoch=True)
    run = lambda epochs: fdp.DPSGD(
        noise_multiplier=3.0, sampling=scheme, num_steps=10 * epochs
    )
    account = fdp.Accountant()
    for _ in range(20):
        account = account.step(run(1))
    found = [x.bounds(epsilon=1.0) for x in (run(20), account, run(1).repeat(20))]
    # By Monte Carlo, with a standard error of .0001; independent draws have .0055.
    assert found[0].lower > 0.05229 - 3e-4
    assert found[0].upper < 0.05229 + 3e-4
    for other in found[1:]:
        assert (other.lower, other.upper) == (found[0].lower, found[0].upper)


def test_a_plan_has_one_run():
    run = RUNS["same batch"](8)
    plan = Plan(run, num_records=16, clipping=1.0)
    assert plan.after(4).shares() == {Shared.SAME_BATCH}
    twice = fdp.compose(plan.after(4), plan.after(4))
    require_at_least(twice, plan.after(8), True)
    strategy = fdp.MatrixMechanism(1.0, jnp.asarray([1.0, 0.5]), num_steps=8)
    plan = Plan(strategy, num_records=16, clipping=1.0)
    with pytest.raises(ValueError, match="the noise is correlated from step to step"):
        fdp.compose(plan.after(4), plan.after(4))
