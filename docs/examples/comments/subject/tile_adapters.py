"""From the farm's call of rms_norm to TileGym's."""

import cuda.tile  # noqa: F401
from tilegym.ops.cutile.rms_norm import rms_norm as call


def rms_norm(x, weight, eps):
    return call(x, (x.shape[-1],), weight, eps)
