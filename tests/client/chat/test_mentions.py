"""Who is meant by @name."""

import pytest

from conclave.client.chat.mentions import common_prefix, completions, mentions_user, partial_mention


@pytest.mark.parametrize(
    ("text", "others", "meant"),
    [
        ("@ada", [], True),
        ("is @ada there?", [], True),
        ("(@ada)", [], True),
        ("hello @ada, and @bob", ["bob"], True),
        ("@Ada", [], True),
        ("@Ada", ["Ada"], False),
        ("@Ada @ada", ["Ada"], True),
        ("@bob", ["bob"], False),
        ("@adam", [], False),
        ("@ada_", [], False),
        ("ada", [], False),
        ("ada@example.org", [], False),
        ("me@ada", [], False),
        ("@@ada", [], False),
        ("@", [], False),
        ("> ada: shall we?\nyes", [], True),
        ("> bob: ask @ada\nno", ["bob"], False),
        ("> bob: shall we?\nyes, @ada", ["bob"], True),
        (">ada: no quote", [], False),
        ("", [], False),
        (None, [], False),
    ],
)
def test_a_user_is_meant_by_the_name_as_it_is_unless_that_is_another_members(
    text: str | None, others: list[str], meant: bool
) -> None:
    assert mentions_user(text, "ada", ["ada", *others]) is meant


@pytest.mark.parametrize(
    ("before", "beginning"),
    [
        ("@", ""),
        ("@a", "a"),
        ("hello @Ad", "Ad"),
        ("(@x", "x"),
        ("a@b", None),
        ("@a b", None),
        ("", None),
        ("@a-", None),
    ],
)
def test_a_name_begins_with_its_sign_at_the_beginning_of_a_word(before: str, beginning: str | None) -> None:
    assert partial_mention(before) == beginning


def test_names_are_completed_as_far_as_they_are_sure() -> None:
    names = ["Grace", "grant", "bob"]
    assert completions("gr", names) == ["Grace", "grant"]
    assert completions("", names) == ["bob", "Grace", "grant"]
    assert completions("x", names) == []
    assert common_prefix(["Grace", "grant"]) == "Gra"
    assert common_prefix(["bob"]) == "bob"
    assert common_prefix(["al", "alice"]) == "al"
