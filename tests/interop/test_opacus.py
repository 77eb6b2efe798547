"""Opacus with another accountant's name, and nothing else changed."""

import copy
import io
import pickle
import warnings

import pytest

import fdp_jax as fdp

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    opacus = pytest.importorskip("opacus")
    torch = pytest.importorskip("torch")
    registry = pytest.importorskip("opacus.accountants.registry")
    utils = pytest.importorskip("opacus.accountants.utils")

pytestmark = pytest.mark.filterwarnings("ignore")
DELTA = 1e-5


@pytest.fixture(autouse=True)
def registered():
    fdp.interop.register_with_opacus()


def _accountant(*steps):
    accountant = registry.create_accountant("fdp")
    for noise, prob in steps:
        accountant.step(noise_multiplier=noise, sample_rate=prob)
    return accountant


def train(name, *, epochs=2, **options):
    """A user's script; the name of the accountant is all that differs."""
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(
        torch.randn(256, 3), torch.randint(0, 2, (256,))
    )
    loader = torch.utils.data.DataLoader(data, batch_size=32)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = opacus.PrivacyEngine(accountant=name)
    make = engine.make_private
    if "target_epsilon" in options:
        make = engine.make_private_with_epsilon
        options |= {"target_delta": DELTA, "epochs": epochs}
    model, optimizer, loader = make(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        max_grad_norm=1.0,
        **options,
    )
    for _ in range(epochs):
        for features, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
    return engine, model, optimizer


def test_a_training_is_accounted_for():
    found = {name: train(name, noise_multiplier=1.2)[0] for name in ("fdp", "prv")}
    ours, theirs = (found[name].accountant for name in ("fdp", "prv"))
    assert ours.history == theirs.history == [(1.2, 1 / 8, 16)]
    assert len(ours) == 16
    epsilon = found["fdp"].get_epsilon(DELTA)
    run = fdp.DPSGD(noise_multiplier=1.2, sampling_prob=1 / 8, num_steps=16)
    assert epsilon == run.epsilon(delta=DELTA)
    assert epsilon <= theirs.get_epsilon(DELTA)
    # Theirs is within 0.01 of the truth.
    assert epsilon >= theirs.get_epsilon(DELTA, eps_error=0.01) - 0.02
    renyi = registry.create_accountant("rdp")
    renyi.history = ours.history
    assert epsilon <= renyi.get_epsilon(DELTA)


def test_a_training_with_a_target_and_its_checkpoint(tmp_path):
    engine, model, optimizer = train("fdp", target_epsilon=3.0)
    epsilon = engine.get_epsilon(DELTA)
    assert 3.0 - 0.011 <= epsilon <= 3.0
    path = tmp_path / "checkpoint.pt"
    engine.save_checkpoint(path=path, module=model, optimizer=optimizer)
    again = opacus.PrivacyEngine(accountant="fdp")
    again.load_checkpoint(path=path, module=model, optimizer=optimizer)
    assert again.accountant.history == engine.accountant.history
    assert again.get_epsilon(DELTA) == epsilon


@pytest.mark.parametrize("name", ["rdp", "prv"])
def test_no_more_noise_than_with_their_accountants(name):
    noise = {
        accountant: utils.get_noise_multiplier(
            target_epsilon=2.0,
            target_delta=DELTA,
            sample_rate=0.01,
            steps=1000,
            accountant=accountant,
            epsilon_tolerance=1e-3,
        )
        for accountant in ("fdp", name)
    }
    assert noise["fdp"] <= noise[name]
    run = fdp.DPSGD(noise_multiplier=noise["fdp"], sampling_prob=0.01, num_steps=1000)
    assert 2.0 - 1.1e-3 <= run.epsilon(delta=DELTA) <= 2.0


