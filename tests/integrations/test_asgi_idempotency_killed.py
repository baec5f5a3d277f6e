"""A provider that is killed in the middle of an execution, and started again."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from tests.integrations.children import Nursery, eventually
from tests.integrations.idempotent_shop import Dies, Shop

HEADERS = {"Authorization": "me", "Idempotency-Key": "k"}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    found.close()


@pytest.fixture
def shop(tmp_path) -> Shop:
    found = Shop(tmp_path / "shop.db")
    found.create()
    return found


@contextmanager
def process(nursery: Nursery, path: Path, dies: Dies) -> Iterator[httpx2.Client]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    child = nursery.bear("idempotent_child", path=str(path), port=port, dies=dies)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            eventually(lambda: is_up(client))
            yield client
    finally:
        child.kill()


def is_up(client: httpx2.Client) -> bool:
    try:
        return client.get("/nothing").status_code == 404
    except httpx2.TransportError:
        return False


def refund(client: httpx2.Client, path: str) -> httpx2.Response:
    return client.post(path, json={"amount": 5}, headers=HEADERS)


@pytest.mark.proves("PROVIDER-9")
@pytest.mark.parametrize(
    ("dies", "there"), [("before", False), ("between", False), ("after", True)]
)
def test_killed_anywhere_an_atomic_route_has_effect_and_record_or_neither(
    nursery, shop, dies, there
):
    with process(nursery, shop.path, dies) as client, pytest.raises(httpx2.TransportError):
        refund(client, "/v1/refunds")
    with shop.connection() as db:
        state = db.execute("select state from idempotency").fetchone()[0]
    assert (shop.effects(), state) == ((1, "succeeded") if there else (0, "in_progress"))
    with process(nursery, shop.path, "never") as client:
        again = refund(client, "/v1/refunds")  # waits until the dead execution is taken for dead
    assert (again.status_code, again.json()) == (201, {"id": 1})
    assert again.headers.get("idempotency-replayed") == ("true" if there else None)
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-8")
def test_killed_between_effect_and_record_a_plain_route_says_unknown_and_executes_nothing(
    nursery, shop
):
    with process(nursery, shop.path, "between") as client, pytest.raises(httpx2.TransportError):
        refund(client, "/v1/plain")
    assert shop.effects() == 1
    with process(nursery, shop.path, "never") as client:
        again = refund(client, "/v1/plain")
        assert (again.status_code, again.json()["code"]) == (409, "outcome_unknown")
        told = client.get(again.json()["status_url"], headers=HEADERS).json()
        assert (told["state"], told["answered_status"]) == ("unknown", None)
        with shop.connection() as db:  # the owner has looked, and says what it was
            assert shop.store.settle(db, caller="me", key="k", body={"id": 1}, status=201)
        again = refund(client, "/v1/plain")
        assert (again.status_code, again.json()) == (201, {"id": 1})
    assert shop.effects() == 1
