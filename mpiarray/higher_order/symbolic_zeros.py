"""What derivative rules with `symbolic_zeros=True` see instead of arrays of zeros, and of arguments that nobody differentiates by.

They stand apart since users meet them: `jax.custom_derivatives.SymbolicZero` and `CustomVJPPrimal`.
"""

from __future__ import annotations

from typing import Any

from mpiarray.core.op import Zero
from mpiarray.core.value import aval_of
from mpiarray.ops.linear import tangent_aval
from mpiarray.transforms.tangents import instantiate, shown
from mpiarray.types import tree
from mpiarray.types.aval import ShapedArray


class SymbolicZero:
    """A tangent or cotangent that is known to be zero: no array is made.  `aval`, `shape` and `dtype` say its type."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return self.aval.ndim

    @property
    def size(self) -> int:
        return self.aval.size

    def __repr__(self) -> str:
        return "SymbolicZero"


class CustomVJPPrimal:
    """An argument of a forward rule with `symbolic_zeros=True`: its value, and whether the result is differentiated by it."""

    __slots__ = ("perturbed", "value")

    def __init__(self, value: Any, perturbed: bool):
        self.value, self.perturbed = value, perturbed

    def __repr__(self) -> str:
        return f"CustomVJPPrimal(value={self.value!r}, perturbed={self.perturbed})"


def shown_or_zero(x: Any, symbolic: bool) -> Any:
    """A tangent or cotangent as a rule of the user's gets it."""
    if isinstance(x, Zero):
        return SymbolicZero(x.aval) if symbolic else shown(instantiate(x))
    return shown(x)


def custom_vjp_primal_tree_values(primals: Any) -> Any:
    """The values of a tree of `CustomVJPPrimal`."""

    def value(x: Any) -> Any:
        if not isinstance(x, CustomVJPPrimal):
            raise TypeError(
                f"custom_vjp_primal_tree_values: expected a tree of CustomVJPPrimal, got the leaf {x!r} of type {type(x)}"
            )
        return x.value

    return tree.map(value, primals)


def zero_from_primal(x: Any, symbolic_zeros: bool = False) -> Any:
    """The zero tangent of a value: a `SymbolicZero`, or an array of zeros."""
    zero = Zero(tangent_aval(aval_of(x)))
    return shown_or_zero(zero, symbolic_zeros)
