"""The world around one operation, as it really is: requests, the provider, workers, what is due.

The ledger's record is the core's own `Record`; everything else here is the truth that the core can
only learn of through evidence. Time goes in ticks of five seconds, and every duration of a scene is
a whole number of ticks, so that all instants at which anything can change lie on the same grid.
"""

from dataclasses import dataclass, replace

from doubtless.core.contract import Contract, Stores
from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import Now, Operation, Record, State

TICK = 5_000
START = 1_000_000_000

# How far a worker came with its attempt.
OPENED, GATED, SENT, GONE, DEAD = "opened", "gated", "sent", "gone", "dead"
# Where a request is: not written, under way, taken up by the provider, or beyond any effect.
UNWRITTEN, FLYING, RUNNING, OVER = "", "flying", "running", "over"
# The answer that a provider gave to a request.
SUCCESS, NUMBERED, REPLAY, REFUSED, OLD_REFUSAL, BUSY, ACCEPTED, IN_PROGRESS = (
    "success",
    "500 with a transaction id",
    "the stored success",
    "a refusal",
    "the stored refusal",
    "429",
    "202",
    "409 in progress",
)
WORK_GOES_ON, WORK_DONE, WORK_FAILED = "goes on", "done", "failed"


@dataclass(frozen=True, slots=True)
class Sending:
    """One attempt in reality: its worker, its request and the answer to it."""

    worker: str = OPENED
    stalled: bool = False
    gate_ms: int | None = None
    write_by_ms: int | None = None
    first_byte_ms: int | None = None
    request: str = UNWRITTEN
    until_ms: int = 0  # the request can take effect up to this instant
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """A look-up that was asked and has not answered yet."""

    begun_ms: int
    absent: bool  # the read side may still answer "not found"
    fence: int


@dataclass(frozen=True, slots=True)
class Budget:
    """How often the environment may still do its worst."""

    crashes: int = 0
    stalls: int = 0
    late: int = 0  # ticks for which work that is due may lie
    repeats: int = 0  # calls of the agent for a closed operation
    words: int = 0  # of an operator
    blind: int = 0  # look-ups that can't be asked
    stray: int = 0  # a first answer from a copy that trails by more than `lag`
    hooks: int = 0
    votes: int = 0  # of people who have to approve it


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is explored: a contract, a provider that keeps it, and the bounds."""

    name: str
    contract: Contract
    budget: Budget = Budget()
    refuses: bool = True
    busy: bool = True  # answers 429
    accepts: bool = False  # answers 202 and works on
    numbers: bool = False  # gives what it did a transaction id, however it answers
    same_object: bool = False  # a second request meets what the first one made
    repeatable: bool = False  # done twice is done once

    @property
    def keyed(self) -> bool:
        """Whether the provider ties repeats together by a key."""
        return self.contract.key is not None

    @property
    def locks(self) -> bool:
        """Whether it holds a second request back while the first one under the key runs."""
        key = self.contract.key
        return key is not None and key.stores in (Stores.ALL, Stores.CURRENT_STATE)

    @property
    def harmless(self) -> bool:
        """Whether nothing outside changes at all."""
        return self.contract.effect in NO_EFFECT


@dataclass(frozen=True, slots=True)
class World:
    """One state of everything."""

    now: int
    record: Record
    budget: Budget
    sendings: tuple[Sending, ...] = ()
    effects: int = 0
    committed_ms: int | None = None
    sign_ms: int | None = None  # when the read side could first have seen something
    key_seen_ms: int | None = None
    stored: str = ""  # what is remembered under the key
    work: str = ""  # of an accepted request
    work_ended_ms: int | None = None
    look: Look | None = None
    answered: bool = False  # some look-up has answered

    @property
    def clock(self) -> Now:
        """The ledger's clock."""
        return Now(ms=self.now)

    @property
    def operation(self) -> Operation:
        """The operation, as the ledger holds it."""
        return self.record.operation

    @property
    def state(self) -> State:
        """Its state."""
        return self.record.operation.state

    def with_sending(self, index: int, sending: Sending) -> "World":
        """Replace one attempt's reality."""
        kept = (*self.sendings[:index], sending, *self.sendings[index + 1 :])
        return replace(self, sendings=kept)

    def may_act(self, sending: Sending) -> bool:
        """Whether this request can still take effect."""
        return sending.request in (FLYING, RUNNING) and self.now <= sending.until_ms


Event = tuple[str, str, World]  # who, what, and the world after it


def key_lives(world: World, scene: Scene) -> bool:
    """Whether the provider still remembers the key."""
    key = scene.contract.key
    if key is None or key.ttl_ms is None or world.key_seen_ms is None:
        return False
    return world.now <= world.key_seen_ms + key.ttl_ms
