"""What a server keeps, who may read it, and a first index that keeps nobody waiting."""

from __future__ import annotations

import gzip
import json
import re
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import night_store
from test_dashboard_files import ask

from farm.cli import common, main
from farm.dashboards import access, views
from farm.dashboards.kept import Pages, Recent
from farm.errors import UsageError
from farm.store import Store, index


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_page_is_made_once_until_what_it_is_made_of_changes() -> None:
    clock, made = Clock(), []

    def make() -> str:
        made.append(clock.now)
        clock.now += 0.1
        return f"page {len(made)}"

    pages = Pages(clock=clock)
    first = pages.get("/", 1, make)
    assert pages.get("/", 1, make) is first and gzip.decompress(first.packed) == b"page 1"
    assert pages.get("/", 2, make) is first, "what took 0.1 s to make is not made anew at once"
    clock.now += 1
    assert gzip.decompress(pages.get("/", 2, make).packed) == b"page 2" and len(made) == 2


def test_readers_get_the_page_before_while_one_makes_it_anew() -> None:
    pages, inside, go = Pages(clock=Clock()), threading.Event(), threading.Event()
    old = pages.get("/", 1, lambda: "old")

    def slow() -> str:
        inside.set()
        assert go.wait(10)
        return "new"

    maker = threading.Thread(target=lambda: pages.get("/", 2, slow))
    maker.start()
    assert inside.wait(10)
    assert pages.get("/", 2, slow) is old
    go.set()
    maker.join(10)
    assert gzip.decompress(pages.get("/", 2, slow).packed) == b"new"


def test_kept_pages_are_bounded_and_a_failure_is_not_kept() -> None:
    pages = Pages(limit=100)
    for i in range(50):
        pages.get(f"/{i}", 1, lambda i=i: f"{i}" * 40)  # type: ignore[misc]
    assert sum(len(p.packed) for p in pages._pages.values()) <= 100 and len(pages._making) <= len(pages._pages)
    with pytest.raises(ZeroDivisionError):
        pages.get("/x", 1, lambda: str(1 // 0))
    assert "/x" not in pages._making
    assert gzip.decompress(pages.get("/x", 1, lambda: "well").packed) == b"well"


def test_a_recent_value_is_made_again_after_its_time() -> None:
    clock, made = Clock(), []
    recent = Recent(lambda: made.append(1) or len(made), 2.0, clock)
    assert [recent(), recent()] == [1, 1]
    clock.now = 2.5
    assert recent() == 2


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    for number in range(2):
        night_store.write_run(folder, number, night_store.night(number, ("cuda", "rocm")))
    return folder


def test_the_server_answers_304_without_making_the_page(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from farm.dashboards import serve

    site, target = serve.app(Store(store)), night_store.TARGETS["cuda"]
    run = night_store.run_id(1)
    paths = ["/", "/evidence", f"/run/{run}", f"/run/{run}/5", f"/backend/{target}", "/parity/rms_norm"]
    paths += [f"/compare/{night_store.run_id(0)}/{run}", "/night.json", f"/run/{run}.json", f"/run/{run}/5.json"]
    tags = {}
    for path in paths:
        status, head, body = ask(site, path)
        assert status == 200 and body, path
        tags[path] = head["etag"]

    def never(*_: object, **__: object) -> str:
        raise AssertionError("it was made again")

    for name in ("run_page", "runs_page", "evidence_page", "compare_page", "run_json"):
        monkeypatch.setattr(serve, name, never)
    for path in paths:
        status, head, body = ask(site, path, {"if-none-match": tags[path]})
        assert (status, body) == (304, "") and head["etag"] == tags[path], path
        assert ask(site, path, {"if-none-match": '"another"'})[0] == 200, path


def test_every_cell_of_a_served_run_leads_to_its_page(store: Path) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from farm.dashboards.serve import app

    site, run = app(Store(store)), night_store.run_id(0)
    table = ask(site, f"/run/{run}")[2].partition('id="cells"')[2]
    leads = re.findall(rf"<td class=v\d+ [^>]*><a href=(/run/{run}/\d+)>", table)
    assert len(set(leads)) == 256
    status, _, html = ask(site, leads[7])
    assert status == 200 and "<title>passed: " in html and f'href="/run/{run}#cells"' in html
    assert ask(site, f"/run/{run}/9999")[0] == 404


def test_readers_from_elsewhere_need_the_token(store: Path) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from farm.dashboards.serve import app

    token = "a-token-of-23-characters"
    site = app(Store(store), token)
    for headers in ({}, {"cookie": "farm_token=wrong"}, {"authorization": "Bearer wrong"}, {"cookie": '"\\x'}):
        for path in ("/", "/night.json", "/run/x/log/y", "/nowhere"):
            status, _, body = ask(site, path, headers)
            assert status == 401 and "kernel farm" not in body and "?token=" in body, path
    assert ask(site, "/?token=wrong")[0] == 401
    status, head, _ = ask(site, f"//evil/x?a=1&token={token}")
    assert status == 303 and head["location"] == "/evil/x?a=1" and token in head["set-cookie"]
    assert "HttpOnly" in head["set-cookie"] and "SameSite" in head["set-cookie"]
    assert ask(site, "/", {"cookie": f"other=1; farm_token={token}"})[0] == 200
    assert ask(site, "/night.json", {"authorization": f"Bearer {token}"})[0] == 200


def test_a_token_is_made_up_only_where_others_can_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(access.VARIABLE, raising=False)
    assert [access.chosen(h, None) for h in ("127.0.0.1", "localhost", "::1", "127.8.0.1")] == [""] * 4
    made = [access.chosen(h, None) for h in ("0.0.0.0", "::", "node-7", "10.0.0.4")]
    assert len(set(made)) == 4 and all(len(t) >= 24 for t in made)
    file = tmp_path / "token"
    file.write_text("x" * 20 + "\n")
    assert access.chosen("127.0.0.1", str(file)) == "x" * 20
    monkeypatch.setenv(access.VARIABLE, "y" * 20)
    assert access.chosen("0.0.0.0", None) == "y" * 20
    for text in ("short", "a b" * 10, "", "x" * 30 + "\nmore"):
        file.write_text(text)
        with pytest.raises(UsageError, match=re.escape(str(file))):
            access.chosen("0.0.0.0", str(file))
    with pytest.raises(UsageError, match="cannot be read"):
        access.chosen("0.0.0.0", str(tmp_path / "absent"))


def test_the_end_of_a_run_adds_few_runs_to_the_index_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(6):
        night_store.write_run(tmp_path, number, night_store.night(number, ("cuda",))[:8])
    monkeypatch.setattr(common, "INDEX_SECONDS", 0.0)
    assert main(["dashboard", "build", "last", "--out", str(tmp_path)]) == 0
    assert "5 older runs are not in the index" in capsys.readouterr().err
    assert 'data-id="night-lacks"' in (tmp_path / "pages" / "index.html").read_text()
    proofs = json.loads((tmp_path / "pages" / "evidence.json").read_text())["runs"]
    assert sorted(name for name, one in proofs.items() if one["proofs"]) == []
    assert {one["line"]["verdict"] for one in proofs.values()} == {"passed"}, "each has its line"
    assert main(["dashboard", "build", "last", "--out", str(tmp_path)]) == 0
    assert "4 older runs are" in capsys.readouterr().err, "each run adds some"
    found = views.checked(Store(tmp_path), 0.0)
    assert found.lacks == 3 and [r.id for r in found.runs] == [night_store.run_id(n) for n in (3, 4, 5)]
    whole = index.opened(Store(tmp_path))
    assert whole.lacks == 0 and len(whole.runs) == 6
