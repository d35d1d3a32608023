"""Which device Ray has granted an actor, as the backend's mask variable would name it.  Pure.

Ray narrows the vendor's mask variable to the actor's device, unless told not to (RAY_EXPERIMENTAL_NOSET_...).  It
knows the vendor only by what its own worker process can import: on an AMD node without `amdsmi` it takes GPU for
NVIDIA's, which the backend itself sees through (`farm.backends.rocm.granted`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm import backends

MASKS = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "rocm": "HIP_VISIBLE_DEVICES",
    "ascend": "ASCEND_RT_VISIBLE_DEVICES",
}


def entries(mask: str | None) -> list[str]:
    """What a mask variable shows, in its order; [] where it is not set."""
    return [e.strip() for e in (mask or "").split(",") if e.strip()]


def granted(backend: str, environ: Mapping[str, str], ids: Sequence[str], index: str) -> str:
    """The device, for the backend's mask variable.

    environ: the actor's.  ids: what Ray's runtime context says that it granted, one entry, none where the backend's
    devices are no accelerators of Ray's.  index: of the slot, then the only name there is.
    """
    own: Any = getattr(backends.get(backend), "granted", None)
    if own is not None and ids:
        return str(own(environ, list(ids))) or str(ids[0])
    if not ids:
        return index
    shown = entries(environ.get(MASKS.get(backend, "")))
    if len(shown) == 1:  # Ray has narrowed it to this actor's, or the node has no other
        return shown[0]
    granted_id = str(ids[0])
    if granted_id in shown or not granted_id.isdecimal() or int(granted_id) >= len(shown):
        return granted_id
    return shown[int(granted_id)]


def without_rocr(environ: Mapping[str, str]) -> dict[str, str | None]:
    """What to change where ROCR_VISIBLE_DEVICES is set (as Slurm does) and HIP_VISIBLE_DEVICES is not, which Ray
    refuses on an AMD node; None: unset it.

    Both filter: HIP numbers what ROCR has left from 0.  Indices move to HIP's variable, so that they stay those that
    amd-smi uses; UUIDs, which only ROCR understands, stay where they are, and HIP shows all that they leave.
    """
    shown = entries(environ.get("ROCR_VISIBLE_DEVICES"))
    if not shown or "HIP_VISIBLE_DEVICES" in environ:
        return {}
    if all(e.isdecimal() for e in shown):
        return {"HIP_VISIBLE_DEVICES": ",".join(shown), "ROCR_VISIBLE_DEVICES": None}
    return {"HIP_VISIBLE_DEVICES": ",".join(map(str, range(len(shown))))}
