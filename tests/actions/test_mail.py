"""Mail: by a real SMTP server that loses replies, and a real IMAP server that is asked for them."""

import email
import signal
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from email.policy import default

import anyio
import pytest
from tests.actions.git_server import eventually, until
from tests.actions.leases import short, stop
from tests.actions.mail_servers import DOVECOT, Cut, Postbox, imap, smtp

from doubtless import Doubtless
from doubtless.engine.contracts import parse_contracts
from doubtless.errors import BadArguments, ContractError

ANSWER_S = 25
TEXT = "It is on its way.\n.\n"  # the dot is no end
ARGUMENTS = {"to": "customer@example.com", "subject": "Your refund", "text": TEXT}
CONTRACT = """
[tools.send_mail]
effect = "message"
timeout = "{timeout}"
in_flight_horizon = "{horizon}"
on_absent = "report"
retry = {{ backoff = "100ms" }}

[tools.send_mail.arguments]
type = "object"
required = ["to", "subject", "text"]
additionalProperties = false
properties.to = {{ type = ["string", "array"] }}
properties.subject = {{ type = "string" }}
properties.text = {{ type = "string" }}
properties.html = {{ type = "string" }}

[tools.send_mail.mail]
smtp = "127.0.0.1:{smtp}"
tls = "{tls}"
sender = "shop@example.com"
to = "{{args.to}}"
subject = "{{args.subject}}"
text = "{{args.text}}"
html = "{{args.html}}"
refused = "{refused}"
{more}
"""
SENT = """
[tools.send_mail.mail.sent]
imap = "127.0.0.1:{imap}"
tls = "none"
user = "shop"
credential = "mail"
authoritative = true
lag = "0s"

[tools.send_mail.mail.pace]
interval = "200ms"
confirmations = 1
timeout = "3s"
"""


@pytest.fixture
def postbox(tmp_path):
    return Postbox(tmp_path)


@pytest.fixture
def server(postbox):
    with smtp(postbox) as port:
        yield port


@pytest.fixture(scope="module")
def mailroom(tmp_path_factory):
    """One IMAP server for the module; each test has Message-IDs of its own."""
    if DOVECOT is None:
        pytest.skip("dovecot is missing: install the package dovecot-imapd")
    folder = tmp_path_factory.mktemp("mailroom")
    with imap(folder) as port:
        yield folder, port


@pytest.fixture
def kept(mailroom, postbox, server, monkeypatch):
    """A server that files what it takes where IMAP finds it. Returns both ports."""
    monkeypatch.setenv("DOUBTLESS_SECRET_MAIL", "secret")
    postbox.folder, postbox.keeps_copies = mailroom[0], True
    return server, mailroom[1]


def contract(
    smtp_port, imap_port=None, *, timeout="3s", horizon="300ms", tls="none", refused="stop", more=""
):
    said = {"timeout": timeout, "horizon": horizon, "tls": tls, "refused": refused, "more": more}
    text = CONTRACT.format(smtp=smtp_port, **said)
    return text + (SENT.format(imap=imap_port) if imap_port else "")


def opened(folder, *ports, **options):
    file = folder / "contracts.toml"
    file.write_text(contract(*ports, **options), encoding="utf-8")
    return Doubtless(f"sqlite:///{folder}/d.db", contracts=file)


async def send(app, operation_id="one", **said):
    return await app.call("send_mail", {**ARGUMENTS, **said}, operation_id=operation_id)


def seen(outcome) -> str:
    assert outcome.observation is not None, outcome
    return str(outcome.observation["class"])


def parsed(content: bytes):
    return email.message_from_bytes(content, policy=default)


@pytest.mark.proves("MAIL-1")
async def test_a_message_is_handed_over_once_whole_and_a_repeat_sends_nothing(
    tmp_path, server, postbox
):
    async with opened(tmp_path, server) as app:
        outcome = await send(app, html="<p>It is on its way.</p>")
        again = await send(app, html="<p>It is on its way.</p>")
    assert (outcome.status, again.already_done) == ("succeeded", True)
    (content,) = postbox.taken
    message = parsed(content)
    assert message["Message-ID"] == outcome.result["message_id"] == f"<{outcome.ref}@example.com>"
    assert message.get_body(("plain",)).get_content().replace("\r\n", "\n") == TEXT
    assert "<p>It is" in message.get_body(("html",)).get_content()
    assert outcome.result["accepted"] == ["customer@example.com"]


