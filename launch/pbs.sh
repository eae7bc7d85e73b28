#!/bin/bash
# A batch job under PBS: one rank, so one device, for each MPI process of the chunks.
#
#   qsub -l select=2:ncpus=8:mpiprocs=8 -v SCRIPT="examples/digits_pca.py",ARGS="--output pictures" launch/pbs.sh
#
# Options of qsub overrule the lines below. MPIARRAY_PYTHON names the Python that has mpiarray (default: the checkout's
# .venv, made by launch/run); MPIARRAY_LAUNCHER the mpiexec that belongs to its MPI (default: the first in PATH).
#
#PBS -N mpiarray
#PBS -l select=1:ncpus=8:mpiprocs=8
#PBS -l walltime=00:30:00
#PBS -j oe

set -euo pipefail

cd "${PBS_O_WORKDIR:-.}"
if [ -z "${SCRIPT:-}" ]; then
    echo 'usage: qsub -v SCRIPT=FILE[,ARGS="..."] launch/pbs.sh' >&2
    exit 2
fi

# module load openmpi        # the site's MPI; then mpi4py finds its library by itself

python=${MPIARRAY_PYTHON:-.venv/bin/python}
launcher=${MPIARRAY_LAUNCHER:-mpiexec}
ranks=$(wc -l <"$PBS_NODEFILE") # one line for each MPI process
threads=${NCPUS_PER_RANK:-1}
export OMP_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads MKL_NUM_THREADS=$threads
export MPIARRAY_TIMEOUT=${MPIARRAY_TIMEOUT:-600} # a rank that waits longer ends the job and says where it waits

# does the library see all ranks? (size 1 on every rank is the usual sign that it does not)
"$launcher" -n "$ranks" "$python" -m mpiarray doctor

# ARGS is split into words on purpose
exec "$launcher" -n "$ranks" "$python" "$SCRIPT" ${ARGS:-}
