"""What the children of two arms are started with, on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.actor.device_setup import DeviceSetup
from farm.node.environment import Environment
from farm.shipping import subjects

CONFIG: dict[str, Any] = {
    "device": "sim:0",
    "backend": "sim",
    "device_id": "0",
    "environment": Environment.default().plain(),
    "revision": "r",
    "deadlines": {},
}


def arm(text: str, **variables: str) -> dict[str, Any]:
    content = {"overlay/mylib.py": text.encode()}
    told = {"name": "mylib", "revision": text, "source": ".", "modules": ("mylib",), "over": False}
    packed = subjects.pack(content, variables={"sim": {"S": text}}, **told)
    environment = Environment.default().plain()
    return {"revision": text, "environment": environment, "variables": variables, "subject": packed.plain()}


def prepared(tmp_path: Path, **more: Any) -> DeviceSetup:
    found = DeviceSetup({**CONFIG, "spool": str(tmp_path), **more})
    found.prepare()
    return found


def test_each_arm_has_its_own_files_variables_and_cache(tmp_path: Path) -> None:
    setup = prepared(tmp_path, arms={"a": arm("one"), "b": arm("two", X="1", S="mine")})
    for tuning, frozen in (("freeze", "1"), ("each", "0"), ("none", "0")):
        own = prepared(tmp_path, arms={"a": {**arm("one"), "tuning": tuning}}).environment.variables
        assert (own["TRITON_CACHE_AUTOTUNING"], own.get("FARM_TUNING")) == (
            frozen,
            "none" if tuning == "none" else None,
        )
    assert setup.arms == ("a", "b") and setup.arm == "a"
    seen = {}
    for name in setup.arms:
        setup.use(name)
        variables = setup.environment.variables
        first = Path(setup.environment.path[0])
        seen[name] = (setup.revision, (first / "mylib.py").read_text(), variables.get("X"), variables["S"])
        assert variables["TRITON_CACHE_DIR"] == f"{tmp_path}/triton-{name}"
        assert variables["TRITON_CACHE_AUTOTUNING"] == "1"
    assert seen == {"a": ("one", "one", None, "one"), "b": ("two", "two", "1", "mine")}
    assert len({setup._arms[name].subject["digest"] for name in setup.arms}) == 2


@pytest.mark.parametrize("more", [{}, {"arms": {}}])
def test_a_run_of_one_arm_gets_none_of_that(tmp_path: Path, more: dict[str, Any]) -> None:
    setup = prepared(tmp_path, **more)
    assert setup.arms == ("",) and not setup.environment.variables and setup.revision == "r"
