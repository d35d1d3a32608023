"""`farm doctor` looks: at processes that misbehave, planted files and modules, sockets, locks that are held."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.cli import main
from farm.cluster import address, ray_token
from farm.doctor import HostReader, Level, devices, examine, exit_code, runner
from farm.doctor import probes as attempts
from farm.doctor.collect import head_address, space
from farm.doctor.facts import ProbeResult
from farm.doctor.host import clock_synchronised
from farm.doctor.runner import trials
from farm.errors import UsageError
from farm.kernel_package import ROOT
from farm.node.environment import Environment

STUBS = ROOT / "tests" / "stubs"
TOKEN = "0123456789abcdef0123456789abcdef"


def test_debians_own_scheme_is_passed_by_for_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder of headers under /usr/local is empty; Triton looks where Python.h is, and so has the doctor to."""
    (tmp_path / "right").mkdir()
    (tmp_path / "right" / "Python.h").touch()
    paths = {"posix_prefix": tmp_path / "right", "posix_local": tmp_path / "local", "venv": tmp_path / "venv"}
    monkeypatch.setattr(attempts.sysconfig, "get_path", lambda name, scheme: str(paths[scheme]))
    for scheme, has in (("posix_local", True), ("posix_prefix", True), ("venv", False)):
        monkeypatch.setattr(attempts.sysconfig, "get_default_scheme", lambda scheme=scheme: scheme)
        assert attempts.attempt("python")["data"]["header"] is has


# Processes


@pytest.fixture
def children(tmp_path: Path) -> list[str]:
    """A stand-in for `farm.doctor.probes` whose steps do what they are called."""
    script = tmp_path / "attempts.py"
    script.write_text(
        "import json, os, sys, time\n"
        "def say(**what):\n"
        "    os.write(1, (json.dumps(what) + '\\n').encode())\n"
        "for step in sys.argv[1:]:\n"
        "    say(step=step, ended='begun')\n"
        "    if step == 'crash': os.abort()\n"
        "    if step == 'exit': os._exit(7)\n"
        "    if step == 'hang': time.sleep(60)\n"
        "    if step == 'half': os.write(1, b'{\"step\": \"ha'); os._exit(0)\n"
        "    if step == 'noise': os.write(1, b'a banner\\n[1, 2]\\n')\n"
        "    say(step=step, ended='ok', text='v1')\n"
    )
    return [sys.executable, str(script)]


def test_what_crashes_or_hangs_stops_nothing_else(children: list[str]) -> None:
    steps = ["a", "crash", "b", "hang", "exit", "half", "c"]
    found = trials(steps, step_s=0.5, total_s=30, words=children)
    assert list(found) == steps
    assert {s: t.ended for s, t in found.items() if t.ok} == dict.fromkeys("abc", "ok")
    assert "SIGABRT" in str(found["crash"])
    assert (found["hang"].ended, found["hang"].text) == ("hung", "0.5 s")
    assert (found["exit"].ended, found["exit"].text) == ("died", "exit code 7")
    assert "0.5 s" in str(found["hang"]) and "exit code 7" in str(found["exit"])
    assert found["half"].ended == "died"


def test_what_a_container_prints_among_the_lines_is_not_ours(children: list[str]) -> None:
    assert trials(["noise", "b"], words=children) == {"noise": ProbeResult("ok", "v1"), "b": ProbeResult("ok", "v1")}


def test_when_the_time_is_over_the_rest_is_skipped(children: list[str]) -> None:
    found = trials(["hang", "b"], step_s=30, total_s=0.2, words=children)
    assert {s: t.ended for s, t in found.items()} == {"hang": "skipped", "b": "skipped"}


def test_a_program_that_cannot_even_start_is_told(tmp_path: Path) -> None:
    found = trials(["a", "b"], words=[sys.executable, str(tmp_path / "absent.py")])
    assert {t.ended for t in found.values()} == {"died"}
    assert "No such file" in str(trials(["a"], words=[str(tmp_path / "absent")])["a"])


# What is tried in them


