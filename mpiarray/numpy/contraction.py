"""Products of two arrays by names of dims: what matmul, tensordot, vecdot and einsum have in common.

    contract("matmul", x, "bij", y, "bjk", "bik")

Names that both operands and the result have are batch dims, names of both operands alone are summed over.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from mpiarray.core.plan import spec_from
from mpiarray.core.value import Value, aval_of, literal
from mpiarray.numpy.promotion import cast, operands
from mpiarray.ops.dot import dot_general
from mpiarray.ops.linear import transpose
from mpiarray.types import dtypes
from mpiarray.types.sharding import NamedSharding

Names = Sequence[Hashable]


def factors(name: str, *args: Any) -> list[Any]:
    """Operands of a product: checked; Python scalars become literals, dtypes stay as they are."""
    out = []
    for x in operands(name, *args):
        if dtypes.is_python_scalar(x):
            dtype, weak = dtypes.dtype_of(x)
            x = literal(x, dtype, weak)
        out.append(x)
    return out


def result_pair(name: str, args: Sequence[Any], preferred: Any) -> tuple[Any, bool]:
    """The dtype of a product and whether it is weak."""
    if preferred is not None:
        return dtypes.requested(preferred, name), False
    return dtypes.result_pair(*((a.dtype, a.weak_type) for a in map(aval_of, args)))


def static(precision: Any) -> Any:
    """A `precision=` argument as a parameter: it changes nothing here, where products are as precise as their
    dtypes.
    """
    return tuple(precision) if isinstance(precision, list) else precision


def general(
    x: Any, y: Any, numbers: Any, dtype: Any, weak: bool, precision: Any, sharding: NamedSharding | None
) -> Value:
    """dot_general with the result's dtype said, and weak where the result is."""
    out = dot_general(
        x,
        y,
        dimension_numbers=numbers,
        precision=static(precision),
        preferred_element_type=dtype,
        out_sharding=sharding,
    )
    return cast(out, dtype, weak) if weak else out


def contract(
    x: Any,
    x_names: Names,
    y: Any,
    y_names: Names,
    out_names: Names,
    *,
    dtype: Any,
    weak: bool,
    precision: Any,
    sharding: NamedSharding | None,
) -> Value:
    """The product of two arrays, its dims named by `out_names`; `sharding` is that of the result."""
    x_names, y_names, out_names = tuple(x_names), tuple(y_names), tuple(out_names)
    batch = [n for n in x_names if n in y_names and n in out_names]
    summed = [n for n in x_names if n in y_names and n not in out_names]
    x_free, y_free = [n for n in x_names if n not in y_names], [n for n in y_names if n not in x_names]
    if (*batch, *y_free, *x_free) == out_names and x_free and y_free:  # the other way round needs no transpose
        x, y, x_names, y_names, x_free, y_free = y, x, y_names, x_names, y_free, x_free
    made = (*batch, *x_free, *y_free)
    numbers = (
        (tuple(x_names.index(n) for n in summed), tuple(y_names.index(n) for n in summed)),
        (tuple(x_names.index(n) for n in batch), tuple(y_names.index(n) for n in batch)),
    )
    if made == out_names:
        return general(x, y, numbers, dtype, weak, precision, sharding)
    if sharding is not None:
        spec = sharding.spec
        sharding = NamedSharding(
            sharding.mesh, spec_from([spec.dims[out_names.index(n)] for n in made], spec.unreduced, spec.reduced)
        )
    out = general(x, y, numbers, dtype, weak, precision, sharding)
    return transpose(out, permutation=tuple(made.index(n) for n in out_names))
