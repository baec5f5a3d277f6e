"""The simulated provider's idempotency layer, in the manners that real providers document."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace

from doubtless.testing.provider_http import Answer
from doubtless.testing.provider_rules import Settings
from doubtless.testing.provider_store import Item


@dataclass(slots=True, kw_only=True)
class KeyRecord:
    """What the provider remembers of one Idempotency-Key."""

    fingerprint: str
    first_at: float  # seconds, monotonic; the key's life counts from here
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    answer: Answer | None = None
    item: Item | None = None  # what the request created or changed


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
            record = self._live(key, settings)
            if record is None:
                record = KeyRecord(fingerprint=fingerprint, first_at=time.monotonic())
                self._records[key] = record
                return record
            if record.fingerprint != fingerprint and settings.key_mismatch == "error":
                return _refusal(settings.key_mismatch_status, "idempotency_key_reused")
            if record.fingerprint != fingerprint and settings.key_mismatch == "execute":
                return KeyRecord(fingerprint=fingerprint, first_at=time.monotonic())
            if record.finished.is_set():
                return self._repeat(record, settings)
            if settings.key_concurrency == "conflict":
                return _refusal(settings.key_in_progress_status, "idempotency_key_in_use")
            await record.finished.wait()

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

    def _live(self, key: str, settings: Settings) -> KeyRecord | None:
        record = self._records.get(key)
        if record is None or settings.key_ttl_s is None:
            return record
        if time.monotonic() - record.first_at < settings.key_ttl_s:
            return record
        del self._records[key]
        return None

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
