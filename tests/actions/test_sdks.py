"""Hidden retries of HTTP libraries: what they do by default, and that the recipe switches it off.

The other side counts. Each recipe is the one of docs/actions-functions.md.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import botocore.session
import httpx
import httpx2
import pytest
import requests
import requests.adapters
import urllib3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from doubtless import Doubtless, Effect, Key
from doubtless.testing.arrivals import arrivals

PAGE = Path(__file__).parents[2] / "docs" / "actions-functions.md"
RECIPE = re.compile(r"^```python\n# recipe: (\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPES = dict(RECIPE.findall(PAGE.read_text(encoding="utf-8")))


def recipe(name: str, **given):
    """Run the page's code, and return what it made."""
    made: dict[str, Any] = dict(given)
    exec(compile(RECIPES[name], str(PAGE), "exec"), made)  # noqa: S102 - the page is ours
    return made


def with_requests(url, client):
    client.post(f"{url}/refunds", json={"charge": "ch_1"}, timeout=5)


def with_urllib3(url, client):
    client.request("POST", f"{url}/refunds", json={"charge": "ch_1"})


def with_httpx(url, client):
    client.post(f"{url}/refunds", json={"charge": "ch_1"})


def with_botocore(url, client):
    client.send_message(QueueUrl=f"{url}/queue", MessageBody="{}")


CALLS = {
    "requests": with_requests,
    "urllib3": with_urllib3,
    "httpx": with_httpx,
    "httpx2": with_httpx,
    "botocore": with_botocore,
}

FAILURES = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    httpx.HTTPError,
    httpx2.HTTPError,
    BotoCoreError,
    ClientError,
)


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")


@pytest.mark.proves("FUNCTION-1")
@pytest.mark.parametrize("name", sorted(CALLS))
@pytest.mark.parametrize("loses", ["reset", "close", 500, 503])
def test_a_client_made_by_the_recipe_sends_once_whatever_becomes_of_the_answer(name, loses):
    with arrivals(loses) as counted:
        client = recipe(name, url=counted.url)["client"]
        with suppress(*FAILURES):
            CALLS[name](counted.url, client)
        done = getattr(client, "close", None) or client.clear
        done()
    assert counted.count == 1, [each.path for each in counted.requests]


@pytest.mark.proves("FUNCTION-2")
def test_left_alone_some_of_them_send_again_unseen():
    session = botocore.session.get_session()
    with arrivals(500) as counted:
        quick = Config(retries={"max_attempts": 2, "mode": "legacy"})
        client = session.create_client(
            "sqs", region_name="eu-west-1", endpoint_url=counted.url, config=quick
        )
        with pytest.raises(Exception, match="500"):
            with_botocore(counted.url, client)
    assert counted.count == 3
    with arrivals("reset") as counted:
        retry = urllib3.Retry(total=2, allowed_methods=None, backoff_factor=0)
        adapter = requests.adapters.HTTPAdapter(max_retries=retry)
        careless = requests.Session()
        careless.mount("http://", adapter)
        with pytest.raises(requests.ConnectionError):
            with_requests(counted.url, careless)
    assert counted.count == 3


@pytest.mark.proves("FUNCTION-3")
async def test_an_sdk_that_takes_a_client_gets_the_key_and_no_second_send(tmp_path):
    """`call.http` is handed to an SDK: the key travels, and an answer that is lost is unknown."""
    with arrivals("reset") as counted:
        async with Doubtless(f"sqlite:///{tmp_path}/d.db") as app:

            @app.tool(effect=Effect.WRITE, timeout="5s", idempotency=Key(ttl="24h"))
            async def create_note(call, text: str) -> dict[str, Any]:
                sdk = Sdk(counted.url, call.http)
                made: dict[str, Any] = await sdk.create(text)
                return made

            outcome = await create_note.with_id("one")(text="hello")
    assert outcome.outcome == "unknown"
    assert [each.headers["idempotency-key"] for each in counted.requests] == [
        outcome.idempotency_key
    ]


class Sdk:
    """What an SDK that lets its client be chosen looks like."""

    def __init__(self, url: str, client: httpx2.AsyncClient):
        self.url, self.client = url, client

    async def create(self, text: str) -> Any:
        answer = await self.client.post(f"{self.url}/notes", json={"text": text})
        return answer.json()


@pytest.mark.proves("FUNCTION-4")
@pytest.mark.parametrize(
    ("loses", "status"), [("nothing", 200), ("reset", None), ("close", None), (503, 503)]
)
def test_arrivals_counts_what_came_whole(loses, status):
    with arrivals(loses, body=b'{"a": 1}') as counted:
        try:
            answer = httpx.post(f"{counted.url}/x?y=1", content=iter([b"one", b"two"]))
        except httpx.HTTPError:
            assert status is None
        else:
            assert answer.status_code == status
    (seen,) = counted.requests
    assert (seen.method, seen.path, seen.body) == ("POST", "/x?y=1", b"onetwo")
