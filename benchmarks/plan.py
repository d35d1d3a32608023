"""How long 100,000 cells take to plan: `python -m benchmarks.plan` (limit 5 s on 2 cores, docs/facts.md).

Times reading the YAML, expansion, ids, keys, numbering, counts and hash; writing the JSON is false alarms.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from farm.matrix import Matrix, Plan, load, plan
from farm.matrix.registry import ProviderInfo

MODES = ("auto", "static_persistent", "multi_wave_reload", "multi_wave_cached")
REGISTRY = {
    "farm": ProviderInfo("farm", "subject", MODES, ("rms_norm",)),
    "torch": ProviderInfo("torch", "peer", ("auto",), ("rms_norm",)),
}
ROUNDS = 3


def synthetic() -> str:
    """625 shapes x 2 dtypes x 2 castings x 4 seeds x 2 operations x 5 (provider, mode) = 100,000 cells."""
    rows = [64 * i for i in range(1, 26)]
    hidden = [1000 + 37 * i for i in range(25)]
    return f"""
name: synthetic
op: rms_norm
axes:
  shape: [{{rows: {rows}, hidden: {hidden}}}]
  dtype: [float32, bfloat16]
  casting: [llama, gemma]
  seed: [0, 1, 2, 3]
  operation: [forward, backward]
providers: {{farm: {{mode: [{", ".join(MODES)}]}}, torch: {{}}}}
exclude:
  - {{provider: farm, mode: multi_wave_cached, hidden: ">1800", reason: a rule with three conditions}}
  - {{provider: torch, casting: gemma, reason: a rule with two}}
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "synthetic.yaml"
        path.write_text(synthetic(), encoding="utf-8")
        planning, writing = [], []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            matrix: Matrix = load(path, registry=REGISTRY)
            found: Plan = plan([matrix], ["cuda"])
            planned = time.perf_counter()
            size = len(found.to_json())
            writing.append(time.perf_counter() - planned)
            planning.append(planned - start)
    print(f"{len(found.cells):,} cells planned in {statistics.median(planning):.2f} s (median of {ROUNDS})")
    print(f"{size / 1e6:.0f} MB of JSON in {statistics.median(writing):.2f} s more")


if __name__ == "__main__":
    main()
