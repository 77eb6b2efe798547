"""From a mechanism to a program: what is compiled, and what is declared instead."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from programs import jitted

import fdp_jax as fdp
from fdp_jax import NeighboringRelation
from fdp_jax._internal._host import whole_programs
from fdp_jax.curves import DELTA, Bounds, Range, Status, Subject
from fdp_jax.losses import ComposedLoss, TwoPointLoss
from fdp_jax.mechanisms import AbstractMechanism, Sampling, _resolve, resolve
from fdp_jax.mechanisms._relations import relation_field

REPLACE_ONE = NeighboringRelation.REPLACE_ONE
ENGINES = {"jit(epsilon_bounds)", "jit(profile)", "jit(error_rate_bounds)"}
"""Names of the programs that hold an engine."""


@contextlib.contextmanager
def _compiled() -> Iterator[set[str]]:
    """Names of what is compiled meanwhile, none of which is taken from disk."""
    found: set[str] = set()

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        del duration_secs
        if event.endswith("backend_compile_duration"):
            found.add(str(kwargs.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FDP_JAX_CACHE", "off")
            yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def _every_question(mechanism: Any) -> None:
    mechanism.epsilon(delta=1e-3)
    for epsilon in (-0.5, 0.7):
        mechanism.delta(epsilon=epsilon)
        mechanism.log_delta(epsilon=epsilon)
    mechanism.advantage()
    mechanism.bayes_error(prior=0.3)
    mechanism.beta(alpha=0.1)
    mechanism.tpr(fpr=0.2)


SAME_LOSS = {
    "two points": [
        fdp.PureDP(1.0),
        fdp.RandomizedResponse(1.1),
        fdp.Tulap(0.9),
        fdp.ApproxDP(epsilon=1.2, delta=0.0),
        fdp.PureDP(0.8, relation=REPLACE_ONE),
    ],
    "logistic": [fdp.Logistic(1.0), fdp.ExponentialMechanism(1.0)],
    "subsampled Gaussian": [
        fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=100),
        fdp.DPSGD(
            noise_multiplier=2.0,
            sampling_prob=0.1,
            num_steps=7.5,
            relation=NeighboringRelation.ZERO_OUT,
        ),
        fdp.PoissonSubsampled(fdp.Gaussian(1.2), 0.02).repeat(50),
    ],
    "Gaussian": [
        fdp.Gaussian(1.0),
        fdp.Gaussian(2.0, relation=REPLACE_ONE),
    ],
}


@pytest.mark.parametrize("kind", SAME_LOSS)
def test_mechanisms_of_one_loss_share_all_programs(kind):
    first, *others = SAME_LOSS[kind]
    _every_question(first)
    with _compiled() as found:
        for other in others:
            _every_question(other)
    assert not found & ENGINES


def test_questions_about_the_profile_share_one_program():
    mechanism = fdp.Laplace(1.3)
    mechanism.delta(epsilon=0.5)
    with _compiled() as found:
        mechanism.log_delta(epsilon=0.1)
        mechanism.bayes_error(prior=0.4)
        mechanism.advantage()
        mechanism.bounds(epsilon=-1.0)
    assert not found & ENGINES


class _Counted(AbstractMechanism):
    """Pure DP that counts how often its loss is made."""

    epsilon0: float = 1.0
    relation: Any = relation_field(NeighboringRelation.ADD_OR_REMOVE_ONE)
    made: ClassVar[list[int]] = []

    def loss(self) -> ComposedLoss:
        self.made.append(1)
        level = jnp.asarray(self.epsilon0, float)
        term = TwoPointLoss.of(level, jnp.zeros_like(level))
        return ComposedLoss((term,), (jnp.ones_like(level),), single=True)


def test_compositions_are_made_without_their_losses():
    _Counted.made.clear()
    run = fdp.compose(_Counted(), _Counted(0.5)).repeat(3)
    assert not _Counted.made
    found = float(run.epsilon(delta=0.01))
    made = len(_Counted.made)
    assert float(run.epsilon(delta=0.01)) == found
    assert len(_Counted.made) == made


def test_equal_parts_are_one_as_often_as_all_of_them():
    made = lambda: fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=50)
    run, same, other = made(), made(), fdp.Laplace(2.0)
    simple = lambda *parts: vars(fdp.compose(*parts).simplified())
    whole = simple(run, other, same.repeat(3), other, run)
    assert [float(x) for x in whole["num_steps"]] == [250.0, 2.0]
    # What is traced is not known to equal anything.
    count = lambda s: len(simple(fdp.Laplace(s), other)["parts"])
    assert count(2.0) == 1
    seen = []
    jax.eval_shape(lambda s: seen.append(count(s)), 2.0)
    assert seen == [2]


def test_declared_fractions_are_those_of_the_losses():
    gaussian = fdp.Gaussian(1.0)
    step = fdp.PoissonSubsampled(gaussian, 0.1)
    run = {"noise_multiplier": 1.0, "sampling_prob": 0.1, "num_steps": 2.0}
    mechanisms = [
        gaussian,
        step,
        fdp.PoissonSubsampled(fdp.Laplace(1.0), 0.1),
        fdp.PoissonSubsampled(step, 0.5),
        fdp.DPSGD(**run),
        fdp.DPSGD(**run, relation=REPLACE_ONE),
        fdp.Laplace(1.0),
        fdp.Logistic(1.0),
        fdp.PureDP(1.0),
        fdp.PoissonMechanism(20.0, 1.0),
        fdp.LevyTriplet(0.1, jumps=[1.0], rates=[0.5]),
        fdp.LevyTriplet(0.1, relation=REPLACE_ONE),
        fdp.DiscreteGaussian(2.0),
        fdp.compose(gaussian, step),
        fdp.compose(gaussian, fdp.Laplace(1.0)),
        fdp.Schedule(fdp.Gaussian, np.asarray([1.0, 2.0])),
        gaussian.group(2),
        step.group(2),
    ]
    for mechanism in mechanisms:
        terms = resolve(mechanism).whole.composed.terms
        declared = mechanism.has_fractional_powers()
        assert declared == all(term.fractional for term in terms), mechanism


@pytest.mark.parametrize("relation", list(NeighboringRelation))
def test_times_of_triplets_are_real_under_every_relation(relation):
    found = fdp.calibrate(
        fdp.LevyTriplet(0.01, num_steps=None, relation=relation),
        fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5),
        solve_for="num_steps",
    )
    # delta(1) = 1e-5 for G_mu at mu = .268046..., whatever the neighbors are called.
    mu = fdp.calibrate(
        fdp.Gaussian(None),
        fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5),
        solve_for="noise_multiplier",
    )
    expected = 1 / float(mu.value) ** 2 / 0.01
    assert float(found.value) == pytest.approx(expected, rel=1e-9)
    assert expected == pytest.approx(7.185140465, rel=1e-9)


class _Half(AbstractMechanism):
    """A field of a well-known name that has nothing to do with sampling."""

    sampling_prob: float = 0.5
    relation: Any = relation_field(NeighboringRelation.ADD_OR_REMOVE_ONE)

    def loss(self) -> ComposedLoss:
        return fdp.Gaussian(1.0).loss()


def test_reports_state_the_sampling_that_is_declared(monkeypatch):
    sampling = lambda m: fdp.reports.privacy_report(m, delta=1e-5).sampling
    assert sampling(_Half()) == "no subsampling"
    step = fdp.PoissonSubsampled(fdp.Gaussian(1.0), 0.1)
    # Whatever its numbers are, for which programs would be compiled.
    number = lambda self, x: Bounds(x, x, x, jnp.zeros(jnp.shape(x), int))
    rates = lambda self, alpha: (number(self, alpha),) * 2
    half = lambda self, **query: jnp.asarray(0.5)
    monkeypatch.setattr(Subject, "_solve", number)
    monkeypatch.setattr(Subject, "_error_rate_bounds", rates)
    monkeypatch.setattr(AbstractMechanism, "advantage", half)
    assert sampling(fdp.compose(_Half(), step)) == "Poisson sampling"
    assert step.group(2).samplings() == {Sampling.POISSON}
    assert fdp.compose(_Half(), _Half()).samplings() == frozenset()


def test_known_losses_inside_of_programs():
    triplet = fdp.LevyTriplet(jumps=[0.5, -0.3], rates=[1.0, 2.0])
    expected = triplet.bounds(epsilon=0.3)
    found = eqx.filter_jit(lambda e: triplet.bounds(epsilon=e))(0.3)
    assert found.method == expected.method == "closed_form"
    assert float(found.upper) == pytest.approx(float(expected.upper), rel=1e-12)


@pytest.mark.slow
def test_programs_without_splitting_agree_where_it_is_not_needed():
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=1000)
    expected = run.bounds(delta=1e-5)
    view = run.using("auto", split=False)
    found = view.bounds(delta=1e-5)
    assert found.status == fdp.Status.TIGHT
    assert float(found.estimate) == pytest.approx(float(expected.estimate), rel=1e-12)
    rare = fdp.DPSGD(noise_multiplier=0.5, sampling_prob=1e-4, num_steps=3)
    loose = rare.remove.using("auto", split=False).bounds(delta=1e-7)
    tight = rare.remove.bounds(delta=1e-7)
    assert tight.status == fdp.Status.TIGHT
    assert loose.lower <= tight.estimate <= loose.upper
    with pytest.raises(ValueError, match="split must be"):
        run.using("auto", split="no")  # pyright: ignore


@pytest.mark.parametrize(
    ("make", "splits"),
    [
        (lambda noise: _run(noise, 0.01, 1000), False),
        (lambda noise: _run(noise, 0.01, np.int64(300)), False),
        (lambda noise: _step(noise, 0.01).repeat(500).repeat(2), False),
        (lambda noise: _run(noise, 0.01, 200), True),
        (lambda noise: _run(noise, 5e-4, 1e6), True),
        (lambda noise: _run(noise, noise / 100, 1000), True),
        (lambda noise: _run(noise, 0.01, 900 * noise), True),
        (lambda noise: _step(noise, 0.01).repeat(900 * noise), True),
        (lambda noise: fdp.PoissonSubsampled(_step(noise, 0.01), 0.1), True),
    ],
)
def test_known_numbers_leave_out_what_is_not_needed(make, splits, monkeypatch):
    """The splitting by the largest step, of programs of our own."""
    seen = []

    def solve(subject, delta):
        seen.append(subject.composed.method.split)
        return Bounds(delta, delta, delta, jnp.asarray(int(Status.TIGHT)))

    monkeypatch.setattr(Subject, "_solve", solve)
    with whole_programs():
        jitted(lambda noise: make(noise).bounds(delta=1e-5).upper)(1.1)
    assert seen == [splits]


def _run(noise, prob, steps):
    return fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=steps)


def _step(noise, prob):
    return fdp.PoissonSubsampled(fdp.Gaussian(noise), prob)


@pytest.mark.parametrize("transform", ["plain", "grad", "vmap", "vmap grad", "jit"])
def test_smaller_program_is_asked_first_wherever_answers_can_be_looked_at(
    transform, monkeypatch
):
    """Answers that are loose without splitting (noise below 1), and tight with it."""
    asked = []

    def solve(subject, delta):
        del delta
        method = subject.composed.method
        split = method.split
        asked.append(split)
        noise = subject.composed.terms[0].noise_multiplier
        loose = jnp.where(noise < 1, Status.LOOSE, Status.TIGHT)
        width = jnp.where(noise < 1, 0.5, 1e-9)
        status = jnp.where(split, Status.TIGHT, loose).astype(np.int32)
        width = jnp.where(split, 1e-9, width)
        return Bounds(noise - width, noise, noise + width, status)

    monkeypatch.setattr(Subject, "_solve", solve)

    def epsilon(noise):
        run = fdp.DPSGD(noise_multiplier=noise, sampling_prob=0.01, num_steps=400)
        return run.bounds(delta=1e-5).estimate

    ask = {
        "plain": epsilon,
        "grad": jax.grad(epsilon),
        "vmap": lambda x: jax.vmap(epsilon)(jnp.stack([x, x + 1])),
        "vmap grad": lambda x: jax.vmap(jax.grad(epsilon))(jnp.stack([x, x + 1])),
        "jit": jitted(epsilon),
    }[transform]
    jax.block_until_ready(ask(jnp.asarray(1.5)))
    assert asked == [False]
    asked.clear()
    jax.block_until_ready(ask(jnp.asarray(0.5)))
    # Which of a batch were loose is not told apart.
    assert asked == [False, True]


@pytest.mark.parametrize(
    ("engine", "options"), [("grid", {}), ("contour", {"split": False})]
)
def test_an_engine_by_name_is_asked_once(engine, options):
    """Whatever it answers: another program of the same engine says nothing else."""
    run = fdp.DPSGD(noise_multiplier=1.0, sampling_prob=0.01, num_steps=1000)
    low, middle, high = jnp.asarray(0.0), jnp.asarray(0.5), jnp.asarray(1.0)
    doubtful = Bounds(low, middle, high, jnp.asarray(Status.LOOSE))
    asked = []

    def ask(guarantee):
        asked.append(guarantee)
        return doubtful

    resolve(run.using(engine, **options)).settled(
        ask, lambda: Range(0.0, 1.0, 0.0), upper=True
    )
    assert len(asked) == 1


def test_groups_of_groups_are_groups():
    run = fdp.DPSGD(noise_multiplier=4.0, sampling_prob=0.05, num_steps=1)
    twice, once = run.group(2).group(3), run.group(6)
    same = lambda f: np.testing.assert_allclose(f(twice), f(once), rtol=1e-12)
    same(lambda m: m.epsilon(delta=1e-6))
    every = fdp.DPSGD(noise_multiplier=6.0, sampling_prob=1.0, num_steps=7).group(3)
    assert resolve(every).whole.composed.has_closed_form
    np.testing.assert_allclose(
        every.epsilon(delta=1e-6), fdp.Gaussian(2 / 7**0.5).epsilon(delta=1e-6)
    )
    with pytest.raises(ValueError, match="size must be"):
        run.group(9).group(8)
    with pytest.raises(ValueError, match="num_steps"):
        fdp.PoissonSubsampled(fdp.Gaussian(1.0), 0.1).repeat(2.5).group(2)


def test_a_pair_that_only_dominates_is_not_asked_on_a_finer_grid():
    """What is known from below is farther off than what four times the points gain."""
    ends = map(jnp.asarray, (1.0, 1.0, 1.00001, int(Status.LOOSE)))
    lower, estimate, upper, status = ends
    near = Bounds(lower, estimate, upper, status, "grid")
    run = fdp.DPSGD(
        noise_multiplier=1.0,
        sampling=fdp.sampling.FixedSize(batch_size=6, dataset_size=600),
        num_steps=100,
        relation="zero_out",
    )
    found = resolve(run.remove)
    asked = lambda x: [
        subject.composed.method.points
        for subject in x._ladder(lambda: near, lambda: DELTA)
    ]
    few = asked(found)
    assert asked(dataclasses.replace(found, attained=None)) == [*few, 4 * max(few)]


class _Keyed(fdp.Gaussian):
    """A mechanism that holds what NumPy has no array of."""

    key: Any = None


def test_losses_of_known_numbers_are_found_once():
    keyed = _Keyed(1.0, key=jax.random.key(3))
    assert keyed.epsilon(delta=1e-5) == fdp.Gaussian(1.0).epsilon(delta=1e-5)
    made = _resolve._known_losses
    made.cache_clear()
    run = fdp.DPSGD(noise_multiplier=1.2, sampling_prob=0.1, num_steps=9)
    again = fdp.DPSGD(noise_multiplier=1.2, sampling_prob=0.1, num_steps=9)
    for guarantee in (run, again):
        assert guarantee.epsilon(delta=1e-5) == run.epsilon(delta=1e-5)
        assert guarantee.delta(epsilon=1.0) == run.delta(epsilon=1.0)
    assert made.cache_info().misses == 1
    # Other numbers, another direction, and numbers that are not known.
    louder = dataclasses.replace(run, noise_multiplier=2.4)
    assert louder.epsilon(delta=1e-5) < run.epsilon(delta=1e-5)
    assert run.add.epsilon(delta=1e-5) < run.epsilon(delta=1e-5)
    assert made.cache_info().misses == 3
    traced = lambda s: dataclasses.replace(run, noise_multiplier=s).epsilon(delta=1e-5)
    assert jax.grad(traced)(1.2) < 0
    assert made.cache_info().misses == 3