@pytest.mark.proves("MAIL-2")
@pytest.mark.parametrize("at", ["ehlo", "mail", "rcpt", "DATA", "content", "dot"])
async def test_a_link_that_breaks_before_the_dot_has_handed_nothing_over(
    tmp_path, server, postbox, at
):
    cut = Cut(server, at if at in ("content", "dot", "DATA") else at.upper())
    cut.at = {"ehlo": "EHLO", "mail": "MAIL", "rcpt": "RCPT"}.get(at, at)
    async with cut.serving() as port, opened(tmp_path, port) as app:
        outcome = await send(app)
    assert cut.cuts == 1
    lost = at == "content" and outcome.attempts == 1  # unnoticed until the dot was on its way
    if at == "dot" or lost:
        assert outcome.outcome in ("unknown", "pending")
        assert postbox.taken == []
    else:
        assert (outcome.status, outcome.attempts) == ("succeeded", 2)
        assert len(postbox.taken) == 1


@pytest.mark.proves("MAIL-3")
@pytest.mark.parametrize("how", ["server", "link"])
async def test_a_reply_that_is_lost_is_unknown_and_settled_by_the_folder_of_sent_messages(
    tmp_path, kept, postbox, how
):
    cut = Cut(kept[0], "reply", times=1 if how == "link" else 0)
    postbox.cuts = how == "server"
    async with cut.serving() as port, opened(tmp_path, port, kept[1]) as app:
        outcome = await send(app)
        assert outcome.status == "unknown_reconciliation_required"
        assert "Message-ID" in outcome.reconcile["request"]
        outcome = await app.wait("one", timeout=ANSWER_S)
    assert outcome.status == "succeeded", outcome
    assert (len(postbox.taken), outcome.attempts) == (1, 1)


@pytest.mark.proves("MAIL-3")
async def test_a_dot_that_never_arrived_is_safe_to_retry_once_the_folder_says_so(
    tmp_path, kept, postbox
):
    cut = Cut(kept[0], "dot")
    async with cut.serving() as port, opened(tmp_path, port, kept[1]) as app:
        assert (await send(app)).outcome == "unknown"
        outcome = await app.wait("one", timeout=ANSWER_S)
        assert (outcome.status, outcome.retry_allowed) == ("failed_safe_to_retry", True)
        assert (await send(app)).status == "succeeded"
    assert len(postbox.taken) == 1


@pytest.mark.proves("MAIL-3")
async def test_without_a_folder_to_look_in_a_lost_reply_goes_to_a_person(tmp_path, server, postbox):
    postbox.cuts = True
    async with opened(tmp_path, server) as app:
        await send(app)
        await eventually(lambda: app.outcome("one"), "manual_review")
    assert len(postbox.taken) == 1


@pytest.mark.proves("MAIL-4")
@pytest.mark.parametrize(
    ("answer", "class_"), [("550 no such mailbox", "rejected"), ("450 later", "not_processed")]
)
async def test_a_recipient_who_is_refused_stops_the_message_for_all(
    tmp_path, server, postbox, answer, class_
):
    postbox.refuses["b@example.com"] = answer
    async with opened(tmp_path, server) as app:
        outcome = await send(app, to=["a@example.com", "b@example.com"])
    assert seen(outcome) == class_
    assert "b@example.com" in outcome.transport_observation
    assert postbox.taken == []


@pytest.mark.proves("MAIL-4")
async def test_where_the_contract_says_so_the_others_get_it_and_who_did_not_is_told(
    tmp_path, server, postbox
):
    postbox.refuses["b@example.com"] = "550 no such mailbox"
    async with opened(tmp_path, server, refused="send_to_others") as app:
        outcome = await send(app, to=["a@example.com", "b@example.com"])
    assert outcome.status == "succeeded"
    assert outcome.result["accepted"] == ["a@example.com"]
    assert outcome.result["refused"] == {"b@example.com": "550 no such mailbox"}


@pytest.mark.proves("MAIL-4")
@pytest.mark.parametrize(
    ("answer", "class_"), [("554 spam", "rejected"), ("451 try later", "not_processed")]
)
async def test_a_no_after_the_dot_is_believed(tmp_path, server, postbox, answer, class_):
    postbox.after_dot = answer
    async with opened(tmp_path, server) as app:
        outcome = await send(app)
    assert seen(outcome) == class_


