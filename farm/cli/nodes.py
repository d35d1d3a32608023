"""`farm nodes`: who is in the cluster; `join` and `head` start Ray, `drain` and `restore` take a node out and in."""

from __future__ import annotations

import argparse
import difflib
import getpass
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import address, backends
from farm.cli.text import printable
from farm.errors import InfraError, UsageError
from farm.nodes import command, config, listing, slurm
from farm.nodes.registry import DRAINED, DRAINING

if TYPE_CHECKING:
    from farm.coordinator.nodes import Nodes
    from farm.coordinator.roster import Node

PROBE_SECONDS = 3.0  # in a list, for a node that is being drained: whether it is idle by now
MAX_WAIT_SECONDS = 24 * 3600.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "nodes",
        help="the nodes of a cluster; join, drain and restore them",
        description="Without more: lists the cluster's nodes with their devices, versions, state and last fault.",
        epilog="example: farm nodes join --backend rocm --head 10.0.0.1 --token-path /etc/farm/ray_token --dry-run",
    )
    _address(p)
    p.add_argument("--json", action="store_true", help="the list as JSON")
    actions = p.add_subparsers(dest="action", metavar="join|head|drain|restore")
    _add_join(actions)
    _add_head(actions)
    for name, told in (("drain", "give nodes no more work; devices finish what they have begun"),
                       ("restore", "give drained nodes work again")):  # fmt: skip
        one = actions.add_parser(name, help=told, description=f"{told[0].upper()}{told[1:]}.",
                                 epilog=f"example: farm nodes {name} mi300-07 --address auto")  # fmt: skip
        one.add_argument("nodes", nargs="*", metavar="NODE", help="by name, Ray's id, host or address")
        one.add_argument("--here", action="store_true", help="the node on this host")
        _address(one, default=argparse.SUPPRESS)
        if name == "drain":
            one.add_argument("--reason", default="", help="for who reads the list")
            one.add_argument("--wait", type=float, default=0.0, metavar="SECONDS",
                             help="until no run uses their devices; exit code 3 if some still does")  # fmt: skip
            one.add_argument("--once", action="store_true",
                             help="only until the node leaves the cluster; else also when it comes back")  # fmt: skip


def _address(p: argparse.ArgumentParser, default: Any = "auto") -> None:
    p.add_argument("--address", default=default, metavar="auto|HOST:PORT", help="the cluster (default: auto)")


def _ray_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--token-path", metavar="FILE", help="the cluster's token; its mode must be 0600")
    p.add_argument(
        "--dry-run", action="store_true", help="print what would be run (for a shell) or written; do neither"
    )


def _add_join(actions: Any) -> None:
    p = actions.add_parser(
        "join",
        help="make this host a node",
        description="Checks this host as farm doctor does, holds its devices to its configuration, then starts Ray "
        "with the labels, resources and settings that runs need, in place of this command.",
        epilog="example: farm nodes join --backend cuda --head 10.0.0.1:6379 --label rack=r7 --dry-run",
    )
    p.add_argument("--backend", metavar="B", help="of this host's devices (default: its configuration's)")
    p.add_argument(
        "--head", required=True, metavar="HOST[:PORT]", help=f"the head (port {command.PORT} if none is said)"
    )
    p.add_argument("--devices", type=int, metavar="N", help="offer so many (default: all)")
    p.add_argument("--name", metavar="NAME", help="of the node (default: the host's)")
    p.add_argument("--label", action="append", default=[], metavar="K=V", help="a further label, as farm/K")
    p.add_argument("--skip-doctor", action="store_true", help="join whatever the checks say")
    p.add_argument("--ray", action="append", default=[], metavar="OPTION", help="a further option of ray start, whole")
    _ray_options(p)
    s = p.add_argument_group("Slurm", "with --slurm a batch script is written instead, which joins from an allocation")
    s.add_argument("--slurm", action="store_true", help="write the batch script")
    s.add_argument("--script", metavar="FILE", help="where to (default: standard output)")
    s.add_argument("--time", default="", metavar="LIMIT", help="the job's time limit, like 4:00:00")
    s.add_argument("--notice", type=int, default=300, metavar="SECONDS", help="begin to drain so long before it")
    s.add_argument("--partition", default="")
    s.add_argument("--account", default="")
    s.add_argument("--gres", default="", help="like gpu:8")
    s.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes of the allocation")
    s.add_argument("--sbatch", action="append", default=[], metavar="OPTION", help="a further option of sbatch, whole")


