"""The simulated provider's idempotency layer, in the manners that real providers document.

What a key means is decided by the rules of our own middleware for providers; where real providers
differ from those, a setting says so.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Final

from doubtless.integrations import idempotency_rules as rules
from doubtless.integrations.idempotency_desk import Desk
from doubtless.integrations.idempotency_desk import Settings as DeskSettings
from doubtless.testing.provider_http import Answer
from doubtless.testing.provider_rules import Settings
from doubtless.testing.provider_store import Item

_NO_END_MS: Final = 10**12  # executions are never taken for dead here
_DESK: Final = Desk(DeskSettings(), [])


def _now_ms() -> int:
    return int(time.time() * 1000)


@dataclass(slots=True, kw_only=True)
class KeyRecord:
    """What the provider remembers of one Idempotency-Key."""

    fingerprint: str
    first_ms: int = field(default_factory=_now_ms)  # the key's life counts from here
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    answer: Answer | None = None
    item: Item | None = None  # what the request created or changed

    def seen(self, settings: Settings) -> rules.Record:
        """Return what the rules have to know of it."""
        ttl_s = settings.key_ttl_s
        ended = None
        if self.answer is not None and self.finished.is_set():
            ended = _plain(self.answer)
        return rules.Record(
            fingerprint=self.fingerprint,
            state=rules.state_of(ended.status) if ended else rules.State.IN_PROGRESS,
            token="",
            created_ms=self.first_ms,
            until_ms=self.first_ms + _NO_END_MS,
            expires_ms=None if ttl_s is None else self.first_ms + int(ttl_s * 1000),
            answer=ended,
        )


class Keys:
    """All keys of one provider. Their scope is the whole account."""

    def __init__(self) -> None:
        self._records: dict[str, KeyRecord] = {}

    def reset(self) -> None:
        """Forget every key."""
        self._records.clear()

    async def enter(self, key: str, fingerprint: str, settings: Settings) -> KeyRecord | Answer:
        """Ask to execute under `key`.

        Returns:
            A record, which must be given to `leave` or `abandon`: execute now. Or the answer to
            give without executing anything.
        """
        while True:
            record = self._records.get(key)
            found = record.seen(settings) if record else None
            ignored = settings.key_mismatch == "replay" and found is not None
            wanted = found.fingerprint if ignored and found else fingerprint
            match rules.decide(found, wanted, _now_ms()):
                case rules.Step.MISMATCH if settings.key_mismatch == "error":
                    return _refusal(settings.key_mismatch_status, "idempotency_key_reused")
                case rules.Step.MISMATCH:
                    return KeyRecord(fingerprint=fingerprint)
                case rules.Step.REPLAY if record is not None:
                    return self._repeat(record, settings)
                case rules.Step.WAIT if record is not None:
                    if settings.key_concurrency == "conflict":
                        return _refusal(settings.key_in_progress_status, "idempotency_key_in_use")
                    await record.finished.wait()
                case _:
                    self._records[key] = KeyRecord(fingerprint=fingerprint)
                    return self._records[key]

    def looked_up(self, target: str, settings: Settings) -> Answer | None:
        """Answer `GET /operations/by-id/{key}`; None where `target` is another path."""
        key = _DESK.key_asked_about("GET", target)
        if key is None:
            return None
        record = self._records.get(key)
        try:
            told = _DESK.look_up(record.seen(settings) if record else None, key, _now_ms())
        except rules.Refused as refused:
            told = refused.answer()
        headers = dict(told.headers)
        kind = headers.pop("content-type")
        return Answer(
            status=told.status, payload=told.body or b"", content_type=kind, headers=headers
        )

    def leave(
        self, key: str, record: KeyRecord, answer: Answer, item: Item | None, settings: Settings
    ) -> None:
        """Store what came of the execution, as far as `settings.key_mode` stores it."""
        record.answer, record.item = answer, item or record.item
        record.finished.set()
        if settings.key_mode == "success_only" and answer.status >= 400:
            self._forget(key, record)

    def abandon(self, key: str, record: KeyRecord) -> None:
        """Give the key back: nothing was executed under it."""
        record.finished.set()
        self._forget(key, record)

    def _forget(self, key: str, record: KeyRecord) -> None:
        if self._records.get(key) is record:
            del self._records[key]

    @staticmethod
    def _repeat(record: KeyRecord, settings: Settings) -> KeyRecord | Answer:
        stored = record.answer
        assert stored is not None, "a finished record has an answer"
        match settings.key_mode:
            case "current_state" if record.item is not None:
                return _replayed(record.item.answer(), settings)
            case "reexecutes_failed" if stored.status >= 400:
                if record.item is not None and not settings.reexecute_repeats_effects:
                    return _replayed(record.item.answer(), settings)
                record.finished = asyncio.Event()
                return record
            case _:
                return _replayed(stored, settings)


def _replayed(answer: Answer, settings: Settings) -> Answer:
    if not settings.replay_header:
        return answer
    return replace(answer, headers={**answer.headers, "idempotent-replayed": "true"})


def _refusal(status: int, code: str) -> Answer:
    return Answer.of(status, {"error": {"code": code, "message": code.replace("_", " ")}})


def _plain(answer: Answer) -> rules.Answer:
    headers = [("content-type", answer.content_type), *answer.headers.items()]
    return rules.Answer(status=answer.status, headers=headers, body=answer.payload)
