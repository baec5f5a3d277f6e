"""A small, honest payment API that misbehaves on order: a simulator on real loopback sockets.

Run it as a process, `python -m doubtless.testing.provider --rules rules.json`; from synchronous
tests with `spawn_provider`; or on the running event loop with `Provider`. It counts its effects
itself, and that count is what a test compares with what an agent was told.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from doubtless.testing.provider_process import ProviderDied, ProviderProcess, spawn_provider
from doubtless.testing.provider_rules import (
    ACTIONS,
    Action,
    Config,
    ConfigError,
    Document,
    Json,
    Match,
    Rule,
    Settings,
)
from doubtless.testing.provider_server import Provider
from doubtless.testing.provider_store import Arrival, Effect

__all__ = [
    "ACTIONS",
    "Action",
    "Arrival",
    "Config",
    "ConfigError",
    "Document",
    "Effect",
    "Json",
    "Match",
    "Provider",
    "ProviderDied",
    "ProviderProcess",
    "Rule",
    "Settings",
    "main",
    "spawn_provider",
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until stdin ends or the lifetime is over, and return the exit code.

    That is 2 where the rules can't be read or the port can't be had.

    When the provider listens, one line of JSON goes to stdout:
    `{"port": …, "admin_port": …, "pid": …}`.
    """
    parser = argparse.ArgumentParser(prog="doubtless.testing.provider", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 (the default) takes a free one")
    parser.add_argument("--rules", type=Path, help="a JSON file with the configuration")
    parser.add_argument("--log", type=Path, help="append every effect to this file, fsynced")
    parser.add_argument("--lifetime-s", type=float, default=600.0, help="end after so many seconds")
    options = parser.parse_args(arguments)
    try:
        rules = json.loads(options.rules.read_bytes()) if options.rules else {}
        provider = Provider(rules, port=options.port, log=options.log)
        asyncio.run(_serve(provider, options.lifetime_s))
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(provider: Provider, lifetime_s: float) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    # A thread, because an event loop can't watch every kind of stdin (a file, /dev/null).
    watch = threading.Thread(target=_watch_stdin, args=(loop, ended), daemon=True)
    async with provider:
        ready = {"port": provider.port, "admin_port": provider.admin_port, "pid": os.getpid()}
        print(json.dumps(ready), flush=True)
        watch.start()
        try:
            async with asyncio.timeout(lifetime_s):
                await ended.wait()
        except TimeoutError:
            pass


def _watch_stdin(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    # os.read, because a thread inside sys.stdin holds a lock that the interpreter's end needs.
    while os.read(0, 4096):
        pass
    with contextlib.suppress(RuntimeError):  # the lifetime was over first, and the loop is closed
        loop.call_soon_threadsafe(ended.set)


if __name__ == "__main__":
    raise SystemExit(main())
