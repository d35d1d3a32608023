"""Words that `docs/glossary.md` retires appear nowhere that users read: documents, help, messages, pages."""

from __future__ import annotations

import argparse
import ast
import html
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.cli.main import main, parser

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = [*sorted((ROOT / "farm").rglob("*.py")), *sorted((ROOT / "dashboards").rglob("*.py"))]
TEMPLATES = sorted((ROOT / "dashboards" / "templates").glob("*.html"))
RUNS = ROOT / "tests" / "golden" / "runs"
SECTION = "\n## Retired words\n"
MIN_WORDS = 4  # a shorter string is a key, a column or a vendor's word, unless a call prints it

#: Calls whose strings people read, whatever their length.  Classes of errors are added by their bases.
PRINTING = {"Message", "FarmError", "print", "warn", "note", "error", "exit", "add_argument", "add_parser"}
#: Strings of a vendor's tool that a parser looks for.
VENDORS = {"Slot ID"}


def retired() -> dict[str, str]:
    """Retired word -> what to write instead."""
    table = GLOSSARY.read_text(encoding="utf-8").split(SECTION)[1]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.M)
    return {word: better for words, better in rows if words != "retired" for word in words.split(", ")}


WORDS = retired()
_ANY = re.compile(r"\b(?:" + "|".join(re.escape(w).replace(r"\ ", r"\s+") for w in WORDS) + r")\b", re.I)


def violations(text: str) -> list[str]:
    """`told: ... what it told of the run ...` for every retired word of a prose text."""
    return [
        f"{found[0]}: ...{' '.join(text[max(found.start() - 50, 0) : found.end() + 30].split())}..."
        for found in _ANY.finditer(text.replace("’", "'"))
    ]


