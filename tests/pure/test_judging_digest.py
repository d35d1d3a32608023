"""The digest of what judges: the same on every node, changed by every source that decides a verdict and by no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from farm.contracts.digest import ROOT, closure, modules_in
from farm.judge.digest import PACKAGES, judging_digest
from farm.shipping import bundle

#: What decides a verdict, and what does not.
JUDGING = ("accuracy/metrics.py", "cell.py", "child/findings.py", "contracts/ops/rms.py", "errors.py", "judge/cache.py")
BESIDE = (
    "cli/run.py",
    "providers/torch.py",
    "child/session.py",
    "matrix/plan.py",
    "store/run_writer.py",
    "dashboards/pages.py",
)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a judge on a node imports."""
    packed = bundle.pack("farm")
    return bundle.install(packed.sha, packed.blob, tmp_path_factory.mktemp("bundles"))


def test_the_farm_that_is_shipped_has_all_that_judges(shipped: Path) -> None:
    assert judging_digest(shipped) == judging_digest()
    modules = [m for package in PACKAGES for m in modules_in(package)]
    here, there = closure(modules), closure(modules, shipped)
    assert [f.relative_to(ROOT) for f in here.values()] == [f.relative_to(shipped) for f in there.values()]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "farm", folder / "farm", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize("name", [*JUDGING, "contracts/ops/rms_norm/new.py", *BESIDE])
def test_the_judging_digest_is_of_what_judges(name: str, checkout: Path) -> None:
    file = checkout / "farm" / name
    text = file.read_bytes() if file.exists() else None
    file.write_bytes((text or b"") + b"# changed\n")
    assert (judging_digest.__wrapped__(checkout) == judging_digest()) == (name in BESIDE)
    file.unlink() if text is None else file.write_bytes(text)
