"""What docs/provider.md tells an owner to write, run as it stands there."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.integrations.idempotent_shop import served

from doubtless.engine.contracts.load import load_contracts

PAGE = (Path(__file__).parents[2] / "docs" / "provider.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)


def block(language: str) -> str:
    return next(text for found, text in BLOCKS if found == language)


@pytest.mark.proves("PROVIDER-1", "PROVIDER-2", "PROVIDER-7")
def test_the_first_example_of_the_page_refunds_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as db, db:
        db.execute("create table refund (id integer primary key, amount integer)")
    names: dict[str, Any] = {"account_of": lambda scope: "acct_7"}
    exec(block("python"), names)  # noqa: S102 - our own page
    said: dict[str, Any] = {"json": {"amount": 5}, "headers": {"Idempotency-Key": "8e03978e"}}
    with served(names["app"]) as url, httpx2.Client(base_url=url) as client:
        first, again = (client.post("/v1/refunds", **said) for _ in range(2))
        told = client.get("/operations/by-id/8e03978e").json()
    assert (
        (first.status_code, first.json()) == (again.status_code, again.json()) == (201, {"id": 1})
    )
    assert again.headers["idempotency-replayed"] == "true"
    assert told["state"] == "succeeded"
    assert told.keys() == json.loads(block("json")).keys()
    with closing(sqlite3.connect("shop.db")) as db:
        assert db.execute("select count(*) from refund").fetchone() == (1,)


@pytest.mark.proves("PROVIDER-15")
def test_the_contract_of_the_page_loads(tmp_path):
    source = '[sources.shop]\nbase_url = "https://shop.example"\n'
    path = tmp_path / "contracts.toml"
    path.write_text(source + block("toml"), encoding="utf-8")
    assert "refund" in str(load_contracts(path))
