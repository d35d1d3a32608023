"""Whether a Ray cluster answers at an address: Ray itself goes on trying for minutes, and prints where nobody reads."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from farm.deadline import Deadline
from farm.errors import InfraError, UsageError

PROBE_SECONDS = 5.0
#: What a client of HTTP/2 (and so of gRPC, which Ray speaks) says first, and an empty SETTINGS frame.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4


def check(address: str) -> None:
    """Refuse an `--address` that means nothing (UsageError) or at which nobody answers (InfraError), in seconds."""
    if address in ("local", "inline"):
        return
    told = f"--address {address}"
    if address == "auto":
        address = automatic()
        if not address:
            return  # Ray looks for a cluster of this host by itself, and says at once that there is none
        source = "RAY_ADDRESS" if address == os.environ.get("RAY_ADDRESS") else address_file()
        told += f" ({source} says {address})"
    reason = silent(*parse(address, told))
    if reason:
        raise InfraError(
            f"{told}: {reason}; start the head there (farm nodes head), or name the cluster's address; "
            "farm run without --address needs no cluster"
        )


def parse(address: str, told: str) -> tuple[str, int]:
    """(host, port) of `HOST:PORT`, `[::1]:PORT`; UsageError that begins with `told`."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536) or "/" in host:
        what = "none of local, inline, auto and HOST:PORT" if told.startswith("--address") else "no HOST:PORT"
        raise UsageError(f"{told}: is {what}, for example 10.0.0.1:6379; a port goes from 1 to 65535")
    return host, int(port)


def automatic() -> str:
    """Where `auto` leads: $RAY_ADDRESS, else what the last `ray start` wrote down, else "" (Ray looks by itself)."""
    named = os.environ.get("RAY_ADDRESS", "")
    return named if named not in ("", "auto") else written()


def address_file() -> Path:
    """Where `ray start` writes the address of its cluster."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray", "ray_current_cluster")


def written() -> str:
    """What the address file says, or ""."""
    with suppress(OSError):
        return address_file().read_text(encoding="utf-8", errors="replace").strip()[:200]
    return ""


def silent(host: str, port: int, seconds: float = PROBE_SECONDS) -> str | None:
    """Why no cluster can be joined at `host`:`port`, or None: something there speaks gRPC."""
    return reach(host, port, seconds)[1] or None


def reach(host: str, port: int, seconds: float = PROBE_SECONDS) -> tuple[str, str]:
    """("", "") where something at `host`:`port` speaks gRPC, else what keeps it away and in words why: `name` (no such
    host), `refused` (the host is there, nothing listens), `silent` (nothing comes back: a firewall, or no such
    machine), `failed` (the network says no), `stranger` (what answers is not Ray)."""
    deadline = Deadline(seconds)
    try:
        with socket.create_connection((host, port), timeout=seconds) as talk:
            if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
                return "", ""  # somebody listens; what it is would need certificates to tell
            talk.sendall(_HELLO)
            said = b""
            while len(said) < 4:
                talk.settimeout(max(deadline.remaining, 0.01))
                part = talk.recv(64)
                if not part:
                    break
                said += part
    except socket.gaierror:
        return "name", f"there is no host {host}"
    except TimeoutError:
        return "silent", f"nothing answers there within {seconds:g} s"
    except ConnectionRefusedError as error:
        return "refused", f"nothing answers there ({error.strerror or error})"
    except OSError as error:
        return "failed", f"nothing answers there ({error.strerror or error})"
    return ("", "") if said[3:4] == bytes([_SETTINGS]) else ("stranger", "what answers there is not Ray")
