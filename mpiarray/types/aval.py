"""Array types: `ShapedArray`, the type of every value in a program, and `ShapeDtypeStruct`, a user's stand-in.

A type is shape, dtype, weakness, sharding over the Explicit axes of an abstract mesh, and what is known about
the Manual axes (inside shard_map). Auto axes never show. Types are interned: the caches of eager ops and of
compiled programs are keyed by their identity, so a lookup costs a few pointer hashes.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from mpiarray.types import dtypes
from mpiarray.types.interned import Interned, fill
from mpiarray.types.layout import Format
from mpiarray.types.mesh import EMPTY_ABSTRACT_MESH, AbstractMesh
from mpiarray.types.partition_spec import UNCONSTRAINED, PartitionSpec
from mpiarray.types.sharding import NamedSharding, Sharding, check_rank, divisible_or_raise

__all__ = ["ManualAxisType", "NOT_MANUAL", "ShapeDtypeStruct", "ShapedArray", "local_shape"]

_NO_AXES: frozenset = frozenset()


def _no_mesh(spec: PartitionSpec) -> NamedSharding:
    raise TypeError(
        f"When specifying PartitionSpec to `ShapeDtypeStruct`, the context mesh cannot be empty. Got {spec}. "
        f"Please use `jax.set_mesh` to set the mesh context."
    )


#: Hook set by core: binds a bare spec to the context mesh, or raises when there is none.
resolve_spec: Callable[[PartitionSpec], NamedSharding] = _no_mesh


class ManualAxisType(Interned):
    """How a value depends on the Manual axes of its mesh. Interned.

    Args:
      varying: axes along which the instances hold different values.
      unreduced: axes over which the instances' values have to be added.
      reduced: axes along which the value is equal and its cotangent is unreduced.

    Axes in none of them: the value is equal along them.

    Raises:
      ValueError: an axis is in two of the sets.
    """

    __slots__ = ("reduced", "unreduced", "varying")
    varying: frozenset
    unreduced: frozenset
    reduced: frozenset

    def __new__(
        cls, varying: Iterable = _NO_AXES, unreduced: Iterable = _NO_AXES, reduced: Iterable = _NO_AXES
    ) -> ManualAxisType:
        key = (frozenset(varying), frozenset(unreduced), frozenset(reduced))
        found = _manual_types.get(key)
        if found is None:
            v, u, r = key
            if v & u or v & r or u & r:
                raise ValueError(
                    f"ManualAxisType: an axis can be in one of varying={sorted(v, key=str)}, "
                    f"unreduced={sorted(u, key=str)} and reduced={sorted(r, key=str)} only"
                )
            found = object.__new__(cls)
            fill(found, varying=v, unreduced=u, reduced=r)
            found = _manual_types.setdefault(key, found)
        return found

    def update(self, **parts: Iterable) -> ManualAxisType:
        """A value with the named sets replaced."""
        return ManualAxisType(
            **({"varying": self.varying, "unreduced": self.unreduced, "reduced": self.reduced} | parts)
        )

    def __bool__(self) -> bool:
        return self is not NOT_MANUAL

    def __reduce__(self) -> tuple:
        return ManualAxisType, (self.varying, self.unreduced, self.reduced)

    def __repr__(self) -> str:
        return f"ManualAxisType(varying={self.varying}, unreduced={self.unreduced}, reduced={self.reduced})"


_manual_types: dict[tuple, ManualAxisType] = {}
NOT_MANUAL = ManualAxisType()


class ShapedArray(Interned):
    """The type of an array. Interned: equal types are the same object.

    Args:
      shape: global shape (inside shard_map: shape of the block over the Manual axes).
      dtype: anything that names a dtype; its width is kept as it is.
      weak_type: whether the dtype gives way to that of an operand it meets.
      sharding: NamedSharding on an AbstractMesh. Auto and Manual axes are dropped from its spec, and the spec is
        padded with None. Default: no mesh.
      manual: what is known along the Manual axes.

    Raises:
      TypeError: a size is not an integer, or `dtype` names no dtype.
      ValueError: the mesh is concrete, a size is negative, the spec is too long, or a size is not divisible.
    """

    __slots__ = (
        "dims",
        "dtype",
        "manual",
        "mesh",
        "ndim",
        "reduced",
        "shape",
        "sharding",
        "size",
        "unreduced",
        "vma",
        "weak_type",
    )
    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool
    sharding: NamedSharding
    manual: ManualAxisType
    ndim: int
    size: int  #: number of elements
    dims: tuple  #: `sharding.spec.dims`: per dimension the tuple of Explicit axes that partition it
    unreduced: frozenset  #: Explicit axes, `sharding.spec.unreduced`; Manual ones are in `manual`
    reduced: frozenset  #: Explicit axes, `sharding.spec.reduced`
    mesh: AbstractMesh  #: `sharding.mesh`
    vma: frozenset  #: `manual.varying`

    def __new__(
        cls,
        shape: Sequence[int],
        dtype: Any,
        weak_type: bool = False,
        sharding: NamedSharding | None = None,
        manual: ManualAxisType = NOT_MANUAL,
    ) -> ShapedArray:
        try:
            return _table[shape, dtype, weak_type, sharding, manual]
        except (KeyError, TypeError):  # new, or written in another way (a list, a dtype's name)
            return _make(shape, dtype, weak_type, sharding, manual)

    @property
    def nbytes(self) -> int:
        """Size of the global array in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        """Size of an element in bytes."""
        return self.dtype.itemsize

    @property
    def manual_axis_type(self) -> ManualAxisType:
        """What is known along the Manual axes."""
        return self.manual

    @property
    def mat(self) -> ManualAxisType:
        """Short for `manual_axis_type`."""
        return self.manual

    def update(
        self,
        *,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        weak_type: bool | None = None,
        sharding: NamedSharding | None = None,
        manual: ManualAxisType | None = None,
        manual_axis_type: ManualAxisType | None = None,
    ) -> ShapedArray:
        """A type with the named fields (of the constructor) replaced.

        A new shape with another number of dimensions needs a new sharding too, unless no dimension is partitioned.
        """
        if shape is None:
            shape = self.shape
        if manual is None:
            manual = self.manual if manual_axis_type is None else manual_axis_type
        if sharding is None:
            sharding = self.sharding if len(shape) == self.ndim else self._of_rank(len(shape))
        return ShapedArray(
            shape,
            self.dtype if dtype is None else dtype,
            self.weak_type if weak_type is None else weak_type,
            sharding,
            manual,
        )

    def _of_rank(self, ndim: int) -> NamedSharding:
        """This type's sharding for another number of dimensions."""
        if any(self.dims):
            raise ValueError(
                f"ShapedArray.update: {self} is partitioned; a shape with {ndim} dimensions needs a sharding too"
            )
        return self.sharding.update(spec=self.sharding.spec.update(partitions=(None,) * ndim))

    def strip_weak_type(self) -> ShapedArray:
        """The same type, strong."""
        return self.update(weak_type=False) if self.weak_type else self

    def str_short(self, short_dtypes: bool = False) -> str:
        """`float32[8@X,4]{V:i}`, or with short names of dtypes `f32[8@X,4]{V:i}`; weakness does not show."""
        return _text(self, short_dtypes)

    def short(self) -> str:
        """`f32[8@X,4]{V:i}`: the form in jaxprs and errors."""
        return _text(self, True)

    def __reduce__(self) -> tuple:
        return ShapedArray, (self.shape, self.dtype, self.weak_type, self.sharding, self.manual)

    def __str__(self) -> str:
        return ("~" if self.weak_type else "") + _text(self, False)

    def __repr__(self) -> str:
        return f"ShapedArray({_text(self, False)}{', weak_type=True' if self.weak_type else ''})"


