"""The house: who may import what, and where things are named."""

import ast
import pathlib
import re

from mass import mass

ROOT = pathlib.Path(__file__).resolve().parent.parent / "fdp_jax"
FILES = sorted(ROOT.rglob("*.py"))
PAIR = re.compile(r"^class (\w+Loss)\(", re.MULTILINE)
# What is made of losses, whichever these are: engines compose these structures.
STRUCTURES = {
    *("AbstractLoss", "AnalyticLoss", "MassLoss", "MonotoneLoss"),
    *("ComposedLoss", "RevealedLoss", "ScheduleLoss"),
    *("EnclosedLoss", "BracketedLoss"),
}
ROOMS = {"losses", "mechanisms", "sampling"}
# A trade-off function that is the one of a pair, noise that is learned, and the engine
# that splits the law of the one pair that has bands.
NAMED_ELSEWHERE = {
    "tradeoff/_poisson.py": {"PoissonLoss"},
    "design/_learned.py": {"AtomicLoss"},
    "engines/_rare.py": {"BandLoss"},
    "engines/_rare_cuts.py": {"BandLoss"},
}
MOST_LINES = 450
# As they are today: they may only become fewer.
MOST_OF = {"statements": 18_544, "clauses": 5}


def _name(path):
    return path.relative_to(ROOT).as_posix()


def _imports(path):
    """Line, absolute module and names of all imports from within the package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = (node.module or "").split(".") if node.module else []
        if node.level:
            own = ["fdp_jax", *path.relative_to(ROOT).parts[:-1]]
            module = own[: len(own) - node.level + 1] + module
        if module[0] == "fdp_jax":
            yield node.lineno, module[1:], [alias.name for alias in node.names]


def test_other_packages_private_modules_are_not_imported():
    found = []
    for path in FILES:
        own = path.relative_to(ROOT).parts[0]
        for line, module, names in _imports(path):
            if not module or module[0] in (own, "_internal"):
                continue
            if _name(path) in NAMED_ELSEWHERE and module[0] == "losses":
                continue
            parts = module[1:] + ([] if module[1:] else names)
            private = [x for x in parts if x.startswith("_")]
            if private:
                found.append(f"{_name(path)}:{line}: {'.'.join(module)} {private}")
    assert not found


def test_pairs_are_named_in_their_rooms_alone():
    pairs = set()
    for path in (ROOT / "losses").rglob("*.py"):
        pairs |= set(PAIR.findall(path.read_text(encoding="utf-8")))
    assert {"GaussianLoss", "LaplaceLoss", "AtomicLoss"} <= pairs
    pairs -= STRUCTURES
    for path in FILES:
        if path.relative_to(ROOT).parts[0] in ROOMS:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        named = names & pairs - NAMED_ELSEWHERE.get(_name(path), set())
        assert not named, f"{_name(path)} names {sorted(named)}"


def test_files_are_short():
    counts = {
        _name(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in FILES
    }
    assert len(counts) > 100
    assert {name: n for name, n in counts.items() if n > MOST_LINES} == {}


def test_one_module_knows_what_is_traced():
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        asks = re.search(r"\bTracer\b|get_opaque_trace_state|is_concrete", text)
        assert not asks or _name(path) == "_internal/_concrete.py", _name(path)


def test_the_package_does_not_grow():
    """A capability may add statements; docstrings open with a noun."""
    found = mass(ROOT)
    assert {name: found[name] for name in MOST_OF if found[name] > MOST_OF[name]} == {}


def test_tests_that_are_left_out_exist():
    lines = pathlib.Path(__file__).with_name("slow.txt").read_text().splitlines()
    for line in [x for x in lines if not x.startswith("#")]:
        path, _, name = line.partition("::")
        function = name.partition("[")[0].rpartition(".")[-1]
        assert f"def {function}(" in (text := (ROOT.parent / path).read_text()) or (
            f"class {function}(" in text
        ), line
