"""What `doubtless doctor` does: it looks, and tells what it found."""

import ipaddress
import json
import logging
from collections import Counter
from collections.abc import Iterator

import click

from doubtless.cli_settings import Settings
from doubtless.cli_text import Line, Style, columns, wrapped, write
from doubtless.engine.doctor import examine
from doubtless.engine.findings import Finding, Grade, ok, warning
from doubtless.engine.sockets import bind
from doubtless.errors import SettingsError

STYLES: dict[Grade, Style] = {Grade.OK: "good", Grade.WARNING: "waits", Grade.ERROR: "bad"}
INDENT = 9


def run(settings: Settings, *, host: str, port: int, as_json: bool) -> int:
    """Check everything, and return 1 if something doesn't work."""
    logging.getLogger("doubtless").setLevel(logging.ERROR)  # what it warns of is a finding here
    findings: list[Finding] = []
    for finding in checked(settings, host=host, port=port):
        findings.append(finding)
        if not as_json:
            write(_lines(finding))
    counts = Counter(finding.grade for finding in findings)
    if as_json:
        told = {
            "errors": counts[Grade.ERROR],
            "warnings": counts[Grade.WARNING],
            "checks": [finding.to_json() for finding in findings],
        }
        click.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        write(_summary(counts))
    return int(counts[Grade.ERROR] > 0)


def checked(settings: Settings, *, host: str, port: int) -> Iterator[Finding]:
    """Check everything, one finding after another."""
    named = "contracts" in settings.said
    yield from examine(settings.ledger, settings.contracts, settings.secrets, named=named)
    yield _port(host, port)
    yield _open_to(host)


def _port(host: str, port: int) -> Finding:
    try:
        bind(host, port).close()
    except SettingsError as problem:
        mend = "end what has it (perhaps a running `doubtless serve`), or take another port"
        return warning("service.port", str(problem), mend)
    return ok("service.port", f"{host}:{port} is free")


def _open_to(host: str) -> Finding:
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if is_local:
        return ok("service.tls", f"{host} is reached from this machine alone")
    told = f"on {host} others reach the service, which speaks HTTP without TLS: tokens go in clear"
    return warning("service.tls", told, "put a proxy with TLS in front, and listen on 127.0.0.1")


def _lines(finding: Finding) -> Iterator[Line]:
    width = columns()
    yield Line(f"{finding.grade.value:<{INDENT - 1}} {finding.check}", STYLES[finding.grade])
    indent = " " * INDENT
    for text in finding.found.splitlines():
        yield from wrapped(text, width=width, first=indent)
    if finding.mend:
        yield from wrapped(f"→ {finding.mend}", width=width, first=indent, rest=f"{indent}  ")


def _summary(counts: Counter[Grade]) -> Iterator[Line]:
    yield Line("")
    parts = [
        f"{counts[grade]} {grade.value}{'' if counts[grade] == 1 else 's'}"
        for grade in (Grade.ERROR, Grade.WARNING)
        if counts[grade]
    ]
    if parts:
        yield Line(", ".join(parts), "bad" if counts[Grade.ERROR] else "waits")
    else:
        yield Line(f"all {counts[Grade.OK]} checks are well", "good")
