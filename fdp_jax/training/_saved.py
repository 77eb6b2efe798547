"""States of a training in files, each bound to its plan."""

import hashlib
import io
import json
import os
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .._internal._files import write_at_once
from ._plan import Plan

_FORMAT, _VERSION = "fdp_jax training", 1


def write(path: str | os.PathLike[str], plan: Plan, state: PyTree) -> None:
    """A line of JSON that names the plan and a digest, then the leaves."""
    leaves = io.BytesIO()
    eqx.tree_serialise_leaves(leaves, _plain(state))
    body = leaves.getvalue()
    head = {
        "format": _FORMAT,
        "version": _VERSION,
        "plan": _named(plan),
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    write_at_once(path, json.dumps(head).encode("ascii") + b"\n" + body)


def read(path: str | os.PathLike[str], plan: Plan, like: PyTree) -> PyTree:
    """What was written for the same plan.

    Raises:
        ValueError: If the file is damaged, or of another plan or version.
    """
    name = os.fspath(path)
    head, _, body = pathlib.Path(path).read_bytes().partition(b"\n")
    try:
        found = json.loads(head.decode("ascii"))
        stated = [found[x] for x in ("format", "version", "plan", "sha256")]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{name} is damaged, or no saved training") from None
    if stated[0] != _FORMAT or stated[3] != hashlib.sha256(body).hexdigest():
        raise ValueError(f"{name} is damaged, or no saved training")
    if stated[1] != _VERSION:
        raise ValueError(f"{name} has version {stated[1]!r}, this is for {_VERSION}")
    if stated[2] != _named(plan):
        raise ValueError(
            f"{name} was written for another plan, {stated[2]}, this is {_named(plan)}"
        )
    try:
        leaves = eqx.tree_deserialise_leaves(io.BytesIO(body), _plain(like))
    except RuntimeError as error:
        raise ValueError(f"like must be a state as in {name}: {error}") from None
    return _with_keys(leaves, like)


def _named(plan: Plan) -> str:
    """The plan with all digits of its numbers."""
    leaves = [np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(plan)]
    numbers = [float(x).hex() for leaf in leaves for x in leaf]
    return f"{jax.tree.structure(plan)} {numbers}"


def _is_key(x: object) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _plain(tree: PyTree) -> PyTree:
    """With the data of random keys in their place."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree)


def _with_keys(tree: PyTree, like: PyTree) -> PyTree:
    wrap = lambda x, old: (
        jax.random.wrap_key_data(x, impl=jax.random.key_impl(old))
        if _is_key(old)
        else x
    )
    return jax.tree.map(wrap, tree, like)
