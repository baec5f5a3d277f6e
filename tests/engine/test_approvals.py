"""Approvals on a real ledger: who gives them, what goes on because of them, what is recorded."""

from operator import methodcaller
from typing import Any

import pytest
from tests.engine.functions import WRITE, application, comes_true, ends, states

from doubtless import Call, Doubtless
from doubtless.core.model import Grant
from doubtless.engine import approving
from doubtless.errors import (
    ApprovalNotFound,
    DecisionRefused,
    GrantRefused,
    OperationNotFound,
    PayloadNotShown,
)
from doubtless.ledger import operations
from doubtless.ledger.store import Transaction, open_ledger

PAY: dict[str, Any] = {**WRITE, "approval": {"expires": "1h"}}
ABOVE: dict[str, Any] = {**WRITE, "approval": {"when": "args.amount > `100`"}}
FOUR_EYES: dict[str, Any] = {**WRITE, "approval": {"people": 2}}


def paying(app: Doubtless, **keys: Any) -> list[int]:
    """Declare `pay`, and return what it paid."""
    paid: list[int] = []

    @app.tool(**(keys or PAY))
    async def pay(call: Call, amount: int) -> int:
        del call
        paid.append(amount)
        return amount

    return paid


async def asked(app: Doubtless, amount: int = 500, operation_id: str | None = "o1", **said: Any):
    return await app.call("pay", {"amount": amount}, operation_id=operation_id, **said)


async def approves(app: Doubtless, operator: str = "ann", operation_id: str = "o1", **said: Any):
    payload_hash = said.pop("payload_hash", (await app.outcome(operation_id)).payload_hash)
    return await app.approve(
        operation_id, operator=operator, note="seen it", payload_hash=payload_hash, **said
    )


async def entries(app: Doubtless, kind: str, operation_id: str = "o1") -> list[dict[str, Any]]:
    return [each for each in await app.timeline(operation_id) if each["kind"] == kind]


# --- one operation -------------------------------------------------------------------------------


@pytest.mark.proves("APPROVAL-5", "APPROVAL-8")
async def test_what_needs_approval_is_carried_out_once_it_is_approved(tmp_path):
    app = application(tmp_path)
    paid = paying(app)
    async with app:
        told = await asked(app)
        assert (told.status, told.state, told.acts["who"]) == (
            "pending",
            "awaiting_approval",
            "operator",
        )
        assert paid == []
        await approves(app)
        assert (await app.wait("o1", timeout=5)).status == "succeeded"
        assert paid == [500]
        (given,) = await entries(app, "approval")
        assert (given["principal"], given["role"], given["note"]) == ("ann", "operator", "seen it")
        assert given["approval"]["by"] == "ann"
        assert "approval" not in str(await entries(app, "evidence"))


@pytest.mark.proves("APPROVAL-5")
async def test_only_what_the_contract_says_waits(tmp_path):
    app = application(tmp_path)
    paid = paying(app, **ABOVE)
    async with app:
        assert (await asked(app, 100)).status == "succeeded"
        assert (await asked(app, 101, "o2")).state == "awaiting_approval"
        assert paid == [100]


@pytest.mark.proves("APPROVAL-1")
async def test_an_approval_of_another_payload_than_the_stored_one_is_refused(tmp_path):
    app = application(tmp_path)
    paid = paying(app)
    async with app:
        told = await asked(app)
        with pytest.raises(PayloadNotShown) as refused:
            await approves(app, payload_hash="sha256:other")
        assert refused.value.stored == told.payload_hash
        with pytest.raises(PayloadNotShown):
            await app.deny("o1", operator="ann", note="", payload_hash="sha256:other")
        assert (await app.outcome("o1")).version == told.version
        assert paid == []


@pytest.mark.proves("APPROVAL-1", "APPROVAL-4")
async def test_what_was_changed_in_the_file_after_its_approval_is_not_sent(tmp_path):
    app = application(tmp_path, worker=False)
    paying(app)
    async with app:
        await asked(app)
        await approves(app)
    change_payload(tmp_path, b'{"amount":9999}')
    again = application(tmp_path)
    paid = paying(again)
    async with again:

        async def stopped() -> bool:
            return "what is stored is not what was approved" in str(await again.timeline("o1"))

        await comes_true(stopped)
    assert paid == []


def change_payload(folder, content: bytes) -> None:
    """Do as somebody does who can write the file, and takes its guard away first."""
    with open_ledger(f"sqlite:///{folder / 'ledger.db'}", inline=True) as ledger:

        def unit(tx) -> None:
            tx.run("drop trigger body_fixed")
            sql = "update body set content = :content where operation_id = 'o1' and kind = :kind"
            assert tx.run(sql, content=content, kind="payload") == 1

        ledger.write(unit)


@pytest.mark.proves("APPROVAL-2")
async def test_the_requester_does_not_approve(tmp_path):
    app = application(tmp_path, principal="agent-7")
    paid = paying(app)
    async with app:
        await asked(app)
        for name in ("agent-7", "Agent-7 "):
            with pytest.raises(DecisionRefused, match="somebody else has to decide"):
                await approves(app, name)
        assert paid == []


