"""`contracts explain`: each place on a way, and what follows on an unknown."""

import json
import re
from pathlib import Path

import pytest
from tests.engine.contract_texts import FILE, PLAIN, WEBHOOK, refund

from doubtless.core.effects import NO_EFFECT, RULES, Resend
from doubtless.core.model import Effect
from doubtless.engine.contracts import Lookup, build_contract, parse_contracts
from doubtless.engine.contracts.answers import answers_of
from doubtless.engine.contracts.boundary import Known
from doubtless.engine.contracts.explain import explain
from doubtless.engine.contracts.explain_words import EFFECTS, RESENDS, spoken
from doubtless.engine.contracts.report import check_report

DOCS = Path(__file__).parents[2] / "docs"
WITH_WEBHOOK = {f"webhook.{key}": value for key, value in WEBHOOK["webhook"].items()}
BLOCKS = {
    "file": ("file", 'path = "r/{args.name}.md"\ncontent = "x"'),
    "shell": ("shell_write", 'argv = ["make", "install"]\nmarker = true'),
    "git_push": ("publish", 'repository = "w"\nremote = "origin"\nref = "refs/heads/main"'),
    "mail": (
        "message",
        """\
smtp = "mail.example.com:587"
sender = "shop@example.com"
to = "{args.name}"
subject = "s"
text = "t"
sent = { imap = "i.example:993", user = "u", credential = "m", authoritative = true, lag = "30s" }
""",
    ),
    "browser": ("browser", 'script = "shop.forms:send"\nstart_url = "https://shop.example/form"'),
}


def block(kind: str, more: str = "", changes: str = ""):
    effect, text = BLOCKS[kind]
    written = (
        f'[tools.do]\neffect = "{effect}"\n{more}\n'
        '[tools.do.arguments]\ntype = "object"\nproperties.name = { type = "string" }\n'
        f"[tools.do.{kind}]\n{changes or text}\n"
    )
    return parse_contracts(written, FILE).tools["do"]


def ssh():
    page = (DOCS / "actions-ssh.md").read_text(encoding="utf-8")
    text = next(each for each in re.findall(r"```toml\n(.*?)```", page, re.DOTALL))
    return parse_contracts(text, FILE).tools["deploy"]


def said(contract, name: str) -> str:
    return next(each.text for each in explain(contract).on_unknown if each.name == name)


def places(contract) -> dict[str, str]:
    """Return each place on the way with its proof."""
    return {each.name: each.proof for each in explain(contract).path}


# --- the way -------------------------------------------------------------------------------------


@pytest.mark.proves("EXPLAIN-1")
@pytest.mark.parametrize(
    ("kind", "first_doubt", "no_proof"),
    [
        ("file", "the rename", []),
        ("shell", "the marker", []),
        ("git_push", "command and commits", ["command and commits", "the server's hooks"]),
        ("mail", "the final dot", ["the final dot", "the recipient's mailbox"]),
        ("browser", "the click", ["the click", "the site's answer"]),
    ],
)
def test_a_way_tells_where_doubt_begins_and_which_places_prove_nothing(kind, first_doubt, no_proof):
    path = explain(block(kind)).path
    assert [each.name for each in path[:2]] == ["this process", "the ledger"]
    assert "the gate" in [each.name for each in path]
    doubts = [each.name for each in path if each.known is Known.UNKNOWN]
    assert doubts[0] == first_doubt
    assert [each.name for each in path][-len(doubts) :] == doubts
    assert [each.name for each in path if not each.proof] == no_proof
    assert all(each.proof for each in path if each.known is Known.NOT_SENT)


@pytest.mark.proves("EXPLAIN-1")
def test_a_host_speaks_by_its_marker_and_by_its_own_status():
    told = places(ssh())
    assert told["the host's own status"].endswith("restarted: done.")
    assert told["the order to run"] == ""


@pytest.mark.proves("EXPLAIN-1")
@pytest.mark.parametrize(
    ("boundary", "speaks"),
    [
        ("ingress", "the provider's ingress"),
        ("worker", "the provider's worker"),
        ("object", "the provider's object"),
        ("provider", "the provider's object"),
    ],
)
def test_a_look_up_stands_at_the_place_that_it_speaks_for_and_the_others_prove_nothing(
    boundary, speaks
):
    told = places(refund({"lookup.boundary": f'"{boundary}"'}))
    proven = [name for name, proof in told.items() if "GET /v1/refunds" in proof]
    assert proven == [speaks]
    of_provider = [name for name in told if name.startswith("the provider's")]
    assert [name for name in of_provider if not told[name]] == [
        name for name in of_provider if name != speaks
    ]
    assert told["the first byte"] == ""
    assert told["name, connection, encryption"] != ""