def _add_head(actions: Any) -> None:
    p = actions.add_parser(
        "head",
        help="make this host the head",
        description="Starts Ray's head, which has no devices of the farm's, in place of this command.",
        epilog="example: farm nodes head --token-path /etc/farm/ray_token --dry-run",
    )
    p.add_argument("--port", type=int, default=command.PORT)
    p.add_argument("--ip", default="", metavar="ADDRESS", help="this host's address, as nodes reach it")
    p.add_argument("--cpus", type=int, metavar="N", help="processors that Ray may count (default: all)")
    p.add_argument("--ray", action="append", default=[], metavar="OPTION", help="a further option of ray start, whole")
    _ray_options(p)


def run(args: argparse.Namespace) -> int:
    """List, or do what was asked."""
    action = {None: _list, "join": _join, "head": _head, "drain": _drain, "restore": _restore}[args.action]
    return action(args)


# who is there


def _list(args: argparse.Namespace) -> int:
    with closing(_connect(args)) as cluster:
        told, table = cluster.told(), cluster.table()
        found = listing.rows(table, told)
        going = [n for n in table for row in found if row["id"] == n.id and row["state"] == DRAINING]
        if going and cluster.idle(going, PROBE_SECONDS):
            found = listing.rows(table, cluster.told())
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        print("\n".join(printable(line) for line in listing.lines(found, time.time())))
    return 0


def _connect(args: argparse.Namespace) -> Nodes:
    if args.address in ("local", "inline"):
        raise UsageError(f"--address {args.address}: only a cluster has nodes; name it, for example 10.0.0.1:6379")
    from farm.coordinator.nodes import Nodes

    return Nodes(args.address)


# out and in


def _drain(args: argparse.Namespace) -> int:
    _some(args)
    if not 0 <= args.wait <= MAX_WAIT_SECONDS:
        raise UsageError(f"--wait {args.wait:g}: between 0 and {MAX_WAIT_SECONDS:g} seconds can be waited")
    with closing(_connect(args)) as cluster:
        found = _named(cluster, _names(cluster, args), left=args.once)
        for node in found:
            cluster.drain(node, args.reason, _who(), args.once)
        idle = cluster.idle(found, max(args.wait, 0.0)) if args.wait else []
    names = {n.id for n in idle}
    for node in found:
        print(f"{printable(node.name)}: {DRAINED if node.id in names else DRAINING}")
    busy = [n.name for n in found if n.id not in names]
    if args.wait and busy:
        raise InfraError(
            f"{', '.join(busy)}: a run still used devices there after {args.wait:g} s; they get no more work, "
            "farm nodes shows when they are idle"
        )
    return 0


def _restore(args: argparse.Namespace) -> int:
    _some(args)
    with closing(_connect(args)) as cluster:
        for node in _named(cluster, _names(cluster, args), gone=True):
            was = cluster.restore(node)
            print(f"{printable(node.name)}: {'up' if was else 'was up'}")
    return 0


def _some(args: argparse.Namespace) -> None:
    if not args.nodes and not args.here:
        raise UsageError(f"farm nodes {args.action} names no node; name some, or say --here for this host's")


def _names(cluster: Nodes, args: argparse.Namespace) -> list[str]:
    return [*args.nodes, *([cluster.here()] if args.here else [])]


