"""Which revision of the kernels a run measured, as git reports it; the farm's version if there is no git."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from farm import __version__, kernel_package
from farm.kernel_package import ROOT
from farm.process import command

GIT_SECONDS = 10.0


def of(folder: Path = ROOT) -> dict[str, Any]:
    """{"name", "commit", "dirty", "version"}; `name` appears in messages and rows."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD^{commit}") if (folder / ".git").exists() else ""
    commit = commit if re.fullmatch(r"[0-9a-f]{40,64}", commit) else ""  # a repository without a commit has none
    version = (kernel_package.version() if folder == ROOT else "") or __version__
    dirty = bool(commit and _git(folder, "status", "--porcelain", "--", "kernels", "farm"))
    name = f"{commit[:12]}{'+' if dirty else ''}" if commit else version
    return {"name": name, "commit": commit, "dirty": dirty, "version": __version__}


def origin() -> str:
    """The address from which pip installed this farm, as pip takes it; "" for an index, a folder or a file of this
    host."""
    try:
        text = metadata.distribution("kernel-farm").read_text("direct_url.json")
        found = json.loads(text or "{}")
        url, commit = str(found["url"]), (found.get("vcs_info") or {}).get("commit_id")
    except (metadata.PackageNotFoundError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    if not url.startswith("https://"):
        return ""
    return f"{found['vcs_info'].get('vcs', 'git')}+{url}@{commit}" if commit else url


def content(folder: Path | None = None) -> str:
    """The content of the kernels' sources, independent of git: SHA-256 over their names and bytes, shortened; "" if our
    kernel package is not on this host."""
    folder = folder or kernel_package.folder()
    if folder is None:
        return ""
    digest = hashlib.sha256()
    for file in sorted(f for f in folder.rglob("*.py") if kernel_package.is_source(f.relative_to(folder).parts)):
        text = file.read_bytes()
        digest.update(f"{file.relative_to(folder).as_posix()}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()[:16]


def kernels_tree(folder: Path = ROOT) -> str:
    """Git's hash of the folder `kernels` as it is committed; "" without git, and where files in it differ from that."""
    if not (folder / ".git").exists() or _git(folder, "status", "--porcelain", "--", "kernels"):
        return ""
    found = _git(folder, "rev-parse", "--verify", "HEAD:kernels")
    return found if re.fullmatch(r"[0-9a-f]{40,64}", found) else ""


def _git(folder: Path, *words: str) -> str:
    with contextlib.suppress(OSError):
        done = command.run(["git", "-C", str(folder), *words], GIT_SECONDS)
        return done.out.strip() if done.code == 0 else ""
    return ""
