"""Settings that every test shares."""

import pytest
from hypothesis import settings

# On a busy machine a slow example proves nothing; pytest-timeout guards against one that hangs.
settings.register_profile("doubtless", settings(), deadline=None)
settings.load_profile("doubtless")


@pytest.fixture(scope="session")
def anyio_backend():
    """Run coroutine tests on asyncio alone: it is the only loop that is supported."""
    return "asyncio"
