"""The simulated provider's API: generic collections under /v1, with keys, versions and pages."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from doubtless.testing.provider_http import Answer, Malformed, Request
from doubtless.testing.provider_keys import KeyRecord, Keys
from doubtless.testing.provider_rules import Config, Json, Settings
from doubtless.testing.provider_store import Item, Origin, Store

_OWN_FIELDS: Final = frozenset({"id", "object", "status", "version", "created"})
_PAGING: Final = frozenset({"limit", "starting_after"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Work that is accepted now and finished later."""

    completes_in_s: float | None  # None: never by itself
    status_then: str  # "succeeded" or "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a fault bends the execution of one request."""

    ignore_key: bool = False
    work_s: float = 0.0  # seconds between taking the key and committing, on top of the settings
    hold_key_s: float = 0.0  # after the commit the key stays "in progress" for so many seconds
    own_answer: Answer | None = None  # what the application answers, and stores, after it committed
    commits: bool = True  # False: `own_answer` is stored although nothing was done
    pending: Pending | None = None


PLAIN: Final = Plan()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    request: Request
    settings: Settings
    collection: str
    id: str | None
    fields: dict[str, Json]
    origin: Origin
    plan: Plan


@dataclass(frozen=True, slots=True)
class _Done:
    answer: Answer
    item: Item | None = None


