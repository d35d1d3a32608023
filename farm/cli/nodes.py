"""`farm nodes`: list the cluster; `join` and `head` start Ray, `drain` and `restore` take a node out and in."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import backends
from farm.cli.text import printable, sentence
from farm.cluster import address, listing, ray_folder, ray_token
from farm.cluster.registry import DRAINED, DRAINING, bereft
from farm.errors import InfraError, Message, UsageError
from farm.kernel_package import ROOT
from farm.node import config, join_command, slurm
from farm.process.own_modules import module_words

if TYPE_CHECKING:
    from farm.cluster.inventory import ClusterNode
    from farm.cluster.registry_client import RegistryClient

PROBE_SECONDS = 3.0  # in a list, to see whether a node that is being drained is idle by now
MAX_WAIT_SECONDS = 24 * 3600.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    p = commands.add_parser(
        "nodes",
        help="list, join, drain and restore the nodes of a cluster",
        description="Without an action: list the cluster's nodes with their devices, versions, state and last fault.",
        epilog="example: farm nodes join --backend rocm --head 10.0.0.1 --token-path /etc/farm/ray_token --dry-run",
    )
    _address(p)
    p.add_argument("--json", action="store_true", help="print the list as JSON")
    actions = p.add_subparsers(dest="action", metavar="join|head|drain|restore")
    _add_join(actions)
    _add_head(actions)
    for name, what in (
        ("drain", "stop giving new work to nodes; work that has begun is finished"),
        ("restore", "give work to drained nodes again"),
    ):
        one = actions.add_parser(
            name,
            help=what,
            description=f"{what[0].upper()}{what[1:]}.",
            epilog=f"example: farm nodes {name} mi300-07 --address auto",
        )
        one.add_argument("nodes", nargs="*", metavar="NODE", help="node to use: name, Ray ID, host name or address")
        one.add_argument("--here", action="store_true", help="include the node that runs on this host")
        _address(one, default=argparse.SUPPRESS)
        if name == "drain":
            one.add_argument("--reason", default="", help="reason to show in the list of nodes")
            one.add_argument(
                "--wait",
                type=float,
                default=0.0,
                metavar="SECONDS",
                help=(
                    "wait up to SECONDS until no run uses the drained nodes' devices; the exit code is 3 if a run "
                    "still uses any"
                ),
            )
            one.add_argument(
                "--once",
                action="store_true",
                help="drain a node only until it leaves the cluster (default: a node that rejoins stays drained)",
            )


def _address(p: argparse.ArgumentParser, default: Any = "auto") -> None:
    p.add_argument(
        "--address", default=default, metavar="auto|HOST:PORT", help="use the cluster at this address (default: auto)"
    )


def _ray_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--ray",
        action="append",
        default=[],
        metavar="OPTION",
        help="add an option of ray start, written in full (for example --ray=--node-ip-address=10.0.0.7); repeatable",
    )
    p.add_argument(
        "--token-path",
        metavar="FILE",
        help="file that contains the cluster's token (mode 0600; default: the file that RAY_AUTH_TOKEN_PATH names)",
    )
    p.add_argument(
        "--no-token", action="store_true", help="use no token: whoever can reach Ray's ports can run code on the nodes"
    )
    p.add_argument(
        "--dry-run", action="store_true", help="only print the command or batch script; start and write nothing"
    )


def _add_join(actions: Any) -> None:
    p = actions.add_parser(
        "join",
        help="make this host a node of a cluster",
        description="Check this host as farm doctor does, compare this host's devices with the node's configuration, "
        "then start Ray with the labels, resources and settings that runs need. This command then becomes the Ray "
        "process.",
        epilog="example: farm nodes join --backend cuda --head 10.0.0.1:6379 --label rack=r7 --dry-run",
    )
    p.add_argument(
        "--backend", metavar="B", help="backend of this host's devices (default: from the node's configuration)"
    )
    p.add_argument(
        "--head",
        required=True,
        metavar="HOST[:PORT]",
        help=f"address of the cluster's head (default port: {join_command.PORT})",
    )
    p.add_argument("--devices", type=int, metavar="N", help="offer N of this host's devices (default: all)")
    p.add_argument("--name", metavar="NAME", help="name of the node (default: this host's name)")
    p.add_argument(
        "--label", action="append", default=[], metavar="K=V", help="give the node the label farm/K=V; repeatable"
    )
    p.add_argument("--skip-doctor", action="store_true", help="join without the checks of farm doctor")
    _ray_options(p)
    s = p.add_argument_group(
        "Slurm", "with --slurm, write a batch script that joins from a Slurm allocation, instead of joining now"
    )
    s.add_argument("--slurm", action="store_true", help="write a Slurm batch script instead of joining now")
    s.add_argument("--script", metavar="FILE", help="write the batch script to this file (default: standard output)")
    s.add_argument("--time", default="", metavar="LIMIT", help="time limit of the Slurm job, for example 4:00:00")
    s.add_argument(
        "--notice",
        type=int,
        default=300,
        metavar="SECONDS",
        help="start draining this many seconds before the Slurm job's time limit (default: 300)",
    )
    s.add_argument("--partition", default="", help="partition of the Slurm job")
    s.add_argument("--account", default="", help="account of the Slurm job")
    s.add_argument("--gres", default="", help="resources of each Slurm node, for example gpu:8")
    s.add_argument("--nodes", type=int, default=1, metavar="N", help="number of nodes of the Slurm job (default: 1)")
    s.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="add an sbatch option, written in full (for example --sbatch=--exclusive); repeatable",
    )


def _add_head(actions: Any) -> None:
    p = actions.add_parser(
        "head",
        help="make this host the head of a cluster",
        description=(
            "Start the Ray head of a cluster on this host; the head offers no devices to the farm. This command "
            "then becomes the Ray process."
        ),
        epilog="example: farm nodes head --token-path /etc/farm/ray_token --dry-run",
    )
    p.add_argument(
        "--port", type=int, default=join_command.PORT, help=f"listen on this port (default: {join_command.PORT})"
    )
    p.add_argument("--ip", default="", metavar="ADDRESS", help="address at which nodes reach this host")
    p.add_argument("--cpus", type=int, metavar="N", help="let Ray use N processors of this host (default: all)")
    _ray_options(p)


def run(args: argparse.Namespace) -> int:
    """List the nodes, or do the action."""
    action = {None: _list, "join": _join, "head": _head, "drain": _drain, "restore": _restore}[args.action]
    return action(args)


# the list


def _list(args: argparse.Namespace) -> int:
    with closing(_connect(args)) as cluster:
        registry, table = cluster.told(), cluster.table()
        found = listing.rows(table, registry)
        _warn_of_damage(registry)
        draining = [n for n in table for row in found if row["id"] == n.id and row["state"] == DRAINING]
        if draining and cluster.idle(draining, PROBE_SECONDS):
            found = listing.rows(table, cluster.told())
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        print("\n".join(printable(line) for line in listing.lines(found, time.time())))
    return 0


def _connect(args: argparse.Namespace) -> RegistryClient:
    if args.address in ("local", "inline"):
        what = (
            f"--address {args.address}: only a cluster has nodes; name a cluster, for example --address 10.0.0.1:6379"
        )
        raise UsageError(what, id="nodes-no-cluster")
    from farm.cluster.connect import WITHOUT_RAY
    from farm.cluster.registry_client import RegistryClient

    try:
        return RegistryClient(args.address)
    except InfraError as error:  # nodes exist only in a cluster
        cure = "or start a cluster (farm nodes head)"
        raise InfraError(str(error).replace(WITHOUT_RAY, cure), id=error.id) from error


# drain and restore


def _drain(args: argparse.Namespace) -> int:
    _some(args)
    if not 0 <= args.wait <= MAX_WAIT_SECONDS:
        what = f"--wait {args.wait:g}: must be between 0 and {MAX_WAIT_SECONDS:g} seconds"
        raise UsageError(what, id="nodes-wait")
    from farm.cluster.registry_client import who

    with closing(_connect(args)) as cluster:
        registry = cluster.told()
        _warn_of_damage(registry)
        found = _named(cluster, _names(cluster, args), left=args.once)
        for node in found:
            cluster.drain(node, args.reason, who(), args.once)
        _warn_of_runs(cluster, registry, found)
        idle = cluster.idle(found, max(args.wait, 0.0)) if args.wait else []
    names = {n.id for n in idle}
    for node in found:
        print(f"{printable(node.name)}: {DRAINED if node.id in names else DRAINING}")
    busy = [n.name for n in found if n.id not in names]
    if args.wait and busy:
        raise InfraError(
            f"{', '.join(busy)}: a run still uses devices of these nodes after {args.wait:g} s; the devices get no "
            "more work, and farm nodes shows when they are idle",
            id="nodes-busy",
        )
    return 0


def _restore(args: argparse.Namespace) -> int:
    _some(args)
    with closing(_connect(args)) as cluster:
        _warn_of_damage(cluster.told())
        for node in _named(cluster, _names(cluster, args), gone=True):
            was = cluster.restore(node)
            print(f"{printable(node.name)}: {'up' if was else 'was up'}")
    return 0


def _warn_of_runs(cluster: RegistryClient, registry: Mapping[str, Any], drained: Sequence[ClusterNode]) -> None:
    """Report the runs that have no other device for some of their cells.  `registry`: its state before the drain."""
    out = [n.name for n in drained] + [entry["name"] for entry in registry["out"].values() if entry.get("name")]
    for node in drained:
        for run, parts in bereft(cluster.runs(), node.name, out):
            what = f"run {run} has no other device for its cells of {', '.join(parts)}"
            text = (
                f"{what}; they wait until a drained node is restored, for example with farm nodes restore {node.name}"
            )
            print(f"farm nodes: {sentence(Message(text, id='nodes-run-waits'))}", file=sys.stderr)


def _warn_of_damage(registry: Mapping[str, Any]) -> None:
    if registry["damaged"]:
        print(f"farm nodes: {sentence(registry['damaged'])}", file=sys.stderr)


def _some(args: argparse.Namespace) -> None:
    if not args.nodes and not args.here:
        what = f"farm nodes {args.action}: no node is named; name one or more, or use --here for the node on this host"
        raise UsageError(what, id="nodes-none-named")


def _names(cluster: RegistryClient, args: argparse.Namespace) -> list[str]:
    return [*args.nodes, *([cluster.here()] if args.here else [])]


def _named(
    cluster: RegistryClient, names: Sequence[str], *, gone: bool = False, left: bool = False
) -> list[ClusterNode]:
    """The nodes that the command line names, each once.  Raises UsageError with the near miss for an unknown one.

    `gone`: also nodes that have left the cluster; they may have been drained before that.  `left`: an unknown node has
    left, which is reported and does not affect the others.
    """
    table = cluster.table()
    out: dict[str, ClusterNode] = {}
    for name in names:
        found = listing.chosen(table, name)
        if not found and gone:
            found = [n for n in table if n.name == name][-1:]
        if not found:
            known = sorted({n.name for n in table if n.alive})
            near = difflib.get_close_matches(name, known, 1)
            hint = f'did you mean "{near[0]}"?' if near else f"available: {', '.join(known)}"
            if left and len(names) > 1:
                print(
                    f'farm nodes: the cluster has no node "{printable(name)}", so this node was not drained; {hint}',
                    file=sys.stderr,
                )
                continue
            raise UsageError(f'the cluster has no node "{name}"; {hint}', id="nodes-unknown")
        if len(found) > 1:
            listed = ", ".join(f"{n.name} ({n.id[:12]})" for n in found)
            raise UsageError(f'"{name}" is ambiguous: {listed}; name the node by ID', id="nodes-ambiguous")
        out[found[0].id] = found[0]
    if not out:
        what = f"the cluster has none of the nodes {', '.join(names)}; farm nodes lists its nodes"
        raise UsageError(what, id="nodes-unknown")
    return list(out.values())


# start Ray here


def _join(args: argparse.Namespace) -> int:
    backend = args.backend or config.load().backend
    if not backend:
        what = (
            "--backend is missing; name the backend of this host's devices, or set backend in the node's configuration"
        )
        raise UsageError(what, id="nodes-no-backend")
    backends.usable(backend)
    if args.devices is not None and not 1 <= args.devices <= config.MAX_DEVICES:
        what = f"--devices {args.devices}: must be between 1 and {config.MAX_DEVICES}"
        raise UsageError(what, id="nodes-devices")
    if args.name is not None and not join_command.LABEL_WORD.fullmatch(args.name):
        what = f'--name "{args.name}": use only letters, digits, ".", "-" and "_", at most 63 characters'
        raise UsageError(what, id="nodes-name")
    labels = dict(join_command.parse_label(text) for text in args.label)
    head = head_address(args.head)
    token = _token(args)
    if args.slurm:
        return _slurm(args, backend, head, token)
    for option in ("script", "time", "partition", "account", "gres", "sbatch"):
        if getattr(args, option):  # otherwise this host would join, although a batch script was meant
            what = f"--{option} applies only to a batch script: add --slurm, or omit --{option} to join this host now"
            raise UsageError(what, id="nodes-needs-slurm")
    from farm.node.host import gather, ray_words

    host = gather(config.load(), backend, args.name or "", labels, args.devices)
    start = join_command.join(host, head, [*ray_words()], os.environ, token, _folder())
    _check(args, backend, head, start)
    return _become(args, start)


def head_address(text: str) -> str:
    """HOST:PORT of `--head HOST[:PORT]`."""
    bare = text.startswith("[") and text.endswith("]")
    full = f"{text}:{join_command.PORT}" if ":" not in text or bare else text
    host, port = address.parse(full, f"--head {text}")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check(args: argparse.Namespace, backend: str, head: str, start: join_command.RayStart) -> None:
    """Run the checks of farm doctor for this host and its connection to the head; a FAIL stops."""
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
            f"this host is not ready to join: {bad[0].what}; fix that ({bad[0].cure}), or join with --skip-doctor",
            id="nodes-not-ready",
        )


def _token(args: argparse.Namespace) -> str:
    """The token's file, as a path that does not depend on the working folder; "" with --no-token."""
    if args.no_token:
        if args.token_path:
            what = "--no-token and --token-path contradict each other; omit one of them"
            raise UsageError(what, id="nodes-token-contradiction")
        return ""
    ray_token.refuse_empty(os.environ)
    if args.token_path:
        return _checked(args.token_path, "--token-path")
    if os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return _checked(os.environ["RAY_AUTH_TOKEN_PATH"], "RAY_AUTH_TOKEN_PATH")
    batch = getattr(args, "slurm", False)
    if os.environ.get("RAY_AUTH_TOKEN") and not batch:  # not left in the variables of what is started
        folder = Path(_folder())
        if not args.dry_run:
            ray_folder.opened(folder)
        return str(ray_token.copied(folder, os.environ["RAY_AUTH_TOKEN"], write=not args.dry_run))
    if args.action == "head":
        return _made(args)
    why = "a batch job needs the token in a file" if batch else "no token is given"
    raise UsageError(
        f"farm nodes join: {why}; copy the head's token to this host and name its file with --token-path, or add "
        "--no-token if the head was started with it",
        id="nodes-no-token",
    )


