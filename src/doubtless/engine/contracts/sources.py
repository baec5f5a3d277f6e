"""`[sources.X]`: an outside system. What it may be, and what is wrong with one that may not."""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from doubtless.core.contract import SourceRules
from doubtless.engine.contracts.file import SourceTable, WebhookTable
from doubtless.errors import Problem

TOLERANCE_MS: Final = 300_000  # on a webhook's signed time stamp
PROFILES: Final[tuple[str, ...]] = ()
"""Provider facts that ship with this release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRules:
    """How a source signs and shapes its events. None: as the scheme has it. Paths are JMESPath."""

    scheme: str
    credential: str
    event_id: str | None = None
    type: str | None = None
    occurred_at: str | None = None
    tolerance_ms: int = TOLERANCE_MS
    signature_header: str | None = None  # hmac-sha256 alone; X-Signature if None
    timestamp_header: str | None = None  # the same; None: no time is signed


def source_rules(name: str, said: SourceTable) -> SourceRules:
    """Fill the defaults of a source in."""
    auth, tls = said.auth, said.tls
    return SourceRules(
        name=name,
        base_url=said.base_url.rstrip("/"),
        auth_scheme=auth.scheme if auth else None,
        auth_header=(auth.header if auth else None) or "Authorization",
        credential=auth.credential if auth else None,
        tls_ca=tls.ca if tls else None,
        tls_verify=tls.verify if tls else True,
        private=said.private,
        proxy=said.proxy,
    )


def webhook_rules(said: WebhookTable) -> WebhookRules:
    """Fill the defaults of a source's webhook in."""
    return WebhookRules(
        scheme=said.scheme,
        credential=said.credential,
        event_id=said.event_id,
        type=said.type,
        occurred_at=said.occurred_at,
        tolerance_ms=TOLERANCE_MS if said.tolerance is None else said.tolerance,
        signature_header=said.signature_header,
        timestamp_header=said.timestamp_header,
    )


def errors_in_source(file: str, name: str, said: SourceTable) -> Iterator[Problem]:
    """Yield what is wrong with a source whose every key is well-formed."""
    table = f"sources.{name}"

    def problem(key: str, wrong: str, mend: str, below: str = "") -> Problem:
        return Problem(file=file, table=table + below, key=key, wrong=wrong, mend=mend)

    wrong = wrong_url(said.base_url, bare=False)
    if wrong:
        yield problem("base_url", wrong, 'write only scheme, host, port and path: "https://…".')
    if said.profile is not None and said.profile not in PROFILES:
        yield problem(
            "profile",
            f"there is no profile {said.profile!r}.",
            f"profiles of this release: {', '.join(PROFILES) or 'none'}; declare the provider's "
            "facts in the tools.",
        )
    if said.auth and (said.auth.scheme == "header") != (said.auth.header is not None):
        yield problem(
            "header",
            'a header belongs to scheme = "header", and to no other.',
            'write auth = { scheme = "header", header = "X-Api-Key", credential = "…" }, or '
            "leave header out.",
            ".auth",
        )
    if said.proxy is not None and (wrong := wrong_url(said.proxy, bare=True)):
        yield problem("proxy", wrong, 'write only scheme, host and port: "http://proxy:3128".')
    if said.webhook is not None:
        yield from _errors_in_webhook(file, table, said.webhook)


def _errors_in_webhook(file: str, source: str, said: WebhookTable) -> Iterator[Problem]:
    def problem(key: str, wrong: str, mend: str) -> Problem:
        return Problem(file=file, table=f"{source}.webhook", key=key, wrong=wrong, mend=mend)

    if said.tolerance == 0:
        yield problem(
            "tolerance",
            "zero would refuse every event, or switch the check off.",
            'say a duration, or leave it out for "5m".',
        )
    for key in ("signature_header", "timestamp_header"):
        if said.scheme != "hmac-sha256" and getattr(said, key) is not None:
            yield problem(
                key,
                f"the scheme {said.scheme} has headers of its own.",
                'it belongs to scheme = "hmac-sha256": leave it out.',
            )


def wrong_url(url: str, *, bare: bool) -> str:
    """Say what is wrong with a base URL, or nothing. `bare` allows no path."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 (reading it is what checks it)
    except ValueError as error:
        return f"{error}."
    if parts.scheme not in {"http", "https"}:
        return "the scheme must be http or https."
    if not parts.hostname or not url.isascii() or not url.isprintable() or set(url) & set("\\ {}"):
        return "it names no host that every reader would agree on."
    # The text is not shown: it may hold a secret.
    if "@" in parts.netloc:
        return "it holds credentials."
    if "?" in url or "#" in url:
        return "it holds a query or a fragment."
    if bare and parts.path.strip("/"):
        return "it holds a path."
    if {".", ".."} & set(parts.path.split("/")):
        return "its path holds '.' or '..'."
    return ""


def warnings_in_source(file: str, name: str, said: SourceTable) -> Iterator[Problem]:
    """Yield what is allowed and should be known."""
    parts = urlsplit(said.base_url)
    if said.auth and parts.scheme == "http" and not is_loopback(parts):
        yield Problem(
            file=file,
            table=f"sources.{name}",
            key="base_url",
            wrong=f"the credential {said.auth.credential!r} would travel in clear text.",
            mend="use https.",
        )
    if said.tls and not said.tls.verify:
        yield Problem(
            file=file,
            table=f"sources.{name}.tls",
            key="verify",
            wrong="anybody on the way can answer in the provider's place, and prove anything.",
            mend="name the provider's authority with ca = … and verify.",
        )


def is_loopback(parts: SplitResult) -> bool:
    """Whether a URL names this host."""
    host = parts.hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
