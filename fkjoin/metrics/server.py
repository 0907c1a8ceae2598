"""The HTTP server of a job's page and of metrics: one thread, and no answer for strangers.

A connection has one request, and a fixed time from its beginning to its end.  There are
``CONNECTIONS`` at most: a new one takes the place of the oldest, so that idle ones shut no client
out.  h11 reads and writes HTTP.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hashlib
import hmac
import ipaddress
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fkjoin.errors import FkJoinError, needs_extra

if TYPE_CHECKING:
    import h11

CONNECTIONS = 64
DEADLINE_S = 10.0
"""Seconds from a connection's beginning to its end."""
LOOKS_S = 3.0
"""Seconds between two requests of an open page."""
LAST_S = 2.0
"""Seconds for which the server stays after the job's end, for the last request of each page."""
MOST_HEAD_BYTES = 16 << 10
"""The most that a request's head may have."""

_LAST_PORT = 65_535
_OF_PORT = (errno.EADDRINUSE, errno.EACCES)
"""Errors of listening that another port solves."""
_LABEL = "[a-z0-9_-]+"
_IPV6, _NAME = r"[0-9a-f:]*:[0-9a-f:]*:[0-9a-f:.]*", rf"{_LABEL}(?:\.{_LABEL})*\.?"
_HOST = re.compile(rf"(?:\[([0-9a-f:.%]+)\]|({_IPV6})|({_NAME}))(?::\d+)?")
_LOG = logging.getLogger(__name__)
_NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_POLICY = "Content-Security-Policy"
_ALWAYS = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class ClientAccess:
    """Rules on clients that may ask.

    Raises ``FkJoinError`` for what no client can send: a token, or a name of a host.
    """

    host: str = "127.0.0.1"
    """The address to listen on; ``0.0.0.0``: all of them."""
    names: tuple[str, ...] = ()
    """Names of this host, besides ``localhost`` and its addresses: others are refused."""
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.host.strip("[]"):
            raise FkJoinError(
                "host: the name is empty; leave it out to serve this machine only, or give "
                '"0.0.0.0" for all addresses'
            )
        for name in self.names:
            if not _bare(name):
                raise FkJoinError(
                    f'names: {name!r} is not a host name; write it as in "jobs.example.com"'
                )
        if self.token is not None and not re.fullmatch(r"[!-~]+", self.token):
            raise FkJoinError(
                "token: it is empty, or contains characters that a header cannot contain; "
                "`openssl rand -hex 32` makes one that fits"
            )

    @property
    def open(self) -> bool:
        """Tell whether every client that reaches this machine may ask for all of it."""
        if self.token is not None:
            return False
        try:
            return not ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host != "localhost"


@dataclass(frozen=True)
class WebPage:
    """Content at a path."""

    make: Callable[[], bytes]
    kind: str
    policy: str = _NOTHING
    secret: bool = True
    """True for a page that is shown only to clients with the token."""
    live: bool = False
    """True for what an open page asks for again and again."""


def policy(style: str) -> str:
    """A Content-Security-Policy for a page with scripts, styles and pictures of its own server.

    It has this inline style besides.
    """
    own = "connect-src 'self'; img-src 'self'; script-src 'self'"
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"{_NOTHING}; {own}; style-src 'self' 'sha256-{digest}'"


_Answer = tuple[HTTPStatus, bytes, Mapping[str, str]]
"""Status, body and headers."""


def _refused(
    status: HTTPStatus, says: str, headers: Mapping[str, str] = MappingProxyType({})
) -> _Answer:
    about = {"Content-Type": "text/plain; charset=utf-8", _POLICY: _NOTHING, **headers}
    return status, f"{says}\n".encode(), about


