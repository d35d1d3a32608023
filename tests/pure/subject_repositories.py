"""A small repository with a farm.yaml, for the tests of subjects."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SUBJECT = """farm: 1
subject: mylib
overlay: {path: src, modules: [mylib]}
providers:
  liger:
    ops:
      rms_norm: {call: "my_adapters:rms_norm"}
matrices: [bench/norm.yaml]
"""
FILES = {
    "farm.yaml": SUBJECT,
    "src/mylib/__init__.py": "import what_is_not_there\n",
    "src/mylib/ops/__init__.py": "",
    "src/mylib/ops/norm.py": (
        "from mylib.ops import shared\n\ndef norm(x, w, eps):\n    return shared.scaled(x, w, eps)\n"
    ),
    "src/mylib/ops/shared.py": (
        "import torch\n\ndef scaled(x, w, eps):\n    y = x.float()\n"
        "    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)\n"
        "    return (y if w is None else y * w.float()).to(x.dtype)\n"
    ),
    "my_adapters.py": (
        "import beside\nfrom farm.subject import bare\n\n"
        "def rms_norm(x, weight, eps):\n    return beside.through(bare('mylib.ops.norm').norm, x, weight, eps)\n\n"
        "def with_modes(x, weight, eps, mode='auto'):\n    return rms_norm(x, weight, eps)\n\n"
        "def modes():\n    return ['auto', 'fast']\n\ndef no_modes():\n    raise RuntimeError('no compiler')\n\n"
        "def saving(x, weight, eps):\n    return rms_norm(x, weight, eps), eps\n\n"
        "def backward(upstream, inputs, outputs, eps):\n    import torch\n    assert outputs[1] == eps\n"
        "    with torch.enable_grad():\n        own = [t.detach().requires_grad_() for t in inputs]\n"
        "        y = rms_norm(*own, eps)\n    return torch.autograd.grad(y, own, upstream)\n"
    ),
    "beside.py": "def through(function, *rest):\n    return function(*rest)\n",
    "not_asked_for.py": "SECRET = 1\n",
    "bench/norm.yaml": (
        "name: norm\nop: rms_norm\naxes:\n  shape: [{rows: 3, hidden: 64}]\n  operation: [forward, backward]\n"
        "providers: {liger: {}, torch: {}}\n"
    ),
    "bench/contracts/own_op/contract.py": "",
}


def write(folder: Path, **changed: str) -> Path:
    """The repository's files; `changed` names them with `__` for `/` and `_dot_` for `.`, or is `farm_yaml`."""
    texts = dict(FILES)
    for name, text in changed.items():
        texts[{"farm_yaml": "farm.yaml"}.get(name, name.replace("__", "/").replace("_dot_", "."))] = text
    for name, text in texts.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return folder


def git(folder: Path, *words: str) -> str:
    """What git prints there."""
    who = {f"GIT_{r}_{k}": "t@t" for r in ("AUTHOR", "COMMITTER") for k in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, **who},
    )
    return done.stdout.strip()


def committed(folder: Path) -> Path:
    """The folder as a git repository with one commit, on a branch named base."""
    git(folder, "init", "-q", "-b", "base")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder
