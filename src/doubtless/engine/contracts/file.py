"""The tables of a contract file, as strict models: unknown keys and wrong types don't pass.

What is left out stays None here, so that whoever fills a default in can also tell that it did.
"""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, JsonValue

from doubtless.engine.contracts.block import BlockTable
from doubtless.engine.contracts.block_browser import BrowserTable
from doubtless.engine.contracts.block_file import FileTable
from doubtless.engine.contracts.block_git import GitPushTable
from doubtless.engine.contracts.block_mail import MailTable
from doubtless.engine.contracts.block_mcp import McpTable
from doubtless.engine.contracts.block_shell import ShellTable
from doubtless.engine.contracts.block_ssh import SshTable
from doubtless.engine.contracts.table import Table
from doubtless.engine.contracts.values import (
    Credential,
    Criteria,
    Duration,
    EffectName,
    Expression,
    FormatName,
    HeaderName,
    HeaderTemplates,
    OnAbsentName,
    Period,
    Statuses,
    StoresName,
    TemplateJson,
    TemplateMembers,
    TemplateText,
    Text,
    wrong,
)

NO_CORRELATION: Final = "-"
"""What `correlation = false` becomes: a header name that nobody can mean."""

MATCHES: Final = ("ref", "operation_id", "provider_operation_id", "idempotency_key")


class AuthTable(Table):
    """`auth` of a source: how the credential is presented."""

    scheme: Literal["bearer", "basic", "header"]
    credential: Credential
    header: HeaderName | None = None  # which one, for scheme = "header"


class TlsTable(Table):
    """`tls` of a source."""

    ca: Text | None = None
    verify: bool = True


class WebhookTable(Table):
    """`[sources.X.webhook]`."""

    scheme: Literal["standard", "stripe", "github", "slack", "shopify", "hmac-sha256"]
    credential: Credential
    event_id: Expression | None = None
    type: Expression | None = None
    occurred_at: Expression | None = None
    tolerance: Duration | None = None
    signature_header: HeaderName | None = None  # these two for scheme = "hmac-sha256"
    timestamp_header: HeaderName | None = None


class SourceTable(Table):
    """`[sources.X]`."""

    base_url: Text
    profile: str | None = None
    auth: AuthTable | None = None
    tls: TlsTable | None = None
    private: bool = False
    proxy: Text | None = None
    webhook: WebhookTable | None = None


class RequestTable(Table):
    """`[tools.X.request]`."""

    method: Text
    path: TemplateText
    query: TemplateMembers = Field(default_factory=dict)
    headers: HeaderTemplates = Field(default_factory=dict)
    json_body: TemplateJson = Field(default=None, alias="json")
    form: TemplateMembers | None = None


class ResponseTable(Table):
    """`[tools.X.response]`."""

    provider_operation_id: Expression | None = None
    result: Expression | None = None
    accepted: Expression | None = None
    status_url: Expression | None = None
    completes_within: Period | None = None
    failed: Expression | None = None
    rejected: Statuses | None = None
    not_processed: Statuses | None = None
    unproven: Statuses | None = None


class IdempotencyTable(Table):
    """`[tools.X.idempotency]`."""

    header: HeaderName | None = None
    field: Text | None = None
    query: Text | None = None
    format: FormatName | None = None
    ttl: Period | None = None
    stores: StoresName | None = None
    in_progress: Statuses = Field(default_factory=list)
    mismatch: Statuses = Field(default_factory=list)
    replayed: Expression | None = None


class LookupTable(Table):
    """`[tools.X.lookup]`, or one of several."""

    name: Text | None = None
    method: Text | None = None
    path: TemplateText | None = None
    query: TemplateMembers = Field(default_factory=dict)
    headers: HeaderTemplates = Field(default_factory=dict)
    json_body: TemplateJson = Field(default=None, alias="json")
    form: TemplateMembers | None = None
    python: Text | None = None
    items: Expression | None = None
    where: Criteria | None = None
    equal: Criteria = Field(default_factory=dict)
    boundary: Literal["ingress", "application", "worker", "object", "provider"] | None = None
    applied: Expression | None = None
    in_progress: Expression | None = None
    failed: Expression | None = None
    not_found: Statuses | None = None
    complete: Expression | None = None
    next_page: Expression | None = None
    provider_operation_id: Expression | None = None
    result: Expression | None = None
    authoritative: bool | None = None
    lag: Duration | None = None
    confirmations: Annotated[int, Field(ge=1, le=100)] | None = None
    in_flight_horizon: Duration | None = None
    interval: Period | None = None
    interval_max: Period | None = None
    timeout: Period | None = None


