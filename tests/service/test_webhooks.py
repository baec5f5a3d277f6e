"""What a provider is told of its webhooks: over real sockets, from a real process."""

import json
import time
from collections.abc import Iterator

import httpx2
import pytest
from starlette.applications import Starlette
from tests.service.hooked import SECRET, Hooked, contracts, event, hooked, write_secrets
from tests.service.serving import until
from tests.service.signing import SCHEMES, Headers, Scheme, github, rules, shopify

from doubtless import Doubtless
from doubtless.engine.contracts import parse_contracts
from doubtless.engine.credentials import Credentials
from doubtless.errors import SettingsError
from doubtless.service.webhooks import routes

each_scheme = pytest.mark.parametrize(
    ("name", "scheme"), [(name.replace(" ", "-"), scheme) for name, scheme in SCHEMES.items()]
)
BODY = b'{"id": "evt_1", "event_id": "evt_1", "type": "paid"}'


@pytest.fixture(scope="module")
def hooks(running_provider, tmp_path_factory) -> Iterator[Hooked]:
    with hooked(tmp_path_factory.mktemp("webhooks"), running_provider) as found:
        yield found


def signed(scheme: Scheme, body: bytes, at_s: int | None = None) -> Headers:
    return scheme.sign(scheme.secret, body, int(time.time()) if at_s is None else at_s)


@pytest.mark.proves("HOOK-6", "HOOK-7")
@each_scheme
def test_each_scheme_is_taken_in_once_under_the_id_and_type_that_it_has(hooks, name, scheme):
    first = hooks.post(name, BODY, signed(scheme, BODY))
    again = hooks.post(name, BODY, signed(scheme, BODY))
    assert [(each.status, each.json["new"]) for each in (first, again)] == [
        (200, True),
        (200, False),
    ]
    [stored] = hooks.inbox(f"?source={name}")
    ids = {"standard": "msg_1", "github": "d-1", "shopify": "w-1"}
    assert stored["event_id"] == ids.get(name, "evt_1") == first.json["id"]
    assert (stored["type"], stored["reason"], stored["delivered_by"]) == ("paid", "no_tool", name)


@pytest.mark.proves("HOOK-6")
@each_scheme
def test_what_is_forged_is_401_and_stored_nowhere(hooks, name, scheme):
    before = hooks.inbox("?limit=200")
    forged = b'{"id": "forged", "type": "paid"}'
    nothing: Headers = []
    for headers in (
        nothing,
        signed(scheme, BODY),
        scheme.sign(scheme.other, forged, int(time.time())),
    ):
        answer = hooks.post(name, forged, headers)
        assert (answer.status, answer.code) == (401, "bad_signature")
        for secret in (scheme.secret, scheme.other):
            assert secret not in answer.text
    assert hooks.inbox("?limit=200") == before


@pytest.mark.proves("HOOK-7")
@pytest.mark.parametrize(("name", "sign"), [("github", github), ("shopify", shopify)])
def test_an_old_request_under_an_id_that_is_not_signed_is_a_copy(hooks, name, sign):
    body = json.dumps({"of": name, "n": 7}).encode()
    secret = SCHEMES[name].secret
    headers = sign(secret, body, 0)
    changed = [(n, "another" if n.endswith(("Delivery", "Webhook-Id")) else v) for n, v in headers]
    first = [(n, "first" if n.endswith(("Delivery", "Webhook-Id")) else v) for n, v in headers]
    assert hooks.post(name, body, first).json["new"]
    assert hooks.post(name, body, changed).json == {"id": "another", "new": True}
    copy, original = hooks.inbox(f"?source={name}&limit=2")
    assert (copy["copy_of"], original["copy_of"]) == (original["id"], None)


@pytest.mark.proves("HOOK-8")
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'"text"', b'{"a": NaN}', b"a=1&b=2", b"\xff", b"[" * 50_000]
)
def test_what_is_signed_but_no_event_is_400(hooks, body):
    before = hooks.inbox("?limit=200")
    answer = hooks.post("github", body, signed(SCHEMES["github"], body))
    assert (answer.status, answer.code) == (400, "bad_event")
    assert hooks.inbox("?limit=200") == before


@pytest.mark.proves("HOOK-8")
def test_an_event_may_be_a_mebibyte_long_and_no_byte_longer(hooks):
    frame = len(b'{"id": "long", "x": ""}')
    for size, status in ((1_048_576, 200), (1_048_577, 413)):
        body = b'{"id": "long", "x": "' + b"x" * (size - frame) + b'"}'
        assert len(body) == size
        answer = hooks.post("hmac-sha256", body, signed(SCHEMES["hmac-sha256"], body))
        assert answer.status == status, answer.text[:200]


@pytest.mark.proves("HOOK-8")
@pytest.mark.parametrize("source", ["nobody", "payment", "%00", "a" * 300, "..%2Fstandard"])
def test_a_source_that_is_not_declared_is_404(hooks, source):
    answer = hooks.post(source, BODY, signed(SCHEMES["standard"], BODY))
    assert answer.status == 404
    assert answer.code in ("unknown_source", "no_such_route")