@pytest.mark.proves("APPROVAL-2")
async def test_four_eyes_are_two_different_people(tmp_path):
    app = application(tmp_path)
    paid = paying(app, **FOUR_EYES)
    async with app:
        await asked(app)
        assert (await approves(app, "ann")).state == "awaiting_approval"
        with pytest.raises(DecisionRefused, match="2 different people"):
            await approves(app, "ANN")
        assert paid == []
        await approves(app, "bob")
        assert (await app.wait("o1", timeout=5)).status == "succeeded"
        assert [each["principal"] for each in await entries(app, "approval")] == ["ann", "bob"]


@pytest.mark.proves("APPROVAL-7")
async def test_a_denial_rejects_it_and_nothing_is_done(tmp_path):
    app = application(tmp_path)
    paid = paying(app)
    async with app:
        told = await asked(app)
        denied = await app.deny("o1", operator="ann", note="no", payload_hash=told.payload_hash)
        assert (denied.status, denied.error) == ("rejected_by_policy", {"code": "denied"})
        last = (await entries(app, "transition"))[-1]
        assert (last["principal"], last["inputs"]) == ("ann", {"decision": "deny", "note": "no"})
        with pytest.raises(DecisionRefused, match="waits for no approval"):
            await approves(app, "bob")
        assert (await asked(app)).status == "rejected_by_policy"
        assert paid == []


@pytest.mark.proves("APPROVAL-7")
async def test_what_was_approved_can_be_denied_until_it_is_tried(tmp_path):
    app = application(tmp_path, worker=False)
    paying(app)
    async with app:
        told = await asked(app)
        assert (await approves(app)).state == "prepared"
        denied = await app.deny("o1", operator="bob", note="", payload_hash=told.payload_hash)
        assert denied.error == {"code": "denied"}


@pytest.mark.proves("APPROVAL-7")
async def test_nothing_but_what_waits_is_approved_or_denied(tmp_path):
    app = application(tmp_path)
    paying(app, **ABOVE)
    async with app:
        done = await asked(app, 1)
        with pytest.raises(DecisionRefused):
            await approves(app)
        with pytest.raises(DecisionRefused):
            await app.deny("o1", operator="ann", note="", payload_hash=done.payload_hash)
        with pytest.raises(OperationNotFound):
            await app.approve("none", operator="ann", note="", payload_hash=None)


@pytest.mark.proves("APPROVAL-7")
async def test_an_approval_that_nobody_gives_expires(tmp_path):
    app = application(tmp_path)
    paid = paying(app, **{**PAY, "approval": {"expires": "300ms"}})
    async with app:
        await asked(app)
        last = await ends(app, "rejected")
        assert last.error == {"code": "approval_expired"}
        assert paid == []


@pytest.mark.proves("APPROVAL-4", "APPROVAL-5")
async def test_an_approval_that_runs_out_before_the_send_has_to_be_given_again(tmp_path):
    first = application(tmp_path, worker=False)
    paying(first, **{**PAY, "approval": {"expires": "250ms"}})
    async with first:
        await asked(first)
        await approves(first)
    app = application(tmp_path)
    paid = paying(app, **{**PAY, "approval": {"expires": "250ms"}})
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}", inline=True) as ledger:
        await comes_true(lambda: ledger.read(_is_over))
    async with app:
        last = await ends(app, "rejected")
        assert last.error == {"code": "approval_expired"}
        assert (await states(app))[-2:] == ["awaiting_approval", "rejected"]
    assert paid == []


def _is_over(tx: Transaction) -> bool:
    """Whether the approval has run out."""
    record = operations.load(tx, "main", "o1")
    assert record is not None
    return record.approvals[0].expires_ms < tx.now_ms


@pytest.mark.proves("APPROVAL-6", "APPROVAL-8")
async def test_an_operators_retry_authorises_itself_and_is_shown_as_that(tmp_path):
    app = application(tmp_path)
    tries: list[int] = []

    @app.tool(**{**FOUR_EYES, "timeout": "300ms"})
    async def pay(call: Call, amount: int) -> int:
        tries.append(call.attempt)
        if call.attempt == 1:
            raise OSError
        return amount

    async with app:
        await asked(app)
        await approves(app, "ann")
        await approves(app, "bob")
        await ends(app, "manual_review")
        expire_approvals(tmp_path)
        told = await app.resolve("o1", "retry", operator="carl", note="looked")
        assert told.status == "succeeded"
        assert tries == [1, 2]
        last = (await entries(app, "approval"))[-1]
        assert (last["principal"], last["approval"]["retry"], last["note"]) == (
            "carl",
            True,
            "looked",
        )


def expire_approvals(folder) -> None:
    """Take away what people said, as if it were long ago."""
    with open_ledger(f"sqlite:///{folder / 'ledger.db'}") as ledger:
        ledger.write(lambda tx: tx.run("delete from approval"))


# --- a whole session -----------------------------------------------------------------------------


