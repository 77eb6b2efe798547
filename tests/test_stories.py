"""What users do in a sitting, each from beginning to end in a few lines."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pytest
from optax import contrib

import fdp_jax as fdp

RUN = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=0.01, num_steps=1000)


def test_noise_is_calibrated_within_a_script_in_float32():
    with jax.enable_x64(False):
        target = fdp.targets.ApproxDP(epsilon=1.0, delta=1e-5)
        family = fdp.DPSGD(sampling_prob=256 / 60_000, num_steps=3_500)
        found = fdp.calibrate(family, target, solve_for="noise_multiplier")
        noise = float(found.value)
        transform = optax.chain(
            contrib.differentially_private_aggregate(1.5, noise, jax.random.key(0)),
            optax.sgd(0.25),
        )
        gradients = jnp.ones((8, 3))
        updates, _ = transform.update(gradients, transform.init(jnp.zeros(3)))
        assert np.asarray(updates).shape == (3,)
        assert found.mechanism.epsilon(delta=1e-5) <= 1.0
        assert noise == pytest.approx(1.1, abs=0.4)


def test_an_account_is_kept_while_batches_and_noise_change(tmp_path):
    account = fdp.Accountant()
    for noise, prob in ((1.2, 0.01), (1.0, 0.02)):
        step = fdp.DPSGD(noise_multiplier=noise, sampling_prob=prob, num_steps=1)
        account = account.step(step, count=300)
    before = account.epsilon(delta=1e-5)
    account.save(tmp_path / "account")
    again = fdp.Accountant.load(tmp_path / "account")
    assert again.epsilon(delta=1e-5) == before
    assert again.step(step).epsilon(delta=1e-5) > before
    assert 0 < again.curve().beta(alpha=0.01) < 0.99


def test_a_trade_off_curve_is_drawn_with_what_attackers_reach():
    curve, alpha = RUN.curve(), np.geomspace(1e-6, 1.0, 64)
    _, axes = plt.subplots()
    for side in (curve.remove, curve.add):
        axes.plot(alpha, 1 - np.asarray(side.beta(alpha=alpha)))
    assert fdp.plot.tradeoff(curve, axes, scale="logit") is axes
    plt.close("all")
    assert 0 < curve.advantage() < 1
    assert 0 < curve.bayes_error(prior=0.1) < 0.1
    assert 1e-3 < curve.tpr(fpr=1e-3) < 1
    assert curve.epsilon(delta=1e-6) > curve.epsilon(delta=1e-5)


def test_canaries_give_a_lower_bound_beside_the_curve():
    rng = np.random.default_rng(0)
    counts = fdp.audit.Counts.from_scores(
        rng.normal(0.2, 1.0, 20_000), rng.normal(size=20_000), threshold=0.5
    )
    curve = RUN.curve()
    found = fdp.audit.epsilon_lower_bound(counts, delta=1e-5, confidence=0.95)
    assert 0 < found < curve.epsilon(delta=1e-5)
    assert not fdp.audit.falsifies(curve, counts, level=0.01)
    assert fdp.audit.falsifies(fdp.tradeoff.Gaussian(0.1), counts, level=0.01)
    _, axes = plt.subplots()
    assert fdp.plot.audit(curve, counts, axes) is axes
    plt.close("all")
