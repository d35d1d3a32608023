"""Which device Ray has granted an actor, as the backend's mask variable would name it.  Pure.

Ray narrows the vendor's mask variable to the actor's device, unless RAY_EXPERIMENTAL_NOSET_... is set.  It recognizes
the vendor only by what its worker process can import: on an AMD node without `amdsmi` it takes GPUs for NVIDIA's, which
the backend corrects (`farm.backends.rocm.granted`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm import backends

MASKS = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES", "ascend": "ASCEND_RT_VISIBLE_DEVICES"}


def entries(mask: str | None) -> list[str]:
    """The entries of a mask variable, in order; [] if it is not set."""
    return [e.strip() for e in (mask or "").split(",") if e.strip()]


def granted(backend: str, environ: Mapping[str, str], ids: Sequence[str], index: str) -> str:
    """The device, for the backend's mask variable.

    environ: the actor's.  ids: the devices that Ray's runtime context reports as granted, one entry; none if Ray does
    not treat the backend's devices as accelerators.  index: the device's index, which is then its only name.
    """
    own: Any = getattr(backends.get(backend), "granted", None)
    if own is not None and ids:
        return str(own(environ, list(ids))) or str(ids[0])
    if not ids:
        return index
    shown = entries(environ.get(MASKS.get(backend, "")))
    if len(shown) == 1:  # Ray has narrowed it to this actor's device, or the node has only one
        return shown[0]
    granted_id = str(ids[0])
    if granted_id in shown or not granted_id.isdecimal() or int(granted_id) >= len(shown):
        return granted_id
    return shown[int(granted_id)]


def without_rocr(environ: Mapping[str, str]) -> dict[str, str | None]:
    """What to change if ROCR_VISIBLE_DEVICES is set (as Slurm does) without HIP_VISIBLE_DEVICES, which Ray rejects on
    an AMD node; None: unset it.

    Both filter: HIP numbers the devices that ROCR leaves from 0.  Indices move to HIP's variable, so that they remain
    those of amd-smi; UUIDs, which only ROCR understands, stay, and HIP shows all devices that they leave.
    """
    shown = entries(environ.get("ROCR_VISIBLE_DEVICES"))
    if not shown or "HIP_VISIBLE_DEVICES" in environ:
        return {}
    if all(e.isdecimal() for e in shown):
        return {"HIP_VISIBLE_DEVICES": ",".join(shown), "ROCR_VISIBLE_DEVICES": None}
    return {"HIP_VISIBLE_DEVICES": ",".join(map(str, range(len(shown))))}
