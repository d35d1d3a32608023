"""`python -m farm.doctor.attempts STEP...`: tries one import after another, and says how each went, a JSON line each.

It runs in the environment that a child of the farm gets.  An import may crash or hang; who reads the lines knows by the
last one which it was.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any


def _torch() -> tuple[str, dict[str, Any]]:
    import torch

    hip, cuda = torch.version.hip, torch.version.cuda
    return torch.__version__, {"built_for": f"ROCm {hip}" if hip else f"CUDA {cuda}" if cuda else "the CPU"}


def _accelerator() -> tuple[str, dict[str, Any]]:
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return "none", {"kind": "", "count": 0}
    return str(accelerator), {
        "kind": "rocm" if torch.version.hip else accelerator.type,
        "count": torch.accelerator.device_count(),
    }


def _kernels() -> tuple[str, dict[str, Any]]:
    from pathlib import Path

    from farm.ops import use_our_kernels

    use_our_kernels()
    return str(Path(str(import_module("kernels.contract").__file__)).resolve().parent), {}


def _provider(name: str) -> tuple[str, dict[str, Any]]:
    module = import_module(f"farm.providers.{name}")
    for op in module.OPS:
        module.load(op)
    return _version(module.DISTRIBUTION) if module.DISTRIBUTION else "", {}


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"{distribution} {version(distribution)}"
    except PackageNotFoundError:
        return ""


def attempt(step: str) -> dict[str, Any]:
    """How one step went: `ended`, `text`, `data`."""
    try:
        if step.startswith("provider "):
            text, data = _provider(step.removeprefix("provider "))
        elif step in ("torch", "accelerator", "kernels"):
            text, data = {"torch": _torch, "accelerator": _accelerator, "kernels": _kernels}[step]()
        else:
            text, data = str(getattr(import_module(step), "__version__", "of unknown version")), {}
    except (ImportError, NotImplementedError) as error:
        return {"ended": "missing", "text": str(error)}
    except Exception as error:
        return {"ended": "failed", "text": f"{type(error).__name__}: {error}"[:300]}
    return {"ended": "ok", "text": text, "data": data}


def main(steps: list[str]) -> None:
    """One line before each step and one after it, on a pipe that no library prints to."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)
    for step in steps:
        for said in ({"ended": "begun"}, attempt(step)) if step else ():
            out.write(json.dumps({"step": step, **said}) + "\n")
            out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # what the libraries do at exit is not our question
