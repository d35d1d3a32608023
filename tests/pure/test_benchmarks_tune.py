"""What the search for launch configurations says of bad input: one sentence, exit code 2, nothing timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tune import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--out REPORT.json is needed"),
        (("--out", "r.json", "--dtypes", "bf16"), "--dtypes: there is no 'bf16', but float32"),
        (("--out", "r.json", "--ops", "matmul"), "--ops: there is no 'matmul', but rms_norm"),
        (("--out", "r.json", "--only", "full"), "--only: there is no 'full', but forward"),
        (("--out", "r.json", "--shapes", "4096"), "--shapes: '4096' is not like"),
        (("--out", "r.json", "--shapes", "0x8"), "--shapes: '0x8' is not like"),
    ],
)
def test_bad_options(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert stopped.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "", "[]", '{"a": 1}', '{"a/b": {"tried": []}}'])
def test_a_table_of_what_is_no_report(text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is printed then that could be taken for the table."""
    report = tmp_path / "report.json"
    if text is not None:
        report.write_text(text)
    with pytest.raises(SystemExit) as stopped:
        main(["--table", str(report)])
    told = capsys.readouterr()
    assert stopped.value.code == 2 and "--table: no report" in told.err and not told.out