def _checked(named: str, source: str) -> str:
    path = Path(named).absolute()
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        what = f"{source} {path}: cannot be read ({why}); copy the head's token to this file"
        raise UsageError(what, id="nodes-token-unreadable") from None
    if not text.strip():
        what = f"{source} {path}: the file is empty; copy the head's token to this file"
        raise UsageError(what, id="nodes-token-empty")
    if mode & 0o077:
        what = f"{source} {path}: other users can read this file (mode {mode & 0o777:o}); chmod 600 {path}"
        raise UsageError(what, id="nodes-token-exposed")
    return str(path)


def _made(args: argparse.Namespace) -> str:
    """The head's own token: of an earlier head, or a new one."""
    file = ray_token.of_head(os.environ)
    if not file.exists() and not args.dry_run:
        try:
            ray_token.keep(file)
        except OSError as error:
            what = f"{file}: a token cannot be written ({error.strerror or error}); name a file with --token-path"
            raise InfraError(what, id="nodes-token-unwritable") from None
    return _checked(str(file), "the token") if file.exists() else str(file)


def _folder() -> str:
    """The folder around Ray's, of this user alone."""
    return str(ray_folder.of_node(os.environ))


def _head(args: argparse.Namespace) -> int:
    if not 0 < args.port < 65536:
        raise UsageError(f"--port {args.port}: must be between 1 and 65535", id="nodes-port")
    if args.cpus is not None and args.cpus < 0:
        raise UsageError(f"--cpus {args.cpus}: must be 0 or more", id="nodes-cpus")
    if not args.dry_run:
        _can_listen(args.ip, args.port)
    from farm.node.host import ray_words

    token = _token(args)
    start = join_command.head(args.port, ray_words(), os.environ, token, args.ip, args.cpus, _folder())
    if token:
        host = f"[{args.ip}]" if ":" in args.ip else args.ip or socket.gethostname()
        lines = join_command.next_steps(token, f"{host}:{args.port}")
        if not Path(token).exists():  # a dry run makes nothing
            made = "without --dry-run, a token is made in this file; in a shell: "
            lines = (f"{made}(umask 077; openssl rand -hex 32 > {shlex.quote(token)})", *lines)
        start = replace(start, notes=(*start.notes, *lines))
    return _become(args, start)


