"""Events of dp_accounting: their meaning, their accountant's own tests, refusals."""

import pathlib
import pickle
import random
import re
from typing import Any

import attr
import jax
import numpy as np
import pytest
from closed import Gaussian
from scipy import special

import fdp_jax as fdp
from fdp_jax.interop import _from_event, from_dp_event, from_pld, to_dp_event

dpa = pytest.importorskip("dp_accounting")
suite = pytest.importorskip("dp_accounting.privacy_accountant_test")
pld_suite = pytest.importorskip("dp_accounting.pld.pld_privacy_accountant_test")

import event_trees as trees  # noqa: E402

ev, Theirs = dpa.dp_event, dpa.NeighboringRelation
make = dpa.pld.privacy_loss_distribution
Ours = fdp.NeighboringRelation
FdpAccountant = fdp.interop.FdpAccountant
DELTAS = (1e-2, 1e-5, 1e-7)


# ------------------------------------------------------ dp_accounting's own tests


class TestAccountant(suite.PrivacyAccountantTest):
    """Their tests of every accountant."""

    def _make_test_accountants(self):
        return [FdpAccountant(relation) for relation in Theirs]


EXCLUDED = {
    "test_composition_errors_for_neighboring_relation": (
        "the wording of refusals; Laplace noise is taken under REPLACE_ONE here"
    ),
    "test_truncated_subsampled_gaussian_basic": "truncated batches are refused",
}


class TestAsTheirPLDAccountant(pld_suite.PldPrivacyAccountantTest):
    """Their tests of the PLD accountant, with their numbers, but for `EXCLUDED`."""

    def setUp(self):
        super().setUp()
        module = pld_suite.pld_privacy_accountant
        self.addCleanup(setattr, module, "PLDAccountant", module.PLDAccountant)
        module.PLDAccountant = FdpAccountant


for _name in [x for x in dir(TestAsTheirPLDAccountant) if x.startswith("test")]:
    if _name.rstrip("0123456789") in EXCLUDED:
        setattr(TestAsTheirPLDAccountant, _name, None)
    elif hasattr(suite.PrivacyAccountantTest, _name):
        setattr(TestAsTheirPLDAccountant, _name, None)  # run above


# ------------------------------------------------------------------- random trees


def check_tree(event, relation, deltas=DELTAS):
    accountant = FdpAccountant(relation).compose(event)
    above = trees.pld_of(event, relation, pessimistic=True)
    kinds = {type(e) for e, _ in trees.releases(event)}
    if kinds == {ev.GaussianDpEvent}:
        truth, below = Gaussian(1 / trees.total_mu(event, relation)), above
    else:
        truth, below = None, trees.pld_of(event, relation, pessimistic=False)
    for delta in deltas:
        found = accountant.get_epsilon(delta)
        theirs = above.get_epsilon_for_delta(delta)
        assert found <= theirs * (1 + 1e-6) + 1e-9, (delta, event)
        if truth is not None:
            # Their numbers of Gaussians are 1 / mu rounded.
            assert truth.delta(found * (1 + 1e-12) + 1e-15) <= delta, (delta, event)
        else:
            least = below.get_epsilon_for_delta(delta)
            assert found >= least * (1 - 1e-9), (delta, event)


@pytest.mark.parametrize("seed", range(5))
def test_gaussian_trees(seed):
    rng = random.Random(seed)
    relation = rng.choice(list(Theirs))
    check_tree(trees.tree(rng, trees.GAUSSIAN, depth=3), relation)


@pytest.mark.parametrize("seed", [0, 2, 3, 4, 8])
def test_trees(seed):
    rng = random.Random(100 + seed)
    relation = list(Theirs)[seed % 3]
    kinds = trees.ALL[relation] if seed > 3 else trees.SAMPLED
    check_tree(trees.tree(rng, kinds), relation)


def _many(seed):
    rng = random.Random(1000 + seed)
    relation = rng.choice(list(Theirs))
    num_kinds = rng.choice([1, 1, 1, 2])
    return trees.tree(rng, trees.ALL[relation], num_kinds), relation


