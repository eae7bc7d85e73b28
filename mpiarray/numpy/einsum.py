"""einsum: sums of products in index notation, two operands at a time.

The order of the contractions is found from the shapes alone, so it is the same on every rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpiarray.core.plan import require_unsharded
from mpiarray.core.value import aval_of
from mpiarray.numpy.contraction import contract, factors, result_pair
from mpiarray.numpy.host import as_array
from mpiarray.numpy.promotion import cast
from mpiarray.numpy.promotion import out_sharding as sharding_of
from mpiarray.ops.comparison import eq
from mpiarray.ops.linear import full_of, reduce_sum, squeeze, transpose
from mpiarray.ops.placement import reshard
from mpiarray.ops.select import select_n
from mpiarray.ops.shape import iota

__all__ = ["einsum", "einsum_path"]

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_EXACT_PATH = 5  # operands up to which the best order is looked for


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: None = None,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: Any = None,
    _dot_general: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The sum of products that the subscripts say, e.g. `einsum("bqhd,bkhd->bhqk", q, k)`.

    Several operands are contracted in pairs; `out_sharding` is that of the result, given to the last contraction.

    Raises:
      ValueError: subscripts that do not fit the operands.
      ShardingTypeError: as `dot`; a letter that an operand has twice must be unsharded.
    """
    if out is not None:
        raise NotImplementedError("The 'out' argument to jnp.einsum is not supported: arrays are immutable.")
    terms, result, arrays = parse(subscripts, operands)
    arrays = factors("einsum", *arrays)
    sizes = _sizes(terms, arrays)
    dtype, weak = result_pair("einsum", arrays, preferred_element_type)
    sharding = sharding_of(out_sharding, [sizes[n] for n in result], "einsum")
    work = [_own(t, x, sizes) for t, x in zip(terms, arrays)]
    for left, right in _pairs(terms, result, sizes, optimize):
        y_names, y = work.pop(left)
        x_names, x = work.pop(right)
        others = {n for names, _ in work for n in names} | set(result)
        x_names, x = _without(x_names, x, others | set(y_names))
        y_names, y = _without(y_names, y, others | set(x_names))
        last = not work
        made = result if last and set(result) <= {*x_names, *y_names} else _order(x_names, y_names, others)
        z = contract(
            x,
            x_names,
            y,
            y_names,
            made,
            dtype=dtype,
            weak=weak,
            precision=precision,
            sharding=sharding if last and made == result else None,
        )
        work.append((tuple(made), z))
    ((names, value),) = work
    return _finish(names, value, result, dtype, weak, sharding)


def einsum_path(subscripts: Any, /, *operands: Any, optimize: Any = "auto") -> tuple[list[Any], str]:
    """The order in which `einsum` contracts, as numpy.einsum_path tells it; no operand is read."""
    terms, result, arrays = parse(subscripts, operands)
    shapes = [np.broadcast_to(np.float32(0), aval_of(x).shape) for x in arrays]
    optimize = "optimal" if optimize in ("auto", True) else optimize
    return np.einsum_path(_text(terms, result), *shapes, optimize=optimize)


def _text(terms: Sequence[Sequence[str]], result: Sequence[str]) -> str:
    return ",".join("".join(t) for t in terms) + "->" + "".join(result)


# -- subscripts ------------------------------------------------------------------------------------------


def parse(subscripts: Any, operands: Sequence[Any]) -> tuple[list[tuple[str, ...]], tuple[str, ...], list[Any]]:
    """The letters of every operand and of the result, with ellipses spelt out; raises ValueError where they do not
    fit.
    """
    if not isinstance(subscripts, str):
        return _interleaved([subscripts, *operands])
    text = subscripts.replace(" ", "")
    head, arrow, tail = text.partition("->")
    terms = head.split(",")
    bad = set(head.replace("...", "") + tail.replace("...", "")) - set(_LETTERS) - {","}
    if bad or "," in tail:
        raise ValueError(
            f"Character(s) {sorted(bad) or [',']} are not valid in the subscripts {subscripts!r} of einsum"
        )
    if len(terms) != len(operands):
        raise ValueError(
            f"einsum: number of einsum subscripts, {len(terms)}, must be equal to the number of operands, "
            f"{len(operands)}, in {subscripts!r}"
        )
    return _spelt(terms, tail if arrow else None, list(operands), subscripts)


