"""numpy's functions on sharded arrays."""
