"""Access to the page of a job and its metrics, and protection of the job from clients; with real sockets."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import io
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from fkjoin.errors import FkJoinError
from fkjoin.jobs.job import Job
from fkjoin.jobs.job_file import read_job
from fkjoin.jobs.job_kinds import JobError
from fkjoin.jobs.job_sections import JobSection, PageSection
from fkjoin.jobs.runner import _follower
from fkjoin.jobs.screen import Screen
from fkjoin.metrics import Metrics, watch
from fkjoin.metrics import server as page_server
from fkjoin.metrics.page import ShownJob, served
from fkjoin.metrics.server import ClientAccess, PageServer, WebPage
from fkjoin.plan.describe.picture import svg
from tests.support.job_files import GOOD, job

TOKEN = "c2VjcmV0"


@pytest.fixture(autouse=True)
def _ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that was looked at stays for a moment; integration/test_page.py sees why."""
    monkeypatch.setattr(page_server, "LAST_S", 0.0)


@contextmanager
def page(**access: Any) -> Iterator[int]:
    """The port of a job's page."""
    with served(ShownJob("shop", []), Metrics(), 0, ClientAccess(**access), "--ui") as address:
        yield int(address.rsplit(":", 1)[1].rstrip("/"))


def ask(port: int, path: str = "/status.json", method: str = "GET", **headers: str) -> tuple[int, str, Mapping[str, str]]:
    """Status, text and headers of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, {name.lower(): value for name, value in answer.getheaders()}


def answered(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    connection.settimeout(20)
    found = b""
    while more := connection.recv(65_536):
        found += more
    return found


def test_the_loopback_address_is_listened_on_unless_another_is_chosen() -> None:
    """Prometheus asks for a container's address, which is not known before: that to which a connection came is a host."""
    with page() as port:
        assert reached(port) == ["127.0.0.1"]
    with page(host="0.0.0.0") as port:
        assert reached(port) == ["127.0.0.1", "127.0.0.3"]
        connection = http.client.HTTPConnection("127.0.0.3", port, timeout=20)
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 200
        connection.close()
        assert ask(port, Host="127.0.0.3")[0] == 421, "it came to another"
    with served(ShownJob("shop", []), Metrics(), 0, ClientAccess("[::1]"), "--ui") as address:
        assert address.startswith("http://[::1]:")


def reached(port: int) -> list[str]:
    """Those of this machine's addresses at which the server listens."""
    found = []
    for host in ("127.0.0.1", "127.0.0.3"):
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection((host, port), timeout=20):
            found.append(host)
    return found


def test_metrics_of_a_program_are_served_with_the_same_rules() -> None:
    settings = SimpleNamespace(get=lambda name, default: {"spark.app.name": "etl"}.get(name, default))
    spark: Any = SimpleNamespace(streams=SimpleNamespace(addListener=lambda _: None), conf=settings)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    watch(spark, port, token=TOKEN, names=["metrics.example.com"])
    assert reached(port) == ["127.0.0.1"]
    assert ask(port, "/metrics")[0] == 401
    status, text, headers = ask(port, "/metrics", Authorization=f"Bearer {TOKEN}", Host="metrics.example.com")
    assert (status, headers["x-content-type-options"]) == (200, "nosniff")
    assert "# HELP fkjoin_batches_total" in text
    assert ask(port, "/metrics", Authorization=f"Bearer {TOKEN}", Host="rebound.example.com")[0] == 421
    with pytest.raises(FkJoinError, match=f"port: 127.0.0.1:{port} cannot be used .* choose another port"):
        watch(spark, port)


def test_a_name_that_somebody_else_points_here_is_refused() -> None:
    """A page of another site can make its own name lead here (DNS rebinding): then this is the Host that a browser sends."""
    ours = ("localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]", "[::1]:8080", "jobs.example.com", "a.b.")
    others = ("rebound.example.com", "localhost.example.com", "127.0.0.2", "", "[::1", "localhost:1:2", "a b")
    with page(names=("Jobs.example.com", "a.b")) as port:
        assert [host for host in ours if ask(port, Host=host)[0] != 200] == []
        for host in others:
            for path in ("/", "/metrics", "/status.json", "/nothing"):
                status, text, _ = ask(port, path, Host=host)
                assert status in (400, 421), host
                assert "shop" not in text
            assert status == 400 or "names" in text


