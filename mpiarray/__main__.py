"""`python -m mpiarray COMMAND`: the tools for people, `run`, `doctor` and what else `mpiarray.tools` has."""

import sys

from mpiarray.tools import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
