"""`jax.jit`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpiarray.higher_order.arguments import StaticSplit
from mpiarray.higher_order.jit_function import UNSPECIFIED
from mpiarray.higher_order.stages import AotJitFunction


def jit(
    fun: Callable[..., Any] | None = None, /, *, in_shardings: Any = UNSPECIFIED, out_shardings: Any = UNSPECIFIED, static_argnums: Any = None,
    static_argnames: Any = None, donate_argnums: Any = None, donate_argnames: Any = None, keep_unused: bool = False, inline: bool = False,
    device: Any = None, backend: Any = None, compiler_options: Any = None,
) -> Any:  # fmt: skip
    """Compile a function of arrays.

    It is traced once per types of its arguments (static ones by value), context mesh and settings; its Python code runs only then.
    in_shardings, out_shardings: P, NamedSharding, Format, None (as it comes), or pytree prefixes of them.  In in_shardings
    `jax.sharding.AUTO` lets the compiler choose on the mesh's Auto axes, for the whole program and by its cost model, where
    arguments lie that lie nowhere yet: `lower(...).compile().input_shardings` tells, `.explain()` says why, and a donated
    argument's result lies like it.
    donate_argnums/names: arguments whose memory may be reused; they are deleted when a result has their type.  Elementwise
    updates, `dynamic_update_slice` and scatters are then made in place; where something else shows that memory (a numpy view,
    another array) they are made in a copy.
    Without `fun`: a decorator.  The result also has `trace`, `lower`, `eval_shape`.

    Collective over the mesh when called, if its program communicates; tracing and lowering are not.
    """
    if fun is None:
        return functools.partial(
            jit, in_shardings=in_shardings, out_shardings=out_shardings, static_argnums=static_argnums, static_argnames=static_argnames,
            donate_argnums=donate_argnums, donate_argnames=donate_argnames, keep_unused=keep_unused, inline=inline,
        )  # fmt: skip
    if not callable(fun):
        raise TypeError(f"jit: expected a callable value, got {fun!r} of type {type(fun)}")
    static = StaticSplit(fun, static_argnums, static_argnames, "jit: static")
    donate = StaticSplit(fun, donate_argnums, donate_argnames, "jit: donate")
    both = (static.nums & donate.nums) or (static.names & donate.names)
    if both:
        raise ValueError(f"jit: arguments {sorted(both, key=str)} cannot be both static and donated")
    return AotJitFunction(
        fun, in_shardings=in_shardings, out_shardings=out_shardings, static=static, donate=donate, inline=inline, keep_unused=keep_unused
    )  # fmt: skip
