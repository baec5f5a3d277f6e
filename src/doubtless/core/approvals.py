"""What a person has authorised, and until when that stands. Permission proves no result.

An approval is bound to a digest of what is executed, which is computed again whenever it is asked
for, in the gate too. One of a whole session binds the tool, the contract, the principal, the
session and its expiry, and leaves payload and target out.
"""

from collections.abc import Mapping

from doubtless.core.contract import Contract
from doubtless.core.evidence import FOREVER_MS
from doubtless.core.identity import canonical, sha256
from doubtless.core.model import Approval, Grant, Json, Now, Operation, Record


def digest_of(operation: Operation, expires_ms: int) -> str:
    """Return `sha256:…` of what an approval of this operation until `expires_ms` permits."""
    bound: Mapping[str, Json] = {
        "tool": operation.tool,
        "contract_digest": operation.contract_digest,
        "payload_hash": operation.payload_hash,
        "request_digest": operation.request_digest,
        "source": operation.source,
        "business_key": operation.business_key,
        "expires_ms": expires_ms,
    }
    return sha256(canonical(bound))


def grant_digest(grant: Grant) -> str:
    """Return `sha256:…` of what a session-wide approval permits."""
    bound: Mapping[str, Json] = {
        "session_id": grant.session_id,
        "tool": grant.tool,
        "contract_digest": grant.contract_digest,
        "principal": grant.principal,
        "expires_ms": grant.expires_ms,
    }
    return sha256(canonical(bound))


def is_same_person(one: str, other: str) -> bool:
    """Whether two names are one person's: spelling in capitals makes nobody a second one."""
    return one.strip().casefold() == other.strip().casefold()


def covers(grant: Grant, operation: Operation) -> bool:
    """Whether a session-wide approval binds this operation. Its expiry is judged apart."""
    bound = (grant.tool, grant.contract_digest, grant.principal, grant.session_id)
    return (
        grant.revoked_ms is None
        and bound
        == (operation.tool, operation.contract_digest, operation.principal, operation.session_id)
        and grant.digest == grant_digest(grant)
        and not is_same_person(grant.by, operation.principal)
    )


def people_needed(contract: Contract) -> int:
    """Return how many different people have to approve."""
    return contract.approval.people if contract.approval is not None else 1


def covering(record: Record, contract: Contract, now: Now) -> Grant | None:
    """Return the session-wide approval that an operation may be carried out under, if one stands.

    Where two people are needed, none does.
    """
    if people_needed(contract) > 1:
        return None
    standing = [
        grant
        for grant in record.grants
        if grant.expires_ms > now.ms and covers(grant, record.operation)
    ]
    return max(standing, key=lambda grant: grant.expires_ms, default=None)


def relies_on(record: Record, contract: Contract, now: Now) -> Grant | None:
    """Return the session-wide approval that an operation goes on under, if nothing else permits."""
    if not record.operation.needs_approval or now.ms < _people_until_ms(record, contract):
        return None
    return covering(record, contract, now)


def approved_until_ms(record: Record, contract: Contract, now: Now) -> int:
    """Return until when enough people's approval stands; 0 where it does not.

    `FOREVER_MS` where none is needed. Who asked for the operation never counts.
    """
    if not record.operation.needs_approval:
        return FOREVER_MS
    grant = covering(record, contract, now)
    return max(_people_until_ms(record, contract), grant.expires_ms if grant is not None else 0)


def _people_until_ms(record: Record, contract: Contract) -> int:
    until: dict[str, int] = {}
    ends_ms = [0]
    for approval in record.approvals:
        if not _binds(approval, record.operation):
            continue
        if approval.retry:
            ends_ms.append(approval.expires_ms)
        person = approval.by.strip().casefold()
        until[person] = max(until.get(person, 0), approval.expires_ms)
    needed = people_needed(contract)
    if len(until) >= needed:
        ends_ms.append(sorted(until.values(), reverse=True)[needed - 1])
    return max(ends_ms)


def _binds(approval: Approval, operation: Operation) -> bool:
    return approval.digest == digest_of(operation, approval.expires_ms) and not is_same_person(
        approval.by, operation.principal
    )


def approved(record: Record, contract: Contract, now: Now) -> bool:
    """Whether it may be carried out now, as far as people have to say so."""
    return now.ms < approved_until_ms(record, contract, now)