def _named(cluster: Nodes, names: Sequence[str], *, gone: bool = False, left: bool = False) -> list[Node]:
    """The nodes that the command line names, each once.  UsageError with the near miss for one that is not there.

    `gone`: also those that have left the cluster; they may have been drained before that.  `left`: what is not there
    has left, which is told; the others must not suffer for it.
    """
    table = cluster.table()
    out: dict[str, Node] = {}
    for name in names:
        found = listing.chosen(table, name)
        if not found and gone:
            found = [n for n in table if n.name == name][-1:]
        if not found:
            known = sorted({n.name for n in table if n.alive})
            near = difflib.get_close_matches(name, known, 1)
            hint = f'did you mean "{near[0]}"?' if near else f"it has {', '.join(known)}"
            if left and len(names) > 1:
                print(f'farm nodes: the cluster has no node "{printable(name)}", so it is not drained; {hint}',
                      file=sys.stderr)  # fmt: skip
                continue
            raise UsageError(f'the cluster has no node "{name}"; {hint}')
        if len(found) > 1:
            told = ", ".join(f"{n.name} ({n.id[:12]})" for n in found)
            raise UsageError(f'"{name}" may mean {told}; name one by its id')
        out[found[0].id] = found[0]
    if not out:
        raise UsageError(f"the cluster has none of the nodes {', '.join(names)}; farm nodes lists those that it has")
    return list(out.values())


def _who() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container without an entry for its user
        return f"{os.getuid()}@{socket.gethostname()}"


# start Ray here


def _join(args: argparse.Namespace) -> int:
    backend = args.backend or config.load().backend
    if not backend:
        raise UsageError("--backend: say which devices this host has, or write it into the node's configuration")
    backends.usable(backend)
    if args.devices is not None and not 1 <= args.devices <= config.MAX_DEVICES:
        raise UsageError(f"--devices {args.devices}: between 1 and {config.MAX_DEVICES} devices can be offered")
    if args.name is not None and not command.LABEL_WORD.fullmatch(args.name):
        raise UsageError(f'--name "{args.name}": a name has letters, digits, ".", "-" and "_", at most 63 of them')
    labels = dict(command.parse_label(text) for text in args.label)
    head = head_address(args.head)
    token = _token(args)
    if args.slurm:
        return _slurm(args, backend, head)
    for option in ("script", "time", "partition", "account", "gres", "sbatch"):
        if getattr(args, option):  # or this host would join, where a batch script was meant
            raise UsageError(f"--{option} is for a batch script: add --slurm, or leave it out to join with this host")
    from farm.nodes.host import gather, ray_words

    host = gather(config.load(), backend, args.name or "", labels, args.devices)
    start = command.join(host, head, [*ray_words()], os.environ, token)
    _check(args, backend, head, start)
    return _become(args, start)


def head_address(text: str) -> str:
    """HOST:PORT of `--head HOST[:PORT]`."""
    bare = text.startswith("[") and text.endswith("]")
    full = f"{text}:{command.PORT}" if ":" not in text or bare else text
    host, port = address.parse(full, f"--head {text}")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check(args: argparse.Namespace, backend: str, head: str, start: command.Start) -> None:
    """What farm doctor says of this host and its way to the head; a FAIL stops."""
    if args.skip_doctor:
        return
    from farm.doctor import Level, for_join

    found = [f for f in for_join(backend, head, variables=start.variables) if f.level in (Level.WARN, Level.FAIL)]
    for f in found:
        cure = f"; cure: {f.cure}" if f.cure else ""
        print(f"{f.level.value} {f.section}: {printable(f.what + cure)}", file=sys.stderr)
    bad = [f for f in found if f.level is Level.FAIL]
    if bad and not args.dry_run:
        raise UsageError(
            f"this host is not ready to join: {bad[0].what}; mend it ({bad[0].cure}), or join with --skip-doctor"
        )