def _can_listen(ip: str, port: int) -> None:
    """Refuse an address that is not this host's, or a port that is in use: Ray would try for minutes."""
    try:
        family, kind, number, _, place = socket.getaddrinfo(ip or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        where = f"--ip {ip}, --port {port}" if ip else f"--port {port}"
        why = error.strerror or str(error)
        raise UsageError(
            f"{where}: cannot listen at this address and port ({why}); use an address of this host and a free port",
            id="nodes-cannot-listen",
        ) from None


def _become(args: argparse.Namespace, start: join_command.RayStart) -> int:
    """Print the command, or be replaced by it."""
    start = replace(start, words=(*start.words, *args.ray))
    words = start.words
    if args.dry_run:
        print("\n".join(start.shell()))
        return 0
    for note in start.notes:
        print(f"farm nodes: {note}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    ray_folder.sweep(ray_folder.opened(Path(start.folder)) / "ray")
    try:
        os.execvpe(words[0], words, start.environment(os.environ))
    except OSError as error:
        what = f"{words[0]}: cannot be started ({error.strerror}); pip install 'ray>=2.55'"
        raise InfraError(what, id="nodes-no-ray") from error


def _slurm(args: argparse.Namespace, backend: str, head: str, token: str) -> int:
    """Write the batch script.  This host is not checked: the job runs on others."""
    if not args.time:
        raise UsageError("--slurm needs the job's time limit, for example --time 4:00:00", id="slurm-no-time")
    if args.name is not None:
        what = f"--name {args.name}: with --slurm, Slurm names every node; omit --name"
        raise UsageError(what, id="slurm-name")
    if not 1 <= args.nodes <= 1000:
        raise UsageError(f"--nodes {args.nodes}: must be between 1 and 1000", id="slurm-nodes")
    joined = ["--backend", backend, "--head", head]
    joined += ["--devices", str(args.devices)] if args.devices else []
    joined += ["--token-path", token] if token else ["--no-token"]
    joined += [word for text in args.label for word in ("--label", text)]
    joined += [f"--ray={text}" for text in args.ray]
    joined += ["--skip-doctor"] if args.skip_doctor else []
    variables = {k: os.environ[k] for k in join_command.PASSED_ON if os.environ.get(k)}
    there = variables.get("PYTHONPATH", "").split(os.pathsep)
    if ROOT.name not in ("site-packages", "dist-packages"):  # it may have been found through the working directory
        variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), *filter(None, there)]))
    text = slurm.script(
        slurm.SlurmJob(args.time, args.notice, args.partition, args.account, args.gres, args.nodes, more=args.sbatch),
        slurm.Script(module_words("farm"), joined, head, {**variables, **join_command.authentication(token)}),
    )
    if not args.script:
        print(text, end="")
        return 0
    path = Path(args.script)
    if args.dry_run:
        done = "overwritten" if path.exists() else "written"
        print(f"farm nodes: without --dry-run, {path} would be {done}", file=sys.stderr)
        print(text, end="")
        return 0
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        what = f"--script {path}: cannot be written ({error.strerror}); name another file"
        raise UsageError(what, id="slurm-script") from None
    print(f"{path}: submit it with sbatch {shlex.quote(str(path))}")
    return 0