def listening(port: int, access: ClientAccess, argument: str) -> socket.socket:
    """Listen at a port of the host; ``FkJoinError`` with the ``argument`` if that cannot be."""
    host = access.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not 0 <= port <= _LAST_PORT:
        raise FkJoinError(
            f"{argument}: port {port} cannot be used; choose one from 1 to {_LAST_PORT}"
        )
    try:
        return socket.create_server((host, port), family=family, backlog=CONNECTIONS)
    except (OSError, TypeError) as error:
        other = "port" if getattr(error, "errno", None) in _OF_PORT else "host"
        reason = getattr(error, "strerror", error)
        raise FkJoinError(
            f"{argument}: {_shown(host)}:{port} cannot be used ({reason}); choose another {other}"
        ) from error


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class PageServer:
    """A server that answers from the moment that it is made until ``close``.

    Raises ``FkJoinError`` when no server may listen there; ``argument``: the name of what chose the
    place.
    """

    def __init__(
        self, pages: Mapping[str, WebPage], port: int, access: ClientAccess, argument: str
    ) -> None:
        with needs_extra("a page", "cli"):
            import h11  # noqa: F401
        self._pages, self._access = pages, access
        host = access.host.strip("[]")
        self._socket = listening(port, access, argument)
        self.address = f"http://{_shown(host)}:{self._socket.getsockname()[1]}/"
        names = ("localhost", "127.0.0.1", "::1", host, *access.names)
        self._names = {_bare(name) for name in names}
        self._open: dict[asyncio.Task[Any], None] = {}
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._asked = -LOOKS_S
        """The time of the last answer, by the monotonic clock."""
        self._thread = threading.Thread(target=self._run, name="fkjoin-page", daemon=True)
        self._thread.start()

    def stay(self) -> None:
        """Stay for two seconds if a page is open: it asks once more, and shows the answer."""
        if time.monotonic() - self._asked < LOOKS_S:
            time.sleep(LAST_S)

    def close(self) -> None:
        """End all connections, and wait for it; nothing if that is done."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        own_socket = self._socket
        server = await asyncio.start_server(self._connected, sock=own_socket, limit=MOST_HEAD_BYTES)
        await self._stop.wait()
        server.close()
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: Any = asyncio.current_task()
        while len(self._open) >= CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()
        self._open[task] = None
        try:
            await asyncio.wait_for(self._talk(reader, writer), DEADLINE_S)
        except (OSError, asyncio.CancelledError, asyncio.TimeoutError):
            pass  # the client is slow, has gone, or makes room for another
        finally:
            self._open.pop(task, None)
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import h11

        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)
        head = False
        try:
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await reader.read(MOST_HEAD_BYTES))
            if not isinstance(event, h11.Request):
                return
            head = event.method == b"HEAD"
            status, body, about = self._answer(event, writer.get_extra_info("sockname")[0])
        except h11.RemoteProtocolError as error:
            says = "This is not a request that can be read."
            status, body, about = _refused(HTTPStatus(error.error_status_hint), says)
        headers = list({**_ALWAYS, "Content-Length": str(len(body)), **about}.items())
        reason = status.phrase.encode()
        response = h11.Response(status_code=status, headers=headers, reason=reason)
        writer.write(connection.send(response) or b"")
        if not head:
            writer.write(connection.send(h11.Data(data=body)) or b"")
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        writer.write_eof()  # the client has all of it before it sees the end
        await writer.drain()
        while await reader.read(MOST_HEAD_BYTES):
            pass

    def _answer(self, request: h11.Request, here: str) -> _Answer:
        headers = dict(request.headers)
        host = _bare(headers.get(b"host", b"").decode("latin-1"))
        if not host:
            return _refused(HTTPStatus.BAD_REQUEST, "The header Host has no name of a host.")
        if host not in self._names and host != _bare(here):
            says = (
                f"{host!r} is not a name of this page. Ask for localhost, or allow the name: "
                f'names = ["{host}"] in section [ui] of the job file, or names=["{host}"] of watch.'
            )
            return _refused(HTTPStatus.MISDIRECTED_REQUEST, says)
        page = self._pages.get(request.target.partition(b"?")[0].decode("latin-1"))
        if (page is None or page.secret) and not self._knows(headers.get(b"authorization", b"")):
            says = "The header Authorization must be: Bearer TOKEN."
            return _refused(HTTPStatus.UNAUTHORIZED, says, {"WWW-Authenticate": "Bearer"})
        if request.method not in (b"GET", b"HEAD"):
            says = "Pages can only be read."
            return _refused(HTTPStatus.METHOD_NOT_ALLOWED, says, {"Allow": "GET, HEAD"})
        if page is None:
            return _refused(HTTPStatus.NOT_FOUND, f"There are {', '.join(self._pages)}.")
        try:
            body = page.make()
        except Exception:
            _LOG.exception("a page cannot be made")
            says = "The page cannot be made; the job's log says why."
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, says)
        self._asked = time.monotonic() if page.live else self._asked
        return HTTPStatus.OK, body, {"Content-Type": page.kind, _POLICY: page.policy}

    def _knows(self, authorization: bytes) -> bool:
        if self._access.token is None:
            return True
        scheme, _, token = authorization.partition(b" ")
        same = hmac.compare_digest(token.strip(), self._access.token.encode())
        return same and scheme.lower() == b"bearer"


def _bare(host: str) -> str:
    """A host as it may be compared: without port, brackets and the dot at its end.

    Empty if it is none.
    """
    match = _HOST.fullmatch(host.lower())
    return "" if match is None else (match[1] or match[2] or match[3]).rstrip(".")