def _interleaved(args: list[Any]) -> Any:
    """`einsum(x, [0, 1], y, [1, 2], [0, 2])`."""
    result = None if len(args) % 2 == 0 else args.pop()
    lists = args[1::2] + ([result] if result is not None else [])
    numbers = sorted({n for names in lists for n in names if n is not Ellipsis})
    letter = dict(zip(numbers, _LETTERS)) | {Ellipsis: "..."}
    terms = ["".join(letter[n] for n in names) for names in args[1::2]]
    tail = None if result is None else "".join(letter[n] for n in result)
    return _spelt(terms, tail, list(args[0::2]), ",".join(terms))


def _spelt(terms: Sequence[str], tail: str | None, operands: list[Any], subscripts: str) -> Any:
    used = set("".join(terms)) | set(tail or "")
    free = [c for c in _LETTERS if c not in used]
    most = 0
    for term, x in zip(terms, operands):
        ndim, given = aval_of(x).ndim, len(term.replace("...", ""))
        if "." in term:
            if term.count("...") != 1 or "." in term.replace("...", ""):
                raise ValueError(f"einsum: {term!r} in {subscripts!r} has no valid ellipsis")
            if given > ndim:
                raise ValueError(
                    f"einsum: {term!r} in {subscripts!r} has more letters than its operand {aval_of(x).str_short()} "
                    "has dimensions"
                )
            most = max(most, ndim - given)
        elif given != ndim:
            raise ValueError(
                f"Einstein sum subscript {term!r} does not contain the correct number of indices for operand "
                f"{aval_of(x).str_short()}."
            )
    dots = free[:most]
    full = [_fill(t, dots, aval_of(x).ndim) for t, x in zip(terms, operands)]
    if tail is None:
        counts = Counter(c for t in terms for c in t.replace("...", ""))
        result = (*dots, *sorted(c for c, k in counts.items() if k == 1))
    else:
        result = _fill(tail, dots, len(tail.replace("...", "")) + most) if "..." in tail else tuple(tail)
    letters = {c for t in full for c in t}
    for c in result:
        if c not in letters:
            raise ValueError(f"Output character {c!r} did not appear in the input of einsum {subscripts!r}.")
        if result.count(c) > 1:
            raise ValueError(f"einsum: output character {c!r} appears more than once in {subscripts!r}.")
    return full, result, operands


def _fill(term: str, dots: Sequence[str], ndim: int) -> tuple[str, ...]:
    if "..." not in term:
        return tuple(term)
    before, _, after = term.partition("...")
    count = ndim - len(before) - len(after)
    return (*before, *(dots[len(dots) - count :] if count else ()), *after)


