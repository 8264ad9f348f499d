"""Selectors: every operator is honoured, and what is no selector is said to be none."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import ConfigError
from epp.scrape.selector import Selector, parse_selector

LABELS = {"state": "waiting", "model": "llama-8b", "empty": ""}


@pytest.mark.parametrize("text", ["my_queue", " my_queue ", "my_queue{}", "my_queue { }", "vllm:num_requests_waiting"])
def test_a_bare_name_selects_every_series(text: str) -> None:
    selector = parse_selector(text, "spec")

    assert selector == Selector(name=text.split("{")[0].strip())
    assert selector.matches({})
    assert selector.matches(LABELS)


@pytest.mark.parametrize(
    ("condition", "matches"),
    [
        ('state="waiting"', True),
        ('state="running"', False),
        ("state='waiting'", True),
        ("state=`waiting`", True),
        ("state=waiting", True),
        ('state!="waiting"', False),
        ('state!="running"', True),
        ('model=~"llama-.*"', True),
        ('model=~"llama"', False),  # the whole value, not a part of it
        ('model=~"llama|qwen"', False),
        ('model=~"llama-8b|qwen"', True),
        ('model!~"llama-.*"', False),
        ('model!~"qwen.*"', True),
        ('missing=""', True),
        ('empty=""', True),
        ('missing!=""', False),
        ('missing=~".*"', True),
        ('missing=~".+"', False),
        ('state="waiting",model="llama-8b"', True),
        ('state="waiting",model="qwen"', False),
        ('state="running",model="llama-8b"', False),
        (' state = "waiting" , model =~ "llama.*" , ', True),
    ],
)
def test_every_condition_counts(condition: str, matches: bool) -> None:
    assert parse_selector(f"q{{{condition}}}", "spec").matches(LABELS) is matches


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ('a="x,y"', "x,y"),
        ('a="}"', "}"),
        (r'a="say \"hi\""', 'say "hi"'),
        (r'a="back\\slash"', "back\\slash"),
        (r'a="two\nlines"', "two\nlines"),
        (r"a='it\'s'", "it's"),
        (r"a=`raw\n`", r"raw\n"),
        ("a=``", ""),
        ('a=""', ""),
        ("a=tokens_per", "tokens_per"),
        ("a=1.5-x/y", "1.5-x/y"),
        ('a="größe"', "größe"),
    ],
)
def test_values_are_unquoted(condition: str, value: str) -> None:
    (matcher,) = parse_selector(f"q{{{condition}}}", "spec").matchers

    assert matcher.value == value


def test_labels_that_have_one_value_are_known() -> None:
    assert parse_selector('q{a="1",b=~"1",c!="1"}', "spec").fixed_labels == {"a"}


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "must begin with the name of a metric"),
        ("  ", "must begin with the name of a metric"),
        ('{a="b"}', "must begin with the name of a metric"),
        ("1q", "must begin with the name of a metric"),
        ("my-queue", "only {…} may follow"),
        ("q[5m]", "only {…} may follow"),
        ("q offset 5m", "only {…} may follow"),
        ("sum(q)", "only {…} may follow"),
        ("q{", 'expected label="value"'),
        ('q{a="b"', 'expected label="value"'),
        ('q{a="b}', 'expected label="value"'),
        ("q{a}", 'expected label="value"'),
        ("q{a=}", 'expected label="value"'),
        ("q{=b}", 'expected label="value"'),
        ("q{a==b}", 'expected label="value"'),
        ('q{a>"b"}', 'expected label="value"'),
        ('q{a="b" c="d"}', 'expected label="value"'),
        ('q{a="b",,c="d"}', 'expected label="value"'),
        ('q{a="b"}}', "nothing may follow the closing brace"),
        ('q{a="b"}[5m]', "nothing may follow the closing brace"),
        ('q{a=~"("}', "no regular expression"),
        ('q{__name__="x"}', "not in __name__"),
    ],
)
def test_what_is_no_selector_is_an_error_that_names_the_place(text: str, detail: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_selector(text, "parameters.engineConfigs[0].kvUsageSpec")

    (problem,) = caught.value.problems
    assert problem.startswith("parameters.engineConfigs[0].kvUsageSpec: expected a selector such as name{")
    assert f"found {text!r}" in problem
    assert detail in problem


@given(st.text(alphabet="abq{}=\"'`~!,\\( \n[]", max_size=20))
def test_any_text_is_a_selector_or_an_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_selector(text, "spec").matches(LABELS) in (True, False)
