"""PyTrees as a list of arrays, and the rest."""

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import PyTree


class _Slot(enum.Enum):
    """The place of an array; also from a file it is this very one."""

    ARRAY = enum.auto()


class Signature(NamedTuple):
    """All of a PyTree but its arrays.  Hashable, so that it can be a key of caches."""

    structure: Any
    static: tuple[Any, ...]
    """One entry for each leaf, with slots in place of arrays."""

    @classmethod
    def of(cls, tree: PyTree) -> tuple["Signature", list[Any]]:
        """The signature of a PyTree, and its arrays."""
        leaves, structure = jax.tree.flatten(tree)
        static = (_Slot.ARRAY if eqx.is_array(x) else x for x in leaves)
        return cls(structure, tuple(static)), [x for x in leaves if eqx.is_array(x)]

    def rebuild(self, arrays: Sequence[Any]) -> PyTree:
        """The PyTree with these arrays in their places."""
        rest = iter(arrays)
        leaves = [next(rest) if x is _Slot.ARRAY else x for x in self.static]
        return jax.tree.unflatten(self.structure, leaves)

    @property
    def skeleton(self) -> PyTree:
        """The PyTree with slots in place of arrays, of which this is the signature."""
        return jax.tree.unflatten(self.structure, self.static)
