"""Ray, its token, and the head of the cluster that this host joins.  Pure."""

from __future__ import annotations

from farm.doctor.facts import Facts, HeadFacts
from farm.doctor.finding import Finding, Findings, Level, fail, note, ok, warn

RAY_OLDEST = (2, 55)  # label selectors on actors, token authentication
CLOCK_SECONDS = 5.0  # the head's clock is read to the second
MODES = ("token", "disabled", "k8s")
#: A node's label with the version of the farm that is installed there.
VERSION_LABEL = "farm/version"


def ray(f: Facts) -> Findings:
    oldest = ".".join(map(str, RAY_OLDEST))
    trial = f.trial("ray")
    if not trial.ok:
        what = f"ray cannot be imported ({trial}): only --address inline works"
        wanted = f.asked.head or f.variables.get("FARM_ADDRESS", "inline") != "inline"
        yield Finding("ray-missing", "ray", Level.FAIL if wanted else Level.NOTE, what, f"pip install 'ray>={oldest}'")
    elif _version(trial.text) < RAY_OLDEST:
        what = f"ray {trial.text} is too old: it cannot place actors by label"
        yield fail("ray-too-old", "ray", what, f"pip install -U 'ray>={oldest}'")
    else:
        yield ok("ray", f"ray {trial.text}")
    yield from _addresses(f)
    amd = f.backend("rocm")
    if amd is not None and "ROCR_VISIBLE_DEVICES" in f.variables and "HIP_VISIBLE_DEVICES" not in f.variables:
        what = "ROCR_VISIBLE_DEVICES is set without HIP_VISIBLE_DEVICES: Ray rejects this on a host with AMD GPUs"
        here = bool(amd.files or amd.devices) or f.asked.backend == "rocm"
        cure = 'export HIP_VISIBLE_DEVICES="$ROCR_VISIBLE_DEVICES"; unset ROCR_VISIBLE_DEVICES'
        yield Finding("ray-rocr", "ray", Level.FAIL if here else Level.WARN, what, cure)


def _addresses(f: Facts) -> Findings:
    where = f.variables.get("RAY_ADDRESS")
    if where and f.ray_address_silent:
        what = (
            f"RAY_ADDRESS={where} is set, but no cluster answers at this address ({f.ray_address_silent}): "
            "--address auto fails"
        )
        yield warn("ray-address-stale", "ray", what, "unset RAY_ADDRESS, or start that cluster again")
    elif where is not None:
        what = f"RAY_ADDRESS={where} is set: --address auto uses this cluster; a run without --address ignores it"
        yield note("ray-address-variable", "ray", what)
    if f.ray_written and f.ray_silent:
        what = (
            f"{f.ray_file} names {f.ray_written}, but no cluster answers at this address ({f.ray_silent}): "
            "--address auto fails"
        )
        yield warn("ray-file-stale", "ray", what, f"start that cluster again, or remove {f.ray_file}")
    elif f.ray_written:
        what = f"a cluster answers at {f.ray_written}: farm run --address auto joins it"
        yield note("ray-cluster-here", "ray", what)


def token(f: Facts) -> Findings:
    t, section = f.token, "token"
    joining = bool(f.asked.head)
    bad = Level.FAIL if joining else Level.WARN
    if t.mode is not None and t.mode.lower() not in MODES:
        what = f"RAY_AUTH_MODE={t.mode} is not a value that Ray knows"
        yield fail("ray-auth-mode", section, what, "set RAY_AUTH_MODE=token, or RAY_AUTH_MODE=disabled, on every node")
    elif t.mode is None and (t.source or joining):
        seen = f"{t.source} contains a token" if t.source else "this host joins a head"
        what = f"{seen}, but RAY_AUTH_MODE is not set: some of Ray's commands then require a token, others do not"
        cure = "set RAY_AUTH_MODE=token (or disabled) on every node and client"
        yield Finding("ray-auth-mode", section, Level.WARN if joining else Level.NOTE, what, cure)
    wanted = (t.mode or "").lower() == "token"
    if wanted and not t.source:
        what = "RAY_AUTH_MODE is token, but RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH and ~/.ray/auth_token give none"
        cure = "set RAY_AUTH_TOKEN_PATH to a copy of the cluster's token, or unset RAY_AUTH_MODE"
        yield Finding("ray-token-missing", section, Level.FAIL if joining else Level.NOTE, what, cure)
    if not t.source or not wanted:
        return
    if t.failure:
        what = f"{t.source} contains no token ({t.failure}), so Ray's processes exit at start"
        yield Finding("ray-token-unreadable", section, bad, what, "write the cluster's token to this file (mode 0600)")
        return
    if t.exposed:
        what = f"other users can read {t.source}: whoever has the token can run anything on every node"
        yield warn("ray-token-exposed", section, what, f"chmod 600 {t.source}, and create a new token")
    if t.illegal:
        what = (
            f"the token in {t.source} contains white space, a byte order mark or other characters that cannot be sent"
        )
        cure = "write the token again as plain ASCII: ray get-auth-token --generate"
        yield Finding("ray-token-illegal", section, bad, what, cure)
    elif t.spaces:
        what = (
            f"the token in {t.source} has leading or trailing white space: Ray removes this white space, but other "
            "clients may not"
        )
        yield note(
            "ray-token-spaces",
            section,
            what,
            f"write the token without a trailing newline: printf %s TOKEN > {t.source}",
        )
    if t.differs:
        what = "RAY_AUTH_TOKEN and the file of RAY_AUTH_TOKEN_PATH differ; Ray uses RAY_AUTH_TOKEN"
        yield warn("ray-token-two", section, what, "unset the outdated one of the two variables")


