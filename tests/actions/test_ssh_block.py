"""SSH blocks that can't be meant, and what facts prove: no host is needed for either."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("asyncssh", reason="asyncssh is missing: install doubtless[ssh]")

from tests.actions.told import action

from doubtless.core.model import Shows
from doubtless.engine.contracts import parse_contracts
from doubtless.errors import ContractError
from doubtless.transports.ssh_link import Facts, StepFacts
from doubtless.transports.ssh_script import Step
from doubtless.transports.ssh_status import ABSENT, Clash, StatusRules, Unclear, phase_of
from doubtless.transports.ssh_verdict import Case, can_go_on, verdict

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB"
GOOD = {
    "host": '"deploy@web-1"',
    "credential": '"deploy-key"',
    "host_key": f'"{KEY}"',
    "argv": '["release", "install", "{args.release}"]',
}
STATUS = """
[tools.deploy.ssh.status]
argv = ["release-status"]
phase = "phase"
order = ["downloaded", "restarted"]
[[tools.deploy.ssh.steps]]
name = "restarted"
argv = ["release", "restart"]
"""


def block(more: str = "", **said: str | None) -> str:
    keys = {name: text for name, text in (GOOD | said).items() if text is not None}
    lines = "\n".join(f"{name} = {text}" for name, text in keys.items())
    head = '[tools.deploy]\neffect = "publish"\nbusiness_key = ["release"]\n'
    args = (
        '[tools.deploy.arguments]\ntype = "object"\nrequired = ["release"]\n'
        'properties.release = { type = "string" }\n'
    )
    return f"{head}{args}[tools.deploy.ssh]\n{lines}\n{more}"


@pytest.mark.proves("SSH-14")
@pytest.mark.parametrize(
    ("said", "key"),
    [
        ({"host": '"web-1"'}, "host"),
        ({"host": '"-oProxyCommand=x@web-1"'}, "host"),
        ({"host": '"{args.release}@web-1"'}, "host"),
        ({"host_key": None}, "host_key"),
        ({"host_key": '"ssh-ed25519 AAAA"'}, "host_key"),
        ({"host_key": '"-----BEGIN OPENSSH PRIVATE KEY-----"'}, "host_key"),
        ({"credential": '""'}, "credential"),
        ({"argv": "[]"}, "argv"),
        ({"argv": None}, "argv"),
        ({"argv": '["{args.release}"]'}, "argv"),
        ({"argv": '["A=b", "env"]'}, "argv"),
        ({"markers": '"markers"'}, "markers"),
        ({"markers": '"/var/../etc"'}, "markers"),
        ({"lock": '"../release"'}, "lock"),
        ({"lock_for": '"1h"'}, "lock_for"),
        ({"take_over": '{ lock = "release", held_by = "x" }'}, "argv"),
    ],
)
def test_a_block_that_can_not_be_meant_is_told_with_its_place(said, key, tmp_path):
    with pytest.raises(ContractError) as caught:
        parse_contracts(block(**said), str(tmp_path / "contracts.toml"))
    places = {(each.table, each.key.split(".")[0]) for each in caught.value.problems}
    assert ("tools.deploy.ssh", key) in places
    assert all(each.mend for each in caught.value.problems)


@pytest.mark.proves("SSH-14")
def test_steps_must_stand_in_the_order_of_the_status(tmp_path):
    file = str(tmp_path / "contracts.toml")
    tool = parse_contracts(block(STATUS), file).tools["deploy"]
    assert [step["name"] for step in action(tool)["steps"]] == ["downloaded", "restarted"]
    assert not parse_contracts(block(), file).warnings
    for wrong in ('order = ["restarted", "downloaded"]', 'order = ["downloaded"]'):
        with pytest.raises(ContractError, match="stand so"):
            parse_contracts(
                block(STATUS.replace('order = ["downloaded", "restarted"]', wrong)), file
            )
    warned = parse_contracts(block(STATUS), file).warnings
    assert [each.key for each in warned] == ["status.where"]


DONE = (
    '{"release_id": "r7", "phase": "restarted", "active_revision": "abc", "migration_version": 4}'
)
RULES = StatusRules(
    where={"release_id": "r7"},
    phase="phase",
    order=("downloaded", "migrated", "restarted"),
    equal={"active_revision": "abc"},
    of_phases={"migrated": {"migration_version": 4}},
    never_started=False,
)


@pytest.mark.proves("SSH-10")
@pytest.mark.parametrize(
    ("answer", "phase"),
    [
        ('{"release_id": "r6", "phase": "restarted"}', ABSENT),
        ("[]", ABSENT),
        ('{"release_id": "r7", "phase": "downloaded"}', 0),
        ('{"release_id": "r7", "phase": "migrated", "migration_version": 4}', 1),
        ('{"release_id": "r7", "phase": "migrated", "migration_version": true}', Clash),
        ('{"release_id": "r7", "phase": "migrated", "migration_version": 3}', Clash),
        (f"[{DONE}]", 2),
        ('{"release_id": "r7", "phase": "restarted", "migration_version": 4}', Clash),
        ('{"release_id": "r7", "phase": "burning"}', Clash),
        ('{"release_id": "r7"}', Clash),
        ('[{"release_id": "r7"}, {"release_id": "r7"}]', Clash),
        ("Log in first", Unclear),
        ("", Unclear),
    ],
)
def test_a_status_is_a_phase_or_a_contradiction_or_unclear(answer, phase):
    if isinstance(phase, int):
        assert phase_of(RULES, 0, answer.encode()) == phase
    else:
        with pytest.raises(phase):
            phase_of(RULES, 0, answer.encode())
    with pytest.raises(Unclear, match="ended with 1"):
        phase_of(RULES, 1, answer.encode())


NAMES = RULES.order
facts_of = st.builds(
    Facts,
    base=st.just("/m"),
    claims=st.sampled_from([["run:1:9:9:b:s:own"], ["run:1:9:9:b:s:own", "over:1"], ["void:1"]]),
    steps=st.lists(st.sampled_from([0, 3, None]), max_size=3).map(
        lambda codes: [
            StepFacts(i, NAMES[i], code, None)
            for i, code in enumerate(codes)
            if all(each == 0 for each in codes[:i])
        ]
    ),
    alive=st.sampled_from(["yes", "no", "unsure"]),
    was_seen=st.booleans(),
)


def case_of(facts: Facts, phase: int | None, *, ended: bool) -> Case:
    """Return a case that a host can come to: only a run whose last step has ended is over."""
    last = facts.steps[-1].code if facts.steps else None
    facts.code = last if ended else None
    rules = None if phase is None else RULES
    steps = [Step(name, ("release", name)) for name in NAMES]
    return Case(ref="r", facts=facts, steps=steps, failed_exit=(), rules=rules, phase=phase)


@pytest.mark.proves("SSH-5", "SSH-10")
@given(facts_of, st.sampled_from([None, ABSENT, 0, 1, 2]), st.booleans())
def test_nothing_is_absent_while_it_may_run_and_nothing_done_without_proof(facts, phase, ended):
    case = case_of(facts, phase, ended=ended)
    shows = verdict(case).shows
    stands = facts.run is not None
    if shows is Shows.ABSENT:
        assert not stands
        assert phase != RULES.last or not facts.has_run
    if shows is Shows.APPLIED:
        assert phase == RULES.last or (stands and facts.code == 0)
    if stands and facts.code is None and facts.alive == "unsure" and shows is not Shows.CONFLICT:
        assert shows is Shows.COULD_NOT_ASK
    if can_go_on(case):
        assert stands
        assert facts.code is None
        assert facts.alive == "no"
        assert not facts.steps or (phase is not None and 0 <= phase < RULES.last)
