"""`farm doctor --head`: a real Ray head with a token is asked, and nothing joins it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from farm_process import ROOT, wait_for
from ray_head import free_port, ray_head

from farm.cluster import ray_token
from farm.doctor import Asked, Facts, HeadFacts, Level, TokenFacts, collect, examine

pytestmark = pytest.mark.ray
sys.path.append(str(ROOT / "tests" / "pure"))
from doctor_facts import SOUND  # noqa: E402 - from where the plants are

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a head that asks for TOKEN, and whose label says an older farm."""
    folder = tmp_path_factory.mktemp("head")
    with ray_head(folder, "--num-cpus=0", "--labels=farm/role=head,farm/version=0.0.1", token=TOKEN) as (address, _):
        yield address


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a token of former runs."""
    for name in [n for n in os.environ if n.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    return tmp_path


def asked(address: str) -> HeadFacts:
    return collect._head(address, os.environ)


def facts(address: str, found: HeadFacts) -> Facts:
    """A host that is sound but for its head, on this very Python and Ray."""
    import ray

    mine = {**SOUND.trials, "ray": replace(SOUND.trials["ray"], text=ray.__version__)}
    here = replace(SOUND, trials=mine, python=tuple(sys.version_info[:3]), token=TokenFacts("token", "a file"))
    return replace(here, head=found, asked=Asked(head=address))


def told(address: str, found: HeadFacts) -> dict[str, Level]:
    """What is said of the head."""
    return {
        f.code: f.level for f in examine(facts(address, found)) if f.section == "head" and f.code != "head-loopback"
    }


def test_the_right_token_gives_versions_and_nodes(head: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / "token"
    file.write_text(TOKEN + "\n")  # Ray cuts the line's end off
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    wait_for("the head's node is registered", lambda: bool(asked(head).trial.data.get("nodes")), 60)
    found = asked(head)
    assert found.trial.ok, found.trial
    import ray

    assert found.trial.data["ray"] == ray.__version__
    assert found.trial.data["python"] == ".".join(map(str, sys.version_info[:3]))
    assert [n["labels"]["farm/role"] for n in found.trial.data["nodes"]] == ["head"]
    assert abs(found.trial.data["clock_ahead_s"]) < 5
    assert told(head, found) == {"ok": Level.OK, "head-farm-version": Level.WARN}
    off = replace(found, trial=replace(found.trial, data={**found.trial.data, "clock_ahead_s": 60.0}))
    assert told(head, off)["head-clock"] is Level.WARN


def test_a_stale_token_is_refused_in_time_and_not_printed(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "stale-and-secret")
    found = asked(head)
    assert told(head, found) == {"head-token": Level.FAIL}
    assert "stale-and-secret" not in str(found)


def test_a_missing_token_ends_rays_process_and_is_told_as_such(head: str) -> None:
    found = asked(head)
    assert not found.trial.ok
    token = ray_token.look(os.environ, Path(os.environ["HOME"]))
    codes = {f.code for f in examine(replace(facts(head, found), token=token)) if f.level is Level.FAIL}
    assert codes == {"ray-token-missing"}


def test_a_host_that_thinks_there_is_no_token_is_refused(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert told(head, asked(head)) == {"head-token": Level.FAIL}


def test_where_nobody_listens_nobody_is_asked() -> None:
    port = free_port()
    assert told(f"127.0.0.1:{port}", asked(f"127.0.0.1:{port}")) == {"head-refused": Level.FAIL}
