"""Which revision of the kernels a run measured, as git says it; a plain version where there is no git."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path
from typing import Any

from farm import __version__
from farm.ops import ROOT


def of(folder: Path = ROOT) -> dict[str, Any]:
    """{"name", "commit", "dirty", "version"}; `name` is what messages and rows carry."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD^{commit}") if (folder / ".git").exists() else ""
    commit = commit if re.fullmatch(r"[0-9a-f]{40,64}", commit) else ""  # a repository without a commit has none
    dirty = bool(commit and _git(folder, "status", "--porcelain", "--", "kernels", "farm"))
    name = f"{commit[:12]}{'+' if dirty else ''}" if commit else __version__
    return {"name": name, "commit": commit, "dirty": dirty, "version": __version__}


def content(folder: Path = ROOT / "kernels") -> str:
    """What the kernels' sources are, whatever git says of them: SHA-256 over their names and bytes, shortened."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        text = file.read_bytes()
        digest.update(f"{file.relative_to(folder).as_posix()}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()[:16]


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
