"""What is declared about a tool. A decision never comes from its name or a model's opinion.

Durations are integer milliseconds and end in `_ms`. Defaults are those of the contract file; they
are filled in by whoever builds a `Contract`, so that nothing here is optional by accident.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from doubtless.core.model import Effect, Json, Source

STALL_MARGIN_MS = 5_000  # how long a process may be stopped between the clock check and the write
LEASE_EXTRA_MS = 10_000  # a lease is the timeout and this much
FOREIGN_OWNER_MS = 300_000  # another host's attempt is closed this long after its lease
ATTEMPTS_MAX = 10  # in all


class OnAbsent(StrEnum):
    """What a confirmed absence leads to."""

    RESEND = "resend"
    REPORT = "report"
    REVIEW = "review"


class Stores(StrEnum):
    """What a repeat under the key gets from the provider."""

    ALL = "all"
    SUCCESS_ONLY = "success_only"
    REEXECUTES_FAILED = "reexecutes_failed"
    CURRENT_STATE = "current_state"


class KeyFormat(StrEnum):
    """The provider's alphabet for our 128 bits."""

    UUID = "uuid"
    HEX32 = "hex32"
    BASE32HEX = "base32hex"
    BASE36 = "base36"


class Kind(StrEnum):
    """Which transport carries a tool out."""

    HTTP = "http"
    FUNCTION = "function"
    FILE = "file"
    SHELL = "shell"
    SSH = "ssh"
    GIT_PUSH = "git_push"
    MAIL = "mail"
    BROWSER = "browser"
    MCP = "mcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRules:
    """An outside system. Credentials are named here, never held."""

    name: str
    base_url: str = ""  # calls go to this origin only
    auth_scheme: str | None = None  # bearer | basic | header
    auth_header: str = "Authorization"
    credential: str | None = None
    tls_ca: str | None = None
    tls_verify: bool = True
    private: bool = False  # a host name may resolve to a private or loopback address
    proxy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRules:
    """A request as templates. `json` and `form` exclude each other."""

    method: str
    path: str
    query: Mapping[str, Json] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Json = None
    form: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRules:
    """Where a provider differs from plain HTTP semantics. Expressions are JMESPath."""

    provider_operation_id: str | None = None
    result: str = "@"
    accepted: str | None = None
    status_url: str | None = None
    failed: str | None = None
    rejected: tuple[int, ...] = ()  # complete sets: the defaults are filled in
    not_processed: tuple[int, ...] = ()
    unproven: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRules:
    """How the provider ties repeats together. `place` is header, field, query or code."""

    place: str
    name: str
    format: KeyFormat = KeyFormat.UUID
    ttl_ms: int | None = None  # None: unknown, so no keyed resend
    margin_ms: int = 60_000
    stores: Stores = Stores.SUCCESS_ONLY
    in_progress: tuple[int, ...] = ()
    mismatch: tuple[int, ...] = ()
    replayed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRules:
    """What makes a repeat meet the same object: a version, or an id that the caller chose."""

    header: str | None = None
    value: str | None = None
    id: str | None = None
    version_reuse: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRules:
    """One read that can say whether the effect exists."""

    name: str  # unique within the tool
    request: RequestRules | None = None  # None: code, or the transport itself
    python: str | None = None  # "module:function", or the name of a registered one
    items: str = "@"
    where: Mapping[str, Json] = field(default_factory=dict)
    equal: Mapping[str, Json] = field(default_factory=dict)
    boundary: str = "provider"
    applied: str | None = None
    in_progress: str | None = None
    failed: str | None = None
    not_found: tuple[int, ...] = (404,)
    complete: str | None = None
    next_page: str | None = None
    provider_operation_id: str | None = None
    result: str = "@"
    authoritative: bool = False
    attributes: bool = True  # `where` ties a match to this operation
    lag_ms: int = 0
    confirmations: int = 2
    in_flight_horizon_ms: int = 120_000
    interval_ms: int = 5_000
    interval_max_ms: int = 60_000
    timeout_ms: int = 10_000
    speaks: Source = Source.LOOKUP  # OBJECT or MARKER: the tool's own transport is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRules:
    """Which webhooks speak about the tool."""

    types: tuple[str, ...]
    match: Mapping[str, str] = field(default_factory=dict)
    object: tuple[str, ...] = ()
    expect_ms: int | None = None
    applied: str | None = None
    failed: str | None = None
    authoritative: bool = True
    tolerance_ms: int = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRules:
    """Which calls a person must authorise first."""

    when: str | None = None  # JMESPath over args, session_id and principal; None = always
    expires_ms: int = 3_600_000
    people: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRules:
    """What a read's answer may be used for."""

    decides: tuple[str, ...] = ()
    consistency: str = "none"  # etag | version | generation | status_after_write | none
    value: str | None = None
    settles_within_ms: int | None = None
    complete: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """How often a send may follow another."""

    attempts: int = 3  # while every attempt is proven not done
    backoff_ms: int = 1_000  # doubles
    backoff_max_ms: int = 30_000
    resend: int = 1  # after an unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """All that is declared about one tool."""

    tool: str
    effect: Effect
    source: SourceRules
    kind: Kind
    description: str = ""
    arguments: Mapping[str, Json] = field(default_factory=dict)  # JSON Schema 2020-12
    business_key: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()
    on_absent: OnAbsent = OnAbsent.REPORT
    review: bool = True  # False: stays unknown past its deadline, alerted, never sent
    duplicates_acceptable: bool = False
    latest_wins: bool = False
    record_sending: bool = False
    correlation_header: str | None = "X-Correlation-ID"
    timeout_ms: int = 30_000
    in_flight_horizon_ms: int = 120_000
    recovery_deadline_ms: int = 900_000
    completes_within_ms: int = 86_400_000
    valid_for_ms: int = 3_600_000
    queued_valid_for_ms: int = 86_400_000  # from the outbox, or behind others
    dedupe_window_ms: int = 0
    request: RequestRules | None = None
    action: Mapping[str, Json] | None = None  # of every other kind: its block, as templates
    response: ResponseRules = field(default_factory=ResponseRules)
    key: KeyRules | None = None
    condition: ConditionRules | None = None
    lookups: tuple[LookupRules, ...] = ()
    events: EventRules | None = None
    approval: ApprovalRules | None = None
    read: ReadRules | None = None
    retry: RetryRules = field(default_factory=RetryRules)

    @property
    def lease_ms(self) -> int:
        """How long an attempt's lease runs."""
        return self.timeout_ms + LEASE_EXTRA_MS

    @property
    def horizon_ms(self) -> int:
        """How long a request that we gave up on may still take effect; look-ups override it."""
        said = [look.in_flight_horizon_ms for look in self.lookups]
        return max(said, default=self.in_flight_horizon_ms)

    @property
    def lag_ms(self) -> int:
        """The longest that a read side may trail."""
        return max((look.lag_ms for look in self.lookups if look.authoritative), default=0)

    @property
    def proving_lookups(self) -> tuple[LookupRules, ...]:
        """Those whose absence proves something."""
        return tuple(look for look in self.lookups if look.authoritative)