def tried(step: str, *folders: Path, **variables: str) -> ProbeResult:
    """One step of the real attempts, with folders that come first on its import path."""
    path = os.pathsep.join([*map(str, folders), str(ROOT), *(p for p in sys.path if p)])
    return trials([step], step_s=20, variables={**os.environ, "PYTHONPATH": path, **variables})[step]


def module(folder: Path, name: str, text: str) -> Path:
    """A module of that name and content in the folder."""
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    folder.mkdir(exist_ok=True)
    for parent in [p for p in reversed(file.parents) if folder in p.parents]:
        parent.mkdir(exist_ok=True)
        (parent / "__init__.py").touch()
    file.write_text(text)
    return folder


def test_a_missing_module_is_missing_and_a_broken_one_failed() -> None:
    from farm.doctor.probes import attempt

    assert attempt("no_such_module_at_all")["ended"] == "missing"
    assert attempt("provider no_such_provider")["ended"] == "missing"
    assert attempt("kernels") == {"ended": "ok", "text": str(ROOT / "kernels"), "data": {}}
    assert attempt("python")["data"]["distributions"]["numpy"]


def test_attempts_need_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; import farm.doctor.probes as a;"
    )
    code += "print(a.attempt('python')['ended'], a.attempt('numpy')['ended'])"
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["ok", "missing"], done.stderr


@pytest.mark.parametrize(
    ("wrong", "ended", "words"), [("", "ok", ""), ("import", "failed", "libamd_smi.so"), ("init", "failed", "")]
)
def test_amdsmi_is_imported_started_and_asked(wrong: str, ended: str, words: str) -> None:
    found = tried("amdsmi", STUBS / "amdsmi", FARM_STUB_AMD_BREAK=wrong, FARM_STUB_AMD_GPUS="8")
    assert found.ended == ended, found
    assert words in found.text
    assert not found.ok or found.data == {"count": 8}


def test_amdsmi_that_hangs_is_told_in_time() -> None:
    path = os.pathsep.join([str(STUBS / "amdsmi"), str(ROOT), *(p for p in sys.path if p)])
    variables = {**os.environ, "PYTHONPATH": path, "FARM_STUB_AMD_BREAK": "init_hangs"}
    assert trials(["amdsmi"], step_s=1.5, variables=variables)["amdsmi"] == ProbeResult("hung", "1.5 s")


def test_acl_is_asked_as_ray_asks_it(tmp_path: Path) -> None:
    assert tried("acl", STUBS / "acl", FARM_STUB_ACL='{"count": 4}').data == {"count": 4, "code": 0}
    assert tried("acl").ended == "missing"
    broken = module(tmp_path / "b", "acl", "raise ImportError('libascend_hal.so: cannot open shared object file')")
    assert "libascend_hal.so" in tried("acl", broken).text


def fake_torch(folder: Path, *, hip: str = "", cuda: str = "", count: int = 0, **more: Any) -> Path:
    """A torch that says what it is told: devices, their kind and kernels, a warning on the way."""
    said = {"gcn": "", "major": 10, "minor": 0, "kernels": [], "warning": "", **more}
    return module(
        folder,
        "torch",
        "import warnings\nfrom types import SimpleNamespace as S\n"
        f"__version__ = '2.11.0'\nsaid = {said!r}\nversion = S(hip={hip or None!r}, cuda={cuda or None!r})\n"
        "def available():\n"
        "    if said['warning']: warnings.warn(said['warning'])\n"
        f"    return {count} > 0\n"
        "properties = S(gcnArchName=said['gcn'], major=said['major'], minor=said['minor'])\n"
        f"cuda = S(is_available=available, device_count=lambda: {count}, get_arch_list=lambda: said['kernels'],\n"
        "         get_device_properties=lambda n: properties)\n",
    )


