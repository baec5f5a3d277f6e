"""A served application whose provider loses every answer, and tells by webhooks what it did."""

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cli.shell import Shell
from tests.service.serving import Answer, Serving, make_tokens, until
from tests.service.signing import SCHEMES, Headers

from doubtless.testing.provider import ProviderProcess

LOSES_ANSWERS = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}}]

SOURCE = """
[sources.{name}]
base_url = "{url}"
webhook = {{ {webhook} }}
"""
TOOL = """
[tools.{name}]
effect = "money"
source = "{source}"
business_key = ["charge"]
timeout = "1s"
in_flight_horizon = "1s"
arguments = {{ type = "object", required = ["charge"], properties.charge = {{ type = "string" }} }}

[tools.{name}.request]
method = "POST"
path = "/v1/refunds"
json.charge = "{{args.charge}}"
json.amount = 500
json.metadata.operation = "{{operation.ref}}"

[tools.{name}.events]
types = ["refund.updated"]
match = {{ ref = "data.operation", operation_id = "data.name", provider_operation_id = "data.id" }}
object = ["data.id", "data.version"]
applied = "data.status == 'succeeded'"
failed = "data.status == 'failed'"
"""
SECRET = SCHEMES["standard"].secret


def contracts(url: str) -> str:
    """Write the contracts: a source for each scheme, and a refund at the one that is `standard`."""
    standard = 'scheme = "standard", credential = "standard-hook", occurred_at = "created"'
    sources = [SOURCE.format(name="payments", url=url, webhook=standard)]
    for name, scheme in SCHEMES.items():
        keys = ("signature_header", "timestamp_header")
        said = {key: found for key in keys if (found := getattr(scheme.rules, key))}
        said = {"scheme": scheme.rules.scheme, "credential": scheme.rules.credential, **said}
        webhook = ", ".join(f"{key} = {json.dumps(value)}" for key, value in said.items())
        sources.append(SOURCE.format(name=name.replace(" ", "-"), url=url, webhook=webhook))
    return "".join([*sources, TOOL.format(name="refund", source="payments")])


def write_secrets(folder: Path) -> Path:
    secrets = folder / "secrets"
    secrets.mkdir()
    for scheme in SCHEMES.values():
        (secrets / scheme.rules.credential).write_text(f"{scheme.secret}\n", encoding="utf-8")
    return secrets


class Hooked:
    """The service, as its agents, its operator and its provider see it."""

    def __init__(self, folder: Path, provider: ProviderProcess) -> None:
        self.shell, self.provider = Shell(folder), provider
        (folder / "contracts.toml").write_text(contracts(provider.url), encoding="utf-8")
        self.secrets = write_secrets(folder)
        self.tokens = make_tokens(self.shell.ledger)
        self.serving = self._start()

    def _start(self) -> Serving:
        return Serving(self.shell, "--secrets", str(self.secrets))

    def restart(self) -> None:
        """Kill the process, and start another on the same ledger."""
        self.serving.__exit__()
        self.serving = self._start()

    # --- the provider ----------------------------------------------------------------------------

    def post(self, source: str, body: bytes, headers: Headers, **more: Any) -> Answer:
        return self.serving.ask(
            "POST", f"/webhooks/{source}", content=body, headers=dict(headers), **more
        )

    def tell(
        self, body: dict[str, Any], *, secret: str = SECRET, at_s: int | None = None
    ) -> Answer:
        """Send a signed event of the payments source, as its provider does."""
        content = json.dumps(body).encode()
        sent_s = int(time.time()) if at_s is None else at_s
        sign = SCHEMES["standard"].sign
        headers = sign(secret, content, sent_s, body["id"])  # type: ignore[call-arg]
        return self.post("payments", content, headers)

    def tell_at_once(self, bodies: list[dict[str, Any]]) -> list[Answer]:
        with ThreadPoolExecutor(len(bodies)) as threads:
            return list(threads.map(self.tell, bodies))

    # --- an agent and an operator ----------------------------------------------------------------

    def ask(self, role: str, method: str, path: str, body: object = None) -> Answer:
        return self.serving.ask(method, path, body, token=self.tokens[role])

    def refund(self, name: str) -> dict[str, Any]:
        """Ask for a refund whose answer gets lost; return the outcome."""
        body = {"tool": "refund", "arguments": {"charge": f"ch_{name}"}, "operation_id": name}
        answer = self.ask("agent", "POST", "/v1/operations", body)
        assert answer.status == 200, answer.text
        found: dict[str, Any] = answer.json
        return found

    def unknown(self, name: str) -> dict[str, Any]:
        outcome = self.refund(name)
        assert outcome["state"] == "unknown", outcome
        return outcome

    def outcome(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("agent", "GET", f"/v1/operations/{name}").json
        return found

    def comes_to(self, name: str, state: str) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            found = self.outcome(name)
            return found if found.get("state") == state else None

        found: dict[str, Any] = until(there)
        return found

    def evidence(self, name: str) -> list[dict[str, Any]]:
        """Return what webhooks showed of an operation."""
        told = self.ask("operator", "GET", f"/v1/operations/{name}/timeline").json
        entries = told["timeline"] if isinstance(told, dict) else told
        found = [entry["evidence"] for entry in entries if "evidence" in entry]
        return [item for item in found if item["source"] == "webhook"]

    def inbox(self, query: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("operator", "GET", f"/v1/events{query}").json[
            "events"
        ]
        return found

    def effects(self, outcome: dict[str, Any]) -> int:
        """Return how often the provider acted for an operation."""
        return len(self.provider.effects(operation=outcome["ref"]))


def event(event_id: str, status: str = "succeeded", **data: Any) -> dict[str, Any]:
    """Write an event of the payments source; `created` is when it happened, in Unix seconds."""
    created = data.pop("created", None)
    body = {"id": event_id, "type": "refund.updated", "data": {"status": status, **data}}
    return body if created is None else {**body, "created": created}


@contextlib.contextmanager
def hooked(folder: Path, provider: ProviderProcess) -> Iterator[Hooked]:
    provider.configure(LOSES_ANSWERS)
    provider.reset()
    found = Hooked(folder, provider)
    try:
        yield found
    finally:
        found.serving.__exit__()
