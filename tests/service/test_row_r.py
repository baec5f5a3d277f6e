"""Row r: webhooks early, late, twice, ten at once, out of order, under another id, forged, for
nobody. Evidence once, kept, never lost; and the same with a service that is killed in the middle.
"""

import time
from collections.abc import Iterator

import pytest
from tests.service.hooked import Hooked, event, hooked
from tests.service.signing import SCHEMES

pytestmark = pytest.mark.proves("ROW-R-1")


@pytest.fixture(scope="module")
def lasting(running_provider, tmp_path_factory) -> Iterator[Hooked]:
    with hooked(tmp_path_factory.mktemp("hooked"), running_provider) as found:
        yield found


class Story:
    """One telling, with or without a service that dies in the middle."""

    def __init__(self, hooks: Hooked, name: str, *, dies: bool) -> None:
        self.hooks, self.name, self._dies = hooks, name, dies

    def middle(self) -> None:
        if self._dies:
            self.hooks.restart()

    def event(
        self, number: int = 1, status: str = "succeeded", **data: object
    ) -> dict[str, object]:
        return event(f"{self.name}-{number}", status, **data)

    def happened(self, outcome: dict[str, object], state: str, *, evidence: int) -> None:
        """Check how it ended, what was counted as evidence, and that the provider acted once."""
        after = self.hooks.comes_to(self.name, state)
        assert len(self.hooks.evidence(self.name)) == evidence
        assert self.hooks.effects(after) == 1
        assert after["ref"] == outcome["ref"]
        self.middle()
        assert self.hooks.outcome(self.name)["state"] == state
        assert len(self.hooks.evidence(self.name)) == evidence


@pytest.fixture(params=[False, True], ids=["lives", "dies"])
def story(request, lasting) -> Story:
    name = f"{request.node.originalname[5:50]}-{'dies' if request.param else 'lives'}"
    return Story(lasting, name.replace("_", "-"), dies=request.param)


def test_early(story):
    assert story.hooks.tell(story.event(name=story.name)).json["new"]
    story.middle()
    assert [each["reason"] for each in story.hooks.inbox("?matched=false&limit=1")] == [
        "no_operation"
    ]
    outcome = story.hooks.refund(story.name)
    assert outcome["state"] == "succeeded"  # its answer was lost, and the event was there already
    story.happened(outcome, "succeeded", evidence=1)


def test_late(story):
    outcome = story.hooks.unknown(story.name)
    story.middle()
    assert story.hooks.tell(story.event(operation=outcome["ref"])).status == 200
    story.happened(outcome, "succeeded", evidence=1)


def test_twice(story):
    outcome = story.hooks.unknown(story.name)
    told = story.event(operation=outcome["ref"])
    first = story.hooks.tell(told)
    story.middle()
    again = story.hooks.tell(told)
    assert (first.status, again.status) == (200, 200)
    assert (first.json["new"], again.json["new"]) == (True, False)
    story.happened(outcome, "succeeded", evidence=1)


def test_ten_at_once(story):
    outcome = story.hooks.unknown(story.name)
    told = story.event(operation=outcome["ref"])
    answers = story.hooks.tell_at_once([told] * 10)
    assert [answer.status for answer in answers] == [200] * 10
    assert sum(answer.json["new"] for answer in answers) == 1
    story.middle()
    story.happened(outcome, "succeeded", evidence=1)


def test_out_of_order(story):
    outcome = story.hooks.unknown(story.name)
    now_s = int(time.time())
    data = {"operation": outcome["ref"], "id": f"re_{story.name}"}
    newer = story.event(3, "succeeded", created=now_s, version=3, **data)
    older = story.event(2, "failed", created=now_s - 1, version=2, **data)
    oldest = story.event(1, "pending", created=now_s - 2, version=1, **data)
    story.hooks.tell(newer)
    story.middle()
    story.hooks.tell(older)
    story.hooks.tell(oldest)
    story.happened(outcome, "succeeded", evidence=3)


def test_under_another_event_id(story):
    outcome = story.hooks.unknown(story.name)
    data = {"operation": outcome["ref"], "id": f"re_{story.name}", "version": 1}
    story.hooks.tell(story.event(1, "pending", **data))
    story.middle()
    story.hooks.tell(story.event(2, "pending", **data))
    copy, first = story.hooks.inbox("?limit=2")
    assert (copy["copy_of"], first["operation_id"]) == (first["id"], story.name)
    story.hooks.tell(story.event(3, "succeeded", **data))
    story.happened(outcome, "succeeded", evidence=2)


def test_forged(story):
    outcome = story.hooks.unknown(story.name)
    before = len(story.hooks.inbox("?limit=200"))
    told = story.event(operation=outcome["ref"])
    for answer in (
        story.hooks.tell(told, secret=SCHEMES["standard"].other),
        story.hooks.tell(told, at_s=int(time.time()) - 3_600),
    ):
        assert (answer.status, answer.code) == (401, "bad_signature")
    story.middle()
    assert len(story.hooks.inbox("?limit=200")) == before
    assert story.hooks.outcome(story.name)["state"] == "unknown"
    assert story.hooks.tell(told).json["new"], "the true one is taken all the same"
    story.happened(outcome, "succeeded", evidence=1)


def test_for_nobody(story):
    assert story.hooks.tell(story.event(operation="somebody-else")).status == 200
    story.middle()
    [event] = story.hooks.inbox("?matched=false&limit=1")
    assert (event["event_id"], event["reason"]) == (f"{story.name}-1", "no_operation")
    outcome = story.hooks.unknown(story.name)
    assert story.hooks.evidence(story.name) == []
    matched = story.hooks.ask(
        "operator",
        "POST",
        f"/v1/events/{event['id']}/match",
        {"operation_id": story.name, "note": "their console names it"},
    )
    assert (matched.status, matched.json["state"]) == (200, "succeeded")
    story.happened(outcome, "succeeded", evidence=1)


@pytest.mark.proves("ROW-S-1")
def test_a_failure_after_the_success_opens_it_for_a_person(story):
    outcome = story.hooks.unknown(story.name)
    now_s = int(time.time())
    data = {"operation": outcome["ref"], "id": f"re_{story.name}"}
    story.hooks.tell(story.event(1, "succeeded", created=now_s - 1, version=1, **data))
    assert story.hooks.comes_to(story.name, "succeeded")["status"] == "succeeded"
    story.middle()
    story.hooks.tell(story.event(2, "failed", created=now_s, version=2, **data))
    after = story.hooks.comes_to(story.name, "manual_review")
    assert (after["recovery"], after["acts"]["who"]) == ("needs_operator", "operator")
    story.happened(outcome, "manual_review", evidence=2)