def test_a_page_with_a_token_shows_nothing_without_it() -> None:
    with page(token=TOKEN) as port:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}):
            for path in ("/status.json", "/history.json", "/metrics", "/nothing"):
                status, text, headers = ask(port, path, **given)
                assert (status, headers["www-authenticate"]) == (401, "Bearer")
                assert "shop" not in text
        assert ask(port, f"/status.json?token={TOKEN}")[0] == 401, "addresses are written down in logs"
        status, text, _ = ask(port, "/")
        assert (status, "shop" in text) == (200, False), "the page itself asks for it"
        for path in ("/status.json", "/history.json", "/metrics"):
            assert ask(port, path, Authorization=f"bearer {TOKEN}")[0] == 200
        assert ask(port, "/nothing", Authorization=f"Bearer {TOKEN}")[0] == 404


def test_a_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append({one, other})
        return False

    monkeypatch.setattr(page_server.hmac, "compare_digest", compare)
    with page(token=TOKEN) as port:
        assert ask(port, Authorization="Bearer x")[0] == 401
    assert compared == [{b"x", TOKEN.encode()}]


def test_what_is_no_name_of_a_host_is_refused() -> None:
    for name in ("", "*", "https://jobs.example.com/", "a b", "a,b", "jobs..com", "[::1", ".", "schlüssel.example"):
        with pytest.raises(FkJoinError, match=f"^names: {re.escape(repr(name))} is not a host name; write it as in "):
            ClientAccess(names=("localhost", name))
    ClientAccess(names=("jobs.example.com", "jobs_1", "jobs.example.com:8080", "10.0.0.7", "[fe80::1]", "::1"))  # as it says


def test_no_host_does_not_mean_all_of_them() -> None:
    for host in ("", "[]"):
        with pytest.raises(FkJoinError, match=r'^host: the name is empty; leave .*, or give "0\.0\.0\.0" for all addresses'):
            ClientAccess(host)


def test_a_page_is_open_where_others_reach_it_and_no_token_is_asked_for() -> None:
    for host, is_open in (("0.0.0.0", True), ("localhost", False), ("[::1]", False), ("::", True), ("jobs.lan", True)):
        assert ClientAccess(host).open == is_open, host
        assert not ClientAccess(host, token=TOKEN).open


def test_a_job_says_so_when_other_hosts_can_read_its_page() -> None:
    for host, token, warns in (("0.0.0.0", None, True), ("0.0.0.0", TOKEN, False), ("127.0.0.1", None, False)):
        spec = JobSection(name="shop", checkpoint="ck", tables={}, sinks={}, ui=PageSection(token=token))
        console = Console(file=io.StringIO(), width=40)
        with _follower(cast(Job, SimpleNamespace(spec=spec, steps=list, letters=None)), Screen(console), (host, 0)):
            pass
        said = [line[20:] for line in cast(io.StringIO, console.file).getvalue().splitlines()[1:]]
        assert [line.partition(":")[0] for line in said] == ["Other hosts can read the page"] * warns
        assert all("token in section [ui] of the job file" in line for line in said)


def test_a_page_that_cannot_be_made_is_an_answer_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bytes:
        raise ValueError("no such counter")

    server = PageServer({"/metrics": WebPage(broken, "text/plain")}, 0, ClientAccess(), "port")
    with contextlib.closing(server):
        port = int(server.address.rsplit(":", 1)[1].rstrip("/"))
        status, text, _ = ask(port, "/metrics")
    assert (status, "log says why" in text, "no such counter" in text) == (500, True, False)
    assert "no such counter" in caplog.text
    server.close()  # once more is nothing


def test_a_port_that_there_is_not_is_refused() -> None:
    for port in (-1, 65_536):
        with pytest.raises(FkJoinError, match=f"^port: port {port} cannot be used; choose one from 1 to 65535$"):
            PageServer({}, port, ClientAccess(), "port")
    for host in ("nowhere.invalid", "192.0.2.1", "a..b", "ü" * 80):
        with pytest.raises(FkJoinError, match=f"^port: {host}:0 cannot be used .*; choose another host$"):
            PageServer({}, 0, ClientAccess(host), "port")


def test_a_token_is_not_in_texts_and_one_that_no_client_can_send_is_refused() -> None:
    assert TOKEN not in repr(ClientAccess(token=TOKEN))
    for token in ("", " ", "two words", "schlüssel", "line\n"):
        with pytest.raises(FkJoinError, match="token: .*openssl rand -hex 32"):
            ClientAccess(token=token)


