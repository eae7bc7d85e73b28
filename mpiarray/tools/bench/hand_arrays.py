"""The hand-written sides for arrays: collectives, elementwise chains in tiles, reductions, matrix products, packed transposes.

Each function takes this rank's input blocks and gives a function without arguments that does the work into buffers which it
keeps, and returns the result's blocks.  Where there are several good ways, all are tried and the fastest is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpiarray import comm
from mpiarray.comm.world import mpi as mpi_module
from mpiarray.tools.bench.timing import Timed, better, buffer

TILES = (4096, 8192, 16384, 32768, 65536, 131072)
"""Elements of a tile: the fastest size depends on the caches."""


def mpi() -> Any:
    """mpi4py's module."""
    module = mpi_module()
    assert module is not None, "MPI runs"
    return module


# -- collectives ----------------------------------------------------------------------------------------------------------


def collective(kind: str, b: np.ndarray, n: int) -> Timed:
    """The raw call into a buffer that is kept."""
    raw, rank = comm.world().comm, comm.rank()
    sizes = {"all_gather": n * b.size, "psum_scatter": b.size // n}
    out = buffer(sizes.get(kind, b.size), b.dtype)
    call, arguments = {
        "psum": (raw.Allreduce, (b, out)),
        "all_gather": (raw.Allgather, (b, out)),
        "psum_scatter": (raw.Reduce_scatter_block, (b, out)),
        "all_to_all": (raw.Alltoall, (b, out)),
        "ppermute": (raw.Sendrecv, (b, (rank + 1) % n, 0, out, (rank - 1) % n, 0)),
    }[kind]

    def run() -> list[np.ndarray]:
        call(*arguments)
        return [out]

    return run


# -- elementwise chains ---------------------------------------------------------------------------------------------------

Kernel = Callable[[np.ndarray, np.ndarray, list[np.ndarray]], None]


def chain_kernel(x: np.ndarray, out: np.ndarray, spare: list[np.ndarray]) -> None:
    """sin(x) exp(-x^2) + sqrt|x|."""
    t = spare[0][: x.size]
    np.multiply(x, x, out=t)
    np.negative(t, out=t)
    np.exp(t, out=t)
    np.sin(x, out=out)
    np.multiply(out, t, out=out)
    np.abs(x, out=t)
    np.sqrt(t, out=t)
    np.add(out, t, out=out)


def polynomial_kernel(x: np.ndarray, out: np.ndarray, spare: list[np.ndarray]) -> None:
    """(((x / 2 + 1) x - 3) x + 1/4) x."""
    np.multiply(x, np.float32(0.5), out=out)
    np.add(out, np.float32(1), out=out)
    np.multiply(out, x, out=out)
    np.subtract(out, np.float32(3), out=out)
    np.multiply(out, x, out=out)
    np.add(out, np.float32(0.25), out=out)
    np.multiply(out, x, out=out)


def tiled(kernel: Kernel, x: np.ndarray, spares: int) -> Timed:
    """The kernel over tiles of a flat block: results go to one buffer that is kept, temporaries stay in cache."""
    out = buffer(x.shape, x.dtype)

    def of(tile: int) -> Timed:
        spare = [buffer(tile, x.dtype) for _ in range(spares)]
        parts = [(x[k : k + tile], out[k : k + tile]) for k in range(0, x.size, tile)]

        def run() -> list[np.ndarray]:
            for source, target in parts:
                kernel(source, target, spare)
            return [out]

        return run

    return better(*(of(tile) for tile in TILES if tile <= max(x.size, TILES[0])))


def simple(kind: str, x: np.ndarray) -> Timed:
    """One or two calls of numpy into a buffer that is kept."""
    out = buffer(x.shape, x.dtype)

    def add() -> list[np.ndarray]:
        return [np.add(x, x, out)]

    def square() -> list[np.ndarray]:
        return [np.multiply(x, x, out)]

    def sine() -> list[np.ndarray]:
        np.sin(x, out)
        return [np.multiply(out, 2.0, out)]

    return {"add": add, "square": square, "sine": sine}[kind]


# -- reductions and orders ------------------------------------------------------------------------------------------------


def statistics(x: np.ndarray) -> Timed:
    """Mean and variance: one pass over tiles around a first guess of the mean, or two passes; then the sums of all ranks."""
    raw, n = comm.world().comm, comm.size()
    count = x.size * n
    sums, total = np.empty(2), np.empty(2)

    def one_pass(tile: int) -> Timed:
        spare = buffer(tile, x.dtype)
        parts = [(x[k : k + tile], spare[: min(tile, x.size - k)]) for k in range(0, x.size, tile)]

        def run() -> list[np.ndarray]:
            guess = x[:256].mean()
            guess = raw.bcast(guess)
            first = second = 0.0
            for part, t in parts:
                np.subtract(part, guess, out=t)
                first += float(t.sum())
                second += float(np.dot(t, t))
            sums[:] = first, second
            raw.Allreduce(sums, total)
            off = total[0] / count
            return [np.asarray(np.float32(guess + off)), np.asarray(np.float32(total[1] / count - off * off))]

        return run

    def two_passes(tile: int) -> Timed:
        spare = buffer(tile, x.dtype)
        parts = [(x[k : k + tile], spare[: min(tile, x.size - k)]) for k in range(0, x.size, tile)]

        def run() -> list[np.ndarray]:
            sums[0] = sum(float(part.sum()) for part, _ in parts)
            raw.Allreduce(sums[:1], total[:1])
            mean = np.float32(total[0] / count)
            second = 0.0
            for part, t in parts:
                np.subtract(part, mean, out=t)
                second += float(np.dot(t, t))
            sums[1] = second
            raw.Allreduce(sums[1:], total[1:])
            return [np.asarray(mean), np.asarray(np.float32(total[1] / count))]

        return run

    return better(*(way(tile) for way in (one_pass, two_passes) for tile in (8192, 32768, 131072)))


def argmax(x: np.ndarray) -> Timed:
    """The local place, then the largest pair of all ranks; the first of equal ones."""
    raw, rank = comm.world().comm, comm.rank()
    pair = np.zeros(1, np.dtype([("value", np.float32), ("place", np.int32)]))
    best = buffer(pair.shape, pair.dtype)
    library = mpi()

    def run() -> list[np.ndarray]:
        k = int(x.argmax())
        pair[0] = x[k], rank * x.size + k
        raw.Allreduce([pair, 1, library.FLOAT_INT], [best, 1, library.FLOAT_INT], library.MAXLOC)
        return [best["place"].reshape(())]

    return run


def sort(x: np.ndarray) -> Timed:
    """A copy, and numpy's sort in place."""
    out = buffer(x.shape, x.dtype)

    def run() -> list[np.ndarray]:
        np.copyto(out, x)
        out.sort(axis=-1)
        return [out]

    return run


def column_sums(x: np.ndarray) -> Timed:
    """The local sum, then that of all ranks."""
    raw = comm.world().comm
    part, out = buffer(x.shape[1], x.dtype), buffer(x.shape[1], x.dtype)

    def run() -> list[np.ndarray]:
        np.sum(x, axis=0, out=part)
        raw.Allreduce(part, out)
        return [out]

    return run


# -- matrix products ------------------------------------------------------------------------------------------------------


def product(a: np.ndarray, b: np.ndarray) -> Timed:
    """BLAS into a buffer that is kept."""
    out = buffer((a.shape[0], b.shape[1]), a.dtype)

    def run() -> list[np.ndarray]:
        np.matmul(a, b, out=out)
        return [out]

    return run


def summed_product(a: np.ndarray, b: np.ndarray) -> Timed:
    """The product of this rank's part of the contraction, and the sum: at the end, or by rows as soon as they are there."""
    raw = comm.world().comm
    part, out = (buffer((a.shape[0], b.shape[1]), a.dtype) for _ in range(2))

    def at_once() -> list[np.ndarray]:
        np.matmul(a, b, out=part)
        raw.Allreduce(part, out)
        return [out]

    def by_rows(pieces: int) -> Timed:
        step = -(-a.shape[0] // pieces)
        cuts = [slice(k, k + step) for k in range(0, a.shape[0], step)]

        def run() -> list[np.ndarray]:
            requests = []
            for cut in cuts:
                np.matmul(a[cut], b, out=part[cut])
                requests.append(raw.Iallreduce(part[cut], out[cut]))
            for request in requests:
                request.Wait()
            return [out]

        return run

    def in_turn(pieces: int) -> Timed:
        step = -(-a.shape[0] // pieces)
        cuts = [slice(k, k + step) for k in range(0, a.shape[0], step)]

        def run() -> list[np.ndarray]:
            for cut in cuts:
                np.matmul(a[cut], b, out=part[cut])
                raw.Allreduce(part[cut], out[cut])
            return [out]

        return run

    return better(at_once, *(way(pieces) for way in (by_rows, in_turn) for pieces in (4, 16)))


# -- moving rows to columns -----------------------------------------------------------------------------------------------


def rows_to_columns(b: np.ndarray, n: int) -> Timed:
    """Blocks of rows become blocks of columns: the better of packing with Alltoall, and Alltoallw on the block itself."""
    rows, columns = b.shape
    width = columns // n
    out = buffer((n * rows, width), b.dtype)
    return better(*(alltoalls(b, out, [(slice(None), slice(k * width, (k + 1) * width)) for k in range(n)],
                              [(slice(k * rows, (k + 1) * rows), slice(None)) for k in range(n)])))  # fmt: skip


def alltoalls(b: np.ndarray, out: np.ndarray, cuts: Sequence[Any], places: Sequence[Any]) -> list[Timed]:
    """Ways to send the parts `cuts` of a block to the ranks and to receive parts into the `places` of another."""
    raw, n = comm.world().comm, comm.size()
    pack, arrived = buffer(b.size, b.dtype), buffer(b.size, b.dtype)
    ends = np.cumsum([0, *(b[cut].size for cut in cuts)])
    given = [(pack[i:j].reshape(b[cut].shape), b[cut]) for i, j, cut in zip(ends, ends[1:], cuts)]
    came = [(out[place], arrived[i:j].reshape(out[place].shape)) for i, j, place in zip(ends, ends[1:], places)]
    in_place = all(target.flags.c_contiguous for target, _ in came)

    def packed() -> list[np.ndarray]:
        for target, source in given:
            np.copyto(target, source)
        raw.Alltoall(pack, out if in_place else arrived)
        if not in_place:
            for target, source in came:
                np.copyto(target, source)
        return [out]

    library = mpi()
    item = library.BYTE.Create_contiguous(b.itemsize).Commit()

    def types(of: np.ndarray, parts: Sequence[Any]) -> list[Any]:
        boxes = [[cut.indices(size)[:2] for cut, size in zip(part, of.shape)] for part in parts]
        return [item.Create_subarray(of.shape, [j - i for i, j in box], [i for i, _ in box]).Commit() for box in boxes]

    counts = ([1] * n, [0] * n)
    send, receive = [b, counts, types(b, cuts)], [out, counts, types(out, places)]

    def typed() -> list[np.ndarray]:
        raw.Alltoallw(send, receive)
        return [out]

    own, others = comm.rank(), ([int(k != comm.rank()) for k in range(n)], [0] * n)
    kept, place_of_kept = b[cuts[own]], out[places[own]]

    def typed_for_others() -> list[np.ndarray]:
        raw.Alltoallw([b, others, send[2]], [out, others, receive[2]])
        np.copyto(place_of_kept, kept)
        return [out]

    return [packed, typed, typed_for_others]
