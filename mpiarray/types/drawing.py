"""A drawing of which device holds which part of an array of one or two dimensions, as text.

Computed from the sharding alone. The proportions and paddings are those of JAX's `visualize_array_sharding`
without colours, so that documents show the same picture; `draw_sharding` returns the text, printing it is left
to the caller.

A cell is one block: its text names the devices that hold it. Cells are padded so that the table has roughly the
array's proportions (a character is 2.5 times as high as wide), then all cells of a column get its widest cell's width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpiarray.types.mesh import AbstractMesh
from mpiarray.types.sharding import NamedSharding, Sharding

__all__ = ["Cell", "cells", "draw_sharding"]

_HEIGHT = 10  # lines of the whole drawing, about
_ASPECT = 2.5  # how much higher than wide a character is
_LEAST_WIDTH, _MOST_WIDTH = 9, 80  # of a cell with its border, in characters; the latter also of the table


class Cell(NamedTuple):
    """One block: its text, and the blanks around the text (left, right) and lines around it (top, bottom)."""

    text: str
    left: int
    right: int
    top: int
    bottom: int

    @property
    def width(self) -> int:
        return self.left + len(self.text) + self.right

    @property
    def height(self) -> int:
        return self.top + 1 + self.bottom


def draw_sharding(shape: Sequence[int], sharding: Sharding) -> str:
    """The drawing, lines ending with newlines.

    Args:
      shape: global shape, of one or two dimensions. One dimension is drawn from left to right.
      sharding: on devices, or on an AbstractMesh, whose devices are shown by position. Over unreduced axes, devices share the cell of the part that they sum to.

    Raises:
      ValueError: another number of dimensions, or the sharding does not fit `shape`.
    """
    rows = cells(shape, sharding)
    heights = [max(cell.height for cell in row) for row in rows]
    widths = _fitted(
        [max(cell.width for cell in column) for column in zip(*rows, strict=True)],
        [max(len(cell.text) for cell in column) for column in zip(*rows, strict=True)],
    )
    lines = [_border("┌┬┐", widths)]
    for i, row in enumerate(rows):
        if i:
            lines.append(_border("├┼┤", widths))
        blocks = [_cell_lines(cell, width, heights[i]) for cell, width in zip(row, widths, strict=True)]
        lines.extend("│" + "│".join(parts) + "│" for parts in zip(*blocks, strict=True))
    lines.append(_border("└┴┘", widths))
    return "\n".join(lines) + "\n"


def cells(shape: Sequence[int], sharding: Sharding) -> list[list[Cell]]:
    """The blocks as rows of cells, in the order of the array. Arguments and errors as in `draw_sharding`."""
    shape = tuple(shape)
    if len(shape) not in (1, 2):
        raise ValueError(
            f"visualize_array_sharding only works for shapes with 1 and 2 dimensions. Got shape {shape}, which has "
            f"{len(shape)}"
        )
    block = sharding.shard_shape(shape)
    holders: dict[tuple[int, ...], list[int]] = {}
    for device, index in _held(shape, sharding):
        # Blocks of size 0 all look alike; they are drawn as one.
        where = tuple((part.start or 0) // max(n, 1) for part, n in zip(index, block, strict=True))
        holders.setdefault(where, []).append(device)
    grid = shape if len(shape) == 2 else (1, *shape)
    counts = tuple(1 + max(where[d] for where in holders) for d in range(len(shape)))
    counts = counts if len(shape) == 2 else (1, *counts)
    base_width = int(_HEIGHT * (shape[1] if len(shape) == 2 else 1) / max(shape[0], 1))
    width = int(_fraction(grid[1], counts[1]) * base_width * _ASPECT)
    width = min(max(width, _LEAST_WIDTH), _MOST_WIDTH)
    height = int(_fraction(grid[0], counts[0]) * _HEIGHT) if len(shape) == 2 else 1
    return [
        [_cell(holders[(i, j)[2 - len(shape) :]], width, height) for j in range(counts[1])] for i in range(counts[0])
    ]


def _held(shape: tuple[int, ...], sharding: Sharding) -> list[tuple[int, tuple[slice, ...]]]:
    """(device, what it holds); on an abstract mesh devices are their positions."""
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh):
        return list(enumerate(sharding.indices(shape)))
    return [(device.id, index) for device, index in sharding.devices_indices_map(shape).items()]


def _fraction(size: int, count: int) -> float:
    """The part of a dimension that one of `count` blocks takes."""
    return (size // count) / size if size else 1.0


def _cell(ids: list[int], width: int, height: int) -> Cell:
    text = "CPU " + ",".join(str(k) for k in sorted(ids))
    left, rest = divmod(width - len(text) - 2, 2)
    top, more = divmod(height - 2, 2)
    return Cell(text, max(left, 0), max(left + rest, 0), max(top, 0), max(top + more, 0))


def _fitted(widths: list[int], texts: list[int]) -> list[int]:
    """Widths of columns, shrunk evenly when the table is too wide, but never below the columns' texts."""
    room = _MOST_WIDTH - 1 - len(widths)
    if sum(widths) <= room:
        return widths
    share, rest = divmod(max(room, 0), len(widths))
    return [
        max(text, min(width, share + (i < rest))) for i, (width, text) in enumerate(zip(widths, texts, strict=True))
    ]


def _cell_lines(cell: Cell, width: int, height: int) -> list[str]:
    room = width - cell.left - cell.right
    if room >= len(cell.text):
        before = cell.left + (room - len(cell.text)) // 2
    else:  # the column was shrunk into this cell's padding
        before = (width - len(cell.text)) // 2
    text = (" " * before + cell.text).ljust(width)
    return [text if line == cell.top else " " * width for line in range(height)]


def _border(corners: str, widths: list[int]) -> str:
    return corners[0] + corners[1].join("─" * width for width in widths) + corners[2]