def head(f: Facts) -> Findings:
    h = f.head
    if h is None:
        return
    section = "head"
    if h.loopback:
        what = f"{h.address} is this host itself: other hosts need the head's network address"
        yield note("head-loopback", section, what)
    if h.kind:
        yield _unreachable(h)
        return
    if not h.trial.ok:
        if "uthenticat" in h.trial.text or "InvalidAuthToken" in h.trial.text:
            source = f"the token in {f.token.source}" if f.token.source else "no token"
            mode = f.token.mode or "not set"
            what = f"{h.address} rejects this host, which uses {source} (RAY_AUTH_MODE is {mode})"
            cure = "copy the head's token to this host (run ray get-auth-token on the head) and set RAY_AUTH_MODE=token"
            yield fail("head-token", section, what, cure)
        elif (
            f.token.source or (f.token.mode or "").lower() != "token"
        ):  # otherwise the token is the reason, and has been reported
            what = f"{h.address} answers, but did not report its versions ({h.trial})"
            cure = "check the head's log; use the same RAY_AUTH_MODE, RAY_USE_TLS and Ray version on both hosts"
            yield warn("head-unasked", section, what, cure)
        return
    yield from _versions(f, h)
    ahead = h.trial.data.get("clock_ahead_s")
    if ahead is not None and abs(float(ahead)) > CLOCK_SECONDS:
        side = "ahead of" if ahead > 0 else "behind"
        what = f"this host's clock is {abs(ahead):.0f} s {side} the head's"
        yield warn(
            "head-clock",
            section,
            what,
            "synchronize both hosts with the same time server (timedatectl set-ntp true, chrony)",
        )


def _unreachable(h: HeadFacts) -> Finding:
    host, port = h.address.rpartition(":")[::2]
    if h.kind == "name":
        return fail("head-name", "head", h.reason, f"use the head's address, or add {host} to /etc/hosts")
    if h.kind == "refused":
        what = f"{h.address}: the host answers, but nothing listens on port {port}"
        return fail(
            "head-refused",
            "head",
            what,
            f"start the head on that host (farm nodes head --port {port}), or use the head's actual port",
        )
    if h.kind == "stranger":
        what = f"{h.address}: a service other than Ray answers at this address"
        return fail(
            "head-stranger", "head", what, "use the port that farm nodes head was started with (6379 by default)"
        )
    what = f"{h.address}: {h.reason}"
    cure = f"open port {port} (and Ray's other ports) between this host and the head; check the head's address"
    return fail("head-silent", "head", what, cure)


def _versions(f: Facts, h: HeadFacts) -> Findings:
    theirs, ours = str(h.trial.data.get("ray", "")), f.trial("ray").text
    if theirs and f.trial("ray").ok and theirs != ours:
        what = f"the cluster runs Ray {theirs}, but this host runs Ray {ours}: Ray does not let different versions join"
        yield fail("head-ray-version", "head", what, f"pip install ray=={theirs}")
    python, mine = str(h.trial.data.get("python", "")), ".".join(map(str, f.python))
    loose = f.variables.get("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL") == "minor"
    same = python.split(".")[:2] == mine.split(".")[:2]
    if python and python != mine and not (loose and same):
        what = (
            f"the cluster runs Python {python}, but Ray on this host runs Python {mine}: Ray does not let different "
            "versions join"
        )
        cure = f"run Ray from a venv of Python {python} (children keep using the vendor's Python)"
        if same:
            cure += ", or set RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL=minor on every node"
        yield fail("head-python-version", "head", what, cure)
    nodes = h.trial.data.get("nodes", [])
    other = sorted({v for n in nodes if (v := n["labels"].get(VERSION_LABEL)) and v != f.farm})
    if other:
        what = f"nodes of the cluster have kernel-farm {', '.join(other)}, but this host has {f.farm}"
        yield warn("head-farm-version", "head", what, "install the coordinator's version on every node")
    yield ok("head", f"{h.address}: Ray {theirs} on Python {python}, {len(nodes)} nodes")


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")[:2]
    return tuple(int("".join(c for c in p if c.isdigit()) or 0) for p in parts)
