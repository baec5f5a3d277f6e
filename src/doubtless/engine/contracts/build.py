"""From what a table says to a whole contract: every default is filled in, and written down."""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from doubtless.core.answers import NOT_PROCESSED, REJECTED
from doubtless.core.contract import (
    ApprovalRules,
    ConditionRules,
    Contract,
    EventRules,
    KeyFormat,
    KeyRules,
    Kind,
    LookupRules,
    OnAbsent,
    ReadRules,
    RequestRules,
    ResponseRules,
    RetryRules,
    SourceRules,
    Stores,
)
from doubtless.core.effects import NO_EFFECT, RULES, Resend
from doubtless.core.model import Effect, Json
from doubtless.engine.contracts.block import Place
from doubtless.engine.contracts.defaults import Default, Defaults
from doubtless.engine.contracts.file import (
    NO_CORRELATION,
    IdempotencyTable,
    LookupTable,
    RequestTable,
    ToolTable,
)
from doubtless.engine.contracts.problems import numbered
from doubtless.engine.contracts.values import duration_text
from doubtless.engine.templates import names_in

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
TYING_NAMES: Final = frozenset(
    f"operation.{name}"
    for name in ("id", "ref", "idempotency_key", "provider_operation_id", "status_url")
)
"""Names that belong to one operation alone, so that a match on them is its own."""
NO_ARGUMENTS: Final[dict[str, Json]] = {"type": "object", "additionalProperties": False}


def build(
    name: str,
    said: ToolTable,
    source: SourceRules,
    *,
    kind: Kind,
    tolerance_ms: int,
    place: Place | None = None,
) -> tuple[Contract, tuple[Default, ...]]:
    """Build the contract of one tool, with the defaults that came to be in force.

    Nothing is judged here: an impossible table gives an impossible contract.
    """
    fill, rule = Defaults(), RULES[said.effect]
    block = next(iter(said.blocks()), None)
    started = _started(name, said, source, kind, fill)
    own = block.asked(said.in_flight_horizon) if block is not None else None
    if own is not None:
        fill.found += _of_its_own(own)
    horizon_ms = started.in_flight_horizon_ms
    built = replace(
        started,
        request=_request(said.request) if said.request else None,
        action=block.action_of(place, said.effect) if block and place else None,
        response=_response(said, fill) if kind is Kind.HTTP else ResponseRules(),
        key=_key(said, fill) if said.idempotency else None,
        condition=_condition(said),
        lookups=(
            *([own] if own is not None else []),
            *_lookups(said, fill, horizon_ms, rule.confirmations),
        ),
        approval=_approval(said, fill, started.valid_for_ms),
        read=_read(said, fill),
        retry=_retry(said, fill),
    )
    return _with_deadlines(built, said, fill, tolerance_ms), tuple(fill.found)


def _started(
    name: str, said: ToolTable, source: SourceRules, kind: Kind, fill: Defaults
) -> Contract:
    """Build what the tool's own keys say, its tables apart."""
    block = next(iter(said.blocks()), None)
    acts = said.effect not in NO_EFFECT
    timeout_ms = fill.time("timeout", said.timeout, 30_000)
    asks_by_itself = block is not None and block.asked(None) is not None and not said.lookup
    horizon_ms = _horizon_ms(said, fill if acts and not asks_by_itself else Defaults())
    business_key = list(said.business_key)
    if block is not None and not business_key and (found := block.business_key()):
        business_key = fill.fill("business_key", None, found)
    valid_for_ms = fill.time("valid_for", said.valid_for, HOUR_MS)
    correlation = said.correlation.header if said.correlation else None
    correlation = fill.fill("correlation.header", correlation, "X-Correlation-ID")
    return Contract(
        tool=name,
        effect=said.effect,
        source=source,
        kind=kind,
        description=said.description,
        arguments=said.arguments if said.arguments is not None else NO_ARGUMENTS,
        business_key=tuple(business_key),
        volatile=tuple(said.volatile),
        on_absent=_on_absent(said, fill if acts else Defaults()),
        review=fill.fill("review", said.review, "people") == "people",
        duplicates_acceptable=said.duplicates == "acceptable",
        latest_wins=said.ordering == "latest_wins",
        record_sending=bool(said.record_sending),
        correlation_header=None if correlation == NO_CORRELATION else correlation,
        timeout_ms=timeout_ms,
        in_flight_horizon_ms=horizon_ms,
        valid_for_ms=valid_for_ms,
        queued_valid_for_ms=said.valid_for or 24 * HOUR_MS,
        dedupe_window_ms=said.dedupe_window or 0,
    )


