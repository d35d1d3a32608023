"""Files from elsewhere: whatever an archive, a provider, a run, a log or a plan contains, nothing leaves its folder."""

from __future__ import annotations

import hashlib
import io
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm.cli.run import read_plan
from farm.errors import FarmError, InfraError, StoreError, UsageError
from farm.report import provenance
from farm.shipping import bundle, files
from farm.shipping import providers as shipping
from farm.store import Store
from farm.store.run_reader import Run

WRONG = ("", "/etc/passwd", "..", "../x", "a/../../x", "a//b", "./a", "a/.", "a/", "a\0b", "x" * 256, "a/" * 600 + "a")


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def shipped(content: dict[str, bytes]) -> dict[str, Any]:
    return {"sha": shipping.digest(content), "files": content}


def archive(content: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def by_bundle(content: dict[str, bytes], place: Path) -> Path:
    blob = archive(content)
    return bundle.install(hashlib.sha256(blob).hexdigest(), blob, place / "bundles")


def by_provider(content: dict[str, bytes], place: Path) -> Path:
    return Path(shipping.unpack(shipped(content), str(place)))


UNPACKERS = pytest.mark.parametrize("unpack", [by_bundle, by_provider])


@UNPACKERS
def test_no_name_leaves_the_folder(unpack: Callable[[dict[str, bytes], Path], Path], tmp_path: Path) -> None:
    """Files with a wrong name among them are refused as a whole, and nothing is left; without it all are there."""
    chance = random.Random(3)
    place = tmp_path / "in" / "here"
    place.mkdir(parents=True)
    for number in range(60):
        letters = [chance.choice("abc") for _ in range(3)]
        fine = {f"{number}/{'/'.join(letters[:i])}.py": b"x" * i for i in (1, 2, 3)}
        # an archive cannot hold the others
        bad = chance.choice([w for w in WRONG if unpack is by_provider or (w and w[-1] != "/" and "\0" not in w)])
        with pytest.raises(InfraError) as refused:
            unpack({**fine, bad: b"evil"}, place)
        assert refused.value.id in ("shipping-bundle-entry", "shipping-provider-entry"), bad
        assert everything(tmp_path) == {} and not list(tmp_path.rglob("unpack-*"))
    made = unpack(fine, place)
    assert everything(made) == fine and unpack(fine, place) == made


@UNPACKERS
def test_an_unpacker_that_loses_the_race_leaves_nothing(
    unpack: Callable[[dict[str, bytes], Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def lost(self: Path, target: Path) -> Path:
        if self.name.startswith("unpack-") and not target.exists():
            target.mkdir()
            (target / "first").write_text("")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", lost)
    made = unpack({"a.py": b"x"}, tmp_path)
    assert everything(made) == {"first": b""}
    assert [p.name for p in made.parent.iterdir()] == [made.name]


def test_what_is_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 100)
    monkeypatch.setattr(files, "MOST_FILES", 3)
    for content in ({"a": b"x" * 101}, {"a": b"x" * 60, "b": b"x" * 60}, dict.fromkeys("abcd", b"")):
        for unpack in (by_bundle, by_provider):
            with pytest.raises(InfraError):
                unpack(content, tmp_path)
    assert everything(tmp_path) == {}


def test_a_provider_that_is_not_its_hash_is_refused(tmp_path: Path) -> None:
    for sha in ("0" * 16, "../../escaped", shipping.digest({"a.py": b"y"})):
        with pytest.raises(InfraError) as refused:
            shipping.unpack({"sha": sha, "files": {"a.py": b"x"}}, str(tmp_path))
        assert refused.value.id == "shipping-provider-hash"
    assert everything(tmp_path) == {}


# a run that came from elsewhere


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "home" / "id_rsa"
    file.parent.mkdir()
    file.write_text("s3cret")
    return file


@pytest.fixture
def source(tmp_path: Path) -> Run:
    folder = tmp_path / "elsewhere" / "runs" / "r1"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "a.txt").write_text("fine")
    return Run(folder)


def link(source: Run, secret: Path) -> None:
    (source.dir / "logs" / "x.txt").symlink_to(secret)


def hard_to_see(source: Run, secret: Path) -> None:
    (source.dir / "logs" / "deep").mkdir()
    (source.dir / "logs" / "deep" / "x.txt").symlink_to(secret)


def linked_folder(source: Run, secret: Path) -> None:
    (source.dir / "logs" / "a.txt").unlink()
    (source.dir / "logs").rmdir()
    (source.dir / "logs").symlink_to(secret.parent)


def linked_plan(source: Run, secret: Path) -> None:
    (source.dir / "plan.json").symlink_to(secret)


def pipe(source: Run, secret: Path) -> None:
    os.mkfifo(source.dir / "logs" / "x.txt")


@pytest.mark.parametrize("plant", [link, hard_to_see, linked_folder, linked_plan, pipe])
def test_judging_a_run_copies_nothing_from_outside_of_it(
    plant: Callable[[Run, Path], None], source: Run, secret: Path, tmp_path: Path
) -> None:
    plant(source, secret)
    writer = Store(tmp_path / "store").create("r2")
    try:
        with pytest.raises(StoreError) as refused:
            writer.take_logs(source)
        assert refused.value.id == "store-logs-not-copied"
    finally:
        writer.close()
    assert b"s3cret" not in b"".join(everything(writer.dir).values())


def test_the_logs_of_a_sound_run_are_copied(source: Run, tmp_path: Path) -> None:
    (source.dir / "plan.json").write_text("{}")
    (source.dir / "logs" / "long.txt").write_text("x" * 2_000_000 + "end")
    writer = Store(tmp_path / "store").create("r2")
    writer.take_logs(source)
    writer.close()
    assert (writer.dir / "plan.json").read_text() == "{}"
    assert (writer.dir / "logs" / "a.txt").read_text() == "fine"
    long = (writer.dir / "logs" / "long.txt").read_text()
    assert long.endswith("end") and len(long) < 300_000  # no log of a run is longer


@pytest.mark.parametrize("plant", [link, linked_folder])
def test_no_log_of_a_page_or_a_merge_is_from_outside_of_its_run(
    plant: Callable[[Run, Path], None], source: Run, secret: Path, tmp_path: Path
) -> None:
    plant(source, secret)
    run: Any = SimpleNamespace(dir=source.dir, id="r1")
    writer = Store(tmp_path / "store").create("r2")
    try:
        for name in ("logs/x.txt", "logs/id_rsa", "logs/../../../../home/id_rsa", f"logs/{secret}"):
            assert provenance.log_path(run, name) is None
            assert "s3cret" not in provenance.log_tail(run, name)
            with pytest.raises(StoreError):
                writer.take_log(source, name, "1")
    finally:
        writer.close()


@pytest.mark.parametrize("name", ["..", "a/b", "../x", ".hidden", "", "a\0b", "x" * 101])
def test_a_store_makes_no_run_of_a_name_that_leaves_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(FarmError):
        Store(tmp_path / "store").create(name)
    assert not (tmp_path / "store").exists()


def test_a_plan_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.cli.run.MOST_PLAN_BYTES", 1 << 20)
    with pytest.raises(UsageError) as refused:
        read_plan(Path("/dev/zero"), "--plan")
    assert refused.value.id == "plan-unreadable"
