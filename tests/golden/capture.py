"""Captures again what the golden tests hold.

    python tests/golden/capture.py            all views: plans, schema, commands, exit_codes, run, old_runs
    python tests/golden/capture.py plans run  some of them
    python tests/golden/capture.py --runs     the old runs too, made anew: then they are no longer old

Run it only when an issue changes a format, a key or a verdict on purpose, never to make a refactoring's test pass; read
`git diff tests/golden` then, and say in the commit what changed.  `--runs` only where this farm may refuse the runs of
an older one, which is where the schema of the store changed: they were written by commit 18c25fb.

The old runs are made in a folder of a neutral name, with relative paths, and host names are taken out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import tempfile
from pathlib import Path

import golden_views as views

#: What is run, and with what; all in a folder of its own, so that the paths which are recorded name no machine's.
_SMOKE = ("matrices/smoke.yaml", "--select")
_FAKE = ("--backend", "sim", "--address", "inline", "--devices", "1")
OLD = {
    views.FINISHED: ("run", *_SMOKE, "dtype=float32,operation=forward,mode=auto", *views.ON_CPU),
    views.INTERRUPTED: ("run", "scripted.yaml", *_FAKE),
    views.COMPILED: ("compile", *_SMOKE, "hidden=1000,dtype=bfloat16,mode=auto,op=rms_norm", "--target", "sm_90"),
}
_ALL = ("--no-page", "--out", "store")
KEPT_RESULTS = 5  # of the interrupted run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("views", nargs="*", metavar="VIEW", help=", ".join(views.VIEWS))
    parser.add_argument("--runs", action="store_true", help="make the old runs anew")
    args = parser.parse_args()
    unknown = set(args.views) - set(views.VIEWS)
    if unknown:
        parser.error(f"no such view: {', '.join(sorted(unknown))}")
    if args.runs:
        _make_runs()
    for name in args.views or views.VIEWS:
        with tempfile.TemporaryDirectory(prefix="golden-") as folder:
            text = views.as_text(views.VIEWS[name](Path(folder)))
        (views.HERE / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}.json: {len(text):,} bytes")


def _make_runs() -> None:
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        folder = Path(name)
        shutil.copytree(views.MATRICES, folder / "matrices")
        shutil.copy(views.HERE / "scripted.yaml", folder)
        shutil.rmtree(views.RUNS, ignore_errors=True)
        for run_id, words in OLD.items():
            code, said = views.process(folder, *words, *_ALL, "--run-id", run_id)
            made = folder / "store" / "runs" / run_id
            assert (made / "run.json").is_file(), (code, said)
            _scrub(made)
            if run_id == views.INTERRUPTED:
                _interrupt(made)
            if (made / "logs").is_dir() and not any((made / "logs").iterdir()):
                (made / "logs").rmdir()
            shutil.copytree(made, views.RUNS / run_id)


def _scrub(run: Path) -> None:
    """Put `node` where the name of this host stands."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    host = json.dumps(socket.gethostname())
    for file in (run / "journal.jsonl", run / "run.json"):
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(f'"node":{host}', '"node":"node"').replace(f'"node": {host}', '"node": "node"'))
    table = parquet.read_table(run / "cells.parquet")
    at = table.schema.get_field_index("node")
    nodes = ["node" if n else n for n in table.column(at).to_pylist()]
    table = table.set_column(at, table.schema.field(at), arrow.array(nodes, table.schema.field(at).type))
    parquet.write_table(table, run / "cells.parquet")


def _interrupt(run: Path) -> None:
    """Leave what a kill would after some results; and let it have begun with other kernels than any farm has, so that
    to go on always needs --other-revision."""
    lines, results = [], 0
    for line in (run / "journal.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "run":
            event["revision"].update(name="0" * 12, commit="0" * 40, kernels="0" * 16)
            line = json.dumps(event, separators=(",", ":"))
        lines.append(line)
        results += event["event"] == "result"
        if results == KEPT_RESULTS:
            break
    (run / "journal.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in ("run.json", "cells.parquet", "samples.parquet"):
        (run / name).unlink()
    shutil.rmtree(run / "logs")


if __name__ == "__main__":
    main()
