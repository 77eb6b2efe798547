# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Calibrating a DP-SGD run
#
# You train on 60,000 records, in batches of 256 on average, for 60 epochs, with Gaussian
# noise of 1.1 times the clipping norm: the setting of the well-known MNIST tutorials,
# which state a guarantee of (3.01, 1e-5). How private is the run really? What does that
# mean for an attacker? How much noise would have been enough?
#
# Every number in the text is checked by an assertion in the code below it.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import fdp_jax as fdp

# Accounting is not training: double precision costs nothing here.
jax.config.update("jax_enable_x64", True)

CHECKED = 0


def check(value, stated, tolerance):
    """Fail unless the value is the one stated in the text."""
    global CHECKED
    assert abs(float(value) - stated) <= tolerance, (float(value), stated)
    CHECKED += 1


# %% [markdown]
# ## The guarantee
#
# `sampling_prob` is the probability that a given record is in a batch; the records are
# drawn independently of each other (Poisson sampling), and data sets are neighbors if
# they differ by one record present or absent.

# %%
run = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=256 / 60_000, num_steps=14_063)
print("epsilon at delta = 1e-5:", float(run.epsilon(delta=1e-5)))

# %% [markdown]
# The run is (2.3817, 1e-5)-differentially private: a fifth better than stated, because
# the tutorial's Rényi accountant is not tight. The value is an upper bound of the exact
# epsilon, and it is a close one: the certified bracket is narrower than one part in a
# million.

# %%
bounds = run.bounds(delta=1e-5)
print("lower   ", float(bounds.lower))
print("estimate", float(bounds.estimate))
print("upper   ", float(bounds.upper))

check(run.epsilon(delta=1e-5), 2.3817, 1e-4)
assert bounds.lower <= bounds.estimate <= bounds.upper
assert (bounds.upper - bounds.lower) / bounds.estimate < 1e-6

# %% [markdown]
# The two directions of the neighboring relation differ. *Remove* asks how well an
# attacker recognizes that the record was there, *add* that it was not. The guarantee is
# the worse one: 2.3817 against 2.2437 here.

# %%
print("remove:", float(run.remove.epsilon(delta=1e-5)))
print("add:   ", float(run.add.epsilon(delta=1e-5)))

check(run.remove.epsilon(delta=1e-5), 2.3817, 1e-4)
check(run.add.epsilon(delta=1e-5), 2.2437, 1e-4)

# %% [markdown]
# ## What an attacker can do
#
# Epsilon at one delta is one point of a curve. The trade-off function says it all: the
# smallest false negative rate of *any* attack at each false positive rate.

# %%
figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
fdp.plot.tradeoff(run, axes[0])
fdp.plot.tradeoff(run, axes[1], scale="log")
fdp.plot.profile(run, axes[2])
plt.show()

# %% [markdown]
# An attacker who accepts one false alarm in a hundred finds at most 4.0 % of the
# members; with even odds, at least 38.8 % of any attacker's decisions are wrong.

# %%
print("TPR at FPR 0.1 %:", float(run.tpr(fpr=1e-3)))
print("TPR at FPR 1 %:  ", float(run.tpr(fpr=1e-2)))
print("advantage:       ", float(run.advantage()))
print("error, prior 1/2:", float(run.bayes_error(prior=0.5)))

check(run.tpr(fpr=1e-2), 0.040, 5e-4)
check(run.bayes_error(prior=0.5), 0.388, 5e-4)

# %% [markdown]
# ## How much noise is enough?
#
# For an epsilon of 3, a noise multiplier of 0.9685 does. The calibrated value is on
# the private side: with it, the *upper bound* of epsilon is at most 3.

# %%
family = fdp.DPSGD(sampling_prob=256 / 60_000, num_steps=14_063)
target = fdp.targets.ApproxDP(epsilon=3.0, delta=1e-5)
found = fdp.calibrate(family, target, solve_for="noise_multiplier")
print(float(found.value))
print(found.guarantee)

check(found.value, 0.9684, 1e-4)
assert (
    fdp.DPSGD(
        noise_multiplier=0.9685, sampling_prob=256 / 60_000, num_steps=14_063
    ).epsilon(delta=1e-5)
    < 3.0
)
assert found.mechanism.epsilon(delta=1e-5) <= 3.0
assert found.mechanism.epsilon(delta=1e-5) > 3.0 * (1 - 1e-6)

