"""What a contract may not say: whatever is looser than its effect, or can't be true.

Each check is one function; `ERRORS` and `WARNINGS` list them. A shorter duration or fewer
confirmations than the default is not looser: only the row of the effect is a floor.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from doubtless.core.contract import OnAbsent, Stores
from doubtless.core.effects import NO_EFFECT, Resend
from doubtless.core.model import Effect
from doubtless.engine.contracts.draft import Check, Draft
from doubtless.engine.contracts.file import MATCHES
from doubtless.engine.contracts.rules_blocks import BLOCK_ERRORS, BLOCK_WARNINGS
from doubtless.engine.contracts.rules_http import HTTP_ERRORS, HTTP_WARNINGS
from doubtless.engine.contracts.rules_lookups import LOOKUP_ERRORS, LOOKUP_WARNINGS
from doubtless.engine.contracts.rules_times import TIME_ERRORS
from doubtless.engine.contracts.values import near
from doubtless.engine.templates import names_in
from doubtless.errors import Problem

ABSENCE_FIRST: Final = frozenset({Resend.AFTER_ABSENCE, Resend.AFTER_ABSENCE_WITH_KEY})
FORGETFUL: Final = frozenset({Stores.SUCCESS_ONLY, Stores.REEXECUTES_FAILED})
OF_OTHER_TRANSPORTS: Final = frozenset({Effect.FILE, Effect.SHELL_READ, Effect.SHELL_WRITE})
DEBATABLE_STATUSES: Final = (307, 425, 429)  # some providers answer them after acting


def untold_errors(draft: Draft, told: Sequence[Problem]) -> list[Problem]:
    """Return the errors of one tool, but for mere consequences of what was told already.

    Deadlines follow from many keys: they are judged only where none was malformed.
    """
    places = {(problem.table, problem.key) for problem in told}
    checks = (*ERRORS, *(TIME_ERRORS if draft.whole else ()))
    found = [problem for check in checks for problem in check(draft)]
    return [problem for problem in found if (problem.table, problem.key) not in places]


def warnings_in(draft: Draft) -> Iterator[Problem]:
    """Yield what loads and should be known."""
    for check in WARNINGS:
        yield from check(draft)


def _resend(draft: Draft) -> Iterator[Problem]:
    """`on_absent = "resend"`, said in so many words, where the effect does not allow it."""
    contract, rule = draft.contract, draft.rule
    if draft.said.on_absent is not OnAbsent.RESEND:
        return
    effect, key = contract.effect.value, contract.key
    if rule.resend is Resend.NEVER:
        wrong = f"{effect} is never sent again after an unknown."
        yield draft.problem("", "on_absent", wrong, 'say "review", or leave it out.')
        return
    needs_key = rule.resend is Resend.AFTER_ABSENCE_WITH_KEY
    if needs_key and (key is None or key.ttl_ms is None):
        yield draft.problem(
            "",
            "on_absent",
            f"{effect} is sent again only under a live key, and no key with a ttl is declared.",
            'declare [….idempotency] with its ttl, or say "report".',
        )
    elif key is not None and key.ttl_ms is None:
        yield draft.problem(
            "idempotency",
            "ttl",
            "nothing says how long the key lives, so nothing can be sent again under it.",
            'say how long the provider keeps keys, or on_absent = "report".',
        )
    forgets = key is not None and key.stores in FORGETFUL
    partly = rule.resend is Resend.REPLAYED and forgets
    needs_absence = rule.resend in ABSENCE_FIRST or partly
    if needs_absence and not contract.proving_lookups and not contract.duplicates_acceptable:
        yield draft.problem(
            "",
            "on_absent",
            "it is sent again only after a confirmed absence, and no look-up can prove one.",
            'declare a look-up with authoritative = true, or say "report" or "review".',
        )


def _resends(draft: Draft) -> Iterator[Problem]:
    said, rule = draft.said.retry.resend, draft.rule
    never = rule.resend is Resend.NEVER
    once = draft.contract.effect in {Effect.FILE, Effect.SHELL_READ}
    if said is not None and ((never and said > 0) or (once and said > 1)):
        allowed = 0 if never else 1
        yield draft.problem(
            "retry",
            "resend",
            f"{draft.contract.effect.value} allows {allowed} after an unknown.",
            f"say {allowed}, or leave it out.",
        )


def _duplicates(draft: Draft) -> Iterator[Problem]:
    if draft.contract.duplicates_acceptable and draft.rule.irreversible:
        yield draft.problem(
            "",
            "duplicates",
            f"a duplicate of {draft.contract.effect.value} is irreversible, and never acceptable.",
            'say "never", or leave it out.',
        )


def _condition(draft: Draft) -> Iterator[Problem]:
    effect, said, contract = draft.contract.effect, draft.said.condition, draft.contract
    if effect is Effect.CONDITIONAL_UPDATE and (said is None or said.value is None):
        yield draft.problem(
            "condition",
            "value",
            "conditional_update needs the version that it is conditional on.",
            'say header = "If-Match", value = "{args.etag}", version_reuse = false.',
        )
    if effect is Effect.KEYED_CREATE and (said is None or not said.id or not names_in(said.id)):
        yield draft.problem(
            "condition",
            "id",
            "keyed_create needs the id that the caller chooses for the object.",
            'say id = "{operation.ref}", as the request carries it.',
        )
    if said is None:
        return
    if said.value is not None and said.version_reuse is None:
        yield draft.problem(
            "condition",
            "version_reuse",
            "nothing says whether a version can come back.",
            "say false if the provider never gives a version twice, else true.",
        )
    if said.version_reuse and contract.on_absent is OnAbsent.RESEND:
        yield draft.problem(
            "",
            "on_absent",
            "versions may repeat, so that a repeat could meet the old version again.",
            'say "report" or "review", or version_reuse = false if that is true.',
        )
    if said.header is not None and said.value is None:
        yield draft.problem("condition", "value", "the header has no value.", "say the version.")
    yield from _carried(draft)


def _carried(draft: Draft) -> Iterator[Problem]:
    """Yield what the condition names and the request does not carry."""
    said, request = draft.said.condition, draft.said.request
    if said is None or request is None:
        return
    carried = names_in(
        [request.path, request.query, dict(request.headers), request.json_body, request.form]
    )
    if said.id is not None and not names_in(said.id) <= carried:
        yield draft.problem(
            "condition",
            "id",
            "the request does not carry this id.",
            "put the same template into the request's path, json, form or query.",
        )
    if said.value is not None and said.header is None and not names_in(said.value) <= carried:
        yield draft.problem(
            "condition",
            "header",
            "the request does not carry this version.",
            'say header = "If-Match", or put the same template into the request.',
        )


def _key(draft: Draft) -> Iterator[Problem]:
    said, request = draft.said.idempotency, draft.said.request
    if said is None:
        if draft.contract.effect is Effect.IDEMPOTENT_CALL:
            yield draft.problem(
                "",
                "idempotency",
                "idempotent_call means that the provider takes a key, and none is declared.",
                'add [….idempotency] with header = "Idempotency-Key" and ttl = "24h", or say '
                'effect = "write".',
            )
        return
    places = [name for name in ("header", "field", "query") if getattr(said, name) is not None]
    if draft.is_http and len(places) != 1:
        yield draft.problem(
            "idempotency",
            places[1] if places else "header",
            "the key has one place, and one only.",
            'say header = "Idempotency-Key", or field = "…", or query = "…".',
        )
    if request is None:
        return
    field, query = said.field, said.query
    body = request.form if request.form is not None else request.json_body
    if field is not None and body is not None and not isinstance(body, dict):
        yield draft.problem("idempotency", "field", "the body is no object.", "use a header.")
    if (field is not None and isinstance(body, dict) and field in body) or (
        query is not None and query in request.query
    ):
        yield draft.problem(
            "idempotency",
            "field" if field is not None else "query",
            "the request declares a member of that name too.",
            "take it out of the request: the key is put there.",
        )


def _names(draft: Draft) -> Iterator[Problem]:
    """Arguments that the tool's own keys name."""
    if not draft.arguments_whole:
        return
    said, declared = draft.said, sorted(draft.properties())
    for name in said.business_key:
        if name not in declared:
            yield draft.problem(
                "", "business_key", f"{name!r} is no declared argument.", near(name, declared)
            )
        elif name not in draft.required():
            yield draft.problem(
                "",
                "business_key",
                f"{name!r} is optional, and the object acted on must always be named.",
                "list it in arguments.required.",
            )
    for name in said.volatile:
        if name not in declared:
            yield draft.problem(
                "", "volatile", f"{name!r} is no declared argument.", near(name, declared)
            )
        elif name in said.business_key:
            yield draft.problem(
                "", "volatile", f"{name!r} is in business_key too.", "keep it in one of them."
            )