@pytest.mark.proves("MAIL-5")
async def test_an_operator_who_sends_it_once_more_has_it_marked(tmp_path, server, postbox):
    postbox.cuts = True
    async with opened(tmp_path, server) as app:
        first = await send(app)
        await eventually(lambda: app.outcome("one"), "manual_review")
        postbox.cuts = False
        told = await app.resolve("one", "unsure", note="nobody can say", operator="ops")
        again = await app.resolve(
            "one", "again", note="send it", operator="ops", mark_duplicate=True
        )
        assert told.state == "manual_review"
        assert (await app.wait(again.operation_id, timeout=ANSWER_S)).status == "succeeded"
    once, twice = (parsed(content) for content in postbox.taken)
    assert twice["Subject"] == "[possible duplicate] Your refund"
    assert twice["X-Possible-Duplicate-Of"] == once["Message-ID"] == f"<{first.ref}@example.com>"
    assert twice["Message-ID"] != once["Message-ID"]


@pytest.mark.proves("MAIL-6")
async def test_the_very_same_bytes_are_sent_in_every_attempt(tmp_path, kept, postbox):
    postbox.after_dot = "451 try later"
    sizes = []

    async def noted(server, session, envelope):
        sizes.append(envelope.content)
        if len(sizes) == 2:
            postbox.after_dot = "250 OK"
        return postbox.after_dot

    postbox.handle_DATA = noted
    async with opened(tmp_path, *kept) as app:
        outcome = await send(app, html="<p>x</p>")
        await app.wait("one", timeout=ANSWER_S)
    assert len(set(sizes)) == 1, outcome
    assert len(sizes) == 2


@pytest.mark.proves("MAIL-7")
@pytest.mark.parametrize(
    "said",
    [
        {"to": "a@example.com\r\nBcc: b@example.com"},
        {"to": "nobody"},
        {"to": []},
        {"to": ["a@example.com", ""]},
        {"subject": "x\r\nBcc: b@example.com"},
        {"to": "Customer <a@example.com>"},
        {"to": "a@example.com, b@example.com"},
    ],
)
async def test_what_would_add_a_recipient_or_a_header_is_refused(tmp_path, server, postbox, said):
    async with opened(tmp_path, server) as app:
        with pytest.raises(BadArguments):
            await send(app, **said)
    assert postbox.taken == []


@pytest.mark.proves("MAIL-7")
def test_a_block_that_can_not_be_meant_is_told_with_its_place(tmp_path):
    text = contract("x", 993).replace('lag = "0s"\n', "").replace('"message"', '"money"')
    with pytest.raises(ContractError) as caught:
        parse_contracts(text.replace("shop@example.com", "shop"), str(tmp_path / "c.toml"))
    places = {(each.table, each.key) for each in caught.value.problems}
    assert {
        ("tools.send_mail.mail", "smtp"),
        ("tools.send_mail.mail", "sent.lag"),
        ("tools.send_mail.mail", "sender"),
        ("tools.send_mail", "effect"),
    } <= places


@pytest.mark.proves("MAIL-8")
async def test_a_server_that_can_not_prove_who_it_is_gets_nothing(tmp_path, server, postbox):
    """STARTTLS is not offered, or offered by a stranger: the message stays here."""
    async with opened(tmp_path, server, tls="starttls") as app:
        outcome = await send(app)
    assert seen(outcome) == "not_sent"
    certificate, key = _certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    with smtp(postbox, tls_context=context) as port:
        async with opened(tmp_path, port, tls="starttls") as app:
            outcome = await send(app, "two")
            assert seen(outcome) == "not_sent", outcome
        trusts = f'ca = "{certificate}"'
        async with opened(tmp_path, port, tls="starttls", more=trusts) as app:
            assert (await send(app, "three")).status == "succeeded"
    assert len(postbox.taken) == 1


def _certificate(folder):
    """Make a certificate of 127.0.0.1, signed by itself."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


PROGRAM = """
import sys, anyio
from doubtless import Doubtless
from tests.actions.leases import short
short()
said = {"to": "customer@example.com", "subject": "Your refund", "text": "It is on its way."}
async def main():
    async with Doubtless(sys.argv[1], contracts=sys.argv[2]) as app:
        await app.call("send_mail", said, operation_id="one")
