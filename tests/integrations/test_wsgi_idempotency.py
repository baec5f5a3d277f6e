"""The WSGI middleware around Django, on real sockets."""

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django
import httpx2
import pytest
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path

from doubtless.integrations.wsgi_idempotency import (
    IdempotencyMiddleware,
    Route,
    Store,
    operation,
)

ROUTES = [
    Route(path="/v1/refunds", required=True, atomic=True),
    Route(path="/v1/plain"),
    Route(path="/v1/parts"),
]
ME = {"Authorization": "me"}


def refund(request: HttpRequest) -> HttpResponse:
    said = json.loads(request.body)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("insert into refund (amount) values (%s)", [said["amount"]])
            number = cursor.lastrowid
        body = operation(request).record(connection, {"id": number}, status=201)
    return JsonResponse(body, status=201)


def plain(request: HttpRequest) -> HttpResponse:
    with connection.cursor() as cursor:
        amount = json.loads(request.body)["amount"]
        cursor.execute("insert into refund (amount) values (%s)", [amount])
    if amount == 13:
        raise RuntimeError("after the effect")
    return JsonResponse({"amount": amount}, status=201)


def parts(request: HttpRequest) -> StreamingHttpResponse:
    with connection.cursor() as cursor:
        cursor.execute("insert into refund (amount) values (0)")
    return StreamingHttpResponse(f"part {number};" for number in range(3))


urlpatterns = [path("v1/refunds", refund), path("v1/plain", plain), path("v1/parts", parts)]


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64


def from_django() -> Any:
    """The transactions of Django's own connection of this thread."""
    return Joined()


class Joined:
    """As a project writes it: one transaction on Django's own connection."""

    def __enter__(self) -> Any:
        self._atomic = transaction.atomic()
        self._atomic.__enter__()
        return connection

    def __exit__(self, *raised: Any) -> None:
        self._atomic.__exit__(*raised)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[tuple[str, Path]]:
    file = tmp_path_factory.mktemp("django") / "shop.db"
    with sqlite3.connect(file) as db:
        db.execute("pragma journal_mode = wal")
        db.execute("create table refund (id integer primary key, amount integer)")
    db.close()
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["127.0.0.1"],
        LOGGING_CONFIG=None,
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(file),
                "OPTIONS": {"timeout": 10, "transaction_mode": "IMMEDIATE"},
            }
        },
    )
    django.setup()
    store = Store(from_django)
    store.create_tables()
    app = IdempotencyMiddleware(
        WSGIHandler(),
        store=store,
        caller=lambda environ: environ.get("HTTP_AUTHORIZATION"),
        routes=ROUTES,
    )
    with make_server("127.0.0.1", 0, app, Server, Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", file
        server.shutdown()
        thread.join()
    connections.close_all()


@pytest.fixture
def client(place) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=place[0], headers=ME, timeout=20) as found:
        yield found


@pytest.fixture
def effects(place):
    def count() -> int:
        db = sqlite3.connect(place[1])
        try:
            return int(db.execute("select count(*) from refund").fetchone()[0])
        finally:
            db.close()

    before = count()
    return lambda: count() - before


def send(
    client: httpx2.Client, path: str, key: str, amount: int = 5, **headers: str
) -> httpx2.Response:
    said = {"Idempotency-Key": key, **headers}
    return client.post(path, json={"amount": amount}, headers=said)


@pytest.mark.proves("PROVIDER-14")
@pytest.mark.parametrize("path", ["/v1/refunds", "/v1/plain"])
def test_of_many_at_once_one_is_executed_under_django(client, effects, path):
    with ThreadPoolExecutor(20) as pool:
        said = list(pool.map(lambda _: send(client, path, f"many{path}"), range(20)))
    assert Counter(each.status_code for each in said) == {201: 20}
    assert len({each.text for each in said}) == 1
    assert sum(each.headers.get("idempotency-replayed") == "true" for each in said) == 19
    assert effects() == 1


@pytest.mark.proves("PROVIDER-14")
def test_django_is_refused_and_looked_up_as_asgi_is(client, effects):
    send(client, "/v1/refunds", '"a b"')
    assert send(client, "/v1/refunds", '"a b"', amount=6).status_code == 422
    assert send(client, "/v1/refunds", "two words").status_code == 400
    assert client.post("/v1/refunds", json={"amount": 1}).status_code == 400
    assert send(client, "/v1/refunds", "k", Authorization="").status_code == 401
    told = client.get("/operations/by-id/a%20b").json()
    assert (told["state"], told["answered_status"]) == ("succeeded", 201)
    assert client.get("/operations/by-id/none").json()["code"] == "no_such_operation"
    answers = [send(client, "/v1/parts", "parts") for _ in range(2)]
    assert [each.text for each in answers] == ["part 0;part 1;part 2;"] * 2
    assert effects() == 2


@pytest.mark.proves("PROVIDER-14")
def test_a_view_of_django_that_raised_is_not_executed_again(client, effects):
    assert send(client, "/v1/plain", "bad", amount=13).status_code == 500
    assert send(client, "/v1/plain", "bad", amount=13).status_code == 500
    assert client.get("/operations/by-id/bad").json()["state"] == "unknown"
    assert effects() == 1