class EventsTable(Table):
    """`[tools.X.events]`."""

    types: list[Text]
    match: dict[str, Expression]
    object: list[Expression] = Field(default_factory=list)
    expect: Period | None = None
    applied: Expression | None = None
    failed: Expression | None = None
    authoritative: bool | None = None


class ApprovalTable(Table):
    """`[tools.X.approval]`."""

    when: Expression | None = None
    expires: Period | None = None
    people: Annotated[int, Field(ge=1, le=10)] | None = None


class RetryTable(Table):
    """`[tools.X.retry]`."""

    attempts: Annotated[int, Field(ge=1, le=10)] | None = None
    backoff: Period | None = None
    resend: Annotated[int, Field(ge=0, le=9)] | None = None


class ConditionTable(Table):
    """`[tools.X.condition]`."""

    header: HeaderName | None = None
    value: TemplateText | None = None
    id: TemplateText | None = None
    version_reuse: bool | None = None


class ReadTable(Table):
    """`[tools.X.read]`."""

    decides: list[Text] = Field(default_factory=list)
    consistency: Literal["etag", "version", "generation", "status_after_write", "none"] | None = (
        None
    )
    value: Expression | None = None
    settles_within: Duration | None = None
    complete: Expression | None = None


class CorrelationTable(Table):
    """`correlation = { header = … }`."""

    header: HeaderName


def _correlation(value: object) -> object:
    if value is True:
        raise wrong("true says no header.", 'write { header = "X-Correlation-ID" }, or false.')
    # False is a choice of its own, which None ("not said") must not swallow.
    return {"header": NO_CORRELATION} if value is False else value


def _several(value: object) -> object:
    return value if isinstance(value, list) else [value]


class ToolTable(Table):
    """`[tools.X]`."""

    description: str = ""
    effect: EffectName
    source: Text | None = None
    business_key: list[Text] = Field(default_factory=list)
    on_absent: OnAbsentName | None = None
    review: Literal["people", "none"] | None = None
    timeout: Period | None = None
    in_flight_horizon: Duration | None = None
    recovery_deadline: Period | None = None
    completes_within: Period | None = None
    record_sending: bool | None = None
    valid_for: Period | None = None
    dedupe_window: Duration | None = None
    ordering: Literal["free", "latest_wins"] | None = None
    volatile: list[Text] = Field(default_factory=list)
    duplicates: Literal["never", "acceptable"] | None = None
    correlation: Annotated[CorrelationTable, BeforeValidator(_correlation)] | None = None
    arguments: dict[str, JsonValue] | None = None
    request: RequestTable | None = None
    response: ResponseTable = Field(default_factory=ResponseTable)
    idempotency: IdempotencyTable | None = None
    lookup: Annotated[list[LookupTable], BeforeValidator(_several)] = Field(default_factory=list)
    events: EventsTable | None = None
    approval: ApprovalTable | None = None
    retry: RetryTable = Field(default_factory=RetryTable)
    condition: ConditionTable | None = None
    read: ReadTable | None = None
    file: FileTable | None = None
    shell: ShellTable | None = None
    ssh: SshTable | None = None
    git_push: GitPushTable | None = None
    mail: MailTable | None = None
    browser: BrowserTable | None = None
    mcp: McpTable | None = None

    def blocks(self) -> list[BlockTable]:
        """Return how it is carried out, where it isn't by a request. More than one is an error."""
        said = (getattr(self, name) for name in type(self).model_fields)
        return [each for each in said if isinstance(each, BlockTable)]


class FilesTable(Table):
    """`[files]`."""

    root: Text | None = None  # from the contract file's folder
