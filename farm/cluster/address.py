"""Checks whether a Ray cluster answers at an address.  Ray itself would keep trying for minutes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from farm.cluster import ray_folder
from farm.deadline import Deadline
from farm.errors import InfraError, UsageError

#: The address of every run that names none.
VARIABLE = "FARM_ADDRESS"
PROBE_SECONDS = 5.0
#: What a client of HTTP/2 (thus of gRPC, which Ray uses) sends first, and an empty SETTINGS frame.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4


def default(environ: Mapping[str, str]) -> tuple[str, str]:
    """(the address of a run that names none, where it comes from): $FARM_ADDRESS, else the cluster of which a node runs
    here that this user has started by `farm nodes`, else `inline`.  What a node that has ended, or the `ray start` of
    somebody else, has left on this host does not count."""
    if named := environ.get(VARIABLE, "").strip():
        return named, VARIABLE
    record = _record(environ)
    joined = _written_in(record) if record else ""
    if joined and ray_folder.runs_here(environ):
        return joined, str(record)
    return "inline", ""


def _record(environ: Mapping[str, str]) -> Path | None:
    """The file in which the Ray of `farm nodes` writes its cluster's address; None if its folder cannot be used."""
    try:
        return ray_folder.of_node(environ) / "ray" / "ray_current_cluster"
    except UsageError:
        return None


def check_form(address: str) -> None:
    """Refuse an `--address` that is malformed (UsageError), without a look at the network."""
    if address not in ("local", "inline", "auto"):
        parse(address, _option(address))


def _option(address: str) -> str:
    """How a refusal names the address."""
    return f"--address {address}" + (f" ({VARIABLE})" if address == os.environ.get(VARIABLE, "").strip() else "")


def check(address: str) -> None:
    """Refuse an `--address` that is malformed (UsageError) or does not answer (InfraError), within seconds."""
    if address in ("local", "inline"):
        return
    option = _option(address)
    if address == "auto":
        address = automatic()
        if not address:
            return  # Ray itself looks for a cluster on this host, and reports at once if there is none
        source = "RAY_ADDRESS" if address == os.environ.get("RAY_ADDRESS") else address_file()
        option += f" ({address} from {source})"
    reason = silent(*parse(address, option))
    if reason:
        raise InfraError(
            f"{option}: {reason}; start the head at that address (farm nodes head), give another address, or omit "
            "--address to use only this host",
            id="address-silent",
        )


def parse(address: str, option: str) -> tuple[str, int]:
    """(host, port) of `HOST:PORT` or `[::1]:PORT`; UsageError that begins with `option`."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536) or "/" in host:
        what = "local, inline, auto or HOST:PORT" if option.startswith("--address") else "HOST:PORT"
        raise UsageError(
            f"{option}: must be {what}, for example 10.0.0.1:6379, with a port from 1 to 65535", id="address-malformed"
        )
    return host, int(port)


def automatic() -> str:
    """The address that `auto` means: $RAY_ADDRESS, else the one that the last `ray start` wrote to its file, else ""
    (Ray itself looks for one)."""
    named = os.environ.get("RAY_ADDRESS", "")
    return named if named not in ("", "auto") else written()


def resolved(address: str) -> str:
    """`address` for Ray, which does not know this user's own folder: `auto` as HOST:PORT where that is known."""
    return automatic() or address if address == "auto" else address


def address_file() -> Path:
    """Where the address of this host's cluster is written: by `farm nodes` in this user's own folder, if that file is
    there, else by `ray start` in Ray's."""
    with suppress(UsageError):
        ours = _record(os.environ)
        if ours and ours.is_file():
            return ours
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray", "ray_current_cluster")


def written() -> str:
    """The content of the address file, or ""."""
    return _written_in(address_file())


def _written_in(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace").strip()[:200]
    return ""


def silent(host: str, port: int, seconds: float = PROBE_SECONDS) -> str | None:
    """Why no cluster can be joined at `host`:`port`, or None if a gRPC service answers there."""
    return reach(host, port, seconds)[1] or None


def reach(host: str, port: int, seconds: float = PROBE_SECONDS) -> tuple[str, str]:
    """("", "") if a gRPC service answers at `host`:`port`, else a keyword and a sentence: `name` (no such host),
    `refused` (the host answers, but nothing listens), `silent` (no answer: a firewall, or no such machine), `failed`
    (a network error), `stranger` (a service other than Ray)."""
    deadline = Deadline(seconds)
    try:
        with socket.create_connection((host, port), timeout=seconds) as talk:
            if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
                return "", ""  # something listens; to identify it, certificates would be needed
            talk.sendall(_HELLO)
            said = b""
            while len(said) < 4:
                talk.settimeout(max(deadline.remaining, 0.01))
                part = talk.recv(64)
                if not part:
                    break
                said += part
    except socket.gaierror:
        return "name", f"the host name {host} does not resolve"
    except TimeoutError:
        return "silent", f"no answer within {seconds:g} s"
    except ConnectionRefusedError as error:
        return "refused", f"no answer ({error.strerror or error})"
    except OSError as error:
        return "failed", f"no answer ({error.strerror or error})"
    return (
        ("", "")
        if said[3:4] == bytes([_SETTINGS])
        else ("stranger", "a service other than Ray answers at this address")
    )
