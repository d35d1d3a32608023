"""A node's configuration: what it may contain, and the one sentence for each error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from farm.errors import UsageError
from farm.node import config
from farm.node.environment import Environment

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
        "model": "AMD Instinct MI300X",
        "devices": 2,
        "power_limit_w": 750,
        "module": "oam-0",
        "flavour": "3.1",
    }


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
    with pytest.raises(UsageError) as refused:
        config.load({"FARM_NODE": str(tmp_path / "missing.yaml")})
    assert refused.value.id == "node-config-yaml" and str(tmp_path / "missing.yaml") in str(refused.value)
    monkeypatch.setenv("FARM_NODE", str(other))
    assert config.load().backend == "cuda"


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    found = read(tmp_path, "# nothing yet\n")
    assert found == config.NodeConfig(file=str(tmp_path / "node.yaml"))


@pytest.mark.parametrize(
    ("text", "name", "facts"),
    [
        ("bakend: rocm", "key", ["node.yaml:1:", "bakend", '"backend"']),
        ("colour: red", "key", ["colour", "backend, devices"]),
        ("- rocm", "value", ["node.yaml:1:"]),
        ("backend: rocmm", "backend", ["node.yaml:1:", '"rocmm"', '"rocm"']),
        ("backend: rocm\nbackend: cuda", "yaml", ["backend", "line 1"]),
        ("backend: [rocm", "yaml", []),
        ("backend: rocm\n---\nbackend: cuda", "documents", []),
        ("devices: many", "value", ['devices is "many"', "1 to 1024"]),
        ("devices: 0", "value", ["devices is 0"]),
        ("devices: true", "value", ["devices is true"]),
        ("expect: {modle: x}", "key", ["expect.modle", '"model"']),
        ("expect: MI300X", "value", ['expect is "MI300X"']),
        ("expect: {driver: 6.10}", "number", ["expect.driver"]),
        ("expect: {model: ''}", "value", ['expect.model is ""']),
        ("labels: {'a b': c}", "label", ["labels.a b "]),
        ("labels: {backend: cuda}", "label-reserved", ["labels.backend"]),
        ("labels: {a: 'b c'}", "label", ["labels.a "]),
        ("labels: {a: [b]}", "value", ["labels.a "]),
        ("environments: {x: {}}", "environment-start", ["environments.x "]),
        ("environments: {x: {python: /p, command: [a, '{child}']}}", "environment-start", ["environments.x "]),
        ("environments: {x: {python: python3}}", "path", ["environments.x.python"]),
        ("environments: {x: {pyton: /p}}", "key", ["environments.x.pyton", '"python"']),
        ("environments: {'x y': {python: /p}}", "name", ["environments.x y "]),
        ("environments: {x: {command: python}}", "value", ['environments.x.command is "python"']),
        ("environments: {x: {command: [python3]}}", "command-child", ["environments.x.command", "{child}"]),
        ("environments: {x: {command: ['{chidl}', '{child}']}}", "template", ['"{chidl}"', '"{child}"']),
        ("environments: {x: {command: ['a{env}', '{child}']}}", "template", ['"{env}"', '"a{env}"']),
        ("environments: {x: {python: /p, end: [kill]}}", "end", ["environments.x.end", "wrapped: true"]),
        ("environments: {x: {python: /p, wrapped: 1}}", "value", ["environments.x.wrapped is 1"]),
        ("environments: {x: {python: /p, variables: {PYTHONPATH: /a}}}", "variable-reserved", ["PYTHONPATH", "path"]),
        (
            "environments: {x: {python: /p, variables: {HIP_VISIBLE_DEVICES: '0'}}}",
            "variable-reserved",
            ["environments.x.variables.HIP_VISIBLE_DEVICES"],
        ),
        ("environments: {x: {python: /p, variables: {1a: b}}}", "variable", ["environments.x.variables.1a"]),
        ("environments: {x: {python: /p, pass: HF_HOME}}", "value", ['environments.x.pass is "HF_HOME"']),
        ("environments: {x: {python: /p, pass: ['*']}}", "pass", ["environments.x.pass[0]", "HF_*"]),
        ("environments: {x: {python: /p, pass: [A*B]}}", "pass", ["environments.x.pass[0]"]),
        ("environments: {x: {python: /p, pass: [HF_HOME, RAY_*]}}", "pass", ["environments.x.pass[1]", "variables"]),
        ("environments: {x: {python: /p, pass: [CUDA_VISIBLE_DEVICES]}}", "pass", ["environments.x.pass[0]"]),
        ("environments: {x: {python: /p, path: [a]}}", "path", ["environments.x.path[0]"]),
        ("simulate: {model: x}", "simulate", ["simulate", "backend"]),
        ("backend: rocm\nsimulate: {modell: x}", "key", ["simulate.modell", '"model"']),
        ("backend: rocm\nsimulate: {devices: none}", "value", ["node.yaml:2:", 'simulate.devices is "none"']),
    ],
)
def test_what_is_wrong_is_reported_in_one_sentence(tmp_path: Path, text: str, name: str, facts: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        read(tmp_path, text)
    sentence = str(refused.value)
    assert refused.value.id == f"node-config-{name}"
    assert all(fact in sentence for fact in facts), sentence
    assert sentence.startswith(f"{tmp_path / 'node.yaml'}:")
    assert "\n" not in sentence
    assert "matrix" not in sentence
    assert refused.value.exit_code == 2


def test_an_environment_passes_variables_of_the_host(tmp_path: Path) -> None:
    found = read(tmp_path, "environments: {x: {python: /p, pass: [HF_TOKEN, 'SSL_*']}}")
    assert found.environments["x"].passed == ("HF_TOKEN", "SSL_*")


def test_an_environment_by_name(tmp_path: Path) -> None:
    text = f"environments: {{mine: {{python: {sys.executable}}}, gone: {{python: /nowhere/python}}}}"
    found = read(tmp_path, text)
    assert config.environment(found, "mine").python == sys.executable
    own = config.environment(found, "default")
    assert own.own
    assert own.path == Environment.default().path
    for there, name, identifier, facts in (
        (found, "min", "node-no-environment", ['"min"', '"mine"']),
        (found, "zz", "node-no-environment", ['"zz"', "default, gone, mine"]),
        (found, "gone", "node-no-interpreter", ["environments.gone.python", "/nowhere/python"]),
        (config.NodeConfig(), "mine", "node-no-environment", ["FARM_NODE"]),
    ):
        with pytest.raises(UsageError) as refused:
            config.environment(there, name)
        assert refused.value.id == identifier
        assert all(fact in str(refused.value) for fact in facts), refused.value


def test_a_default_that_the_node_names_is_not_the_supervisors_own(tmp_path: Path) -> None:
    found = read(tmp_path, f"environments: {{default: {{python: {sys.executable}}}}}")
    assert not config.environment(found, "default").own


def test_an_interpreters_symbolic_link_is_kept(tmp_path: Path) -> None:
    """A virtual environment is known by the link that it is started by."""
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    found = read(tmp_path, f"environments: {{mine: {{python: {link}}}}}")
    assert config.environment(found, "mine").python == str(link)
