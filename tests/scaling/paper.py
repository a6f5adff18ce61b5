"""The paper's printed inputs and the unrounded targets recomputed from them."""

import numpy as np

from lerope.scaling.compute import ladder_compute

RUNGS = ("52M", "217M", "608M", "1.34B", "2.52B")
COMPUTE = np.array([ladder_compute(rung) for rung in RUNGS])
LOSS = {
    "rope": np.log([30.2450, 18.2377, 13.8795, 11.5747, 10.1720]),
    "prope": np.log([30.2695, 18.2269, 13.8663, 11.5665, 10.1659]),
    "lerope": np.log([29.9479, 18.1335, 13.8093, 11.5384, 10.1387]),
}