def _token(args: argparse.Namespace) -> str:
    """The token's file, as a path that does not depend on the working folder."""
    if not args.token_path:
        return ""
    path = Path(args.token_path).absolute()
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--token-path {path}: cannot be read ({why}); copy the head's token there") from None
    if not text.strip():
        raise UsageError(f"--token-path {path}: is empty; copy the head's token there")
    if mode & 0o077:
        raise UsageError(f"--token-path {path}: others can read it (mode {mode & 0o777:o}); chmod 600 {path}")
    return str(path)


def _head(args: argparse.Namespace) -> int:
    if not 0 < args.port < 65536:
        raise UsageError(f"--port {args.port}: a port goes from 1 to 65535")
    if args.cpus is not None and args.cpus < 0:
        raise UsageError(f"--cpus {args.cpus}: Ray can count 0 processors or more")
    if not args.dry_run:
        _can_listen(args.ip, args.port)
    from farm.nodes.host import ray_words

    start = command.head(args.port, ray_words(), os.environ, _token(args), args.ip, args.cpus)
    return _become(args, start)


def _can_listen(ip: str, port: int) -> None:
    """Refuse an address that is not this host's, or a port that somebody has: Ray would try for minutes."""
    try:
        family, kind, number, _, place = socket.getaddrinfo(ip or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        where = f"--ip {ip}, --port {port}" if ip else f"--port {port}"
        why = error.strerror or str(error)
        raise UsageError(
            f"{where}: nothing can listen there ({why}); name an address of this host and a port that is free"
        ) from None


def _become(args: argparse.Namespace, start: command.Start) -> int:
    """Print the command, or be replaced by it."""
    words = (*start.words, *args.ray)
    start = command.Start(words, start.variables, start.notes)
    if args.dry_run:
        print("\n".join(start.shell()))
        return 0
    for note in start.notes:
        print(f"farm nodes: {note}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        os.execvpe(words[0], words, start.environment(os.environ))
    except OSError as error:
        raise InfraError(f"{words[0]}: cannot be started ({error.strerror}); pip install 'ray>=2.55'") from error


def _slurm(args: argparse.Namespace, backend: str, head: str) -> int:
    """Write the batch script.  Nothing of this host is looked at: the job runs on others."""
    if not args.time:
        raise UsageError("--slurm needs the job's time limit: --time 4:00:00")
    if args.name is not None:
        raise UsageError(f"--name {args.name}: with --slurm each node has the name that Slurm gives it; leave it out")
    if not 1 <= args.nodes <= 1000:
        raise UsageError(f"--nodes {args.nodes}: between 1 and 1000 nodes can be asked for")
    joined = ["--backend", backend, "--head", head]
    for option in ("devices", "token_path"):
        value = getattr(args, option)
        joined += (
            [f"--{option.replace('_', '-')}", str(Path(value).absolute() if option == "token_path" else value)]
            if value
            else []
        )
    joined += [word for text in args.label for word in ("--label", text)]
    joined += [f"--ray={text}" for text in args.ray]
    joined += ["--skip-doctor"] if args.skip_doctor else []
    variables = {k: os.environ[k] for k in command.PASSED_ON if os.environ.get(k)}
    text = slurm.script(
        slurm.Job(args.time, args.notice, args.partition, args.account, args.gres, args.nodes, more=args.sbatch),
        slurm.Script(
            [sys.executable, "-m", "farm"], joined, head,
            {**variables, **command.authentication(os.environ, _token(args))},
        ),
    )  # fmt: skip
    if not args.script:
        print(text, end="")
        return 0
    path = Path(args.script)
    if args.dry_run:
        over = ", over the file that is there" if path.exists() else ""
        print(f"farm nodes: {path} would be written{over}; nothing is, since this is a dry run", file=sys.stderr)
        print(text, end="")
        return 0
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--script {path}: cannot be written ({error.strerror})") from None
    print(f"{path}: submit it with sbatch {shlex.quote(str(path))}")
    return 0
