"""The table ``[retention]``: what it may say, its faults, and what is valid but doubtful."""

import pytest
from hypothesis import given, strategies as st

from conclave.config.load import ConfigError, parse_config
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.config.warnings import find_warnings
from conclave.retention.durations import MAX_SECONDS
from conclave.retention.jobs import PurgeJob
from conclave.retention.policy import AFTER_FETCH, KEEP, GroupPolicy
from conclave.retention.resolve import LifetimeLimits, LifetimeRange, Lifetimes
from tests.config.test_config import faults_of
from tests.support.policies import DAY, HOUR, MONTH, WEEK, YEAR

GROUP = "0b6c2c52-3f0e-4d43-9d38-6f1f3a1b7a10"


def read(text: str) -> RetentionConfig:
    return parse_config(text, "x").retention


def test_the_example_of_the_contract_is_read() -> None:
    assert read(
        f"""
        [retention]
        enabled = false
        default_policy = {{ min_lifetime = "1d", max_lifetime = "1y" }}
        limits.max_lifetime = {{ min = "1d", max = "1y" }}
        limits.min_lifetime = {{ min = "0", max = "2d" }}
        fetch_confirmation = "next_fetch"
        fetch_hold_limit = "30d"
        retain_commits = true
        admins_may_redact = true
        keep_receipts = "2y"
        keep_audit = "5y"
        [retention.groups."{GROUP}"]
        max_lifetime = "30d"
        [[retention.purge_jobs]]
        longest_max_lifetime = "3d"
        interval = "12h"
        [[retention.purge_jobs]]
        shortest_max_lifetime = "3d"
        interval = "1d"
        """
    ) == RetentionConfig(
        enabled=False,
        default_policy=Lifetimes(DAY, YEAR),
        limits=LifetimeLimits(LifetimeRange(0, 2 * DAY), LifetimeRange(DAY, YEAR)),
        groups={GROUP: Lifetimes(KEEP, MONTH)},
        fetch_confirmation="next_fetch",
        fetch_hold_limit=MONTH,
        retain_commits=True,
        admins_may_redact=True,
        keep_receipts=2 * YEAR,
        keep_audit=5 * YEAR,
        purge_jobs=(PurgeJob(12 * HOUR, KEEP, 3 * DAY), PurgeJob(DAY, 3 * DAY, KEEP)),
    )


def test_the_settings_reach_the_policy() -> None:
    config = parse_config(
        f'message_retention = "30d"\nretention = {{ enabled = false, retain_commits = true, fetch_hold_limit = "7d",'
        f' default_policy = {{ max_lifetime = "1d" }}, groups = {{ "{GROUP}" = {{ min_lifetime = "1h" }} }},'
        ' limits = { max_lifetime = { max = "1y" } } }',
        "x",
    )
    policy = config.policy
    assert (policy.message_retention, policy.enabled, policy.retain_commits) == (MONTH, False, True)
    assert (policy.fetch_hold_limit, policy.default_policy) == (WEEK, Lifetimes(KEEP, DAY))
    assert (policy.limits, policy.groups) == (
        LifetimeLimits(LifetimeRange(), LifetimeRange(KEEP, YEAR)),
        {GROUP: Lifetimes(HOUR, KEEP)},
    )


@pytest.mark.parametrize(
    "spelling",
    [GROUP, GROUP.upper(), GROUP.replace("-", ""), GROUP.replace("-", "").upper()],
)
def test_an_override_names_its_group_in_either_spelling(spelling: str) -> None:
    assert read(f'retention.groups."{spelling}".max_lifetime = "1d"').groups == {GROUP: Lifetimes(KEEP, DAY)}