def _of_its_own(look: LookupRules) -> list[Default]:
    """Return what is in force for the look-up that a block brings along."""
    times = {
        "interval": look.interval_ms,
        "lag": look.lag_ms,
        "in_flight_horizon": look.in_flight_horizon_ms,
        "timeout": look.timeout_ms,
    }
    told = [
        Default(key=f"{look.name}.{key}", value=f'"{duration_text(ms)}"')
        for key, ms in times.items()
    ]
    return [Default(key=f"{look.name}.confirmations", value=str(look.confirmations)), *told]


def _with_deadlines(
    contract: Contract, said: ToolTable, fill: Defaults, tolerance_ms: int
) -> Contract:
    """Add the deadlines that follow from the rest."""
    acts = contract.effect not in NO_EFFECT
    deadlines = fill if acts else Defaults()
    usual_ms = max(15 * MINUTE_MS, 3 * least_recovery_ms(contract))
    recovery_ms = deadlines.time("recovery_deadline", said.recovery_deadline, usual_ms)
    within_ms = said.response.completes_within or said.completes_within
    place = "response.completes_within" if contract.kind is Kind.HTTP else "completes_within"
    completes_ms = deadlines.time(place, within_ms, 24 * HOUR_MS)
    return replace(
        contract,
        recovery_deadline_ms=recovery_ms,
        completes_within_ms=completes_ms,
        events=_events(said, fill, recovery_ms, tolerance_ms),
    )


def least_recovery_ms(contract: Contract) -> int:
    """How long it takes at the least to prove an absence; 0 where none can be proven.

    Several look-ups are asked one after the other, and the slowest pace counts.
    """
    proving = contract.proving_lookups
    if not proving:
        return 0
    pause_ms = max(look.interval_ms for look in proving) + sum(look.timeout_ms for look in proving)
    confirmations = max(look.confirmations for look in proving)
    waits_ms = contract.timeout_ms + contract.horizon_ms + contract.lag_ms
    return waits_ms + confirmations * pause_ms


def _horizon_ms(said: ToolTable, fill: Defaults) -> int:
    queued = said.response.accepted is not None or said.response.status_url is not None
    usual_ms = (15 if queued else 2) * MINUTE_MS
    said_ms = said.in_flight_horizon
    if said.lookup and all(look.in_flight_horizon is not None for look in said.lookup):
        # The tool's own is not in force then: nothing was filled in.
        return usual_ms if said_ms is None else said_ms
    return fill.time("in_flight_horizon", said_ms, usual_ms)


def _on_absent(said: ToolTable, fill: Defaults) -> OnAbsent:
    usual = RULES[said.effect].on_absent
    if said.condition and said.condition.version_reuse:
        usual = OnAbsent.REPORT  # a version that may repeat lets a repeat through
    return fill.fill("on_absent", said.on_absent, usual)


def _request(said: RequestTable) -> RequestRules:
    return RequestRules(
        method=said.method.upper(),
        path=said.path,
        query=said.query,
        headers=said.headers,
        json=said.json_body,
        form=said.form,
    )


def _response(said: ToolTable, fill: Defaults) -> ResponseRules:
    table, key = said.response, said.idempotency
    unproven, not_processed = set(table.unproven or ()), set(table.not_processed or ())
    of_key = {*key.in_progress, *key.mismatch} if key else set()
    taken = unproven | of_key | set(table.rejected or ())
    usual = NOT_PROCESSED - taken
    kept = fill.fill("response.not_processed", table.not_processed, sorted(usual))
    refusals = REJECTED - unproven - of_key - not_processed
    text = _refusals_text(refusals)
    refused = fill.fill("response.rejected", table.rejected, sorted(refusals), text)
    return ResponseRules(
        provider_operation_id=table.provider_operation_id,
        result=fill.fill("response.result", table.result, "@"),
        accepted=table.accepted,
        status_url=table.status_url,
        failed=table.failed,
        rejected=tuple(sorted(set(refused))),
        not_processed=tuple(sorted(set(kept))),
        unproven=tuple(sorted(unproven)),
    )


def _refusals_text(statuses: Collection[int]) -> str:
    """Say a set of refusals shortly: nearly all of 4xx are in it."""
    absent = [str(status) for status in range(400, 500) if status not in statuses]
    others = [str(status) for status in sorted(statuses) if status >= 500]
    return f"4xx but {', '.join(absent)}; {', '.join(others)}"


