"""The page on metrics, from the metrics and the alerting rules themselves."""

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from doubtless import telemetry
from doubtless.core.model import Cause

REFUSALS: Final = (
    Cause.PAYLOAD_MISMATCH,
    Cause.OPERATION_ID_TAKEN,
    Cause.TARGET_UNRESOLVED,
)
BEGINS: Final = """\
`doubtless serve` answers `GET /metrics` with these, as Prometheus reads them; no token is needed.
They are kept in the ledger, in the transaction of what they count: one endpoint tells of all
processes on a ledger, and a restart forgets nothing. Two endpoints on one ledger tell the same, so
scrape one of them. `await app.metrics()` tells it in Python.
"""
COSTS: Final = """\
A scrape costs what is open and what was settled since the last one, however much was ever settled;
a ledger whose long past nobody scraped is counted up over several scrapes, 2 s each.
A success on the first try counts nothing when it happens: it is counted from the stream of
settlements. What a look-up or an operator settles adds a row or two to its transaction.
"""
SHIPS: Final = """\
The rules (`alerts.yml`) and a Grafana dashboard (`grafana.json`) come with the package, in the
folder that this prints:

```sh
python -c 'import doubtless.service as s; print(s.__path__[0])'
```

Name the rules under `rule_files` in `prometheus.yml`; import the dashboard as it is. When
Prometheus meets a ledger for the first time, rules about rare events fire for what is old.
"""


def lines() -> Iterator[str]:
    """Yield the page's lines below its title."""
    yield from BEGINS.splitlines()
    yield from ("", "| metric | kind | labels | tells |", "| --- | --- | --- | --- |")
    for each in telemetry.METRICS:
        yield f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.means} |"
    bounds = ", ".join(str(bound) for bound in telemetry.RECONCILIATION_BUCKETS_S)
    yield from ("", f"The histogram's bounds are {bounds} seconds. `tool` and `effect` are the")
    yield "contract's; no label holds an id, an argument or a result."
    yield from ("", "| label | values |", "| --- | --- |")
    for name, values in _labels():
        yield f"| {name} | {', '.join(f'`{value}`' for value in values)} |"
    yield from ("", *COSTS.splitlines(), "", "## Alerts and dashboard", "", *SHIPS.splitlines())
    yield from ("", "| alert | severity | after | says |", "| --- | --- | --- | --- |")
    for rule in _rules():
        says, after = _plain(rule["annotations"]["summary"]), rule.get("for", "at once")
        yield f"| {rule['alert']} | {rule['labels']['severity']} | {after} | {says} |"


def _rules() -> list[dict[str, Any]]:
    text = files("doubtless.service").joinpath("alerts.yml").read_text("utf-8")
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def _plain(summary: str) -> str:
    """Return an alert's words with a name in place of each template."""
    return re.sub(r"{{ \$(?:labels\.)?(\w+)[^}]*}}", lambda found: f"`{found[1].upper()}`", summary)


def _labels() -> Iterator[tuple[str, list[str]]]:
    prevented = [*telemetry.Prevented, *(refused.value for refused in REFUSALS)]
    yield "reason of `doubtless_retries_prevented_total`", [str(each) for each in prevented]
    yield "reason of `doubtless_event_match_failures_total`", [str(x) for x in telemetry.Unmatched]
    yield "action of `doubtless_key_expired_total`", [str(each) for each in telemetry.KeyExpired]
