"""This host's Python, the environments of its children, and what they import.  Pure."""

from __future__ import annotations

from farm.doctor.facts import EnvironmentFacts, Facts, ProbeResult
from farm.doctor.finding import Finding, Findings, Level, fail, note, ok, warn

CPU_EXTRA = "pip install torch triton"
OLDEST = (3, 10)
#: Distributions that install the package `triton`, each overwriting the others.
TRITONS = ("triton", "triton-ascend", "triton-rocm", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu")


def python(f: Facts) -> Findings:
    version = ".".join(map(str, f.python))
    if f.python < OLDEST:
        yield fail("python-too-old", "python", f"Python {version} is too old", "use Python 3.10 or newer")
    else:
        yield ok("python", f"kernel-farm {f.farm} on Python {version} ({f.executable})")
    missing = [name for name, version in f.packages.items() if version is None and name != "ray"]  # check_ray has it
    if missing:
        what = f"not installed: {', '.join(missing)}"
        yield fail("packages-missing", "packages", what, f"pip install {' '.join(missing)}")
    else:
        yield ok("packages", ", ".join(f"{name} {version}" for name, version in f.packages.items() if version))


def environments(f: Facts) -> Findings:
    for e in f.environments:
        yield from _environment(f, e)


def titled(e: EnvironmentFacts, section: str) -> str:
    """`torch`, or `torch (nightly)` of an environment that is not the default."""
    return section if e.name == "default" else f"{section} ({e.name})"


def _environment(f: Facts, e: EnvironmentFacts) -> Findings:
    section, first = titled(e, "environment"), e.trial("python")
    if e.missing_program:
        cure = "install this program, put it on the PATH of the node's Ray, or correct the node's configuration"
        yield fail("environment-program", section, f"{e.failure}: no child can start", cure)
        return
    if e.failure:
        yield fail("environment-python", section, f"{e.failure}", "correct the node's configuration")
        return
    if not first.ok:
        what = f"{e.command} does not run ({first}): no child can start"
        cure = "run that command by hand with -c 'print(1)', or correct the node's configuration"
        yield fail("environment-silent", section, what, cure)
        return
    if _numbers(first.text) < OLDEST:
        what = f"this environment has Python {first.text}, but children need 3.10 or newer"
        yield fail("environment-python-old", section, what, "use a newer Python for this environment")
        return
    if not e.own:
        yield ok(section, f"Python {first.text} ({first.data.get('executable', e.command)})")
    if e.dropped:
        what = f"children do not get these variables of this host: {', '.join(e.dropped)}"
        cure = "list those that a child needs under pass in the node's configuration (names, or prefixes with *)"
        yield note("environment-dropped", section, what, cure)
    if first.data.get("unconfined"):
        what = f"children can read and change the farm's own processes ({first.data['unconfined']})"
        cure = "use Linux 5.19 or newer with Landlock (lsm=landlock,... at boot), or run untrusted code as another user"
        yield note("environment-unconfined", section, what, cure)
    if e.sandboxed and f.system.unsandboxed:
        what = f"its children are to run in a sandbox, which cannot be made here: {f.system.unsandboxed}"
        yield fail("environment-unsandboxed", section, what, "do that, or remove sandbox from the node's configuration")
    numpy = e.trial("numpy")
    if not numpy.ok and not (e.own and f.packages.get("numpy") is None):
        what = f"numpy cannot be imported ({numpy}): no cell can run"
        yield fail("environment-numpy", section, what, f"{e.command} -m pip install numpy")
    yield from _torch(f, e)
    yield from _triton(f, e)
    yield from _kernels(f, e)
    if e.trial("torch").ok:  # otherwise every provider would fail for the same reason
        yield from _providers(f, e)


def _torch(f: Facts, e: EnvironmentFacts) -> Findings:
    torch, section = e.trial("torch"), titled(e, "torch")
    if torch.ok:
        yield ok(section, f"torch {torch.text}, built for {torch.data.get('built_for', 'nothing')}")
        return
    if e.trial("torch alone").ok:
        return  # the vendor's plug-in breaks it, which is reported there
    code = "torch-missing" if torch.ended == "missing" and "torch'" in torch.text else "torch-broken"
    cure = f"{CPU_EXTRA}, or the vendor's torch where there is an accelerator"
    if not e.own:
        cure = f"install the vendor's torch for {e.command}, or correct the node's configuration"
    level = Level.WARN if f.node.simulates else Level.FAIL  # a simulated device needs no torch
    yield Finding(code, section, level, f"torch cannot be imported ({torch}): no cell can run", cure)


def _triton(f: Facts, e: EnvironmentFacts) -> Findings:
    triton, section = e.trial("triton"), titled(e, "triton")
    installed = e.trial("python").data.get("distributions", {})
    several = [f"{name} {installed[name]}" for name in TRITONS if name in installed]
    if len(several) > 1:
        what = f"{' and '.join(several)} are both installed: each overwrites the other's folder triton"
        cure = "pip uninstall all of them, then install the one that matches the vendor's torch"
        level = Level.FAIL if "triton-ascend" in installed else Level.WARN
        yield Finding("triton-two", section, level, what, cure)
    if triton.ok:
        yield ok(section, f"triton {triton.text}")
    else:
        code = "triton-missing" if triton.ended == "missing" else "triton-broken"
        what = f"triton cannot be imported ({triton}): cells of provider farm end as unsupported"
        yield warn(code, section, what, f"{CPU_EXTRA}, or the triton that matches the vendor's torch")


def _kernels(f: Facts, e: EnvironmentFacts) -> Findings:
    trial, section = e.trial("kernels"), titled(e, "kernels")
    if trial.ended == "missing" and not f.our_kernels:
        what = "the farm's own kernels are not installed: cells of provider farm end as unsupported"
        yield note("kernels-missing", section, what, "pip install the folder kernels of the farm's checkout")
    elif not trial.ok:
        what = f"a child cannot import the package kernels ({trial})"
        yield fail("kernels-broken", section, what, "reinstall this checkout, or run from the folder of the checkout")
    elif trial.text != f.our_kernels:
        what = f"a child imports kernels from {trial.text}, not from {f.our_kernels}"
        yield fail("kernels-foreign", section, what, "remove that folder from PYTHONPATH, or pip uninstall kernels")
    else:
        yield ok(section, f"children import {trial.text}")
    if f.foreign_kernels and e.own and f.our_kernels.endswith("/kernels"):  # installed, ours has another name
        what = f"another distribution named kernels is at {f.foreign_kernels}; the farm imports its own package instead"
        yield note("kernels-clash", section, what, "no action is needed; pip uninstall kernels removes the name clash")


def _providers(f: Facts, e: EnvironmentFacts) -> Findings:
    for name, distribution in f.peers.items():
        trial: ProbeResult = e.trial(f"provider {name}")
        section = titled(e, f"provider {name}")
        if trial.ok:
            yield ok(section, "can be loaded" + (f", {trial.text}" if trial.text else ""))
        elif trial.ended == "missing":
            cure = f"pip install {distribution}" if distribution else "install torch and triton"
            yield note(
                "provider-missing", section, f"not installed ({trial}): cells of this provider end as unsupported", cure
            )
        else:
            what = f"cannot be loaded ({trial}): cells of this provider would fail"
            yield warn(
                "provider-broken",
                section,
                what,
                "repair the installation of this provider, or exclude the provider with --select",
            )


def sandbox(f: Facts) -> Findings:
    if any(e.sandboxed for e in f.environments) and f.system.unsandboxed:
        return  # told of them
    if f.system.unsandboxed:
        what = f"no child can run in a sandbox ({f.system.unsandboxed})"
        cure = "do that before code runs here that nobody has read (docs/trust.md); nothing else needs it"
        yield note("sandbox-missing", "sandbox", what, cure)
    else:
        yield ok("sandbox", "children can run in a sandbox (farm run --sandbox)")


def compilers(f: Facts) -> Findings:
    if f.cxx:
        yield ok("compiler", f.cxx)
    else:
        what = "no C++ compiler is installed: cells of torch_compile on the CPU end as unsupported"
        yield note("compiler-cxx-missing", "compiler", what, "install g++, or name a compiler in CXX")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in text.split(".")[:2])
