"""SSH: steps on a host, run apart from the link under a marker that outlives it.

**What runs.** A program for a POSIX shell is sent over the channel and asks for an order. Until the
order to go was handed to the link nothing was done, provably. Then a job is run in a session of its
own; it goes on when the link breaks, and writes down what becomes of it in a folder that is called
after the operation's reference, each file whole by a rename.

**The fence.** The folder is made by `mkdir`, and in it the numbered claims `claim.1`, `claim.2`, …,
each a symbolic link: it is made in one call together with what it says, so that nothing is ever
half claimed. The job of attempt 3 runs only if it makes the claim `run:3:…`, and it comes to that
only past claims that void earlier attempts. Then `mkdir` fences the run and each of its steps. So
an operation can't run twice, whatever arrives late or twice.

**Absence.** That there is no marker proves nothing while a program that was sent may still arrive.
So a look first claims `void:3`, against the attempts up to 3, and only then says absent: whatever
of them arrives later finds that claim and ends. The claim changes nothing but our own marker. The
job also refuses to begin after the attempt's time, by the host's own clock.

**A run that died** without an end proves nothing about its effect, unless no step had begun. Only
where the host's own status command says how far it got, and no process of the run's group lives, a
look claims `over:3`; a later attempt goes on after the reported phase.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

import anyio
import rfc8785

from doubtless.core.model import Cause, Json, Seen, Shows, Stage
from doubtless.errors import GateClosed, NotSent
from doubtless.transports.base import (
    Errand,
    Gate,
    Halt,
    Reply,
    Sighting,
    Watch,
    Workplace,
    could_not_ask,
)
from doubtless.transports.ssh_link import Conversation, Facts, LinkLost, NoLink, talking
from doubtless.transports.ssh_script import steps_of
from doubtless.transports.ssh_status import ABSENT, Clash, StatusRules, Unclear, phase_of
from doubtless.transports.ssh_verdict import Case, can_go_on, verdict

SURVEY_S: Final = 60.0
CLAIMS_TRIED: Final = 3  # a look whose claim meets another one looks again

NOTHING_RAN: Final[Mapping[int, str]] = {
    10: "a look had ruled this attempt out before it came there",
    11: "the lock was taken meanwhile",
    12: "an earlier attempt had begun there",
    13: "the host can't write its markers: is its disk full?",
    14: "the lock that this operation had was taken over",
    15: "it came there too late, by the host's clock",
}
"""How a job ends that did nothing."""

PROOFS: Final[Mapping[Shows, Seen]] = {
    Shows.APPLIED: Seen.SUCCEEDED,
    Shows.NOT_APPLIED: Seen.REJECTED,
    Shows.IN_PROGRESS: Seen.ACCEPTED,
}


class SshTransport:
    """Runs steps on hosts, and asks hosts what became of them."""

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace

    async def survey(self, errand: Errand) -> Json:
        """Make the place for markers, and say which it is and what the host reports.

        Nothing but that place is changed: what can't be marked must not be run.

        Raises:
            NotSent: The host can't be asked, or can't write there.
        """
        try:
            with anyio.fail_after(SURVEY_S):
                async with talking(errand, self._workplace) as talk:
                    facts = await talk.asked("prepare")
                    if facts.unwritable is not None or facts.base_id is None:
                        why = facts.unwritable or "no link can be made in it"
                        raise NotSent(f"{facts.base} on the host can't be written to: {why}")
                    phase = await _phase(talk, errand)
                    return {"base": facts.base, "id": facts.base_id, "phase": phase}
        except (NoLink, LinkLost, Unclear, Clash) as error:
            raise NotSent(str(error)) from error
        except TimeoutError as error:
            raise NotSent(f"the host did not answer within {SURVEY_S:.0f} s") from error

    async def perform(self, errand: Errand, *, gate: Gate, watch: Watch, limit_s: float) -> Reply:
        """Run the steps once; see `ActionTransport.perform`."""
        watch.stage = Stage.CONNECTING
        try:
            with anyio.fail_after(limit_s):
                async with talking(errand, self._workplace) as talk:
                    return await self._perform(errand, talk, gate, watch, limit_s)
        except (NoLink, NotSent, GateClosed) as error:
            return Reply(stage=watch.stage, proof=_unsent(watch), detail=str(error))
        except LinkLost as error:
            told = f"the link to the host broke: {error}"
            cause = Cause.CONNECTION_RESET
            return Reply(stage=watch.stage, proof=_unsent(watch), cause=cause, detail=told)
        except TimeoutError:
            told = "the host said nothing more in time"
            return Reply(stage=watch.stage, proof=_unsent(watch), cause=Cause.TIMEOUT, detail=told)

    async def _perform(
        self, errand: Errand, talk: Conversation, gate: Gate, watch: Watch, limit_s: float
    ) -> Reply:
        facts = await talk.asked("report")
        _be_free(errand, facts)
        try:
            phase = await _phase(talk, errand)
        except (Unclear, Clash) as error:
            raise NotSent(str(error)) from error
        first = _first_step(errand, facts, phase)
        if first is None:
            told = "the host reports that it is done already; nothing was run"
            return Reply(stage=watch.stage, proof=Seen.REJECTED, detail=told)
        watch.stage = Stage.GATE
        write_by_s = await gate()
        if not self._workplace.boot_s() <= write_by_s:
            raise GateClosed("the time to begin was over")
        watch.stage, watch.sent_bytes = Stage.SENT, 1
        talk.order("go", first, int(limit_s))
        watch.first_byte_s, watch.written = self._workplace.boot_s(), True
        facts = await talk.facts()
        watch.stage = Stage.READ
        if (why := NOTHING_RAN.get(facts.ran or 0)) is not None:
            held = f" by {facts.holder}" if facts.ran == 11 and facts.lock else ""
            return Reply(stage=Stage.READ, proof=Seen.NOT_PROCESSED, detail=f"{why}{held}")
        if facts.run is None:
            told = f"the job on the host ended with {facts.ran} and left no claim"
            return Reply(stage=Stage.READ, cause=Cause.TOOL_ERROR, detail=told)
        try:
            return _reply(verdict(_case(errand, facts, await _phase(talk, errand))))
        except Unclear as error:
            return Reply(stage=Stage.READ, cause=Cause.UNREADABLE, detail=str(error))
        except Clash as error:
            return Reply(stage=Stage.READ, cause=Cause.CONTRADICTION, detail=str(error))

    async def look(self, errand: Errand, *, limit_s: float) -> Sighting:
        """Ask the marker, and the host's status before it; see `ActionTransport.look`.

        Where nothing began, the attempts so far are ruled out first: see the module's text.
        """
        try:
            async with talking(errand, self._workplace) as talk:
                return await _look(errand, talk)
        except (NoLink, LinkLost, Unclear) as error:
            return could_not_ask(str(error))
        except Clash as error:
            return Sighting(shows=Shows.CONFLICT, detail=str(error))

    async def stop(self, errand: Errand) -> Halt:
        """End all processes of its run: SIGTERM, and SIGKILL after ten seconds.

        Raises:
            NotSent: Nothing of it runs there, or its processes can't be told from others.
        """
        try:
            async with talking(errand, self._workplace) as talk:
                facts = await talk.asked("stop")
        except (NoLink, LinkLost) as error:
            raise NotSent(str(error)) from error
        if facts.signalled is None:
            raise NotSent("nothing of it runs on the host that could be ended")
        over = facts.alive == "no" or facts.code is not None
        return Halt(signalled=(facts.signalled,), left=() if over else (facts.signalled,))

    async def aclose(self) -> None:
        """Nothing is kept open."""


async def _look(errand: Errand, talk: Conversation) -> Sighting:
    facts = await talk.asked("report")
    for _ in range(CLAIMS_TRIED):
        if (why := _wrong_place(errand, facts)) is not None:
            return could_not_ask(why)
        case = _case(errand, facts, await _phase(talk, errand))
        if facts.run is None and facts.voided >= errand.attempt:
            return verdict(case)
        if facts.run is None:
            claim = f"void:{errand.attempt}"
        elif can_go_on(case):
            claim = f"over:{errand.attempt}"
        else:
            seen = verdict(case)
            if seen.shows is Shows.IN_PROGRESS and not facts.was_seen:
                await talk.asked("seen")
            return seen
        facts = await talk.asked("mark", len(facts.claims) + 1, claim)
    return could_not_ask("the host can't write its markers, or others write them too")


async def _phase(talk: Conversation, errand: Errand) -> int | None:
    """Ask the host's own status command, where there is one."""
    rules = StatusRules.of(errand.action.members)
    return None if rules is None else phase_of(rules, *await talk.status())


