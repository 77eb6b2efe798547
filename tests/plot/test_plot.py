"""Pictures: what the lines are, and that they are drawn where asked."""

import functools
import itertools
import subprocess
import sys
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib import colors
from matplotlib.figure import Figure

import fdp_jax as fdp
from fdp_jax.plot import _audit, _plot, _style


@pytest.fixture(scope="module")
def run():
    # Of a kind that the other files ask for, too.
    return fdp.DPSGD(noise_multiplier=2.0, sampling_prob=0.1, num_steps=100)


@pytest.fixture(scope="module")
def curve(run):
    return run.curve()


def _legend(ax):
    legend = ax.get_legend()
    assert legend is not None
    return legend


def _points(ax, label):
    line = next(line for line in ax.lines if line.get_label() == label)
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


@pytest.mark.parametrize(
    ("kind", "scale"),
    [
        *(("curve", scale) for scale in ("linear", "log", "logit")),
        pytest.param("mechanism", "log", marks=pytest.mark.slow),
    ],
)
def test_tradeoff_draws_both_directions(run, curve, scale, kind):
    source = run if kind == "mechanism" else curve
    figure, ax = plt.subplots()
    assert fdp.plot.tradeoff(source, ax, scale=scale) is ax
    figure.canvas.draw()
    for name in ("remove", "add"):
        x, y = _points(ax, name)
        # The curve's bounds lie a little outside the mechanism's own.
        part, some = getattr(run, name), slice(None, None, 160)
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
    x, y = (values[:: len(x) // 3] for values in (x, y))
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
    counts = fdp.audit.Counts(
        true_positives=70, false_negatives=30, false_positives=30, true_negatives=70
    )
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


@functools.cache
def _curve(k):
    return fdp.RandomizedResponse(epsilon=k / 4).curve()


def _runs():
    return {f"run {k}": _curve(k) for k in range(1, 7)}


def _pair():
    return {"before": _curve(6), "after": _curve(2)}


@pytest.mark.parametrize("scale", ["linear", "log", "logit"])
def test_overlay_draws_a_line_for_each_run(scale):
    runs = _runs()
    given = dict(runs)
    ax = fdp.plot.overlay(runs, scale=scale)
    ax.figure.canvas.draw()
    styles = set()
    for name, curve in given.items():
        x, y = _points(ax, name)
        # Dong, Roth and Su (2022), Proposition 2.5.
        growth = np.exp(float(name[-1]) / 4)
        beta = np.maximum(1 - growth * x, (1 - x) / growth).clip(0, 1)
        rates = 1 - beta if scale == "log" else beta
        np.testing.assert_allclose(y, rates.clip(1e-6, 1), rtol=1e-6, atol=1e-6)
        line = next(line for line in ax.lines if line.get_label() == name)
        styles.add(line.get_color())
        assert curve is runs[name]
    assert len(styles) == len(runs) == 6


def test_a_profile_is_not_below_the_truth_between_its_points():
    # That of a loss which ends: the logarithm falls to -inf, above all chords of it.
    ax = fdp.plot.profile(fdp.Laplace(1.0))
    epsilon = np.append(np.linspace(0.9, 0.9999, 334), np.linspace(0.0, 0.9, 50))
    exact = -np.expm1((epsilon - 1.0) / 2)
    for line in ax.lines:
        x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
        shown = np.exp(np.interp(epsilon, x, np.log(y)))
        assert np.all(shown >= 0.99 * exact)


@pytest.mark.parametrize("wrong", [-1.0, 0.0, np.nan, np.inf, "1"])
def test_profiles_refuse_an_end_that_is_none(wrong):
    with pytest.raises(ValueError, match="max_epsilon must be a finite positive"):
        fdp.plot.profile(fdp.Laplace(1.0), max_epsilon=wrong)


def test_overlay_draws_profiles():
    runs = _runs()
    ax = fdp.plot.overlay(runs, kind="profile")
    x, y = _points(ax, "run 4")
    inside = x < 0.99
    # 1/(1 + e) of the answers are wrong.
    truth = (np.e - np.exp(x)) / (1 + np.e)
    np.testing.assert_allclose(y[inside], truth[inside], rtol=1e-6)
    with pytest.raises(ValueError, match="1 to 6 runs, got 7"):
        fdp.plot.overlay(runs | {"one more": _curve(1)})
    with pytest.raises(TypeError, match="names to runs, got list"):
        fdp.plot.overlay(list(runs.values()))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="two different names"):
        fdp.plot.compare(_curve(6), _curve(2), kind="profile", labels=("a", "a"))


_HARD, _MILD = functools.partial(_curve, 6), functools.partial(_curve, 2)
PICTURES: dict[str, tuple[Any, tuple, dict]] = {
    **{
        f"{draw.__name__} {scale}": (draw, (source,), {"scale": scale})
        for draw, source in (
            (fdp.plot.tradeoff, _HARD),
            (fdp.plot.tradeoff, _MILD),
            (fdp.plot.overlay, _pair),
        )
        for scale in ("linear", "log", "logit")
    },
    "six": (fdp.plot.overlay, (_runs,), {"scale": "logit"}),
    "profiles": (fdp.plot.overlay, (_pair,), {"kind": "profile"}),
    "audit": (
        fdp.plot.audit,
        (
            _MILD,
            fdp.audit.Counts(
                true_positives=70,
                false_negatives=30,
                false_positives=30,
                true_negatives=70,
            ),
        ),
        {},
    ),
    "profile": (fdp.plot.profile, (_HARD,), {}),
    "bayes": (fdp.plot.bayes_error, (_HARD,), {}),
}


@pytest.mark.parametrize("case", PICTURES)
@pytest.mark.parametrize(
    "settings",
    [{}, fdp.plot.paper(2.25, height=2.4)],
    ids=["usual", "a third of a page"],
)
def test_legends_lie_beside_the_lines(case, settings):
    draw, (source, *more), options = PICTURES[case]
    with mpl.rc_context(settings):
        ax = draw(source(), *more, **options)
        ax.figure.canvas.draw()
    box = _legend(ax).get_window_extent()
    names = {text.get_text() for text in _legend(ax).get_texts()}
    for line in ax.lines:
        if line.get_label() in names - {"blind guessing", "guessing"}:
            places = ax.transData.transform(line.get_xydata())
            assert not any(box.contains(x, y) for x, y in places), line


def test_figures_for_papers_have_their_size_and_fonts(tmp_path):
    with mpl.rc_context(fdp.plot.paper(3.25, height=2.5, font_size=7)):
        ax = fdp.plot.tradeoff(_curve(2))
        figure = ax.figure
        assert isinstance(figure, Figure)
        assert tuple(figure.get_size_inches()) == (3.25, 2.5)
        texts = [ax.title, ax.xaxis.label, *ax.get_xticklabels()]
        texts += _legend(ax).get_texts()
        assert {x.get_fontsize() for x in texts} == {7.0, 6.0}
        figure.savefig(tmp_path / "figure.pdf", metadata={"CreationDate": None})
    assert b"/FontType 3" not in (tmp_path / "figure.pdf").read_bytes()
    with pytest.raises(ValueError, match="width must be a finite positive"):
        fdp.plot.paper(0.0)


# Machado, Oliveira and Fernandes (2009): without one kind of cones, in linear RGB.
VISIONS = {
    "usual": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
_TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def _seen(color, vision):
    """In CIE 1976 L*a*b*, where 2.3 is a difference that is just noticed."""
    rgb = np.asarray(colors.to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.asarray(VISIONS[vision]) @ linear, 0, 1)
    white = np.asarray([0.9505, 1.0, 1.089])
    x, y, z = (
        np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in _TO_XYZ @ linear / white
    )
    return np.asarray([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISIONS)
def test_colors_are_told_apart_with_any_color_vision(vision):
    for palette in (_style.COLORS, (_plot._REMOVE, _plot._ADD, _audit._ATTACK)):
        for one, other in itertools.combinations(palette, 2):
            distance = np.linalg.norm(_seen(one, vision) - _seen(other, vision))
            assert distance > 15, (one, other)
