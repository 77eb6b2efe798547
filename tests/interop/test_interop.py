"""Without dp_accounting."""

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
