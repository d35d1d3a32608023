"""One device as its node has it: the node's configuration, the environment that its children get, what the host reads
of it, and whether it may serve.  The actor's one look at all that; nothing here opens the device."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from farm import backends, limits
from farm.actor import child_process, compile_ahead, sandboxed, tools, waiting
from farm.cell import Evidence
from farm.child import protocol
from farm.child.preloaded import COMPILES
from farm.child.tuning import VARIABLE
from farm.errors import FarmError, Message, UsageError
from farm.node import config as nodes
from farm.node import sandbox_host
from farm.node.environment import Environment, child_variables, given_variables
from farm.shipping import bundle, subjects
from farm.shipping import providers as shipping

#: What is true of an accelerator and not of the processor beside it, which the same node may offer too.
_OF_THE_PART = ("model", "partition", "driver", "stack")


@dataclass(frozen=True)
class _ArmSetup:
    """How the children of one arm are started, and what they are told of the subject."""

    environment: Environment
    subject: dict[str, Any]
    revision: str


class DeviceSetup:
    """`config`: as the actor has it.  `broken`: why the node's configuration cannot be used, "" where it can."""

    def __init__(self, config: Mapping[str, Any]):
        self.backend = str(config["backend"])
        self.real = backends.get(self.backend)
        self.broken = ""
        try:
            self.node = nodes.load()
        except UsageError as error:
            self.node, self.broken = nodes.NodeConfig(), str(error)
        self.config = {**config, "deadlines": limits.of(config.get("deadlines", {}), self.node.deadlines)}
        simulated = bool(self.node.simulate) and self.node.backend == self.backend
        #: The backend whose module speaks for the device on this host, and which the child opens.
        self.host_backend = "sim" if simulated else self.backend
        self.host = backends.get(self.host_backend)
        self.options: dict[str, Any] = {**self.node.simulate, "as": self.backend} if simulated else {}
        self.environment = Environment.of(config["environment"])
        self.identity: backends.Identity | None = None
        self.tool: tools.Tool | None = None  # that children run under
        self.under: tuple[str, ...] = ()
        self._written: dict[str, str] = {}  # path of an unpacked file or folder -> the one that its author edits
        #: What a waiting child is told of the users' files, by which it proves that it has nothing else.
        self._sent: dict[str, Any] = {"modules": [], "folder": "", "digest": ""}
        self._box_told = ""  # of the sandbox that the children run in
        #: What a child is told of the run's subject, once it is unpacked here; {} without one.
        self.subject: dict[str, Any] = {}
        #: The arm that children belong to from now on, and whose code they run; "" where the run has no two.
        self.arm, self.revision = "", str(config.get("revision", ""))
        self._arms: dict[str, _ArmSetup] = {}
        self._ahead = waiting.ArmAhead()

    def limits(self, asked: Mapping[str, float]) -> dict[str, float]:
        """Of an attempt that asks for these: the rest is the device's, and the node's caps win."""
        return limits.of({**self.config["deadlines"], **asked}, self.node.deadlines)

    @property
    def guarded(self) -> dict[str, Any]:
        """The config for what guards the device: of the module that can read it."""
        return {**self.config, "backend": self.host_backend, "options": self.options}

    @property
    def labels(self) -> dict[str, str]:
        """The node's labels as the cluster knows them, else as its configuration does."""
        found = self.config.get("labels")
        return dict(self.node.labels if found is None else found)

    # before the first child

    def prepare(self) -> None:
        """Find the environment, unpack what it imports, read the device.  NoChild says what is wrong here."""
        if self.broken:
            raise child_process.NoChild(self.broken, final=True)
        try:
            for name, own in (self.config.get("arms") or {"": {}}).items():
                self._arms[name] = self._arm_setup(name, {**self.config, **own})
        except UsageError as error:
            raise child_process.NoChild(str(error), final=True) from None
        except FarmError as error:
            raise child_process.NoChild(str(error)) from None
        self.use(self.arms[0])
        self.identity = self._identified()

    def _arm_setup(self, name: str, config: Mapping[str, Any]) -> _ArmSetup:
        """What the children of an arm are started with.  `config`: the device's, with what is the arm's own.  Two arms
        share no cache of Triton's: what one has compiled or tuned is not there for the other, and is for its own later
        rounds."""
        asked = Environment.of(config["environment"])
        found = asked if asked.command or asked.python else nodes.environment(self.node, asked.name)
        found = self._sandboxed(found, asked)
        told, first = self._subject(config.get("subject"))
        tuning = str(config.get("tuning") or "freeze")
        frozen = str(int(tuning == "freeze"))
        cache = {"TRITON_CACHE_DIR": str(Path(config["spool"], f"triton-{name}")), "TRITON_CACHE_AUTOTUNING": frozen}
        cache |= {VARIABLE: tuning} if tuning == "none" else {}
        own = {**self._subject_variables(config), **(cache if name else {})}
        variables = {**own, **found.variables, **config.get("variables", {})}
        path = (*first, *self._import_path(found, config))
        made = self._with_tool(asked, replace(found, path=path, variables=variables))
        return _ArmSetup(made, told, str(config.get("revision", "")))

    def _with_tool(self, asked: Environment, made: Environment) -> Environment:
        """An environment whose children run under the tool that the run asks for.  NoChild if this node has none, or
        cannot."""
        if not asked.tool:
            return made
        self.tool = tools.TOOLS[asked.tool]
        if made.sandbox is not None:
            raise child_process.NoChild(f"{self.tool.program} cannot run in a sandbox; run without one", final=True)
        if made.command:
            raise child_process.NoChild(
                f"environment {made.name} starts children by a command of its own, under which {self.tool.program} "
                "cannot run; name another one with --environment",
                final=True,
            )
        program = tools.found(self.tool)
        if not program:
            raise child_process.NoChild(tools.missing(self.tool, "this run"), final=True)
        self.under = tools.under(program, self.tool)
        variables = {**self.tool.variables, **made.variables}
        return replace(made, tool=asked.tool, tool_out=asked.tool_out, variables=variables)

    def _sandboxed(self, found: Environment, asked: Environment) -> Environment:
        """The environment with the sandbox that it or the run asks for.  NoChild where there can be none."""
        if found.sandbox is None and asked.sandbox is None:
            return found
        why = sandbox_host.unfit(found)
        if why:
            raise child_process.NoChild(f"no sandbox can be made here: {why}", final=True)
        path = sandbox_host.own_path(found.path) if found.own else found.path
        return replace(found, sandbox=asked.sandbox if found.sandbox is None else found.sandbox, path=path)

    @property
    def arms(self) -> tuple[str, ...]:
        """The names of the arms in their order; one "" where the run has no two."""
        return tuple(self._arms)

    def use(self, arm: str) -> None:
        """From now on children are started for this arm."""
        own = self._arms[arm]
        self.arm, self.environment, self.subject, self.revision = arm, own.environment, own.subject, own.revision

    def _subject(self, given: Mapping[str, Any] | None) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What a child is told of a subject, and its folders, which come before everything else on the import path."""
        if not given:
            return {}, ()
        folder, path = subjects.unpack(given, str(self.config["spool"]))
        told = {name: given[name] for name in ("name", "revision", "digest", "modules", "over")}
        self._written |= {f"{folder}/{place}": there for place, there in given.get("origins", {}).items()}
        return {**told, "folder": str(folder)}, path

    def as_written(self, text: str) -> str:
        """A text with the paths that its author edits in place of those where the files were unpacked."""
        for here, there in self._written.items():
            text = text.replace(here, there)
        return text

    def _subject_variables(self, config: Mapping[str, Any]) -> dict[str, str]:
        """What the subject sets for this backend's children; the node's environment has the last word, but for what an
        arm sets."""
        return dict((config.get("subject") or {}).get("variables", {}).get(self.backend, {}))

    def _import_path(self, environment: Environment, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Bundles first; then a user's providers, which travel by content like them; then the supervisor's own path,
        or what the environment adds.  Where nothing travels but providers (a run on its own host), they are last: the
        path on which they were looked for goes on to mean what it meant."""
        spool = str(self.config["spool"])
        bundles = list(self.config.get("bundles") or [])
        if not bundles and (environment.sandbox is not None or not environment.own):  # what runs here runs there
            bundles = [b.plain() for b in bundle.pack_all()]
        folders = [str(bundle.install(b["sha"], b["blob"], Path(spool, "bundles"))) for b in bundles]
        shipped = config.get("shipped")
        users = [shipping.unpack(shipped, spool)] if shipped else []
        if shipped:
            tops = {str(name).split("/")[0].removesuffix(".py") for name in shipped["files"]}
            self._sent = {"modules": sorted(tops), "folder": users[0], "digest": str(shipped["sha"])}
        if shipped and shipped.get("origins"):
            self._written |= {f"{users[0]}/{top}": f"{there}/{top}" for top, there in shipped["origins"].items()}
        return (*folders, *users, *environment.path) if folders else (*environment.path, *users)

    def _identified(self) -> backends.Identity | None:
        try:
            return self.host.identity(self.config["device_id"], self.options)
        except Exception:  # a vendor's tool in a bad mood; what must be known of the device is asked of it by `refused`
            traceback.print_exc(file=sys.stderr)
            return None

    # a child

    def child(self) -> child_process.Child:
        """Start one.  OSError if its command cannot be started."""
        given = dict(self.host.child_env(self.config["device_id"]))
        env = child_variables(given, self.environment)
        more = self.host.child_options(self.config["deadlines"])
        options = {**more, **self.options, **({"subject": self.subject} if self.subject else {})}
        spool, device, box = str(self.config["spool"]), self.config["device_id"], None
        if self.environment.sandbox is not None:
            box = sandboxed.Sandbox(self.environment, self.host_backend, spool)
            self._box_told = box.told()
        order = {"argv": [self.host_backend, device, json.dumps(options)], **self._sent}
        if self.arm:
            waiting_one = self._ahead.take(self.arm, env, order)
        else:  # no child waits under a tool or in a sandbox
            alone = self.under or box is not None
            waiting_one = None if alone else waiting.take(self.host_backend, env, self.environment, spool, order)
        started = waiting_one or child_process.Child(
            self.host_backend,
            device,
            options,
            env,
            self.environment,
            given=given_variables(given, self.environment),
            spool=spool,
            under=self.under,
            box=box,
        )
        started.write_seconds, started.kill_seconds = (self.config["deadlines"][k] for k in ("write", "teardown"))
        return started

    def ahead(self, counts: Mapping[str, int]) -> None:
        """Have so many children of each arm import what every child imports, those that wait already included."""
        for arm, count in counts.items():
            environment = self._arms[arm].environment
            if self.under or environment.sandbox is not None:
                continue
            env = child_variables(dict(self.host.child_env(self.config["device_id"])), environment)
            self._ahead.start(arm, self.host_backend, env, environment, str(self.config["spool"]), count)

    def waiting(self, arm: str) -> int:
        """How many children of this arm wait."""
        return self._ahead.count(arm)

    def signal_waiting(self, number: int) -> None:
        """Send a signal to all children that wait."""
        self._ahead.signal(number)

    def spare_cores(self) -> int:
        """Cores of this host that work ahead for each arm of this device."""
        sharing = int(self.config.get("compile_ahead") or 0)
        real = sharing > 0 and self.backend in waiting.BACKENDS and self.real.ACCELERATOR
        return compile_ahead.workers(compile_ahead.cores(), sharing, len(self.arms)) if real else 0

    def compiler(self, arm: str, workers: int | None = None) -> child_process.Child | None:
        """Start what compiles ahead for this arm's children, with their files, environment and confinement, but without
        a device, on so many cores (None: those to spare).  None where there are no cores for it, and where there can be
        none: in a sandbox each child has a cache of its own, a command may lead anywhere, and a tool is for one
        process.  OSError if it cannot be started."""
        workers = self.spare_cores() if workers is None else workers
        if not workers:
            return None
        own = self._arms[arm]
        environment = own.environment
        if environment.sandbox is not None or environment.command or self.under or self.host_backend != self.backend:
            return None
        spool = str(self.config["spool"])
        env = child_variables(dict(self.host.child_env(self.config["device_id"])), environment)
        hidden = compile_ahead.variables(spool, arm)
        options = {"workers": workers, "backend": self.backend, **({"subject": own.subject} if own.subject else {})}
        path = [p for p in env["PYTHONPATH"].split(os.pathsep) if p]
        order = {"argv": [COMPILES, json.dumps(options)], "variables": hidden, "path": path, **self._sent}
        found = None if arm else waiting.take(self.backend, env, environment, spool, order, hidden)
        if found is None:
            early = {**env, "PYTHONPATH": os.pathsep.join(p for p in path if not p.startswith(spool))}
            alone = {name: value for name, value in {**early, **hidden}.items() if value is not None}
            found = child_process.Child(self.backend, "", {}, alone, environment, spool=spool, waits=True)
            found.begin(order)
        found.write_seconds, found.kill_seconds = (self.config["deadlines"][k] for k in ("write", "teardown"))
        return found

    def let_go(self) -> None:
        """End the children that wait, and that nobody has needed."""
        self._ahead.close()

    def completed(self, ready: protocol.Ready) -> protocol.Ready:
        """The child's words with what only the host can say: the rest of its target, and its environment."""
        from farm.node import admission

        fingerprint = {**ready.fingerprint, "environment": self.environment.name}
        fingerprint |= {"sandbox": self._box_told} if self._box_told else {}
        return replace(ready, target=admission.complete(ready.target, self.identity), fingerprint=fingerprint)

    def subject_not_taken(self, ready: protocol.Ready) -> str:
        """Why the child would not run the subject's files, as it proved itself; "" where it would, or there is none."""
        if not self.subject:
            return ""
        name, proven = f"subject {self.subject['name']}", ready.subject
        what = "every result would be one of other code, so nothing was run; uninstall or rename what stands before it"
        if not proven.get("missing") and set(proven.get("modules") or ()) != set(self.subject["modules"]):
            proven = {**proven, "wrong": "the child did not say where it would import it from"}
        if proven.get("wrong"):
            return Message(f"{name}: {proven['wrong']}; {what}", id="subject-not-taken")
        if proven.get("digest") != self.subject["digest"]:
            found = proven.get("digest") or "none"
            return Message(
                f"{name}: the files that the child read have digest {found}, not {self.subject['digest']} as they were "
                "sent; something on the node changed them: run again",
                id="subject-digest",
            )
        return ""

    def refused(self, ready: protocol.Ready) -> str:
        """Why the device may not serve, by the node's labels and expectations; "" where it may."""
        from farm.node import admission

        labels, expect = self.labels, dict(self.node.expect)
        named = [b for b in labels.get("backend", "").split(".") if b]
        if self.backend in named:
            labels["backend"] = self.backend
        beside = self.node.backend not in ("", self.backend) or len(named) > 1
        if beside and not self.real.ACCELERATOR:
            labels, expect = ({k: v for k, v in d.items() if k not in _OF_THE_PART} for d in (labels, expect))
        return str(admission.refusal(expect, labels, self.identity, ready.target, ready.fingerprint))

    def told(self) -> dict[str, Any]:
        """What a device that is up says of its place."""
        return {
            "identity": asdict(self.identity) if self.identity else {},
            "environment": self.environment.name,
            "command": list(self.environment.words()),
            "labels": self.labels,
        }

    @property
    def fallback_timing(self) -> str:
        """The method that times what no graph captures on such a device."""
        return self.real.FALLBACK_TIMING

    # its end

    def fault(self, text: str, code: int | None = None) -> backends.Fault | None:
        """What the vendor's words mean, of a process that died with `code` or of an exception."""
        return self.real.fault(text, code)

    @property
    def capture_may_kill(self) -> bool:
        return self.real.CAPTURE_MAY_KILL

    @property
    def interpreted(self) -> bool:
        return bool(Evidence.INTERPRETED.value == self.real.EVIDENCE)

    @property
    def trial_capture(self) -> bool:
        return backends.trial_capture(self.backend)
