"""Pages: what is done in them once, what is proven, and what people see. The site counts."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from shutil import which

import pytest
from tests.actions.form_server import Forms
from tests.actions.form_stage import SECRET, House, contracts, is_gone
from tests.service.serving import Serving, until

from doubtless import Doubtless
from doubtless.engine.contracts import parse_contracts
from doubtless.engine.contracts.block_browser import BrowserTable
from doubtless.errors import ContractError, ExhibitNotFound, NotWatched

pytestmark = [
    pytest.mark.skipif(
        which("chromium") is None, reason="chromium is missing: install the package chromium"
    ),
]
JPEG = b"\xff\xd8\xff"
UNKNOWN = "unknown_reconciliation_required"


@pytest.fixture(scope="module")
def forms():
    with Forms() as found:
        yield found


@pytest.fixture(scope="module")
def house(forms, tmp_path_factory):
    """One service for all of them, with one browser."""
    found = House(tmp_path_factory.mktemp("house"), forms)
    yield found
    found.kill()


def seen(outcome) -> str:
    """Return the class of what the last attempt saw."""
    assert outcome["observation"] is not None, outcome
    return str(outcome["observation"]["class"])


@pytest.mark.proves("BROWSER-1")
def test_a_form_is_sent_once_and_its_confirmation_is_the_answer(house, forms):
    outcome = house.call("send", "ok", "plain")
    again = house.call("send", "ok", "plain")
    assert (outcome["status"], again["already_done"]) == ("succeeded", True), outcome
    assert outcome["result"] == {"receipt": "Thank you. Receipt R-plain"}
    assert forms.count("plain") == 1


@pytest.mark.proves("BROWSER-1")
@pytest.mark.long
def test_what_a_person_is_shown_is_kept_before_after_and_at_the_end(house):
    house.call("send", "ok", "shown-to-people")
    names = house.exhibits("shown-to-people")
    assert {"before.jpg", "before.txt", "after.txt", "end.jpg", "end.txt", "requests.json"} <= {
        *names
    }
    assert "Order form" in house.text("shown-to-people", "before.txt")
    url, title, _, text = house.text("shown-to-people").splitlines()[:4]
    assert url.endswith("/done?id=shown-to-people")
    assert (title, text) == ("Done", "Thank you. Receipt R-shown-to-people")
    told = json.loads(house.text("shown-to-people", "requests.json"))
    assert [each["status"] for each in told["sent"]] == [303]
    with house.seen_by() as app:
        assert app.exhibit("shown-to-people", "end.jpg").startswith(JPEG)
        assert [each.name for each in app.exhibits("shown-to-people")] == names
        with pytest.raises(ExhibitNotFound, match=r"no exhibit 'x\.jpg'"):
            app.exhibit("shown-to-people", "x.jpg")


@pytest.mark.proves("BROWSER-2")
@pytest.mark.parametrize("tool", ["fail", "never_act"])
def test_what_fails_before_the_act_is_proven_not_sent_whatever_the_page_tried(house, forms, tool):
    outcome = house.call(tool, "early", f"{tool}-early")
    assert (outcome["status"], seen(outcome)) == ("failed_safe_to_retry", "not_sent"), outcome
    assert "nothing may act yet" in outcome["transport_observation"]
    assert forms.early == []
    assert forms.count(f"{tool}-early") == 0


@pytest.mark.proves("BROWSER-2")
@pytest.mark.parametrize("mode", ["early", "stray"])
def test_what_a_page_sends_by_itself_or_elsewhere_does_not_leave(house, forms, mode):
    outcome = house.call("send", mode, f"by-itself-{mode}")
    assert outcome["status"] == "succeeded", outcome
    told = json.loads(house.text(f"by-itself-{mode}", "requests.json"))
    assert len(told["sent"]) == 1
    assert any("/early: " in each for each in told["held_back"])
    assert forms.early == []


@pytest.mark.proves("BROWSER-2")
def test_a_confirmation_that_is_there_before_proves_nothing_so_that_nothing_is_done(house, forms):
    outcome = house.call("send", "shown", "too-early")
    assert seen(outcome) == "not_sent"
    assert "#done is shown before anything was done" in outcome["transport_observation"]
    assert forms.count("too-early") == 0


@pytest.mark.proves("BROWSER-3")
@pytest.mark.parametrize("mode", ["cut", "rst", "broken", "hopeful"])
def test_what_the_server_did_not_confirm_goes_straight_to_a_person_and_is_sent_once(
    house, forms, mode
):
    """`rst` is what a browser sends twice by itself, over a connection that it kept."""
    outcome = house.call("send", mode, mode)
    assert (outcome["status"], outcome["state"]) == (UNKNOWN, "manual_review"), outcome
    assert outcome["attempts"] == 1
    assert forms.count(mode) == (0 if mode == "cut" else 1)
    told = json.loads(house.text(mode, "requests.json"))
    assert [each["status"] for each in told["sent"]] == [None if mode in ("cut", "rst") else 500]


@pytest.mark.proves("BROWSER-3")
@pytest.mark.long
def test_two_services_with_one_id_send_the_form_once(house, forms):
    with Serving(house.shell, "--secrets", "secrets") as other, ThreadPoolExecutor() as threads:
        stages = [house.stage, replace(house.stage, serving=other)] * 2
        said = {"mode": "ok", "id": "both"}
        calls = [threads.submit(each.call, "send", "both", **said) for each in stages]
        assert all(call.result().status in (200, 202) for call in calls)
        assert house.comes_to("both", "succeeded")["attempts"] == 1
    assert forms.count("both") == 1


@pytest.mark.proves("BROWSER-3")
def test_a_confirmation_of_a_page_that_sent_nothing_is_none(house, forms):
    outcome = house.call("send", "hollow", "hollow")
    assert outcome["state"] == "manual_review"
    assert "has sent nothing" in outcome["transport_observation"]
    assert forms.count("hollow") == 0


@pytest.mark.proves("BROWSER-4")
@pytest.mark.parametrize("mode", ["twice", "again"])
@pytest.mark.long
def test_a_page_that_sends_the_same_again_is_kept_from_it(house, forms, mode):
    tool = "send_hastily" if mode == "twice" else "send_soon"
    outcome = house.call(tool, mode, mode)
    assert outcome["status"] == ("succeeded" if mode == "twice" else UNKNOWN), outcome
    assert forms.count(mode) == 1
    assert "the same was sent already" in house.text(mode, "requests.json")


@pytest.mark.proves("BROWSER-4")
def test_what_is_said_on_a_socket_waits_for_the_act(house, forms):
    outcome = house.call("send", "socket", "socket")
    assert outcome["status"] == "succeeded", outcome
    assert forms.count("socket") == 1
    assert forms.early == []


@pytest.mark.proves("BROWSER-4")
@pytest.mark.long
def test_a_file_is_not_sent_since_its_content_can_not_be_seen(house, forms):
    outcome = house.call("attach", "file", "file")
    assert outcome["state"] == "manual_review"
    assert "it carries a file" in house.text("file", "requests.json")
    assert forms.count("file") == 0


@pytest.mark.proves("BROWSER-5")
def test_waiting_in_vain_is_unknown_and_the_page_can_be_watched_until_it_is_settled(house, forms):
    outcome = house.call("send_soon", "late", "late")
    assert (outcome["status"], outcome["state"]) == (UNKNOWN, "manual_review"), outcome
    assert forms.count("late") == 1
    answer = house.stage.operator("GET", "/v1/operations/late/exhibits/end.txt")
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"
    with house.seen_by() as app:
        before = app.picture("late")
        assert before.startswith(JPEG)
        forms.release()
        until(lambda: app.picture("late") != before)  # the late answer is there to be seen
        assert house.outcome("late")["state"] == "manual_review"
        app.resolve("late", "done", operator="night-shift", note="the page says so")
        with pytest.raises(NotWatched, match=r"the last picture is the exhibit end\.jpg of att"):
            app.picture("late")
    assert forms.count("late") == 1


@pytest.mark.proves("BROWSER-5")
@pytest.mark.long
def test_a_page_is_left_open_for_a_bounded_time(house):
    house.call("send_briefly", "broken", "briefly")
    assert house.outcome("briefly")["state"] == "manual_review"
    until(lambda: house.stage.operator("GET", "/v1/operations/briefly/live").status == 404)
    refused = house.stage.operator("GET", "/v1/operations/briefly/live")
    assert refused.code == "not_watched"
    assert "end.jpg of attempt 1" in refused.json["detail"]


@pytest.mark.proves("BROWSER-6")
@pytest.mark.long
def test_a_secret_is_in_no_exhibit_and_no_outcome(house, forms):
    outcome = house.call("send_with_password", "echo", "secret")
    assert outcome["status"] == "succeeded", outcome
    house.call("send_with_password", "ok", "dotted")
    assert "before.jpg" in house.exhibits("dotted")
    assert "before.jpg" not in house.exhibits("secret")  # it could be read there
    assert b"me" in forms.bodies  # the contract calls it harmless
    assert b"token=canary-7%2F3%26x" in forms.bodies[-1]
    kept = [house.text("secret", name) for name in house.exhibits("secret") if "jpg" not in name]
    assert "You said [redacted]" in "".join(kept)
    found = [each for each in house.folder.rglob("*") if each.is_file()]
    holders = [each.parent.name for each in found if SECRET.encode() in each.read_bytes()]
    assert holders == ["secrets"]
    assert not [each for each in kept if "canary" in each or "typed by hand" in each]


@pytest.mark.proves("BROWSER-7")
def test_a_script_that_is_missing_is_said_and_nothing_is_done(house):
    outcome = house.call("missing", "ok", "no-script")
    assert seen(outcome) == "not_sent"
    assert "form_scripts:is_not_there is no asynchronous function" in str(
        outcome["transport_observation"]
    )


@pytest.mark.proves("BROWSER-8")
def test_a_process_that_is_killed_takes_its_browser_along_and_what_it_did_is_shown(house, forms):
    for tool, mode, name in (
        ("stay_before", "ok", "before"),
        ("stay_within", "ok", "within"),
        ("send", "late-kill", "sending"),
        ("send", "pending", "waiting"),
    ):
        house.call(tool, "late" if mode == "late-kill" else mode, f"kill-{name}", wait="1ms")
    until(lambda: "before.jpg" in house.exhibits("kill-within"))
    until(lambda: "kill-before" in forms.visits)
    until(lambda: "We are working on it." in house.text("kill-waiting", "after.txt"))
    forms.arrived("kill-sending")
    family = house.family()
    assert len(family) > 3
    house.kill()
    until(lambda: all(map(is_gone, family)))
    forms.go = True
    house.start()
    try:
        for name in ("before", "within", "sending", "waiting"):
            told = house.comes_to(f"kill-{name}", "manual_review")
            assert told["attempts"] == 1
            assert forms.count(f"kill-{name}") == (1 if name in ("sending", "waiting") else 0)
        assert "We are working on it." in house.text("kill-waiting", "after.txt")
        assert "/submit?mode=pending" in house.text("kill-waiting", "after.txt")
        assert house.text("kill-within", "before.txt").startswith(f"{forms.url}/form?")
        refused = house.stage.operator("GET", "/v1/operations/kill-within/live")
        assert "the last picture is the exhibit before.jpg" in refused.json["detail"]
        _settled_and_resumed(house, forms)
    finally:
        forms.go = False


def _settled_and_resumed(house: House, forms: Forms) -> None:
    """A person has looked, and lets it be done; then another process does it, once."""
    with house.seen_by() as app:
        app.resolve("kill-within", "retry", operator="", note="there is no such order")
    outcome = house.comes_to("kill-within", "succeeded")
    assert outcome["attempts"] == 2
    assert forms.count("kill-within") == 1
    with house.seen_by() as app:
        assert {each.attempt for each in app.exhibits("kill-within")} == {1, 2}


@pytest.mark.proves("BROWSER-8")
@pytest.mark.long
def test_a_worker_stopped_past_its_lease_clicks_in_vain_when_it_wakes(forms, agency, tmp_path):
    """It is stopped behind the open gate, before the click; another one of us asks meanwhile."""
    text = contracts(forms).replace('"form_scripts:', '"tests.actions.form_scripts:')
    text = text.replace('timeout = "4s"', 'timeout = "8s"')
    (tmp_path / "contracts.toml").write_text(text, encoding="utf-8")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "shop-login").write_text(SECRET, encoding="utf-8")
    asked = {"mode": "ok", "id": "stopped"}
    place = "behind doubtless.transports.browser_guard.Guard.open"
    with agency.agent(tmp_path, "send_soon", asked, stops=place) as worker:
        worker.stopped()
        with Doubtless.sync(
            f"sqlite:///{tmp_path}/d.db",
            contracts=tmp_path / "contracts.toml",
            secrets=tmp_path / "secrets",
        ) as app:
            other = app.call("send_soon", asked, operation_id="one")
            assert other.status in ("pending", UNKNOWN)  # it joins, and does nothing of its own
            until(lambda: app.outcome("one").state == "manual_review", timeout_s=40)
            worker.wake()
            worker.ended()
            told = app.outcome("one")
    assert forms.count("stopped") == 0
    assert told.status in (UNKNOWN, "failed_safe_to_retry"), told
    assert told.attempts == 1


@pytest.mark.proves("BROWSER-9")
@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("script", '"shop.forms"', "names no function"),
        ("script", '"os; import x:y"', "names no function"),
        ("start_url", '"https://{args.host}/form"', "no origin of its own"),
        ("start_url", '"javascript:alert(1)"', "no origin of its own"),
        ("start_url", '"https://me@shop.example/"', "no origin of its own"),
        ("origins", '["shop.example"]', "is no origin"),
        ("origins", '["https://shop.example/form"]', "is no origin"),
        ("harmless", '["https://shop.example/login"]', "names no request"),
        ("keep_open", '"25h"', "a day at most"),
        ("pace", '{ interval = "1s" }', "no look-up"),
    ],
)
def test_a_block_that_can_not_be_meant_is_told_with_its_place(key, value, wrong):
    said = {"script": '"shop.forms:submit"', "start_url": '"https://shop.example/f"', key: value}
    block = "\n".join(f"{name} = {text}" for name, text in said.items())
    head = '[tools.submit]\neffect = "browser"\n[tools.submit.arguments]\ntype = "object"\n'
    text = f"{head}properties.host = {{ type = 'string' }}\n[tools.submit.browser]\n{block}\n"
    with pytest.raises(ContractError) as caught:
        parse_contracts(text, "contracts.toml")
    found = {(each.table, each.key): each.wrong for each in caught.value.problems}
    assert wrong in found["tools.submit.browser", key]


@pytest.mark.proves("BROWSER-9")
@pytest.mark.parametrize("path", ["@evil.example/", ".evil.example/", ":1/"])
def test_an_argument_can_not_lead_to_another_origin(path):
    text = """
