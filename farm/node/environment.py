"""Environments: how a child is started on this node, on which Python, with which variables.

The supervisor runs on its own Python, with Ray; the child on the vendor's, with the vendor's torch and triton.  They do
not share site-packages: the child imports the farm and the kernels from bundles (`farm.shipping.bundle`).
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

from farm.process.own_modules import module_words

#: The host's variables that a child inherits: names, and prefixes with `*`.  All others stay behind, because nobody
#: knows which of them is a secret; an environment's `pass` adds to them.
INHERITED = (
    # a user's session, and where its programs, libraries, compilers and temporary files are
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TMP", "TEMP"),
    *("LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CC", "CXX"),
    # settings of frameworks and of their threads, and where they keep their caches
    *("TRITON_*", "TORCH_*", "TORCHINDUCTOR_*", "PYTORCH_*", "LIGER_*", "QUACK_*", "OMP_*", "GOMP_*", "KMP_*", "MKL_*"),
    *("OPENBLAS_*", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"),
    # the vendors
    *("CUDA_*", "CUDNN_*", "CUBLAS_*", "NVIDIA_*", "NCCL_*"),
    *("HIP_*", "HSA_*", "ROCM_*", "ROCR_*", "ROCBLAS_*", "HIPBLASLT_*", "MIOPEN_*", "AMD_*", "GPU_*", "AITER_*"),
    *("ASCEND_*", "CANN_*", "NPU_*", "ACL_*", "HCCL_*", "TOOLCHAIN_HOME"),
    "FARM_*",
)
#: Also inherited by the supervisor's own Python, which may be in that environment.
_INHERITED_BY_OWN = ("CONDA_PREFIX", "CONDA_DEFAULT_ENV")
#: Never inherited, whatever `pass` says: Ray's settings (including its token and its single thread), another Python's
#: paths, and a switch that only one backend may set.
NEVER = ("RAY_", "PYTHON", "VIRTUAL_ENV", "__PYVENV", "TRITON_INTERPRET", "OMP_NUM_THREADS")
#: A name that a prefix in INHERITED does not cover: NVIDIA_API_KEY is no setting of a driver.
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|APIKEY|(^|_)(AUTH|KEY|PAT|PWD)(_|$)", re.I)
#: Starts the child, after the words that name its Python.
START = module_words("farm.child")[1:]
#: Placeholders of a template.  The last two stand for several words and must be alone.
PLACES = ("python", "path", "spool", "name", "device", "uid", "gid", "child", "env")
_MANY = ("child", "env")
#: Variables that show a child its one device.  Only the farm sets them: any other value would show an unlocked device.
MASKS = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ASCEND_RT_VISIBLE_DEVICES",
)
_PLACE = re.compile(r"\{\{|\}\}|\{([a-z_]+)\}")


@dataclass(frozen=True)
class Environment:
    """A named command that starts a child, with its variables.

    Without `python` and `command` it is the supervisor's own Python.  `python`: another interpreter, which imports the
    farm and the kernels from bundles and everything else from its own site-packages.  `command`: all words, in which

        {python}    the supervisor's interpreter           {path}      the child's PYTHONPATH
        {spool}     the folder of tensors and bundles, at the same path for the child
        {name}      a unique name for the container      {device}    the device as the vendor's mask names it
        {uid} {gid} of the supervisor
        {child}     alone: the words after an interpreter that start the child
        {env}       alone: --env NAME=VALUE for each of the child's own variables, as docker, apptainer and enroot
                    accept them; for programs that do not pass the environment on

    are replaced; `{{` and `}}` are braces.  `wrapped`: the child is not the process that is started but runs behind it
    (for example behind a container's client).  `end`: the command that ends the child if the client's end does not.
    `passed`: which of the host's variables the child gets beside INHERITED: names, and prefixes with `*`.
    `tool`: what the child runs under (`farm.actor.tools`), which writes into the folder `tool_out` on its host, else
    into the run's.
    `sandbox`: None where the child runs in none, else its limits (`farm.node.sandbox.KEYS`; those that are missing have
    their defaults).
    """

    name: str = "default"
    command: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()  # PYTHONPATH entries
    python: str = ""
    wrapped: bool = False
    end: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    tool: str = ""
    tool_out: str = ""
    sandbox: Mapping[str, float] | None = None

    @classmethod
    def default(cls) -> Environment:
        """The supervisor's own Python with its import path."""
        return cls(path=tuple(p for p in sys.path if p and Path(p).exists()))

    @classmethod
    def named(cls, name: str) -> Environment:
        """The environment of that name on any node: only its name is sent."""
        return cls(name=name)

    @property
    def own(self) -> bool:
        """Whether the child runs on the supervisor's own Python, with its packages."""
        return not self.python and not self.command

    def located(self) -> Environment:
        """With the full path of its interpreter.  Raises ValueError if there is none."""
        if not self.python:
            return self
        place = Path(self.python).expanduser()
        if not place.is_file() or not os.access(place, os.X_OK):
            raise ValueError(
                f"python is {place}, which is not an executable file; write the path of the vendor's interpreter"
            )
        return replace(self, python=str(place))

    def words(self) -> tuple[str, ...]:
        """The command as it is configured, with its placeholders."""
        return self.command or (self.python or "{python}", "{child}")

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Environment:
        """What `plain` gave, or JSON made of it."""
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
        return cls(**given)

    def plain(self) -> dict[str, Any]:
        """This environment as plain data; without what is not used and nodes with an older farm do not know.  Such a
        node refuses a sandbox, which it cannot make."""
        unused = {name for name in ("passed", "tool", "tool_out") if not getattr(self, name)}
        unused |= {"sandbox"} if self.sandbox is None else set()
        return {k: v for k, v in asdict(self).items() if k not in unused}


def check_template(words: Sequence[str]) -> None:
    """Raise ValueError for an unknown or misplaced placeholder; the text continues the template's name."""
    for word in words:
        for place in (m[1] for m in _PLACE.finditer(word) if m[1]):
            if place not in PLACES:
                near = difflib.get_close_matches(place, PLACES, 1)
                hint = f'did you mean "{{{near[0]}}}"?' if near else f"available: {', '.join(PLACES)}"
                raise ValueError(f'contains the unknown placeholder "{{{place}}}"; {hint}')
            if place in _MANY and word != f"{{{place}}}":
                text = f'contains "{{{place}}}" inside "{word}"; write it as a word of its own'
                raise ValueError(text)


def filled(words: Sequence[str], values: Mapping[str, str | Sequence[str]]) -> list[str]:
    """A template's words with its placeholders replaced.  Raises ValueError as `check_template` does."""
    check_template(words)
    out: list[str] = []
    for word in words:
        many = values.get(word[1:-1]) if word[1:-1] in _MANY and word[:1] == "{" else None
        if many is not None:
            out += many
            continue
        out.append(_PLACE.sub(lambda m: str(values[m[1]]) if m[1] else m[0][0], word))
    return out


def inherits(name: str, environment: Environment) -> bool:
    """Whether a child in `environment` gets the host's variable of this name."""
    if name.startswith(NEVER):
        return False
    if _named(name, environment.passed):
        return True
    if environment.own and name in _INHERITED_BY_OWN:
        return True
    return _named(name, INHERITED) and not _SECRET.search(name)


def _named(name: str, patterns: Sequence[str]) -> bool:
    return any(name.startswith(p[:-1]) if p.endswith("*") else name == p for p in patterns)


def dropped(environment: Environment) -> tuple[str, ...]:
    """The names of this process's variables that a child in `environment` does not get."""
    return tuple(sorted(name for name in os.environ if not inherits(name, environment)))


def given_variables(backend_env: Mapping[str, str], environment: Environment) -> dict[str, str]:
    """The variables that a child gets in a container too: the host's that the environment passes, and those that the
    farm sets: the import path, the environment's own variables, and the device's mask, which always wins."""
    passed = {k: v for k, v in os.environ.items() if _named(k, environment.passed) and inherits(k, environment)}
    ours = {"PYTHONPATH": os.pathsep.join(environment.path), "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
    wrapped = {"FARM_WRAPPED": "1"} if environment.wrapped or environment.tool else {}
    if environment.tool:  # which writes what it has seen when the process ends in order
        wrapped["FARM_UNDER_TOOL"] = "1"
    mask = {k: v for k, v in backend_env.items() if k in MASKS}
    return {**passed, **backend_env, **ours, **wrapped, **environment.variables, **mask}


def child_variables(backend_env: Mapping[str, str], environment: Environment) -> dict[str, str]:
    """All variables of the child: those of the host that it inherits, then those that the farm sets."""
    inherited = {k: v for k, v in os.environ.items() if inherits(k, environment)}
    if not environment.own:
        inherited["PATH"] = _path_without_ours(inherited.get("PATH", os.defpath), environment.python)
    inherited["FARM_PARENT"] = str(os.getpid())
    return {**inherited, **given_variables(backend_env, environment)}


def _path_without_ours(path: str, python: str) -> str:
    """PATH without the supervisor's virtual environment and with the interpreter's folder first, as activating the
    child's environment would set it."""
    ours = {str(Path(sys.prefix, "bin"))} if sys.prefix != sys.base_prefix else set()
    kept = [p for p in path.split(os.pathsep) if p and p not in ours]
    first = [str(Path(python).parent)] if python else []
    return os.pathsep.join([*first, *(p for p in kept if p not in first)])
