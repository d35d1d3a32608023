"""How a child's command and variables are made: what is filled in, what leaks, what is handed on."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from farm import backends
from farm.actor import child_process
from farm.node import environment
from farm.node.environment import MASKS, START, Environment, check_template, child_variables, filled, given_variables

VALUES: dict[str, Any] = {
    "python": "/sup/python",
    "path": "/b1:/b2",
    "spool": "/spool",
    "name": "farm-1",
    "device": "3",
    "uid": "7",
    "gid": "8",
    "child": START,
    "env": ["--env", "A=1", "--env", "B=2 3"],
}


@pytest.mark.parametrize(
    ("words", "want"),
    [
        (["{python}", "{child}"], ["/sup/python", *START]),
        (["run", "{env}", "x"], ["run", "--env", "A=1", "--env", "B=2 3", "x"]),
        (["-v", "{spool}:{spool}:rw"], ["-v", "/spool:/spool:rw"]),
        (["--user", "{uid}:{gid}", "/dev/davinci{device}"], ["--user", "7:8", "/dev/davinci3"]),
        (["{{.ID}}", "{{{name}}}", "{{env}}"], ["{.ID}", "{farm-1}", "{env}"]),
        (["{}", "{ name }", "a{b", "{NAME}"], ["{}", "{ name }", "a{b", "{NAME}"]),
        (["PYTHONPATH={path}"], ["PYTHONPATH=/b1:/b2"]),
    ],
)
def test_a_template_is_filled(words: list[str], want: list[str]) -> None:
    assert filled(words, VALUES) == want


@pytest.mark.parametrize(
    ("word", "facts"),
    [
        ("{nam}", ['"{nam}"', '"{name}"']),
        ("{zzzz}", ['"{zzzz}"', "python, path"]),
        ("x{child}", ['"{child}"', '"x{child}"']),
    ],
)
def test_an_unknown_or_misplaced_placeholder_is_refused(word: str, facts: list[str]) -> None:
    with pytest.raises(ValueError) as refused:
        check_template([word])
    assert all(fact in str(refused.value) for fact in facts), refused.value
    with pytest.raises(ValueError):
        filled([word], VALUES)


LEAKS = {
    "RAY_AUTH_TOKEN": "secret",
    "RAY_ADDRESS": "x",
    "PYTHONPATH": "/sup",
    "PYTHONHOME": "/sup",
    "PYTHONSTARTUP": "x",
    "VIRTUAL_ENV": "/sup/venv",
    "VIRTUAL_ENV_PROMPT": "v",
    "OMP_NUM_THREADS": "1",
    "TRITON_INTERPRET": "1",
}
SHELLS = {"CONDA_PREFIX": "/conda", "CONDA_DEFAULT_ENV": "base"}
KEPT = {"LD_LIBRARY_PATH": "/driver", "HOME": "/home/me", "FARM_NODE": "/etc/n.yaml", "LC_ALL": "C.UTF-8"}
#: What a host of CI has: secrets, and what nobody knows.
SECRETS = {
    "GITHUB_TOKEN": "canary",
    "ACTIONS_RUNTIME_TOKEN": "canary",
    "AWS_ACCESS_KEY_ID": "canary",
    "AWS_SESSION_TOKEN": "canary",
    "HF_TOKEN": "canary",
    "NVIDIA_API_KEY": "canary",
    "CUDA_REGISTRY_PASSWORD": "canary",
    "UV_INDEX_URL": "https://me:canary@index",
    "PYENV_VERSION": "3.9.1",
    "SSH_AUTH_SOCK": "/canary",
    "https_proxy": "http://me:canary@proxy",
    "MY_CANARY": "canary",
}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The supervisor's environment, inside a virtual environment."""
    made = {**LEAKS, **SHELLS, **SECRETS, **KEPT, "PATH": "/sup/venv/bin:/opt/vendor/bin:/usr/bin"}
    monkeypatch.setattr(environment.os, "environ", made)
    monkeypatch.setattr(environment.sys, "prefix", "/sup/venv")
    monkeypatch.setattr(environment.sys, "base_prefix", "/usr")
    return made


OTHER = Environment("x", python="/opt/torch/bin/python", path=("/b1", "/b2"), variables={"A": "1"})
COMMAND = Environment("x", command=("box", "{child}"), path=("/b1", "/b2"))


@pytest.mark.parametrize("env", [OTHER, COMMAND], ids=["python", "command"])
def test_nothing_of_the_supervisors_python_reaches_another(host: dict[str, str], env: Environment) -> None:
    got = child_variables({"HIP_VISIBLE_DEVICES": "3"}, env)
    assert not {*LEAKS, *SHELLS} & set(got) - {"PYTHONPATH"}
    assert got["PYTHONPATH"] == "/b1:/b2"
    assert got["HIP_VISIBLE_DEVICES"] == "3"
    assert {k: got[k] for k in KEPT} == KEPT
    assert "/sup/venv/bin" not in got["PATH"].split(":")
    assert got["FARM_PARENT"] == str(os.getpid())


OWN = Environment(path=("/sup/site",))


@pytest.mark.parametrize("env", [OWN, OTHER, COMMAND], ids=["own", "python", "command"])
def test_no_secret_of_the_host_reaches_a_child(host: dict[str, str], env: Environment) -> None:
    got = child_variables({"CUDA_VISIBLE_DEVICES": "0"}, env)
    assert not set(SECRETS) & set(got) and "canary" not in str(got)
    assert set(environment.dropped(env)) == set(host) - set(got) | ({"PYTHONPATH"} & set(host))


