"""A kit, its run by a scripted cluster, its result, and every way in which a result is no result of that kit."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import tarfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_cluster import ScriptedCluster, slot

from farm.backends import HostDevice
from farm.cli import kit_run, kit_site, main
from farm.cluster.base import DeviceHandle
from farm.errors import FarmError, UsageError
from farm.shipping import archives, files
from farm.sites import kit as kits
from farm.sites import kit_result, scrubbing
from farm.store import Run, Store
from farm.store import journal as journals
from farm.store.kit_runs import kept_kit

MATRIX = {
    "name": "m",
    "op": "rms_norm",
    "axes": {"shape": [{"rows": 2, "hidden": [64, 65, 66]}], "dtype": "float32"},
    "providers": ["farm", "torch"],
    "exclude": [{"provider": "torch", "hidden": 66, "reason": "even"}],
}
SITE = Namespace(out=None, limit_minutes=None, devices=1, by="Alice", site="Site A", anonymous=False, again=False)


class Devices(ScriptedCluster):
    """The one device of the site."""

    def slots(self, wanted: list[str]) -> list[DeviceHandle]:
        return [slot("cuda:0")]


class Slow(Devices):
    """It answers the first cell of each lease, and no other."""

    def grant(self, device: str, lease: dict[str, Any]) -> None:
        super().grant(device, {**lease, "attempts": lease["attempts"][:1]})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a kit's archive `kit.tar.gz`, the store that knows it, and the unpacked kit `there`."""
    folder = tmp_path_factory.mktemp("kit")
    (folder / "m.yaml").write_text(json.dumps(MATRIX))
    here = Path.cwd()
    os.chdir(folder)
    try:
        words = ["kit", "m.yaml", "--target", "cuda", "--store", "store", "--subject", "none"]
        assert main([*words, "--out", "kit.tar.gz"]) == 0 == main([*words, "--out", "again.tar.gz"])
    finally:
        os.chdir(here)
    files.write_all(archives.unpack((folder / "kit.tar.gz").read_bytes()).items(), folder / "there")
    return folder


