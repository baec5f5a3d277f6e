"""No byte of the request left, and there is proof of it; or the peer only seems to refuse it."""

import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import pytest
from tests.scenarios.fronts import Names, Proxy, TlsLater, forwarding, listening
from tests.scenarios.stories import UNKNOWN
from tests.transports.http_peer import certificate

PATIENT = {"retry.attempts": 6}
HASTY = {"retry.attempts": 2, "retry.backoff": "50ms", "timeout": "300ms"}

Heal = Callable[[], Awaitable[None]]


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"), "localhost")


async def is_sent_once_it_can_be(story, heal: Heal) -> None:
    """Call while nothing can be sent, let it be healed, and check that it was sent once."""
    async with story.app() as app:
        first = await story.call(app, wait_s=0)
        assert first.status == "pending"
        waiting = await story.until(app, lambda found: found.observation is not None)
        assert (waiting.status, waiting.observation["class"]) == ("pending", "not_sent")
        assert story.provider.arrivals() == []
        await heal()
        last = await story.ends(app, "succeeded")
        assert last.attempts >= 2
        story.happened(last, effects=1, sends=1)


@pytest.mark.proves("ROW-D-1")
async def test_a_refused_connection_is_proof_and_the_request_is_sent_when_there_is_one(story):
    story.declare(PATIENT)
    story.provider.refuse_connections()

    async def heal() -> None:
        story.provider.accept_connections()

    await is_sent_once_it_can_be(story, heal)


@pytest.mark.proves("ROW-D-1")
async def test_a_name_that_does_not_resolve_is_proof_and_the_request_is_sent_when_it_does(
    story, monkeypatch
):
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names)
    url = f"http://payments.invalid:{story.provider.port}"
    story.declare({**PATIENT, "source.private": True}, url=url)

    async def heal() -> None:
        names.works = True

    await is_sent_once_it_can_be(story, heal)


@pytest.mark.proves("ROW-D-1")
async def test_a_tls_handshake_that_failed_is_proof_and_the_request_is_sent_after_one_that_worked(
    story, certified
):
    ca, context = certified
    async with TlsLater(story.provider.port, context) as front:
        story.declare(
            {**PATIENT, "source.tls": {"ca": str(ca)}}, url=f"https://localhost:{front.port}"
        )
        await is_sent_once_it_can_be(story, front.heal)


@pytest.mark.proves("ROW-D-1")
async def test_a_tunnel_that_the_proxy_refused_is_proof_and_the_request_is_sent_through_the_next(
    story, certified
):
    ca, context = certified
    async with listening(forwarding(story.provider.port), tls=context) as port:
        proxy = Proxy(port)
        async with listening(proxy) as proxy_port:
            source = {"tls": {"ca": str(ca)}, "proxy": f"http://127.0.0.1:{proxy_port}"}
            named = {f"source.{key}": value for key, value in source.items()}
            story.declare({**PATIENT, **named}, url=f"https://localhost:{port}")

            async def heal() -> None:
                proxy.works = True

            await is_sent_once_it_can_be(story, heal)
            assert proxy.refused >= 1


@pytest.mark.proves("ROW-D-1")
@pytest.mark.parametrize(
    "url",
    ["http://{host}:1", "http://payments.invalid:{port}", "https://{host}:{port}"],
    ids=["refused", "no such name", "no TLS"],
)
async def test_what_could_not_be_sent_within_its_budget_failed_and_may_be_repeated(story, url):
    place = urlsplit(story.provider.url)
    story.declare(HASTY, url=url.format(host=place.hostname, port=place.port))
    async with story.app() as app:
        told = await story.call(app)
        assert (told.status, told.error) == ("failed_safe_to_retry", {"code": "not_sent"})
        assert told.attempts == 2
        assert story.effects(told) == []
        again = await story.call(app)  # the caller's own word is a new budget
        assert (again.status, again.attempts) == ("failed_safe_to_retry", 4)
        assert story.sends() == []


@pytest.mark.proves("ROW-D-2")
@pytest.mark.parametrize("on_absent", ["resend", "report"])
async def test_a_reset_before_anything_was_read_is_never_two_effects(story, on_absent):
    story.declare({"on_absent": on_absent})
    story.provider.configure([{"match": {"nth": 1}, "then": {"action": "rst_on_accept"}}])
    async with story.app() as app:
        first = await story.call(app)
        # A reset may overtake the connect: then it is proven that nothing left.
        if first.status == UNKNOWN:
            assert first.observation["stage"] == "sent"
        await story.until(app, lambda found: found.state in ("succeeded", "failed"))
        last = await story.call(app)
        assert last.status == "succeeded"
        story.happened(last, effects=1, sends=1)
