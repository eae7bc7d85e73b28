"""The exchange of boxes against numpy: every cut of every progression, and what each device of a mesh sends."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiarray.ops import boxes
from mpiarray.ops.boxes import Along, Blocks, Move

MESHES = [(("x", 4), ("y", 2)), (("x", 2), ("y", 2), ("z", 2)), (("x", 3),), (("x", 1),)]


def indices(a):
    i = np.arange(a.size)
    return a.source + i * a.source_step, a.target + i * a.target_step


@settings(max_examples=400)
@given(st.data())
def test_cut_keeps_exactly_what_lies_in_both_blocks(data):
    draw = lambda low, high: data.draw(st.integers(low, high))
    count, step, target_step = draw(0, 9), draw(1, 4) * data.draw(st.sampled_from((1, -1))), draw(1, 4)
    along = Along(draw(0, 20) + (0 if step > 0 else 36), step, draw(0, 20), target_step, count)
    source, target = (draw(0, 40), draw(0, 20)), (draw(0, 30), draw(0, 20))
    part = boxes.cut(along, source, target)
    s, t = indices(along)
    inside = (s >= source[0]) & (s < sum(source)) & (t >= target[0]) & (t < sum(target))
    if part is None:
        assert not inside.any()
        return
    ps, pt = indices(part)
    np.testing.assert_array_equal(ps + source[0], s[inside])
    np.testing.assert_array_equal(pt + target[0], t[inside])


@pytest.mark.parametrize(
    "low, interior, high",
    [(0, 0, 0), (2, 0, 3), (-2, 0, 1), (1, 2, 0), (-3, 1, 4), (-9, 0, 9), (-4, 2, -3), (0, 0, -6)],
)
def test_padded_says_where_each_element_goes(low, interior, high):
    n, step = 6, interior + 1
    size = low + high + n + (n - 1) * interior
    run = boxes.padded(n, low, interior, size)
    wanted = [(i, low + i * step) for i in range(n) if 0 <= low + i * step < size]
    assert list(zip(*map(np.ndarray.tolist, indices(run)))) == wanted


def coordinates(mesh):
    names = [a for a, _ in mesh]
    return [dict(zip(names, c)) for c in itertools.product(*(range(n) for _, n in mesh))]


def number(mesh, coords, axes):
    k = 0
    for a in axes:
        k = k * dict(mesh)[a] + coords[a]
    return k


def block(x, mesh, coords, layout):
    index = []
    for b in layout:
        start = b.start + number(mesh, coords, b.axes) * b.step
        index.append(slice(start, start + b.length))
    return x[tuple(index)]


def simulate(mesh, moves, arrays, sources, target, fill):
    """Every device's result block, with messages matched as MPI does, and the bytes sent."""
    devices = coordinates(mesh)
    tables = [boxes.table(mesh, c, moves, sources, target) for c in devices]
    blocks = [[block(x, mesh, c, s) for x, s in zip(arrays, sources)] for c in devices]
    mail, sent = {}, 0
    for c, t, mine in zip(devices, tables, blocks):
        me = number(mesh, c, t.axes)
        others = tuple(v for a, v in c.items() if a not in t.axes)
        for p in t.sends:
            assert p.peer != me
            mail.setdefault((others, me, p.peer), []).append(mine[p.operand][p.source])
            sent += mine[p.operand][p.source].nbytes
    results = []
    for c, t, mine in zip(devices, tables, blocks):
        me = number(mesh, c, t.axes)
        others = tuple(v for a, v in c.items() if a not in t.axes)
        out = np.full([b.length for b in target], fill, arrays[0].dtype)
        for p in t.copies:
            out[p.target] = mine[p.operand][p.source]
        for p in t.recvs:
            arriving = mail[others, p.peer, me].pop(0)
            assert arriving.shape == out[p.target].shape
            out[p.target] = arriving
        results.append(out)
    assert not any(mail.values()), "a message that nobody receives"
    return devices, results, sent