def test_the_names_that_synapse_has_are_other_names_for_two_limits() -> None:
    text = '[retention]\nallowed_lifetime_min = "1d"\nallowed_lifetime_max = "1y"\n'
    assert read(text) == RetentionConfig(limits=LifetimeLimits(LifetimeRange(), LifetimeRange(DAY, YEAR)))
    both = read(text + 'limits.min_lifetime.max = "2d"\n')
    assert both == RetentionConfig(limits=LifetimeLimits(LifetimeRange(max=2 * DAY), LifetimeRange(DAY, YEAR)))
    one = read('[retention]\nallowed_lifetime_min = "1d"\nlimits.max_lifetime.max = "1y"\n')
    assert one == RetentionConfig(limits=LifetimeLimits(LifetimeRange(), LifetimeRange(DAY, YEAR)))


@pytest.mark.parametrize(
    ("text", "seconds"), [("1m", MONTH), ("1mo", MONTH), ("1min", 60), ("2h", 2 * HOUR), ("1y", YEAR)]
)
def test_lifetimes_are_durations(text: str, seconds: int) -> None:
    assert read(f'retention.default_policy.max_lifetime = "{text}"').default_policy.max_lifetime == seconds


def test_bare_months_are_noticed_in_tables_and_lists() -> None:
    advice: list[str] = []
    parse_config(
        f"""
        [retention]
        default_policy.max_lifetime = "2m"
        limits = {{ max_lifetime = {{ max = "9m" }}, min_lifetime = {{ min = "1min" }} }}
        allowed_lifetime_min = "1m"
        fetch_hold_limit = "3m"
        groups."{GROUP}".min_lifetime = "1m"
        purge_jobs = [{{ interval = "1h", longest_max_lifetime = "1mo" }},
                      {{ interval = "5m", shortest_max_lifetime = "1mo" }}]
        """,
        "x",
        lambda name, _: advice.append(name),
    )
    assert advice == [
        "retention.default_policy.max_lifetime",
        "retention.limits.max_lifetime.max",
        "retention.allowed_lifetime_min",
        "retention.fetch_hold_limit",
        f"retention.groups.{GROUP}.min_lifetime",
        "retention.purge_jobs.2.interval",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("retention = 1", "retention: must be a table"),
        ("retention.enabled = 1", "retention.enabled: must be true or false"),
        ("retention.enabel = true", "retention.enabel: unknown setting; did you mean enabled?"),
        ('retention.default_policy = "30d"', "retention.default_policy: must be a table"),
        (
            'retention.default_policy.max_lifetime = "0"',
            "retention.default_policy.max_lifetime: must be a duration: only",
        ),
        (
            'retention.default_policy.max_lifetime = "-1"',
            "retention.default_policy.max_lifetime: must be a duration or",
        ),
        (
            'retention.default_policy.min_lifetime = "-1"',
            "retention.default_policy.min_lifetime: must be a duration or",
        ),
        (
            "retention.default_policy.max_lifetime = 86400",
            'retention.default_policy.max_lifetime: must be a duration in quotes, as in "30d"',
        ),
        ('retention.default_policy.max = "1d"', "retention.default_policy.max: unknown setting"),
        (
            'retention.default_policy = { min_lifetime = "2d", max_lifetime = "1d" }',
            "retention.default_policy: its max_lifetime must not be less than its min_lifetime",
        ),
        ('retention.limits.max_lifetime = "1d"', "retention.limits.max_lifetime: must be a table"),
        ('retention.limits.max_lifetime.max = "1x"', "retention.limits.max_lifetime.max: '1x' is not a duration"),
        ('retention.limits.max_lifetime.max = "0"', 'retention.limits.max_lifetime: its max must not be "0"'),
        ('retention.limits.max_lifetime.min = "-1"', "retention.limits.max_lifetime.min: must be a duration or"),
        ('retention.limits.min_lifetime.mx = "1d"', "retention.limits.min_lifetime.mx: unknown setting; did you mean"),
        ('retention.limits.lifetime.max = "1d"', "retention.limits.lifetime: unknown setting; did you mean"),
        (
            'retention.limits.max_lifetime = { min = "2d", max = "1d" }',
            "retention.limits.max_lifetime: its max must not be less than its min",
        ),
        (
            'retention.limits.min_lifetime = { min = "2d", max = "0" }',
            "retention.limits.min_lifetime: its max must not be less than its min",
        ),
        (
            'message_retention = "1d"\nretention.limits.max_lifetime.min = "2d"',
            "message_retention: must not be less than retention.limits.max_lifetime.min",
        ),
        (
            'message_retention = "1d"\nretention.allowed_lifetime_min = "2d"',
            "message_retention: must not be less than retention.limits.max_lifetime.min",
        ),
        (
            'retention.allowed_lifetime_min = "1d"\nretention.limits.max_lifetime.min = "1d"',
            "retention.allowed_lifetime_min: is another name for limits.max_lifetime.min: set only one",
        ),
        (
            'retention.allowed_lifetime_max = "1d"\nretention.limits.max_lifetime.max = "1d"',
            "retention.allowed_lifetime_max: is another name for limits.max_lifetime.max: set only one",
        ),
        ('retention.allowed_lifetime_max = "0"', 'retention.limits.max_lifetime: its max must not be "0"'),
        ("retention.groups = []", "retention.groups: must be a table of tables"),
        (f'retention.groups."{GROUP}" = "30d"', f"retention.groups.{GROUP}: must be a table"),
        ('retention.groups.lobby.max_lifetime = "1d"', "retention.groups: 'lobby' is not the id of a group"),
        (f'retention.groups."{{{GROUP}}}" = {{}}', f"retention.groups: '{{{GROUP}}}' is not the id of a group"),
        (f'retention.groups."urn:uuid:{GROUP}" = {{}}', "retention.groups: 'urn:uuid:"),
        (
            f'retention.groups."{GROUP}".max_lifetime = "0"',
            f"retention.groups.{GROUP}.max_lifetime: must be a duration",
        ),
        (
            f'retention.groups."{GROUP}" = {{ min_lifetime = "2d", max_lifetime = "1d" }}',
            f"retention.groups.{GROUP}: its max_lifetime must not be less than its min_lifetime",
        ),
        (
            f'[retention.groups."{GROUP}"]\n[retention.groups.{GROUP.replace("-", "")}]',
            "retention.groups: has the same group twice",
        ),
        ('retention.fetch_confirmation = "never"', 'retention.fetch_confirmation: must be "response" or "next_fetch"'),
        ('retention.fetch_hold_limit = "0"', "retention.fetch_hold_limit: '0' is not a duration"),
        ('retention.fetch_hold_limit = "-1"', "retention.fetch_hold_limit: '-1' is not a duration"),
        ('retention.retain_commits = "yes"', "retention.retain_commits: must be true or false"),
        ('retention.keep_receipts = "0"', "retention.keep_receipts: '0' is not a duration"),
        ("retention.keep_audit = 5", 'retention.keep_audit: must be a duration in quotes, as in "30d"'),
        ("retention.purge_jobs = {}", "retention.purge_jobs: must be a list of tables"),
        ('retention.purge_jobs = ["1d"]', "retention.purge_jobs.1: must be a table"),
        ("retention.purge_jobs = [{}]", "retention.purge_jobs.1.interval: is missing"),
        ('retention.purge_jobs = [{ interval = "0" }]', "retention.purge_jobs.1.interval: '0' is not a duration"),
        (
            'retention.purge_jobs = [{ interval = "1h" }, { interval = "x" }]',
            "retention.purge_jobs.2.interval: 'x' is not a duration",
        ),
        (
            'retention.purge_jobs = [{ interval = "1h", longest = "1d" }]',
            "retention.purge_jobs.1.longest: unknown setting",
        ),
        (
            'retention.purge_jobs = [{ interval = "1h", shortest_max_lifetime = "2d", longest_max_lifetime = "1d" }]',
            "retention.purge_jobs: over 2d up to 1d: longest_max_lifetime must be greater than shortest_max_lifetime",
        ),
        (
            'retention.purge_jobs = [{ interval = "1h" }, { interval = "2h" }]',
            "retention.purge_jobs: two of them have the same bounds",
        ),
    ],
)
def test_a_fault_is_one_line_that_names_the_setting(text: str, fault: str) -> None:
    [line] = faults_of(text)
    assert line.startswith(fault)


