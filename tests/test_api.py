"""Imports point one way, and public parameter names are those of the notation table."""

import ast
import enum
import inspect
import pathlib
import re
import subprocess
import sys

import fdp_jax

ROOT = pathlib.Path(fdp_jax.__file__).parent
NOTATION = ROOT.parent / "docs/notation.md"
# Each stage may import the stages before it, and `_internal` and `data` may import
# nothing of the package.
STAGES = (
    *("losses", "engines", "curves", "mechanisms", "sampling", "montecarlo"),
    *("tradeoff", "experiments"),
    *("noise", "inference", "limits", "selection", "divergences", "audit"),
    *("comparison", "levy"),
    *("calibration", "accounting", "interop", "design", "training", "sweeps"),
    *("reports", "plot", "cli"),
)
LEAVES = ("_internal", "data")
# What a user reaches from the top besides its own names.
USER_MODULES = (
    *("targets", "tradeoff", "divergences", "comparison", "design"),
    *("noise", "inference", "limits", "selection", "reports", "plot", "data"),
    *("experiments", "levy", "accounting", "interop", "sampling", "training"),
    *("audit", "sweeps"),
)
# What the package returns and nobody constructs: its fields are results.
RECORDS = (
    *("Bounds", "Calibration", "Curve", "GridCurve", "Interval", "PrivacyReport"),
    *("PublishedRun", "GDPSummary", "Attack", "BayesErrors", "Comparison"),
    *("Crossings", "DeltaDivergence", "Dominance", "EmergentBound", "EmergentOrder"),
    *("LossMoments", "AverageErrors", "WeightedDivergence"),
    *("ArrayLimit", "ArrayMoments"),
    *("Inverse", "LossAtoms", "Symmetrized", "Design", "NoiseDesign"),
    *("CanonicalNoise", "CanonicalCheck", "PostProcessing", "RoundedNoise"),
    *("VectorNoise", "PrivateTest", "UnbiasedTest", "Release"),
    *("BlackwellOrder", "CentralLimit", "LevyApproximation"),
    *("TradeOffPoints", "Verdict"),
    *("MonteCarlo", "ConfidenceBounds", "Sweep"),
)
# Names that carry structure rather than a quantity of the notation table.
STRUCTURAL = {
    *("self", "cls", "ax", "scale", "label", "title", "path", "source", "argv"),
    *("sources", "height", "font_size"),
    *("mechanism", "mechanisms", "target", "solve_for", "bound", "relation", "parts"),
    *("value", "digits", "status", "bounds", "report", "curve", "method", "args"),
    *("query", "num_points", "direction", "way", "max_epsilon", "loss"),
    *("upper_is_pessimistic", "step", "parameters", "params", "norm", "allowed"),
    *("tradeoff", "tradeoffs", "guarantee", "knots", "optimistic", "symmetric"),
    *("epsilons", "tolerance", "member_scores", "nonmember_scores", "confidence"),
    *("monotonic", "support", "log_beyond", "loss_range"),
    *("run", "repetitions", "success_prob"),
    *("sampler", "normalization", "regret", "set_aside", "notes", "subject"),
    *("log_density_without", "log_density_with"),
    *("sampling", "release", "strategy", "cyclic"),
    *("same_every_epoch", "warm_start", "chunk_size", "memory"),
    *("checkpoint", "clipping", "data", "draws", "evaluate", "every", "examples"),
    *("gradient", "history", "kept", "leaves", "lengths", "like", "mesh", "model"),
    *("participants", "previous", "progress", "share", "state", "steps", "trainable"),
    *("axis", "devices", "dtypes", "others", "scaled", "total", "unit"),
    *("loader", "divisor", "document"),
    *(
        "function",
        "until",
        "canaries",
        "before",
        "mean",
        "evidence",
        "threshold",
        "seed",
    ),
    *("a", "b", "guarantee", "guarantees", "hyper_prior", "density", "convex"),
    *(
        "tolerance",
        "max_num_steps",
        "optimizer",
        "constant",
        "kind",
        "labels",
        "options",
        "found",
    ),
    *("cost", "family", "start", "targets", "spent", "rest", "within", "whole"),
    *("reference", "num_bins", "num_knots", "reach", "error", "excess"),
    *("f", "noise", "key", "log_concave", "options", "cdf", "other", "reach"),
    *("phi", "pairs", "null", "alternative", "max_records", "connected", "event"),
    *("values", "log_p", "log_q", "log_lower", "log_upper", "log_density", "factor"),
    *("log_prior_density", "theta", "distances"),
    *("cells_per_unit", "num_shifts", "output_edges", "dimension", "num_values"),
    *("matrix", "other", "kernels", "values", "num_outputs", "neighbors"),
    *("cut", "reach", "key", "x", "kinks"),
    *("log_cdf_without", "log_sf_without", "log_cdf_with", "log_sf_with"),
    # Of dp_accounting's interface, and what it makes.
    *("neighboring_relation", "target_delta", "target_epsilon", "pld"),
    *("make_fresh_accountant", "make_event_from_param", "bracket_interval"),
    *("discrete", "tol"),
    # Of Opacus's and JAX-Privacy's.
    *("sample_rate", "state_dict", "plan", "config"),
    # Of sweeps.
    *("again", "at", "configurations", "columns", "folder", "gradients", "queries"),
    *("name", "rows", "y"),
}


