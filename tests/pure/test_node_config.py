"""A node's configuration: what it may say, and the one sentence for each thing that it may not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from farm.actor.supervise import Environment
from farm.errors import UsageError
from farm.nodes import config

WHOLE = """
backend: rocm
devices: 8
expect: {model: MI300X, partition: "", driver: "6.12", torch: "2.9"}
labels: {rack: r7, room: 2}
environments:
  default: {python: /opt/rocm/bin/python, variables: {HSA_XNACK: 0, EMPTY: ""}, path: [/opt/extra]}
  box:
    command: [docker, run, -i, "{env}", --name, "{name}", image, python3, "{child}"]
    wrapped: true
    end: [docker, kill, "{name}"]
simulate: {model: AMD Instinct MI300X, devices: 2, power_limit_w: 750, module: oam-0, flavour: "3.1"}
"""


def read(folder: Path, text: str) -> config.NodeConfig:
    file = folder / "node.yaml"
    file.write_text(text, encoding="utf-8")
    return config.read(file)


def test_all_of_it(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE)
    assert (found.backend, found.devices, found.file) == ("rocm", 8, str(tmp_path / "node.yaml"))
    assert found.expect == {"model": "MI300X", "partition": "", "driver": "6.12", "torch": "2.9"}
    assert found.labels == {"rack": "r7", "room": "2"}
    assert found.environments["default"] == Environment(
        name="default", python="/opt/rocm/bin/python", variables={"HSA_XNACK": "0", "EMPTY": ""}, path=("/opt/extra",)
    )
    box = found.environments["box"]
    assert (box.wrapped, box.end, box.python) == (True, ("docker", "kill", "{name}"), "")
    assert not box.own
    assert found.simulate == {
        "model": "AMD Instinct MI300X", "devices": 2, "power_limit_w": 750, "module": "oam-0", "flavour": "3.1"
    }  # fmt: skip


def test_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "n.yaml"
    file.write_text("backend: cpu\n")
    monkeypatch.setattr(config, "DEFAULT_FILE", tmp_path / "none.yaml")
    assert config.load({}) == config.NodeConfig()
    assert config.load({"FARM_NODE": str(file)}).backend == "cpu"
    monkeypatch.setattr(config, "DEFAULT_FILE", file)
    assert config.load({}).backend == "cpu"
    other = tmp_path / "other.yaml"
    other.write_text("backend: cuda\n")
    assert config.load({"FARM_NODE": str(other)}).backend == "cuda"  # what is named comes first
    with pytest.raises(UsageError, match="there is no such file"):
        config.load({"FARM_NODE": str(tmp_path / "missing.yaml")})
    monkeypatch.setenv("FARM_NODE", str(other))
    assert config.load().backend == "cuda"


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    found = read(tmp_path, "# nothing yet\n")
    assert found == config.NodeConfig(file=str(tmp_path / "node.yaml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bakend: rocm", 'node.yaml:1: bakend is unknown; did you mean "backend"?'),
        ("colour: red", "colour is unknown; the keys of a node's configuration are backend, devices"),
        ("- rocm", "node.yaml:1: the configuration is a list; it must be a mapping (name: value)"),
        ("backend: rocmm", 'node.yaml:1: backend is "rocmm"; did you mean "rocm"?'),
        ("backend: rocm\nbackend: cuda", "backend is given twice (first in line 1)"),
        ("backend: [rocm", "is not YAML"),
        ("backend: rocm\n---\nbackend: cuda", "a second document; a node has one configuration"),
        ("devices: many", 'devices is "many"; it must be a whole number from 1 to 1024'),
        ("devices: 0", "devices is 0; it must be a whole number"),
        ("devices: true", "devices is true; it must be a whole number"),
        ("expect: {modle: x}", 'expect.modle is unknown; did you mean "model"?'),
        ("expect: MI300X", 'expect is "MI300X"; it must be a mapping'),
        ("expect: {driver: 6.10}", "expect.driver reads as a number, which would lose its last zeros; put it"),
        ("expect: {model: ''}", 'expect.model is ""; it must be text'),
        ("labels: {'a b': c}", "labels.a b is no label's name"),
        ("labels: {backend: cuda}", "labels.backend is set by the farm"),
        ("labels: {a: 'b c'}", "labels.a is no label's value"),
        ("labels: {a: [b]}", "labels.a is a list; it must be text"),
        ("environments: {x: {}}", "environments.x needs either python (the path of an interpreter) or command"),
        ("environments: {x: {python: /p, command: [a, '{child}']}}", "environments.x needs either python"),
        ("environments: {x: {python: python3}}", "environments.x.python is no absolute path"),
        ("environments: {x: {pyton: /p}}", 'environments.x.pyton is unknown; did you mean "python"?'),
        ("environments: {'x y': {python: /p}}", "environments.x y is no name"),
        ("environments: {x: {command: python}}", 'environments.x.command is "python"; it must be a list of words'),
        ("environments: {x: {command: [python3]}}", "environments.x.command never starts the child"),
        ("environments: {x: {command: ['{chidl}', '{child}']}}", 'holds "{chidl}", which stands for nothing; did you'),
        ("environments: {x: {command: ['a{env}', '{child}']}}", 'holds "{env}" inside "a{env}"'),
        ("environments: {x: {python: /p, end: [kill]}}", "environments.x.end ends what a client left behind"),
        ("environments: {x: {python: /p, wrapped: 1}}", "environments.x.wrapped is 1; it must be true or false"),
        ("environments: {x: {python: /p, variables: {PYTHONPATH: /a}}}", "is the farm's to set; use path"),
        ("environments: {x: {python: /p, variables: {HIP_VISIBLE_DEVICES: '0'}}}",
         "environments.x.variables.HIP_VISIBLE_DEVICES is the farm's to set; remove it: it would show a child another"),
        ("environments: {x: {python: /p, variables: {1a: b}}}", "environments.x.variables.1a is no variable's name"),
        ("environments: {x: {python: /p, path: [a]}}", "environments.x.path[0] is no absolute path"),
        ("simulate: {model: x}", "simulate needs backend, which says whose devices the fakes play"),
        ("backend: rocm\nsimulate: {modell: x}", 'simulate.modell is no key of a fake; did you mean "model"?'),
        ("backend: rocm\nsimulate: {devices: none}", 'node.yaml:2: simulate.devices is "none"'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    told = str(caught.value)
    assert said in told, told
    assert told.startswith(f"{tmp_path / 'node.yaml'}:")
    assert "\n" not in told
    assert "matrix" not in told
    assert caught.value.exit_code == 2


def test_an_environment_by_name(tmp_path: Path) -> None:
    text = f"environments: {{mine: {{python: {sys.executable}}}, gone: {{python: /nowhere/python}}}}"
    found = read(tmp_path, text)
    assert config.environment(found, "mine").python == sys.executable
    own = config.environment(found, "default")
    assert own.own
    assert own.path == Environment.default().path
    with pytest.raises(UsageError, match='there is no environment "min"; did you mean "mine"'):
        config.environment(found, "min")
    with pytest.raises(UsageError, match=r'there is no environment "zz"; it has default, gone, mine'):
        config.environment(found, "zz")
    with pytest.raises(UsageError, match=r"environments.gone.python is /nowhere/python, which is no program here"):
        config.environment(found, "gone")
    with pytest.raises(UsageError, match=r"this node has no configuration \(FARM_NODE is not set\)"):
        config.environment(config.NodeConfig(), "mine")


def test_a_default_that_the_node_names_is_not_the_supervisors_own(tmp_path: Path) -> None:
    found = read(tmp_path, f"environments: {{default: {{python: {sys.executable}}}}}")
    assert not config.environment(found, "default").own


def test_an_interpreters_symbolic_link_is_kept(tmp_path: Path) -> None:
    """A virtual environment is known by the link that it is started by."""
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    found = read(tmp_path, f"environments: {{mine: {{python: {link}}}}}")
    assert config.environment(found, "mine").python == str(link)
