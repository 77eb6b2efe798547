"""Flower's protocol of accountants, with its own types where it is installed."""

import dataclasses
import enum
import json

import numpy as np
import pytest
from closed import Gaussian

import fdp_jax as fdp

DELTA = 1e-5


class Relation(enum.StrEnum):
    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    REPLACE_ONE = "replace-one"


class Sampling(enum.StrEnum):
    POISSON = "poisson"
    WITHOUT_REPLACEMENT = "without-replacement"
    NO_AMPLIFICATION = "no-amplification"
    OTHER = "other"


@dataclasses.dataclass(frozen=True)
class Config:
    """The fields of Flower's."""

    target_delta: float
    population_size: int
    neighboring_relation: Relation
    sampling_method: Sampling
    max_epsilon: float | None = None


@dataclasses.dataclass(frozen=True)
class Event:
    """The same."""

    noise_multiplier: float
    sample_size: int
    population_size: int


def _accountant(method, relation="ADD_OR_REMOVE_ONE", **options):
    config = Config(DELTA, 1000, Relation[relation], Sampling[method], **options)
    return fdp.interop.FlowerAccountant(config)


def test_rounds_of_all_clients_are_gaussian():
    account = _accountant("NO_AMPLIFICATION", max_epsilon=3.0)
    assert account.get_epsilon(DELTA) == 0
    account.compose(Event(2.0, 20, 1000), 3)
    account.compose(Event(4.0, 30, 1000))
    assert account.num_releases == 4
    noise = 1 / np.sqrt(3 / 2.0**2 + 1 / 4.0**2)
    delta = float(Gaussian(noise).delta(3.0))
    assert account.get_delta(3.0) == pytest.approx(delta, rel=1e-5)
    assert account.get_epsilon(delta) == pytest.approx(3.0, rel=1e-5)
    assert account.would_exceed(Event(2.0, 20, 1000)) is True
    assert account.would_exceed(Event(2.0, 20, 1000), 9.0, 2) is False
    assert account.num_releases == 4


@pytest.mark.parametrize(
    ("method", "relation", "sampling"),
    [
        ("POISSON", "ADD_OR_REMOVE_ONE", fdp.sampling.Poisson(0.02)),
        (
            "WITHOUT_REPLACEMENT",
            "REPLACE_ONE",
            fdp.sampling.FixedSize(batch_size=20, dataset_size=1000),
        ),
    ],
)
def test_rounds_of_some_clients(method, relation, sampling):
    account = _accountant(method, relation)
    for _ in range(3):
        account.compose(Event(1.5, 20, 1000), 10)
    run = fdp.DPSGD(
        noise_multiplier=1.5,
        sampling=sampling,
        num_steps=30,
        relation=relation.lower(),
    )
    assert account.get_epsilon(DELTA) == pytest.approx(
        float(run.epsilon(delta=DELTA)), rel=1e-6
    )


def test_what_does_not_fit_is_refused():
    account = _accountant("POISSON")
    with pytest.raises(ValueError, match=r"population_size must be 1000, .* got 999"):
        account.compose(Event(1.0, 20, 999))
    with pytest.raises(ValueError, match="count must be in"):
        account.compose(Event(1.0, 20, 1000), 0)
    with pytest.raises(ValueError, match="max_epsilon must be given"):
        account.would_exceed(Event(1.0, 20, 1000))
    with pytest.raises(ValueError, match=r"sampling_method must be .* got 'other'"):
        _accountant("OTHER")
    with pytest.raises(TypeError, match=r"config must be a .*PrivacyConfig, got 3"):
        fdp.interop.FlowerAccountant(3)
    with pytest.raises(ValueError, match="backend of the state must be 'fdp'"):
        account.load_state_dict({"backend": "rdp"})
    other = _accountant("NO_AMPLIFICATION").state_dict()
    with pytest.raises(ValueError, match="config of the state must be"):
        account.load_state_dict(other)


def test_flower_itself():
    theirs = pytest.importorskip("flwr.serverapp")
    events = pytest.importorskip("flwr.supercore.privacy_accounting")
    strategies = pytest.importorskip("flwr.serverapp.strategy")
    for method, relation in (
        ("POISSON", "ADD_OR_REMOVE_ONE"),
        ("WITHOUT_REPLACEMENT", "REPLACE_ONE"),
        ("NO_AMPLIFICATION", "ADD_OR_REMOVE_ONE"),
    ):
        config = theirs.PrivacyConfig(
            DELTA,
            1000,
            theirs.NeighboringRelation[relation],
            theirs.SamplingMethod[method],
        )
        ours = fdp.interop.FlowerAccountant(config)
        other = theirs.RdpAccountant(config)
        event = events.GaussianPrivacyEvent(1.5, 20, 1000)
        ours.compose(event, 50)
        # Theirs takes noise over the sensitivity, which is two norms of a client that
        # is replaced: of noise over the norm it says too little.
        shift = 2 if relation == "REPLACE_ONE" else 1
        other.compose(dataclasses.replace(event, noise_multiplier=1.5 / shift), 50)
        assert 0 < ours.get_epsilon(DELTA) <= other.get_epsilon(DELTA)
        spent = ours.get_privacy_spent()
        assert (spent.delta, spent.num_releases) == (DELTA, 50)
        assert spent.epsilon == ours.get_epsilon(DELTA)
        again = fdp.interop.FlowerAccountant(config)
        again.load_state_dict(json.loads(json.dumps(ours.state_dict())))
        assert again.state_dict() == ours.state_dict()
        assert again.get_epsilon(DELTA) == ours.get_epsilon(DELTA)
    strategy = strategies.DifferentialPrivacyServerSideFixedClipping(
        strategies.FedAvg(), 1.5, 1.0, 20, accountant=ours
    )
    assert strategy.privacy_spent() == spent
