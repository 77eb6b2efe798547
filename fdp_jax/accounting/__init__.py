"""Keeping account of a run while it goes on."""

from ._accountant import Accountant as Accountant
