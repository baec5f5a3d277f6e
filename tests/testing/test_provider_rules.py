import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubtless.testing.provider_rules import (
    ACTIONS,
    Config,
    ConfigError,
    RuleBook,
    Settings,
    parse_config,
)


def book(*rules):
    return RuleBook(parse_config(list(rules)).rules)


def fires(rule_book, times=6, method="POST", path="/v1/refunds", key=None):
    return [rule_book.on_head(method, path, key) is not None for _ in range(times)]


RST = {"action": "commit_then_rst"}
FIN = {"action": "commit_then_fin"}


@pytest.mark.parametrize(
    ("match", "more", "fired"),
    [
        ({}, {}, [1, 2, 3, 4, 5, 6]),
        ({}, {"times": 2}, [1, 2]),
        ({"nth": 3}, {}, [3]),
        ({"from_nth": 4}, {}, [4, 5, 6]),
        ({"from_nth": 2}, {"times": 1}, [2]),
        ({"probability": 0}, {}, []),
        ({"probability": 1}, {}, [1, 2, 3, 4, 5, 6]),
        ({"method": "GET"}, {}, []),
        ({"path_prefix": "/v1/charges"}, {}, []),
        ({"key": "k"}, {}, []),
    ],
)
def test_a_rule_is_for_the_requests_that_it_names(match, more, fired):
    hits = fires(book({"match": match, "then": RST, **more}))
    assert [number for number, hit in enumerate(hits, 1) if hit] == fired


def test_the_first_rule_that_matches_decides_and_all_of_them_count():
    rule_book = book({"match": {"nth": 2}, "then": RST}, {"match": {"from_nth": 2}, "then": FIN})
    names = [found and found.name for found in (rule_book.on_head("POST", "/", None),) * 1]
    assert names == [None]
    taken = [rule_book.on_head("POST", "/", None) for _ in range(2)]
    assert [action.name for action in taken if action] == ["commit_then_rst", "commit_then_fin"]
    assert rule_book.report() == [
        {"action": "commit_then_rst", "seen": 3, "fired": 1},
        {"action": "commit_then_fin", "seen": 3, "fired": 1},
    ]


@given(st.integers(0, 2**32), st.floats(0, 1))
def test_the_same_seed_draws_the_same_requests(seed, probability):
    rule = {"match": {"probability": probability, "seed": seed}, "then": RST}
    assert fires(book(rule), 50) == fires(book(rule), 50)


def test_rules_for_connections_and_rules_for_requests_are_counted_apart():
    rule_book = book({"match": {"nth": 1}, "then": {"action": "rst_on_accept"}}, {"then": RST})
    assert fires(rule_book, 2) == [True, True]
    assert [rule_book.on_accept() is not None for _ in range(2)] == [True, False]


def test_a_list_replaces_the_rules_alone_and_an_object_everything():
    first = parse_config({"settings": {"key_mode": "off"}, "rules": [{"then": RST}]})
    second = parse_config([], first)
    assert (second.settings.key_mode, second.rules) == ("off", ())
    assert parse_config({}, second) == Config()


def test_a_collection_starts_from_the_settings_of_all():
    config = parse_config(
        {"settings": {"page_size": 3}, "collections": {"refunds": {"unique_by": ["charge"]}}}
    )
    assert config.of("refunds") == Settings(page_size=3, unique_by=("charge",))
    assert config.of("charges") == Settings(page_size=3)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (7, "an object is expected"),
        ({"rules": {}}, "rules: a list"),
        ({"setings": {}}, "unknown setings"),
        ({"settings": {"key_mood": "all"}}, "unknown key_mood"),
        ({"settings": {"key_mode": "some"}}, "settings.key_mode: 'some' is none of off, all"),
        ({"settings": {"read_lag_s": -1}}, "settings.read_lag_s: seconds"),
        ({"settings": {"page_size": 1.5}}, "settings.page_size: a whole number"),
        ({"settings": {"ignore_filters": 1}}, "true or false"),
        ({"settings": {"unique_code": 1}}, "text is expected"),
        ({"collections": {"refunds": {"unique_by": "charge"}}}, "collections.refunds.unique_by"),
        ([{}], "rules[0].then: an object"),
        ([{"then": {"action": "explode"}}], "'explode' is none of"),
        ([{"then": {"action": "status"}}], "status needs status"),
        ([{"then": {**RST, "status": 500}}], "does not take status"),
        ([{"then": RST, "times": -1}], "rules[0].times"),
        ([{"then": RST, "match": {"nth": 1, "from_nth": 2}}], "exclude each other"),
        ([{"then": RST, "match": {"probability": 2}}], "at most 1"),
        ([{"then": {"action": "rst_on_accept"}, "match": {"method": "GET"}}], "before anything"),
        ([{"then": {"action": "status", "status": 1, "headers": {"a": 1}}}], "text is expected"),
    ],
)
def test_what_is_not_known_is_refused_by_name(document, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_config(document)


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_every_action_is_read_with_what_it_needs(action):
    needed = {"status": 500, "delay_s": 0.5}
    given_options = {name: needed[name] for name in ACTIONS[action][0]}
    (rule,) = parse_config([{"then": {"action": action, **given_options}}]).rules
    assert rule.then.name == action