# %% [markdown]
# Any parameter can be the unknown. With the noise as it is, the budget lasts for 91
# epochs instead of 60:

# %%
longer = fdp.calibrate(
    fdp.DPSGD(noise_multiplier=1.1, sampling_prob=256 / 60_000),
    target,
    solve_for="num_steps",
)
print("steps:", float(longer.value), " epochs:", float(longer.value) * 256 / 60_000)

check(longer.value * 256 / 60_000, 91.15, 1e-2)

# %% [markdown]
# And the target need not be an epsilon. "No attack with one percent false alarms shall
# find more than five percent of the members" is a target, too:

# %%
attack = fdp.targets.ErrorRates(alpha=0.01, beta=0.95)
against_attack = fdp.calibrate(family, attack, solve_for="noise_multiplier")
print(float(against_attack.value))
print(float(against_attack.mechanism.beta(alpha=0.01)))

check(against_attack.value, 0.9881, 1e-4)
assert against_attack.mechanism.beta(alpha=0.01) >= 0.95

# %% [markdown]
# ## What the next epoch costs
#
# Queries are differentiable in every parameter, the number of steps included: one more
# epoch costs 0.022 of epsilon.


# %%
def epsilon(sigma, q, n):
    """Certified epsilon as a function of the three parameters."""
    mechanism = fdp.DPSGD(noise_multiplier=sigma, sampling_prob=q, num_steps=n)
    return mechanism.epsilon(delta=1e-5)


point = (1.1, 256 / 60_000, 14_063.0)
slopes = jax.grad(epsilon, argnums=(0, 1, 2))(*point)
print("d epsilon / d noise_multiplier:", float(slopes[0]))
print("d epsilon / d num_steps:       ", float(slopes[2]))
print("one more epoch costs           ", float(slopes[2]) * 60_000 / 256)

check(slopes[2] * 60_000 / 256, 0.022, 5e-4)
step = 1e-4
difference = (epsilon(1.1 + step, *point[1:]) - epsilon(1.1 - step, *point[1:])) / (
    2 * step
)
check(slopes[0] / difference, 1.0, 1e-6)

# %% [markdown]
# The calibrated noise is differentiable as well, by the implicit function theorem:
# how much noise does a slightly larger budget save? A sixth of the additional epsilon.


# %%
def noise_for(budget):
    """Noise multiplier that meets (budget, 1e-5)."""
    wanted = fdp.targets.ApproxDP(epsilon=budget, delta=1e-5)
    return fdp.calibrate(family, wanted, solve_for="noise_multiplier").value


saved = jax.grad(noise_for)(3.0)
print("d noise_multiplier / d epsilon:", float(saved))

check(saved, -1 / 6, 5e-3)

# %% [markdown]
# ## Batch size at a fixed number of epochs
#
# Larger batches need more noise per step, but average it over more records. What counts
# for the gradient's quality is the noise over the expected batch size. One `vmap` over
# the calibration shows the exchange.

# %%
batch = jnp.geomspace(64.0, 8192.0, 15)


def needed_noise(size):
    """Noise multiplier for (3, 1e-5) after 60 epochs with this batch size."""
    q = size / 60_000
    plan = fdp.DPSGD(sampling_prob=q, num_steps=60 / q)
    return fdp.calibrate(plan, target, solve_for="noise_multiplier").value


sigma = jax.vmap(needed_noise)(batch)

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
axes[0].loglog(batch, sigma, ".-")
axes[0].set(xlabel="expected batch size", ylabel="noise multiplier")
axes[1].loglog(batch, sigma / batch, ".-")
axes[1].set(xlabel="expected batch size", ylabel="noise / batch size")
plt.show()

assert jnp.all(jnp.diff(sigma) > 0)
assert jnp.all(jnp.diff(sigma / batch) < 0)

# %% [markdown]
# ## Very small delta
#
# The bound stays a bound, and a tight one, where accountants based on an untilted
# Fourier transform return noise.

# %%
deltas = 10.0 ** -jnp.array([5.0, 10.0, 20.0, 50.0, 100.0, 200.0])
small = run.bounds(delta=deltas)
for d, low, high in zip(deltas, small.lower, small.upper, strict=True):
    print(f"delta = {d:7.0e}   epsilon in [{low:.8f}, {high:.8f}]")

assert jnp.all(small.lower <= small.upper)
assert jnp.all((small.upper - small.lower) / small.upper < 1e-6)

print(CHECKED, "numbers checked")
