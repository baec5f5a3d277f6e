"""What a search starts from: a contract of few ticks per effect, and an operation prepared."""

from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

from doubtless.core import (
    answers,
    approvals,
    decisions,
    permission,
    policy,
    progress,
    schedule,
    settling,
)
from doubtless.core.contract import (
    ConditionRules,
    Contract,
    EventRules,
    KeyRules,
    Kind,
    LookupRules,
    RetryRules,
    SourceRules,
    Stores,
)
from doubtless.core.effects import RULES, Resend
from doubtless.core.model import Effect, Json, Now, Operation, Record, State
from doubtless.core.settling import settle
from doubtless.testing.explore_canonical import REVIEW_TICKS, canonical
from doubtless.testing.explore_checks import RESTS, check
from doubtless.testing.explore_events import events
from doubtless.testing.explore_search import Model
from doubtless.testing.explore_world import START, TICK, Scene, World

TTL = 13 * TICK
HORIZON = 3 * TICK  # long enough that absences are confirmed inside it, where a rule lets them

LOOKUP = LookupRules(
    name="status",
    authoritative=True,
    lag_ms=TICK,
    confirmations=2,
    in_flight_horizon_ms=HORIZON,
    interval_ms=TICK,
    interval_max_ms=2 * TICK,
    timeout_ms=TICK,
)
EVENTS = EventRules(types=("done",), tolerance_ms=TICK)


def _no_jitter(*_: object) -> float:
    return 1.0


def _unhashed(operation: Operation, expires_ms: int) -> str:
    return f"{operation.payload_hash}, {operation.request_digest}, {expires_ms}"


def _no_inputs(*_: object) -> dict[str, Json]:
    return {}


@contextmanager
def tuned() -> Iterator[None]:
    """Set the constants of the core that contracts can't, to a few ticks, while it runs.

    The jitter becomes 1, so that every instant lies on the grid; three attempts are the most there
    can be; the inputs of a decision, which are only journalled, aren't collected; and what an
    approval is bound to isn't hashed.
    """
    values: dict[ModuleType, dict[str, Any]] = {
        schedule: {
            "jitter": _no_jitter,
            "REVIEW_PACE_MS": REVIEW_TICKS * TICK,
            "REVIEW_PACE_MAX_MS": REVIEW_TICKS * TICK,
            "POLL_MS": TICK,
            "POLL_MAX_MS": TICK,
        },
        progress: {"FOREIGN_OWNER_MS": 2 * TICK, "LEASE_EXTRA_MS": TICK},
        settling: {"explain": _no_inputs},
        approvals: {"digest_of": _unhashed},
        permission: {"ATTEMPTS_MAX": 3},
        decisions: {"ATTEMPTS_MAX": 3},
        policy: {"IDLE_DUE_MS": REVIEW_TICKS * TICK},
    }
    with ExitStack() as stack:
        for module, names in values.items():
            stack.enter_context(patch.multiple(module, **names))
        yield


def contract(effect: Effect) -> Contract:
    """Return the plainest contract of an effect, with the defaults of its row."""
    row = RULES[effect]
    keyed = row.resend in (Resend.REPLAYED, Resend.AFTER_ABSENCE_WITH_KEY)
    condition = None
    if row.resend is Resend.VERSIONED:
        condition = ConditionRules(header="If-Match", value="7", version_reuse=False)
    if row.resend is Resend.SAME_OBJECT:
        condition = ConditionRules(id="draft")
    return Contract(
        tool=f"example.{effect}",
        effect=effect,
        source=SourceRules(name="example"),
        kind=Kind.HTTP,
        on_absent=row.on_absent,
        timeout_ms=TICK,
        in_flight_horizon_ms=HORIZON,
        recovery_deadline_ms=14 * TICK,
        completes_within_ms=6 * TICK,
        valid_for_ms=20 * TICK,
        response=answers.default_rules(),
        key=KeyRules(
            place="header",
            name="Idempotency-Key",
            ttl_ms=TTL,
            margin_ms=0,
            stores=Stores.ALL,
            in_progress=(409,),
        )
        if keyed
        else None,
        condition=condition,
        lookups=(LOOKUP,) if row.looks_up else (),
        retry=RetryRules(attempts=2, backoff_ms=TICK, backoff_max_ms=TICK, resend=1),
    )


def start(scene: Scene, *, now: int = START, operation_id: str = "op-1") -> World:
    """Return the world in which an operation was just prepared."""
    rules = scene.contract
    operation = Operation(
        id=operation_id,
        tenant="default",
        tool=rules.tool,
        effect=rules.effect,
        source=rules.source.name,
        principal="agent",
        session_id="session",
        correlation_id=None,
        contract_digest="sha256:contract",
        payload_hash="sha256:payload",
        request_digest="sha256:request",
        ref="0" * 26,
        key="key",
        state=State.PREPARED,
        version=1,
        fence=0,
        created_ms=now,
        updated_ms=now,
        due_ms=now,
        valid_until_ms=now + rules.valid_for_ms,
        needs_approval=rules.approval is not None,
    )
    record = Record(operation=operation)
    for step in settle(record, rules, Now(ms=now)):
        record = replace(record, operation=step.after)
    return World(now=now, record=record, budget=scene.budget)


def model(scene: Scene) -> Model[World]:
    """Return what is searched for one scene. Made inside `tuned`."""

    def tell(world: World) -> tuple[float, str]:
        cause = f", {world.operation.cause}" if world.operation.cause else ""
        effects = "" if scene.harmless else f"; {world.effects} effects"
        return (world.now - START) / 1000, f"{world.state}{cause}{effects}"

    def key(world: World) -> Hashable:
        return canonical(scene, world)

    return Model(
        start=start(scene),
        events=lambda world: events(scene, world),
        check=lambda world: check(scene, world),
        key=key,
        tell=tell,
        rests=lambda world: world.state in RESTS,
    )


def hurried(rules: Contract) -> Contract:
    """Return a contract with a horizon of one tick, where three attempts multiply too far."""
    looks = tuple(replace(look, in_flight_horizon_ms=TICK) for look in rules.lookups)
    key = replace(rules.key, ttl_ms=9 * TICK) if rules.key is not None else None
    return replace(
        rules,
        in_flight_horizon_ms=TICK,
        lookups=looks,
        key=key,
        recovery_deadline_ms=8 * TICK,
        valid_for_ms=12 * TICK,
        retry=replace(rules.retry, attempts=1),
    )
