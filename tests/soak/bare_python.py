"""A Python that can import NumPy, torch, Triton and what these need, and nothing else that is installed here."""

from __future__ import annotations

import importlib.metadata as metadata
import importlib.util
import re
import subprocess
import venv
from pathlib import Path

ROOTS = ("numpy", "torch", "triton")
#: A vendor's torch may need any of these; none is a part of the farm's needs.
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def bare_python(folder: Path) -> Path:
    """The interpreter of a virtual environment whose site-packages are links to those packages alone."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for name in sorted(_needed()):
        for file in metadata.distribution(name).files or ():
            top = file.parts[0]
            source = Path(str(metadata.distribution(name).locate_file(top)))
            if top not in ("..", "__pycache__") and source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)
    python = folder / "bin" / "python"
    for absent in ("yaml", "pyarrow", "psutil", "ray", "rich", "pytest", "packaging"):
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({absent!r}) is None)"
        assert subprocess.run([python, "-c", code], check=False).returncode == 1, f"{absent} can be imported"
    return python


def _needed() -> set[str]:
    """The distributions of ROOTS and what they need, as far as it is installed."""
    found: set[str] = set()
    left = [name for name in ROOTS if importlib.util.find_spec(name)]
    while left:
        name = left.pop()
        try:
            its = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            left += [m[0] for need in its.requires or () if "extra ==" not in need and (m := _NAME.match(need))]
    return found
