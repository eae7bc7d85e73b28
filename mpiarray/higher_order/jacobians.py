"""`jacfwd`, `jacrev`, `hessian`: all derivatives of a function at once, by `vmap` over a basis of tangents or
cotangents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from mpiarray.core.value import aval_of
from mpiarray.higher_order.derivatives import check_input, linearize, positions, vjp, with_arguments
from mpiarray.higher_order.vmap import vmap
from mpiarray.numpy.host import as_array
from mpiarray.numpy.manipulation import split
from mpiarray.numpy.matrices import eye
from mpiarray.numpy.shapes import reshape
from mpiarray.ops.common import BatchAxis
from mpiarray.transforms.batching import batched_aval
from mpiarray.transforms.tangents import cotangent_aval, fit_cotangent
from mpiarray.types import dtypes, tree
from mpiarray.types.aval import ShapedArray


def jacfwd(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """A function that gives the Jacobian of `fun`, column by column, forwards: cheaper where there are fewer inputs
    than results.

    Its result has the structure of `fun`'s result, and within it that of the differentiated arguments; each array has
    the result's shape followed by the argument's.  Arguments as for `grad`; with `has_aux`, (Jacobian, aux).
    """

    @functools.wraps(fun, updated=())
    def jacobian_of(*args: Any, **kwargs: Any) -> Any:
        partial, chosen = with_arguments(fun, args, kwargs, positions(argnums, len(args), "jacfwd"))
        for x in tree.leaves(chosen):
            check_input("jacfwd", x, holomorphic, False)
            if not holomorphic and dtypes.is_complex(aval_of(x).dtype):
                raise TypeError(
                    "jacfwd requires real-valued inputs (input dtype that is a sub-dtype of np.floating), but got "
                    f"{dtypes.name(aval_of(x).dtype)}. For holomorphic "
                    "differentiation, pass holomorphic=True. For differentiation of non-holomorphic functions "
                    "involving complex inputs, use jax.jvp directly."
                )
        linear = linearize(partial, *chosen, has_aux=has_aux)
        push = linear[1]
        avals = [aval_of(x) for x in tree.leaves(chosen)]
        structure = tree.structure(chosen)
        columns = vmap(lambda basis: push(*basis), out_axes=-1)(tree.unflatten(structure, _basis(avals, avals)))
        found = tree.map(lambda c: _one(_by_argument(c, -1, avals, structure), argnums), columns)
        return (found, linear[2]) if has_aux else found

    return jacobian_of


def jacrev(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """A function that gives the Jacobian of `fun`, row by row, backwards: cheaper where there are fewer results than
    inputs.

    Structure and shapes as for `jacfwd`.
    """

    @functools.wraps(fun, updated=())
    def jacobian_of(*args: Any, **kwargs: Any) -> Any:
        partial, chosen = with_arguments(fun, args, kwargs, positions(argnums, len(args), "jacrev"))
        for x in tree.leaves(chosen):
            check_input("jacrev", x, holomorphic, allow_int)
        pair = vjp(partial, *chosen, has_aux=has_aux)
        out, pull = pair[0], pair[1]
        outs, structure = tree.flatten(out)
        avals = [aval_of(x) for x in outs]
        for a in avals:
            _check_output(a, holomorphic)
        basis = tree.unflatten(structure, _basis(avals, [cotangent_aval(a) for a in avals]))
        rows = vmap(pull)(basis)  # per argument: (all results, *argument's shape)
        per_argument = tree.map(lambda r: _by_argument(r, 0, avals, structure), rows)
        found = tree.transpose(tree.structure(rows), structure, per_argument)
        found = tree.map(
            lambda t: _one(t, argnums),
            found,
            is_leaf=lambda t: isinstance(t, tuple) and tree.structure(t) == tree.structure(rows),
        )
        return (found, pair[2]) if has_aux else found

    return jacobian_of


jacobian = jacrev


def hessian(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """A function that gives the second derivatives of `fun`: `jacfwd(jacrev(fun))`."""
    return jacfwd(
        jacrev(fun, argnums, has_aux=has_aux, holomorphic=holomorphic),
        argnums,
        has_aux=has_aux,
        holomorphic=holomorphic,
    )


def _one(found: Any, argnums: Any) -> Any:
    return found[0] if isinstance(argnums, int) else found


def _check_output(aval: ShapedArray, holomorphic: bool) -> None:
    dtype = dtypes.name(aval.dtype)
    if holomorphic and not dtypes.is_complex(aval.dtype):
        raise TypeError(f"jacrev with holomorphic=True requires outputs with complex dtype, but got {dtype}.")
    if not holomorphic and not dtypes.is_float(aval.dtype):
        raise TypeError(
            "jacrev requires real-valued outputs (output dtype that is a sub-dtype of np.floating), but got "
            f"{dtype}. For differentiation of functions with "
            + (
                "complex outputs, use jax.vjp, or holomorphic=True."
                if dtypes.is_complex(aval.dtype)
                else "integer outputs, use jax.vjp directly."
            )
        )


def _basis(avals: Sequence[ShapedArray], wanted: Sequence[ShapedArray]) -> list[Any]:
    """The standard basis of all values of these types together, an array (basis vectors, *shape) per value, placed
    as `wanted` says.
    """
    sizes = [a.size for a in avals]
    total, start, out = sum(sizes), 0, []
    for aval, want, size in zip(avals, wanted, sizes, strict=True):
        part = eye(total, size, k=-start, dtype=aval.dtype)
        start += size
        part = reshape(part, (total, *aval.shape))
        out.append(as_array(fit_cotangent(part, batched_aval(want, BatchAxis(total), 0))))
    return out


def _by_argument(x: Any, axis: int, avals: Sequence[ShapedArray], structure: Any) -> Any:
    """The dim of `x` that counts basis vectors, split and shaped as the values that they were made of."""
    axis %= aval_of(x).ndim
    parts = []
    bounds = [sum(a.size for a in avals[: k + 1]) for k in range(len(avals) - 1)]
    pieces = split(x, bounds, axis=axis) if bounds else [x]
    for piece, aval in zip(pieces, avals, strict=True):
        shape = piece.shape
        parts.append(reshape(piece, (*shape[:axis], *aval.shape, *shape[axis + 1 :])))
    return tree.unflatten(structure, parts)
