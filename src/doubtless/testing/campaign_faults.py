"""Faults that are drawn from a seed and done to a fleet: killed, stopped, woken, disconnected."""

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

import psycopg

from doubtless.testing.campaign_stage import Fleet, Member, Pace

SESSIONS: Final = "select pid from pg_stat_activity where application_name = %s order by pid"
PAST_LEASE_S: Final = 3.0  # a stop past the lease lasts up to so much longer
DOWN_S: Final = 2.0  # a process that was killed is started again within so long
NAP_S: Final = 2.5
POLL_S: Final = 0.02

KILLED, NAPPED, OVERSLEPT, CUT = "killed", "stopped", "stopped past the lease", "sessions ended"


class Faults:
    """Draws faults one after the other, and does them.

    The same seed draws the same faults at the same pauses; whom they find at what is the machine's
    business.

    Args:
        fleet: Whom they are done to.
        database: Its address, to end sessions with.
        pace: Says how long a lease is.
        seed: Of all that is drawn.
        every_s: The mean pause between two faults.
        kinds: The share of each kind.
    """

    def __init__(
        self,
        fleet: Fleet,
        database: str,
        pace: Pace,
        *,
        seed: int,
        every_s: float,
        kinds: dict[str, float],
    ) -> None:
        self.done: Counter[str] = Counter()  # by kind, and whether a service or a worker
        self.died: list[str] = []  # processes that ended though nobody ended them
        self._fleet, self._database, self._pace = fleet, database, pace
        self._draw = random.Random(seed)
        self._every_s, self._kinds = every_s, kinds
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def run(self, seconds: float) -> None:
        """Do faults for so long. Whoever is down or stopped then is left so."""
        ends_s = time.monotonic() + seconds
        with psycopg.connect(self._database, autocommit=True) as connection:
            next_s = time.monotonic() + self._pause_s()
            while (now_s := time.monotonic()) < ends_s:
                while self._later and self._later[0][0] <= now_s:
                    heapq.heappop(self._later)[2]()
                if now_s >= next_s:
                    self._one(connection)
                    next_s = now_s + self._pause_s()
                self._look_for_deaths()
                time.sleep(POLL_S)

    def _pause_s(self) -> float:
        return self._draw.expovariate(1 / self._every_s)

    def _one(self, connection: psycopg.Connection) -> None:
        kind = self._draw.choices(list(self._kinds), list(self._kinds.values()))[0]
        number, size = self._draw.random(), self._draw.random()
        # Only who does its work: else a busy machine would do nothing but start processes.
        up = [member for member in self._fleet.members if member.is_up and member.is_ready()]
        if not up:
            return
        member = up[int(number * len(up))]
        if kind == CUT and not self._cut(connection, member, size):
            return
        self.done[f"{'services' if member.serves else 'workers'} {kind}"] += 1
        if kind == KILLED:
            member.kill()
            self._at(DOWN_S * size, member.start)
        elif kind in (NAPPED, OVERSLEPT):
            long_s = self._pace.lease_s + PAST_LEASE_S * size
            member.freeze()
            self._at(NAP_S * size if kind == NAPPED else long_s, partial(_wake, member))

    def _at(self, in_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + in_s, next(self._numbers), action))

    def _cut(self, connection: psycopg.Connection, member: Member, size: float) -> bool:
        """End one session of a process, or all of them; whether there were any."""
        pids = [row[0] for row in connection.execute(SESSIONS, [member.name])]
        chosen = pids if size < 0.5 else pids[: int(size * len(pids)) + 1]
        for pid in chosen:
            connection.execute("select pg_terminate_backend(%s)", [pid])
        self.done["database sessions ended"] += len(chosen)
        return bool(chosen)

    def _look_for_deaths(self) -> None:
        for member in self._fleet.members:
            if member.is_up and member.has_died:
                self.died.append(f"{member.name} died by itself: {member.log()[-2000:]}")
                member.kill()
                member.start()


def _wake(member: Member) -> None:
    if member.is_frozen:  # else it was killed meanwhile
        member.thaw()
