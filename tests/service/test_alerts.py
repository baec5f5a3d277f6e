"""The alerting rules and the dashboard: each fires when it must, and names what there is."""

import json
import re
import shutil
import subprocess
from importlib.resources import files
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]
from tests.service.alerting import Samples, World, evaluate, firing

from doubtless import telemetry
from doubtless.telemetry import METRICS, Kind

FOLDER: Final = files("doubtless.service")
RULES: Final[dict[str, dict[str, Any]]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(FOLDER.joinpath("alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
}
DASHBOARD: Final[dict[str, Any]] = json.loads(FOLDER.joinpath("grafana.json").read_text("utf-8"))
TOOL: Final = {"tool": "refund", "effect": "money"}

Series = tuple[telemetry.Metric, dict[str, str], Samples]


def grows(start: float, minutes: int = 40) -> list[float]:
    """Return an age that grows with the clock."""
    return [start + 60 * minute for minute in range(minutes)]


def steps(*changes: tuple[int, float | None], minutes: int = 40) -> list[float | None]:
    """Return samples that change at those minutes; None before the first."""
    values: list[float | None] = []
    current: float | None = None
    for minute in range(minutes):
        current = dict(changes).get(minute, current)
        values.append(current)
    return values


def prevented(reason: str, samples: Samples) -> Series:
    return telemetry.PREVENTED, {"reason": reason, **TOOL}, samples


def mismatch(source: str, samples: Samples) -> Series:
    return telemetry.MISMATCH, {"state": "succeeded", "source": source, **TOOL}, samples


def overdue(state: str, samples: Samples) -> Series:
    return telemetry.OVERDUE, {"state": state}, samples


def aged(state: str, samples: Samples) -> Series:
    return telemetry.OLDEST, {"state": state, **TOOL}, samples


def failures(reason: str, samples: Samples) -> Series:
    return telemetry.MATCH_FAILURES, {"reason": reason, "source": "payments"}, samples


def expired(action: str, samples: Samples) -> Series:
    return telemetry.KEY_EXPIRED, {"action": action, **TOOL}, samples


FIRST: Final = steps((20, 1))  # the series appears with its first event
NEXT: Final = steps((0, 3), (20, 4))
RESTARTED: Final = steps((0, 3), (20, 1))
OLD: Final = steps((0, 3))

# alert, what is scraped, minutes at which it fires, minutes at which it does not
CASES: Final[list[tuple[str, Series, list[int], list[int]]]] = [
    ("DoubtlessUnknownForLong", aged("unknown", grows(0)), [17, 30], [0, 14, 15]),
    ("DoubtlessUnknownForLong", aged("reconciling", grows(0)), [17], [14]),
    ("DoubtlessUnknownForLong", aged("manual_review", grows(0)), [], [17, 39]),
    ("DoubtlessUnknownForLong", aged("unknown", steps((0, 1000), (20, 0))), [5, 19], [20, 39]),
    (
        "DoubtlessPastDeadline",
        (telemetry.PAST_DEADLINE, TOOL, steps((0, 0), (10, 2), (30, 0))),
        [15, 29],
        [9, 11, 14, 30],
    ),
    ("DoubtlessIdReusedWithOtherPayload", prevented("payload_mismatch", FIRST), [20, 34], [19, 36]),
    ("DoubtlessIdReusedWithOtherPayload", prevented("payload_mismatch", NEXT), [20, 33], [19, 36]),
    ("DoubtlessIdReusedWithOtherPayload", prevented("payload_mismatch", RESTARTED), [20], [19, 36]),
    ("DoubtlessIdReusedWithOtherPayload", prevented("payload_mismatch", OLD), [], [20, 39]),
    ("DoubtlessIdReusedWithOtherPayload", prevented("joined", FIRST), [], [20, 39]),
    ("DoubtlessContradictingEvidence", mismatch("lookup", FIRST), [20, 34], [19, 36]),
    ("DoubtlessContradictingEvidence", mismatch("webhook", NEXT), [20], [19, 36]),
    ("DoubtlessContradictingEvidence", mismatch("marker", FIRST), [], [20, 39]),
    ("DoubtlessMarkerOrderContradicted", mismatch("marker", FIRST), [20, 34], [19, 36]),
    ("DoubtlessMarkerOrderContradicted", mismatch("marker", NEXT), [20], [19, 36]),
    ("DoubtlessMarkerOrderContradicted", mismatch("lookup", FIRST), [], [20, 39]),
    ("DoubtlessKeyExpired", expired("refused", FIRST), [20, 34], [19, 36]),
    ("DoubtlessKeyExpired", expired("operator", NEXT), [20], [19, 36]),
    ("DoubtlessKeyExpired", expired("operator", OLD), [], [20, 39]),
    ("DoubtlessEventMatchFailures", failures("several", FIRST), [20, 34], [19, 36]),
    ("DoubtlessEventMatchFailures", failures("unreadable", NEXT), [20], [19, 36]),
    ("DoubtlessEventMatchFailures", failures("none", FIRST), [], [20, 39]),
    (
        "DoubtlessEventUnmatchedForLong",
        (telemetry.UNMATCHED_AGE, {"source": "payments"}, grows(0)),
        [17, 39],
        [14, 15],
    ),
    ("DoubtlessOutboxStalled", overdue("prepared", grows(0)), [3, 39], [0, 1]),
    ("DoubtlessOutboxStalled", overdue("prepared", steps((0, 0), (5, 30), (6, 0))), [], [5, 39]),
    ("DoubtlessOutboxStalled", overdue("unknown", grows(0)), [], [39]),
    ("DoubtlessNobodyWorks", overdue("unknown", grows(0)), [7, 39], [4, 5]),
    ("DoubtlessNobodyWorks", overdue("executing", grows(0)), [7], [5]),
    ("DoubtlessNobodyWorks", overdue("prepared", grows(0)), [], [39]),
]


@pytest.mark.proves("METRIC-5")
@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES, 1)])
def test_an_alert_fires_when_it_must_and_not_otherwise(case):
    name, (metric, labels, samples), fires, silent = case
    world = World()
    world.add(metric.name, samples, **labels)
    rule = RULES[name]
    assert {minute: firing(rule, world, minute) for minute in (*fires, *silent)} == {
        **dict.fromkeys(fires, True),
        **dict.fromkeys(silent, False),
    }


