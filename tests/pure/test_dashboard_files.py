"""Pages as files and as a server."""

from __future__ import annotations

import asyncio
import builtins
import re
import socket
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from synthetic_runs import FakeStore, fake_run, interrupted_run, rows_of_run

from farm.atomic_files import write
from farm.dashboards.build import build
from farm.errors import StoreError, UsageError


@pytest.fixture
def store(tmp_path):
    run = fake_run(rows_of_run(60))
    run.dir = tmp_path / "runs" / run.id
    (run.dir / "logs").mkdir(parents=True)
    (run.dir / "logs" / "a b.log").write_text("it broke")
    (run.dir / "run.json").write_text("{}")
    run.rows[3].update(status="crashed", reason="signal 11", log="logs/a b.log")
    return FakeStore(tmp_path, [run, interrupted_run()])


def test_build_writes_the_run_and_the_list(store, tmp_path):
    run = store.fakes[0]
    page = build(store, run.id)
    assert page == tmp_path / "pages" / f"run-{run.id}.html"
    index = (tmp_path / "pages" / "index.html").read_text()
    assert f'href="run-{run.id}.html"' in index
    assert "20260802-030000-dead" in index and 'href="run-20260802-030000-dead.html"' not in index, "not built: no link"
    assert f'href="../runs/{run.id}/logs/a%20b.log"' in page.read_text()
    written = ["evidence.html", "evidence.json", "index.html", page.name, page.with_suffix(".json").name]
    assert sorted(p.name for p in page.parent.iterdir()) == written


def test_build_of_everything_continues_after_a_broken_run(store, tmp_path):
    class Broken:
        id = "20260803-000000-bad"

        @property
        def head(self):
            raise ValueError("run.json is cut off")

        rows = head

    store.fakes.append(Broken())
    index = build(store, None, tmp_path / "out")
    assert index == tmp_path / "out" / "index.html"
    assert "unreadable" in index.read_text() and "cut off" in index.read_text()
    assert len(list((tmp_path / "out").glob("run-*.html"))) == 2


def test_build_where_nothing_can_be_written(store, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=re.escape(str(tmp_path / "file" / "pages"))) as refused:
        build(store, None, tmp_path / "file" / "pages")
    assert refused.value.id == "dashboard-unwritable"


def test_write_leaves_the_old_page_when_it_fails(tmp_path):
    path = tmp_path / "a.html"
    write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write(path, "new" * 100_000 + "\ud800")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def ask(app, path: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], str]:
    """One GET over ASGI, without a socket."""
    path, _, query = path.partition("?")
    sent = []

    asked = []

    async def receive():
        asked.append(1)
        if len(asked) > 1:  # a client that waits for its answer
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode()}
    scope |= {"headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()]}
    scope |= {"http_version": "1.1", "scheme": "http", "server": ("x", 80), "client": ("y", 1)}
    asyncio.run(asyncio.wait_for(app(scope, receive, send), 30))
    body = b"".join(m.get("body", b"") for m in sent if m["type"] == "http.response.body")
    head = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
    return sent[0]["status"], head, body.decode()


def test_the_server_shows_what_the_builder_writes(store):
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from farm.dashboards.serve import app

    run, live = store.fakes[0], app(store)
    status, head, body = ask(live, "/")
    assert status == 200 and f'href="/run/{run.id}"' in body and "default-src 'none'" in head["content-security-policy"]
    status, _, body = ask(live, f"/run/{run.id}")
    assert status == 200 and f'href="/run/{run.id}/log/a%20b.log"' in body
    written = build(store, run.id).read_text()
    assert body[body.index("<section") : body.index('id="findings"')] in written
    status, head, body = ask(live, f"/run/{run.id}/log/a b.log")
    assert (status, body) == (200, "it broke") and head["content-type"].startswith("text/plain")


@pytest.mark.parametrize(
    "path",
    [
        "/run/none",
        "/run/..",
        "/run/%2e%2e",
        "/run/{id}/log/../run.json",
        "/run/{id}/log/../../../etc/passwd",
        "/run/{id}/log//etc/passwd",
        "/run/{id}/log/",
        "/run/{id}/log/a\0b",
        "/run/{id}/log/" + "x" * 5000,
    ],
)
def test_the_server_gives_only_runs_and_their_logs(store, path):
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from farm.dashboards.serve import app

    assert ask(app(store), path.format(id=store.fakes[0].id))[0] == 404


def test_serving_without_the_extra_is_one_sentence(store, monkeypatch):
    real = builtins.__import__

    def blocked(name, *args, **kwargs):
        if name.split(".")[0] in ("starlette", "uvicorn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", blocked)
    from farm.dashboards.serve import app

    with pytest.raises(UsageError, match="pip install starlette uvicorn") as refused:
        app(store)
    assert refused.value.id == "serve-packages-missing"


def test_a_taken_port_is_one_sentence(store, capfd):
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from farm.dashboards.serve import serve

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port} .*--port") as refused:
            serve(store, port=port)
        assert refused.value.id == "serve-address-unusable"
    assert capfd.readouterr() == ("", ""), "neither an address that is not served nor the server's own error"


def test_the_address_is_printed_before_serving(store, capfd, monkeypatch):
    pytest.importorskip("starlette")
    uvicorn = pytest.importorskip("uvicorn")
    from farm.dashboards import serve

    printed = []

    def run(self, sockets):
        printed.append(capfd.readouterr().err)
        socket.create_connection(sockets[0].getsockname(), timeout=10).close()
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", run)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve.serve(store, port=port)
    (line,) = printed
    assert str(store.path) in line and f"http://127.0.0.1:{port}/" in line and line.count("\n") == 1


def test_no_store_is_not_an_empty_one(tmp_path):
    absent = FakeStore(tmp_path / "nowhere", [])
    with pytest.raises(StoreError, match=r"nowhere.* --out") as refused:
        build(absent)
    assert refused.value.id == "dashboard-no-store"
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    from farm.dashboards.serve import serve

    with pytest.raises(StoreError) as refused:
        serve(absent)
    assert refused.value.id == "dashboard-no-store"
    assert not absent.path.exists()
    (absent.path / "runs").mkdir(parents=True)
    assert 'data-id="no-runs"' in build(absent).read_text(encoding="utf-8")


def test_pages_are_made_under_a_locale_that_knows_ascii_only():
    import os
    import subprocess

    code = "from farm.dashboards.pages import _templates; _templates()"
    flags = ["-X", "utf8=0", "-X", "warn_default_encoding", "-W", "error::EncodingWarning:farm.dashboards.pages"]
    env = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, *flags, "-c", code], check=True, env=env, cwd=Path(__file__).parents[2])


def test_pages_read_what_the_store_writes(tmp_path):
    from farm.store import Store

    real, rows = Store(tmp_path), rows_of_run(60)
    made = fake_run(rows)
    writer = real.create(made.id)
    writer.append({"event": "run", "run_id": made.id})
    writer.finish(rows, [], {k: v for k, v in made.head.items() if k not in ("schema", "run_id")})
    writer.close()
    html = build(real, "last").read_text()
    assert html.count("<td id=c") == 60 and 'role="alert"' not in html
    assert ">cells.parquet</a>" in html and 'href="../runs/' in html
