"""Who is alive: only a process that is provably gone is dead."""

import json
import os
import subprocess
import sys

import pytest

from doubtless.core.progress import Liveness
from doubtless.engine.owner import liveness, this_process


def owner(**changes: object) -> str:
    """Describe this process, but for what is changed."""
    return json.dumps({**json.loads(this_process()), **changes})


@pytest.mark.proves("ENGINE-11")
def test_this_process_is_alive_and_names_itself_the_same_each_time():
    assert this_process() == this_process()
    assert liveness(this_process()) is Liveness.ALIVE
    assert json.loads(this_process())["pid"] == os.getpid()


@pytest.mark.proves("ENGINE-11")
def test_a_process_that_has_ended_is_dead_while_it_waits_to_be_reaped_and_after():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    alive = owner(pid=child.pid, start="")
    assert liveness(alive) is Liveness.ALIVE
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert liveness(alive) is Liveness.DEAD
    child.wait()
    assert liveness(alive) is Liveness.DEAD


@pytest.mark.proves("ENGINE-11")
def test_a_pid_that_another_process_has_by_now_is_no_sign_of_life():
    assert liveness(owner(start="1")) is Liveness.DEAD
    assert liveness(owner(start="")) is Liveness.ALIVE  # when it began was not known


@pytest.mark.proves("ENGINE-11")
def test_another_host_can_only_be_waited_for_and_another_boot_is_a_death():
    assert liveness(owner(host="elsewhere", pid=0)) is Liveness.FOREIGN
    assert liveness(owner(boot="another")) is Liveness.DEAD
    assert liveness(owner(boot="")) is Liveness.FOREIGN


@pytest.mark.proves("ENGINE-11")
@pytest.mark.parametrize(
    "text",
    ["", "somebody", "[]", "{}", "null", '{"host": 1}', owner(pid="x"), owner(pid=None)],
    ids=range(8),
)
def test_what_is_no_owner_is_taken_for_somebody_elsewhere(text):
    assert liveness(text) is Liveness.FOREIGN


@pytest.mark.proves("ENGINE-11")
@pytest.mark.parametrize("text", ["[" * 100_000, owner(pid=float("inf"))], ids=["deep", "infinite"])
def test_what_breaks_the_reader_is_taken_for_somebody_elsewhere(text):
    assert liveness(text) is Liveness.FOREIGN
