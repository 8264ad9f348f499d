import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.discovery.kubernetes.label_selector import LabelSelector, Operator, Requirement
from epp.errors import ConfigError

KEYS = st.sampled_from(["app", "tier", "example.com/role", "in", "notin"])
VALUES = st.sampled_from(["", "a", "b", "7", "12", "in", "v1.2_x-y"])
LABELS = st.dictionaries(KEYS, VALUES)


@st.composite
def requirements(draw: st.DrawFn) -> Requirement:
    operator = draw(st.sampled_from(Operator))
    if operator in (Operator.IN, Operator.NOT_IN):
        values = tuple(sorted(draw(st.sets(VALUES, min_size=1))))
    elif operator in (Operator.GREATER, Operator.LESS):
        values = (draw(st.sampled_from(["0", "7", "11"])),)
    else:
        values = ()
    return Requirement(draw(KEYS), operator, values)


def parse(text: str) -> LabelSelector:
    return LabelSelector.parse(text, "--endpoint-selector")


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        parse(text)
    (sentence,) = raised.value.problems
    return sentence


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("app=a", [{"app": "a"}, {"app": "a", "x": "y"}], [{}, {"app": "b"}, {"app": ""}]),
        ("app==a", [{"app": "a"}], [{}, {"app": "b"}]),
        ("app=", [{"app": ""}], [{}, {"app": "a"}]),
        ("app!=a", [{}, {"app": "b"}], [{"app": "a"}]),
        ("app in (a,b)", [{"app": "a"}, {"app": "b"}], [{}, {"app": "c"}]),
        ("app in ()", [{"app": ""}], [{}, {"app": "a"}]),
        ("app in (a,)", [{"app": ""}, {"app": "a"}], [{}, {"app": "b"}]),
        ("app notin (a,b)", [{}, {"app": "c"}], [{"app": "a"}, {"app": "b"}]),
        ("app", [{"app": ""}, {"app": "a"}], [{}, {"x": "app"}]),
        ("!app", [{}, {"x": "app"}], [{"app": ""}, {"app": "a"}]),
        ("gen>7", [{"gen": "8"}, {"gen": "10"}], [{}, {"gen": "7"}, {"gen": "new"}]),
        ("gen<7", [{"gen": "6"}], [{}, {"gen": "7"}, {"gen": ""}, {"gen": "9" * 30}]),
        ("app=a,tier!=b", [{"app": "a"}], [{"app": "a", "tier": "b"}, {}]),
        ("app=a,app=b", [], [{"app": "a"}, {"app": "b"}]),
        ("in in (in,notin)", [{"in": "in"}, {"in": "notin"}], [{}]),
        (" app  in\t( a , b ) , ! x ", [{"app": "b"}], [{"app": "b", "x": "1"}]),
        ("example.com/role=a", [{"example.com/role": "a"}], [{"role": "a"}]),
        ("", [{}, {"app": "a"}], []),
    ],
)
def test_it_matches_as_in_kubernetes(text: str, matching: list[dict[str, str]], others: list[dict[str, str]]) -> None:
    selector = parse(text)

    assert [labels for labels in [*matching, *others] if selector.matches(labels)] == matching


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("app=a,", "--endpoint-selector: expected a label's key, or ! and a key, found the end"),
        (",app=a", '--endpoint-selector: expected a label\'s key, or ! and a key, found "," at character 1'),
        ("app=a tier=b", '--endpoint-selector: expected a comma or the end, found "tier" at character 7'),
        ("app a", '--endpoint-selector: expected one of =, ==, !=, in, notin, <, > or a comma, found "a" at character 5'),
        ("app===a", '--endpoint-selector: expected a value, found "=" at character 6'),
        ("!app=a", '--endpoint-selector: expected a comma or the end, found "=" at character 5'),
        ("!", "--endpoint-selector: expected a label's key, found the end"),
        ("app in a", '--endpoint-selector: expected ( and values, found "a" at character 8'),
        ("app in (a", "--endpoint-selector: expected a comma or ), found the end"),
        ("app in (a b)", '--endpoint-selector: expected a comma or ), found "b" at character 11'),
        ("app in (", "--endpoint-selector: expected a value, a comma or ), found the end"),
        ("gen>new", '--endpoint-selector: expected a whole number after >, found "new" at character 5'),
        ("gen<", "--endpoint-selector: expected a whole number after <, found the end"),
        ("a/b/c=d", '--endpoint-selector: expected a label\'s key such as app or example.com/app, found "a/b/c"'),
        (
            "Example.com/app",
            '--endpoint-selector: expected a label\'s key such as app or example.com/app, found "Example.com/app"',
        ),
        (
            "app=a:b",
            "--endpoint-selector: expected a label's value of at most 63 letters, digits, '-', '_' and '.', found \"a:b\"",
        ),
    ],
)
def test_what_is_no_selector_is_told_with_its_place(text: str, found: str) -> None:
    assert problem(text) == found


@pytest.mark.parametrize("text", ["é=a", "app=é", "a" * 64, "app=" + "a" * 64, "a\0b", "-a", "a-", "app=٣", "a" * 254 + "/x"])
def test_keys_and_values_are_those_that_labels_can_have(text: str) -> None:
    assert "expected a label's" in problem(text)


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("tier notin (b,a),app==x", "app=x,tier notin (a,b)"),
        ("app in (a),tier notin (b)", "app=a,tier!=b"),
        ("b,!a", "!a,b"),
        ("app=", "app="),
        ("app in (a,)", "app in (,a)"),
        ("gen > 7", "gen>7"),
        ("app=a,app=a", "app=a"),
    ],
)
def test_it_is_rendered_in_one_form_whatever_it_was_written_in(text: str, rendered: str) -> None:
    assert parse(text).render() == rendered


@given(st.lists(requirements(), max_size=4), LABELS)
def test_what_is_rendered_is_read_as_the_same_selector(wanted: list[Requirement], labels: dict[str, str]) -> None:
    text = ",".join(requirement.render() for requirement in wanted)

    selector = parse(text)

    assert selector.matches(labels) is all(requirement.matches(labels) for requirement in wanted)
    assert parse(selector.render()) == selector


@given(st.text(alphabet="ab1/=!<>(), in"))
def test_every_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    try:
        parse(text)
    except ConfigError as error:
        assert all(sentence.startswith("--endpoint-selector: expected ") for sentence in error.problems)


def test_labels_make_the_selector_of_objects_that_have_all_of_them() -> None:
    selector = LabelSelector.of_labels({"tier": "a", "app": "x"}, "pool")

    assert selector.render() == "app=x,tier=a"
    assert selector == parse("app=x,tier=a")


def test_labels_that_cannot_be_are_all_told() -> None:
    with pytest.raises(ConfigError) as raised:
        LabelSelector.of_labels({"a b": "x", "app": "a b"}, "pool")

    assert [sentence.partition("found ")[2] for sentence in raised.value.problems] == ['"a b"', '"a b"']