def _wrong_place(errand: Errand, facts: Facts) -> str | None:
    """Say why what is there proves nothing: it is not where this operation's marker would be."""
    known = cast("Mapping[str, Json]", errand.baseline)
    if facts.base_id == known["id"] and facts.base == known["base"]:
        return None
    what = "is gone" if facts.base_id is None else "is another one"
    return f"the folder of markers {known['base']} {what}: it can't say what was run there"


def _be_free(errand: Errand, facts: Facts) -> None:
    """Be sure that nothing stands in the way of a run.

    Raises:
        NotSent: Something does.
    """
    if (why := _wrong_place(errand, facts)) is not None:
        raise NotSent(why)
    if facts.run is not None:
        raise NotSent(f"attempt {facts.run.split(':')[1]} has begun there, and is not run again")
    if facts.voided >= errand.attempt:
        raise NotSent(NOTHING_RAN[10])
    if facts.was_taken:
        raise NotSent(NOTHING_RAN[14])
    if facts.lock_ref not in ("", errand.ref):
        raise NotSent(f"the lock is held by {facts.holder}")
    steps = steps_of(errand.action.members)
    if facts.missing:
        names = ", ".join(repr(steps[index].argv[0]) for index in facts.missing)
        raise NotSent(f"the host has no program {names}")