# (shape, dtype, weak_type, sharding, manual) -> type. Hashable ways of writing the same type are keys too.
_table: dict[tuple, ShapedArray] = {}


def _make(shape: Any, dtype: Any, weak_type: Any, sharding: NamedSharding | None, manual: Any) -> ShapedArray:
    if dtype is None:
        raise TypeError("ShapedArray: dtype must be specified")
    if not isinstance(manual, ManualAxisType):
        raise TypeError(f"ShapedArray: `manual` must be a ManualAxisType. Got {manual!r}")
    sizes = _shape(shape, "ShapedArray")
    key = (sizes, dtypes.as_dtype(dtype), bool(weak_type), _visible(sizes, sharding), manual)
    aval = _table.get(key)
    if aval is None:
        aval = object.__new__(ShapedArray)
        sizes, element, weak, visible, _ = key
        fill(
            aval,
            shape=sizes,
            dtype=element,
            weak_type=weak,
            sharding=visible,
            manual=manual,
            ndim=len(sizes),
            size=math.prod(sizes),
            dims=visible.dims,
            unreduced=visible.spec.unreduced,
            reduced=visible.spec.reduced,
            mesh=visible.mesh,
            vma=manual.varying,
        )
        aval = _table.setdefault(key, aval)
    with contextlib.suppress(TypeError):  # a list, or an unhashable way of writing a dtype
        _table[shape, dtype, weak_type, sharding, manual] = aval
    return aval