@pytest.mark.slow
def test_few_steps_that_rarely_take_a_record():
    """Seven of them, whose bracket was 1e-5 wide by a grid."""
    event, relation = _many(115)
    check_tree(event, relation, deltas=(1e-2,))
    found = FdpAccountant(relation).compose(event).mechanism.bounds(delta=1e-2)
    assert found.status == fdp.Status.TIGHT


# Two kinds of releases beside each other, and sampled Laplace and mixtures alone.
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 8, 18, 32, 37, 71, 86, 139, 144, 172])
def test_many_trees(seed):
    check_tree(*_many(seed), deltas=10.0 ** -np.arange(2, 8))


# ------------------------------------------------------------------ there and back

GAUSSIAN = ev.GaussianDpEvent(1.25)
EVENTS = [
    ev.NoOpDpEvent(),
    ev.NonPrivateDpEvent(),
    GAUSSIAN,
    ev.LaplaceDpEvent(0.75),
    ev.DiscreteLaplaceDpEvent(0.5, 2),
    ev.SelfComposedDpEvent(ev.PoissonSampledDpEvent(0.01, GAUSSIAN), 1000),
    ev.PoissonSampledDpEvent(0.1, ev.DiscreteLaplaceDpEvent(0.5, 2)),
    ev.MixtureOfGaussiansDpEvent(1.5, [0.0, 1.0], [0.25, 0.75]),
    ev.ZCDpEvent(0.5),
    ev.ComposedDpEvent(
        [ev.SelfComposedDpEvent(ev.LaplaceDpEvent(float(i)), i) for i in range(2, 9)]
    ),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_events_come_back(event):
    assert to_dp_event(from_dp_event(event)) == event


@pytest.mark.parametrize("relation", [Ours.REPLACE_ONE, Ours.ZERO_OUT])
@pytest.mark.parametrize("count", [2, 5])
def test_randomized_response_comes_back(count, relation):
    event = ev.RandomizedResponseDpEvent(0.3, count)
    mechanism = from_dp_event(event, relation=relation)
    if count > 2 or relation is Ours.ZERO_OUT:
        assert isinstance(mechanism, fdp.KaryRandomizedResponse)
    back = to_dp_event(mechanism)
    assert back.num_buckets == count
    assert back.noise_parameter == pytest.approx(0.3, rel=1e-14)


MECHANISMS = [
    fdp.Gaussian(0.8, relation="replace_one"),
    fdp.Laplace(0.8, relation="replace_one"),
    fdp.DiscreteLaplace(3.0, sensitivity=4, relation="replace_one"),
    fdp.DPSGD(
        noise_multiplier=0.8, sampling_prob=0.1, num_steps=7, relation="replace_one"
    ),
    fdp.DPSGD(noise_multiplier=0.8, sampling_prob=0.1, num_steps=7),
    fdp.PoissonSubsampled(fdp.Laplace(2.0, relation="zero_out"), 0.5),
    fdp.PerfectPrivacy(),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: type(m).__name__)
def test_mechanisms_come_back(mechanism):
    found = from_dp_event(to_dp_event(mechanism), relation=mechanism.relation)
    assert jax.tree.structure(found) == jax.tree.structure(mechanism)
    for x, y in zip(*map(jax.tree.leaves, (found, mechanism)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-15)


def test_accountants_and_schedules_become_events():
    noise = np.linspace(1.0, 2.0, 6)
    account = fdp.Accountant()
    for s in noise:
        account = account.step(fdp.PoissonSubsampled(fdp.Gaussian(s), 0.1), count=2)
    event = to_dp_event(account)
    assert sum(part.count for part in event.events) == 12
    again = from_dp_event(event)
    assert isinstance(again, fdp.Accountant)
    assert again.num_steps == 12
    schedule = fdp.Schedule(lambda s: fdp.Gaussian(s), noise)
    parts = to_dp_event(schedule).events
    assert [part.noise_multiplier for part in parts] == list(noise)
    assert to_dp_event(fdp.Gaussian(np.inf)) == ev.NoOpDpEvent()
    assert to_dp_event(fdp.Gaussian(1.0).repeat(0)) == ev.NoOpDpEvent()


def test_equal_steps_are_counted_together():
    one = ev.PoissonSampledDpEvent(0.1, GAUSSIAN)
    found = from_dp_event(ev.ComposedDpEvent([one] * 50 + [ev.NoOpDpEvent()]))
    assert isinstance(found, fdp.DPSGD)
    assert found.num_steps == 50
    nested = ev.PoissonSampledDpEvent(0.5, ev.ComposedDpEvent([one]))
    found = from_dp_event(nested)
    assert isinstance(found, fdp.PoissonSubsampled)
    assert found.sampling_prob == pytest.approx(0.05)
    nested = from_dp_event(nested, relation=Theirs.REPLACE_ONE)
    assert isinstance(nested, fdp.DPSGD)
    assert nested.sampling_prob == pytest.approx(0.05)


def test_trees_and_zcdp():
    tree = ev.SingleEpochTreeAggregationDpEvent(3.0, [3, 8])
    found = from_dp_event(tree, relation=Theirs.REPLACE_SPECIAL)
    assert isinstance(found, fdp.Gaussian)
    assert found.noise_multiplier == pytest.approx(3.0 / 2)
    both = ev.ComposedDpEvent([ev.ZCDpEvent(0.1), ev.ZCDpEvent(0.2, 0.3)])
    found = from_dp_event(both)
    assert isinstance(found, fdp.RenyiDP)
    np.testing.assert_allclose(found.divergences, 0.3 + 0.3 * found.orders)


def test_derivatives_pass_through_events():
    def epsilon(noise):
        event = ev.SelfComposedDpEvent(ev.GaussianDpEvent(noise), 4)
        return from_dp_event(event).epsilon(delta=1e-5)

    direct = jax.grad(lambda s: fdp.Gaussian(s).repeat(4).epsilon(delta=1e-5))
    np.testing.assert_allclose(jax.grad(epsilon)(2.0), direct(2.0), rtol=1e-12)


@pytest.mark.slow
def test_batches_of_a_size_and_cut_ones():
    fixed = ev.SampledWithoutReplacementDpEvent(900, 9, GAUSSIAN)
    found = from_dp_event(
        ev.SelfComposedDpEvent(fixed, 200), relation="replace_one"
    ).bounds(delta=1e-5)
    run = fdp.DPSGD(
        noise_multiplier=GAUSSIAN.noise_multiplier,
        sampling=fdp.sampling.FixedSize(batch_size=9, dataset_size=900),
        num_steps=200,
        relation="replace_one",
    ).bounds(delta=1e-5)
    np.testing.assert_allclose(
        [found.lower, found.upper], [run.lower, run.upper], rtol=1e-9
    )
    cut = ev.TruncatedSubsampledGaussianDpEvent(60, 0.1, 8, 1.0)
    tree = ev.SelfComposedDpEvent(cut, 3)
    ours = from_dp_event(tree).bounds(delta=1e-6)
    theirs = dpa.pld.PLDAccountant().compose(tree).get_epsilon(1e-6)
    assert ours.lower <= ours.upper <= theirs


def test_events_of_schemes():
    cyclic = fdp.sampling.CyclicPoisson(0.1, num_groups=4)
    run = fdp.DPSGD(noise_multiplier=2.0, sampling=cyclic, num_steps=10)
    sampled = ev.PoissonSampledDpEvent(0.1, ev.GaussianDpEvent(2.0))
    assert to_dp_event(run) == ev.SelfComposedDpEvent(sampled, 3)
    fixed = fdp.sampling.FixedSize(prob=0.1)
    other = fdp.DPSGD(
        noise_multiplier=2.0, sampling=fixed, num_steps=10, relation="zero_out"
    )
    with pytest.raises(NotImplementedError, match="FixedSize with a share: give batch"):
        to_dp_event(other)
    dealt = fdp.sampling.RandomAllocation(num_batches=5, same_every_epoch=True)
    with pytest.raises(NotImplementedError, match="no event for"):
        to_dp_event(fdp.DPSGD(noise_multiplier=2.0, sampling=dealt, num_steps=10))


@pytest.mark.parametrize("noise", [2.0, np.inf])
def test_batches_become_events(noise):
    inner = ev.GaussianDpEvent(2.0) if noise == 2 else ev.NoOpDpEvent()
    sizes = {"batch_size": 9, "dataset_size": 900}
    replaced = {"relation": "replace_one"}
    truncated = fdp.sampling.TruncatedPoisson(0.02, **sizes)
    rows: list[Any] = [
        (fdp.sampling.Poisson(0.02), {}, ev.PoissonSampledDpEvent(0.02, inner)),
        (
            fdp.sampling.FixedSize(**sizes),
            replaced,
            ev.SampledWithoutReplacementDpEvent(900, 9, inner),
        ),
        (
            fdp.sampling.WithReplacement(**sizes),
            replaced,
            ev.SampledWithReplacementDpEvent(900, 9, inner),
        ),
        (truncated, {}, ev.TruncatedSubsampledGaussianDpEvent(900, 0.02, 9, noise)),
    ]
    for scheme, options, step in rows:
        run = fdp.DPSGD(noise_multiplier=noise, sampling=scheme, num_steps=7, **options)
        event = ev.SelfComposedDpEvent(step, 7)
        assert to_dp_event(run) == event
        # Of a Gaussian's noise multiplier the sensitivity is the unit.
        shift = 2 if options else 1
        release = fdp.Gaussian(noise / shift, **options)
        assert to_dp_event(fdp.Subsampled(release, scheme, 7)) == event
        both = fdp.compose(run, fdp.Gaussian(3.0 / shift, **options))
        parts = to_dp_event(both).events
        assert parts == [event, ev.GaussianDpEvent(3.0)]


# ---------------------------------------------------------------------- refusals


SAMPLE = ev.PoissonSampledDpEvent(0.1, ev.LaplaceDpEvent(1.0))
TWICE = ev.SelfComposedDpEvent(GAUSSIAN, 2)
RESPONSE = ev.RandomizedResponseDpEvent(0.5, 3)
SELECTION = ev.RepeatAndSelectDpEvent(GAUSSIAN, 3.0, 1.0)
MIXTURE = ev.MixtureOfGaussiansDpEvent(1.0, [1.0], [1.0])
REFUSED = [
    (ev.UnsupportedDpEvent(), "add_or_remove_one", "nothing is known"),
    (ev.SampledWithReplacementDpEvent(9, 3, GAUSSIAN), "zero_out", "replaced record"),
    (
        ev.SampledWithoutReplacementDpEvent(9, 3, GAUSSIAN),
        "add_or_remove_one",
        "replaced record",
    ),
    (ev.SampledWithoutReplacementDpEvent(9, 3, TWICE), "replace_one", "one Gaussian"),
    (ev.PoissonSampledDpEvent(0.1, SELECTION), "zero_out", "no sample"),
    (ev.SingleEpochTreeAggregationDpEvent(1.0, 4), "replace_one", "zeroed out"),
    (RESPONSE, "add_or_remove_one", "cannot be absent"),
    (ev.PoissonSampledDpEvent(0.1, RESPONSE), "zero_out", "no sample"),
    (ev.PoissonSampledDpEvent(0.1, TWICE), "zero_out", "used once"),
    (ev.PoissonSampledDpEvent(0.1, ev.ZCDpEvent(1.0)), "zero_out", "Renyi"),
    (MIXTURE, "replace_one", "replaced records"),
    (SAMPLE, "replace_one", "Laplace"),
    (suite.UnknownDpEvent(), "zero_out", "not known here"),
]


@pytest.mark.parametrize(("event", "relation", "missing"), REFUSED)
def test_events_are_refused_by_name(event, relation, missing):
    tree = ev.ComposedDpEvent([GAUSSIAN, event]) if event != RESPONSE else event
    name = type(event).__name__
    with pytest.raises(NotImplementedError, match=f"^{name} .*{missing}[^\n]*$"):
        from_dp_event(tree, relation=relation)
    assert not FdpAccountant(Ours(relation)).supports(tree)


def test_zcdp_composes_with_others():
    """A Gaussian and zCDP are zCDP; their accountant's orders are a list."""
    rho = 0.3 + 0.5 / GAUSSIAN.noise_multiplier**2
    event = ev.ComposedDpEvent([GAUSSIAN, ev.SelfComposedDpEvent(ev.ZCDpEvent(0.1), 3)])
    assert to_dp_event(from_dp_event(event)).events[0] == ev.ZCDpEvent(0.1 * 3)
    for delta in (1e-2, 1e-6):
        found = FdpAccountant().compose(event).get_epsilon(delta)
        truth = float(fdp.ZCDP(rho).epsilon(delta=delta))
        theirs = dpa.rdp.RdpAccountant().compose(event).get_epsilon(delta)
        assert truth * (1 - 1e-12) <= found <= min(truth * (1 + 1e-8), theirs)


@pytest.mark.parametrize("shape", [0.0, 1e-9, 0.5, 1.0, 3.0, np.inf])
def test_selections(shape):
    """Their law is that of the mean, by its probabilities; their Renyi bound holds."""
    run, number = ev.GaussianDpEvent(4.0), np.arange(1, 2000)
    event = ev.RepeatAndSelectDpEvent(run, 7.0, shape)
    found = from_dp_event(event)
    assert isinstance(found, fdp.SelectBest)
    if isinstance(found.repetitions, fdp.selection.NegativeBinomial):
        left = np.log1p(-np.asarray(found.repetitions.success_prob, float))
        log_probs = special.gammaln(number + shape) - special.gammaln(number + 1)
        probs = np.exp(log_probs + number * left)
        assert np.average(number, weights=probs) == pytest.approx(7.0, rel=1e-12)
    back = to_dp_event(found)
    assert (back.event, back.shape) == (run, shape)
    assert back.mean == pytest.approx(7.0, rel=1e-13)
    epsilon = found.epsilon(delta=1e-6)
    theirs = dpa.rdp.RdpAccountant().compose(event).get_epsilon(1e-6)
    assert fdp.Gaussian(4.0).epsilon(delta=1e-6) < epsilon < theirs


def test_selections_among_others():
    once = ev.RepeatAndSelectDpEvent(GAUSSIAN, 1.0, 3.0)
    assert to_dp_event(from_dp_event(once)) == GAUSSIAN
    for inner in (ev.NoOpDpEvent(), ev.NonPrivateDpEvent()):
        event = ev.RepeatAndSelectDpEvent(inner, 3.0, 0.0)
        assert to_dp_event(from_dp_event(event)) == inner
    both = ev.ComposedDpEvent([SELECTION, ev.GaussianDpEvent(1e3)])
    epsilon = from_dp_event(SELECTION).epsilon(delta=1e-6)
    found = FdpAccountant().compose(both).get_epsilon(1e-6)
    theirs = dpa.rdp.RdpAccountant().compose(both).get_epsilon(1e-6)
    assert epsilon < found < min(1.02 * epsilon, theirs)
    replaced = ev.ComposedDpEvent([ev.RepeatAndSelectDpEvent(ev.ZCDpEvent(0.1), 3, 1)])
    found = from_dp_event(ev.SelfComposedDpEvent(replaced, 2), relation="replace_one")
    assert found.relation is Ours.REPLACE_ONE
    for mean, shape, what in [(0.5, 1, "mean"), (np.nan, 1, "mean"), (2, -1, "shape")]:
        with pytest.raises(ValueError, match=f"^{what} must be [^\n]*$"):
            from_dp_event(ev.RepeatAndSelectDpEvent(GAUSSIAN, mean, shape))
    with pytest.raises(NotImplementedError, match="one direction"):
        to_dp_event(from_dp_event(SELECTION).add)  # pyright: ignore[reportArgumentType]


LATER = {
    "EpsilonDeltaDpEvent": ["epsilon", "delta"],
    "ExponentialMechanismDpEvent": ["epsilon"],
    "PermuteAndFlipDpEvent": ["epsilon"],
    "DiscreteGaussianDpEvent": ["sigma", "sensitivity", "dimension"],
    "RandomAllocationDpEvent": ["event", "num_selected", "num_steps"],
}
"""Events of dp_accounting's head and their fields."""


@pytest.fixture
def later(monkeypatch):
    """Its module of events, with those of its head where they are not there yet."""
    for name, fields in LATER.items():
        if not hasattr(ev, name):
            made = attr.make_class(name, fields, bases=(ev.DpEvent,), frozen=True)
            made.__module__ = ev.__name__
            monkeypatch.setattr(ev, name, made, raising=False)
    return ev


def test_the_docs_list_all_events(later):
    """The rows of the page's table are the events that there are, and what is read."""
    page = pathlib.Path(__file__).parents[2] / "docs/accounting.md"
    rows = re.findall(r"^\| `(\w+DpEvent)` \| (yes|no) \|", page.read_text(), re.M)
    known = {name for name in dir(later) if name.endswith("DpEvent")} - {"DpEvent"}
    assert {name for name, _ in rows} == known
    parts = {"ComposedDpEvent", "SelfComposedDpEvent", "RepeatAndSelectDpEvent"}
    readable = parts | _from_event._RELEASES.keys() | _from_event._SAMPLES.keys()
    assert {name for name, read in rows if read == "yes"} == readable & known


def test_events_are_written_as_the_docs_say(later):
    page = pathlib.Path(__file__).parents[2] / "docs/accounting.md"
    rows = re.findall(
        r"^\| `(\w+DpEvent)` \| yes \|.*\| `?(\w+)[^|]*\|$", page.read_text(), re.M
    )
    noise, laplace = ev.GaussianDpEvent(2.0), ev.LaplaceDpEvent(1.0)
    args: dict[str, tuple] = {
        "ComposedDpEvent": ([noise, laplace],),
        "SelfComposedDpEvent": (laplace, 3),
        "NoOpDpEvent": (),
        "NonPrivateDpEvent": (),
        "GaussianDpEvent": (2.0,),
        "LaplaceDpEvent": (1.0,),
        "DiscreteLaplaceDpEvent": (0.5, 2),
        "DiscreteGaussianDpEvent": (3.0, 1, 1),
        "MixtureOfGaussiansDpEvent": (2.0, [0.0, 1.0], [0.5, 0.5]),
        "RandomizedResponseDpEvent": (0.5, 4),
        "ExponentialMechanismDpEvent": (0.7,),
        "PermuteAndFlipDpEvent": (0.7,),
        "EpsilonDeltaDpEvent": (0.7, 1e-3),
        "ZCDpEvent": (0.1,),
        "PoissonSampledDpEvent": (0.1, noise),
        "SampledWithoutReplacementDpEvent": (100, 10, noise),
        "TruncatedSubsampledGaussianDpEvent": (100, 0.1, 20, 2.0),
        "RandomAllocationDpEvent": (noise, 1, 5),
        "SingleEpochTreeAggregationDpEvent": (2.0, 4),
        "SampledWithReplacementDpEvent": (100, 10, noise),
        "RepeatAndSelectDpEvent": (noise, 7.0, 1.0),
    }
    assert {name for name, _ in rows} == args.keys()
    for name, written in rows:
        event = getattr(later, name)(*args[name])
        relation = "add_or_remove_one"
        if name.startswith(("SampledWith", "Randomized")):
            relation = "replace_one"
        if name.startswith("SingleEpoch"):
            relation = "zero_out"
        back = to_dp_event(from_dp_event(event, relation=relation))
        assert type(back).__name__ == (name if written == "yes" else written)
        assert written != "yes" or back == event


def test_later_events(later):
    shift = {"add_or_remove_one": 1, "zero_out": 1, "replace_one": 2}
    for relation, times in shift.items():
        rows = [
            (
                later.EpsilonDeltaDpEvent(0.5, 1e-3),
                fdp.ApproxDP(epsilon=0.5, delta=1e-3, relation=relation),
            ),
            (
                later.ExponentialMechanismDpEvent(0.7),
                fdp.ExponentialMechanism(0.7, relation=relation),
            ),
            (
                later.PermuteAndFlipDpEvent(0.7),
                fdp.PermuteAndFlip(0.7, relation=relation),
            ),
            (
                later.DiscreteGaussianDpEvent(3.0, 2.0, 1),  # theirs is a float
                fdp.DiscreteGaussian(3.0, sensitivity=2 * times, relation=relation),
            ),
        ]
        if relation != "replace_one":
            scheme = fdp.sampling.RandomAllocation(9, num_participations=2)
            run = fdp.DPSGD(
                noise_multiplier=1.25, sampling=scheme, num_steps=9, relation=relation
            )
            rows.append((later.RandomAllocationDpEvent(GAUSSIAN, 2, 9), run))
        for event, mechanism in rows:
            found = from_dp_event(event, relation=relation)
            assert jax.tree.structure(found) == jax.tree.structure(mechanism)
            for pair in zip(*map(jax.tree.leaves, (found, mechanism)), strict=True):
                np.testing.assert_array_equal(*pair)
            assert to_dp_event(mechanism) == event
        found = from_dp_event(
            later.DiscreteGaussianDpEvent(3.0, 2, None), relation=relation
        )
        assert isinstance(found, fdp.ZCDP)
        assert found.rho == pytest.approx(0.5 * (2 * times / 3) ** 2, rel=1e-15)
    epochs = later.SelfComposedDpEvent(later.RandomAllocationDpEvent(GAUSSIAN, 1, 9), 3)
    run = from_dp_event(epochs)
    assert isinstance(run, fdp.DPSGD)
    assert run.num_steps == 27
    assert to_dp_event(run) == epochs
    half = fdp.ExponentialMechanism(0.8, monotonic=True)
    assert to_dp_event(half) == later.ExponentialMechanismDpEvent(0.4)
    for event in (
        later.RandomAllocationDpEvent(GAUSSIAN, 0, 9),
        later.ExponentialMechanismDpEvent(0.0),
        later.PermuteAndFlipDpEvent(0.0),
    ):
        assert isinstance(from_dp_event(event), fdp.PerfectPrivacy)
    every = from_dp_event(later.RandomAllocationDpEvent(GAUSSIAN, 9, 9))
    assert to_dp_event(every) == later.SelfComposedDpEvent(GAUSSIAN, 9)
    silent = later.DiscreteGaussianDpEvent(0.0, 1, 1)
    assert isinstance(from_dp_event(silent), fdp.BlatantNonPrivacy)
    with pytest.raises(NotImplementedError, match="not known of replace_one"):
        from_dp_event(epochs, relation="replace_one")
    laplace = later.RandomAllocationDpEvent(ev.LaplaceDpEvent(1.0), 1, 9)
    with pytest.raises(NotImplementedError, match="one Gaussian"):
        from_dp_event(laplace)


@pytest.mark.parametrize(
    "mechanism",
    [
        fdp.Logistic(1.0),
        fdp.PureDP(1.0),
        fdp.RandomizedResponse(1.0, relation="zero_out"),
        fdp.DiscreteLaplace(1.0, sensitivity=3, relation="replace_one"),
        fdp.RenyiDP([2.0], [1.0]),
    ],
    ids=lambda m: type(m).__name__,
)
def test_mechanisms_are_refused_by_name(mechanism):
    with pytest.raises(NotImplementedError, match=type(mechanism).__name__):
        to_dp_event(mechanism)


def test_wrong_arguments():
    with pytest.raises(TypeError, match=r"must be a dp_accounting\.DpEvent, got 3"):
        from_dp_event(3)
    with pytest.raises(TypeError, match="takes mechanisms, got View"):
        to_dp_event(fdp.Gaussian(1.0).remove)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="noise_multiplier"):
        from_dp_event(ev.GaussianDpEvent(-1.0))
    with pytest.raises(ValueError, match="sampling_probability"):
        from_dp_event(ev.PoissonSampledDpEvent(1.5, GAUSSIAN))
    with pytest.raises(ValueError, match="count"):
        from_dp_event(ev.SelfComposedDpEvent(GAUSSIAN, 1.5))
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, num_steps=1.5)
    with pytest.raises(ValueError, match="num_steps"):
        to_dp_event(run)
    with pytest.raises(ValueError, match="num_steps of DPSGD is not set"):
        to_dp_event(fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.1))
    with pytest.raises(ValueError, match="outside of jit"):
        jax.jit(lambda s: to_dp_event(fdp.Gaussian(s)))(1.0)
    with pytest.raises(ValueError, match="relation"):
        from_dp_event(GAUSSIAN, relation="substitute")


