"""Signatures: each scheme's published examples, and what must not pass for one."""

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.signing import NOW_S, SCHEMES, Headers, Scheme, github, rules, standard

from doubtless.errors import SettingsError
from doubtless.service.signatures import BadSignature, check_secrets, verify

BODY = b'{"id": "evt_1", "type": "paid", "data": {"amount": 500, "name": "caf\xc3\xa9"}}'
TOLERANCE_S = 300
each_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
each_stamped = pytest.mark.parametrize(
    "scheme",
    [scheme for scheme in SCHEMES.values() if scheme.stamped],
    ids=[name for name, scheme in SCHEMES.items() if scheme.stamped],
)


def check(
    scheme: Scheme, headers: Headers, *secrets: str, body: bytes = BODY, now_s: int = NOW_S
) -> None:
    verify(scheme.rules, secrets or (scheme.secret,), headers, body, now_ms=now_s * 1000)


def signed(scheme: Scheme, at_s: int = NOW_S) -> Headers:
    return scheme.sign(scheme.secret, BODY, at_s)


def signature_in(headers: Headers) -> int:
    return next(
        i
        for i, (name, _) in enumerate(headers)
        if name.lower().endswith(("signature", "-mac", "-256", "-sha256"))
    )


# --- published examples --------------------------------------------------------------------------


@pytest.mark.proves("HOOK-1")
def test_the_example_of_standard_webhooks_passes():
    headers = [
        ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
        ("webhook-timestamp", "1614265330"),
        ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
    ]
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    verify(rules("standard"), [secret], headers, body, now_ms=1_614_265_330_000)


@pytest.mark.proves("HOOK-1")
def test_the_example_of_githubs_documentation_passes():
    made = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = [("X-Hub-Signature-256", made)]
    verify(rules("github"), ["It's a Secret to Everybody"], headers, b"Hello, World!", now_ms=0)


@pytest.mark.proves("HOOK-1")
def test_the_example_of_slacks_documentation_passes():
    made = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    headers = [("X-Slack-Signature", made), ("X-Slack-Request-Timestamp", "1531420618")]
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&"
        b"channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&"
        b"command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands"
        b"%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id="
        b"398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    secret = "8f742231b10e8888abcd99yyyzzz85a5"
    verify(rules("slack"), [secret], headers, body, now_ms=1_531_420_618_000)


@pytest.mark.proves("HOOK-1")
@each_scheme
def test_what_the_source_signed_passes(scheme):
    check(scheme, signed(scheme))


# --- what must not pass --------------------------------------------------------------------------


@pytest.mark.proves("HOOK-2")
@each_scheme
def test_a_flipped_bit_in_the_body_is_refused_wherever_it_is(scheme):
    headers = signed(scheme)
    for place in range(len(BODY)):
        for bit in (0, 7):
            changed = bytearray(BODY)
            changed[place] ^= 1 << bit
            with pytest.raises(BadSignature):
                check(scheme, headers, body=bytes(changed))


@pytest.mark.proves("HOOK-2")
@each_scheme
def test_a_changed_signature_is_refused_wherever_it_is_changed(scheme):
    headers = signed(scheme)
    index = signature_in(headers)
    name, text = headers[index]
    for place in range(text.find(",v0=") if ",v0=" in text else len(text)):
        other = "0" if text[place] != "0" else "1"
        changed = text[:place] + other + text[place + 1 :]
        with pytest.raises(BadSignature):
            check(scheme, [*headers[:index], (name, changed), *headers[index + 1 :]])


@pytest.mark.proves("HOOK-2")
@each_scheme
def test_another_secret_is_refused(scheme):
    with pytest.raises(BadSignature, match="does not match"):
        check(scheme, signed(scheme), scheme.other)


@pytest.mark.proves("HOOK-2")
@each_scheme
def test_a_header_that_is_missing_or_said_twice_is_refused(scheme):
    headers = signed(scheme)
    needed = [
        index
        for index, (name, _) in enumerate(headers)
        if name.lower()
        not in ("x-github-delivery", "x-github-event", "x-shopify-webhook-id", "x-shopify-topic")
    ]
    assert needed
    for index in needed:
        name, value = headers[index]
        with pytest.raises(BadSignature, match="not at all"):
            check(scheme, [*headers[:index], *headers[index + 1 :]])
        with pytest.raises(BadSignature, match="twice"):
            check(scheme, [*headers, (name.upper(), value)])


@each_scheme
def test_the_case_of_header_names_does_not_matter(scheme):
    check(scheme, [(name.swapcase(), value) for name, value in signed(scheme)])


@pytest.mark.proves("HOOK-3")
@each_stamped
@pytest.mark.parametrize("off_s", [TOLERANCE_S, -TOLERANCE_S])
def test_a_time_stamp_counts_within_the_tolerance_either_way(scheme, off_s):
    check(scheme, signed(scheme, NOW_S + off_s))
    for at_s in (NOW_S + off_s, NOW_S - off_s):
        further = 1 if at_s > NOW_S else -1
        with pytest.raises(BadSignature, match="too old, or in the future"):
            check(scheme, signed(scheme, at_s + further))


@pytest.mark.proves("HOOK-3")
@each_stamped
def test_the_tolerance_is_the_contracts(scheme):
    strict = replace(scheme, rules=replace(scheme.rules, tolerance_ms=2_000))
    check(strict, signed(scheme, NOW_S - 2))
    with pytest.raises(BadSignature):
        check(strict, signed(scheme, NOW_S - 3))