async def grants(app: Doubtless, session_id: str = "s1", **said: Any) -> Grant:
    options = {"tool": "pay", "principal": "local", "expires_s": 3600.0, "operator": "ann"}
    return await app.grant(session_id, **{**options, "note": "for today", **said})


@pytest.mark.proves("APPROVAL-3", "APPROVAL-8")
async def test_calls_under_a_session_wide_approval_do_not_wait(tmp_path):
    app = application(tmp_path)
    paid = paying(app)
    async with app:
        grant = await grants(app)
        assert (await asked(app, session_id="s1")).status == "succeeded"
        assert (await asked(app, 7, "o2", session_id="s1")).status == "succeeded"
        assert (await asked(app, 8, "o3", session_id="s2")).state == "awaiting_approval"
        assert (await asked(app, 9, "o4")).state == "awaiting_approval"
        assert paid == [500, 7]
        (entry,) = await entries(app, "approval")
        assert entry["grant"]["id"] == grant.id
        assert (entry["grant"]["by"], entry["note"]) == ("ann", "for today")
        assert await app.grants("s1") == [grant]
        assert "neither payload nor target" in str(approving.grant_data(grant)["binds"])


@pytest.mark.proves("APPROVAL-3")
async def test_it_frees_what_waits_already(tmp_path):
    app = application(tmp_path)
    paid = paying(app)
    async with app:
        await asked(app, session_id="s1")
        await grants(app)
        assert (await app.wait("o1", timeout=5)).status == "succeeded"
        assert paid == [500]


@pytest.mark.proves("APPROVAL-3")
async def test_a_revoked_one_covers_nothing_more(tmp_path):
    app = application(tmp_path)
    paid = paying(app)
    async with app:
        grant = await grants(app)
        await asked(app, session_id="s1")
        revoked = await app.revoke_grant("s1", grant.id, operator="bob")
        assert (revoked.revoked_by, revoked.revoked_ms is not None) == ("bob", True)
        assert (await asked(app, 7, "o2", session_id="s1")).state == "awaiting_approval"
        again = await app.revoke_grant("s1", grant.id, operator="carl")
        assert again == revoked
        assert await app.grants("s1") == [revoked]
        with pytest.raises(ApprovalNotFound):
            await app.revoke_grant("s2", grant.id, operator="bob")
        with pytest.raises(ApprovalNotFound):
            await app.revoke_grant("s1", "none", operator="bob")
        assert paid == [500]


@pytest.mark.proves("APPROVAL-3", "APPROVAL-4")
async def test_what_waits_in_the_queue_when_it_is_revoked_is_not_sent(tmp_path):
    app = application(tmp_path, worker=False)
    paying(app)
    async with app:
        grant = await grants(app)
        assert (await app.prepare("pay", {"amount": 1}, session_id="s1")).state == "prepared"
        await app.revoke_grant("s1", grant.id, operator="bob")
    again = application(tmp_path)
    paid = paying(again)
    async with again:
        (waiting,) = (await again.session("s1")).unresolved
        await ends(again, "awaiting_approval", waiting.operation_id)
    assert paid == []


@pytest.mark.proves("APPROVAL-3")
async def test_it_covers_no_other_principal_and_no_changed_contract(tmp_path):
    app = application(tmp_path)
    paying(app)
    async with app:
        await grants(app)
        await grants(app, principal="other", operator="local")
    other = application(tmp_path, principal="third")
    paying(other)
    async with other:
        assert (await asked(other, session_id="s1")).state == "awaiting_approval"
    changed = application(tmp_path)
    paying(changed, **{**PAY, "timeout": "3s"})
    async with changed:
        assert (await asked(changed, 1, "o2", session_id="s1")).state == "awaiting_approval"


@pytest.mark.proves("APPROVAL-2", "APPROVAL-3")
@pytest.mark.parametrize(
    ("keys", "said", "why"),
    [
        (FOUR_EYES, {}, "2 people"),
        (WRITE, {}, "needs no approval"),
        (PAY, {"operator": "LOCAL"}, "calls of their own"),
        (PAY, {"expires_s": 0.0}, "30 days"),
        (PAY, {"expires_s": 31 * 86_400.0}, "30 days"),
        (PAY, {"expires_s": float("nan")}, "30 days"),
    ],
)
async def test_a_session_wide_approval_that_can_not_be_meant_is_refused(tmp_path, keys, said, why):
    app = application(tmp_path)
    paying(app, **keys)
    async with app:
        with pytest.raises(GrantRefused, match=why):
            await grants(app, **said)
        assert await app.grants("s1") == []


@pytest.mark.proves("APPROVAL-3")
async def test_a_stored_one_can_only_be_revoked(tmp_path):
    app = application(tmp_path)
    paying(app)
    async with app:
        await grants(app)
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}", inline=True) as ledger:
        for sql in (
            "update session_approval set expires_ms = expires_ms + 1",
            "update session_approval set principal = 'other'",
            "delete from session_approval",
        ):
            with pytest.raises(Exception, match="revoked"):
                ledger.write(methodcaller("run", sql))
