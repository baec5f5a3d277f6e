"""Signed requests, computed apart from the code that checks them: with another library's HMAC."""

import base64
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC

from doubtless.engine.contracts import WebhookRules

NOW_S = 1_700_000_000
SECRETS = {"standard": "whsec_" + base64.b64encode(b"k" * 24).decode()}
OTHERS = {"standard": "whsec_" + base64.b64encode(b"o" * 24).decode()}

Headers = list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """One way to sign, as a source declares it, and as a provider does it."""

    rules: WebhookRules
    sign: Callable[[str, bytes, int], Headers]
    stamped: bool = True  # whether a time is signed

    @property
    def secret(self) -> str:
        return SECRETS.get(self.rules.scheme, "the secret")

    @property
    def other(self) -> str:
        return OTHERS.get(self.rules.scheme, "another secret")


def mac(secret: bytes, signed: bytes) -> bytes:
    made = HMAC(secret, SHA256())
    made.update(signed)
    return made.finalize()


def standard(secret: str, body: bytes, at_s: int, message_id: str = "msg_1") -> Headers:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{message_id}.{at_s}.".encode() + body
    return [
        ("webhook-id", message_id),
        ("webhook-timestamp", str(at_s)),
        ("webhook-signature", "v1," + base64.b64encode(mac(key, signed)).decode()),
    ]


def stripe(secret: str, body: bytes, at_s: int) -> Headers:
    made = mac(secret.encode(), f"{at_s}.".encode() + body).hex()
    return [("Stripe-Signature", f"t={at_s},v1={made},v0=older")]


def github(secret: str, body: bytes, at_s: int, delivery: str = "d-1") -> Headers:
    return [
        ("X-GitHub-Delivery", delivery),
        ("X-GitHub-Event", "paid"),
        ("X-Hub-Signature-256", f"sha256={mac(secret.encode(), body).hex()}"),
    ]


def slack(secret: str, body: bytes, at_s: int) -> Headers:
    made = mac(secret.encode(), f"v0:{at_s}:".encode() + body).hex()
    return [("X-Slack-Request-Timestamp", str(at_s)), ("X-Slack-Signature", f"v0={made}")]


def shopify(secret: str, body: bytes, at_s: int) -> Headers:
    made = base64.b64encode(mac(secret.encode(), body)).decode()
    return [
        ("X-Shopify-Webhook-Id", "w-1"),
        ("X-Shopify-Topic", "paid"),
        ("X-Shopify-Hmac-Sha256", made),
    ]


def plain(secret: str, body: bytes, at_s: int) -> Headers:
    return [("X-Signature", mac(secret.encode(), body).hex())]


def stamped(secret: str, body: bytes, at_s: int) -> Headers:
    made = mac(secret.encode(), f"{at_s}.".encode() + body).hex()
    return [("X-Acme-Time", str(at_s)), ("X-Acme-Mac", f"sha256={made}")]


def rules(scheme: str, **said: str) -> WebhookRules:
    return WebhookRules(scheme=scheme, credential=f"{scheme}-hook", **said)  # type: ignore[arg-type]


SCHEMES = {
    "standard": Scheme(rules=rules("standard"), sign=standard),
    "stripe": Scheme(rules=rules("stripe"), sign=stripe),
    "github": Scheme(rules=rules("github"), sign=github, stamped=False),
    "slack": Scheme(rules=rules("slack"), sign=slack),
    "shopify": Scheme(rules=rules("shopify"), sign=shopify, stamped=False),
    "hmac-sha256": Scheme(rules=rules("hmac-sha256"), sign=plain, stamped=False),
    "hmac-sha256 with a time": Scheme(
        rules=rules("hmac-sha256", signature_header="X-Acme-Mac", timestamp_header="X-Acme-Time"),
        sign=stamped,
    ),
}