anyio.run(main)
"""


@contextmanager
def agent(folder):
    """An application in a process of its own, that sends."""
    file = folder / "contracts.toml"
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, f"sqlite:///{folder}/d.db", file])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.proves("MAIL-9")
@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_a_process_that_dies_or_sleeps_after_the_dot_leaves_one_message(
    tmp_path, kept, postbox, how, monkeypatch
):
    short(monkeypatch.setattr)
    opened(tmp_path, *kept)
    arrived: list[bytes] = []
    go = threading.Event()  # the server lives in a thread of its own

    async def held(server, session, envelope):
        arrived.append(envelope.content)
        postbox.file(envelope.content)
        await anyio.to_thread.run_sync(lambda: go.wait(ANSWER_S))
        return "250 OK"

    postbox.handle_DATA = held
    with agent(tmp_path) as process:
        await anyio.to_thread.run_sync(lambda: until(lambda: bool(arrived)))
        if how == "killed":
            process.kill()
        else:
            await anyio.to_thread.run_sync(lambda: stop(process.pid))
        async with opened(tmp_path, *kept) as app:
            await eventually(lambda: app.outcome("one"), "succeeded")
            go.set()
            process.send_signal(signal.SIGCONT)
            await anyio.to_thread.run_sync(lambda: process.wait(ANSWER_S))
            assert (await app.outcome("one")).status == "succeeded"
            assert (await send(app, text="It is on its way.")).already_done
    assert len(arrived) == 1


@pytest.mark.proves("MAIL-9")
async def test_a_process_that_is_killed_before_the_dot_leads_to_one_message(
    tmp_path, kept, postbox, monkeypatch
):
    short(monkeypatch.setattr)
    opened(tmp_path, *kept)
    asked, go = threading.Event(), threading.Event()
    take = postbox.handle_RCPT

    async def held(*arguments):
        asked.set()
        await anyio.to_thread.run_sync(lambda: go.wait(ANSWER_S))
        return await take(*arguments)

    postbox.handle_RCPT = held
    with agent(tmp_path) as process:
        await anyio.to_thread.run_sync(lambda: until(asked.is_set))
        process.kill()
        go.set()
    async with opened(tmp_path, *kept) as app:
        # It may be proven unsent and be sent then, or be found absent and be told so.
        outcome = await app.wait("one", timeout=ANSWER_S)
        assert outcome.status in ("succeeded", "failed_safe_to_retry"), outcome
        again = await send(app, text="It is on its way.")
        assert (await app.wait("one", timeout=ANSWER_S)).status == "succeeded", again
    assert len(postbox.taken) == 1


@pytest.mark.proves("MAIL-10")
async def test_two_processes_with_one_id_send_once(tmp_path, server, postbox):
    async with opened(tmp_path, server) as app, opened(tmp_path, server) as other:
        async with anyio.create_task_group() as tasks:
            for each in (app, other, app, other):
                tasks.start_soon(send, each)
        assert (await app.wait("one", timeout=ANSWER_S)).status == "succeeded"
    assert len(postbox.taken) == 1


@pytest.mark.proves("MAIL-10")
@pytest.mark.parametrize("person", [None, "done"])
async def test_a_reply_that_comes_after_our_time_out_is_evidence(tmp_path, server, postbox, person):
    """It settles what nobody settled; what a person settled stays as it is, and nothing is sent."""
    go = threading.Event()
    take = postbox.handle_DATA

    async def slow(server, session, envelope):
        await anyio.to_thread.run_sync(lambda: go.wait(ANSWER_S))
        return await take(server, session, envelope)

    postbox.handle_DATA = slow
    async with opened(tmp_path, server, timeout="1s", horizon="60s") as app:
        assert (await send(app)).outcome == "unknown"
        if person is not None:
            await eventually(lambda: app.outcome("one"), "manual_review")
            await app.resolve("one", person, note="the customer has it", operator="ops")
        go.set()
        await eventually(lambda: app.outcome("one"), "succeeded")
        await anyio.to_thread.run_sync(lambda: until(lambda: len(postbox.taken) == 1))
    async with opened(tmp_path, server) as other:
        assert (await send(other)).already_done
    assert len(postbox.taken) == 1