def _sizes(terms: Sequence[Sequence[str]], arrays: Sequence[Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for k, (term, x) in enumerate(zip(terms, arrays)):
        for c, n in zip(term, aval_of(x).shape):
            known = sizes.get(c, 1)
            if known != 1 and n not in (1, known):
                raise ValueError(f"Size of label {c!r} for operand {k} ({n}) does not match previous terms ({known}).")
            sizes[c] = max(n, known) if known != 1 or n != 0 else 0
    return sizes


# -- steps -------------------------------------------------------------------------------------------------


def _own(term: Sequence[str], x: Any, sizes: dict[str, int]) -> tuple[tuple[str, ...], Any]:
    """An operand with every letter once: repeated letters take the diagonal, dims of size 1 that meet larger ones
    go.
    """
    shape = aval_of(x).shape
    small = tuple(d for d, (c, n) in enumerate(zip(term, shape)) if n == 1 and sizes[c] != 1)
    if small:
        x, term = squeeze(x, dimensions=small), tuple(c for d, c in enumerate(term) if d not in small)
    while len(set(term)) < len(term):
        c = next(c for c in term if list(term).count(c) > 1)
        first = list(term).index(c)
        second = list(term).index(c, first + 1)
        x = _diagonal(x, first, second)
        term = tuple(n for d, n in enumerate(term) if d != first)
    return tuple(term), x


def _diagonal(x: Any, first: int, second: int) -> Any:
    """Elements whose indices in two dims are equal, the first of them dropped."""
    aval = aval_of(x)
    require_unsharded(
        "einsum", aval, (first, second), "an operand with a repeated letter must be unsharded in its dimensions"
    )
    shape = tuple(n if d in (first, second) else 1 for d, n in enumerate(aval.shape))
    sharding = None if aval.mesh.empty else aval.sharding
    where = [iota(dtype=np.dtype(np.int32), shape=aval.shape, dimension=d, sharding=sharding) for d in (first, second)]
    assert len(shape) == aval.ndim
    return reduce_sum(select_n(eq(*where), full_of(aval, 0), x), axes=(first,), out_sharding=None)


def _pairs(
    terms: Sequence[Sequence[str]], result: Sequence[str], sizes: dict[str, int], optimize: Any
) -> list[tuple[int, int]]:
    """Positions to contract, the larger one first, in numpy's convention: the results go to the end of the list."""
    count = len(terms)
    if count <= 2 or optimize is False:
        return [(1, 0)] if count == 2 else _in_turn(count)
    how = optimize
    if optimize in ("auto", True, "optimal", "greedy"):
        how = "greedy" if optimize == "greedy" or count > _EXACT_PATH else "optimal"
    if isinstance(how, (list, tuple)) and how and how[0] == "einsum_path":
        steps = how[1:]
    else:
        shapes = [np.broadcast_to(np.float32(0), [sizes[c] for c in t]) for t in terms]
        steps = np.einsum_path(_text(terms, result), *shapes, optimize=how)[0][1:]
    out, left = [], count
    for step in steps:
        positions = sorted(step, reverse=True)
        while len(positions) > 1:  # a step of several operands: from the right, with what was made at the end
            out.append((positions[0], positions[1]))
            left -= 1
            positions = [left - 1, *positions[2:]]
    return out


def _in_turn(count: int) -> list[tuple[int, int]]:
    """From left to right."""
    return [(1, 0) if k == 0 else (count - k - 1, 0) for k in range(count - 1)]


def _without(names: Sequence[str], x: Any, kept: set[str]) -> tuple[tuple[str, ...], Any]:
    """Sum over the letters that nobody else has."""
    gone = tuple(d for d, c in enumerate(names) if c not in kept)
    if not gone:
        return tuple(names), x
    return tuple(c for c in names if c in kept), reduce_sum(x, axes=gone, out_sharding=None)


def _order(x_names: Sequence[str], y_names: Sequence[str], others: set[str]) -> tuple[str, ...]:
    """The dims of an intermediate result, as the product makes them."""
    batch = [c for c in x_names if c in y_names and c in others]
    return (*batch, *(c for c in x_names if c not in y_names), *(c for c in y_names if c not in x_names))


def _finish(names: Sequence[str], x: Any, result: Sequence[str], dtype: Any, weak: bool, sharding: Any) -> Any:
    """A single operand's sums and transpose."""
    names, x = _without(names, x, set(result))
    if tuple(names) != tuple(result):
        x = transpose(x, permutation=tuple(names.index(c) for c in result))
    x = as_array(cast(x, dtype, weak))
    if sharding is not None and (x.aval.sharding.spec != sharding.spec):
        x = reshard(x, dst_sharding=sharding)
    return x
