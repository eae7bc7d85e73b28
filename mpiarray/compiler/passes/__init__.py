"""The compiler's passes, one a file."""
