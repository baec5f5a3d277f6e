"""What a client starts: it finds or starts the local service, and hands bytes back and forth.

It holds nothing. When it ends, however it ends, the service and every call in flight go on.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from doubtless.errors import SettingsError
from doubtless.integrations.mcp_place import GatewaySettings, Place

START_S: Final = 45.0  # a busy machine takes its time to import
GREETING_S: Final = 10.0
POLL_S: Final = 0.05
CHUNK: Final = 65_536
LOG_LINES: Final = 5
SERVICE: Final = "doubtless.integrations.mcp_daemon"

Say = Callable[[str], None]
"""Writes a line for people. Never to standard output, which is the protocol's."""


def run(settings: GatewaySettings, say: Say) -> int:
    """Connect standard input and output to the service of the settings, started if none runs.

    Returns:
        0 when the client closed its side, 1 when the service went away.

    Raises:
        SettingsError: It can't be started, or runs with other settings and is in use.
    """
    place = Place.of(settings)
    with connected(settings, place, say) as link:
        return _pump(link, place, say)


def stop(settings: GatewaySettings, say: Say) -> int:
    """End the service of the settings in order, if one runs; attempts in flight end first.

    Raises:
        SettingsError: It does not answer.
    """
    place, end_s = Place.of(settings), time.monotonic() + START_S
    while (link := _reach(place)) is not None:
        with link:
            answer = _greet(link, {"stop": True})
        if "pid" in answer:
            say(f"the service (pid {answer['pid']}) is ending; its log: {place.log}")
            return 0
        if time.monotonic() > end_s:
            raise SettingsError(f"the service{_who(place)} does not answer; its log: {place.log}")
    say("no service runs for this ledger and scope")
    return 0


def connected(settings: GatewaySettings, place: Place, say: Say) -> socket.socket:
    """Return a link to the service, on which the protocol may begin.

    Of several shims that start at once exactly one starts the service.

    Raises:
        SettingsError: It can't be started, or runs with other settings and is in use.
    """
    digest, end_s = settings.digest(), time.monotonic() + START_S
    while time.monotonic() < end_s:
        link = _reach(place)
        if link is None:
            if not _started(settings, place, say):
                time.sleep(POLL_S)  # another one starts it, or the last one is ending
            continue
        answer = _greet(link, {"settings": digest})
        if answer.get("welcome"):
            return link
        link.close()
        if "refused" in answer:
            raise SettingsError(str(answer["refused"]))
        time.sleep(POLL_S)
    raise SettingsError(
        f"the gateway's service can't be reached at {place.socket}{_who(place)}. Its log:"
        f" {place.log}"
    )


def _reach(place: Place) -> socket.socket | None:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.connect(str(place.socket))
    except (FileNotFoundError, ConnectionRefusedError):
        link.close()
        return None
    return link


def _greet(link: socket.socket, said: dict[str, object]) -> dict[str, object]:
    """Say what is wanted, and return the answer; empty where the service has just gone away."""
    link.settimeout(GREETING_S)
    line = b""
    try:
        link.sendall(json.dumps(said).encode() + b"\n")
        while not line.endswith(b"\n"):
            if not (got := link.recv(1)):
                return {}
            line += got
    except OSError:
        return {}
    link.settimeout(None)
    found = json.loads(line)
    return found if isinstance(found, dict) else {}


def _started(settings: GatewaySettings, place: Place, say: Say) -> bool:
    """Start a service, and wait until it answers. False: there is one already.

    Raises:
        SettingsError: It did not come up, with what it said.
    """
    free = place.lock()
    if free is None:
        return False
    os.close(free)  # whoever is started takes it; of two that were started one gets it
    log = place.open_log()
    began = os.fstat(log).st_size
    try:
        # -P: whatever lies in the client's folder is no module of ours.
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", SERVICE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=settings.folder,
            start_new_session=True,
        )
    finally:
        os.close(log)
    try:
        line, _ = child.communicate(settings.to_text().encode(), timeout=START_S)
    except subprocess.TimeoutExpired as error:
        raise SettingsError(
            f"the gateway's service did not come up within {START_S:g} s. Its log: {place.log}"
        ) from error
    answer = json.loads(line) if line.strip() else {}
    if "ready" in answer:
        say(f"service started (pid {answer['ready']}); its log: {place.log}")
        return True
    if "busy" in answer:
        return False
    why = answer.get("error") or _tail(place, began) or "it said nothing"
    raise SettingsError(f"the gateway's service did not start: {why}\nIts log: {place.log}")


def _tail(place: Place, began: int) -> str:
    with suppress(OSError), place.log.open("rb") as log:
        log.seek(began)
        lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])
    return ""


def _who(place: Place) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return f" (pid {json.loads(place.state.read_text(encoding='utf-8'))['pid']})"
    return ""


def _pump(link: socket.socket, place: Place, say: Say) -> int:
    closed = threading.Event()
    upward = threading.Thread(target=_up, args=(link, closed), daemon=True)
    upward.start()
    with suppress(BrokenPipeError, ConnectionResetError):
        while chunk := link.recv(CHUNK):
            _write(sys.stdout.fileno(), chunk)
    if closed.is_set():
        return 0
    say(f"the service ended the link; what was under way is in the ledger. Its log: {place.log}")
    return 1


def _up(link: socket.socket, closed: threading.Event) -> None:
    """Hand on what the client says. Its end is told, so that open calls may still be answered."""
    with suppress(OSError):
        while chunk := os.read(sys.stdin.fileno(), CHUNK):
            link.sendall(chunk)
        closed.set()
        link.shutdown(socket.SHUT_WR)


def _write(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