# --------------------------------------------------------------------- accountant


def test_accountant_is_one_of_theirs():
    accountant = FdpAccountant()
    assert isinstance(accountant, dpa.PrivacyAccountant)
    assert accountant.neighboring_relation is Theirs.ADD_OR_REMOVE_ONE
    accountant.compose(GAUSSIAN, 3).compose(GAUSSIAN)
    assert accountant.ledger == ev.SelfComposedDpEvent(GAUSSIAN, 4)
    expected = fdp.Gaussian(1.25).repeat(4)
    assert accountant.get_epsilon(1e-5) == expected.epsilon(delta=1e-5)
    assert accountant.get_delta(1.0) == expected.delta(epsilon=1.0)
    assert accountant.mechanism.beta(alpha=0.1) == expected.beta(alpha=0.1)
    again = pickle.loads(pickle.dumps(accountant))
    assert again.get_epsilon(1e-5) == accountant.get_epsilon(1e-5)
    special = FdpAccountant(Ours.ZERO_OUT)
    assert special.neighboring_relation is Theirs.REPLACE_SPECIAL


def test_accountants_print_what_they_hold():
    found = repr(FdpAccountant().compose(ev.GaussianDpEvent(2.0), 3))
    assert found.startswith("FdpAccountant(")
    assert "Gaussian(noise_multiplier=2" in found
    assert repr(FdpAccountant()).startswith("FdpAccountant(PerfectPrivacy(")