def test_torch_says_what_it_is_built_for_and_sees(tmp_path: Path) -> None:
    amd = fake_torch(tmp_path / "a", hip="7.1.2", count=8, gcn="gfx942:sramecc+:xnack-", kernels=["gfx942", "gfx950"])
    assert tried("torch", amd).data["built_for"] == "ROCm 7.1.2"
    seen = tried("accelerator", amd).data
    assert (seen["kind"], seen["count"], seen["architecture"]) == ("rocm", 8, "gfx942")
    blind = fake_torch(tmp_path / "b", cuda="13.0", warning="Error 802: system not yet initialized")
    assert tried("torch", blind).data["built_for"] == "CUDA 13.0"
    assert tried("accelerator", blind).data == {
        "kind": "",
        "count": 0,
        "warnings": ["Error 802: system not yet initialized"],
    }
    gpu = fake_torch(tmp_path / "c", cuda="13.0", count=1, kernels=["sm_90"])
    assert tried("accelerator", gpu).data["architecture"] == "sm_100"


def test_several_active_drivers_are_told(tmp_path: Path) -> None:
    text = "class D:\n    @property\n    def active(self):\n        raise RuntimeError('2 active drivers (...)')\n"
    text += "driver = D()\n"
    two = module(tmp_path / "t", "triton.runtime", text)
    assert tried("driver", two).text == "RuntimeError: 2 active drivers (...)"