def layouts(data, mesh, shape):
    """Blocks per dim over some axes of the mesh that divide it."""
    left = list(data.draw(st.permutations([a for a, _ in mesh])))
    out = []
    for n in shape:
        axes, parts = (), 1
        while left and data.draw(st.booleans()):
            size = dict(mesh)[left[-1]]
            if n % (parts * size):
                break
            parts *= size
            axes += (left.pop(),)
        out.append(Blocks(axes, n // parts, 0, n // parts))
    return tuple(out)


@settings(max_examples=150)
@given(st.data())
def test_any_moves_between_any_layouts(data):
    """Strided, reversed and shifted boxes of two arrays, put at strides: against numpy on the global arrays."""
    mesh = data.draw(st.sampled_from(MESHES))
    ndim = data.draw(st.integers(1, 3))
    sizes = st.sampled_from((1, 3, 4, 6, 8, 12))
    shapes = [tuple(data.draw(sizes) for _ in range(ndim)) for _ in range(2)]
    shape = tuple(data.draw(sizes) for _ in range(ndim))
    arrays = [np.arange(1.0, 1 + np.prod(s)).reshape(s) * (1, -1)[k] for k, s in enumerate(shapes)]
    moves, wanted = [], np.zeros(shape)
    start = 0
    for k in (0, 1):  # the two boxes do not overlap: they have their own part of dim 0
        half = shape[0] // 2 if k == 0 else shape[0] - start
        dims = []
        for d in range(ndim):
            n, m = shapes[k][d], half if d == 0 else shape[d]
            ss, ts = data.draw(st.sampled_from((1, 2, -1, -3))), data.draw(st.sampled_from((1, 2, 3)))
            s = data.draw(st.integers(0, n - 1))
            t = data.draw(st.integers(0, m - 1)) if m else 0
            count = min((n - 1 - s) // ss + 1 if ss > 0 else s // -ss + 1, (m - 1 - t) // ts + 1) if m else 0
            dims.append(Along(s, ss, t + (start if d == 0 else 0), ts, count))
        start += half
        moves.append(Move(k, tuple(dims)))
        grids = [indices(a) for a in dims]
        wanted[np.ix_(*(t for _, t in grids))] = arrays[k][np.ix_(*(s for s, _ in grids))]
    sources = [layouts(data, mesh, s) for s in shapes]
    target = layouts(data, mesh, shape)
    devices, results, _ = simulate(mesh, moves, arrays, sources, target, 0)
    for c, out in zip(devices, results):
        np.testing.assert_array_equal(out, block(wanted, mesh, c, target))


def test_blocks_that_overlap_are_a_halo_exchange():
    mesh = (("x", 4),)
    x = np.arange(1.0, 17.0)
    target = (Blocks(("x",), 4, -1, 6),)  # one element more on either side
    devices, results, sent = simulate(mesh, [Move(0, (boxes.whole(16),))], [x], [(Blocks(("x",), 4, 0, 4),)], target, 0)
    framed = np.pad(x, 1)
    for c, out in zip(devices, results):
        np.testing.assert_array_equal(out, framed[4 * c["x"] : 4 * c["x"] + 6])
    assert sent == 6 * 8


def test_a_roll_sends_only_what_crosses_a_border():
    mesh = (("x", 4), ("y", 2))
    x = np.arange(64.0).reshape(16, 4)
    layout = (Blocks(("x",), 4, 0, 4), Blocks((), 4, 0, 4))
    moves = boxes.moves_of([boxes.rolled(16, 1), boxes.rolled(4, 0)])
    devices, results, sent = simulate(mesh, moves, [x], [layout], layout, 0)
    for c, out in zip(devices, results):
        np.testing.assert_array_equal(out, block(np.roll(x, 1, 0), mesh, c, layout))
    assert sent == 8 * 4 * 8  # each of 8 devices sends one row


def test_replicas_take_from_their_own_copy():
    mesh = (("x", 4), ("y", 2))
    whole = (Blocks((), 8, 0, 8),)
    x = np.arange(8.0)
    devices, results, sent = simulate(
        mesh, [Move(0, (boxes.reversed_(8),))], [x], [whole], (Blocks(("x",), 2, 0, 2),), 0
    )
    assert sent == 0
    for c, out in zip(devices, results):
        np.testing.assert_array_equal(out, x[::-1][2 * c["x"] : 2 * c["x"] + 2])


def test_is_local_knows_whether_anybody_sends():
    mesh = (("x", 4),)
    blocks = (Blocks(("x",), 2, 0, 2),)
    assert boxes.is_local(mesh, [Move(0, (boxes.whole(8),))], [blocks], blocks)
    assert not boxes.is_local(mesh, boxes.moves_of([boxes.rolled(8, 1)]), [blocks], blocks)
    assert not boxes.is_local(mesh, [Move(0, (boxes.sliced(0, 1, 2),))], [blocks], (Blocks((), 2, 0, 2),))
