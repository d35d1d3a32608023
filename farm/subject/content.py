"""What a subject's children import: collected from its source on the coordinator, with the adapters, and packed."""

from __future__ import annotations

from pathlib import Path

from farm.errors import MatrixError
from farm.matrix.document import suggest
from farm.shipping import files
from farm.shipping.subjects import PackedSubject, pack
from farm.subject import adapters, wheels
from farm.subject.builds import built
from farm.subject.model import Subject
from farm.subject.repository import Repository

_LEFT_OUT = {"__pycache__", ".git"}


def packed(subject: Subject, home: Repository, *, wheel: Path | None = None, release: str = "") -> PackedSubject:
    """The subject of a repository, or of a wheel or release given in its place.  UsageError or MatrixError says what is
    not there."""
    own, modules, revision, source = _own(subject, home, wheel, release)
    with_adapters = adapters.collect(Path(subject.folder), subject.paths(), own, modules)
    content = {
        **{f"overlay/{name}": data for name, data in own.items()},
        **{f"adapters/{name}": data for name, data in with_adapters.items()},
    }
    backends = {b for p in subject.providers.values() for b in p.backends}
    return pack(
        content,
        name=subject.name,
        revision=revision,
        source=source,
        modules=modules,
        over=subject.source.over and not (wheel or release),
        origins=_origins(subject, home, elsewhere=bool(wheel or release)),
        variables={b: subject.variables(b) for b in sorted(backends) if subject.variables(b)},
    )


def _origins(subject: Subject, home: Repository, *, elsewhere: bool) -> dict[str, str]:
    """Where its author edits what is sent, by the folder it is sent in; what was built or downloaded is edited nowhere.
    A revision's files are named as they lie in the repository that it is of."""
    place, _, _ = home.source.rpartition("@")
    root = next((Path(p).resolve() for p in (home.source, place) if p and Path(p).is_dir()), home.folder)
    folder = Path(subject.folder).resolve()
    inside = folder.is_relative_to(home.folder.resolve())
    found = {"adapters": str(root / folder.relative_to(home.folder.resolve()) if inside else folder)}
    source = subject.source
    if source.path is not None and not (elsewhere or source.release or source.build):
        found["overlay"] = str(root / source.path)
    return found


def _own(
    subject: Subject, home: Repository, wheel: Path | None, release: str
) -> tuple[dict[str, bytes], tuple[str, ...], str, str]:
    """(its files, its modules, revision, source)."""
    source = subject.source
    if wheel or release or source.release:
        place = wheel or wheels.release(release or source.release)
        found, modules, version = wheels.content(place, source.modules if not source.build else ())
        return found, modules, version or place.name, str(wheel) if wheel else (release or source.release)
    found = {}
    modules = source.modules
    if source.build:
        given = built(source.build, home.folder, subject.file)
        if given.is_file():
            found, modules, _ = wheels.content(given, modules)
        else:
            modules = modules or _modules_of(given, subject.file)
            found = _folder(given, modules, False, subject.file)
    if source.path is not None:
        where = source.where or subject.file
        found |= _folder(home.folder / source.path, modules, source.over, where, partly=bool(source.build))
    return found, modules, home.revision, home.source


def _modules_of(folder: Path, where: str) -> tuple[str, ...]:
    found = tuple(sorted(p.parent.name for p in folder.glob("*/__init__.py")))
    if not found:
        raise MatrixError(f"{where}: build.gives is a folder without a package; add modules:", id="subject-build-empty")
    return found


def _folder(
    place: Path, modules: tuple[str, ...], only_python: bool, where: str, partly: bool = False
) -> dict[str, bytes]:
    """The files of these modules in a folder; `partly`: those of them that it has."""
    if not place.is_dir():
        raise MatrixError(f"{where}: overlay.path: {place} is no folder; correct the path", id="subject-overlay-folder")
    out: dict[str, bytes] = {}
    inside = place.resolve()
    for module in modules:
        single, folder = place / f"{module}.py", place / module
        found = [single] if single.is_file() else []
        if folder.is_dir():
            found += [p for p in sorted(folder.rglob("*")) if not _LEFT_OUT & set(p.relative_to(place).parts)]
        if not found and not partly:
            here = [p.stem for p in place.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()]
            hint = suggest(module, sorted(here), "modules")
            message = f'{where}: overlay.modules names "{module}", which {place} lacks; {hint}'
            raise MatrixError(message, id="subject-overlay-module")
        for path in found:
            if not path.is_file() or (only_python and path.suffix != ".py"):
                continue
            if path.is_symlink() and inside not in path.resolve().parents:
                message = f"{where}: {path} is a link to {path.resolve()}, outside of the overlay; copy the file there"
                raise MatrixError(message, id="subject-overlay-link")
            out[path.relative_to(place).as_posix()] = path.read_bytes()
            if len(out) > files.MOST_FILES:
                raise MatrixError(
                    f"{where}: {place} has more than {files.MOST_FILES} files in {', '.join(modules)}; name fewer",
                    id="subject-overlay-too-many",
                )
    return out
