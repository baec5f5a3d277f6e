"""`doctor`: what a person and a program are told, and what it exits with."""

import socket

import pytest
from tests.cli.shell import COLUMNS_MAX

PORT = "0"


def grades(result) -> dict[str, str]:
    return {each["check"]: each["grade"] for each in result.json["checks"]}


@pytest.mark.proves("DOCTOR-4")
def test_a_sound_machine_is_told_in_lines_that_fit_and_exits_with_0(shell):
    result = shell.here("doctor", "--port", PORT)
    assert result.code == 0, result.out
    assert "all" in result.out.splitlines()[-1]
    assert max(map(len, result.out.splitlines())) <= COLUMNS_MAX
    assert not (shell.folder / "doubtless.db").exists()


@pytest.mark.proves("DOCTOR-4")
def test_an_error_exits_with_1_and_says_how_to_mend_it(shell):
    result = shell.here("doctor", "--port", PORT, "--ledger", "postgresql://127.0.0.1:1/x")
    assert result.code == 1
    assert "error    ledger.opens" in result.out
    assert "→" in result.out
    told = shell.here("doctor", "--port", PORT, "--ledger", "sqlite://", "--json")
    assert (told.code, told.json["errors"]) == (1, 1)
    assert grades(told)["ledger.opens"] == "error"


@pytest.mark.proves("DOCTOR-4")
def test_a_port_that_is_taken_or_open_to_others_is_a_warning_and_exits_with_0(shell):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = shell.here("doctor", "--port", port, "--json")
    assert (result.code, grades(result)["service.port"]) == (0, "warning")
    assert grades(result)["service.tls"] == "ok"
    open_to_all = shell.here("doctor", "--port", PORT, "--host", "0.0.0.0", "--json")  # noqa: S104 - it is warned of
    assert (open_to_all.code, grades(open_to_all)["service.tls"]) == (0, "warning")
    assert grades(open_to_all)["service.port"] == "ok"
