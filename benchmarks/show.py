"""Prints a run as a table: `python -m benchmarks.show [STORE] [RUN]`.  For people and for docs/facts.md."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from farm.errors import StoreError
from farm.store import Store


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.show", description=(__doc__ or "").split(":")[0])
    parser.add_argument("store", nargs="?", default="farm-results", metavar="STORE")
    parser.add_argument("run", nargs="?", default="last", metavar="RUN")
    options = parser.parse_args(argv)
    try:
        run = Store(options.store).run(options.run)
    except StoreError as error:
        parser.error(str(error))
    rows = run.rows
    print(f"{run.id}: {len(rows)} planned, {dict(Counter(r['status'] for r in rows))}, {run.head.get('seconds')} s")
    print("quality", dict(Counter(r["timing_quality"] for r in rows)), dict(Counter(r["timing_method"] for r in rows)))
    flags = Counter(f"{r['provider']}: {r['flags']}" for r in rows if r["flags"] != "[]")
    for flag, n in flags.most_common(8):
        print(f"  {n} x {flag[:160]}")
    providers = list(dict.fromkeys(f"{r['provider']}/{r['mode']}" for r in rows))
    table: dict[tuple[str, ...], dict[str, str]] = {}
    for r in rows:
        key = (r["operation"], r["dtype"], r["shape"], "gemma" if '"gemma"' in r["params"] else "")
        us = r["time_us_p50"]
        mark = "" if r["timing_quality"] == "ok" else {"launch_bound": "~", "noisy": "?"}.get(r["timing_quality"], "!")
        cell = f"{us:.1f}{mark}" if us else r["status"][:9]
        table.setdefault(
            (*key, f"{r['timing_method'][:8]}{' warm' if r.get('timing_cold') == 0 else ''}" if us else ""), {}
        )[f"{r['provider']}/{r['mode']}"] = cell
    short = [
        p.replace("static_persistent", "persist").replace("multi_wave_", "").replace("/auto", "") for p in providers
    ]
    print(f"{'operation dtype shape':40}" + "".join(f"{p[:14]:>15}" for p in short))
    for key, cells in table.items():
        head = f"{key[0][:8]} {key[1]} {key[2]}{' gemma' if key[3] else ''} {key[4]}"
        print(f"{head:40}" + "".join(f"{cells.get(p, ''):>15}" for p in providers))
    for r in rows:
        if r["status"] not in ("passed", "skipped"):
            print(f"{r['status']}: {r['cell_id']}: {r['reason']}"[:260])


if __name__ == "__main__":
    main(sys.argv[1:])
