"""The simulated world: a provider that keeps its contract, and nothing more than that.

It may lose, delay and refuse; its read side may trail by the declared lag; a request may take
effect until the end of the declared horizon. Keys are honoured as `stores` says, until they expire.
What it counts as effects is the truth of every check.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from doubtless.core.contract import Contract, LookupRules, Stores
from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import Effect
from doubtless.testing.simulate_faults import Faults
from doubtless.testing.virtual_time import WORLD, VirtualLoop
from doubtless.testing.world_orders import LOGIN_PAGE, LOST, Answer, KeyRecord, Order, Thing

SAME_AGAIN = frozenset({Effect.FILE, Effect.SHELL_READ, Effect.KEYED_CREATE})
"""Effects of which a repeat meets what is there."""
BUSY = (429, 425, 421)


class World:
    """All that is outside.

    Args:
        loop: Whose clock it lives by.
        faults: Drawn where they can happen.
        unique: Tools of which one target can be acted on only once.
        took_effect: Called at every effect.
        key_forgotten: Called where a request arrives under a key that is not remembered any more.
        tell: Takes a line of the trace.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        faults: Faults,
        *,
        pending: frozenset[str],
        unique: frozenset[str],
        took_effect: Callable[[Order], None],
        key_forgotten: Callable[[Order], None],
        tell: Callable[[str], None],
    ) -> None:
        self._loop, self._faults, self._chance = loop, faults, faults.chance
        self._pending, self._unique = pending, unique
        self._took_effect, self._key_forgotten, self._tell = took_effect, key_forgotten, tell
        self.things: list[Thing] = []
        self.orders: list[Order] = []
        self._keys: dict[str, KeyRecord] = {}

    # --- what is known to be true ----------------------------------------------------------------

    def effects_of(self, ref: str) -> int:
        """Return how often an operation took effect."""
        return sum(order.took_effect for order in self.orders if order.ref == ref)

    def may_still_act(self, ref: str) -> bool:
        """Whether something of an operation can still take effect."""
        return any(not order.is_over for order in self.orders if order.ref == ref)

    def quiet_s(self) -> float:
        """Return the instant after which no request that is under way can take effect."""
        return max((order.latest_s for order in self.orders if not order.is_over), default=0.0)

    # --- requests --------------------------------------------------------------------------------

    def foreign(self, tool: str, target: str, amount: int) -> None:
        """Put an object there that is somebody else's."""
        thing = Thing(
            id=f"x{len(self.things)}", tool=tool, ref=None, key=None, target=target, amount=amount
        )
        thing.history.append((self._loop.time(), "succeeded"))
        self.things.append(thing)

    def receive(self, order: Order, *, deadline_s: float) -> None:
        """Take a request whose last byte is being written now.

        Args:
            order: It.
            deadline_s: When whoever sent it gives up.
        """
        now_s, faults = self._loop.time(), self._faults
        order.written_s = now_s
        order.latest_s = max(now_s, deadline_s) + order.contract.horizon_ms / 1000
        self.orders.append(order)
        if faults.draw("request.dropped"):
            order.is_over = True
            self._reply(order, LOST)
            return
        span_s = order.latest_s - now_s - 0.001
        at_s = now_s + self._chance.uniform(0.005, 0.1)
        takes_s = self._chance.uniform(0.01, 0.2)
        if faults.draw("request.late"):
            at_s = now_s + span_s * self._chance.choice((self._chance.random(), 0.9, 1.0))
        if faults.draw("provider.slow"):
            takes_s = self._chance.uniform(0.2, 2.0) * (deadline_s - now_s)
        at_s = min(at_s, now_s + span_s)
        takes_s = min(takes_s, max(0.0, now_s + span_s - at_s))
        self._at(at_s, partial(self._arrive, order, takes_s))

    def _at(self, at_s: float, call: Callable[[], None]) -> None:
        self._loop.call_at(at_s, call, context=WORLD)

    def _arrive(self, order: Order, takes_s: float) -> None:
        faults = self._faults
        self._tell(f"provider: {order.name} arrives")
        early = None
        if faults.draw("provider.busy"):
            headers = {"retry_after": "1"} if self._chance.random() < 0.5 else {}
            early = Answer.of(self._chance.choice(BUSY), {"error": "busy"}, **headers)
        elif faults.draw("provider.fails_before"):
            early = Answer.of(self._chance.choice((500, 502, 503)), {"error": "internal"})
        elif faults.draw("provider.login_page"):
            early = LOGIN_PAGE
        if early is not None:
            order.is_over = True
            self._reply(order, early)
            return
        record = self._enter(order)
        if record is None:
            return
        if faults.draw("answer.broken_off"):
            self._at(self._loop.time() + 0.9 * takes_s, partial(self._deliver, order, LOST))
            takes_s += self._chance.uniform(0.2, 3.0)
            takes_s = min(takes_s, order.latest_s - self._loop.time())
        self._at(self._loop.time() + takes_s, partial(self._execute, order, record))

    # --- keys ------------------------------------------------------------------------------------

    def _enter(self, order: Order) -> KeyRecord | None:
        """Ask the key layer; None where the answer is given, or waited for."""
        fresh = KeyRecord(content=order.content, first_s=self._loop.time())
        key, rules = order.key, order.contract.key
        if key is None or rules is None:
            return fresh
        known = self._keys.get(key)
        life_s = 3600.0 if rules.ttl_ms is None else rules.ttl_ms / 1000
        if known is not None and not known.is_running and fresh.first_s >= known.first_s + life_s:
            self._key_forgotten(order)
            known = None
        if known is None:
            self._keys[key] = fresh
            return fresh
        if known.is_running:
            self._faults.happened("key.in_progress")
            if rules.in_progress:
                order.is_over = True
                self._reply(order, Answer.of(rules.in_progress[0], {"error": "in progress"}))
            else:
                known.waiting.append(order)
            return None
        stored = known.answer
        failed = stored is None or (stored.status or 0) >= 400
        shows = rules.stores is Stores.CURRENT_STATE and known.thing is not None
        if failed and rules.stores is not Stores.ALL and not shows:
            known.is_running = True
            return known
        self._replay(order, known)
        return None

    def _replay(self, order: Order, record: KeyRecord) -> None:
        self._faults.happened("key.replayed")
        order.is_over = True
        stored = record.answer or LOST
        rules = order.contract.key
        if rules is not None and rules.stores is Stores.CURRENT_STATE and record.thing is not None:
            stored = self._shown(record.thing)
        marked = {**stored.headers, "idempotent-replayed": "true"}
        self._reply(order, replace(stored, headers=marked))

    def _leave(self, record: KeyRecord, answer: Answer, thing: Thing | None) -> None:
        record.is_running, record.answer = False, answer
        record.thing = thing or record.thing
        waiting, record.waiting = record.waiting, []
        for order in waiting:
            entered = self._enter(order)
            if entered is not None:
                self._execute(order, entered)

    # --- effects ---------------------------------------------------------------------------------

    def _execute(self, order: Order, record: KeyRecord) -> None:
        contract = order.contract
        order.is_over = True
        if contract.effect in NO_EFFECT:
            answer, thing = Answer.of(200, {"id": "r1", "status": "succeeded"}), None
        elif self._faults.draw("provider.refuses"):
            answer, thing = Answer.of(402, {"error": "refused"}), None
        else:
            answer, thing = self._act(order)
        if order.took_effect and self._faults.draw("provider.fails_after"):
            answer = Answer.of(self._chance.choice((500, 502, 503, 504)), {"error": "internal"})
        self._leave(record, answer, thing)
        self._reply(order, answer)

    def _act(self, order: Order) -> tuple[Answer, Thing | None]:
        target = str(order.arguments["target"])
        found = self._met(order, target)
        if found is not None:
            self._faults.happened("provider.exists")
            mine = found.ref == order.ref and order.contract.effect in SAME_AGAIN
            if mine and self._chance.random() < 0.5:
                return self._shown(found), found
            return Answer.of(self._refusal(order), {"error": "already exists"}), None
        thing = Thing(
            id=f"o{len(self.things)}",
            tool=order.contract.tool,
            ref=order.ref,
            key=order.key,
            target=target,
            amount=int(str(order.arguments["amount"])),
        )
        self.things.append(thing)
        if order.contract.tool in self._pending and self._faults.draw("provider.accepts"):
            self._begin_work(order, thing)
            status = self._chance.choice((200, 202))
            return Answer.of(status, thing.shown(self._loop.time())), thing
        thing.history.append((self._loop.time(), "succeeded"))
        self._commit(order)
        return self._shown(thing), thing

    def _refusal(self, order: Order) -> int:
        if order.contract.effect is Effect.CONDITIONAL_UPDATE:
            return 412
        key = order.contract.key
        doubtful = key is None or not (key.in_progress or key.mismatch)
        return self._chance.choice((409, 422)) if doubtful else 403

    def _met(self, order: Order, target: str) -> Thing | None:
        """Return what keeps the provider from acting: it is there already."""
        tool, effect = order.contract.tool, order.contract.effect
        versioned = effect is Effect.CONDITIONAL_UPDATE
        reusable = versioned and order.contract.condition and order.contract.condition.version_reuse
        for thing in self.things:
            if thing.tool != tool:
                continue
            if effect in SAME_AGAIN and thing.ref == order.ref:
                return thing
            once = tool in self._unique or (versioned and not reusable)
            if once and thing.target == target and thing.status(self._loop.time()) != "failed":
                return thing
        return None

    def _commit(self, order: Order) -> None:
        order.took_effect = True
        self._tell(f"provider: {order.name} TAKES EFFECT")
        self._took_effect(order)

    def _begin_work(self, order: Order, thing: Thing) -> None:
        order.is_over = False
        thing.history.append((self._loop.time(), "pending"))
        if self._faults.draw("provider.work_stays"):
            order.latest_s = 0.0
            return
        end_s = self._loop.time() + self._chance.uniform(0.5, 40.0)
        order.latest_s = end_s
        self._at(end_s, partial(self._end_work, order, thing))

    def _end_work(self, order: Order, thing: Thing) -> None:
        order.is_over = True
        fails = self._faults.draw("provider.work_fails")
        thing.history.append((self._loop.time(), "failed" if fails else "succeeded"))
        if not fails:
            self._commit(order)

    def _shown(self, thing: Thing) -> Answer:
        return Answer.of(200, thing.shown(self._loop.time()))

    # --- answers ---------------------------------------------------------------------------------

    def _reply(self, order: Order, answer: Answer) -> None:
        """Let an answer go its way. It may be lost, late or cut short."""
        faults, delay_s = self._faults, self._chance.uniform(0.001, 0.05)
        if faults.draw("answer.never"):
            self._tell(f"provider: {order.name} is never answered")
            return
        if faults.draw("answer.late"):
            contract = order.contract
            delay_s += (contract.timeout_ms + self._chance.random() * contract.horizon_ms) / 1000
        if faults.draw("answer.lost"):
            answer = LOST
        elif answer.status is not None and faults.draw("answer.cut_short"):
            answer = replace(answer, body=answer.body[:7], complete=False)

        self._at(self._loop.time() + delay_s, partial(self._deliver, order, answer))

    def _deliver(self, order: Order, answer: Answer) -> None:
        if not order.answer.done():
            self._tell(f"provider: {order.name} is answered {answer.status}")
            order.answer.set_result(answer)

    # --- reads -----------------------------------------------------------------------------------

    def look(self, contract: Contract, rules: LookupRules) -> tuple[float, list[Thing]]:
        """Return the tool's objects as the read side has them now, and of which instant that is.

        It may trail by up to the declared lag; one whose absence proves nothing may see nothing.
        """
        share = self._chance.choice((0.0, self._chance.random(), 1.0))
        at_s = self._loop.time() - share * rules.lag_ms / 1000
        if not rules.authoritative and self._faults.draw("lookup.blind"):
            return at_s, []
        mine = [thing for thing in self.things if thing.tool == contract.tool]
        seen = [thing for thing in mine if thing.status(at_s) is not None]
        if len(seen) < len(mine):
            self._faults.happened("lookup.lagging")
        return at_s, seen
