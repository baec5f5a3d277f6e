"""The admin routes of the simulated provider: its ground truth, and its remote control."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Protocol, cast

from doubtless.testing.provider_app import Application, refusal
from doubtless.testing.provider_http import Answer, Malformed, Request
from doubtless.testing.provider_rules import ConfigError, Document, Json, RuleBook


class Controls(Protocol):
    """What the admin routes need of the provider."""

    @property
    def app(self) -> Application:
        """The application behind the sockets."""

    @property
    def book(self) -> RuleBook:
        """The rules in force."""

    def configure(self, rules: Document) -> None:
        """Replace the configuration."""

    async def reset(self) -> None:
        """Forget all but the configuration."""

    async def close_for(self, duration_s: float | None) -> None:
        """Refuse connections."""

    def reopen(self) -> None:
        """Accept connections again."""


class Admin:
    """Answers the routes under /_admin/. None of them is counted as an arrival."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._routes: Mapping[tuple[str, str], Callable[[Request], Awaitable[Answer]]] = {
            ("GET", "/_admin/effects"): self._effects,
            ("GET", "/_admin/arrivals"): self._arrivals,
            ("GET", "/_admin/rules"): self._rules,
            ("POST", "/_admin/rules"): self._configure,
            ("POST", "/_admin/complete"): self._complete,
            ("POST", "/_admin/objects"): self._seed,
            ("POST", "/_admin/listener"): self._listener,
            ("POST", "/_admin/reset"): self._reset,
        }

    async def answer(self, request: Request) -> Answer:
        """Answer one admin request."""
        route = self._routes.get((request.head.method, request.head.path))
        if route is None:
            return refusal(404, "no_such_admin_route", ", ".join(path for _, path in self._routes))
        try:
            return await route(request)
        except (ConfigError, Malformed) as error:
            return refusal(400, "bad_configuration", str(error))
        except LookupError as error:
            return refusal(404, "not_pending", str(error))

    async def _effects(self, request: Request) -> Answer:
        store, query = self._controls.app.store, request.head.query
        shown = store.found(query.get("operation"), query.get("collection"), query.get("key"))
        return Answer.of(
            200,
            {
                "effects": [cast("Json", asdict(effect)) for effect in shown],
                "total": len(shown),
                "counts": cast("Json", store.counts()),
                "pending": [item.id for item in store.pending()],
            },
        )

    async def _arrivals(self, _: Request) -> Answer:
        store = self._controls.app.store
        arrivals: list[Json] = [cast("Json", asdict(arrival)) for arrival in store.arrivals]
        return Answer.of(200, {"arrivals": arrivals, "connections": store.connections})

    async def _rules(self, _: Request) -> Answer:
        return Answer.of(200, {"rules": self._controls.book.report()})

    async def _configure(self, request: Request) -> Answer:
        try:
            document = json.loads(request.body)
        except ValueError as error:
            raise Malformed(f"the configuration is not JSON: {error}") from None
        self._controls.configure(document)
        return Answer.of(200, {"rules": len(self._controls.app.config.rules)})

    async def _complete(self, request: Request) -> Answer:
        fields = request.fields()
        status = fields.get("status", "succeeded")
        if status not in ("succeeded", "failed"):
            raise ConfigError("status: succeeded or failed is expected")
        return self._controls.app.complete(str(fields.get("id")), str(status)).answer()

    async def _seed(self, request: Request) -> Answer:
        fields = request.fields()
        collection, item_id = fields.pop("collection", None), fields.get("id")
        if not isinstance(collection, str) or not isinstance(item_id, str | None):
            raise ConfigError("collection, and id if there is one, must be text")
        return self._controls.app.seed(collection, fields, item_id).answer(201)

    async def _listener(self, request: Request) -> Answer:
        fields = request.fields()
        closed_for_s = fields.get("closed_for_s", 0)
        if closed_for_s == 0:
            self._controls.reopen()
        elif closed_for_s is None or isinstance(closed_for_s, int | float):
            await self._controls.close_for(closed_for_s)
        else:
            raise ConfigError("closed_for_s: seconds, null or zero are expected")
        return Answer.of(200, {})

    async def _reset(self, _: Request) -> Answer:
        await self._controls.reset()
        return Answer.of(200, {})