def test_all_faults_are_named_at_once_those_of_a_value_and_those_between_two() -> None:
    found = faults_of(
        f"""
        cleanup_interval = "x"
        message_retention = "1d"
        [retention]
        limits.max_lifetime.min = "2d"
        default_policy = {{ min_lifetime = "2d", max_lifetime = "1d" }}
        groups."{GROUP}" = {{ min_lifetime = "2d", max_lifetime = "1d" }}
        purge_jobs = [{{ interval = "1h" }}, {{ interval = "2h" }}]
        [cleanup]
        engin = "sql"
        """
    )
    assert [line.partition(": ")[0] for line in found] == [
        "cleanup_interval",
        "cleanup.engin",
        "retention.default_policy",
        f"retention.groups.{GROUP}",
        "message_retention",
        "retention.purge_jobs",
    ]


def test_every_fault_of_a_nested_table_is_named() -> None:
    found = faults_of(
        """
        [retention]
        default_policy = { min_lifetime = "5x", max_lifetime = "0", x = 1 }
        limits = { max_lifetime = { min = "-1", max = 3 }, min_lifetime = { min = "q" } }
        groups = { lobby = { max_lifetime = "0" }, hall = {} }
        purge_jobs = [{ interval = "x" }, { longest_max_lifetime = "y" }]
        """
    )
    assert sorted(line.partition(": ")[0].removeprefix("retention.") for line in found) == [
        "default_policy.max_lifetime",
        "default_policy.min_lifetime",
        "default_policy.x",
        "groups",
        "groups",
        "groups.lobby.max_lifetime",
        "limits.max_lifetime.max",
        "limits.max_lifetime.min",
        "limits.min_lifetime.min",
        "purge_jobs.1.interval",
        "purge_jobs.2.interval",
        "purge_jobs.2.longest_max_lifetime",
    ]