@pytest.mark.proves("EXPLAIN-1")
def test_a_function_is_told_apart_from_a_request():
    look = Lookup("shop.orders:find", authoritative=True, lag="0s")
    told = places(build_contract("ticket", effect="write", lookup=look))
    assert "shop.orders:find" in told["what it reaches"]
    assert told["call.applied(…)"] == "its word: done, whatever fails after it."


@pytest.mark.proves("EXPLAIN-1")
def test_what_only_a_recorded_sending_can_tell_is_told():
    assert "it is unknown" in explain(refund()).if_we_die
    assert "nothing was sent" not in explain(refund()).if_we_die
    recorded = explain(refund({"record_sending": "true"})).if_we_die
    assert "nothing was sent" in recorded


# --- on an unknown -------------------------------------------------------------------------------


@pytest.mark.proves("EXPLAIN-2")
def test_the_numbers_are_the_contract_s_own():
    contract = refund({"timeout": '"20s"', "lookup.interval": '"7s"', "on_absent": '"resend"'})
    told = said(contract, "not done")
    assert "2 minutes 50 seconds after it was sent" in told  # 20 s, 2 m, 30 s
    assert "Seen 3 times, 7 seconds apart" in told
    assert "sent again by itself" in told
    assert "under the same key, once at most" in told
    assert "First about 7 seconds" in said(contract, "looked up")


@pytest.mark.proves("EXPLAIN-2")
@pytest.mark.parametrize(
    ("on_absent", "sentence"),
    [
        ("report", "failed_safe_to_retry"),
        ("review", "Then a person is asked."),
        ("resend", "Then it is sent again by itself"),
    ],
)
def test_what_follows_on_proof_that_it_was_not_done_is_told(on_absent, sentence):
    told = said(refund({"on_absent": f'"{on_absent}"'}), "not done")
    assert sentence in told
    assert ("sent again by itself, the same" in told) == (on_absent == "resend")


@pytest.mark.proves("EXPLAIN-2")
def test_where_nothing_is_left_a_person_is_asked_at_once_and_else_at_the_deadline():
    bare = refund({**PLAIN, "request.json": None})
    assert said(bare, "a person").startswith("At once")
    assert said(refund(), "a person").startswith("If nothing has settled it 15 minutes after")
    never = refund({"review": '"none"'})
    assert "a person is asked" not in said(never, "a person")
    assert "never sent again" in said(never, "a person")


@pytest.mark.proves("EXPLAIN-2")
def test_a_page_is_never_repeated_nor_looked_up_by_itself():
    told = explain(block("browser"))
    assert [each.name for each in told.on_unknown] == ["meanwhile", "a person"]
    assert "never repeated by itself, and never looked up" in told.means
    assert "look-again" not in [each.name for each in told.decisions]


@pytest.mark.proves("EXPLAIN-2")
def test_a_key_that_lives_is_told_with_its_last_send():
    keyed = refund({"effect": '"idempotent_call"', "lookup": None})
    assert "4 times at most" in said(keyed, "sent again")
    # 24 h, less 5 %, 5 s of stalling, 30 s of an attempt and 2 m on the way.
    assert "the last send begins 22 hours 45 minutes after the first" in said(keyed, "sent again")
    reported = refund({"effect": '"idempotent_call"', "lookup": None, "on_absent": '"report"'})
    assert "sent again" not in [each.name for each in explain(reported).on_unknown]


@pytest.mark.proves("EXPLAIN-2")
def test_events_are_told():
    changes = {**PLAIN, "events.types": '["refund.done"]', "events.match": '{ ref = "data.ref" }'}
    contract = refund(changes, WITH_WEBHOOK)
    assert said(contract, "an event").startswith("A signed refund.done settles it")
    assert "an event (refund.done)" in places(contract)["the provider's object"]


@pytest.mark.proves("EXPLAIN-2")
@pytest.mark.parametrize("effect", sorted(NO_EFFECT))
def test_what_has_no_effect_is_never_unknown(effect):
    told = explain(refund({**PLAIN, "effect": f'"{effect}"'}))
    assert [each.name for each in told.on_unknown] == ["never"]
    assert "3 times at most" in told.on_unknown[0].text
    assert told.decisions == ()
    assert told.more_automatic == ()


# --- why, and what would make it more automatic --------------------------------------------------


@pytest.mark.proves("EXPLAIN-3")
@pytest.mark.parametrize(
    ("changes", "why", "more"),
    [
        ({**PLAIN, "request.json": None}, "declares no look-up", "declare a look-up"),
        ({"lookup.authoritative": "false"}, "proves nothing", "say authoritative = true"),
        ({}, 'on_absent = "report", the default of this effect', 'on_absent = "resend" sends'),
        ({"idempotency": None}, "No key of the provider's", "a key of the provider's"),
        ({"on_absent": '"review"'}, '"review", as its contract says', 'on_absent = "report" lets'),
    ],
)
def test_the_reason_and_its_mend_are_told(changes, why, more):
    told = explain(refund(changes))
    assert any(why in each for each in told.why)
    assert any(more in each for each in told.more_automatic)


