"""Pictures: what the lines are, and that they are drawn where asked."""

import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest

import fdp_jax as fdp


@pytest.fixture(scope="module")
def run():
    return fdp.PoissonSubsampled(fdp.Gaussian(0.8), 0.3)


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def _points(ax, label):
    line = next(line for line in ax.lines if line.get_label() == label)
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


@pytest.mark.parametrize("scale", ["linear", "log", "logit"])
@pytest.mark.parametrize(
    "kind", ["curve", pytest.param("mechanism", marks=pytest.mark.slow)]
)
def test_tradeoff_draws_both_directions(run, scale, kind):
    source = run if kind == "mechanism" else run.curve()
    figure, ax = plt.subplots()
    assert fdp.plot.tradeoff(source, ax, scale=scale) is ax
    figure.canvas.draw()
    for name in ("remove", "add"):
        x, y = _points(ax, name)
        # The curve's bounds lie a little outside the mechanism's own.
        part, some = getattr(run, name), slice(None, None, 60)
        if scale == "log":
            exact = np.asarray(part.tpr(fpr=x[some]))
            assert np.all(y[some] >= exact * (1 - 1e-9))
        else:
            exact = np.asarray(part.beta(alpha=x[some]))
            assert np.all(y[some] <= np.maximum(exact, 1e-6) * (1 + 1e-9))
        np.testing.assert_allclose(y[some], exact, rtol=2e-2, atol=2e-4)


def test_profile_is_an_upper_bound_on_a_logarithmic_axis(run):
    ax = fdp.plot.profile(run)
    ax.figure.canvas.draw()
    assert ax.get_yscale() == "log"
    x, y = _points(ax, "remove")
    exact = np.asarray(run.remove.delta(epsilon=x))
    assert np.all(y >= exact * (1 - 1e-9))
    np.testing.assert_allclose(y, exact, rtol=1e-6)


def test_unknown_scale_is_refused(run):
    with pytest.raises(ValueError, match="scale must be"):
        fdp.plot.tradeoff(run, scale="loglog")  # pyright: ignore[reportArgumentType]


def test_save_writes_a_picture(run, tmp_path):
    path = tmp_path / "picture.png"
    fdp.plot.save(run, path, title="low noise")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_package_does_not_import_matplotlib():
    code = "import fdp_jax, sys; print('matplotlib' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("scale", ["linear", "log", "logit"])
def test_audit_draws_the_attack_over_the_theory(scale):
    curve = fdp.RandomizedResponse(epsilon=1.0).curve()
    counts = fdp.audit.Counts(70, 30, 30, 70)
    figure, ax = plt.subplots()
    assert fdp.plot.audit(curve, counts, ax, scale=scale, confidence=0.9) is ax
    figure.canvas.draw()
    x, y = _points(ax, "attack (0.9)")
    # The one point of the counts, and straight lines from it to blind guesses.
    limit = float(fdp.audit.clopper_pearson(30, 100, confidence=0.9)[1])
    beta = np.interp(x, [0, limit, 1], [1, limit, 0])
    expected = 1 - beta if scale == "log" else beta
    least = 0.0 if scale == "linear" else 1e-6
    np.testing.assert_allclose(y, expected.clip(least, 1 - least))
    theory = np.asarray(curve.beta(alpha=x))
    assert np.all(beta >= theory)


def test_audit_needs_error_rates():
    curve = fdp.RandomizedResponse(epsilon=1.0).curve()
    with pytest.raises(TypeError, match="evidence must be Counts or Scores"):
        fdp.plot.audit(curve, fdp.audit.OneRun(1, 2, 3))