def test_their_calibration_by_our_accountant():
    found = dpa.calibrate_dp_mechanism(
        FdpAccountant, lambda s: ev.GaussianDpEvent(s), 1.0, 1e-5, tol=1e-8
    )
    assert found == pytest.approx(dpa.get_sigma_gaussian(1.0, 1e-5), abs=2e-8)
    assert FdpAccountant().compose(ev.GaussianDpEvent(found)).get_epsilon(1e-5) <= 1.0


def test_a_calibration_of_theirs_is_one_of_ours():
    """The change of one name; of a Gaussian the closed form is known."""
    ask = lambda make, **more: fdp.interop.calibrate_dp_mechanism(
        make, lambda s: ev.GaussianDpEvent(s), 1.0, 1e-5, **more
    )
    found = ask(dpa.pld.PLDAccountant, tol=1e-8)
    truth = dpa.get_sigma_gaussian(1.0, 1e-5)
    assert found == pytest.approx(truth, abs=2e-8)
    assert Gaussian(found).delta(1.0) <= 1e-5
    replaced = ask(lambda: dpa.pld.PLDAccountant(Theirs.REPLACE_ONE), tol=1e-8)
    assert replaced == pytest.approx(2 * truth, abs=4e-8)
    steps = fdp.interop.calibrate_dp_mechanism(
        dpa.rdp.RdpAccountant,
        lambda n: ev.SelfComposedDpEvent(ev.GaussianDpEvent(10.0), n),
        *(1.0, 1e-5, dpa.LowerEndpointAndGuess(1, 2)),
        discrete=True,
    )
    # n Gaussians of 10 are one of 10 / sqrt(n).
    assert steps == int((10 / truth) ** 2)
    with pytest.raises(dpa.mechanism_calibration.NonEmptyAccountantError):
        ask(lambda: dpa.pld.PLDAccountant().compose(GAUSSIAN))


# --------------------------------------------------------------------------- PLDs


@pytest.mark.parametrize(
    ("theirs", "count", "excess"),
    [
        (make.from_randomized_response(0.2, 4), 5, 1e-9),
        (make.from_gaussian_mechanism(1.0, sampling_prob=0.1), 1, 1e-3),
        (make.identity(), 1, 0.0),
        pytest.param(
            *(make.from_laplace_mechanism(1.0), 5, 1e-6), marks=pytest.mark.slow
        ),
    ],
    ids=["response", "sampled", "nothing", "laplace"],
)
def test_distributions_are_bounded(theirs, count, excess):
    found = from_pld(theirs).repeat(count)
    theirs = theirs.self_compose(count) if count > 1 else theirs
    for delta in (1e-2, 1e-5, 1e-8):
        expected = theirs.get_epsilon_for_delta(delta)
        value = max(float(found.epsilon(delta=delta)), 0.0)
        assert expected * (1 - 1e-9) <= value <= expected * (1 + excess) + 1e-9


def test_what_is_no_distribution_is_refused():
    with pytest.raises(TypeError, match="pld must be"):
        from_pld(GAUSSIAN)
    with pytest.raises(ValueError, match="num_points"):
        from_pld(make.identity(), num_points=1)
