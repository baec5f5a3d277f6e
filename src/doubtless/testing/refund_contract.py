"""The contract of the provider's refunds that demonstrations and long runs share."""

from typing import Final

REFUND: Final = """[sources.payments]
base_url = "{url}"

[tools.refund]
description = "Refund a charge."
effect = "money"
source = "payments"
business_key = ["charge"]
timeout = "{timeout_ms}ms"
in_flight_horizon = "{horizon}"
recovery_deadline = "5m"

[tools.refund.arguments]
type = "object"
required = ["charge", "amount"]
properties.charge = {{ type = "string" }}
properties.amount = {{ type = "integer", minimum = 1 }}

[tools.refund.request]
method = "POST"
path = "/v1/refunds"
json.charge = "{{args.charge}}"
json.amount = "{{args.amount}}"
json.metadata.operation = "{{operation.ref}}"

[tools.refund.response]
provider_operation_id = "id"

[tools.refund.idempotency]
header = "Idempotency-Key"
ttl = "24h"
stores = "all"

[tools.refund.lookup]
path = "/v1/refunds"
query = {{ charge = "{{args.charge}}" }}
items = "data"
where = {{ "metadata.operation" = "{{operation.ref}}" }}
equal = {{ amount = "{{args.amount}}" }}
complete = "!has_more"
authoritative = true
lag = "1s"
interval = "{interval}"
"""


def refund_contract(url: str, *, timeout_ms: int, horizon: str, interval: str) -> str:
    """Return the contract file of a provider at `url`, with a look-up that proves.

    Args:
        url: The provider's origin.
        timeout_ms: Of one attempt.
        horizon: How long a request may still take effect, as a contract says it: "2s".
        interval: The first pause between look-ups.
    """
    return REFUND.format(url=url, timeout_ms=timeout_ms, horizon=horizon, interval=interval)