class Application:
    """Executes requests against a store. Every change is recorded there as an effect."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.config = Config()
        self.base_url = ""  # of the status_url that accepted work is answered with
        self._keys = Keys()
        self._timers: list[asyncio.TimerHandle] = []
        self._methods: Mapping[str, Callable[[_Call], _Done]] = {
            "POST": self._post,
            "PUT": self._put,
            "PATCH": self._patch,
            "DELETE": self._delete,
        }

    def reset(self) -> None:
        """Forget all objects, keys, effects and pending work; keep the configuration."""
        self.reset_timers()
        self._keys.reset()
        self.store.reset()

    def reset_timers(self) -> None:
        """Let pending work stay pending."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def run(self, request: Request, plan: Plan = PLAIN) -> Answer:
        """Execute `request` and return what the application answers. Never raises for its input."""
        if request.head.method == "GET":
            told = self._keys.looked_up(request.head.path, self.config.settings)
            if told is not None:
                return told
        parts = [unquote(part) for part in request.head.path.split("/")[1:]]
        if len(parts) not in (2, 3) or parts[0] != "v1" or not all(parts):
            return refusal(404, "no_such_route")
        try:
            fields = request.fields()
        except Malformed as error:
            return refusal(400, "invalid_body", str(error))
        call = _Call(
            request=request,
            settings=self.config.of(parts[1]),
            collection=parts[1],
            id=parts[2] if len(parts) == 3 else None,
            fields={name: value for name, value in fields.items() if name not in _OWN_FIELDS},
            origin=Origin.of(request, fields),
            plan=plan,
        )
        if request.head.method == "GET":
            return self._list(call) if call.id is None else self._get(call)
        return self._refused_at_once(call) or await self._under_key(call)

    def seed(self, collection: str, fields: Mapping[str, Json], item_id: str | None) -> Item:
        """Add an object that was there before the story begins. It is no effect."""
        status = fields.get("status", "succeeded")
        content = {name: value for name, value in fields.items() if name not in _OWN_FIELDS}
        return self.store.create(
            collection, content, Origin(), status=str(status), client_id=item_id, counted=False
        )

    def complete(self, item_id: str, status: str) -> Item:
        """Finish the pending work with this id.

        Raises:
            LookupError: There is none.
        """
        for item in self.store.pending():
            if item.id == item_id:
                self.store.complete(item, status)
                return item
        raise LookupError(f"nothing is pending under {item_id}")

    def _refused_at_once(self, call: _Call) -> Answer | None:
        method = call.request.head.method
        if method not in self._methods or (method == "POST") != (call.id is None):
            return refusal(405, "method_not_allowed")
        if call.settings.key_required and call.request.head.key is None:
            return refusal(400, "idempotency_key_missing")
        missing = [name for name in call.settings.required if name not in call.fields]
        if missing and method in ("POST", "PUT"):
            return refusal(400, "parameter_missing", ", ".join(missing))
        return None

    async def _under_key(self, call: _Call) -> Answer:
        key = call.request.head.key
        if key is None or call.settings.key_mode == "off" or call.plan.ignore_key:
            return (await self._execute(call)).answer
        entered = await self._keys.enter(key, _fingerprint(call), call.settings)
        if isinstance(entered, Answer):
            return entered
        return await self._hold(key, entered, call)

    async def _hold(self, key: str, record: KeyRecord, call: _Call) -> Answer:
        try:
            done = await self._execute(call)
        except BaseException:
            self._keys.abandon(key, record)
            raise
        self._keys.leave(key, record, done.answer, done.item, call.settings)
        return done.answer

    async def _execute(self, call: _Call) -> _Done:
        await asyncio.sleep(call.settings.work_s + call.plan.work_s)
        own = call.plan.own_answer
        done = self._methods[call.request.head.method](call) if call.plan.commits else None
        await asyncio.sleep(call.plan.hold_key_s)
        if own is not None:
            return _Done(own, done.item if done else None)
        assert done is not None, "a plan that commits nothing has an answer of its own"
        return done

    def _post(self, call: _Call) -> _Done:
        if (twin := self._twin(call)) is not None:
            return self._taken(twin, call)
        if call.plan.pending is not None:
            return self._accept(call, call.plan.pending)
        item = self.store.create(call.collection, call.fields, call.origin, status="succeeded")
        return _Done(item.answer(201), item)

    def _accept(self, call: _Call, pending: Pending) -> _Done:
        item = self.store.create(
            call.collection, call.fields, call.origin, status="pending", client_id=call.id
        )
        if pending.completes_in_s is not None:
            loop = asyncio.get_running_loop()
            self._timers.append(
                loop.call_later(pending.completes_in_s, self._finish, item, pending.status_then)
            )
        url = f"{self.base_url}/v1/{item.collection}/{item.id}"
        body = {**(item.now or {}), "status_url": url}
        return _Done(Answer.of(202, body, {"location": url}), item)

    def _finish(self, item: Item, status: str) -> None:
        if item in self.store.pending():  # it may have been completed by hand
            self.store.complete(item, status)

    def _put(self, call: _Call) -> _Done:
        assert call.id is not None
        item = self._live(call)
        if item is None:
            if (twin := self._twin(call)) is not None:
                return self._taken(twin, call)
            if call.plan.pending is not None:
                return self._accept(call, call.plan.pending)
            item = self.store.create(
                call.collection, call.fields, call.origin, status="succeeded", client_id=call.id
            )
            return _Done(item.answer(201), item)
        if call.request.head.headers.get("if-none-match") == "*":
            return _Done(refusal(412, "already_exists"))
        if call.settings.put_existing == "overwrite":
            item.content = call.fields
            own = {name: value for name, value in (item.now or {}).items() if name in _OWN_FIELDS}
            return self._write(item, {**call.fields, **own}, call)
        if call.settings.put_existing == "replay_same" and item.content == call.fields:
            return _Done(item.answer(), item)
        return _Done(refusal(409, "already_exists", item=item))

    def _patch(self, call: _Call) -> _Done:
        item = self._live(call)
        if item is None or item.now is None:
            return _Done(refusal(404, "not_found"))
        if (refused := _precondition(item, call)) is not None:
            return _Done(refused)
        return self._write(item, {**item.now, **call.fields}, call)

    def _delete(self, call: _Call) -> _Done:
        item = self._live(call)
        if item is None:
            return _Done(refusal(404, "not_found"))
        if (refused := _precondition(item, call)) is not None:
            return _Done(refused)
        item.write(None)
        self.store.record("delete", item, call.origin)
        return _Done(item.answer(), item)

    def _write(self, item: Item, snapshot: dict[str, Json], call: _Call) -> _Done:
        item.write(snapshot)
        self.store.record("update", item, call.origin)
        return _Done(item.answer(), item)

    def _live(self, call: _Call) -> Item | None:
        item = self.store.items.get((call.collection, call.id or ""))
        return None if item is None or item.now is None else item

    def _twin(self, call: _Call) -> Item | None:
        names = call.settings.unique_by
        if not names:
            return None
        for item in self.store.of(call.collection):
            now = item.now
            if now is None or now["status"] == "failed":
                continue
            if all(now.get(name) == call.fields.get(name) for name in names):
                return item
        return None

    @staticmethod
    def _taken(twin: Item, call: _Call) -> _Done:
        settings = call.settings
        shown = twin if settings.unique_shows_object else None
        return _Done(refusal(settings.unique_status, settings.unique_code, item=shown))

    def _get(self, call: _Call) -> Answer:
        item = self.store.items.get((call.collection, call.id or ""))
        seen = item.seen(call.settings.get_lag_s) if item else None
        if seen is None:
            return refusal(404, "not_found")
        return Answer.of(200, seen, {"etag": f'"{seen["version"]}"'})

    def _list(self, call: _Call) -> Answer:
        query, settings = call.request.head.query, call.settings
        items = list(self.store.of(call.collection))
        shown = [seen for item in items if (seen := item.seen(settings.read_lag_s)) is not None]
        if settings.newest_first:
            shown.reverse()
        if not settings.ignore_filters:
            shown = [seen for seen in shown if _fits(seen, query)]
        if (after := query.get("starting_after")) is not None:
            ids = [seen["id"] for seen in shown]
            if after not in ids:
                return refusal(400, "unknown_cursor")
            shown = shown[ids.index(after) + 1 :]
        limit = query.get("limit", "")
        size = min(int(limit), settings.page_size) if limit.isdecimal() else settings.page_size
        page: list[Json] = [*shown[:size]]
        more = len(shown) > len(page)
        cursor = shown[len(page) - 1]["id"] if more and page else None
        return Answer.of(200, {"data": page, "has_more": more, "next_cursor": cursor})


def refusal(status: int, code: str, message: str = "", *, item: Item | None = None) -> Answer:
    """Return a JSON error; `item` is the object that stands in the way, and is shown."""
    error: Json = {"code": code, "message": message or code.replace("_", " ")}
    body: dict[str, Json] = {"error": error}
    if item is not None:
        body["object"] = item.now
    return Answer.of(status, body)


def _fits(seen: Mapping[str, Json], query: Mapping[str, str]) -> bool:
    metadata = seen.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    for name, wanted in query.items():
        if name in _PAGING:
            continue
        if name == "operation" or name.startswith("metadata["):
            found = metadata.get(name.removeprefix("metadata[").removesuffix("]"))
        else:
            found = seen.get(name)
        if found is None or str(found) != wanted:
            return False
    return True


def _precondition(item: Item, call: _Call) -> Answer | None:
    wanted = call.request.head.headers.get("if-match")
    if wanted is None:
        return refusal(428, "if_match_missing") if call.settings.if_match_required else None
    if wanted != "*" and wanted.strip('"') != str(item.version):
        return refusal(412, "version_mismatch")
    return None


def _fingerprint(call: _Call) -> str:
    content = [call.request.head.method, call.request.head.path, call.fields]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
