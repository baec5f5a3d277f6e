"""Secrets: where they are found, what is told of those that are not, and whom they reach."""

import pytest
from tests.engine.functions import WRITE, application
from tests.transports.http_peer import ANSWER, answering, serving

from doubtless import Call
from doubtless.core.contract import Contract, Kind, SourceRules
from doubtless.core.model import Effect
from doubtless.engine.credentials import Credentials
from doubtless.errors import SettingsError


def source(scheme: str = "bearer", *, header: str = "Authorization") -> SourceRules:
    return SourceRules(
        name="payments",
        base_url="https://api.example.com",
        auth_scheme=scheme,
        auth_header=header,
        credential="pay-key",
    )


def wanting(tool: str, credential: str | None) -> Contract:
    return Contract(
        tool=tool,
        effect=Effect.WRITE,
        source=SourceRules(name="payments", credential=credential),
        kind=Kind.FUNCTION,
    )


@pytest.mark.proves("ENGINE-9")
def test_the_environment_comes_first_then_the_file_and_white_space_does_not_count(tmp_path):
    (tmp_path / "pay-key").write_text(" from a file\n", encoding="utf-8")
    told = {"DOUBTLESS_SECRET_PAY_KEY": " from the environment "}
    assert Credentials(tmp_path, told).find("pay-key") == "from the environment"
    assert Credentials(tmp_path, {}).find("pay-key") == "from a file"
    told = {"DOUBTLESS_SECRET_PAY_KEY": "  "}
    assert Credentials(tmp_path, told).find("pay-key") == "from a file"


@pytest.mark.proves("ENGINE-9")
def test_a_secret_that_is_missing_empty_or_unreadable_is_told_with_its_place(tmp_path):
    (tmp_path / "empty").write_text("\n", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    found = Credentials(tmp_path, {})
    for name in ("missing", "empty", "folder", "binary"):
        with pytest.raises(SettingsError, match=name):
            found.find(name)
    with pytest.raises(SettingsError, match="DOUBTLESS_SECRET_PAY_KEY"):
        Credentials(None, {}).find("pay-key")


@pytest.mark.proves("ENGINE-9")
def test_all_missing_secrets_are_told_at_once_with_the_tools_that_want_them():
    wanted = [wanting("b", "one"), wanting("a", "one"), wanting("c", "two"), wanting("d", None)]
    with pytest.raises(SettingsError) as caught:
        Credentials(None, {}).check(wanted)
    first, second = str(caught.value).splitlines()
    assert "DOUBTLESS_SECRET_ONE" in first
    assert "(wanted by a, b)" in first
    assert "DOUBTLESS_SECRET_TWO" in second
    assert "(wanted by c)" in second


@pytest.mark.proves("ENGINE-9")
@pytest.mark.parametrize(
    ("scheme", "secret", "value"),
    [
        ("bearer", "hunter2", "Bearer hunter2"),
        ("basic", "user:pass", "Basic dXNlcjpwYXNz"),
        ("header", "hunter2", "hunter2"),
    ],
)
def test_a_secret_is_attached_as_its_scheme_says_and_shown_nowhere(scheme, secret, value):
    found = Credentials(None, {"DOUBTLESS_SECRET_PAY_KEY": secret})
    assert found.headers(source(scheme, header="X-Key")) == {"X-Key": value}
    assert found.headers(SourceRules(name="open")) == {}
    assert secret not in repr(found)
    assert secret not in repr(source(scheme))


@pytest.mark.proves("ENGINE-9")
async def test_an_application_does_not_open_without_the_secrets_of_its_tools(tmp_path):
    app = application(tmp_path)

    @app.tool(source=source(), **WRITE)
    async def act(call: Call) -> None: ...

    with pytest.raises(SettingsError, match=r"DOUBTLESS_SECRET_PAY_KEY.*wanted by act"):
        async with app:
            pass


@pytest.mark.proves("ENGINE-9")
async def test_a_credential_goes_to_the_origin_of_its_source_only(tmp_path, monkeypatch):
    monkeypatch.setenv("DOUBTLESS_SECRET_PAY_KEY", "hunter2")
    async with serving(answering(ANSWER)) as elsewhere, application(tmp_path) as app:

        @app.tool(source=source(), **WRITE)
        async def act(call: Call) -> int:
            answer = await call.http.post(f"http://127.0.0.1:{elsewhere.port}/collect")
            return answer.status_code

        await app.call("act", {}, operation_id="o1")
    assert b"hunter2" not in b"".join(elsewhere.truth.heads)