def test_what_a_child_inherits_is_a_list_and_not_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of random names a child gets those that the list names, and of those none that looks like a secret; `pass` adds
    what it names, except what is never passed."""
    chance = random.Random(13)
    words = ["CUDA", "HIP", "ASCEND", "TRITON", "FARM", "AWS", "X", "GITHUB", "RAY", "PYTHON", "TOKEN", "KEY", "HOME"]
    secret = {"TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIALS"}
    for _ in range(300):
        names = {"_".join(chance.sample([*words, *secret], chance.randint(1, 3))) for _ in range(8)}
        monkeypatch.setattr(environment.os, "environ", dict.fromkeys(names, "v"))
        passed = tuple(
            {
                n[: chance.randint(1, len(n))] + "*" if chance.random() < 0.5 else n
                for n in names
                if chance.random() < 0.3
            }
        )
        for env in (Environment(), Environment("x", python="/p/python", passed=passed)):
            got = {k for k in child_variables({}, env) if k in names and k not in ("PYTHONPATH", "FARM_PARENT", "PATH")}
            for name in names - {"PATH"}:
                asked = any(name.startswith(p[:-1]) if p.endswith("*") else name == p for p in env.passed)
                parts = set(name.split("_"))
                if name.startswith(("RAY_", "PYTHON")):
                    assert name not in got
                elif asked:
                    assert name in got and name in given_variables({}, env)
                else:
                    listed = name == "HOME" or name.startswith(("CUDA_", "HIP_", "ASCEND_", "TRITON_", "FARM_"))
                    assert (name in got) == (listed and not parts & secret), name


def test_an_environment_without_pass_is_one_that_an_older_node_reads() -> None:
    assert "passed" not in OTHER.plain()
    passing = Environment("x", python="/p/python", passed=("HF_*",))
    assert Environment.of(json.loads(json.dumps(passing.plain()))) == passing


def test_the_interpreters_own_programs_come_first(host: dict[str, str]) -> None:
    assert child_variables({}, OTHER)["PATH"] == "/opt/torch/bin:/opt/vendor/bin:/usr/bin"
    again = Environment("x", python="/opt/vendor/bin/python")
    assert child_variables({}, again)["PATH"] == "/opt/vendor/bin:/usr/bin"
    assert child_variables({}, COMMAND)["PATH"] == "/opt/vendor/bin:/usr/bin"


def test_the_supervisors_own_python_keeps_its_shell(host: dict[str, str]) -> None:
    own = Environment(path=("/sup/site",))
    assert own.own
    got = child_variables({}, own)
    assert not set(LEAKS) & set(got) - {"PYTHONPATH"}
    assert {k: got[k] for k in SHELLS} == SHELLS
    assert got["PATH"] == host["PATH"]
    assert got["PYTHONPATH"] == "/sup/site"


def test_an_environments_own_variables_come_last(host: dict[str, str]) -> None:
    got = child_variables({"A": "backend", "B": "backend"}, OTHER)
    assert (got["A"], got["B"]) == ("1", "backend")


@pytest.mark.parametrize("backend", ["ascend", "cuda", "rocm"])
def test_no_environment_shows_a_child_another_device_than_the_locked_one(host: dict[str, str], backend: str) -> None:
    mask = {k: v for k, v in backends.get(backend).child_env("3").items() if k in MASKS}
    assert "3" in mask.values()
    other = Environment("x", python="/p/python", variables=dict.fromkeys(MASKS, "0,1,2,3,4"))
    assert mask.items() <= given_variables(mask, other).items()
    assert mask.items() <= child_variables(mask, other).items()


def test_what_is_handed_to_a_container_is_what_the_farm_sets(host: dict[str, str]) -> None:
    wrapped = Environment("x", command=("box", "{child}"), wrapped=True, variables={"A": "1"}, path=("/b",))
    assert given_variables({"MASK": "0"}, wrapped) == {
        "MASK": "0",
        "PYTHONPATH": "/b",
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",
        "FARM_WRAPPED": "1",
        "A": "1",
    }
    assert "FARM_WRAPPED" not in given_variables({}, OTHER)


def test_an_environment_travels_as_plain_data() -> None:
    for one in (
        Environment.default(),
        OTHER,
        Environment.named("nightly"),
        Environment("b", command=("a", "{child}"), wrapped=True, end=("c",)),
    ):
        assert Environment.of(json.loads(json.dumps(one.plain()))) == one
    assert Environment.named("nightly").plain()["command"] == ()
    assert Environment.default().words() == ("{python}", "{child}")
    assert OTHER.words() == ("/opt/torch/bin/python", "{child}")


def test_an_interpreter_that_is_none_is_refused(tmp_path: Path) -> None:
    assert OTHER.own is False
    text = tmp_path / "python"
    text.write_text("")
    for place in (str(text), str(tmp_path), "/nowhere/python"):
        with pytest.raises(ValueError) as refused:
            Environment("x", python=place).located()
        assert place in str(refused.value)
    assert Environment("x", python=sys.executable).located().python == sys.executable
    assert COMMAND.located() == COMMAND


@pytest.mark.parametrize(
    ("wrapped", "code", "want"),
    [(True, 139, -11), (True, 137, -9), (True, 7, 7), (True, 128, 128), (True, -9, -9), (False, 139, 139)],
)
def test_what_a_client_says_of_its_containers_end(wrapped: bool, code: int, want: int) -> None:
    child = child_process.Child.__new__(child_process.Child)
    child._wrapped = wrapped
    assert child._code(code) == want
