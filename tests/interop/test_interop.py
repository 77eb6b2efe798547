"""Without the other libraries."""

import subprocess
import sys

import pytest

import fdp_jax as fdp


def test_what_needs_dp_accounting_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    fdp.interop.accountant_class.cache_clear()
    said = r"needs dp-accounting: pip install 'fdp-jax\[dp-accounting\]'"
    with pytest.raises(ImportError, match=f"^FdpAccountant {said}"):
        _ = fdp.interop.FdpAccountant
    with pytest.raises(ImportError, match=f"^to_dp_event {said}"):
        fdp.interop.to_dp_event(fdp.Gaussian(1.0))
    with pytest.raises(TypeError, match="event must be"):
        fdp.interop.from_dp_event("GaussianDpEvent(1.0)")
    with pytest.raises(AttributeError, match="nothing"):
        fdp.interop.nothing  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("make", "name", "library", "extra"),
    [
        (fdp.interop.opacus_accountant_class, "OpacusAccountant", "opacus", "opacus"),
        (
            fdp.interop.accountant_config_class,
            "FdpAccountantConfig",
            "jax_privacy",
            "jax-privacy",
        ),
        (
            fdp.interop.register_with_opacus,
            "register_with_opacus",
            "opacus",
            "opacus",
        ),
    ],
)
def test_what_needs_another_library_says_how_to_get_it(
    make, name, library, extra, monkeypatch
):
    for module in [x for x in sys.modules if x.startswith(f"{library}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    # Past the cache, which keeps the class that the library may know already.
    make = getattr(make, "__wrapped__", make)
    said = rf"needs {extra}: pip install 'fdp-jax\[{extra}\]'"
    with pytest.raises(ImportError, match=f"^{name} {said}"):
        make()


def test_what_is_no_plan_is_refused():
    with pytest.raises(TypeError, match="plan must be an execution plan"):
        fdp.interop.from_execution_plan(3)
    with pytest.raises(TypeError, match="config must be the configuration"):
        fdp.interop.calibrate_plan(fdp.Gaussian(1.0))


def test_the_package_needs_none_of_them():
    code = (
        "import sys, fdp_jax; fdp_jax.interop; dir(fdp_jax.interop); "
        "names = {'dp_accounting', 'opacus', 'torch', 'jax_privacy', 'orbax'}; "
        "assert not names & set(sys.modules), names & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