@pytest.mark.proves("HOOK-3")
@each_stamped
@pytest.mark.parametrize("stamp", ["", "now", "1e9", "-1", "1700000000.0", "²", "9" * 13, "nan"])
def test_a_time_stamp_that_is_no_number_of_seconds_is_refused(scheme, stamp):
    headers = [
        (name, value.replace(str(NOW_S), stamp) if value != "msg_1" else value)
        for name, value in signed(scheme)
    ]
    with pytest.raises(BadSignature):
        check(scheme, headers)


@pytest.mark.proves("HOOK-4")
@each_scheme
def test_while_a_secret_is_replaced_both_count(scheme):
    for secrets in ((scheme.secret, scheme.other), (scheme.other, scheme.secret)):
        check(scheme, signed(scheme), *secrets)
        check(scheme, scheme.sign(scheme.other, BODY, NOW_S), *secrets)
    with pytest.raises(BadSignature):
        check(scheme, scheme.sign(scheme.other, BODY, NOW_S), scheme.secret)


@pytest.mark.parametrize(
    ("name", "more"),
    [("standard", "v1a,YWJj v2,x junk v1,AAAA {} v1,"), ("stripe", "t={t},v1=00,{},v0=11,x")],
)
def test_one_of_several_signatures_is_enough(name, more):
    scheme = SCHEMES[name]
    headers = signed(scheme)
    index = signature_in(headers)
    header, text = headers[index]
    one = (
        next(part for part in text.split(",") if part.startswith("v1="))
        if name == "stripe"
        else text
    )
    headers[index] = (header, more.format(one, t=NOW_S))
    check(scheme, headers)


@pytest.mark.parametrize("text", ["v1a,YWJj", "", "v1", "v2,AAAA", "v1,AAAA " * 17])
def test_signatures_that_do_not_count_are_refused(text):
    headers = [*standard(SCHEMES["standard"].secret, BODY, NOW_S)[:2], ("webhook-signature", text)]
    with pytest.raises(BadSignature):
        check(SCHEMES["standard"], headers)


def test_two_times_in_one_signature_are_refused():
    [(name, text)] = signed(SCHEMES["stripe"])
    with pytest.raises(BadSignature, match="names no time, or several"):
        check(SCHEMES["stripe"], [(name, f"{text},t={NOW_S}")])


def test_a_prefix_is_optional_where_only_the_digest_is_signed():
    [(name, text)] = signed(SCHEMES["hmac-sha256"])
    check(SCHEMES["hmac-sha256"], [(name, f"sha256={text.upper()}".replace("SHA", "sha"))])


def test_a_body_that_is_no_text_can_be_signed_where_bytes_are():
    body = b"\xff\x00"
    headers = github(SCHEMES["github"].secret, body, NOW_S)
    check(SCHEMES["github"], headers, body=body)
    with pytest.raises(BadSignature, match="not UTF-8"):
        check(SCHEMES["standard"], signed(SCHEMES["standard"]), body=body)


# --- secrets -------------------------------------------------------------------------------------


@pytest.mark.proves("HOOK-5")
@each_scheme
@pytest.mark.parametrize("secrets", [[], [""], ["  "], ["good", ""]], ids=repr)
def test_an_empty_secret_is_an_error_and_never_no_check(scheme, secrets):
    secrets = [scheme.secret if secret == "good" else secret for secret in secrets]
    with pytest.raises(SettingsError, match="nothing would be checked"):
        verify(scheme.rules, secrets, signed(scheme), BODY, now_ms=NOW_S * 1000)


@pytest.mark.proves("HOOK-5")
@pytest.mark.parametrize("secret", ["whsec_", "whsec_!!!!", "whsec_a", "no base64", "=="])
def test_a_secret_that_can_not_sign_is_an_error_that_does_not_show_it(secret):
    with pytest.raises(SettingsError) as caught:
        check_secrets(rules("standard"), [secret])
    assert secret not in str(caught.value) or secret in ("whsec_", "==")
    assert "standard-hook" in str(caught.value)


def test_a_secret_of_standard_webhooks_may_come_without_prefix_or_padding():
    key = base64.b64encode(b"k" * 25).decode().rstrip("=")
    for secret in (key, f"whsec_{key}"):
        check_secrets(rules("standard"), [secret])


# --- whatever comes ------------------------------------------------------------------------------

texts = st.text(max_size=60) | st.sampled_from(["t=", "v1=", "v1,", ",", " ", "=", str(NOW_S)])


@pytest.mark.proves("HOOK-2")
@each_scheme
@given(
    values=st.lists(st.lists(texts, max_size=6).map("".join), min_size=3, max_size=3),
    body=st.binary(max_size=40),
    now_s=st.integers(0, 2**40),
)
def test_whatever_is_sent_is_refused_and_never_an_error(scheme, values, body, now_s):
    names = [name for name, _ in signed(scheme)]
    headers = list(zip(names, values, strict=False))
    with pytest.raises(BadSignature):
        check(scheme, headers, body=body, now_s=now_s)


@pytest.mark.proves("HOOK-1")
@each_scheme
@given(body=st.text().map(str.encode), off_s=st.integers(-TOLERANCE_S, TOLERANCE_S))
def test_whatever_the_source_signs_passes(scheme, body, off_s):
    check(scheme, scheme.sign(scheme.secret, body, NOW_S + off_s), body=body)
