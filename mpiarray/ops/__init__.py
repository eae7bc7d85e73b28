"""First-order ops, one family a file, each op whole in one place (`core.op.define`)."""