def tool(folder: Path, name: str, text: str) -> Path:
    """A program of that name in the folder."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


PTXAS = (
    "#!/bin/sh\ncase $1 in --version) echo 'release 12.4, V12.4';; --help) echo \"'sm_80','sm_90','sm_90a'\";; esac\n"
)


def fake_triton(folder: Path, ptxas: str) -> Path:
    return module(folder, "triton.backends.nvidia.compiler", f"def get_ptxas(arch):\n    {ptxas}\n")


def test_ptxas_is_asked_what_it_knows(tmp_path: Path) -> None:
    old = tool(tmp_path / "bin", "ptxas", PTXAS)
    found = tried("ptxas sm_100", fake_triton(tmp_path / "a", f"return type('T', (), {{'path': {str(old)!r}}})"))
    assert (found.text, found.data["knows"], found.data["architecture"]) == ("12.4", ["sm_80", "sm_90"], "sm_100")
    missing = tried("ptxas sm_100", fake_triton(tmp_path / "b", "raise RuntimeError('Cannot find ptxas-blackwell')"))
    assert (missing.ended, "Cannot find" in missing.text) == ("failed", True)
    broken = tried("ptxas", fake_triton(tmp_path / "c", f"return ({str(tmp_path / 'gone')!r}, '12.8')"))
    assert (broken.ended, str(tmp_path / "gone") in broken.text) == ("failed", True)


def test_a_named_ptxas_that_does_not_run_is_told(tmp_path: Path) -> None:
    old = tool(tmp_path / "bin", "ptxas", PTXAS)
    fake = fake_triton(tmp_path / "a", f"return ({str(old)!r}, '12.4')")
    found = tried(
        "ptxas sm_90", fake, TRITON_PTXAS_PATH=str(tmp_path / "nothing"), TRITON_PTXAS_BLACKWELL_PATH=str(old)
    )
    assert found.data["useless"] == [f"TRITON_PTXAS_PATH={tmp_path / 'nothing'}"]


def test_the_triton_that_is_installed_knows_its_parts() -> None:
    pytest.importorskip("triton")
    found = tried("ptxas sm_100")
    assert found.ok and "sm_100" in found.data["knows"], found


# The host


def pci(root: Path, *found: tuple[str, str]) -> None:
    for i, (vendor, kind) in enumerate(found):
        folder = root / "sys/bus/pci/devices" / f"0000:0{i}:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "class").write_text(kind + "\n")


def test_the_bus_is_read_for_what_computes_or_draws(tmp_path: Path) -> None:
    pci(tmp_path, ("0x10de", "0x030200"), ("0x10de", "0x020700"), ("0x1002", "0x120000"), ("0x19e5", "0x120000"))
    host = HostReader(tmp_path)
    assert (host.pci("0x10de"), host.pci("0x1002"), host.pci("0x19e5"), host.pci("0x8086")) == (1, 1, 1, 0)


@pytest.mark.parametrize(
    ("mode", "user", "groups", "denied"),
    [
        (0o660, 12345, [], True),
        (0o660, 12345, ["own"], False),
        (0o666, 12345, [], False),
        (0o440, 12345, ["own"], True),
        (0o600, 0, [], False),
    ],
)
def test_access_is_judged_by_owner_and_mode(
    tmp_path: Path, mode: int, user: int, groups: list[str], denied: bool
) -> None:
    (tmp_path / "dev").mkdir()
    file = tmp_path / "dev" / "kfd"
    file.touch()
    file.chmod(mode)
    group = frozenset({file.stat().st_gid} if groups else {54321})
    found = HostReader(tmp_path, user, group).device_file("/dev/kfd")
    assert found.denied is denied
    assert found.group


def test_limits_are_those_of_the_cgroup(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert HostReader(tmp_path).system().memory_limit is None
    write("sys/fs/cgroup/memory.max", "max\n")
    assert HostReader(tmp_path).system().memory_limit is None
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert HostReader(tmp_path).system().memory_limit is None
    write("proc/self/cgroup", "0::/system.slice/ray.service\n")
    write("sys/fs/cgroup/system.slice/ray.service/memory.max", "2147483648\n")
    write("proc/sys/kernel/numa_balancing", "1\n")
    write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 50 kB\nSwapTotal: 30 kB\nSwapFree: 10 kB\n")
    write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    found = HostReader(tmp_path).system()
    assert found.memory_limit == 2147483648
    assert (found.memory_available, found.swap_used) == (50 << 10, 20 << 10)
    assert (found.numa_balancing, found.governor) == ("1", "powersave")
    assert found.open_files is None or found.open_files > 0


def test_the_kernel_is_asked_for_its_clock() -> None:
    assert clock_synchronised() in (True, False)


def test_a_name_server_that_is_silent_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from farm.doctor import host

    event = threading.Event()
    monkeypatch.setattr(host, "DNS_SECONDS", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a: [event.wait(10)][:0])
    assert "0.05 s" in host._own_addresses()[2]
    event.set()


def test_space_looks_at_the_nearest_folder_and_leaves_nothing(tmp_path: Path) -> None:
    found = space(tmp_path / "a" / "b")
    assert found.free > 0 and not found.failure
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in space(tmp_path / "file" / "store").failure


# The token


def test_no_token_is_no_source(tmp_path: Path) -> None:
    assert ray_token.look({}, tmp_path) == ray_token.TokenFacts(None)
    assert ray_token.look({"RAY_AUTH_MODE": "token"}, tmp_path) == ray_token.TokenFacts("token")


def test_a_token_of_a_former_run_is_seen(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    file = tmp_path / ".ray" / "auth_token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    found = ray_token.look({}, tmp_path)
    assert (found.source, found.exposed, found.failure, found.spaces, found.illegal) == (
        str(file),
        True,
        "",
        False,
        False,
    )
    file.chmod(0o600)
    assert not ray_token.look({}, tmp_path).exposed


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (TOKEN + "\n", "spaces"),
        (TOKEN + "\r\n", "spaces"),
        ("\ufeff" + TOKEN, "illegal"),
        (f"{TOKEN}\n{TOKEN}", "illegal"),
        ("\n", "failure"),
        ("", "failure"),
    ],
)
def test_a_spoilt_token_is_named(tmp_path: Path, content: str, what: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content.encode())
    file.chmod(0o600)
    found = ray_token.look({"RAY_AUTH_TOKEN_PATH": str(file)}, tmp_path)
    assert [k for k in ("spaces", "illegal", "failure", "exposed") if getattr(found, k)] == [what]


def test_a_token_that_is_not_there_or_differs_is_named(tmp_path: Path) -> None:
    gone = {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "gone")}
    assert "No such file" in ray_token.look(gone, tmp_path).failure
    file = tmp_path / "token"
    file.write_text(TOKEN)
    both = {"RAY_AUTH_TOKEN": "other", "RAY_AUTH_TOKEN_PATH": str(file)}
    assert ray_token.look(both, tmp_path).differs
    assert not ray_token.look({**both, "RAY_AUTH_TOKEN": TOKEN}, tmp_path).differs


# The head


def served(answer: bytes | None) -> tuple[socket.socket, int]:
    """A socket that answers each visitor so; None: it accepts and is silent."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        talks = []
        while True:
            try:
                talk = server.accept()[0]
            except OSError:
                return
            talks.append(talk)
            if answer is not None:
                talk.sendall(answer)
                talk.close()

    threading.Thread(target=serve, daemon=True).start()
    return server, server.getsockname()[1]


