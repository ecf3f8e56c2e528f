"""Which policy a group has: the table of rules and conflicts, and what follows from a policy."""

import json
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from conclave.config.load import parse_config
from conclave.retention.durations import MAX_SECONDS, parse_duration
from conclave.retention.policy import AFTER_FETCH, FOREVER, KEEP, GroupPolicy, Source, effective_expiry
from conclave.retention.resolve import LifetimeLimits, LifetimeRange, Lifetimes, PolicySettings
from tests.support.policies import ANOTHER, CASES, DAY, GROUP, HOUR, MONTH, WEEK, Case, policy_table, settings

ROOT = Path(__file__).resolve().parents[2]
NOW = 1_800_000_000

lengths = st.one_of(st.just(KEEP), st.integers(1, MAX_SECONDS))
"""Lengths as a configuration may have them, and none."""

least = st.one_of(st.just(KEEP), st.integers(0, MAX_SECONDS))
modes = st.one_of(st.just(AFTER_FETCH), lengths)
limits = st.builds(
    LifetimeLimits, st.builds(LifetimeRange, least, least), st.builds(LifetimeRange, least, lengths)
).filter(
    lambda found: all(each.max == KEEP or each.min <= each.max for each in (found.min_lifetime, found.max_lifetime))
)
lifetimes = st.builds(Lifetimes, least, lengths)
any_settings = st.builds(
    PolicySettings,
    modes,
    st.integers(1, MAX_SECONDS),
    st.integers(1, MAX_SECONDS),
    enabled=st.booleans(),
    default_policy=lifetimes,
    limits=limits,
    groups=st.dictionaries(st.uuids().map(str), lifetimes, max_size=3),
    fetch_hold_limit=lengths,
    retain_commits=st.booleans(),
)


@policy_table
def test_the_policy_of_a_group(case: Case) -> None:
    found = case.settings.of_group(GROUP.bytes, case.own_max, case.own_min)
    assert (found, found.source) == (case.policy, case.source)


@policy_table
def test_an_override_follows_the_id_of_its_group(case: Case) -> None:
    moved = case.settings_for(UUID(int=7).bytes)
    assert moved.of_group(UUID(int=7).bytes, case.own_max, case.own_min) == case.policy


def of_docs() -> list[list[str]]:
    """Return the cells of the rows that docs/retention.md has on conflicts."""
    section = (ROOT / "docs" / "retention.md").read_text(encoding="utf-8").partition("\n### Conflicts\n")[2]
    table = [line.strip("|").split("|") for line in section.partition("\n### ")[0].splitlines() if line[:1] == "|"]
    return [[cell.strip() for cell in row] for row in table[2:]]


@pytest.mark.parametrize("row", of_docs(), ids=lambda row: f"{row[0]} and {row[1]}")
def test_the_conflicts_in_the_docs_are_worked_out_as_they_say(row: list[str]) -> None:
    set_, own, expires, erased, source = row
    lines = ["" if line == "nothing" else line.strip("`") for line in set_.split(", ")]
    lines = [line if line.startswith("message_retention") else f"retention.{line}" for line in lines if line]
    config = parse_config("\n".join(lines).replace("groups.ID", f"groups.{GROUP}"), "x")
    found = config.policy.of_group(GROUP.bytes, parse_duration(own, words=True), KEEP)
    lifetime = {"never": KEEP, "fetched": AFTER_FETCH}.get(expires)
    assert found.lifetime == (parse_duration(expires) if lifetime is None else lifetime)
    assert found.min_lifetime == (parse_duration(erased) if erased else 0)
    assert found.source == source


def test_no_row_says_the_same_as_another_and_every_source_occurs() -> None:
    assert len({case.sentence for case in CASES}) == len(CASES) >= 60
    assert {case.source for case in CASES} == set(Source)


def test_a_group_that_no_override_names_has_the_policy_of_its_own_settings() -> None:
    overridden = settings(DAY, groups={str(GROUP): Lifetimes(KEEP, MONTH)})
    assert overridden.of_group(ANOTHER.bytes, WEEK, KEEP) == overridden.of_setting(WEEK, KEEP) == GroupPolicy(DAY)


@given(any_settings, modes, least)
def test_without_defaults_limits_and_overrides_it_is_the_table_of_the_protocol(
    drawn: PolicySettings, own_max: int, own_min: int
) -> None:
    bare = replace(drawn, default_policy=Lifetimes(), limits=LifetimeLimits(), groups={})
    found = bare.of_group(GROUP.bytes, own_max, own_min)
    assert found.lifetime == effective_expiry(bare.message_retention, own_max)
    assert found.min_lifetime == max(0, own_min)


