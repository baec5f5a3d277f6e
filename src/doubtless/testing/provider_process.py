"""Start the simulated provider as a process of its own, and steer it from synchronous code."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode

from doubtless.testing.provider_rules import ConfigError, Document
from doubtless.testing.provider_store import Arrival, Effect

_LOOPBACK: Final = "127.0.0.1"
_POLL_S: Final = 0.01
_SOURCE_ROOT: Final = Path(__file__).resolve().parents[2]


class ProviderDied(RuntimeError):
    """The provider's process ended, or did not begin to listen in time."""


class ProviderProcess:
    """A running provider process. Leaving the context manager ends it.

    Made by `spawn_provider`.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int, admin_port: int) -> None:
        self._process = process
        self.port, self.admin_port = port, admin_port
        self.pid = process.pid
        self.url = f"http://{_LOOPBACK}:{port}"  # the API's origin

    def configure(self, rules: Document) -> None:
        """Replace the configuration, or with a bare list the rules alone; counters start anew.

        Raises:
            ConfigError: `rules` can't be read; nothing was changed.
        """
        self._admin("POST", "/_admin/rules", rules)

    def effects(
        self,
        *,
        operation: str | None = None,
        collection: str | None = None,
        key: str | None = None,
    ) -> list[Effect]:
        """Return the effects, in the order of commits; what is given must be equal."""
        wanted = {"operation": operation, "collection": collection, "key": key}
        query = urlencode({name: value for name, value in wanted.items() if value is not None})
        return [
            Effect(**part) for part in self._admin("GET", f"/_admin/effects?{query}")["effects"]
        ]

    def counts(self) -> dict[str, int]:
        """Return the number of effects by operation; those without one stand under ""."""
        counts: dict[str, int] = self._admin("GET", "/_admin/effects")["counts"]
        return counts

    def pending(self) -> list[str]:
        """Return the ids of the work that was accepted and is not finished."""
        return list(self._admin("GET", "/_admin/effects")["pending"])

    def arrivals(self) -> list[Arrival]:
        """Return every request head that was read from the API's port."""
        return [Arrival(**part) for part in self._admin("GET", "/_admin/arrivals")["arrivals"]]

    def connections(self) -> int:
        """Return how many connections the API's port accepted, reset ones too."""
        return int(self._admin("GET", "/_admin/arrivals")["connections"])

    def fired(self) -> dict[str, int]:
        """Return how often each fault really happened, by the action's name."""
        fired: Counter[str] = Counter()
        for rule in self._admin("GET", "/_admin/rules")["rules"]:
            fired[rule["action"]] += rule["fired"]
        return dict(fired)

    def seed(
        self, collection: str, fields: Mapping[str, object], *, item_id: str | None = None
    ) -> str:
        """Add an object that was there before the story begins, and return its id.

        It is no effect. `fields` may carry a `status`; "succeeded" is the default.
        """
        body = {**fields, "collection": collection, "id": item_id}
        return str(self._admin("POST", "/_admin/objects", body)["id"])

    def complete(self, item_id: str, status: str = "succeeded") -> None:
        """Finish pending work as "succeeded" (now it is an effect) or "failed".

        Raises:
            LookupError: Nothing is pending under `item_id`.
        """
        self._admin("POST", "/_admin/complete", {"id": item_id, "status": status})

    def refuse_connections(self, duration_s: float | None = None) -> None:
        """Stop listening for `duration_s` seconds; None: until `accept_connections`."""
        self._admin("POST", "/_admin/listener", {"closed_for_s": duration_s})

    def accept_connections(self) -> None:
        """Listen again, on the same port."""
        self._admin("POST", "/_admin/listener", {"closed_for_s": 0})

    def reset(self) -> None:
        """Forget all but the configuration, whose counters start anew; listen again."""
        self._admin("POST", "/_admin/reset", {})

    def wait_for(
        self, condition: Callable[[ProviderProcess], bool], *, timeout_s: float = 5.0
    ) -> None:
        """Return as soon as `condition(self)` holds.

        Raises:
            TimeoutError: It did not hold within `timeout_s`.
        """
        end = time.monotonic() + timeout_s
        while not condition(self):
            if time.monotonic() > end:
                raise TimeoutError(f"not true within {timeout_s} s")
            time.sleep(_POLL_S)

    def stop(self, *, timeout_s: float = 5.0) -> None:
        """End the process; kill it if it isn't gone within `timeout_s`. May be repeated."""
        self._let_go()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def signal(self, number: int) -> None:
        """Send the process a signal: SIGSTOP makes it silent, SIGCONT wakes it."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL the process and wait until it is gone. Its log keeps the count."""
        self._process.kill()
        self._process.wait()
        self._let_go()

    def _let_go(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # What comes back is our own simulator's JSON; each caller above gives it its type.
    def _admin(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection(_LOOPBACK, self.admin_port, timeout=10)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (ConnectionError, http.client.HTTPException) as error:
            raise ProviderDied(f"the provider does not answer: {error}") from error
        finally:
            connection.close()
        if response.status == 400:
            raise ConfigError(answer["error"]["message"])
        if response.status == 404:
            raise LookupError(answer["error"]["message"])
        return answer


def spawn_provider(
    rules: Document | None = None,
    *,
    port: int = 0,
    log: Path | None = None,
    lifetime_s: float = 600.0,
    start_timeout_s: float = 10.0,
) -> ProviderProcess:
    """Start a provider process and return when it listens and is configured.

    It ends with `stop`, when this process dies, or after `lifetime_s` seconds.

    Raises:
        ConfigError: `rules` can't be read.
        ProviderDied: It did not listen within `start_timeout_s` seconds.
    """
    command = [sys.executable, "-m", "doubtless.testing.provider", "--port", str(port)]
    command += ["--lifetime-s", str(lifetime_s)]
    if log is not None:
        command += ["--log", str(log)]
    paths = [str(_SOURCE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # its end is the process's end
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        ready = json.loads(_first_line(process, start_timeout_s))
        handle = ProviderProcess(process, ready["port"], ready["admin_port"])
        if rules is not None:
            handle.configure(rules)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return handle


def _first_line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], timeout_s)
    line = process.stdout.readline() if readable else b""
    if not line:
        raise ProviderDied(f"nothing listened within {timeout_s} s")
    return line