def _modules():
    return sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT)


def test_imports_point_to_earlier_stages():
    assert len(_modules()) > 100
    assert [x for path in _modules() for x in _imports_of_later_stages(path)] == []


def _imports_of_later_stages(path: pathlib.Path):
    own = path.relative_to(ROOT).parts[0]
    allowed = set(LEAVES)
    if own in LEAVES:
        allowed = set()
    elif own in STAGES:
        allowed |= set(STAGES[: STAGES.index(own)])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [_absolute(node, path)]
            if names == ["fdp_jax"]:
                names = [f"fdp_jax.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] != "fdp_jax":
                continue
            used = name.split(".")[1] if "." in name else ""
            if used != own and used not in allowed:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {own} imports {name}"


def _absolute(node: ast.ImportFrom, path: pathlib.Path) -> str:
    """The imported module's full name, for relative imports as well."""
    if node.level == 0:
        return node.module or ""
    package = ["fdp_jax", *path.relative_to(ROOT).parts[:-1]]
    parts = package[: len(package) - node.level + 1]
    return ".".join([*parts, *(node.module or "").split(".")]).strip(".")


def test_every_folder_has_a_place():
    folders = {p.parent.name for p in ROOT.glob("*/__init__.py")}
    assert folders <= {*STAGES, *LEAVES}


def test_public_parameters_are_in_the_notation_table():
    table = NOTATION.read_text(encoding="utf-8")
    known = set(re.findall(r"^\|[^|]*\| `(\w+)` \|", table, re.MULTILINE))
    assert {"epsilon", "delta", "alpha", "noise_multiplier"} <= known
    unknown = {}
    for owner, function in _public_functions():
        try:
            names = set(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            continue
        for name in names - known - STRUCTURAL:
            unknown.setdefault(name, []).append(owner)
    assert not unknown


def _public_functions():
    spaces = [("fdp", fdp_jax)]
    for name in USER_MODULES:
        spaces.append((f"fdp.{name}", getattr(fdp_jax, name)))
    for space_name, space in spaces:
        for name in dir(space):  # not vars: much is imported on first use
            value = getattr(space, name)
            if name.startswith("_") or not callable(value):
                continue
            if not getattr(value, "__module__", "").startswith("fdp_jax"):
                continue
            is_enum = inspect.isclass(value) and issubclass(value, enum.Enum)
            if not is_enum and name not in RECORDS:
                yield f"{space_name}.{name}", value
            if inspect.isclass(value):
                for attribute, member in vars(value).items():
                    if not attribute.startswith("_") and callable(member):
                        yield f"{space_name}.{name}.{attribute}", member


def test_a_module_that_is_not_imported_is_no_attribute():
    code = (
        "import fdp_jax as fdp\n"
        "assert not hasattr(fdp, 'no.such')\n"
        "try: fdp.cli\n"
        "except AttributeError as error: print(error)\n"
        "from fdp_jax import cli\n"
        "print(fdp.cli is cli)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert found == ["cli is a module: import fdp_jax.cli", "True"]


def test_import_loads_what_every_program_needs_alone():
    code = (
        "import sys, fdp_jax; "
        "print(*sorted({m.split('.')[1] for m in sys.modules if 'fdp_jax.' in m}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "mechanisms" in loaded
    assert not {"comparison", "inference", "noise", "plot"} & set(loaded)
    for name in dir(fdp_jax):
        assert getattr(fdp_jax, name) is not None