def test_a_webhook_is_posted(hooks):
    assert hooks.serving.ask("GET", "/webhooks/standard").status == 405


def test_slack_is_answered_when_it_asks_for_the_address(hooks):
    body = b'{"type": "url_verification", "challenge": "3eZbrw1aB"}'
    before = hooks.inbox("?limit=200")
    answer = hooks.post("slack", body, signed(SCHEMES["slack"], body))
    assert (answer.status, answer.json) == (200, {"challenge": "3eZbrw1aB"})
    assert hooks.post("slack", body, []).status == 401
    assert hooks.inbox("?limit=200") == before


@pytest.mark.proves("HOOK-4")
def test_a_secret_is_replaced_while_the_service_runs(hooks):
    scheme = SCHEMES["stripe"]
    place = hooks.secrets / "stripe-hook"

    def answers() -> list[int]:
        body = json.dumps({"id": f"rotated {time.time_ns()}", "type": "x"}).encode()
        now_s = int(time.time())
        made = [scheme.sign(secret, body, now_s) for secret in (scheme.secret, scheme.other)]
        return [hooks.post("stripe", body, headers).status for headers in made]

    assert answers() == [200, 401]
    place.write_text(f"{scheme.other}\n{scheme.secret}\n", encoding="utf-8")
    assert answers() == [200, 200]
    place.write_text(scheme.other, encoding="utf-8")
    assert answers() == [401, 200]
    place.write_text(scheme.secret, encoding="utf-8")


def test_neither_log_nor_answers_hold_a_secret_or_what_an_event_said(hooks):
    canary = "canary-7f3a"
    hooks.tell(event("logged", operation=canary))
    hooks.tell(event("forged", operation=canary), secret=SCHEMES["standard"].other)

    def lines() -> list[dict[str, object]]:
        found = [line for line in hooks.serving.log_lines() if line.get("source") == "payments"]
        return found if len(found) >= 2 else []

    stored, forged = until(lines)[-2:]
    assert (stored["route"], stored["status"]) == ("/webhooks/{source}", 200)
    assert (forged["status"], forged["refused"]) == (401, "bad_signature")
    log = hooks.serving.log.read_text(encoding="utf-8")
    for secret in (canary, SECRET, SCHEMES["standard"].other):
        assert secret not in log


# --- the start, and a ledger that fails ----------------------------------------------------------


def declared(folder) -> Doubtless:
    secrets = write_secrets(folder)
    parsed = parse_contracts(contracts("http://127.0.0.1:9"), "contracts.toml")
    return Doubtless(f"sqlite:///{folder / 'l.db'}", contracts=parsed, secrets=secrets)


@pytest.mark.proves("HOOK-5")
@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "there is no secret 'standard-hook'"), (" \n", "no secret"), ("whsec_!", "whsec_ and")],
)
def test_without_a_usable_secret_there_is_no_start(tmp_path, text, words):
    app = declared(tmp_path)
    place = tmp_path / "secrets" / "standard-hook"
    place.unlink()
    if text is not None:
        place.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=words):
        routes(app)


@pytest.mark.proves("HOOK-5")
def test_each_missing_secret_is_named_with_the_webhook_that_wants_it():
    hooks = {"payments": rules("standard"), "code": rules("github")}
    with pytest.raises(SettingsError) as caught:
        Credentials(environment={}).check((), hooks)
    assert "the webhook of payments" in str(caught.value)
    assert "DOUBTLESS_SECRET_GITHUB_HOOK" in str(caught.value)


def test_live_secrets_are_the_lines_of_a_credential():
    found = Credentials(environment={"DOUBTLESS_SECRET_HOOK": " new \n\n old\n"})
    assert found.live("hook") == ("new", "old")


@pytest.mark.anyio
@pytest.mark.proves("HOOK-6")
async def test_what_can_not_be_stored_is_503_so_that_it_is_sent_again(tmp_path):
    app = declared(tmp_path)
    asgi = httpx2.ASGITransport(Starlette(routes=routes(app)))
    scheme = SCHEMES["standard"]
    async with app, httpx2.AsyncClient(transport=asgi, base_url="http://here") as client:
        headers = dict(signed(scheme, BODY))
        app.ledger.close()
        answer = await client.post("/webhooks/payments", content=BODY, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (503, "ledger_unavailable")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.anyio
async def test_the_limit_on_an_event_is_a_setting(tmp_path):
    app = declared(tmp_path)
    asgi = httpx2.ASGITransport(Starlette(routes=routes(app, body_bytes_max=len(BODY))))
    async with app, httpx2.AsyncClient(transport=asgi, base_url="http://here") as client:
        for body, status in ((BODY, 200), (BODY + b" ", 413)):
            headers = dict(signed(SCHEMES["standard"], body))
            answer = await client.post("/webhooks/payments", content=body, headers=headers)
            assert answer.status_code == status
