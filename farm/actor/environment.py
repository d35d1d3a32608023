"""Environments: how a child is started on this node, on which Python, with which variables.

The supervisor runs on a Python of its own with Ray in it; the child on the vendor's, with the vendor's torch and
triton.  The two share no site-packages: the child imports the farm and the kernels from bundles
(`farm.shipping.bundle`).
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

#: What a child never inherits: Ray's own settings (a token among them, and one thread), another Python's paths, a
#: switch that only one backend may set.
_STRIP = ("RAY_", "PYTHON", "VIRTUAL_ENV", "__PYVENV", "TRITON_INTERPRET", "OMP_NUM_THREADS")
#: What another Python than the supervisor's does not inherit either: whose environment the supervisor's shell is in.
_STRIP_FROM_OTHERS = ("CONDA_", "PYENV_VERSION", "UV_")
#: Starts the child from its PYTHONPATH, wherever it stands and whatever else its Python has: before 3.11 there is no
#: PYTHONSAFEPATH, and the working directory would come first; so would a farm that a `.pth` file of that Python names.
START = (
    "-c",
    "import os,sys;p=[x for x in os.environ.get('PYTHONPATH','').split(os.pathsep) if x];"
    "sys.path[:]=p+[x for x in sys.path if x and x not in p];"
    "import runpy;runpy.run_module('farm.child',None,'__main__',True)",
)
#: What a template may hold.  The last two stand for several words, and alone.
PLACES = ("python", "path", "spool", "name", "device", "uid", "gid", "child", "env")
_MANY = ("child", "env")
#: What shows a child its one device: the farm's to set, since another value would show it a device that nobody locked.
MASKS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
         "GPU_DEVICE_ORDINAL", "ASCEND_RT_VISIBLE_DEVICES")  # fmt: skip
_PLACE = re.compile(r"\{\{|\}\}|\{([a-z_]+)\}")


@dataclass(frozen=True)
class Environment:
    """A named command that starts a child, with its variables.

    Without `python` and `command` it is the supervisor's own Python.  `python`: another interpreter, which imports the
    farm and the kernels from bundles and everything else from its own site-packages.  `command`: all words, in which

        {python}    the supervisor's interpreter           {path}      the child's PYTHONPATH
        {spool}     the folder of tensors and bundles, to be seen by the child at the same path
        {name}      a name for the container, no two alike  {device}    the device as the vendor's mask names it
        {uid} {gid} of the supervisor
        {child}     alone: the words after an interpreter that start the child
        {env}       alone: --env NAME=VALUE for every variable of the child's own, as docker, apptainer and enroot
                    take them; for those that hand nothing on by themselves

    stand for what is said; `{{` and `}}` are braces.  `wrapped`: the child is not the process that is started, but
    some way behind it (a container's client stands between).  `end`: ends the child where the client's end does not.
    """

    name: str = "default"
    command: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()  # PYTHONPATH entries
    python: str = ""
    wrapped: bool = False
    end: tuple[str, ...] = ()

    @classmethod
    def default(cls) -> Environment:
        """The supervisor's own Python with its import path."""
        return cls(path=tuple(p for p in sys.path if p and Path(p).exists()))

    @classmethod
    def named(cls, name: str) -> Environment:
        """The one of that name on whichever node it is asked for: only its name travels."""
        return cls(name=name)

    @property
    def own(self) -> bool:
        """Whether the child runs on the supervisor's own Python, with its packages."""
        return not self.python and not self.command

    def located(self) -> Environment:
        """With its interpreter's whole path.  ValueError if there is none."""
        if not self.python:
            return self
        place = Path(self.python).expanduser()
        if not place.is_file() or not os.access(place, os.X_OK):
            raise ValueError(f"python is {place}, which is no program here; give the path of the vendor's interpreter")
        return replace(self, python=str(place))

    def words(self) -> tuple[str, ...]:
        """The command as it is configured, places unfilled."""
        return self.command or (self.python or "{python}", "{child}")

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Environment:
        """What `plain` gave, or JSON made of it."""
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
        return cls(**given)

    def plain(self) -> dict[str, Any]:
        """This environment as plain data."""
        return asdict(self)


def check_template(words: Sequence[str]) -> None:
    """ValueError, in words that follow a name, for a place that means nothing or cannot stand where it does."""
    for word in words:
        for place in (m[1] for m in _PLACE.finditer(word) if m[1]):
            if place not in PLACES:
                near = difflib.get_close_matches(place, PLACES, 1)
                hint = f'did you mean "{{{near[0]}}}"?' if near else f"there are {', '.join(PLACES)}"
                raise ValueError(f'holds "{{{place}}}", which stands for nothing; {hint}')
            if place in _MANY and word != f"{{{place}}}":
                raise ValueError(f'holds "{{{place}}}" inside "{word}"; it stands for several words and must be alone')


def filled(words: Sequence[str], values: Mapping[str, str | Sequence[str]]) -> list[str]:
    """A template's words with its places filled; ValueError as in `check_template`."""
    check_template(words)
    out: list[str] = []
    for word in words:
        many = values.get(word[1:-1]) if word[1:-1] in _MANY and word[:1] == "{" else None
        if many is not None:
            out += many
            continue
        out.append(_PLACE.sub(lambda m: str(values[m[1]]) if m[1] else m[0][0], word))
    return out


def given_variables(backend_env: Mapping[str, str], environment: Environment) -> dict[str, str]:
    """What the farm sets for a child: the device's mask, where to import from, then the environment's own, which the
    mask alone outlives."""
    ours = {"PYTHONPATH": os.pathsep.join(environment.path), "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
    wrapped = {"FARM_WRAPPED": "1"} if environment.wrapped else {}
    mask = {k: v for k, v in backend_env.items() if k in MASKS}
    return {**backend_env, **ours, **wrapped, **environment.variables, **mask}


def child_variables(backend_env: Mapping[str, str], environment: Environment) -> dict[str, str]:
    """The child's whole environment: the host's without what must not leak, then what the farm sets for it."""
    strip = _STRIP if environment.own else (*_STRIP, *_STRIP_FROM_OTHERS)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(strip)}
    if not environment.own:
        clean["PATH"] = _path_without_ours(clean.get("PATH", os.defpath), environment.python)
    clean["FARM_PARENT"] = str(os.getpid())
    return {**clean, **given_variables(backend_env, environment)}


def _path_without_ours(path: str, python: str) -> str:
    """PATH without the programs of the supervisor's virtual environment, and with the interpreter's first: what
    activating its environment would do."""
    ours = {str(Path(sys.prefix, "bin"))} if sys.prefix != sys.base_prefix else set()
    kept = [p for p in path.split(os.pathsep) if p and p not in ours]
    first = [str(Path(python).parent)] if python else []
    return os.pathsep.join([*first, *(p for p in kept if p not in first)])