def _events(draft: Draft) -> Iterator[Problem]:
    said = draft.said.events
    if said is None:
        return
    if not draft.webhook:
        yield draft.problem(
            "",
            "events",
            "its source declares no webhook, so that no event can come.",
            "add [sources.….webhook] with scheme and credential.",
        )
    if not said.types:
        yield draft.problem("events", "types", "it is empty.", "name the types of its events.")
    if not said.match:
        yield draft.problem(
            "events", "match", "nothing ties an event to an operation.", near("", MATCHES)
        )
    for name in said.match:
        if name not in MATCHES:
            yield draft.problem(
                "events", f"match.{name}", f"there is no key {name!r} here.", near(name, MATCHES)
            )


def _belongs(draft: Draft) -> Iterator[Problem]:
    """Keys that stand with an effect or a kind of tool to which they don't belong."""
    said, contract = draft.said, draft.contract
    if said.read is not None and contract.effect is not Effect.READ:
        yield draft.problem(
            "", "read", "only a read has consistency rules.", 'say effect = "read", or drop it.'
        )
    if said.completes_within is not None and said.response.completes_within is not None:
        yield draft.problem(
            "", "completes_within", "response.completes_within is said too.", "keep one of them."
        )
    if said.request is not None and contract.effect in OF_OTHER_TRANSPORTS:
        yield draft.problem(
            "",
            "effect",
            f"{contract.effect.value} acts on this host, and a request on another.",
            'say "write", "delete" or what else it does there.',
        )
    if contract.effect is Effect.TIME_SENSITIVE and said.valid_for is None:
        yield draft.problem(
            "",
            "valid_for",
            "time_sensitive is worth doing only now, and nothing says for how long.",
            'say it: valid_for = "2m".',
        )