def test_what_keeps_the_head_away_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    ssh, port = served(b"SSH-2.0-OpenSSH\r\n")
    assert address.reach("127.0.0.1", port)[0] == "stranger"
    ssh.shutdown(socket.SHUT_RDWR)
    ssh.close()
    assert address.reach("127.0.0.1", port)[0] == "refused"
    mute, port = served(None)
    kind, reason = address.reach("127.0.0.1", port, 0.2)
    assert kind == "silent" and "0.2 s" in reason
    mute.close()
    grpc, port = served(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    assert address.reach("127.0.0.1", port) == ("", "")
    assert address.silent("127.0.0.1", port) is None
    grpc.close()
    assert address.reach("nobody.invalid", 1)[0] in ("name", "failed")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("h", "h:6379"), ("h:1", "h:1"), ("10.0.0.1", "10.0.0.1:6379"), ("[::1]", "[::1]:6379"), ("[::1]:7", "[::1]:7")],
)
def test_a_head_may_leave_its_port_out(given: str, meant: str) -> None:
    assert head_address(given) == meant


@pytest.mark.parametrize("given", ["", "http://h", "h:port", "h:99999", ":1"])
def test_a_head_that_is_no_address_is_refused_in_one_sentence(given: str) -> None:
    with pytest.raises(UsageError) as refused:
        head_address(given)
    assert refused.value.id == "doctor-head-address"
    assert f'--head "{given}"' in str(refused.value)


def test_an_address_file_is_read_and_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert address.written() == ""
    (tmp_path / "ray").mkdir()
    address.address_file().write_text("127.0.0.1:1\n")
    assert address.written() == "127.0.0.1:1"
    assert address.silent("127.0.0.1", 1) is not None


# Environments


def test_another_python_is_asked_with_bundles_and_its_own_path(tmp_path: Path) -> None:
    site = fake_torch(tmp_path / "site", hip="7.1.2")
    there = Environment("v", python=sys.executable, path=(str(site),))
    found = runner.environment(there, ["torch", "kernels"])
    assert not found.own and not found.failure
    assert found.trial("python").data["executable"] == sys.executable
    assert found.trial("torch").data["built_for"] == "ROCm 7.1.2"
    assert found.trial("kernels") == ProbeResult("ok", str(ROOT / "kernels"))


def test_a_farm_that_a_pth_file_names_is_not_what_a_child_gets(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], check=True, timeout=60)
    (site,) = (tmp_path / "v").glob("lib/python3*/site-packages")
    (site / "editable.pth").write_text(f"import sys; sys.path.insert(0, {str(tmp_path / 'other')!r})\n")
    for module in ("farm/__init__.py", "kernels/__init__.py", "farm/contracts/base.py"):
        (tmp_path / "other" / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "other" / module).touch()
    path = (str(Path(numpy.__file__).parents[1]),)
    there = Environment("v", python=str(tmp_path / "v/bin/python"), path=path)
    assert runner.environment(there, ["kernels"]).trial("kernels") == ProbeResult("ok", str(ROOT / "kernels"))


def pythons() -> list[str]:
    """Other interpreters on this host that answer."""
    found = [p for n in range(10, 15) if n != sys.version_info[1] and (p := shutil.which(f"python3.{n}"))]
    probes = [(p, subprocess.run([p, "-c", ""], capture_output=True, timeout=20, check=False)) for p in found]
    return [p for p, done in probes if done.returncode == 0]


def test_every_other_python_here_can_be_asked() -> None:
    others = pythons()
    if not others:
        pytest.skip("no other Python of 3.10 to 3.14 is on PATH")
    for python in others:
        found = runner.environment(Environment("v", python=python), ["no_such_module", "devices cpu"])
        assert found.trial("python").ok, (python, found.trial("python"))
        assert found.trial("no_such_module").ended == "missing"
        assert found.trial("devices cpu").ok