@pytest.mark.proves("METRIC-5")
def test_every_alert_has_cases_in_which_it_fires_and_in_which_it_does_not():
    assert {name for name, _, fires, _ in CASES if fires} == RULES.keys()
    assert {name for name, _, _, silent in CASES if silent} == RULES.keys()
    for rule in RULES.values():
        assert evaluate(rule["expr"], World(), 30) == set(), "silent where nothing happened"
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}


def promtool_test(rules: str) -> dict[str, Any]:
    """Write the same cases as `promtool test rules` takes them."""
    tests = []
    for name, (metric, labels, samples), fires, silent in CASES:
        told = ",".join(f'{label}="{value}"' for label, value in labels.items())
        values = " ".join("_" if value is None else f"{value:g}" for value in samples)
        alerts = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": f"{metric.name}{{{told}}}", "values": values}],
                "promql_expr_test": [
                    {
                        "expr": alerts,
                        "eval_time": f"{minute}m",
                        "exp_samples": [{"labels": "{}", "value": 1}] if minute in fires else [],
                    }
                    for minute in (*fires, *silent)
                ],
            }
        )
    return {"rule_files": [rules], "evaluation_interval": "1m", "tests": tests}


@pytest.mark.proves("METRIC-5")
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_says_the_same_of_every_case(tmp_path):
    rules = tmp_path / "alerts.yml"
    rules.write_text(FOLDER.joinpath("alerts.yml").read_text("utf-8"), encoding="utf-8")
    cases = tmp_path / "cases.yml"
    cases.write_text(json.dumps(promtool_test(str(rules))), encoding="utf-8")
    for words in (["check", "rules", str(rules)], ["test", "rules", str(cases)]):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


# --- names ---------------------------------------------------------------------------------------


def expressions() -> list[str]:
    shown = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*(rule["expr"] for rule in RULES.values()), *shown]


@pytest.mark.proves("METRIC-6")
def test_rules_and_dashboard_name_only_metrics_and_labels_that_there_are():
    known = {each.name: set(each.labels) for each in METRICS}
    for each in METRICS:
        if each.kind is Kind.HISTOGRAM:
            known[f"{each.name}_bucket"] = {*each.labels, "le"}
    for expression in expressions():
        names = re.findall(r"doubtless_\w+", expression)
        assert names, expression
        for name in names:
            assert name in known, expression
        said = re.findall(r"by \(([^)]*)\)", expression)
        said += re.findall(r"\{([^}]*)\}", expression)
        labels = {
            found for part in said for found in re.findall(r"(\w+)(?=[=!,]|$)", unquoted(part))
        }
        assert labels <= set.union(*(known[name] for name in names)), expression


def unquoted(part: str) -> str:
    return re.sub(r'"[^"]*"', "", part).replace("=~", "=")


@pytest.mark.proves("METRIC-6")
def test_annotations_name_only_labels_that_the_alert_has():
    for rule in RULES.values():
        (name,) = {*re.findall(r"doubtless_\w+", rule["expr"])}
        metric = next(each for each in METRICS if each.name == name)
        by = re.search(r"by \(([^)]*)\)", rule["expr"])
        labels = set(by[1].split(", ")) if by else set(metric.labels)
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels, rule["alert"]


@pytest.mark.proves("METRIC-6")
def test_the_dashboard_shows_every_metric():
    shown = " ".join(expressions())
    assert [each.name for each in METRICS if each.name not in shown] == []
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert {panel["type"] for panel in DASHBOARD["panels"]} == {"timeseries", "stat"}
