"""Bad input in what is done with the cells (providers, rules, timing, tolerances): one sentence each."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_matrices import Table, all_of, rule
from matrix_fakes import BASE, check, refusal, with_axis

PROVIDERS: Table = {
    "provider": (
        BASE.replace("[torch]", "[torhc]"),
        "matrix-unknown-provider",
        "m.yaml:6: providers[0] ",
        '"torhc"',
        '"torch"',
    ),
    "provider's key": (
        BASE.replace("[torch]", "{torhc: {}}"),
        "matrix-unknown-provider-key",
        "m.yaml:6: providers.torhc ",
        '"torch"',
    ),
    "provider twice": (
        BASE.replace("[torch]", "[torch, torch]"),
        "matrix-value-twice",
        "m.yaml:6: providers[1] ",
        '"torch"',
        "line 6",
    ),
    "no providers": (BASE.replace("providers: [torch]\n", ""), "matrix-no-providers", "m.yaml:1:", "providers: ["),
    "mode": (
        BASE.replace("[torch]", "{farm: {mode: [multi_wave_cache]}}"),
        "matrix-provider-mode",
        "m.yaml:6: providers.farm.mode[0] ",
        '"multi_wave_cache"',
        '"multi_wave_cached"',
    ),
    "mode of a provider without": (
        BASE.replace("[torch]", "{torch: {mode: [static_persistent]}}"),
        "matrix-provider-mode",
        "m.yaml:6: providers.torch.mode[0] ",
        '"static_persistent"',
        "torch: auto",
    ),
    "mode twice": (
        BASE.replace("[torch]", "{farm: {mode: [auto, auto]}}"),
        "matrix-value-twice",
        "m.yaml:6: providers.farm.mode[1] ",
        '"auto"',
        "line 6",
    ),
    "mode axis": (with_axis("mode: [autoo]"), "matrix-unknown-mode", "m.yaml:4: axes.mode[0] ", '"autoo"', '"auto"'),
    "axis of a provider": (
        BASE.replace("[torch]", "{farm: {modes: [auto]}}"),
        "matrix-provider-key",
        "m.yaml:6: providers.farm.modes ",
        '"mode"',
    ),
    "not its op": (
        "name: m\nop: product\naxes: {shape: [{m: 1, k: 1}]}\nproviders: [farm]\n",
        "matrix-provider-without-op",
        "m.yaml:4: providers[0] ",
        "farm",
        "product",
        "torch",
    ),
}


RULES: Table = {
    "no reason": (rule("provider: torch"), "matrix-exclude-no-reason", "m.yaml:8: exclude[0] ", "reason: "),
    "empty reason": (rule('provider: torch, reason: ""'), "matrix-not-text", "m.yaml:8: exclude[0].reason ", '""'),
    "reason alone": (rule("reason: x"), "matrix-exclude-everything", "m.yaml:8: exclude[0] ", "provider: "),
    "matches nothing": (
        rule('hidden: ">64", reason: x'),
        "matrix-rule-matches-nothing",
        "m.yaml:8: exclude[0] ",
        "(hidden>64)",
    ),
    "matches nothing together": (
        rule("provider: torch, mode: static_persistent, reason: x").replace("[torch]", "[farm, torch]"),
        "matrix-rule-matches-nothing",
        "m.yaml:8: exclude[0] ",
        "(provider=torch, mode=static_persistent)",
    ),
    "rule's key": (rule("hiden: 3, reason: x"), "matrix-rule-key", "m.yaml:8: exclude[0].hiden ", '"hidden"'),
    "rule's provider": (
        rule("provider: fram, reason: x"),
        "matrix-rule-value",
        "m.yaml:8: exclude[0].provider ",
        '"fram"',
        '"farm"',
    ),
    "rule's list": (
        rule("dtype: [fp32, bf61], reason: x"),
        "matrix-rule-dtype",
        "m.yaml:8: exclude[0].dtype[1] ",
        '"bf61"',
        '"bfloat16"',
    ),
    "comparison of text": (
        rule('dtype: ">3", reason: x'),
        "matrix-rule-comparison",
        "m.yaml:8: exclude[0].dtype ",
        '">3"',
    ),
    "comparison with text": (
        rule('hidden: "> x", reason: x'),
        "matrix-rule-not-a-number",
        "m.yaml:8: exclude[0].hidden ",
        '"> x"',
        '"x"',
    ),
    "rule's number as text": (
        rule('hidden: "64", reason: x'),
        "matrix-rule-integer",
        "m.yaml:8: exclude[0].hidden ",
        '"64"',
        '">8192"',
    ),
    "rules a mapping": (
        BASE + "exclude: {hidden: 64, reason: x}\n",
        "matrix-wrong-kind",
        "m.yaml:7: exclude ",
        "mapping",
        "list",
    ),
}


TIMING: Table = {
    "method": (
        BASE + "timing: {method: rotating_grap}\n",
        "matrix-timing-method",
        "m.yaml:7: timing.method ",
        '"rotating_grap"',
        '"rotating_graph"',
    ),
    "cache": (BASE + "timing: {cache: hot}\n", "matrix-timing-cache", "m.yaml:7: timing.cache ", '"hot"', "cold, warm"),
    "field": (
        BASE + "timing: {min_sample: 30}\n",
        "matrix-timing-field",
        "m.yaml:7: timing.min_sample ",
        '"min_samples"',
    ),
    "samples": (
        BASE + "timing: {min_samples: 0}\n",
        "matrix-out-of-range",
        "m.yaml:7: timing.min_samples ",
        "0",
        "1",
        "1000000",
    ),
    "least above most": (
        BASE + "timing: {min_samples: 300}\n",
        "matrix-timing-samples",
        "m.yaml:7: timing ",
        "300",
        "200",
    ),
    "twice": (
        BASE + "timing: [{cache: warm}, {cache: warm}]\n",
        "matrix-value-twice",
        "m.yaml:7: timing[1] ",
        "cache=warm",
        "line 7",
    ),
    "sim key": (BASE + "sim: {time_us: 10}\n", "matrix-sim-key", "m.yaml:7: sim.time_us ", "default, rules"),
    "script key": (
        BASE + "sim: {default: {erorr: 0.1}}\n",
        "matrix-script-key",
        "m.yaml:7: sim.default.erorr ",
        '"error"',
    ),
    "script value": (
        BASE + "sim: {default: {signal: kill}}\n",
        "matrix-script-value",
        "m.yaml:7: sim.default.signal ",
        '"kill"',
        "0",
    ),
    "script switch": (BASE + "sim: {default: {cold: 1}}\n", "matrix-script-value", "m.yaml:7: sim.default.cold ", "1"),
    "script phase": (
        BASE + "sim: {default: {hang: spawn}}\n",
        "matrix-script-value",
        "m.yaml:7: sim.default.hang ",
        '"spawn"',
        "(import, compile, check, timing)",
    ),
    "script status": (
        BASE + "sim: {default: {status: passd}}\n",
        "matrix-script-status",
        "m.yaml:7: sim.default.status ",
        '"passd"',
        '"passed"',
    ),
    "script owner": (
        BASE + "sim: {default: {status: crashed, owner: nobody}}\n",
        "matrix-script-owner",
        "m.yaml:7: sim.default.owner ",
        '"nobody"',
        "harness",
    ),
    "script telemetry": (
        BASE + "sim: {default: {telemetry: {power: 3}}}\n",
        "matrix-script-key",
        "m.yaml:7: sim.default.telemetry.power ",
        '"power_w"',
    ),
    "script list": (
        BASE + "sim: {rules: {when: {rows: 1}}}\n",
        "matrix-wrong-kind",
        "m.yaml:7: sim.rules ",
        "mapping",
        "list",
    ),
    "script's cells": (
        BASE + "sim: {rules: [{when: {hiden: 1}, exit: 3}]}\n",
        "matrix-rule-key",
        "m.yaml:7: sim.rules[0].when.hiden ",
        '"hidden"',
    ),
    "script's rule": (
        BASE + "sim: {rules: [{wen: {hidden: 1}, exit: 3}]}\n",
        "matrix-script-key",
        "m.yaml:7: sim.rules[0].wen ",
        '"when"',
    ),
    "twice once resolved": (
        BASE + "timing: [{cache: cold}, {method: host}]\n",
        "matrix-timing-twice",
        "m.yaml:7: timing ",
        "sim",
    ),
}


@pytest.mark.parametrize(("text", "id", "place", "facts"), all_of(PROVIDERS, RULES, TIMING))
def test_what_is_wrong_is_refused_in_one_sentence(
    tmp_path: Path, text: str | bytes, id: str, place: str, facts: tuple[str, ...]
) -> None:
    check(refusal(tmp_path, text), id, place, *facts)


TOLERANCE = "{output: y, metric: rel_l2, limit: 1e-3, reason: r, date: 2026-11-20}"
TOLERANCES: Table = {
    "no date": (TOLERANCE.replace(", date: 2026-11-20", ""), "matrix-tolerance-no-date", "m.yaml:8: tolerances[0] "),
    "date": (
        TOLERANCE.replace("2026-11-20", "20th"),
        "matrix-tolerance-date",
        "m.yaml:8: tolerances[0].date ",
        '"20th"',
        "2026-01-31",
    ),
    "limit": (TOLERANCE.replace("1e-3", "-1"), "matrix-tolerance-limit", "m.yaml:8: tolerances[0].limit ", "-1"),
    "key": (
        TOLERANCE.replace("limit:", "limits:"),
        "matrix-tolerance-key",
        "m.yaml:8: tolerances[0].limits ",
        '"limit"',
    ),
    "matches nothing": (
        TOLERANCE.replace("{", "{match: {dtype: bf16}, ", 1),
        "matrix-rule-matches-nothing",
        "m.yaml:8: tolerances[0] ",
        "(dtype=bfloat16)",
    ),
}


@pytest.mark.parametrize(("text", "id", "place", "facts"), all_of(TOLERANCES))
def test_a_wrong_tolerance(tmp_path: Path, text: str, id: str, place: str, facts: tuple[str, ...]) -> None:
    check(refusal(tmp_path, f"{BASE}tolerances:\n  - {text}\n"), id, place, *facts)