def test_an_environment_that_cannot_start_is_told(tmp_path: Path) -> None:
    gone = runner.environment(Environment("v", python=str(tmp_path / "python")), ["torch"])
    assert str(tmp_path / "python") in gone.failure
    docker = runner.environment(Environment("v", command=("no-such-docker", "run", "{child}")), ["torch"])
    assert (docker.missing_program, "no-such-docker" in docker.failure) == ("no-such-docker", True)
    mute = runner.environment(Environment("v", command=("true", "{child}")), ["torch"])
    assert not mute.trial("python").ok


def test_an_environment_that_hangs_is_left_and_its_container_ended(tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    client = tool(tmp_path, "client", "#!/bin/sh\nexec sleep 60\n")
    there = Environment("v", command=(str(client), "{name}", "{child}"), wrapped=True, end=("touch", str(mark)))
    found = runner.environment(there, ["torch"], step_s=0.3, total_s=1.5)
    assert found.trial("python").ended == "hung"
    assert mark.exists()


def test_a_command_gets_the_words_that_start_the_attempts(tmp_path: Path) -> None:
    script = '#!/bin/sh\nshift\nexec env -i PYTHONPATH="$P" ' + sys.executable + ' "$@"\n'
    client = tool(tmp_path, "box", script.replace('"$P"', '"$PYTHONPATH"'))
    there = Environment("v", command=(str(client), "{name}", "{child}"), wrapped=True)
    assert runner.environment(there, ["kernels"]).trial("kernels").ok


# Devices


@pytest.fixture
def other_farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that holds the lock of the device GPU-1 0."""
    monkeypatch.setenv("FARM_LOCKS", str(tmp_path / "locks"))
    code = "import sys, time; from farm.guard import locks; l = locks.acquire('GPU-1 0', {'run': 'r1'}, 0); "
    held = subprocess.Popen(
        [sys.executable, "-c", code + "print('held', flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert held.stdout is not None and held.stdout.readline() == "held\n"
    yield
    held.kill()
    held.wait()


@pytest.mark.usefixtures("other_farm")
def test_who_holds_a_device_is_told_and_the_lock_left_alone() -> None:
    assert "run 'r1'" in devices._holder("GPU-1 0")
    assert devices._holder("GPU-2") == ""
    assert "run 'r1'" in devices._holder("GPU-1 0")


def test_a_folder_of_locks_that_cannot_be_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_LOCKS", str(tmp_path / "file" / "locks"))
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in devices._lock_trouble()
    monkeypatch.setenv("FARM_LOCKS", str(tmp_path / "locks"))
    assert devices._lock_trouble() == ""


# The whole


def test_this_host_is_described_without_leaving_a_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "do-not-print-me")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("FARM_NODE", raising=False)
    code = main(["doctor", "--json", "--out", str(tmp_path / "store")])
    out = capsys.readouterr().out
    said = json.loads(out)
    assert code == said["exit_code"]
    sections = {f["section"] for f in said["findings"]}
    assert {"python", "torch", "triton", "ray", "kernels", "store", "clock", "backend cuda", "backend rocm"} <= sections
    assert "127.0.0.1:1" in out
    assert "do-not-print-me" not in out
    assert list(tmp_path.iterdir()) == []
    for finding in said["findings"]:
        assert finding["code"]
        assert finding["level"] in ("ok", "note") or finding["cure"], finding


def test_wrong_words_are_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FARM_NODE", raising=False)
    for words in (["--backend", "rcom"], ["--head", "a:b:c/d"], ["--environment", "nope"]):
        assert main(["doctor", *words]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_store_that_cannot_be_written_is_the_farms_fault_to_tell(tmp_path: Path) -> None:
    from dataclasses import replace

    from doctor_facts import SOUND

    (tmp_path / "file").write_text("")
    facts = replace(SOUND, store=space(tmp_path / "file"))
    assert exit_code(examine(facts)) == 3
    assert [f.code for f in examine(facts) if f.level is Level.FAIL] == ["store-unwritable"]
