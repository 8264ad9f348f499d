import pytest

from epp.config.yaml_tree import DEPTH_MAX, YamlList, YamlMap, YamlNode, YamlScalar, read_yaml
from epp.errors import ConfigError


def entries(node: YamlNode | None) -> dict[str, YamlNode]:
    assert isinstance(node, YamlMap)
    return node.entries


def scalar(text: str) -> YamlScalar:
    node = entries(read_yaml(f"v: {text}\n", "f"))["v"]
    assert isinstance(node, YamlScalar)
    return node


@pytest.mark.parametrize(
    "text", ["1e3", "010", "0o17", "0x1F", "1_000", "13:37", "1.10", "on", "yes", "2024-01-01", "~x", "=", "0.10.0"]
)
def test_a_scalar_keeps_the_text_it_was_written_with(text: str) -> None:
    assert scalar(text) == YamlScalar(text, plain=True, line=1)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1.0), ("-1.5", -1.5), ("1e3", 1000.0), ("'1'", None), ("0x10", None), (".inf", None), ("1_0", None)],
)
def test_only_plain_decimals_are_numbers(text: str, number: float | None) -> None:
    assert scalar(text).number == number


@pytest.mark.parametrize(
    ("text", "boolean"), [("true", True), ("False", False), ("yes", None), ("off", None), ("'true'", None), ("1", None)]
)
def test_only_true_and_false_are_booleans(text: str, boolean: bool | None) -> None:
    assert scalar(text).boolean is boolean


@pytest.mark.parametrize("text", ["", "~", "null", "# nothing"])
def test_nothing_is_null(text: str) -> None:
    assert scalar(text).is_null


def test_a_quoted_null_is_a_text() -> None:
    assert not scalar("'null'").is_null


@pytest.mark.parametrize("text", ["", "# only a comment\n", "\n\n"])
def test_an_empty_file_has_no_document(text: str) -> None:
    assert read_yaml(text, "f") is None


def test_json_is_read_too_also_with_tabs_and_on_one_long_line() -> None:
    tabbed = read_yaml('{\n\t"a": [1,\t"x\\/y"]\n}', "f")
    long = read_yaml("{" + ",".join(f'"k{i}":{i}' for i in range(5000)) + "}", "f")

    items = entries(tabbed)["a"]
    assert isinstance(items, YamlList)
    assert items.items == [YamlScalar("1", plain=True, line=2), YamlScalar("x/y", plain=False, line=2)]
    assert len(entries(long)) == 5000


def test_a_key_given_twice_is_an_error_that_names_the_place() -> None:
    with pytest.raises(ConfigError) as raised:
        read_yaml("a:\n- b: 1\n- c: 1\n  d: 2\n  c: 3\n", "pool.yaml")

    assert raised.value.problems == ('pool.yaml: a[1]: expected each key once, found "c" (line 5)',)


def test_every_key_given_twice_is_told() -> None:
    with pytest.raises(ConfigError) as raised:
        read_yaml('{"a": 1, "a": {"b": 1, "b": 2}, "a": 3}', "f")

    assert len(raised.value.problems) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1\nb: 2", "f: expected YAML or JSON, found a fault: did not find expected ',' or ']' (line 2)"),
        ("a: 1\n---\nb: 2\n", "f: expected one document, found another (line 2)"),
        ("a: !!python/object:os.system x\n", "f: expected no tag, found tag:yaml.org,2002:python/object:os.system (line 1)"),
        ("a: &x [*x]\n", "f: expected an anchor &x before its alias, found none (line 1)"),
        ("? [a]\n: 1\n", "f: expected a text as key, found a list (line 1)"),
        ("a: {<<: 1}\n", "f: a: <<: expected a map or a list of maps, found 1 (line 1)"),
        ("a: \x00", "f: expected YAML or JSON, found a fault: unacceptable character"),
        ("a: \ud800", "f: expected YAML or JSON, found a fault"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_the_place(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_yaml(text, "f")

    assert str(raised.value).startswith(says)


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 5_000 + "x", "{a: " * 900 + "1" + "}" * 900])
def test_deep_nesting_is_refused_and_costs_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match=f"at most {DEPTH_MAX} levels|maximum nesting depth"):
        read_yaml(text, "f")


def test_aliases_of_aliases_share_what_they_name_instead_of_copying_it() -> None:
    laughs = "\n".join(["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 25)])

    top = entries(read_yaml(laughs, "f"))["a24"]

    assert isinstance(top, YamlList)
    assert all(item is top.items[0] for item in top.items)


def test_a_merge_fills_in_what_a_map_does_not_say_itself() -> None:
    root = read_yaml("a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc:\n  <<: [*a, *b]\n  x: 9\n", "f")

    merged = {key: value.text for key, value in entries(entries(root)["c"]).items() if isinstance(value, YamlScalar)}
    assert merged == {"x": "9", "y": "2", "z": "4"}


def test_merges_cannot_multiply_without_bound() -> None:
    wide = "a: &a {" + ", ".join(f"k{i}: 1" for i in range(2000)) + "}\n"
    with pytest.raises(ConfigError, match="keys merged by <<"):
        read_yaml(wide + "b:\n" + "- {<<: *a}\n" * 100, "f")