HOLD = 'retention.fetch_hold_limit = "30d"\n'


@pytest.mark.parametrize(
    ("text", "doubtful"),
    [
        ("", []),
        ('message_retention = "0"', []),
        ('message_retention = "30d"', ["message_retention"]),
        ('message_retention = "30d"\n' + HOLD, []),
        (
            'retention.limits.max_lifetime.max = "1y"',
            ["retention.limits.max_lifetime.max", "retention.limits.max_lifetime"],
        ),
        ('retention.allowed_lifetime_min = "1d"', ["retention.limits.max_lifetime"]),
        ('retention.limits.max_lifetime.max = "1y"\n' + HOLD, ["retention.limits.max_lifetime"]),
        ('message_retention = "1y"\nretention.limits.max_lifetime.max = "1y"\n' + HOLD, []),
        ('message_retention = "0"\nretention.limits.max_lifetime.max = "1y"\n' + HOLD, []),
        (
            'retention.default_policy.max_lifetime = "1y"\nretention.limits.max_lifetime.max = "1y"\n' + HOLD,
            [],
        ),
        ('retention.limits.min_lifetime.min = "1d"', []),
        ('retention.purge_jobs = [{ interval = "1h" }]', []),
        ('retention.purge_jobs = [{ interval = "1h", longest_max_lifetime = "3d" }]', ["retention.purge_jobs"]),
        (
            'retention.purge_jobs = [{ interval = "1h", shortest_max_lifetime = "1d", longest_max_lifetime = "3d" }]',
            ["retention.purge_jobs", "retention.purge_jobs"],
        ),
    ],
)
def test_what_is_valid_but_doubtful_is_told(text: str, doubtful: list[str]) -> None:
    assert [found.setting for found in find_warnings(parse_config(text, "x"))] == doubtful


