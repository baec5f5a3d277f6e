"""Settings that every test shares."""

import logging
import os
import uuid

import pytest
from hypothesis import settings
from tests.slices import LONGEST, WHOLE, is_left_out

# On a busy machine a slow example proves nothing; pytest-timeout guards against one that hangs.
# At a desk new examples are looked for; a gate must give the same answer for the same commit.
settings.register_profile("doubtless", settings(), deadline=None, derandomize="CI" in os.environ)
settings.load_profile("doubtless")


def pytest_ignore_collect(collection_path, config):
    """Don't import what is left out as a whole."""
    if config.option.markexpr != "not long":
        return None
    return WHOLE.search(collection_path.as_posix()) is not None or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what `make test` leaves to `make proofs`."""
    for item in items:
        left_out = is_left_out(item.nodeid)
        if WHOLE.match(item.nodeid) and not left_out:
            raise pytest.UsageError(f"{item.nodeid} would be run nowhere: see tests/slices.py")
        if left_out:
            item.add_marker(pytest.mark.long)
    # The longest begin first, so that no process is left with one of them at the end.
    items.sort(key=lambda item: LONGEST.match(item.nodeid) is None)


@pytest.fixture(autouse=True)
def own_logging():
    """Leave the product's loggers as they were: a service that ran in this process sets its own."""
    loggers = [logging.getLogger(name) for name in ("doubtless", "uvicorn")]
    before = [(each, each.propagate, each.level, list(each.handlers)) for each in loggers]
    yield
    for each, propagates, level, handlers in before:
        each.propagate, each.handlers = propagates, handlers
        each.setLevel(level)


@pytest.fixture(scope="session")
def anyio_backend():
    """Run coroutine tests on asyncio alone: it is the only loop that is supported."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres(request):
    """A PostgreSQL server, shared by the processes of this run; started by the first who asks."""
    from tests.postgres import Postgres, folder_of_run  # noqa: PLC0415 - few tests need it

    worker = getattr(request.config, "workerinput", {"testrunuid": uuid.uuid4().hex})
    run = folder_of_run(worker["testrunuid"][:12])
    server = Postgres(run, worker.get("workerid", "one"))
    yield server
    server.stop()
