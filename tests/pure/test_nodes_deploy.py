"""What lies under deploy/: units that systemd understands, manifests that fit the schema, and commands that exist.

None of it has been applied to a cluster of Kubernetes here.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from farm.cli.main import parser
from farm.cluster.inventory import nodes as roster_nodes
from farm.cluster.inventory import resource
from farm.node import config, join_command

jsonschema = pytest.importorskip("jsonschema")

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
KUBERAY = DEPLOY / "kuberay"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def manifest(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERAY / name).read_text(encoding="utf-8")))


@pytest.fixture
def cluster() -> dict[str, Any]:
    (found,) = manifest("raycluster.yaml")
    return copy.deepcopy(json.loads(json.dumps(found)))  # anchors are one object to PyYAML


def check(found: dict[str, Any]) -> None:
    schema = json.loads((KUBERAY / "raycluster.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(found)


def groups(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {g["labels"]["farm/backend"]: g for g in found["spec"]["workerGroupSpecs"]}


def container(group: dict[str, Any]) -> dict[str, Any]:
    (only,) = group["template"]["spec"]["containers"]
    return dict(only)


def test_the_manifest_fits_the_schema(cluster: dict[str, Any]) -> None:
    check(cluster)


def worker(found: dict[str, Any]) -> dict[str, Any]:
    return dict(found["spec"]["workerGroupSpecs"][0])


@pytest.mark.parametrize(
    "plant",
    [
        lambda c: c["spec"].update(authOption={"mode": "token"}),
        lambda c: c["spec"]["authOptions"].update(mode="disabled"),
        lambda c: c["spec"].pop("authOptions"),
        lambda c: worker(c)["labels"].pop("farm/backend"),
        lambda c: worker(c)["labels"].update({"farm/model": "AMD Instinct"}),
        lambda c: worker(c)["labels"].update({"ray.io/x": "y"}),
        lambda c: worker(c)["rayStartParams"].update(labels="farm/backend=cuda"),
        lambda c: worker(c)["rayStartParams"].update({"num-gpus": 4}),
        lambda c: container(worker(c))["resources"]["limits"].update({"nvidia.com/gpus": "4"}),
        lambda c: worker(c)["template"]["spec"]["nodeSelector"].update({"kubernetes.io/arch": "aarch64"}),
        lambda c: worker(c)["template"]["spec"].update(nodeSelectors={}),
        lambda c: worker(c)["template"]["spec"]["volumes"].append({"name": "none"}),
        lambda c: worker(c)["template"]["spec"]["tolerations"][0].update(operator="Exist"),
        lambda c: c.update(apiVersion="ray.io/v1alpha1"),
    ],
)
def test_the_schema_finds_what_is_planted(cluster: dict[str, Any], plant: Callable[[dict[str, Any]], object]) -> None:
    plant(cluster)
    with pytest.raises(jsonschema.ValidationError):
        check(cluster)


@pytest.mark.parametrize("image", ["farm", "farm:latest", "registry.example/farm:latest"])
def test_an_image_says_its_version(cluster: dict[str, Any], image: str) -> None:
    worker(cluster)["template"]["spec"]["containers"][0]["image"] = image
    with pytest.raises(jsonschema.ValidationError):
        check(cluster)


@pytest.mark.parametrize(
    ("backend", "device", "arch"),
    [
        ("cuda", "nvidia.com/gpu", "arm64"),
        ("rocm", "amd.com/gpu", "amd64"),
        ("ascend", "huawei.com/Ascend910", "arm64"),
    ],
)
def test_each_vendors_group_counts_its_devices_alike_for_both(
    cluster: dict[str, Any], backend: str, device: str, arch: str
) -> None:
    """Kubernetes' device plug-in and Ray count the same number of devices, Ray by the backend's resource."""
    group = groups(cluster)[backend]
    count = container(group)["resources"]["limits"][device]
    ray = {"GPU": float(group["rayStartParams"]["num-gpus"])}
    ray |= {k: float(v) for k, v in group.get("resources", {}).items()}
    row = {"NodeID": "1", "Alive": True, "Labels": group["labels"], "Resources": ray}
    assert roster_nodes([row])[0].count(backend) == int(count), resource(backend)
    spec = group["template"]["spec"]
    assert spec["nodeSelector"]["kubernetes.io/arch"] == arch
    assert ("aarch64" in container(group)["image"]) == (arch == "arm64")
    assert device in {t["key"] for t in spec["tolerations"]}


def test_every_pod_has_room_the_settings_and_time_to_drain(cluster: dict[str, Any]) -> None:
    secret = cluster["spec"]["authOptions"]["secretName"]
    text = (KUBERAY / "raycluster.yaml").read_text(encoding="utf-8")
    assert f"create secret generic {secret} --from-literal=auth_token=" in text
    for group in [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]:
        spec, only = group["template"]["spec"], container(group)
        set_to = {e["name"]: e["value"] for e in only["env"]}
        wanted = {**join_command.SETTINGS, **join_command.HEALTH}
        assert {k: v for k, v in wanted.items() if k != "RAY_DEDUP_LOGS"} == set_to
        shm = next(v for v in spec["volumes"] if v["name"] == "shm")
        assert shm["emptyDir"]["medium"] == "Memory"
        assert {"name": "shm", "mountPath": "/dev/shm"} in only["volumeMounts"]
        assert {m["name"] for m in only["volumeMounts"]} == {v["name"] for v in spec["volumes"]}
    for group in cluster["spec"]["workerGroupSpecs"]:
        words = container(group)["lifecycle"]["preStop"]["exec"]["command"]
        args = parser().parse_args(words[1:])
        assert words[0] == "farm" and args.here and args.once
        assert args.wait < group["template"]["spec"]["terminationGracePeriodSeconds"]


def test_each_groups_configuration_is_one(cluster: dict[str, Any], tmp_path: Path) -> None:
    found = {m["metadata"]["name"]: m for m in manifest("node-config.yaml")}
    for backend, group in groups(cluster).items():
        (volume,) = [v for v in group["template"]["spec"]["volumes"] if "configMap" in v]
        file = tmp_path / f"{backend}.yaml"
        file.write_text(found[volume["configMap"]["name"]]["data"]["node.yaml"])
        read = config.read(file)
        assert read.backend == backend
        assert read.expect["model"] == group["labels"]["farm/model"]
    volumes = cluster["spec"]["headGroupSpec"]["template"]["spec"]["volumes"]
    claims = [v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v]
    assert claims and all(found[c]["kind"] == "PersistentVolumeClaim" for c in claims)


def test_the_network_policy_is_for_every_pod_and_lets_in_no_other(cluster: dict[str, Any]) -> None:
    (policy,) = manifest("network-policy.yaml")
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    for group in [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]:
        assert chosen.items() <= group["template"]["metadata"]["labels"].items()
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": chosen}}]}]
    assert set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["metadata"]["namespace"] == cluster["metadata"]["namespace"]


# systemd


def exec_lines(unit: Path) -> list[str]:
    return re.findall(r"^Exec\w+=-?(.*)$", unit.read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("unit", UNITS, ids=lambda p: p.name)
def test_a_units_commands_are_commands(unit: Path) -> None:
    assert exec_lines(unit)
    for line in exec_lines(unit):
        told = line.replace("%i", "rocm").replace("%H", "n1").replace("${FARM_HEAD}", "h:6379")
        words = shlex.split(re.sub(r"\$\{\w+\}", "x", told))
        assert words[0] == "/opt/farm/bin/farm"
        args = parser().parse_args(words[1:])
        if args.action == "drain":  # systemd waits longer than the drain does
            (stop,) = re.findall(r"^TimeoutStopSec=(\d+)", unit.read_text(encoding="utf-8"), re.M)
            assert args.wait < int(stop)


@pytest.mark.parametrize("unit", UNITS, ids=lambda p: p.name)
def test_a_unit_says_how_nodes_prove_themselves(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    assert "RAY_AUTH_MODE=token" in text and "User=farm" in text and "NoNewPrivileges=yes" in text


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    def verify(*units: Path) -> str:
        done = subprocess.run(
            ["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, timeout=60, check=False
        )
        return "\n".join(line for line in done.stderr.splitlines() if "is not executable" not in line)

    assert verify(*UNITS) == ""
    bad = tmp_path / "bad.service"
    bad.write_text(UNITS[0].read_text(encoding="utf-8").replace("Restart=always", "Restart=allways"))
    assert "allways" in verify(bad)


# the guides


@pytest.mark.parametrize("name", ["cluster", "slurm"])
def test_commands_of_the_guides_are_commands(name: str) -> None:
    text = (DEPLOY.parent / "docs" / f"{name}.md").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"^(farm .*)$", text, re.M)
    assert found
    for line in found:
        parser().parse_args(shlex.split(line)[1:])


def test_the_guide_names_every_setting_and_every_file() -> None:
    text = (DEPLOY.parent / "docs" / "cluster.md").read_text(encoding="utf-8")
    assert [s for s in join_command.SETTINGS if s not in text] == []
    assert [f.name for f in [*UNITS, *KUBERAY.iterdir()] if f.name not in text] == []