def test_schedules_are_one_composition():
    steps = [(1.0 + 0.01 * i, 0.05) for i in range(8)] * 2
    ours = _accountant(*steps)
    theirs = registry.create_accountant("prv")
    for noise, prob in steps:
        theirs.step(noise_multiplier=noise, sample_rate=prob)
    assert ours.history == theirs.history
    assert isinstance(ours.guarantee, fdp.Accountant)
    assert ours.guarantee.num_steps == 16
    epsilon = ours.get_epsilon(DELTA)
    # Theirs is at most two times its tolerance too large.
    upper = theirs.get_epsilon(DELTA, eps_error=0.01)
    assert upper - 0.02 <= epsilon <= upper


def test_all_queries():
    accountant = _accountant(*[(1.1, 0.01)] * 1000)
    assert accountant.get_epsilon(DELTA) == pytest.approx(1.5154, abs=5e-5)
    assert float(accountant.guarantee.beta(alpha=0.1)) == pytest.approx(
        0.8209, abs=5e-5
    )


def test_edges():
    assert _accountant().get_epsilon(DELTA) == 0
    assert len(_accountant()) == 0
    assert _accountant((1.0, 0.0)).get_epsilon(DELTA) == 0
    assert _accountant((1.0, 0.1), (0.0, 0.1)).get_epsilon(DELTA) == float("inf")
    whole = _accountant((1.5, 1.0), (1.5, 1.0)).get_epsilon(DELTA)
    assert whole == fdp.Gaussian(1.5).repeat(2).epsilon(delta=DELTA)
    # Options of the other accountants change nothing.
    assert _accountant((1.5, 1.0)).get_epsilon(DELTA, alphas=[2.0]) < whole


def test_state_goes_to_files_and_back():
    accountant = _accountant((1.0, 0.1), (1.0, 0.1), (1.2, 0.1))
    state = accountant.state_dict()
    assert state["mechanism"] == "fdp"
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    again = _accountant()
    again.load_state_dict(torch.load(file))
    assert again.history == accountant.history == [(1.0, 0.1, 2), (1.2, 0.1, 1)]
    again.step(noise_multiplier=1.2, sample_rate=0.1)
    assert again.history[-1] == (1.2, 0.1, 2)
    assert state["history"][-1] == (1.2, 0.1, 1)
    for copied in (copy.deepcopy(again), pickle.loads(pickle.dumps(again))):
        assert type(copied) is fdp.interop.OpacusAccountant
        assert copied.get_epsilon(DELTA) == again.get_epsilon(DELTA)


def test_state_of_another_accountant():
    theirs = registry.create_accountant("rdp")
    theirs.step(noise_multiplier=1.0, sample_rate=0.1)
    ours = _accountant()
    with pytest.raises(ValueError, match="state_dict of rdp cannot be loaded"):
        ours.load_state_dict(theirs.state_dict())
    with pytest.raises(ValueError, match="empty"):
        ours.load_state_dict({})
    ours.load_state_dict(theirs.state_dict() | {"mechanism": "fdp"})
    assert ours.get_epsilon(DELTA) <= theirs.get_epsilon(DELTA)


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"noise_multiplier must be .* got -1"):
        _accountant((-1.0, 0.1))
    with pytest.raises(ValueError, match=r"sample_rate must be in \[0, 1\], got 1.5"):
        _accountant((1.0, 1.5))
    with pytest.raises(ValueError, match="delta must be"):
        _accountant((1.0, 0.5)).get_epsilon(2.0)
    accountant = _accountant()
    accountant.history = [(1.0, 0.1, 2.5)]
    with pytest.raises(ValueError, match="steps must be a whole number"):
        accountant.get_epsilon(DELTA)


def test_the_name_is_taken_once(monkeypatch):
    fdp.interop.register_with_opacus()
    monkeypatch.setitem(registry._ACCOUNTANTS, "fdp", registry.RDPAccountant)
    with pytest.raises(ValueError, match="fdp is already registered"):
        fdp.interop.register_with_opacus()
