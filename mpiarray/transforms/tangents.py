"""Types of tangents and cotangents, and values of these types.

A tangent has its value's type; integers have tangents of dtype float0, which are always zero.  A cotangent has the
same type with the unreduced and the reduced axes exchanged: what is summed over devices forwards is equal on them
backwards.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from mpiarray.core.op import Zero
from mpiarray.core.plan import mesh_order, replicated
from mpiarray.core.trace import abstract_mesh, state
from mpiarray.core.value import Literal, Value, aval_of, literal
from mpiarray.numpy.host import as_array, from_host
from mpiarray.ops.linear import convert_element_type, full_of, tangent_aval
from mpiarray.ops.manual import preduced, psum_invariant, pvary, reduced_vary_cast, vary_unreduced_cast
from mpiarray.ops.placement import reshard
from mpiarray.types import dtypes
from mpiarray.types.aval import NOT_MANUAL, ManualAxisType, ShapedArray
from mpiarray.types.sharding import NamedSharding


@lru_cache(maxsize=8192)
def cotangent_aval(aval: ShapedArray) -> ShapedArray:
    """The type of a value's cotangent."""
    out = tangent_aval(aval)
    if out.unreduced or out.reduced:
        out = out.update(sharding=NamedSharding(out.sharding.mesh, out.sharding.spec.to_ct_spec()))
    kinds = out.manual
    if kinds.unreduced or kinds.reduced:
        out = out.update(manual=ManualAxisType(kinds.varying, kinds.reduced, kinds.unreduced))
    return out


def is_float0(aval: ShapedArray) -> bool:
    return aval.dtype == dtypes.float0


def as_value(x: Any) -> Value:
    """An operand as a value that knows its type: host scalars as literals, numpy arrays as arrays."""
    if isinstance(x, Value):
        return x
    aval = aval_of(x)
    if aval.ndim == 0:
        return literal(x, aval.dtype, aval.weak_type)
    return from_host(np.asarray(x), aval.dtype, aval.weak_type)


def shown(x: Any) -> Any:
    """A value as a user's function may get it: literals as arrays."""
    return as_array(x) if isinstance(x, Literal) else x


def filled(aval: ShapedArray, value: Any) -> Any:
    """A value of a type, manual axes and partial sums included, that is `value` everywhere (float0: a numpy array)."""
    if is_float0(aval):
        return np.zeros(aval.shape, dtypes.float0)
    mesh, spec = aval.sharding.mesh, aval.sharding.spec
    with abstract_mesh(aval.mesh if not mesh.empty else state.abstract_mesh):
        if spec.unreduced or spec.reduced:
            plain = (
                literal(value, aval.dtype, aval.weak_type)
                if not aval.ndim
                else full_of(aval.update(sharding=_plain(aval), manual=NOT_MANUAL), value)
            )
            return reshard(plain, dst_sharding=aval.sharding)
        x = full_of(aval.update(manual=NOT_MANUAL), value)
        return as_kind(x, aval.manual) if aval.manual else x


def _plain(aval: ShapedArray) -> NamedSharding:
    return NamedSharding(aval.sharding.mesh, aval.sharding.spec.update(unreduced=frozenset(), reduced=frozenset()))


def as_kind(x: Any, kind: ManualAxisType) -> Any:
    """An invariant value cast to vary, or to be unreduced or reduced, over manual axes.  Unreduced: only right for
    zero.
    """
    mesh = state.abstract_mesh
    varying = kind.varying | kind.unreduced
    if varying:
        x = pvary(x, axes=mesh_order(mesh, varying))
    if kind.unreduced:
        x = vary_unreduced_cast(x, axes=mesh_order(mesh, kind.unreduced))
    return preduced(x, axes=mesh_order(mesh, kind.reduced)) if kind.reduced else x


def instantiate(t: Any) -> Any:
    """A symbolic zero as a value."""
    return filled(t.aval, 0) if isinstance(t, Zero) else t


def vary_like(t: Any, manual: ManualAxisType) -> Any:
    """A tangent or cotangent that varies over fewer manual axes than its value does, cast to vary over all of them."""
    mine = aval_of(t).manual
    if mine is manual or not state.check_vma:
        return t
    missing = manual.varying - mine.varying
    mesh = state.abstract_mesh
    if missing & mine.reduced:
        t = reduced_vary_cast(t, axes=mesh_order(mesh, missing & mine.reduced))
    missing -= mine.reduced
    return pvary(t, axes=mesh_order(mesh, missing)) if missing else t


def fit_cotangent(ct: Any, aval: ShapedArray) -> Any:
    """A cotangent of this type: where the value lies, varying over the axes that it varies over, and summed over
    the others.
    """
    have = aval_of(ct)
    if have is aval:
        return ct
    if have.manual is not aval.manual:
        more = have.vma - aval.vma
        ct = psum_invariant(ct, axes=mesh_order(state.abstract_mesh, more)) if more else vary_like(ct, aval.manual)
    if have.sharding is aval.sharding or have.sharding.spec == aval.sharding.spec:
        return ct
    if not aval.sharding.mesh.empty:
        return reshard(ct, dst_sharding=aval.sharding)
    if any(have.dims) or have.unreduced or have.reduced:
        return reshard(ct, dst_sharding=NamedSharding(have.sharding.mesh, replicated(have.ndim)))
    return ct


def finished_cotangent(ct: Any, primal: ShapedArray) -> Any:
    """A cotangent as the user gets it: an array of the primal's cotangent type, zeros instantiated."""
    aval = cotangent_aval(primal)
    if isinstance(ct, Zero):
        ct = filled(aval, 0)
        if is_float0(aval):
            return ct
    ct = fit_cotangent(ct, aval)
    have = aval_of(ct)
    if have.dtype != aval.dtype or have.weak_type != aval.weak_type:
        ct = convert_element_type(ct, new_dtype=aval.dtype, weak_type=aval.weak_type)
    return shown(ct)