@pytest.mark.parametrize(
    ("text", "concerned", "others"),
    [
        ('message_retention = "30d"', [AFTER_FETCH], [KEEP, MONTH]),
        ('retention.limits.max_lifetime.max = "1y"\n' + HOLD, [KEEP], [AFTER_FETCH, MONTH]),
        ('retention.purge_jobs = [{ interval = "1h", longest_max_lifetime = "3d" }]', [WEEK], [KEEP, DAY, AFTER_FETCH]),
        ('retention.purge_jobs = [{ interval = "1h", shortest_max_lifetime = "0" }]', [AFTER_FETCH], [KEEP, DAY]),
    ],
)
def test_what_concerns_no_group_that_is_there_is_left_out(text: str, concerned: list[int], others: list[int]) -> None:
    config = parse_config(text, "x")
    assert not list(find_warnings(config, []))
    assert not list(find_warnings(config, [GroupPolicy(lifetime) for lifetime in others]))
    assert list(find_warnings(config, [GroupPolicy(lifetime) for lifetime in concerned + others])) == list(
        find_warnings(config)
    )


def test_a_gap_between_jobs_is_named() -> None:
    jobs = (PurgeJob(HOUR, KEEP, 3 * DAY), PurgeJob(HOUR, WEEK))
    [found] = find_warnings(Config(retention=RetentionConfig(purge_jobs=jobs)))
    assert found.means.startswith("no job covers lifetimes over 3d, up to 7d: ")


maybe = st.one_of(st.just(KEEP), st.integers(0, MAX_SECONDS))
lengths = st.integers(1, MAX_SECONDS)
configs = st.builds(
    RetentionConfig,
    st.booleans(),
    st.builds(Lifetimes, maybe, maybe),
    st.builds(LifetimeLimits, st.builds(LifetimeRange, maybe, maybe), st.builds(LifetimeRange, maybe, maybe)),
    st.dictionaries(st.uuids().map(str), st.builds(Lifetimes, maybe, maybe), max_size=3),
    st.sampled_from(["response", "next_fetch"]),
    maybe,
    st.booleans(),
    lengths,
    st.booleans(),
    lengths,
    lengths,
    st.lists(st.builds(PurgeJob, lengths, maybe, maybe), max_size=3).map(tuple),
)


@given(configs)
def test_every_setting_survives_the_way_to_the_worker(retention: RetentionConfig) -> None:
    config = Config(retention=retention)
    read_again = Config.from_json(config.to_json())
    assert read_again == config
    assert read_again.policy == config.policy


def test_what_contradicts_itself_is_told_beside_what_is_not_valid() -> None:
    """In the same table, too: all faults at once."""
    with pytest.raises(ConfigError) as refused:
        parse_config(
            f"""
            message_retention = "1d"
            [retention]
            enabled = "yes"
            default_policy = {{ min_lifetime = "2d", max_lifetime = "1d", more = "1d" }}
            limits = {{ max_lifetime = {{ min = "3d", max = "2d" }}, min_lifetime = {{ min = "x" }} }}
            allowed_lifetime_min = "2d"
            groups."{GROUP}" = {{ min_lifetime = "2d", max_lifetime = "1d" }}
            groups.lobby = {{}}
            purge_jobs = [{{ interval = "x" }}, {{ interval = "1d" }}]
            """,
            "x",
        )
    assert [line.partition(" must")[0] for line in refused.value.faults] == [
        "retention.enabled:",
        "retention.default_policy.more: unknown setting; docs/configuration.md lists all",
        "retention.limits.min_lifetime.min: 'x' is not a duration: a positive integer and a unit (s, min, h, d, w, mo,"
        ' y), as in "30d", "-1" or "0"',
        "retention.groups: 'lobby' is not the id of a group: a UUID with hyphens, or 32 hex digits",
        "retention.purge_jobs.1.interval: 'x' is not a duration: a positive integer and a unit (s, min, h, d, w, mo,"
        ' y), as in "30d"',
        "retention.allowed_lifetime_min: is another name for limits.max_lifetime.min: set only one",
        "retention.limits.max_lifetime: its max",
        "retention.default_policy: its max_lifetime",
        f"retention.groups.{GROUP}: its max_lifetime",
        "message_retention:",
    ]