def _shape(shape: Any, who: str) -> tuple[int, ...]:
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        raise TypeError(
            f"{who}: Shapes must be 1D sequences of concrete values of integer type, got {shape!r}"
        ) from None
    if any(size < 0 for size in sizes):
        raise ValueError(f"{who}: sizes of dimensions must be at least 0, got shape {sizes}")
    return sizes


def _visible(shape: tuple[int, ...], sharding: NamedSharding | None) -> NamedSharding:
    """The sharding as a type shows it: Explicit axes only, one entry per dimension."""
    if sharding is None:
        return NamedSharding(EMPTY_ABSTRACT_MESH, PartitionSpec(*(None,) * len(shape)))
    if not isinstance(sharding, NamedSharding):
        raise TypeError(f"ShapedArray: `sharding` must be a NamedSharding. Got {sharding!r} of type {type(sharding)}")
    mesh, spec = sharding.mesh, sharding.spec
    if not isinstance(mesh, AbstractMesh):
        raise ValueError(
            f"Mesh of a type must be an AbstractMesh, such as mesh.abstract_mesh. Got {mesh} of {type(mesh)}"
        )
    check_rank(spec, len(shape), f"Sharding {sharding}")
    if spec.partitions and not mesh.are_all_axes_explicit:
        shown = frozenset(mesh.explicit_axes)
        dims = [() if dim is UNCONSTRAINED else tuple(axis for axis in dim if axis in shown) for dim in spec.dims]
        spec = spec.update(partitions=dims)
    visible = NamedSharding(mesh, spec.padded(len(shape)))
    divisible_or_raise(shape, visible)
    return visible


@lru_cache(maxsize=4096)
def _text(aval: ShapedArray, short_dtypes: bool) -> str:
    mesh, spec, manual = aval.mesh, aval.sharding.spec, aval.manual
    name = dtypes.short_name(aval.dtype) if short_dtypes else dtypes.name(aval.dtype)
    sizes = ",".join(str(n) + (f"@{_axes_text(dim)}" if dim else "") for n, dim in zip(aval.shape, aval.dims))
    parts = (
        ("V", manual.varying),
        ("U", spec.unreduced | manual.unreduced),
        ("R", spec.reduced | manual.reduced),
    )
    shown = ", ".join(f"{letter}:{_axes_text(mesh.ordered(axes))}" for letter, axes in parts if axes)
    return f"{name}[{sizes}]" + (f"{{{shown}}}" if shown else "")


def _axes_text(axes: tuple) -> str:
    return str(axes[0]) if len(axes) == 1 else f"({','.join(str(a) for a in axes)})"