def _first_step(errand: Errand, facts: Facts, phase: int | None) -> int | None:
    """Return the step to begin with; None: nothing is left to be done, and nothing of it is ours.

    What the host reports as reached is never done again, whoever did it.
    """
    rules, steps = StatusRules.of(errand.action.members), steps_of(errand.action.members)
    if rules is None or phase is None:
        return 0
    if phase == ABSENT and facts.has_run and not rules.never_started:
        raise NotSent("the host's status says nothing of a run that began and died")
    first = rules.next_step(phase, steps)
    return first if first < len(steps) else None


def _case(errand: Errand, facts: Facts, phase: int | None) -> Case:
    members = errand.action.members
    known = cast("Mapping[str, Json]", errand.baseline)
    return Case(
        ref=errand.ref,
        facts=facts,
        steps=steps_of(members),
        failed_exit=cast("Sequence[int]", members.get("failed_exit", ())),
        rules=StatusRules.of(members),
        phase=phase,
        before=cast("int | None", known["phase"]),
    )


def _unsent(watch: Watch) -> Seen | None:
    return Seen.NOT_SENT if watch.sent_bytes == 0 else None


def _reply(seen: Sighting) -> Reply:
    """Return what was seen at the end of a run as the answer to it."""
    done = seen.shows is Shows.APPLIED
    reply = Reply(
        stage=Stage.READ,
        proof=PROOFS.get(seen.shows),
        detail=seen.detail,
        complete=True,
        provider_operation_id=seen.provider_operation_id,
        body=rfc8785.dumps(seen.result) if done and seen.result is not None else b"",
    )
    return reply if reply.proof is not None else replace(reply, cause=Cause.TOOL_ERROR)
