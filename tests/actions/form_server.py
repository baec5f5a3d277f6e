"""A web site with forms that commit whatever arrives, and answer as its address asks for.

`/form?mode=MODE&id=ID` shows a form; what it sends goes to `/submit` with the same query. Nothing
protects it from being sent twice. `Forms` counts what was committed.
"""

import asyncio
import base64
import hashlib
import socket
import struct
import threading
from typing import Self
from urllib.parse import parse_qs, urlsplit

from tests.service.serving import until

PAGE = """<!doctype html><title>Orders</title><style>body {{ font: 18px sans-serif }}</style>
<h1>Order form</h1><form method="post" action="/submit?mode={mode}&id={id}" {more}>
<p><label>Name <input id="name" name="name"></label>
<p><label>Password <input id="word" type="password" name="word"></label>
<p><label>Token <input id="token" name="token"></label>
<p>{file}<button id="send">Send</button></form>{go}<script>{script}</script>"""

DONE = '<!doctype html><title>Done</title><p id="done">Thank you. Receipt R-{id}</p>'
SHOW = "document.body.insertAdjacentHTML('beforeend', '<p id=done>Thank you</p>');"
SUBMIT = "fetch('/submit' + location.search, {method: 'POST', body: 'order'})"
ON_SUBMIT = "document.forms[0].onsubmit = event => {{ event.preventDefault(); {} }};"
SOCKET = f"""
const socket = new WebSocket(location.origin.replace('http', 'ws') + '/socket' + location.search);
socket.onopen = () => socket.send('hello');
socket.onmessage = () => {{ {SHOW} }};
document.forms[0].onsubmit = event => {{ event.preventDefault(); socket.send('order'); }};
"""
SCRIPTS = {
    "early": "fetch('/early', {method: 'POST'}).catch(() => 0); navigator.sendBeacon('/early');",
    "twice": ON_SUBMIT.format(f"{SUBMIT}.then(() => {{ {SHOW} }}); {SUBMIT}.catch(() => 0);"),
    "hopeful": ON_SUBMIT.format(f"{SUBMIT}; {SHOW}"),
    "hollow": ON_SUBMIT.format(SHOW),
    "shown": SHOW,
    "again": ON_SUBMIT.format(f"setInterval(() => {SUBMIT}.catch(() => 0), 20);"),
    "socket": SOCKET,
}


class Forms:
    """The site, in a thread of its own."""

    def __init__(self) -> None:
        self.committed: list[str] = []  # ids, in order
        self.bodies: list[bytes] = []
        self.early: list[str] = []  # what the page sent by itself, elsewhere or too soon
        self.visits: list[str] = []
        self.go = False  # whether forms say that it may go on
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def form(self, mode: str, operation_id: str) -> str:
        return f"{self.url}/form?mode={mode}&id={operation_id}"

    def count(self, operation_id: str) -> int:
        return self.committed.count(operation_id)

    def arrived(self, operation_id: str) -> None:
        """Wait until something of it was committed."""
        until(lambda: operation_id in self.committed)

    def release(self) -> None:
        """Let late answers go."""
        self._loop.call_soon_threadsafe(self._released.set)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; say whether another may come on the connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        parts = urlsplit(target)
        said = {name: values[0] for name, values in parse_qs(parts.query).items()}
        mode, operation_id = said.get("mode", "ok"), said.get("id", "")
        if parts.path == "/form":
            self.visits.append(operation_id)
            writer.write(_page(200, self._form(mode, operation_id)))
        elif parts.path == "/submit" and method == "POST":
            self.bodies.append(body)
            return await self._submitted(mode, operation_id, writer)
        elif parts.path == "/socket":
            await self._talk(operation_id, headers["sec-websocket-key"], reader, writer)
            return False
        elif parts.path == "/login":
            self.bodies.append(body)
            writer.write(_page(200, "welcome"))
        elif parts.path == "/done":
            writer.write(_page(200, DONE.format(id=operation_id)))
        else:
            if parts.path == "/early":
                self.early.append(f"{method} {headers['host']}")
            writer.write(_page(404, "nothing is here"))
        return True

    async def _submitted(self, mode: str, operation_id: str, writer: asyncio.StreamWriter) -> bool:
        if mode != "cut":
            self.committed.append(operation_id)
        if mode in ("cut", "rst"):
            held = writer.get_extra_info("socket")
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        if mode == "late":
            await self._released.wait()
        if mode in ("broken", "hopeful"):
            writer.write(_page(500, DONE.format(id=operation_id)))
        elif mode == "pending":
            writer.write(_page(200, "We are working on it."))
        else:
            where = f"Location: /done?id={operation_id}\r\n"
            writer.write(f"HTTP/1.1 303 See Other\r\n{where}Content-Length: 0\r\n\r\n".encode())
        return True

    def _form(self, mode: str, operation_id: str) -> str:
        stray = f"fetch('http://localhost:{self.port}/early', {{mode: 'no-cors'}}).catch(() => 0);"
        return PAGE.format(
            mode=mode,
            id=operation_id,
            more='enctype="multipart/form-data"' if mode == "file" else "",
            file='<input id="file" type="file" name="file">' if mode == "file" else "",
            go='<p id="go">Go on</p>' if self.go else "",
            script=stray if mode == "stray" else SCRIPTS.get(mode, ""),
        )

    async def _talk(
        self,
        operation_id: str,
        key: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Speak as much of RFC 6455 as short texts need."""
        magic = f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()
        accept = base64.b64encode(hashlib.sha1(magic).digest()).decode()  # noqa: S324 - as it says
        upgrade = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade"
        writer.write(f"{upgrade}\r\nSec-WebSocket-Accept: {accept}\r\n\r\n".encode())
        while True:
            first, length = await reader.readexactly(2)
            mask = await reader.readexactly(4)
            text = await reader.readexactly(length & 0x7F)
            if first & 0x0F != 1:
                return
            plain = bytes(each ^ mask[at % 4] for at, each in enumerate(text))
            (self.committed if plain == b"order" else self.early).append(operation_id)
            writer.write(b"\x81\x02ok")


def _page(status: int, html: str) -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: text/html\r\nContent-Length: {len(html.encode())}"
    return f"{head}\r\n\r\n{html}".encode()
