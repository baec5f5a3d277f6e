"""Signatures of webhooks: whether a request was signed with one of our secrets, and just now.

Pure: the time comes in as an argument. Every scheme compares in constant time; two live secrets are
two that may have signed, so that one can be replaced while the other still counts.

    standard      webhook-signature, webhook-id, webhook-timestamp (standardwebhooks.com)
    stripe        Stripe-Signature: t=…,v1=…
    github        X-Hub-Signature-256: sha256=…; signs no time
    slack         X-Slack-Signature: v0=…, X-Slack-Request-Timestamp
    shopify       X-Shopify-Hmac-Sha256, in base64; signs no time
    hmac-sha256   X-Signature in hexadecimal, with or without sha256= before it; with a declared
                  header for the time, that time, a dot and the body are what is signed

Where no time is signed an old request can be sent again; it is then an event that is known already.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

from standardwebhooks import Webhook
from standardwebhooks.webhooks import EmptyWebhookSecretError

from doubtless.engine.contracts import WebhookRules
from doubtless.errors import SettingsError

Headers: TypeAlias = Sequence[tuple[str, str]]

SIGNATURE_HEADER: Final = "X-Signature"
SIGNATURES_MAX: Final = 16  # that one request may offer

_SECONDS: Final = re.compile(r"[0-9]{1,12}")
_PREFIX: Final = "whsec_"


class BadSignature(Exception):
    """A request is not proven to come from the source. The text names no secret and no digest."""


def verify(
    rules: WebhookRules,
    secrets: Sequence[str],
    headers: Headers,
    body: bytes,
    *,
    now_ms: int,
) -> None:
    """Be sure that a request was signed by the source.

    Args:
        rules: How the source signs.
        secrets: The live ones; each may have signed.
        headers: As they came: one that is said twice is ambiguous, and refused.
        body: As it came, byte for byte.
        now_ms: The wall clock.

    Raises:
        BadSignature: It was not, or not within the tolerance, or a header is missing.
        SettingsError: There is no secret, or one that can't be used: never "no check".
    """
    check_secrets(rules, secrets)
    offered, expected = _SCHEMES[rules.scheme](_Given(rules, headers, body, now_ms))
    wanted = [expected(secret) for secret in secrets]
    # All pairs are compared, so that the time tells nothing about which of them was near.
    matches = [
        hmac.compare_digest(one.encode(), other.encode()) for one in offered for other in wanted
    ]
    if not any(matches):
        raise BadSignature("the signature does not match")


def check_secrets(rules: WebhookRules, secrets: Sequence[str]) -> None:
    """Be sure that secrets can sign.

    Raises:
        SettingsError: There is none, or one that is empty or of another form.
    """
    if not secrets or not all(secret.strip() for secret in secrets):
        raise SettingsError(
            f"the secret {rules.credential!r} of a webhook is empty: nothing would be checked"
        )
    if rules.scheme != "standard":
        return
    for secret in secrets:
        try:
            Webhook(secret)
            base64.b64decode(_padded(secret.removeprefix(_PREFIX)), validate=True)
        except (ValueError, binascii.Error, EmptyWebhookSecretError):
            raise SettingsError(
                f"the secret {rules.credential!r} is no secret of Standard Webhooks: it is "
                "whsec_ and base64, as the provider shows it"
            ) from None


def _padded(text: str) -> str:
    return text + "=" * (-len(text) % 4)


class _Given:
    """A request as it came, and what it is judged by."""

    def __init__(self, rules: WebhookRules, headers: Headers, body: bytes, now_ms: int) -> None:
        self.rules, self.body = rules, body
        self._headers, self._now_ms = headers, now_ms

    def one(self, name: str) -> str:
        """Return the value of a header, which counts only if it was said once.

        Raises:
            BadSignature: It is missing, or said more than once.
        """
        found = [value for each, value in self._headers if each.lower() == name.lower()]
        if len(found) != 1:
            how = "twice or more" if found else "not at all"
            raise BadSignature(f"the header {name} is said {how}")
        return found[0].strip()

    def check_time(self, stamp: str) -> None:
        """Be sure that a signed time stamp is near to now.

        Raises:
            BadSignature: It is none in seconds, or too far from now, either way.
        """
        if not _SECONDS.fullmatch(stamp):
            raise BadSignature("the time stamp is no number of seconds")
        if abs(int(stamp) * 1000 - self._now_ms) > self.rules.tolerance_ms:
            raise BadSignature("the time stamp is too old, or in the future")


def _limited(offered: list[str]) -> list[str]:
    if not offered:
        raise BadSignature("no signature of a scheme that counts is offered")
    if len(offered) > SIGNATURES_MAX:
        raise BadSignature(f"more than {SIGNATURES_MAX} signatures are offered")
    return offered


def _hex(secret: str, signed: bytes) -> str:
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


Check: TypeAlias = tuple[list[str], Callable[[str], str]]
"""The signatures that are offered, and the one that a secret would give."""


def _standard(given: _Given) -> Check:
    message_id = given.one("webhook-id")
    stamp = given.one("webhook-timestamp")
    given.check_time(stamp)
    parts = given.one("webhook-signature").split(" ")
    when = datetime.fromtimestamp(int(stamp), tz=UTC)
    try:
        text = given.body.decode()
        message_id.encode()
    except ValueError:
        raise BadSignature("the body is not UTF-8") from None

    def expected(secret: str) -> str:
        return Webhook(secret).sign(message_id, when, text)

    return _limited([part for part in parts if part.startswith("v1,")]), expected


def _stripe(given: _Given) -> Check:
    pairs = list(_pairs(given.one("Stripe-Signature")))
    times = [value for name, value in pairs if name == "t"]
    if len(times) != 1:
        raise BadSignature("the header Stripe-Signature names no time, or several")
    given.check_time(times[0])
    signed = times[0].encode() + b"." + given.body
    offered = [value for name, value in pairs if name == "v1"]
    return _limited(offered), lambda secret: _hex(secret, signed)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        yield name, value


def _github(given: _Given) -> Check:
    offered = given.one("X-Hub-Signature-256")
    return [offered], lambda secret: f"sha256={_hex(secret, given.body)}"


def _slack(given: _Given) -> Check:
    offered, stamp = given.one("X-Slack-Signature"), given.one("X-Slack-Request-Timestamp")
    given.check_time(stamp)
    signed = f"v0:{stamp}:".encode() + given.body
    return [offered], lambda secret: f"v0={_hex(secret, signed)}"


def _shopify(given: _Given) -> Check:
    def expected(secret: str) -> str:
        return base64.b64encode(hmac.digest(secret.encode(), given.body, "sha256")).decode()

    return [given.one("X-Shopify-Hmac-Sha256")], expected


def _hmac(given: _Given) -> Check:
    offered = given.one(given.rules.signature_header or SIGNATURE_HEADER)
    signed = given.body
    if given.rules.timestamp_header is not None:
        stamp = given.one(given.rules.timestamp_header)
        given.check_time(stamp)
        signed = stamp.encode() + b"." + given.body
    return [offered.removeprefix("sha256=").lower()], lambda secret: _hex(secret, signed)


_SCHEMES: Final[Mapping[str, Callable[[_Given], Check]]] = {
    "standard": _standard,
    "stripe": _stripe,
    "github": _github,
    "slack": _slack,
    "shopify": _shopify,
    "hmac-sha256": _hmac,
}