def test_a_job_file_says_who_may_see_the_page(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = GOOD + '[ui]\ntoken = "${PAGE_TOKEN}"\nnames = ["jobs.example.com"]\n'
    monkeypatch.setenv("PAGE_TOKEN", TOKEN)
    spec = read_job(job(tmp_path, text))
    assert (spec.ui.token, spec.ui.names) == (TOKEN, ["jobs.example.com"])
    assert TOKEN not in repr(spec)
    with pytest.raises(JobError, match=r"ui: names: '\*' is not a host name"):
        read_job(job(tmp_path, text.replace("jobs.example.com", "*")))
    monkeypatch.setenv("PAGE_TOKEN", "")
    with pytest.raises(JobError, match="ui: token: .*openssl rand -hex 32"):
        read_job(job(tmp_path, text))


def test_every_answer_says_what_a_browser_may_do_with_it() -> None:
    """The page's own files and the style of the picture, and no others."""
    with page() as port:
        for path, method in (("/status.json", "GET"), ("/metrics", "HEAD"), ("/nothing", "GET"), ("/", "POST"), ("/", "GET")):
            _, text, headers = ask(port, path, method)
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == "no-store"
            policy = dict(one.split(" ", 1) for one in headers["content-security-policy"].split("; "))
            assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
            assert "unsafe" not in headers["content-security-policy"]
    (inside,) = re.findall("<style>(.*?)</style>", svg([]), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
    assert policy["style-src"] == f"'self' 'sha256-{digest}'"
    assert {policy[kind] for kind in ("script-src", "connect-src", "img-src")} == {"'self'"}
    assert re.findall(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=|javascript:", text) == [], "the policy allows none"


def test_the_page_loads_files_of_its_own_only_and_they_need_no_token() -> None:
    with page(token=TOKEN) as port:
        _, text, _ = ask(port, "/")
        loaded = [name for name in re.findall(r'(?:src|href)="([^"]+)"', text) if "." in name and not name.endswith(".json")]
        assert len(loaded) == 5
        for name in loaded:
            loaded += re.findall(r'^import .* from "\./([^"]+)"', ask(port, f"/{name}")[1], re.M)
            status, content, headers = ask(port, f"/{name}")
            kind = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}[name.rpartition(".")[2]]
            assert (status, headers["content-type"].partition(";")[0]) == (200, kind), name
            hosts = set(re.findall(r"(?:https?:)?//([\w-]+(?:\.[\w-]+)+)", content)) - {"www.w3.org"}
            assert hosts <= ({"github.com"} if name == "uPlot.iife.min.js" else set()), "it is where uPlot comes from"
        assert {"charts.js", "elements.js", "figures.js", "map.js", "tables.js", "words.js"} <= set(loaded)


def test_methods_and_requests_that_there_are_not() -> None:
    with page() as port:
        status, _, headers = ask(port, "/", "POST")
        assert (status, headers["allow"]) == (405, "GET, HEAD")
        status, text, headers = ask(port, "/", "HEAD")
        assert (status, text, int(headers["content-length"]) > 1_000) == (200, "", True)
        assert ask(port, "/?a=b")[0] == 200
        for wrong in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(wrong)
                assert answered(connection).startswith(b"HTTP/1.1 400 "), wrong
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * (page_server.MOST_HEAD_BYTES + 1))
            assert answered(connection).startswith(b"HTTP/1.1 431 ")


def test_a_slow_client_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that sends a byte now and then; the time is that of the whole connection."""
    monkeypatch.setattr(page_server, "DEADLINE_S", 0.3)
    with page() as port, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(0.05)
        ended = False
        for _ in range(400):
            try:
                connection.sendall(b"G")
                ended = connection.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
            if ended:
                break
        assert ended
        assert ask(port)[0] == 200


def test_idle_connections_are_not_threads_and_do_not_shut_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "DEADLINE_S", 600.0)
    with page() as port:
        threads = threading.active_count()
        idle = []
        try:
            for _ in range(500):
                idle.append(socket.create_connection(("127.0.0.1", port)))
            assert ask(port)[0] == 200
            assert threading.active_count() == threads
            ended = 0
            for connection in idle[: 500 - page_server.CONNECTIONS]:
                connection.settimeout(20)
                ended += connection.recv(1) == b""
            assert ended == 500 - page_server.CONNECTIONS, "the oldest made room"
        finally:
            for connection in idle:
                connection.close()
        assert ask(port)[0] == 200


def test_the_page_ends_with_its_job() -> None:
    threads = threading.active_count()
    with page() as port:
        waiting = socket.create_connection(("127.0.0.1", port))
        assert ask(port)[0] == 200
    assert answered(waiting) == b""
    waiting.close()
    with pytest.raises(ConnectionRefusedError):
        ask(port)
    assert threading.active_count() == threads
