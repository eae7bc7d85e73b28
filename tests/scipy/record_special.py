"""Records values of special functions and distributions from JAX.

    python record_special.py > recorded_special.json

Run with a Python that has JAX 0.10.  The calls are in special_calls.py, which the test reads too.
"""

import json
import math
import operator
import sys
from pathlib import Path

import jax.scipy.special
import jax.scipy.stats
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from special_calls import CALLS, DISTRIBUTIONS

rows = {}
calls = {k: (jax.scipy.special, *v) for k, v in CALLS.items()}
calls |= {k: (jax.scipy.stats, *v, {}) for k, v in DISTRIBUTIONS.items()}
for key, (module, name, args, kwargs) in calls.items():
    out = np.asarray(operator.attrgetter(name)(module)(*args, **kwargs))
    rows[key] = [list(out.shape), [float(v) if math.isfinite(v) else str(v) for v in out.ravel()]]
json.dump(rows, sys.stdout, indent=0)