def _variants(draft: Draft) -> Iterator[Problem]:
    if draft.rule.irreversible and not draft.contract.business_key:
        yield draft.problem(
            "",
            "business_key",
            f"{draft.contract.effect.value} is irreversible, and a slightly different call would "
            "pass while the first is in doubt.",
            "name the arguments that say which object is acted on.",
        )


def _believed(draft: Draft) -> Iterator[Problem]:
    response = draft.said.response
    if not (draft.is_http and draft.rule.irreversible) or draft.contract.key:
        return
    believed = [
        str(status)
        for status in DEBATABLE_STATUSES
        if status in draft.contract.response.not_processed
    ]
    if believed and response.not_processed is None:
        yield draft.problem(
            "response",
            "not_processed",
            f"{', '.join(believed)} are believed to mean that nothing was done, without a key.",
            "say not_processed = [429] if the provider documents it, or list them as unproven.",
        )


def _keys_that_do_nothing(draft: Draft) -> Iterator[Problem]:
    if draft.contract.effect not in NO_EFFECT:
        return
    for name in ("idempotency", "lookup", "events", "on_absent", "recovery_deadline"):
        if getattr(draft.said, name):
            yield draft.problem(
                "",
                name,
                f"{draft.contract.effect.value} is never unknown, so that this is never used.",
                "leave it out.",
            )


def _endless(draft: Draft) -> Iterator[Problem]:
    events = draft.contract.events
    if events is not None and events.authoritative and not (events.applied or events.failed):
        yield draft.problem(
            "events",
            "applied",
            "no event says how the work ended, so that none of them settles anything.",
            "say which ones do: applied = \"data.status == 'succeeded'\".",
        )


def _no_life(draft: Draft) -> Iterator[Problem]:
    key = draft.contract.key
    if key is not None and key.ttl_ms is None and draft.contract.effect not in NO_EFFECT:
        yield draft.problem(
            "idempotency",
            "ttl",
            "nothing says how long the key lives, so nothing is ever sent again under it.",
            "say how long the provider keeps keys.",
        )


ERRORS: Final[tuple[Check, ...]] = (
    *HTTP_ERRORS,
    _resend,
    _resends,
    _duplicates,
    _condition,
    _key,
    _names,
    _events,
    _belongs,
    *LOOKUP_ERRORS,
    *BLOCK_ERRORS,
)
WARNINGS: Final[tuple[Check, ...]] = (
    _variants,
    _believed,
    _keys_that_do_nothing,
    _endless,
    _no_life,
    *LOOKUP_WARNINGS,
    *BLOCK_WARNINGS,
    *HTTP_WARNINGS,
)
