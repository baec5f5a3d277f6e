"""What the service says while its ledger can't be used. In this process, where it can be closed."""

import httpx2
import pytest

from doubtless.core.model import Role
from doubtless.engine.app import Doubtless
from doubtless.ledger.store import open_ledger
from doubtless.service import auth
from doubtless.service.app import create_app


@pytest.mark.proves("SERVICE-10")
async def test_without_its_ledger_the_service_is_not_ready_and_says_so(tmp_path):
    address = f"sqlite:///{tmp_path}/doubtless.db"
    with open_ledger(address) as ledger:
        secret = auth.issue(ledger, "agent-1", Role.AGENT).secret
    asgi = create_app(Doubtless(address))
    async with (
        asgi.router.lifespan_context(asgi),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=asgi), base_url="http://service"
        ) as client,
    ):
        assert (await client.get("/readyz")).status_code == 200
        asgi.state.service.ledger.close()

        for path in ("/readyz", "/v1/tools"):
            answer = await client.get(path, headers={"Authorization": f"Bearer {secret}"})
            assert (answer.status_code, answer.json()["code"]) == (503, "ledger_unavailable")
            assert answer.headers["retry-after"] == "1"
        assert (await client.get("/healthz")).status_code == 200
