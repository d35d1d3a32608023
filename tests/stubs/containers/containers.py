"""Stand-ins for `docker`, `apptainer` and `enroot`: they check the words that they are given and run the command in an
environment that holds only what was handed over.

Written from the documented command lines (docs.docker.com, `docker run` and `docker kill`; the manual page
apptainer-exec(1); doc/cmd/start.md of enroot), and what is documented of their processes:

    docker      the container is no child of the client: it has its own environment, and goes on when the client is
                killed.  The client hands on standard streams and signals; a process that ended by signal N is exit code
                128 + N.  `docker kill NAME` ends the container, and says `No such container` where there is none
    apptainer   the command is a child of the client, in its process group.  With --cleanenv it gets --env alone
    enroot      the client becomes the command, with the environment of --env alone

What lies outside the mounts is not there: entries of PYTHONPATH that no mount covers are dropped; the image's own
packages (the folder that `site` in the state's folder names) stand after them.  An option that is not listed here ends
the call with 125, as docker does.

$FARM_STUB_CONTAINERS is the folder of its state: `calls` (a JSON line each), NAME.pid, and what tests put there:
`keep-stdin` (a container whose standard input stays open when its client is gone), `cannot-kill`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ.get("FARM_STUB_CONTAINERS", "/nonexistent"))
#: Tool -> option -> whether it takes a value.
OPTIONS = {
    "docker": {
        "--rm": False,
        "-i": False,
        "--init": False,
        "--name": True,
        "--env": True,
        "--volume": True,
        "--device": True,
        "--gpus": True,
        "--user": True,
        "--group-add": True,
        "--security-opt": True,
        "--ipc": True,
        "--network": True,
        "--entrypoint": True,
    },
    "apptainer": {"--cleanenv": False, "--nv": False, "--rocm": False, "--env": True, "--bind": True, "--pwd": True},
    "enroot": {"--env": True, "--mount": True, "--rw": False, "--root": False, "--rc": True},
}
VERBS = {"docker": "run", "apptainer": "exec", "enroot": "start"}
MOUNTS = ("--volume", "--bind", "--mount")


def say(tool: str, code: int, text: str) -> int:
    sys.stderr.write(f"{tool}: {text}\n")
    sys.stderr.flush()
    return code


def parse(tool: str, words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """(options, image and command).  SystemExit as the tool would end."""
    found: dict[str, list[str]] = {}
    while words and words[0].startswith("-"):
        name = words.pop(0)
        if name not in OPTIONS[tool]:
            raise SystemExit(say(tool, 125, f"unknown flag: {name}"))
        found.setdefault(name, []).append(words.pop(0) if OPTIONS[tool][name] else "")
    return found, words


def main(tool: str, words: list[str]) -> int:
    with (STATE / "calls").open("a") as calls:
        calls.write(json.dumps([tool, *words]) + "\n")
    verb = words.pop(0)
    if (tool, verb) == ("docker", "kill"):
        return kill(words[0])
    if verb != VERBS[tool]:
        return say(tool, 125, f"unknown command: {verb}")
    options, rest = parse(tool, words)
    image, command = rest[0], rest[1:]
    if "--entrypoint" in options:
        command = [*options["--entrypoint"], *command]
    elif image.startswith("banner"):
        print("== some vendor's entry point ==", flush=True)
    mounts = [m.split(":")[0] for name in MOUNTS for m in options.get(name, [])]
    given = dict(pair.split("=", 1) for pair in options.get("--env", []))
    environment = dict(os.environ) if tool == "apptainer" and "--cleanenv" not in options else {}
    environment |= {"PATH": "/usr/bin:/bin", "IMAGE": image, **given}
    seen = [p for p in given.get("PYTHONPATH", "").split(":") if any(Path(p).is_relative_to(m) for m in mounts)]
    environment["PYTHONPATH"] = ":".join([*seen, (STATE / "site").read_text()])
    if command[:2] == ["bash", "-c"] and command[2].endswith('exec python3 "$@"'):  # a set-up that ends as the child
        command = ["python3", *command[4:]]
    if command[0] not in ("python3", "python"):
        return say(tool, 127, f"{command[0]}: not found in the image")
    command[0] = getattr(sys, "_base_executable", sys.executable)  # which has no farm of its own
    if tool == "docker":
        return docker(options["--name"][0], command, environment)
    if tool == "enroot":
        os.execve(command[0], command, environment)
    code = subprocess.run(command, env=environment, check=False).returncode
    return code if code >= 0 else 128 - code


def docker(name: str, command: list[str], environment: dict[str, str]) -> int:
    """The client: streams to and fro until the container has closed its own."""
    environment.pop("FARM_CHILD_MARK", "")  # another user's processes cannot be looked into
    (inside, to_it), (from_it, out), (errors, err) = os.pipe(), os.pipe(), os.pipe()
    told = {"name": name, "command": command, "environment": environment, "state": str(STATE)}
    keep = [to_it] if (STATE / "keep-stdin").exists() else []
    subprocess.Popen(
        [sys.executable, __file__, "--daemon", json.dumps({**told, "streams": [inside, out, err], "keep": keep})],
        pass_fds=[inside, out, err, *keep],
        env={},
        start_new_session=True,
        stdin=subprocess.DEVNULL,
    )
    for end in (inside, out, err):
        os.close(end)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, frame: signal_to(name, number))
    hand_on = {0: to_it, from_it: 1, errors: 2}
    while from_it in hand_on or errors in hand_on:
        for source in select.select(list(hand_on), [], [], 1.0)[0]:
            data = os.read(source, 1 << 16)
            if data:
                with contextlib.suppress(OSError):
                    os.write(hand_on[source], data)
            else:
                target = hand_on.pop(source)
                if source == 0:
                    os.close(target)
    exited = STATE / f"{name}.exit"
    end = time.monotonic() + 10
    while not exited.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return int(exited.read_text()) if exited.exists() else 125


def daemon(told: dict[str, object]) -> int:
    """What runs the container, whoever asked for it."""
    name, state = str(told["name"]), Path(str(told["state"]))
    inside, out, err = told["streams"]  # type: ignore[misc]
    process = subprocess.Popen(
        told["command"], env=told["environment"], stdin=inside, stdout=out, stderr=err, start_new_session=True, cwd="/"
    )  # type: ignore[call-overload]
    (state / f"{name}.pid").write_text(str(process.pid))
    for end in (inside, out, err):
        os.close(end)
    code = process.wait()
    (state / f"{name}.pid").unlink()
    temporary = state / f"{name}.exiting"
    temporary.write_text(str(code if code >= 0 else 128 - code))
    temporary.rename(state / f"{name}.exit")
    return 0


def signal_to(name: str, number: int) -> None:
    """The container's first process ignores what it has no handler for: a SIGTERM does nothing here."""
    if number == signal.SIGUSR1:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((STATE / f"{name}.pid").read_text()), number)


def kill(name: str) -> int:
    if (STATE / "cannot-kill").exists():
        return say(
            "docker", 1, f"Error response from daemon: Cannot kill container: {name}: did not receive an exit event"
        )
    try:
        pid = int((STATE / f"{name}.pid").read_text())
        os.killpg(pid, signal.SIGKILL)
    except (OSError, ValueError):
        return say("docker", 1, f"Error response from daemon: No such container: {name}")
    end = time.monotonic() + 10
    while (STATE / f"{name}.pid").exists() and time.monotonic() < end:
        time.sleep(0.01)
    print(name)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--daemon":
        sys.exit(daemon(json.loads(sys.argv[2])))
    sys.exit(main(sys.argv[1], sys.argv[2:]))
