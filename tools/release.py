"""Build what is published, and try it where nothing else of the repository is.

    python tools/release.py [--output dist]

It builds the source distribution and, from that, the wheel; installs the wheel in a new
environment and asks it there, outside of the tree, for its version, a first epsilon and
the types that it ships; and lists what that environment is made of (a CycloneDX bill of
materials). It needs `pip install '.[release]'`, and publishes nothing.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NEEDED = (
    *("fdp_jax/py.typed", "fdp_jax/__init__.pyi", "fdp_jax/data/published_runs.json"),
    "fdp_jax/reports/receipt.schema.json",
)
"""Files besides the modules, without which the wheel is not whole."""
_ASK = """
import importlib.resources, json
import fdp_jax as fdp
run = fdp.DPSGD(noise_multiplier=1.1, sampling_prob=256 / 60_000, num_steps=14_062)
print(json.dumps({
    "version": fdp.__version__,
    "place": fdp.__file__,
    "epsilon": float(run.epsilon(delta=1e-5)),
    "typed": (importlib.resources.files("fdp_jax") / "py.typed").is_file(),
    "runs": len(fdp.data.published_runs()),
}))
"""
_EPSILON = 2.3816
"""What `_ASK` asks for, as the README has it."""


def _run(*command: str | pathlib.Path, **options) -> str:
    options = {"check": True, "text": True, "stdout": subprocess.PIPE, **options}
    return subprocess.run([str(x) for x in command], **options).stdout


def _declared() -> tuple[str, str]:
    """The version in pyproject.toml and in CITATION.cff."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    cited = next(x for x in citation if x.startswith("version: "))
    return project["project"]["version"], cited.removeprefix("version: ")


def check_versions() -> str:
    """The version, if it is the same wherever it is written."""
    version, cited = _declared()
    if cited != version:
        sys.exit(f"CITATION.cff says {cited}, pyproject.toml {version}")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if f"\n## {version}" not in changes:
        sys.exit(f"CHANGELOG.md has no entry for {version}")
    tag = os.environ.get("GITHUB_REF_NAME", "")
    if os.environ.get("GITHUB_REF_TYPE") == "tag" and tag != f"v{version}":
        sys.exit(f"the tag is {tag}, the version {version}")
    return version


def build(output: pathlib.Path) -> pathlib.Path:
    """The wheel, built from the source distribution beside it."""
    shutil.rmtree(output, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", output, ROOT)
    _run(sys.executable, "-m", "twine", "check", "--strict", *output.iterdir())
    (wheel,) = output.glob("*.whl")
    missing = set(NEEDED) - set(zipfile.ZipFile(wheel).namelist())
    if missing:
        sys.exit(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    return wheel


def try_out(wheel: pathlib.Path, version: str, folder: pathlib.Path) -> pathlib.Path:
    """Install the wheel in a new environment in the folder, and use it there."""
    venv.create(folder / "env", with_pip=True)
    programs = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    python = programs / "python"
    quiet = "--quiet", "--disable-pip-version-check"
    _run(python, "-m", "pip", "install", *quiet, wheel)
    hidden = "PYTHONPATH", "PYTHONHOME"
    clean = {k: v for k, v in os.environ.items() if k not in hidden}
    clean["FDP_JAX_CACHE"] = "off"
    outside = {"cwd": folder, "env": clean}
    found = json.loads(_run(python, "-c", _ASK, **outside))
    printed = _run(programs / "fdp-jax", "--version", **outside).strip()
    checks = {
        "comes from the environment": found["place"].startswith(str(folder.resolve())),
        "has the declared version": found["version"] == version,
        "is typed": found["typed"],
        "has its data": found["runs"] > 0,
        "answers as the README says": abs(found["epsilon"] - _EPSILON) < 1e-4,
        "has a command line of this version": printed == f"fdp-jax {version}",
    }
    for claim, holds in checks.items():
        print(f"{'yes' if holds else 'NO '}  the wheel {claim}")
    if not all(checks.values()):
        sys.exit(f"the wheel is not fit to be published: {found}, {printed!r}")
    return python


def list_materials(python: pathlib.Path, bill: pathlib.Path) -> None:
    """Write what the environment consists of."""
    command = sys.executable, "-m", "cyclonedx_py", "environment"
    options = "--output-reproducible", "--of", "JSON", "-o", bill
    _run(*command, *options, "--pyproject", ROOT / "pyproject.toml", python)


def main() -> None:
    """Build, try, and list."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "dist")
    output = parser.parse_args().output.resolve()
    version = check_versions()
    wheel = build(output)
    with tempfile.TemporaryDirectory() as folder:
        python = try_out(wheel, version, pathlib.Path(folder).resolve())
        # Beside what is published and not with it: an index takes distributions alone.
        bill = output.parent / f"{output.name}-sbom" / f"fdp_jax-{version}.cdx.json"
        bill.parent.mkdir(exist_ok=True)
        list_materials(python, bill)
    print(*sorted(output.iterdir()), bill, sep="\n")


if __name__ == "__main__":
    main()
