"""First-order ops, one family a file, each op whole in one place (`core.op.define`)."""

from mpiarray.ops.segments import segment_max, segment_min, segment_prod, segment_sum

__all__ = ["segment_max", "segment_min", "segment_prod", "segment_sum"]