def _key(said: ToolTable, fill: Defaults) -> KeyRules:
    table = said.idempotency or IdempotencyTable()
    usual = Stores.ALL if said.effect is Effect.IDEMPOTENT_CALL else Stores.SUCCESS_ONLY
    place, name = next(
        (
            (place, name)
            for place in ("header", "field", "query")
            if (name := getattr(table, place))
        ),
        ("code", ""),
    )
    ttl_ms = table.ttl
    return KeyRules(
        place=place,
        name=name,
        format=fill.fill("idempotency.format", table.format, KeyFormat.UUID),
        ttl_ms=ttl_ms,
        # Rounded up: an error of a millisecond falls on the safe side.
        margin_ms=max(MINUTE_MS, -(-ttl_ms // 20)) if ttl_ms else MINUTE_MS,
        stores=fill.fill("idempotency.stores", table.stores, usual),
        in_progress=tuple(table.in_progress),
        mismatch=tuple(table.mismatch),
        replayed=table.replayed,
    )


def _condition(said: ToolTable) -> ConditionRules | None:
    table = said.condition
    if table is None:
        return None
    return ConditionRules(
        header=table.header,
        value=table.value,
        id=table.id,
        version_reuse=table.version_reuse is not False,
    )


def _lookups(
    said: ToolTable, fill: Defaults, horizon_ms: int, confirmations: int
) -> tuple[LookupRules, ...]:
    many = len(said.lookup) > 1
    return tuple(
        _lookup(
            look,
            fill,
            numbered("lookup", index) if many else "lookup",
            horizon_ms=horizon_ms,
            confirmations=confirmations,
        )
        for index, look in enumerate(said.lookup)
    )


def _lookup(
    said: LookupTable, fill: Defaults, place: str, *, horizon_ms: int, confirmations: int
) -> LookupRules:
    request = None if said.python else _lookup_request(said)
    interval_ms = fill.time(f"{place}.interval", said.interval, 5_000)
    own_ms = said.in_flight_horizon
    # Only HTTP has an answer that we must read ourselves.
    reads = Defaults() if said.python else fill
    return LookupRules(
        name=said.name or place,
        request=request,
        python=said.python,
        items=reads.fill(f"{place}.items", said.items, "@"),
        where=said.where or {},
        equal=said.equal,
        boundary=fill.fill(f"{place}.boundary", said.boundary, "provider"),
        applied=said.applied,
        in_progress=said.in_progress,
        failed=said.failed,
        not_found=tuple(reads.fill(f"{place}.not_found", said.not_found, [404])),
        complete=said.complete,
        next_page=said.next_page,
        provider_operation_id=said.provider_operation_id,
        result=said.result or "@",
        authoritative=fill.fill(f"{place}.authoritative", said.authoritative, False),
        attributes=request is None
        or bool(TYING_NAMES & names_in([said.where or {}, request.path])),
        lag_ms=said.lag or 0,
        confirmations=fill.fill(f"{place}.confirmations", said.confirmations, confirmations),
        in_flight_horizon_ms=horizon_ms if own_ms is None else own_ms,
        interval_ms=interval_ms,
        interval_max_ms=fill.time(
            f"{place}.interval_max", said.interval_max, max(MINUTE_MS, interval_ms)
        ),
        timeout_ms=fill.time(f"{place}.timeout", said.timeout, 10_000),
    )


def _lookup_request(said: LookupTable) -> RequestRules:
    return RequestRules(
        method=(said.method or "GET").upper(),
        path=said.path or "",
        query=said.query,
        headers=said.headers,
        json=said.json_body,
        form=said.form,
    )


def _events(
    said: ToolTable, fill: Defaults, recovery_ms: int, tolerance_ms: int
) -> EventRules | None:
    table = said.events
    if table is None:
        return None
    return EventRules(
        types=tuple(table.types),
        match=table.match,
        object=tuple(table.object),
        expect_ms=fill.time("events.expect", table.expect, recovery_ms // 2),
        applied=table.applied,
        failed=table.failed,
        authoritative=fill.fill("events.authoritative", table.authoritative, True),
        tolerance_ms=tolerance_ms,
    )


def _approval(said: ToolTable, fill: Defaults, valid_for_ms: int) -> ApprovalRules | None:
    table = said.approval
    if table is None:
        return None
    return ApprovalRules(
        when=table.when,
        expires_ms=fill.time("approval.expires", table.expires, min(HOUR_MS, valid_for_ms)),
        people=fill.fill("approval.people", table.people, 1),
    )


def _read(said: ToolTable, fill: Defaults) -> ReadRules | None:
    table = said.read
    if table is None:
        return None
    return ReadRules(
        decides=tuple(table.decides),
        consistency=fill.fill("read.consistency", table.consistency, "none"),
        value=table.value,
        settles_within_ms=table.settles_within,
        complete=table.complete,
    )


def _retry(said: ToolTable, fill: Defaults) -> RetryRules:
    rule, table = RULES[said.effect], said.retry
    backoff_ms = fill.time("retry.backoff", table.backoff, 1_000)
    resends = 0 if rule.resend is Resend.NEVER else rule.resends
    return RetryRules(
        attempts=fill.fill("retry.attempts", table.attempts, 3),
        backoff_ms=backoff_ms,
        backoff_max_ms=max(30_000, backoff_ms),
        resend=fill.fill("retry.resend", table.resend, resends),
    )