@pytest.mark.proves("EXPLAIN-3")
def test_nothing_is_asked_for_where_all_is_there():
    assert explain(refund({"on_absent": '"resend"'})).more_automatic == ()
    assert explain(block("file")).more_automatic == ()


@pytest.mark.proves("EXPLAIN-3")
@pytest.mark.parametrize(
    ("kind", "changes", "mend"),
    [
        ("shell", 'argv = ["make"]\nmarker = false', "marker = true"),
        ("mail", BLOCKS["mail"][1].partition("sent =")[0], "[tools.X.mail.sent]"),
        ("mail", BLOCKS["mail"][1].replace(", authoritative = true", ""), "authoritative = true"),
        ("browser", "", "declare that as a request"),
    ],
)
def test_a_block_that_can_not_be_asked_says_what_would_do(kind, changes, mend):
    contract = block(kind, changes=changes)
    told = explain(contract)
    assert not told.fully_automatic
    assert [each for each in told.more_automatic if mend in each]
    assert explain(block(kind)).fully_automatic is (kind != "browser")


# --- blocks in `contracts check` -----------------------------------------------------------------


@pytest.mark.proves("EXPLAIN-4")
@pytest.mark.parametrize("kind", ["file", "shell", "git_push", "mail"])
def test_a_block_that_can_be_asked_answers_all_questions_in_its_own_words(kind):
    answers = answers_of(block(kind))
    assert answers.automatic
    assert answers.ties
    assert answers.asks
    assert len(answers.proofs) == 2
    assert not any("its id" in each or "None" in each for each in answers.proofs)


@pytest.mark.proves("EXPLAIN-4")
def test_a_command_that_only_reads_is_run_again_and_so_is_automatic():
    writes = block("shell", changes='argv = ["df"]\nmarker = false')
    assert not answers_of(writes).automatic
    reads = parse_contracts(
        '[tools.df]\neffect = "shell_read"\n[tools.df.shell]\nargv = ["df"]', FILE
    ).tools["df"]
    assert answers_of(reads).automatic
    assert "it is sent again, once" in answers_of(reads).unknown
    assert said(reads, "a person").startswith("If that does not settle it either")


@pytest.mark.proves("EXPLAIN-4")
def test_a_block_without_answers_says_what_would_give_one():
    text = '[tools.do]\neffect = "browser"\n[tools.do.browser]\n' + BLOCKS["browser"][1]
    report = check_report(parse_contracts(text, FILE))
    assert "    nowhere: nothing in a page; where the site has an API" in report
    assert "declare the provider's key" not in report


@pytest.mark.proves("EXPLAIN-4")
def test_a_key_that_the_block_fills_in_is_not_missed():
    by_argument = BLOCKS["git_push"][1].replace("main", "{args.name}")
    text = (
        '[tools.do]\neffect = "publish"\n[tools.do.arguments]\ntype = "object"\n'
        'required = ["name"]\nproperties.name = { type = "string" }\n[tools.do.git_push]\n'
    )
    missed = [each.key for each in parse_contracts(text + by_argument, FILE).warnings]
    assert "business_key" not in missed
    fixed = [each.key for each in parse_contracts(text + BLOCKS["git_push"][1], FILE).warnings]
    assert "business_key" in fixed


# --- words ---------------------------------------------------------------------------------------


def test_every_effect_has_its_words():
    assert EFFECTS.keys() == RULES.keys() == set(Effect)
    assert RESENDS.keys() == set(Resend)


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "no time"),
        (1, "1 millisecond"),
        (1_500, "1 second 500 milliseconds"),
        (90_000, "1 minute 30 seconds"),
        (3_600_000, "1 hour"),
        (86_400_000, "24 hours"),
        (3 * 86_400_000 + 60_000, "3 days 1 minute"),
    ],
)
def test_times_are_said_in_words(ms, words):
    assert spoken(ms) == words


@pytest.mark.proves("EXPLAIN-1")
def test_the_same_is_there_for_programs():
    told = json.loads(json.dumps(explain(refund()).to_json()))
    assert told["tool"] == "refund"
    assert told["path"][0] == {
        "name": "this process",
        "known": "not sent",
        "means": "It takes the call, and records it before anything else.",
        "proof": "none is needed: nothing is sent that is not recorded.",
    }
    assert told["on_unknown"][0]["name"] == "meanwhile"