def local_shape(aval: ShapedArray) -> tuple[int, ...]:
    """Shape of a block over the axes that the type shows: each size divided by its Explicit axes."""
    return aval.sharding.shard_shape(aval.shape)


class ShapeDtypeStruct(Interned):
    """Shape, dtype and sharding of an array that does not exist, to trace and compile with.

    Args:
      shape: sequence of ints.
      dtype: anything that names a dtype; its width is kept as it is.
      sharding: Sharding, Format, None, or a PartitionSpec, which is bound to the context mesh at once.
      weak_type: as in ShapedArray.
      manual_axis_type: for use inside shard_map.

    Raises:
      ValueError: no dtype, the sharding is of another type, or its spec has more entries than `shape`.
      TypeError: a PartitionSpec and no context mesh.
    """

    __slots__ = ("_layout", "dtype", "manual_axis_type", "shape", "sharding", "weak_type")
    shape: tuple[int, ...]
    dtype: Any
    sharding: Sharding | None
    weak_type: bool
    manual_axis_type: ManualAxisType | None
    _layout: Any

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        *,
        sharding: Sharding | Format | PartitionSpec | None = None,
        weak_type: bool = False,
        manual_axis_type: ManualAxisType | None = None,
    ):
        if dtype is None:
            raise ValueError("ShapeDtypeStruct: dtype must be specified.")
        sizes = _shape(shape, "ShapeDtypeStruct")
        layout = None
        if isinstance(sharding, Format):
            layout, sharding = sharding.layout, sharding.sharding
        if isinstance(sharding, PartitionSpec):
            check_rank(sharding, len(sizes))
            sharding = resolve_spec(sharding)
        if sharding is not None and not isinstance(sharding, Sharding):
            raise ValueError(
                f"sharding should be an instance of `jax.sharding.Sharding`, `jax.sharding.PartitionSpec` or "
                f"`jax.experimental.layout.Format`. Got {sharding} of type {type(sharding)}."
            )
        if isinstance(sharding, NamedSharding):
            check_rank(sharding.spec, len(sizes), f"Sharding {sharding}")
        fill(
            self,
            shape=sizes,
            dtype=dtypes.as_dtype(dtype),
            sharding=sharding,
            weak_type=bool(weak_type),
            manual_axis_type=manual_axis_type,
            _layout=layout,
        )

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def format(self) -> Format:
        """Layout and sharding."""
        return Format(self._layout, self.sharding)

    def update(self, **fields: Any) -> ShapeDtypeStruct:
        """A struct with the named arguments of the constructor replaced."""
        mine = {
            "shape": self.shape,
            "dtype": self.dtype,
            "sharding": self.format if self._layout is not None else self.sharding,
            "weak_type": self.weak_type,
            "manual_axis_type": self.manual_axis_type,
        }
        return ShapeDtypeStruct(**(mine | fields))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def _key(self) -> tuple:
        return self.shape, self.dtype, self.sharding, self.weak_type, self.manual_axis_type, self._layout

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeDtypeStruct) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple:
        sharding = self.format if self._layout is not None else self.sharding
        return _load_struct, (self.shape, self.dtype, sharding, self.weak_type, self.manual_axis_type)

    def __repr__(self) -> str:
        parts = [f"shape={self.shape}", f"dtype={dtypes.name(self.dtype)}"]
        if self.sharding is not None:
            parts.append(f"sharding={self.sharding}")
        if self._layout is not None:
            parts.append(f"layout={self._layout}")
        if self.weak_type:
            parts.append("weak_type=True")
        if self.manual_axis_type:
            parts.append(f"manual_axis_type={self.manual_axis_type}")
        return f"ShapeDtypeStruct({', '.join(parts)})"


def _load_struct(shape: tuple, dtype: Any, sharding: Any, weak_type: bool, manual: Any) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(shape, dtype, sharding=sharding, weak_type=weak_type, manual_axis_type=manual)
