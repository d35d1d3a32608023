"""Publishes what a kit measured, without names of people, hosts, folders or devices.

    python -m benchmarks.publish_run RESULT.tar.gz KIT.tar.gz STORE RUN_ID

The run gets to STORE/runs/RUN_ID as `farm merge` makes it, from a copy of the result in which those names are replaced;
of its files those are kept that pages are made from.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from farm.cli.main import main as farm
from farm.sites.scrubbing import scrubbed

KEPT = ("run.json", "journal.jsonl", "cells.parquet", "samples.parquet")
_HOST = re.compile(rb'"node": ?"([^"]+)"')
_FOLDER = re.compile(rb"(/(?:root|home|tmp|opt|usr|work|mnt|data)/[\w./-]+)")


def private(content: dict[str, bytes]) -> dict[str, str]:
    """Each host, folder and user's name in a result -> what stands for it."""
    every = b"\n".join(content.values())
    hosts, folders = ({m.decode() for m in found.findall(every)} for found in (_HOST, _FOLDER))
    out = {host: f"node-{n}" for n, host in enumerate(sorted(hosts), 1)}
    return {**out, **{folder: f"/folder-{n}" for n, folder in enumerate(sorted(folders), 1)}}


def anonymous(result: Path, out: Path) -> None:
    """A copy of a result without those names, as a site would have sent it with --anonymous."""
    with tarfile.open(result) as tar:
        read = {m.name: (tar.extractfile(m) or io.BytesIO()).read() for m in tar.getmembers() if m.isfile()}
    (top,) = {name.split("/")[0] for name in read}
    content = {name.partition("/")[2]: data for name, data in read.items()}
    head = json.loads(content.pop("result.json"))
    content = scrubbed(content, private(content))
    head["files"] = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    content["result.json"] = json.dumps(head, indent=1, sort_keys=True).encode()
    with tarfile.open(out, "w:gz") as tar:
        for name, data in sorted(content.items()):
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def main(argv: list[str]) -> int:
    if len(argv) != 4:
        print(__doc__)
        return 2
    result, kit, store, run_id = (*(Path(word).resolve() for word in argv[:3]), argv[3])
    with tempfile.TemporaryDirectory() as place:
        anonymous(result, Path(place, "result.tar.gz"))
        shutil.copyfile(kit, Path(place, "kit.tar.gz"))
        here = Path.cwd()
        os.chdir(place)  # the run has the command in it
        try:
            words = ["merge", "result.tar.gz", "--kit", "kit.tar.gz", "--out", "store", "--run-id", run_id, "--no-page"]
            if farm(words) not in (0, 1):
                return 3
        finally:
            os.chdir(here)
        target = store / "runs" / run_id
        target.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            shutil.copyfile(Path(place, "store/runs", run_id, name), target / name)
    print(f"{target}: {sum(f.stat().st_size for f in target.iterdir())} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