def at_site(made: Path, monkeypatch: pytest.MonkeyPatch, cluster: ScriptedCluster | None = None, **how: Any) -> Any:
    """What `run.py` finds where one GPU is."""
    monkeypatch.setattr(kit_site, "InlineCluster", lambda *_: cluster or Devices())
    monkeypatch.setattr(kit_site, "_packages", lambda backend: {"torch": "2.9"})
    monkeypatch.setattr(kit_site, "local_devices", lambda *_: [HostDevice("0", "H200")])
    for name in ("FARM_HOST_NAME", "FARM_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return kit_site._Site(made / "there", Namespace(**{**vars(SITE), **how}), ["--by", "Alice"])


@pytest.fixture(scope="module")
def result(made: Path) -> bytes:
    """The archive of a complete result."""
    with pytest.MonkeyPatch.context() as patch:
        site = at_site(made, patch, out=str(made / "done"))
        assert kit_site._run(site) == 0
        (archive,) = (made / "done").glob("result-*.tar.gz")
        return archive.read_bytes()


def merged(made: Path, tmp_path: Path, blob: bytes, *words: str, store: str = "") -> tuple[int, Store]:
    (tmp_path / "result.tar.gz").write_bytes(blob)
    store = store or str(made / "store")
    code = main(
        ["merge", str(tmp_path / "result.tar.gz"), "--run-id", tmp_path.name, "--no-page", "--out", store, *words]
    )
    return code, Store(store)


def test_the_same_sources_give_the_same_bytes(made: Path) -> None:
    assert (made / "kit.tar.gz").read_bytes() == (made / "again.tar.gz").read_bytes()


def test_a_kit_is_what_its_manifest_says_and_holds_no_architecture(made: Path) -> None:
    kit = kit_result.kit_of(made / "kit.tar.gz", "--kit")
    assert kit.target == "cuda" and kits.compiled(archives.unpack((made / "kit.tar.gz").read_bytes())) == ""
    assert kept_kit(Store(made / "store"), kit.digest) == (made / "there/kit.json").read_text()
    text = (made / "there/README.txt").read_text()
    assert "5 cells" in text and "kit-cuda-*" in text and max(map(len, text.splitlines())) <= 90
    assert len(text.splitlines()) < 70, "one page"


def test_a_result_comes_back_as_executed_by_whom_on_what(
    made: Path, result: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, store = merged(made, tmp_path, result)
    assert code == 0
    run = store.run(tmp_path.name)
    assert run.head["counts"] == {"passed": 5, "skipped": 1} and len(run.rows) == 6
    (told,) = run.head["merged"]
    assert (told["kit"]["by"], told["kit"]["site"], told["complete"]) == ("Alice", "Site A", True)
    said = capsys.readouterr().err
    assert "kit simulated by Alice at Site A, on cuda:0; python 3" in said and ", torch 2.9\n" in said


def test_another_store_needs_the_kit(made: Path, result: bytes, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    assert merged(made, tmp_path, result, store=other)[0] == 2
    assert merged(made, tmp_path, result, "--kit", str(made / "kit.tar.gz"), store=other)[0] == 0


def test_what_is_out_of_time_or_killed_continues(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Slow()
    slow.pace = 0.05
    out = str(tmp_path / "out")
    site = at_site(made, monkeypatch, slow, out=out, limit_minutes=0.1 / 60)
    assert kit_site._run(site) == 3
    said = capsys.readouterr().out
    assert "cells did not run; start run.py again" in said and "[kit-not-done]" in said
    (archive,) = Path(out).glob("result-*.tar.gz")
    code, store = merged(made, tmp_path, archive.read_bytes())
    head = store.run(tmp_path.name).head
    assert code == 3 and head["counts"]["lost"] and "start run.py of its kit again" in head["warnings"][0]
    site = at_site(made, monkeypatch, out=out)
    assert site.earlier and not site.complete and kit_site._run(site) == 0
    assert list(Path(out).glob("result-*.tar.gz")) == [archive], "the file of the same run"
    site = at_site(made, monkeypatch, out=out)
    assert site.complete and site.tell_complete() == 0
    assert at_site(made, monkeypatch, out=out, again=True).earlier == ""


def test_an_anonymous_result_names_neither_host_nor_folder(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node-17")
    said = {"fingerprint": {"uuid": "GPU-123", "driver": f"580 of node-17 in {made}/there"}, "name": "H200 GPU-123"}
    cluster = Devices({"cuda:0": said})
    site = at_site(made, monkeypatch, cluster, out=str(tmp_path / "out"), anonymous=True, by=None)
    assert kit_site._run(site) == 0
    (archive,) = (tmp_path / "out").glob("result-*.tar.gz")
    text = b"".join(archives.unpack(archive.read_bytes()).values()).decode()
    assert not [word for word in ("node-17", str(made), "GPU-123") if word in text]
    monkeypatch.undo()
    code, store = merged(made, tmp_path, archive.read_bytes())
    head = store.run(tmp_path.name).head
    assert code == 0 and head["merged"][0]["kit"]["node"] == "host"
    assert head["backends"]["cuda"]["devices"][0]["name"] == "H200 serial-1"


# what is no result of the kit

Content = dict[str, bytes]


def _journal(change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Callable[[Content], None]:
    def changed(content: Content) -> None:
        lines = [journals.decoded(raw)[0] for raw in content["run/journal.jsonl"].splitlines()]
        kept = [new for line in lines if line and (new := change(line)) is not None]
        content["run/journal.jsonl"] = "".join(map(journals.encoded, kept)).encode()

    return changed


def _both(change: Callable[[dict[str, Any]], None]) -> Callable[[Content], None]:
    """A change of the head, in the journal and in run.json."""

    def changed(content: Content) -> None:
        def of_head(line: dict[str, Any]) -> dict[str, Any]:
            if line["event"] == "run":
                change(line)
            return line

        _journal(of_head)(content)
        _run_json(change)(content)

    return changed


def _run_json(change: Callable[[dict[str, Any]], None]) -> Callable[[Content], None]:
    def changed(content: Content) -> None:
        head = json.loads(content["run/run.json"])
        change(head)
        content["run/run.json"] = json.dumps(head).encode()

    return changed


def _row(**values: Any) -> Callable[[Content], None]:
    def change(line: dict[str, Any]) -> dict[str, Any]:
        if line["event"] == "result" and line["row"]["index"] == 0:
            line["row"] |= values
        return line

    return _journal(change)


def _more(**line: Any) -> Callable[[Content], None]:
    def changed(content: Content) -> None:
        content["run/journal.jsonl"] += journals.encoded(line).encode()

    return changed


def _copy_of_a_cell(line: dict[str, Any]) -> dict[str, Any]:
    if line["event"] == "cell" and line["cell"]["index"] == 0:
        line["cell"]["dims"] = {"rows": 2, "hidden": 63}
    return line


def _ids(content: Content) -> list[str]:
    """The cells of the first pair."""
    lines = [journals.decoded(raw)[0] or {} for raw in content["run/journal.jsonl"].splitlines()]
    cells = [line["cell"]["cell_id"] for line in lines if line.get("event") == "cell"]
    return [cells[0], cells[len(cells) // 2]]


def _damage(content: Content) -> None:
    content["run/journal.jsonl"] = content["run/journal.jsonl"].replace(b'"passed"', b'"crashed"', 1)


PLANTS: dict[str, tuple[Callable[[Content], Any], str]] = {
    "another plan": (lambda c: c.update({"run/plan.json": c["run/plan.json"] + b" "}), "kit-plan"),
    "contracts of its own": (lambda c: c.update({"run/contracts.json": b"{}"}), "kit-plan"),
    "other kernels": (_both(lambda h: h["revision"].update(kernels="0" * 16)), "kit-code-differs"),
    "other code": (_both(lambda h: h["kit"]["bundles"].update(farm="0" * 64)), "kit-code-differs"),
    "another provider": (_both(lambda h: h.update(providers={"x": {"path": "x:y"}})), "kit-code-differs"),
    "a subject": (_both(lambda h: h.update(subject={"digest": "x"})), "kit-code-differs"),
    "another kit": (_both(lambda h: h["kit"].update(digest="0" * 64)), "kit-other"),
    "no words of who": (_both(lambda h: h["kit"].update(by=["Alice"])), "kit-by"),
    "a cell of another shape": (_journal(_copy_of_a_cell), "kit-cell-unplanned"),
    "a result outside the plan": (_row(index=77), "kit-cell-unplanned"),
    "a result of another name": (_row(cell_id="cuda/rms_norm/x"), "kit-cell-unplanned"),
    "a start outside the plan": (_more(event="started", cell=77, attempt=1), "kit-cell-unplanned"),
    "a result of another provider": (_row(provider="torch"), "merge-damaged"),
    "a result of another dtype": (_row(dtype="float64"), "merge-damaged"),
    "a plan cut short": (_journal(lambda e: None if e["event"] == "cell" and e["cell"]["index"] else e), "kit-cell"),
    "a journal edited": (_damage, "kit-journal-damaged"),
    "no journal": (lambda c: c.pop("run/journal.jsonl"), "kit-result-file"),
    "a file of its own": (lambda c: c.update({"run/cells.parquet": b""}), "kit-result-file"),
    "a log elsewhere": (lambda c: c.update({"run/logs/a/b": b""}), "kit-result-file"),
    "counts of its own": (_run_json(lambda h: h.update(counts={"passed": 6})), "merge-damaged"),
    "a verdict of another kind": (_run_json(lambda h: h.update(verdict=None)), "kit-run-json"),
    "no devices": (_run_json(lambda h: h.update(backends={"cuda": 5})), "kit-run-json"),
    "a utilisation of its own": (_run_json(lambda h: h.update(utilisation={"devices": {"x": 5}})), "kit-run-json"),
    "a key of its own": (_run_json(lambda h: h.update(warnings=["trust me"])), "kit-run-json"),
    "a head of its own": (_run_json(lambda h: h.update(command="rm")), "kit-run-json"),
    "a merged run": (_both(lambda h: h.update(kind="merged", merged=[{"kit": 5}])), "kit-head"),
    "no revision": (_both(lambda h: h.update(revision=5)), "kit-head"),
    "a roof of its own": (_run_json(lambda h: h.update(calibrations={"x": {}})), "kit-run-json"),
    "a device of its own": (_run_json(lambda h: h["backends"]["cuda"]["devices"].append({"name": 5})), "kit-run-json"),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_no_result_of_its_kit_is_refused_in_a_sentence(
    made: Path, result: bytes, tmp_path: Path, plant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = archives.unpack(result)
    told = json.loads(content.pop(kits.RESULT))
    change, name = PLANTS[plant]
    change(content)
    content[kits.RESULT] = kits.result_manifest(told["kit"], told["run_id"], content)
    before = {run.id for run in Store(made / "store").runs()}
    code, store = merged(made, tmp_path, archives.pack(content, "result"))
    (said,) = capsys.readouterr().err.splitlines()
    assert code in (2, 3) and said.startswith("farm merge: ") and f"[{name}" in said and "itself failed" not in said
    assert {run.id for run in store.runs()} == before, "nothing was written"


def test_a_manifest_that_lies_is_refused(made: Path, result: bytes) -> None:
    content = archives.unpack(result)
    for change, name in (
        ({"run/plan.json": b"{}"}, "kit-result-damaged"),
        ({kits.RESULT: b"{"}, "kit-result-invalid"),
        ({kits.RESULT: json.dumps({**json.loads(content[kits.RESULT]), "result": 2}).encode()}, "kit-result-format"),
        (
            {kits.RESULT: json.dumps({**json.loads(content[kits.RESULT]), "run_id": "../x"}).encode()},
            "kit-result-invalid",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            kits.read_result({**content, **change}, "r", kit_result.RUN_ID)
        assert caught.value.id == name


def _tar(*entries: tarfile.TarInfo | tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for entry in entries:
            info = entry if isinstance(entry, tarfile.TarInfo) else tarfile.TarInfo(entry[0])
            data = b"" if isinstance(entry, tarfile.TarInfo) else entry[1]
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue())


def _link() -> tarfile.TarInfo:
    info = tarfile.TarInfo("a/x")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info


@pytest.mark.parametrize(
    ("blob", "why"),
    [
        (b"", "cut short"),
        (b"PK\x03\x04", "is not a gzipped archive"),
        (gzip.compress(b"nothing"), "is not a whole archive"),
        (gzip.compress(b""), "is"),
        (_tar(), "is empty"),
        (_tar(("a/x", b"1"), ("a/x", b"2")), "twice"),
        (_tar(("a/x", b"1"), ("b/x", b"2")), "more than one folder"),
        (_tar(("x", b"1")), "more than one folder"),
        (_tar(("../x", b"1")), "not a plain file"),
        (_tar(("/etc/x", b"1")), "not a plain file"),
        (_tar(_link()), "not a plain file"),
        (_tar(("a/x", b"1" * 4096))[:-20], "cut short"),
    ],
    ids=range(12),  # a compressed blob has the time in it
)
def test_what_is_no_archive_of_ours_is_refused(blob: bytes, why: str) -> None:
    with pytest.raises(files.NotInside, match=why):
        archives.unpack(blob)


def test_a_bomb_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(files, "MOST_FILES", 2)
    for blob, why in (
        (gzip.compress(bytes(2 << 20)), "more than 1 MiB"),
        (_tar(("a/x", bytes(600 << 10)), ("a/y", bytes(600 << 10))), "more than 1 MiB"),
        (_tar(("a/x", b""), ("a/y", b""), ("a/z", b"")), "more than 2 files"),
    ):
        with pytest.raises(files.NotInside, match=why):
            archives.unpack(blob)


_NAMES = st.lists(st.text("abc", min_size=1, max_size=80), min_size=1, max_size=3).map("/".join)


@settings(max_examples=40)
@given(st.dictionaries(_NAMES, st.binary(max_size=50), min_size=1, max_size=6))
def test_an_archive_gives_back_its_files(content: dict[str, bytes]) -> None:
    assert archives.unpack(archives.pack(content, "top")) == content


@pytest.mark.parametrize("change", ["", "farm/cell.py", "-kernels/__init__.py", "+farm/more.py", "+notes.txt"])
def test_a_kit_that_was_changed_does_not_run(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    content = archives.unpack((made / "kit.tar.gz").read_bytes())
    sign, name = (change[0], change[1:]) if change[:1] in ("+", "-") else ("", change)
    if sign == "-":
        del content[name]
    elif name:
        content[name] = content.get(name, b"") + b"#"
    kit = kits.read(content[kits.KIT], "kit")
    told = kits.unfit(kit, {n: kits.sha(d) for n, d in content.items()})
    wrong = bool(change) and name != "notes.txt"
    assert bool(told) == wrong and (name in told or not wrong)
    small = {n: d for n, d in content.items() if n.split("/")[0] != "farm" or n in ("farm/cell.py", "farm/more.py")}
    listed = {n: d for n, d in kit.files.items() if n in small or n == name}
    small[kits.KIT] = kits.dumped({**kit.data, "files": listed})
    files.write_all(small.items(), tmp_path / "kit")
    monkeypatch.setattr(kit_run, "HERE", tmp_path / "kit")
    monkeypatch.setattr(kit_site, "main", lambda folder, argv: 0)
    assert kit_run.main() == (2 if wrong else 0)
    assert (bool(name) and name in capsys.readouterr().err) == wrong


def test_a_compiled_file_is_found_by_name_or_content() -> None:
    assert kits.compiled({"a.py": b"x", "b/c.cpython-311.so": b""}) == "b/c.cpython-311.so"
    assert kits.compiled({"a.py": b"x", "b": b"\x7fELF\x02"}) == "b" and kits.compiled({"a.py": b"x"}) == ""


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--target", "cpu", "--a", "revision=main"], "kit-arms"),
        (["--target", "cpu", "--a", "env.X=1", "--b", "env.X=2", "--release", "x==1"], "kit-arms-with"),
        (["--target", "cpu", "--a", "environment=x", "--b", "environment=y"], "kit-arms-environment"),
        (["--target", "cud"], "backend-unknown"),
        (["--target", "cuda:H200"], "plan-part-unknown"),
        (["--target", "cuda", "--select", "hidden=66,provider=torch"], "kit-empty"),
    ],
)
def test_what_makes_no_kit(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], name: str
) -> None:
    monkeypatch.chdir(made)
    assert main(["kit", "m.yaml", "--subject", "none", "--out", "no.tar.gz", *words]) == 2
    assert f"[{name}]" in capsys.readouterr().err and not (made / "no.tar.gz").exists()


def test_a_compiled_provider_makes_no_kit(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").write_text("def norm(x, weight, eps): return x\n")
    words = [
        "kit",
        str(made / "m.yaml"),
        "--target",
        "cuda",
        "--provider",
        "rms_norm:mine=mine:norm",
        "--out",
        "k.tar.gz",
    ]
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--subject", "none"]) == 0
    assert "providers/mine/__init__.py" in kit_result.kit_of(Path("k.tar.gz"), "--kit").files
    (tmp_path / "mine/_C.so").write_bytes(b"\x7fELF")
    capsys.readouterr()
    assert main([*words, "--subject", "none"]) == 2
    assert "mine/_C.so is compiled" in capsys.readouterr().err


# two arms


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """(As `made`, of a kit that compares two modes; its complete result.)"""
    folder = tmp_path_factory.mktemp("arms")
    modes = {"farm": {"mode": ["static_persistent", "multi_wave_cached"]}}
    (folder / "m.yaml").write_text(
        json.dumps({k: v for k, v in {**MATRIX, "providers": modes}.items() if k != "exclude"})
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = ["kit", "m.yaml", "--target", "cuda", "--a", "mode=static_persistent", "--b", "mode=multi_wave_cached"]
        assert main([*words, "--store", "store", "--out", "kit.tar.gz"]) == 0
        files.write_all(archives.unpack((folder / "kit.tar.gz").read_bytes()).items(), folder / "there")
        site = at_site(folder, patch, out=str(folder / "done"))
        assert kit_site._run(site) == 0
    (archive,) = (folder / "done").glob("result-*.tar.gz")
    return folder, archive.read_bytes()


def taken(two: tuple[Path, bytes], tmp_path: Path, blob: bytes, *words: str) -> int:
    (tmp_path / "result.tar.gz").write_bytes(blob)
    out = ["--kit", str(two[0] / "kit.tar.gz"), "--out", str(tmp_path / "store"), "--no-page"]
    return main(["merge", str(tmp_path / "result.tar.gz"), *out, *words])


def test_two_arms_come_back_as_a_comparison(
    two: tuple[Path, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert taken(two, tmp_path, two[1]) == 0
    said = capsys.readouterr()
    assert "not worse: exit 0" in said.out and "statuses of 3 cells: 3 same" in said.out
    assert "simulated by Alice at Site A" in said.err
    (run,) = Store(tmp_path / "store").runs()
    assert (run.head["kind"], run.head["comparison"]["verdict"]) == ("ab", "not worse")
    assert len(run.table("pairs")) == 3
    assert taken(two, tmp_path, two[1]) == 2 and "store-run-exists" in capsys.readouterr().err


ARM_PLANTS: dict[str, tuple[Callable[[Content], Any], str]] = {
    "another arm": (_both(lambda h: h["arms"]["b"].update(mode="auto")), "kit-code-differs"),
    "one arm": (_both(lambda h: (h.pop("arms"), h.pop("kind"))), "kit-code-differs"),
    "a round outside the plan": (
        _more(event="round", round=1, rows=[{"status": "passed", "cell_id": c} for c in ("x", "y")]),
        "kit-cell-unplanned",
    ),
    "a round without anything": (
        lambda c: _more(event="round", round=0, rows=[{"status": "passed", "cell_id": i} for i in _ids(c)])(c),
        "kit-rounds",
    ),
    "not complete": (lambda c: c.pop("run/run.json"), "kit-arms-incomplete"),
}


@pytest.mark.parametrize("plant", ARM_PLANTS)
def test_what_is_no_comparison_of_its_kit_is_refused(
    two: tuple[Path, bytes], tmp_path: Path, plant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = archives.unpack(two[1])
    told = json.loads(content.pop(kits.RESULT))
    change, name = ARM_PLANTS[plant]
    change(content)
    content[kits.RESULT] = kits.result_manifest(told["kit"], told["run_id"], content)
    assert taken(two, tmp_path, archives.pack(content, "result")) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"[{name}" in said and not Store(tmp_path / "store").runs()


def test_a_comparison_lies_in_vain(two: tuple[Path, bytes], tmp_path: Path) -> None:
    """What a result says of its own comparison is replaced by what its rounds say."""
    content = archives.unpack(two[1])
    told = json.loads(content.pop(kits.RESULT))
    _run_json(lambda h: h["comparison"].update(verdict="worse", exit_code=1, why=["<b>"]))(content)
    content[kits.RESULT] = kits.result_manifest(told["kit"], told["run_id"], content)
    assert taken(two, tmp_path, archives.pack(content, "result")) == 0
    (run,) = Store(tmp_path / "store").runs()
    assert run.head["comparison"]["verdict"] == "not worse" and run.head["comparison"]["why"] == []


def test_a_comparison_that_is_out_of_time_before_an_arm_had_a_result_goes_on(
    two: tuple[Path, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    slow = Slow()
    slow.pace = 0.05
    assert kit_site._run(at_site(two[0], monkeypatch, slow, out=out, limit_minutes=0.12 / 60)) == 3
    assert "did not run; start run.py again" in capsys.readouterr().out
    (archive,) = Path(out).glob("result-*.tar.gz")
    assert taken(two, tmp_path, archive.read_bytes()) == 2 and "[kit-arms-incomplete]" in capsys.readouterr().err
    assert kit_site._run(at_site(two[0], monkeypatch, out=out)) == 0
    assert taken(two, tmp_path, archive.read_bytes()) == 0


def test_a_comparison_is_taken_alone(
    two: tuple[Path, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert taken(two, tmp_path, two[1], "--run-id", "mine") == 2
    assert "[kit-arms-alone]" in capsys.readouterr().err


# names of people, hosts and folders

_TEXTS = st.text(st.sampled_from('ab /.-_"{}[]:,1'), max_size=20)


@settings(max_examples=40)
@given(
    st.recursive(_TEXTS | st.integers() | st.none(), lambda t: st.lists(t) | st.dictionaries(_TEXTS, t), max_leaves=8)
)
def test_scrubbing_keeps_lines_whole_and_words_whole(value: Any) -> None:
    line = {"event": "device_up", "device": "cuda:0", "labels": value, "text": "gpu at gpu.x, gpu_time, /gpu/"}
    raw = journals.encoded(line).encode()
    (out,) = scrubbing.scrubbed({"run/journal.jsonl": raw}, {"gpu": "host"}).values()
    found, summed = journals.decoded(out)
    assert summed and found == {**line, "text": "host at gpu.x, gpu_time, /host/"}


def test_scrubbing_leaves_the_plan_alone(result: bytes) -> None:
    content = archives.unpack(result)
    out = scrubbing.scrubbed(content, {"torch": "x", "rms_norm": "x", "float32": "x", "passed": "x"})
    was, now = ([journals.decoded(raw)[0] for raw in c["run/journal.jsonl"].splitlines()] for c in (content, out))
    assert len(was) == len(now)
    for a, b in zip(was, now):
        assert a and b and a["event"] == b["event"] and a.get("cell") == b.get("cell")
        if a["event"] == "result":
            assert {k: a["row"][k] for k in scrubbing.PLANNED} == {k: b["row"][k] for k in scrubbing.PLANNED}
            assert a["row"]["status"] == b["row"]["status"]


def test_options_of_run_py(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--limit-minutes", "0"], ["--devices", "0"], ["--by", "x\n"], ["--nonsense"]):
        with pytest.raises(SystemExit) as end:
            kit_site._options(words)
        assert end.value.code == 2
    assert capsys.readouterr().err.count("run.py: error") >= 4


def test_a_missing_device_is_a_sentence(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_site(made, monkeypatch)
    monkeypatch.setattr(kit_site, "local_devices", lambda *_: [])
    with pytest.raises(FarmError) as caught:
        kit_site._Site(made / "there", SITE, [])
    assert caught.value.id == "kit-no-device"


def test_a_complete_run_of_a_kit_has_no_tables_until_it_is_merged(made: Path, result: bytes) -> None:
    (folder,) = (made / "done/runs").iterdir()
    assert Run(folder).complete and not list(folder.glob("*.parquet"))