def without_code(markdown: str) -> str:
    """The prose of a document: without code, the targets of links, and the list of retired words."""
    text = markdown.split(SECTION)[0]
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`]+`|\]\([^)]*\)", "`", text)


def prose_of_page(page: str) -> str:
    """What a reader of a page sees, without code."""
    text = re.sub(r"<(script|style|code|pre|svg)\b.*?</\1>", " ", page, flags=re.S)
    return html.unescape(re.sub(r"<[^>]*>|\{[{%].*?[%}]\}", " ", text))


def messages(source: str, errors: set[str]) -> Iterator[tuple[int, str]]:
    """(line, text) of the strings in a module that may reach a user."""
    nodes = list(ast.walk(ast.parse(source)))
    ignored: set[int] = set()
    for node in nodes:
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            ignored.add(id(body[0].value))  # a docstring
        if isinstance(node, ast.JoinedStr):
            ignored |= {id(part) for part in node.values}
    printed: set[int] = set()
    printing = PRINTING | errors
    for node in nodes:
        if isinstance(node, ast.Call) and _name(node.func) in printing:
            printed |= {id(inner) for argument in _arguments(node) for inner in ast.walk(argument)}
    for node in nodes:
        text = _text(node)
        if text is None or id(node) in ignored or text in VENDORS:
            continue
        prose = re.sub(r"`[^`]+`|--[\w-]+", "`", text)
        if len(prose.split()) >= MIN_WORDS or (id(node) in printed and " " in prose.strip()):
            yield getattr(node, "lineno", 0), prose


def _arguments(call: ast.Call) -> list[ast.expr]:
    shown = ("help", "description", "epilog", "text", "fix")
    named = [k.value for k in call.keywords if k.arg in shown]
    return named if _name(call.func) in ("add_argument", "add_parser") else [*call.args, *named]


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "`" for part in node.values)
    return None


def error_classes() -> set[str]:
    """Names of the classes in farm/ whose bases end in an error."""
    names = {"FarmError"}
    classes = [
        (node.name, {_name(base) for base in node.bases})
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    for _ in range(3):
        names |= {name for name, bases in classes if names & bases}
    return names


def helps(of: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """(command, everything that its help prints), this command's and its subcommands'."""
    words = [of.description or "", of.epilog or ""]
    for action in of._actions:
        words.append(str(action.help or ""))
        if isinstance(action, argparse._SubParsersAction):
            words += [str(choice.help or "") for choice in action._choices_actions]
            for below in action.choices.values():
                yield from helps(below)
    yield of.prog, re.sub(r"`[^`]+`|--[\w-]+", "`", "\n".join(words))


def test_every_retired_word_has_a_replacement() -> None:
    assert {"told", "gate", "slot", "neighbour", "rival", "hush", "the farm's fault"} <= set(WORDS)
    assert all(WORDS.values())
    terms = re.findall(r"^\| ([^|]+) \|", GLOSSARY.read_text(encoding="utf-8").split(SECTION)[0], re.M)
    assert not {t for term in terms for t in term.split(", ")} & set(WORDS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_no_document_has_a_retired_word(document: Path) -> None:
    assert violations(without_code(document.read_text(encoding="utf-8"))) == []


def test_no_help_has_a_retired_word() -> None:
    found = dict(helps(parser()))
    assert len(found) > 15 and "farm run" in found and "farm nodes join" in found
    assert {command: bad for command, text in found.items() if (bad := violations(text))} == {}


def test_no_message_has_a_retired_word() -> None:
    errors, found = error_classes(), []
    for path in SOURCES:
        for line, text in messages(path.read_text(encoding="utf-8"), errors):
            text = re.sub(r"\w+\(\)", "`", text)  # the name of a method
            found += [f"{path.relative_to(ROOT)}:{line}: {bad}" for bad in violations(text)]
    assert found == []


def test_no_template_has_a_retired_word() -> None:
    assert TEMPLATES
    assert {p.name: bad for p in TEMPLATES if (bad := violations(prose_of_page(p.read_text(encoding="utf-8"))))} == {}


def test_no_page_has_a_retired_word(tmp_path: Path) -> None:
    shutil.copytree(RUNS, tmp_path / "runs")
    for run in (tmp_path / "runs").iterdir():
        (run / "logs").mkdir(exist_ok=True)
    main(["dashboard", "build", "--out", str(tmp_path)])
    pages = sorted((tmp_path / "pages").glob("*.html"))
    old = recorded(tmp_path / "runs")
    assert len(pages) > 3 and len(old) > 10
    found = {}
    for page in pages:
        text = " ".join(prose_of_page(page.read_text(encoding="utf-8")).split())
        for words in old:
            text = text.replace(words, " ")
        found[page.name] = violations(text)
    assert not any(found.values()), found


def recorded(runs: Path) -> list[str]:
    """The sentences that the old runs have stored, in the words of their day; the longest first."""

    def strings(value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield from (" ".join(part.split()) for part in re.split("[;\n]", value))
        elif isinstance(value, dict | list):
            for part in value.values() if isinstance(value, dict) else value:
                yield from strings(part)

    events = [json.loads(line) for path in runs.glob("*/journal.jsonl") for line in path.read_text().splitlines()]
    return sorted({text for text in strings(events) if " " in text}, key=len, reverse=True)


@pytest.mark.parametrize(
    "word", ["told", "its gate", "a rival", "Neighbours", "the  farm's\nfault", "the farm’s fault"]
)
def test_a_retired_word_is_found(word: str) -> None:
    assert violations(f"A sentence with {word} in it.")
    assert violations(without_code(f"Text `code`, {word}, a [link](told.md).\n"))
    assert violations(prose_of_page(f"<p>Text <b>with</b> {word}</p>"))
    source = f'def f(x):\n    """Doc."""\n    raise Refused(f"{{x}} and {word!s} differ")\n'.replace(
        "\n   fault", " fault"
    )
    source = source.replace(word, " ".join(word.split()))
    assert [bad for _, text in messages(source, {"Refused"}) for bad in violations(text)]
    command = argparse.ArgumentParser("c")
    command.add_subparsers().add_parser("sub").add_argument("--tell", help=f"print {word}")
    assert [name for name, text in helps(command) if violations(text)] == ["c sub"]


def test_code_is_exempt() -> None:
    assert not violations(without_code("The column `gates`, a [link](gate.md).\n```\nsaid: told\n```\n"))
    assert not violations(prose_of_page("<p><code>gates</code> and <script>told()</script></p>"))
    assert not list(messages('"""Said."""\nd["gates"] = said("told")\n', set()))
