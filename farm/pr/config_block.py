"""The `config:` block that the body of a pull request may hold.  Pure, strict, failing closed.

    ```yaml
    config:
      build: true
      test: [ops, benchmark, sanity]
    ```

A block that cannot be read is refused, never replaced by a default: neither "run everything" nor "run nothing, green"
is what its author meant.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from farm.errors import MatrixError, UsageError
from farm.matrix.document import YamlNode, parse, show, suggest
from farm.pr.blocks import split

#: What `test` may name: the repository's own tests, its own benchmarks, and the farm's smallest selection of both.
TESTS = ("ops", "benchmark", "sanity")
MAX_BODY, MAX_BLOCK = 262_144, 4096  # GitHub's limit of a body is 65,536 characters
LANGUAGES = ("", "yaml", "yml")
_BLOCK = re.compile(r"^['\"]?config['\"]?\s*:", re.M)
WHERE = "the pull request's body"


@dataclass(frozen=True)
class Config:
    """What a pull request asks to be run.  The default is everything, which a body without a block stands for."""

    build: bool = True
    test: tuple[str, ...] = TESTS
    given: bool = False  # False: the body has no block

    @property
    def digest(self) -> str:
        """SHA-256 of what is asked for.  An approval holds for this text alone: a body can be edited after it."""
        return hashlib.sha256(json.dumps([self.build, sorted(self.test)]).encode()).hexdigest()


def read(body: str | None) -> Config:
    """The one block of a body, or the default.  UsageError, in one sentence, for anything that is not exactly right."""
    text = body or ""
    if len(text) > MAX_BODY:
        raise UsageError(f"{WHERE} has {len(text):,} characters; the limit is {MAX_BODY:,}", id="pr-body-too-long")
    found, outside = split(text)
    blocks = [b for b in found if b.language in LANGUAGES and _BLOCK.search(b.text)]
    if not blocks:
        if re.search(r"^config[ \t]*:[ \t]*\n[ \t]+(build|test)[ \t]*:", "\n".join(outside), re.M):
            raise UsageError(
                f"{WHERE} has a config that is not in a fenced block; fence it by ```yaml", id="pr-config-bare"
            )
        return Config()
    if len(blocks) > 1:
        lines = " and ".join(str(b.line) for b in blocks[:2])
        raise UsageError(
            f"{WHERE} has {len(blocks)} config blocks, in lines {lines}; keep one", id="pr-config-two-blocks"
        )
    line, inside = blocks[0].line, blocks[0].text
    if len(inside) > MAX_BLOCK:
        raise UsageError(f"{WHERE}:{line}: the config block is longer than {MAX_BLOCK} characters", id="pr-config-long")
    try:
        return _config(parse("\n" * line + inside, WHERE))
    except MatrixError as error:
        raise UsageError(f"{error} (config block)", id="pr-config") from None


def _config(roots: list[YamlNode]) -> Config:
    if len(roots) != 1:
        raise MatrixError(f"{WHERE}: the config block is {len(roots)} YAML documents; write one")
    root = roots[0].mapping("config: {build: true}")
    _known(roots[0], root, ("config",))
    node = root["config"]
    given = node.mapping("build: true")
    _known(node, given, ("build", "test"))
    build = given["build"].value if "build" in given else True
    if not isinstance(build, bool):
        raise given["build"].error(f"is {show(build)}; write true or false")
    if "test" not in given:
        return Config(build, TESTS, given=True)
    tests = given["test"].value
    if not isinstance(tests, list):
        raise given["test"].error(f"is {show(tests)}; write a list, as [{', '.join(TESTS)}], or [] for none")
    names = []
    for entry in tests:
        if entry.value not in TESTS:
            raise entry.unknown(TESTS, "tests")
        if entry.value in names:
            raise entry.error("is given twice; keep one")
        names.append(entry.value)
    return Config(build, tuple(names), given=True)


def _known(node: YamlNode, given: dict[str, YamlNode], keys: tuple[str, ...]) -> None:
    for key, value in given.items():
        if key not in keys:
            raise value.key_error(f"is not a key here; {suggest(key, keys, 'keys')}")
