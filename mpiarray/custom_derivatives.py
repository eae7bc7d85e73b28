"""`jax.custom_derivatives`: functions with derivative rules that the user writes."""

from mpiarray.higher_order.custom_derivatives import closure_convert, custom_gradient, custom_jvp, custom_vjp
from mpiarray.higher_order.symbolic_zeros import (
    CustomVJPPrimal,
    SymbolicZero,
    custom_vjp_primal_tree_values,
    zero_from_primal,
)

__all__ = [
    "CustomVJPPrimal",
    "SymbolicZero",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "custom_vjp_primal_tree_values",
    "zero_from_primal",
]