@given(any_settings, modes, least)
def test_no_policy_lies_outside_of_what_was_set(drawn: PolicySettings, own_max: int, own_min: int) -> None:
    found = drawn.of_setting(own_max, own_min)
    if found.lifetime == KEEP:
        assert {drawn.message_retention, own_max, drawn.default_policy.max_lifetime} >= {KEEP}
        assert drawn.message_retention == own_max == KEEP == drawn.default_policy.max_lifetime, "no limit expires"
    if drawn.message_retention != KEEP:
        assert AFTER_FETCH <= found.lifetime <= drawn.message_retention or found.is_after_fetch
    assert 0 <= found.min_lifetime <= MAX_SECONDS
    assert found.hold_limit == (drawn.fetch_hold_limit if found.is_after_fetch else KEEP)


@given(any_settings)
def test_stored_settings_are_read_as_they_were(drawn: PolicySettings) -> None:
    stored = json.loads(json.dumps(drawn.to_mapping()))
    read = PolicySettings.from_mapping(stored)
    assert read == drawn
    assert (read.differing(drawn), read.hides_as(drawn)) == ([], True)
    assert read.overrides == drawn.overrides


def test_what_an_older_version_stored_has_the_defaults_of_what_it_did_not_know() -> None:
    stored = {"message_retention": DAY, "token_ttl_seconds": 60, "invite_ttl_seconds": 61}
    assert PolicySettings.from_mapping(stored) == PolicySettings(DAY, 60, 61)


@pytest.mark.parametrize(
    ("changed", "name", "hides_as"),
    [
        ({"message_retention": DAY}, "message_retention", False),
        ({"token_ttl_seconds": 5}, "token_ttl_seconds", True),
        ({"invite_ttl_seconds": 5}, "invite_ttl_seconds", True),
        ({"enabled": False}, "retention.enabled", True),
        ({"default_policy": Lifetimes(KEEP, DAY)}, "retention.default_policy", False),
        ({"limits": LifetimeLimits(LifetimeRange(1))}, "retention.limits", False),
        ({"groups": {str(GROUP): Lifetimes()}}, "retention.groups", False),
        ({"fetch_hold_limit": DAY}, "retention.fetch_hold_limit", False),
        ({"retain_commits": True}, "retention.retain_commits", False),
    ],
)
def test_a_difference_is_named_as_in_the_configuration(changed: dict[str, object], name: str, hides_as: bool) -> None:
    other = replace(settings(), **changed)  # type: ignore[arg-type]  # one of each
    assert (settings().differing(other), settings().hides_as(other)) == ([name], hides_as)


@pytest.mark.parametrize(
    ("policy", "hidden", "erasable"),
    [
        (GroupPolicy(KEEP), 0, FOREVER),
        (GroupPolicy(HOUR), NOW - HOUR, FOREVER),
        (GroupPolicy(HOUR, DAY), NOW - HOUR, NOW - DAY + 1),
        (GroupPolicy(AFTER_FETCH, DAY), 0, NOW - DAY + 1),
        (GroupPolicy(AFTER_FETCH, DAY, MONTH), NOW - MONTH, NOW - DAY + 1),
        (GroupPolicy(HOUR, erases=False), NOW - HOUR, 0),
        (GroupPolicy(HOUR, DAY, erases=False), NOW - HOUR, 0),
        (GroupPolicy(MAX_SECONDS, MAX_SECONDS), 0, 0),
        (GroupPolicy(NOW, NOW), 0, 1),
    ],
)
def test_what_a_policy_hides_and_lets_erase(policy: GroupPolicy, hidden: int, erasable: int) -> None:
    assert (policy.expires_before(NOW), policy.erasable_before(NOW)) == (hidden, erasable)


@pytest.mark.parametrize(
    ("policy", "expires_at"),
    [
        (GroupPolicy(KEEP), 0),
        (GroupPolicy(AFTER_FETCH), 0),
        (GroupPolicy(HOUR, DAY), NOW + HOUR + 1),
        (GroupPolicy(AFTER_FETCH, 0, DAY), NOW + DAY + 1),
        (GroupPolicy(MAX_SECONDS), MAX_SECONDS),
        (GroupPolicy(MAX_SECONDS - NOW - 1), MAX_SECONDS),
        (GroupPolicy(MAX_SECONDS - NOW - 2), MAX_SECONDS - 1),
    ],
)
def test_the_first_second_at_which_a_message_is_not_served_saturates(policy: GroupPolicy, expires_at: int) -> None:
    assert policy.expires_at(NOW) == expires_at


def test_a_message_is_erasable_once_it_is_as_old_as_the_minimum() -> None:
    policy = GroupPolicy(HOUR, DAY)
    assert policy.erasable_before(NOW + DAY - 1) == NOW, "not yet the one that was stored at NOW"
    assert policy.erasable_before(NOW + DAY) == NOW + 1