[tools.submit]
effect = "browser"
[tools.submit.arguments]
type = "object"
properties.path = { type = "string" }
[tools.submit.browser]
script = "shop.forms:submit"
start_url = "https://shop.example/{args.path}"
"""
    tool = parse_contracts(text, "contracts.toml").tools["submit"]
    assert tool.action is not None
    members = {**tool.action, "start_url": f"https://shop.example{path}"}
    assert "is not at https://shop.example" in str(BrowserTable.problem(members))
    members = {**tool.action, "start_url": f"https://shop.example/{path}"}
    assert BrowserTable.problem(members) is None


@pytest.mark.proves("BROWSER-1")
@pytest.mark.long
def test_the_terminal_names_what_there_is_to_look_at_and_saves_it(house):
    house.call("send", "broken", "terminal")
    shown = house.shell.here("operations", "show", "terminal")
    assert "What there is to look at" in shown.out
    assert "doubtless operations exhibit terminal end.jpg --output end.jpg" in shown.out
    words = ("operations", "exhibit", "terminal", "end.jpg", "--output", "end.jpg")
    assert house.shell.here(*words).code == 0
    assert (house.folder / "end.jpg").read_bytes().startswith(JPEG)
    again = house.shell.here(*words)
    assert (again.code, "File exists" in again.err) == (2, True)
    assert "Thank you" in house.shell.run("operations", "exhibit", "terminal", "end.txt").out
    none = house.shell.here("operations", "exhibit", "terminal", "none.jpg")
    assert "has no exhibit 'none.jpg'" in none.err
