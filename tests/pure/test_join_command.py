"""`farm nodes join` and `head` from the facts of a host to the command, for an executor and for a shell."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_walls import NO_IO, ROOT, tops

from farm.cli import nodes as cli
from farm.cluster.inventory import ClusterNode, nodes
from farm.errors import FarmError, Message, UsageError
from farm.node import join_command
from farm.node.join_command import JoiningHost, RayStart

RAY = ["/opt/farm/bin/ray"]


def joined(backend: str, environ: dict[str, str] | None = None, token: str = "", **host: object) -> RayStart:
    facts = {"name": "n1", "machine": "n1", "devices": 8, **host}
    return join_command.join(JoiningHost(backend, **facts), "10.0.0.1:6379", RAY, environ or {}, token)  # type: ignore[arg-type]


def option(start: RayStart, name: str) -> str:
    (found,) = [w.partition("=")[2] for w in start.words if w.startswith(f"--{name}=")]
    return found


@pytest.mark.parametrize(
    ("backend", "gpus", "resources"),
    [
        ("cuda", "8", None),
        ("rocm", "8", None),
        ("ascend", "0", {"NPU": 8}),
        ("cpu", "0", {"farm_cpu": 8}),
        ("sim", "0", {"farm_sim": 8}),
    ],
)
def test_devices_are_counted_by_us_and_never_by_ray(backend: str, gpus: str, resources: dict[str, int] | None) -> None:
    start = joined(backend)
    assert start.words[:3] == ("/opt/farm/bin/ray", "start", "--address=10.0.0.1:6379")
    assert option(start, "num-gpus") == gpus
    assert any(w.startswith("--resources") for w in start.words) == (resources is not None)
    if resources:
        assert json.loads(option(start, "resources")) == resources
    assert "--block" in start.words and "--disable-usage-stats" in start.words


def test_labels_say_backend_name_model_and_the_operators_own() -> None:
    start = joined("rocm", model="AMD Instinct MI300X", partition="cpx-nps4", labels={"rack": "r7"})
    assert option(start, "labels") == (
        "farm/backend=rocm,farm/node=n1,farm/model=AMD-Instinct-MI300X,farm/partition=cpx-nps4,farm/rack=r7"
    )
    two = option(joined("cuda", name="n1-gpu0", machine="n1"), "labels")  # of several nodes on one machine
    assert two == "farm/backend=cuda,farm/node=n1-gpu0,farm/host=n1"


def test_versions_are_labels_where_they_are_the_same_there() -> None:
    text = option(joined("cuda", driver="580.95.05", version="0.1.0+dev", protocol="1"), "labels")
    assert all(f"farm/{x}" in text for x in ("driver=580.95.05", "version=0.1.0-dev", "protocol=1"))
    assert "driver" not in option(joined("rocm", driver="6.12.12 (dkms)"), "labels")


def test_a_label_that_was_given_stands_over_the_one_that_was_read() -> None:
    assert "farm/model=MI300X" in option(
        joined("rocm", model="AMD Instinct MI300X", labels={"model": "MI300X"}), "labels"
    )


@pytest.mark.parametrize("labels", [{"rack": "a b"}, {"ra/ck": "a"}, {"rack": ""}, {"rack": "x" * 64}])
def test_a_label_that_ray_would_refuse_is_refused(labels: dict[str, str]) -> None:
    with pytest.raises(UsageError) as refused:
        joined("sim", labels=labels)
    assert refused.value.id == "node-label"


def test_our_labels_are_labels_to_ray() -> None:
    label_utils = pytest.importorskip("ray._private.label_utils")
    text = option(
        joined("cuda", model="NVIDIA GB200 (rev. a)", partition="mig-1g.18gb", labels={"x_y": "1.5"}), "labels"
    )
    assert label_utils.parse_node_labels_string(text)["farm/model"] == "NVIDIA-GB200-rev.-a"


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("NVIDIA H200", "NVIDIA-H200"),
        ("Ascend910B3", "Ascend910B3"),
        ("", ""),
        ("()", ""),
        ("-a.", "a"),
        ("x" * 62 + "-y", "x" * 62),
        ("  AMD  Instinct ", "AMD-Instinct"),
    ],
)
def test_free_text_as_a_label(text: str, label: str) -> None:
    assert join_command.label_of(text) == label


def test_every_node_has_the_settings_and_never_a_token_in_its_words_or_variables() -> None:
    environ = {"RAY_AUTH_TOKEN": "s3cret", "HOME": "/root", "FARM_NODE": "/etc/farm/gpu.yaml", "PYTHONPATH": "/src"}
    start = joined("cuda", environ, "/etc/farm/ray_token")
    for name, value in join_command.SETTINGS.items():
        assert start.variables[name] == value
    assert start.variables["FARM_NODE"] == "/etc/farm/gpu.yaml"
    assert "s3cret" not in "\n".join(start.shell())
    given = start.environment(environ)
    assert "s3cret" not in str(given)
    assert given["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize("path", ["/etc/farm/ray_token", ""])
@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RAY_AUTH_MODE": "token"},
        {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "x"},
        {"RAY_AUTH_TOKEN_PATH": "/t"},
    ],
)
def test_authentication_is_always_said(environ: dict[str, str], path: str) -> None:
    start = joined("sim", environ, path)
    given = start.environment(environ)
    assert given["RAY_AUTH_MODE"] == ("token" if path else "disabled")
    assert given.get("RAY_AUTH_TOKEN_PATH", "") == path
    assert "RAY_AUTH_TOKEN" not in given  # it would win over the file, and each process would show it
    assert (join_command.NODE_OPEN in start.notes) == (not path)


def test_ray_keeps_its_sessions_in_a_closed_folder() -> None:
    host = JoiningHost("sim", "n1")
    for start in (
        join_command.join(host, "h:1", RAY, {}, "/t", "/tmp/farm-7"),
        join_command.head(1, RAY, {}, "/t", folder="/tmp/farm-7"),
    ):
        assert "--temp-dir=/tmp/farm-7/ray" in start.words and start.folder == "/tmp/farm-7"
        assert start.shell()[-2] == "mkdir -p -m 700 /tmp/farm-7"


def test_the_rocr_trap_is_sprung_on_amd_nodes_alone() -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "2,3"}
    start = joined("rocm", environ)
    assert start.environment(environ)["HIP_VISIBLE_DEVICES"] == "2,3"
    assert "ROCR_VISIBLE_DEVICES" not in start.environment(environ)
    assert "unset ROCR_VISIBLE_DEVICES" in start.shell()
    assert joined("cuda", environ).environment(environ)["ROCR_VISIBLE_DEVICES"] == "2,3"


def test_what_the_operator_has_set_stands() -> None:
    environ = {"RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor", "RAY_health_check_period_ms": "9000"}
    assert joined("cuda", environ).variables["RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL"] == "minor"
    assert join_command.head(1, RAY, environ).variables["RAY_health_check_period_ms"] == "9000"


@pytest.mark.parametrize(
    "name", ["node/join_command", "node/masks", "node/slurm", "cluster/listing", "cluster/inventory"]
)
def test_what_decides_does_no_io(name: str) -> None:
    path = ROOT / "farm" / f"{name}.py"
    assert not tops(path) & NO_IO


def test_a_mask_of_the_host_is_printed_too() -> None:
    assert "export CUDA_VISIBLE_DEVICES=0,3" in joined("cuda", {"CUDA_VISIBLE_DEVICES": "0,3"}).shell()


def test_the_head_sees_lost_nodes_soon_and_has_no_devices() -> None:
    start = join_command.head(6380, RAY, {}, "/t", "10.0.0.1", 4)
    assert start.words[1:3] == ("start", "--head")
    assert (option(start, "port"), option(start, "num-gpus"), option(start, "num-cpus")) == ("6380", "0", "4")
    assert option(start, "node-ip-address") == "10.0.0.1"
    assert option(start, "labels") == "farm/role=head"
    for name, value in join_command.HEALTH.items():
        assert start.variables[name] == value


def test_what_is_printed_is_what_is_run(tmp_path: Path) -> None:
    """A shell that is given the lines starts the same words in the same environment."""
    report = tmp_path / "ray.py"
    report.write_text("import json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n")
    environ = {"ROCR_VISIBLE_DEVICES": "0", "RAY_AUTH_TOKEN": "old", "FARM_NODE": "/etc/farm/it's here.yaml"}
    host = JoiningHost("rocm", "n1", devices=1, labels={"rack": "r7"})
    start = join_command.join(host, "10.0.0.1:6379", [sys.executable, str(report)], environ, "/etc/farm/ray token")
    base = {"PATH": os.environ["PATH"], **environ}
    done = subprocess.run(
        ["bash", "-c", "\n".join(start.shell())], env=base, capture_output=True, text=True, check=True
    )
    words, got = json.loads(done.stdout)
    assert tuple(words) == start.words[2:]
    assert {k: v for k, v in got.items() if k not in ("PWD", "SHLVL", "_", "LC_CTYPE")} == start.environment(base)


# the command line


@pytest.fixture
def farm(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Runs `farm nodes ...` on a host without a configuration: (exit code, out, err)."""
    for name in [n for n in os.environ if n.startswith(("RAY_", "FARM_", "ROCR_", "SLURM"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("farm.node.config.DEFAULT_FILE", Path("/nowhere/node.yaml"))

    def run(*argv: str) -> tuple[int, str, str]:
        import argparse

        top = argparse.ArgumentParser()
        cli.add(top.add_subparsers(dest="command"))
        capfd.readouterr()
        try:
            code = cli.run(top.parse_args(["nodes", *argv]))
        except FarmError as error:
            print(f"{error} [{error.id}]", file=sys.stderr)
            code = error.exit_code
        except SystemExit as error:
            code = int(error.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return run


Farm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This host plays one with four MI300X."""
    (tmp_path / "node.yaml").write_text(
        'backend: rocm\nlabels: {rack: r7}\nsimulate: {model: AMD Instinct MI300X, devices: 4, driver: "6.12.12"}\n'
    )
    monkeypatch.setenv("FARM_NODE", str(tmp_path / "node.yaml"))


@pytest.fixture
def playing(farm: Farm, simulated: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Farm:
    monkeypatch.setenv("FARM_NODE", str(tmp_path / "node.yaml"))  # after `farm` has cleaned the environment
    return farm


def test_a_dry_run_says_everything_and_starts_nothing(playing: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "execvpe", lambda *a: pytest.fail("it was started"))
    code, out, _ = playing(
        "join",
        "--head",
        "10.0.0.1",
        "--no-token",
        "--dry-run",
        "--skip-doctor",
        "--name",
        "n7",
        "--label",
        "pool=ci",
        "--ray=--num-cpus=2",
    )
    assert code == 0
    words = shlex.split(out.splitlines()[-1])
    assert "--address=10.0.0.1:6379" in words and "--num-gpus=4" in words and words[-1] == "--num-cpus=2"
    (labels,) = [w for w in words if w.startswith("--labels=")]
    assert "farm/backend=rocm,farm/node=n7" in labels and "farm/rack=r7" in labels and "farm/pool=ci" in labels
    assert "farm/model=AMD-Instinct-MI300X" in labels
    assert f"export FARM_NODE={os.environ['FARM_NODE']}" in out


def test_a_join_becomes_ray(playing: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    became = []
    monkeypatch.setattr(os, "execvpe", lambda file, words, env: became.append((file, words, env)))
    code, _, err = playing("join", "--head", "h:7000", "--skip-doctor", "--devices", "2")
    assert (code, became) == (2, []) and "[nodes-no-token]" in err
    playing("join", "--head", "h:7000", "--skip-doctor", "--devices", "2", "--no-token")
    ((file, words, env),) = became
    assert file == words[0] and "--num-gpus=2" in words and "--address=h:7000" in words
    assert env["RAY_AUTH_MODE"] == "disabled" and env["FARM_NODE"] == os.environ["FARM_NODE"]


def test_a_fault_that_doctor_finds_stops_a_join(playing: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    import farm.doctor
    from farm.doctor import Level

    bad = SimpleNamespace(level=Level.FAIL, section="backend rocm", what="amdsmi cannot be imported", cure="install it")
    asked = []
    monkeypatch.setattr(farm.doctor, "for_join", lambda b, h, variables: asked.append((b, h, variables)) or [bad])
    monkeypatch.setattr(os, "execvpe", lambda *a: pytest.fail("it was started"))
    code, _, err = playing("join", "--head", "h", "--no-token")
    assert code == 2 and [(b, h, v["RAY_AUTH_MODE"]) for b, h, v in asked] == [("rocm", "h:6379", "disabled")]
    assert "[nodes-not-ready]" in err and bad.what in err and bad.cure in err and "--skip-doctor" in err
    code, out, err = playing("join", "--head", "h", "--dry-run", "--no-token")  # which shows both
    assert code == 0 and "--num-gpus=4" in out and bad.what in err


def test_a_device_that_is_not_what_the_label_says_cannot_join(playing: Farm) -> None:
    words = ("--skip-doctor", "--dry-run", "--no-token", "--label", "model=MI355X")
    code, _, err = playing("join", "--head", "h", *words)
    assert code == 2
    assert "[node-device-differs]" in err
    assert "device 0 of this host" in err and "MI355X" in err and "AMD Instinct MI300X" in err


@pytest.mark.parametrize(
    ("argv", "identifier", "fact"),
    [
        (["join", "--head", "h", "--backend", "cuda"], "node-other-backend", "--backend rocm"),
        (["join", "--head", "h", "--backend", "rocmm"], "", '"rocm"'),
        (["join", "--head", "h:0"], "", "--head h:0"),
        (["join", "--head", "h:x"], "", "--head h:x"),
        (["join", "--head", "h", "--label", "rack"], "node-label", "--label rack=r7"),
        (["join", "--head", "h", "--label", "backend=cuda"], "node-label-reserved", "--label backend"),
        (["join", "--head", "h", "--devices", "0"], "nodes-devices", "--devices 0"),
        (["join", "--head", "h", "--name", "a b"], "nodes-name", '--name "a b"'),
        (["join", "--head", "h", "--token-path", "/nowhere/token"], "nodes-token-unreadable", "/nowhere/token"),
        (["join", "--head", "h", "--token-path", "/t", "--no-token"], "nodes-token-contradiction", "--no-token"),
        (["join", "--head", "h", "--slurm"], "slurm-no-time", "--time 4:00:00"),
        (["join", "--head", "h", "--slurm", "--time", "soon"], "slurm-time", '"soon"'),
        (["join", "--head", "h", "--slurm", "--time", "10", "--notice", "301"], "slurm-notice", "300 s"),
        (["join", "--head", "h", "--slurm", "--time", "60", "--sbatch=exclusive"], "slurm-option", '"exclusive"'),
        (["join", "--head", "h", "--time", "60"], "nodes-needs-slurm", "--time"),
        (["head", "--port", "0"], "nodes-port", "--port 0"),
        (["head", "--cpus", "-1"], "nodes-cpus", "--cpus -1"),
        (["--address", "local"], "nodes-no-cluster", "--address local"),
        (["drain", "n", "--wait", "-1"], "nodes-wait", "--wait -1"),
        (["drain"], "nodes-none-named", "--here"),
    ],
)
def test_what_cannot_be_meant_is_refused(playing: Farm, argv: list[str], identifier: str, fact: str) -> None:
    more = ["--skip-doctor", *([] if "--token-path" in argv else ["--no-token"])] if argv[0] == "join" else []
    code, out, err = playing(*argv, *more)
    assert code == 2 and fact in err and out == ""
    assert not identifier or f"[{identifier}]" in err, err


def test_a_host_without_the_device_cannot_join(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.backends.cuda.detect", lambda count=None: [])
    code, _, err = farm("join", "--head", "h", "--backend", "cuda", "--skip-doctor", "--no-token")
    assert code == 2 and "[node-no-device]" in err and "farm doctor --backend cuda" in err
    code, _, err = farm("join", "--head", "h", "--skip-doctor")
    assert code == 2 and "[nodes-no-backend]" in err


def test_a_token_that_others_can_read_is_refused(playing: Farm, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc")
    token.chmod(0o644)
    argv = ("join", "--head", "h", "--skip-doctor", "--dry-run", "--token-path", str(token))
    code, _, err = playing(*argv)
    assert code == 2 and "[nodes-token-exposed]" in err and f"chmod 600 {token}" in err
    token.chmod(0o600)
    code, out, _ = playing(*argv)
    assert code == 0 and f"export RAY_AUTH_TOKEN_PATH={token}" in out and "abc" not in out
    token.write_text("\n")
    code, _, err = playing(*argv)
    assert code == 2 and "[nodes-token-empty]" in err


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, farm: Farm) -> list[tuple[list[str], dict[str, str]]]:
    """(words, environment) of each Ray that this host's commands became; its folders are the test's."""
    made: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execvpe", lambda file, words, env: made.append((list(words), dict(env))))
    monkeypatch.setattr("farm.cluster.ray_folder.LONGEST_BASE", 1000)
    monkeypatch.setattr(cli, "_can_listen", lambda ip, port: None)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return made


def test_a_head_makes_its_token_once_and_prints_the_join(
    farm: Farm, started: list[tuple[list[str], dict[str, str]]], tmp_path: Path
) -> None:
    file = tmp_path / "state" / "farm" / "ray_token"
    code, out, _ = farm("head", "--ip", "10.0.0.1", "--dry-run")
    assert code == 0 and started == [] and not file.exists() and f"> {file}" in out
    for _ in range(2):
        code, _, err = farm("head", "--ip", "10.0.0.1")
        token = file.read_text()
        assert len(token) == 64 and file.stat().st_mode & 0o777 == 0o600
        assert f"farm nodes join --backend BACKEND --head 10.0.0.1:6379 --token-path {file}" in err
        assert f"RAY_AUTH_TOKEN_PATH={file} farm run" in err and token not in err
    (words, env), again = started
    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"]) == ("token", str(file)) and again[1] == env
    folder = tmp_path / f"farm-{os.getuid()}"
    assert f"--temp-dir={folder}/ray" in words and folder.stat().st_mode & 0o777 == 0o700
    file.chmod(0o644)
    code, _, err = farm("head")
    assert code == 2 and "[nodes-token-exposed]" in err


def test_a_head_and_a_node_without_a_token_are_asked_for(
    playing: Farm, started: list[tuple[list[str], dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # does not say it
    code, _, err = playing("join", "--head", "h", "--skip-doctor")
    assert code == 2 and "[nodes-no-token]" in err and "--no-token" in err
    for words in (("join", "--head", "h", "--skip-doctor"), ("head",)):
        code, _, err = playing(*words, "--no-token")
        assert not code and "no token: anyone" in err
        assert started[-1][1]["RAY_AUTH_MODE"] == "disabled"
        monkeypatch.setenv("RAY_AUTH_TOKEN", " ")
        code, _, err = playing(*words)
        assert code == 2 and "[ray-token-empty]" in err
        monkeypatch.delenv("RAY_AUTH_TOKEN")


def test_a_token_in_the_environment_goes_on_in_a_file(
    playing: Farm, started: list[tuple[list[str], dict[str, str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "s3cret")
    for words in (("head",), ("join", "--head", "h", "--skip-doctor")):
        assert playing(*words, "--dry-run")[0] == 0 and "s3cret" not in str(list(tmp_path.rglob("token-*")))
        assert not playing(*words)[0]
        env = started[-1][1]
        file = Path(env["RAY_AUTH_TOKEN_PATH"])
        assert "RAY_AUTH_TOKEN" not in env and file.read_text() == "s3cret"
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    code, _, err = playing("join", "--head", "h", "--slurm", "--time", "60")
    assert code == 2 and "[nodes-no-token]" in err


def test_a_folder_that_others_can_use_is_no_place_for_ray(
    farm: Farm, started: list[tuple[list[str], dict[str, str]]], tmp_path: Path
) -> None:
    (tmp_path / f"farm-{os.getuid()}").mkdir(mode=0o755)
    code, _, err = farm("head", "--no-token")
    assert (code, started) == (3, []) and "[ray-folder-not-private]" in err


@pytest.mark.parametrize(
    ("text", "address"),
    [("h", "h:6379"), ("h:7", "h:7"), ("10.0.0.1", "10.0.0.1:6379"), ("[::1]", "[::1]:6379"), ("[::1]:7", "[::1]:7")],
)
def test_the_heads_port_may_be_left_out(text: str, address: str) -> None:
    assert cli.head_address(text) == address


class TwoNodes:
    """A cluster that has n1 and n2, and hears who is drained."""

    def __init__(self, address: str):
        self.address = address

    drained: list[str]

    def table(self) -> list[ClusterNode]:
        labels = {"farm/backend": "sim"}
        row = {"Alive": True, "NodeManagerHostname": "h", "NodeManagerAddress": "a", "Resources": {}}
        return nodes({**row, "NodeID": f"id-{n}", "Labels": {**labels, "farm/node": n}} for n in ("n1", "n2"))

    def told(self) -> dict[str, Any]:
        return {"out": {}, "devices": {}, "damaged": Message("the file is bad", id="registry-damaged")}

    def runs(self) -> dict[str, dict[str, Any]]:
        held = {f"{n}/sim:0": {"node": n, "backend": "sim", "target": "sim:a", "since": 0.0} for n in ("n1", "n2")}
        return {"k": {"run": "r7", "user": "me@here", "devices": held, "patterns": {"sim": [""]}}}

    def drain(self, node: ClusterNode, reason: str, who: str, once: bool) -> None:
        self.drained.append(node.name)

    def idle(self, found: list[ClusterNode], wait_s: float) -> list[ClusterNode]:
        return found

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("words", "code", "drained", "facts"),
    [
        (["n1", "n2", "--once", "--wait", "9"], 0, ["n1", "n2"], []),
        (["n1", "n3", "n2", "--once", "--wait", "9"], 0, ["n1", "n2"], ['"n3"']),
        (["n3", "n4", "--once"], 2, [], ["[nodes-unknown]", "n3, n4"]),
        (["n3", "--once"], 2, [], ["[nodes-unknown]", '"n3"']),
        (["n1", "n3"], 2, [], ["[nodes-unknown]", '"n3"']),  # without --once, all of them or none
    ],
)
def test_a_node_of_an_allocation_that_is_gone_does_not_keep_the_others_from_being_drained(
    words: list[str], code: int, drained: list[str], facts: list[str], farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    TwoNodes.drained = []
    monkeypatch.setattr("farm.cluster.registry_client.RegistryClient", TwoNodes)
    ended, _, err = farm("drain", *words, "--address", "h:1")
    assert (ended, TwoNodes.drained) == (code, drained) and all(fact in err for fact in facts), err


@pytest.mark.parametrize(("nodes", "waits"), [(["n1"], False), (["n1", "n2"], True)])
def test_a_drain_says_which_runs_it_leaves_without_a_device(
    nodes: list[str], waits: bool, farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    TwoNodes.drained = []
    monkeypatch.setattr("farm.cluster.registry_client.RegistryClient", TwoNodes)
    ended, _, err = farm("drain", *nodes, "--address", "h:1")
    assert ended == 0 and "[registry-damaged]" in err
    assert ("[nodes-run-waits]" in err and "r7 of me@here" in err) is waits, err


def test_a_batch_script_needs_nothing_of_the_host_that_writes_it(
    farm: Farm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FARM_NODE", str(tmp_path / "only-on-compute-nodes.yaml"))
    words = ("join", "--backend", "rocm", "--head", "h", "--slurm", "--time", "60", "--no-token")
    code, out, err = farm(*words)
    assert code == 0 and "only-on-compute-nodes.yaml" in out, err
    code, _, err = farm(*words, "--name", "x")
    assert code == 2 and "[slurm-name]" in err


def test_a_dry_run_writes_no_batch_script_and_says_which(farm: Farm, tmp_path: Path) -> None:
    path = tmp_path / "node.sh"
    words = ("join", "--backend", "rocm", "--head", "h", "--slurm", "--time", "60", "--no-token", "--script", str(path))
    code, out, err = farm(*words, "--dry-run")
    assert code == 0 and list(tmp_path.iterdir()) == []
    assert len(err.splitlines()) == 1 and str(path) in err
    assert farm(*words)[0] == 0
    assert out == path.read_text() and out.startswith("#!")
    path.write_text("mine")
    code, again, err = farm(*words, "--dry-run")
    assert (code, again, path.read_text()) == (0, out, "mine") and str(path) in err
