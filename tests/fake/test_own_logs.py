"""What the author wrote: prints, tracebacks and unwritten tiles of ten providers in one run, each in its own log."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from farm_process import FarmRun

from farm.cli import common
from farm.store import Store

#: Each prints "MARK:<provider>:<n>" lines in one way or another; which is which is in its name.
KERNELS = """import ctypes, logging, os, subprocess, sys, threading, torch, warnings

import beside


def right(x, weight, eps):
    y = x.double()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * weight.double()).to(x.dtype)


def says(x, weight, eps):
    print("MARK:says:1")
    print("MARK:says:2", file=sys.stderr)
    logging.getLogger("mine").warning("MARK:says:3")
    warnings.warn("MARK:says:4")
    thread = threading.Thread(target=print, args=("MARK:says:5",))
    thread.start()
    thread.join()
    return right(x, weight, eps)


def wrong(x, weight, eps):
    print("MARK:wrong:1", x[0, :3])
    return right(x, weight, eps) * 1.5


def native(x, weight, eps):
    ctypes.CDLL(None).printf(b"MARK:native:1\\n")
    os.write(1, b"MARK:native:2\\n")
    os.write(2, b"MARK:native:3\\n")
    return right(x, weight, eps)


def started(x, weight, eps):
    subprocess.run(["echo", "MARK:started:1"], check=True)
    return right(x, weight, eps)


def partial(x, weight, eps):
    ctypes.CDLL(None).printf(b"MARK:partial:1, and no end of line")
    sys.stdout.write("MARK:partial:2")
    return right(x, weight, eps)


def raises(x, weight, eps):
    print("MARK:raises:1")
    try:
        beside.broken(x)
    except KeyError as error:
        raise RuntimeError("MARK:raises:2") from error


def dies(x, weight, eps):
    print("MARK:dies:1", end="")
    ctypes.CDLL(None).printf(b"MARK:dies:2")
    ctypes.CDLL(None).printf(b"\\n")
    ctypes.string_at(0)


def tile(x, weight, eps):
    print("MARK:tile:1")
    y = torch.empty_like(x)
    y[:, :48] = right(x, weight, eps)[:, :48]
    return y


def nan(x, weight, eps):
    y = right(x, weight, eps)
    y[:, 48:] = float("nan")
    print("MARK:nan:1")
    return y


def much(x, weight, eps):
    print("MARK:much:1")
    print("x" * 79 + "\\n" + ("y" * 79 + "\\n") * 5000)
    print("MARK:much:2")
    return right(x, weight, eps)
"""
BESIDE = """def broken(x):
    return {}["MARK:raises:3"]  # the line that the author wants to see
"""
NAMES = ("says", "wrong", "native", "started", "partial", "raises", "dies", "tile", "nan", "much")
MATRIX = {
    "name": "logs",
    "op": "rms_norm",
    "axes": {"shape": [{"rows": 6, "hidden": 64}], "dtype": "float32", "operation": "no-grad-forward"},
    "providers": [*NAMES],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, str]], str]:
    folder = tmp_path_factory.mktemp("logs")
    (folder / "mine.py").write_text(KERNELS)
    (folder / "beside.py").write_text(BESIDE)
    words = [w for name in NAMES for w in ("--provider", f"{name}=mine:{name}")]
    matrix = json.dumps({**MATRIX, "providers": list(NAMES)})
    farm = FarmRun(folder, matrix, (*words, "--devices", "1", "--no-page"), backend="cpu")
    try:
        farm.start()
        assert farm.process is not None
        assert farm.process.wait(timeout=180) == 1, (folder / "out.txt").read_text()
    finally:
        farm.end()
    found = Store(folder / "store").run(farm.run_id)
    rows = {}
    for row in found.rows:
        text = (found.dir / row["log"]).read_text() if row["log"] else ""
        rows[row["provider"]] = {**row, "text": text}
    return folder, rows, (folder / "out.txt").read_text()


def test_each_line_stands_in_the_log_of_its_own_cell_and_none_is_lost(
    run: tuple[Path, dict[str, dict[str, str]], str],
) -> None:
    _, rows, _ = run
    assert sorted(rows) == sorted(NAMES)
    for name, row in rows.items():
        lines = {f"MARK:{name}:{n}" for n in set(re.findall(rf"MARK:{name}:(\d)", KERNELS + BESIDE))}
        assert lines and all(line in row["text"] for line in lines), (name, row["text"])
        others = set(re.findall(r"MARK:(\w+):", row["text"])) - {name}
        assert not others, (name, others)
    assert re.search(r"\[\.\.\. [\d,]+ (bytes|characters) left out here \.\.\.\]", rows["much"]["text"])
    assert len(rows["much"]["text"]) < 70_000


def test_a_report_for_ci_has_each_log_in_its_own_test_case(run: tuple[Path, dict[str, dict[str, str]], str]) -> None:
    folder, rows, _ = run
    (stored,) = Store(folder / "store").runs()
    cases = {c.get("name"): c for c in ElementTree.fromstring(common.export(stored, "junit")).iter("testcase")}
    assert sorted(cases) == sorted(row["cell_id"] for row in rows.values())
    for name, row in rows.items():
        said = cases[row["cell_id"]].findtext("system-out") or ""
        assert set(re.findall(r"MARK:(\w+):", said)) == {name}


def test_a_traceback_is_the_whole_chain_with_the_lines_and_paths_that_the_author_edits(
    run: tuple[Path, dict[str, dict[str, str]], str],
) -> None:
    folder, rows, _ = run
    text = rows["raises"]["text"]
    assert rows["raises"]["status"] == "crashed"
    assert f'File "{folder}/beside.py", line 2, in broken' in text and "the line that the author wants to see" in text
    assert f'File "{folder}/mine.py"' in text and "direct cause of the following exception" in text
    assert "RuntimeError: MARK:raises:2" in text
    assert "/farm/child/" not in text and "/torch/" not in text and "/providers/" not in text
    assert rows["dies"]["status"] == "crashed" and f"{folder}/mine.py" in rows["dies"]["text"]  # of faulthandler


def test_never_written_is_told_from_computed_nan_through_a_real_child(
    run: tuple[Path, dict[str, dict[str, str]], str],
) -> None:
    _, rows, said = run
    never, nan = rows["tile"]["reason"], rows["nan"]["reason"]
    place = "columns 48 to 63 (the last 16) of every row"
    assert f"y: 96 of 384 elements are wrong: {place}, never written; first [0, 48]: expected" in never
    assert f"y: 96 of 384 elements are wrong: {place}, computed NaN; first [0, 48]: got NaN, expected" in nan
    assert place in said and "never written" in said  # one line in the terminal
    assert "never written, expected" not in rows["nan"]["text"] and "[0, 48]: got never written" in rows["tile"]["text"]
    assert json.loads(rows["tile"]["places"])["y"]["count"] == 96
    assert "scaled by 1.5" in rows["wrong"]["reason"]
