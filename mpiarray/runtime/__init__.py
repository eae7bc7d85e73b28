"""Arrays of real blocks: evaluation of ops, placement, reading, printing."""
