"""Changing the model in a body and not one byte beside it."""

import codecs
import json
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.extproc.model_value import model_in_part, model_value
from epp.extproc.request_body import MAX_LENIENT_BODY_BYTES, read_request_body
from tests.extproc.work import least_s

pytestmark = pytest.mark.timeout(600)  # guards against hanging; some examples take long on a busy machine

NEW = "the-new-model"


def rewritten(body: bytes, model: str = NEW) -> bytes | None:
    value = model_value(body)
    return None if value is None else value.replaced(body, model)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a"}', b'{"model":"NEW"}'),
        (b' {\n"x" : 1 , "model"\t: "a" ,"y":2}\r\n ', b' {\n"x" : 1 , "model"\t: "NEW" ,"y":2}\r\n '),
        (b'{"seed":12345678901234567890,"model":"a","t":1.10}', b'{"seed":12345678901234567890,"model":"NEW","t":1.10}'),
        (b'{"model":"a","x":1,"x":2,"model":"b"}', b'{"model":"a","x":1,"x":2,"model":"NEW"}'),
        (b'{"\\u006dodel":"a"}', b'{"\\u006dodel":"NEW"}'),
        (b'{"model":"\\u0061\\/\\"b"}', b'{"model":"NEW"}'),
        (b'{"prompt":"\\"model\\": \\"a\\"","model":"a"}', b'{"prompt":"\\"model\\": \\"a\\"","model":"NEW"}'),
        (b'{"prompt":"a","x":["a","a"],"model":"a","y":"a"}', b'{"prompt":"a","x":["a","a"],"model":"NEW","y":"a"}'),
        (b'{"x":{"model":"a"},"model":"a","y":[{"model":"a"}]}', b'{"x":{"model":"a"},"model":"NEW","y":[{"model":"a"}]}'),
        (b'{"a":"model","model":"model"}', b'{"a":"model","model":"NEW"}'),
        (codecs.BOM_UTF8 + b'{"model":"a"}', codecs.BOM_UTF8 + b'{"model":"NEW"}'),
    ],
)
def test_only_the_value_of_the_last_model_of_the_outermost_object_changes(body: bytes, expected: bytes) -> None:
    """Field report 24: long numbers, repeated keys, odd spacing, escapes; text and nested objects that look alike."""
    assert rewritten(body, "NEW") == expected


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_a_body_keeps_its_encoding(codec: str) -> None:
    """Python's reader, and with it most model servers, takes all of these."""
    body = '{"x": "é𝄞", "model": "é", "y": NaN}'.encode(codec)
    changed = rewritten(body, "ü")
    assert changed is not None
    assert changed.decode(codec) == '{"x": "é𝄞", "model": "\\u00fc", "y": NaN}'
    assert changed.startswith(body[:4])


@pytest.mark.parametrize(
    "rest",
    [
        b'"x":NaN',
        b'"x":-Infinity',
        b'"x":"\xed\xa0\x80"',
        b'"x":"\\ud800"',
        b'"x":[{"model":"b"},NaN,{"model":"b"}],"z":"\xc3\xa9"',
    ],
)
def test_bodies_that_only_the_lenient_reader_takes_are_rewritten_too(rest: bytes) -> None:
    assert rewritten(b'{"model":"b",' + rest + b',"model" :"a", "y":1}', "c") == (
        b'{"model":"b",' + rest + b',"model" :"c", "y":1}'
    )


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[]", b"null", b'"model"', b'["model"]', b'{"x":"a"}', b'{"x":{"model":"a"}}', b'{"model":"a"', b'{"model":"a"}}', b'{"model":"a",}',
        b'{"model":null}', b'{"model":5}', b'{"model":["a"]}', b'{"model":{"model":"a"}}', b'{"model":"a","model":7}', b"\xff\xfe", b"[" * 10_000,
        b'{"model":"a","x":\xff}', b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\na\r\n--b--\r\n',
        b'{"model":"a","x":NaN,"y":"' + b"y" * MAX_LENIENT_BODY_BYTES + b'"}',
    ],
)  # fmt: skip
def test_what_names_no_model_has_no_place_for_one(body: bytes) -> None:
    assert model_value(body) is None


@pytest.mark.parametrize("model", ["a", "organisation/model:1", 'quote"d', "back\\slash", "模型", "𝄞", "line\nbreak", "\x7f"])
def test_the_new_name_is_written_as_json(model: str) -> None:
    changed = rewritten(b'{"model":"a","x":1}', model)
    assert changed is not None
    assert json.loads(changed) == {"model": model, "x": 1}


# ── any JSON ──


class Members(list[tuple[str, Any]]):
    """The members of an object, repeated keys included."""


MODELS = st.sampled_from(["m", "model", "", "a-much-longer-name", "é", "\ud800", '"', "\\"]) | st.text(max_size=5)
KEYS = st.sampled_from(["model", "Model", "models", "m", "prompt", "", 'mod"el']) | st.text(max_size=4)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | MODELS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(KEYS, inner), max_size=4).map(Members),
    max_leaves=12,
)


class Writer:
    """Writes JSON in as many ways as the grammar allows; lists of members become objects."""

    def __init__(self, draw: st.DataObject) -> None:
        self._draw = draw

    def space(self) -> str:
        return self._draw.draw(st.sampled_from(["", "", " ", "\n", "\t \r\n"]))

    def string(self, text: str) -> str:
        if self._draw.draw(st.booleans()):
            return json.dumps(text, ensure_ascii=self._draw.draw(st.booleans()))
        units = chain.from_iterable(units_of(character) for character in text)
        return '"' + "".join(f"\\u{unit:04x}" for unit in units) + '"'

    def value(self, value: object) -> str:
        if isinstance(value, Members):
            members = (
                f"{self.space()}{self.string(k)}{self.space()}:{self.space()}{self.value(v)}{self.space()}" for k, v in value
            )
            return "{" + ",".join(members) + self.space() * (not value) + "}"
        if isinstance(value, list):
            return "[" + ",".join(f"{self.space()}{self.value(v)}{self.space()}" for v in value) + "]"
        return self.string(value) if isinstance(value, str) else json.dumps(value)


def units_of(character: str) -> list[int]:
    """The UTF-16 code units of a character."""
    code = ord(character)
    return [code] if code < 0x10000 else [0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF)]


def members_of(body: bytes) -> list[tuple[str, Any]]:
    """The members of the outermost object in order, nested objects likewise, numbers as they are written."""
    members: list[tuple[str, Any]] = json.loads(
        body, object_pairs_hook=Members, parse_float=str, parse_int=str, parse_constant=str
    )
    return members


@given(st.lists(st.tuples(KEYS, VALUES), max_size=6), MODELS, st.data())
@settings(max_examples=400)
def test_in_any_object_exactly_the_last_model_changes_and_every_byte_around_it_stays(
    members: list[tuple[str, Any]], new: str, data: st.DataObject
) -> None:
    body = Writer(data).value(Members(members)).encode("utf-8", "surrogatepass")
    before = members_of(body)
    value = model_value(body)
    last = max((i for i, (key, _) in enumerate(before) if key == "model"), default=None)
    if value is None:
        assert last is None or not isinstance(dict(members)["model"], str)
        return
    assert last is not None
    changed = value.replaced(body, new)

    after = members_of(changed)
    assert after[last] == ("model", new)
    assert after[:last] + after[last + 1 :] == before[:last] + before[last + 1 :]
    assert changed.startswith(body[: value.start])
    assert changed.endswith(body[value.stop :])
    assert len(changed) == len(body) - (value.stop - value.start) + len(json.dumps(new))
    assert json.loads(body[value.start : value.stop]) == before[last][1]


@given(st.lists(st.tuples(KEYS, VALUES), max_size=5), st.data())
def test_the_place_is_that_of_the_model_that_was_read(members: list[tuple[str, Any]], data: st.DataObject) -> None:
    body = Writer(data).value(Members(members)).encode("utf-8", "surrogatepass")
    read = read_request_body("/", None, None, body).model
    if read is not None:
        value = model_value(body)
        assert value is not None
        assert json.loads(body[value.start : value.stop]) == read


@given(st.binary(max_size=60) | st.sampled_from([b'{"model":"a",\xff}', b'{"model"', b'{"model":"a"}\x00']))
def test_no_bytes_make_it_fail(body: bytes) -> None:
    model_value(body)
    model_in_part(body)


# ── the beginning of a body ──


@pytest.mark.parametrize(
    ("part", "name", "expected"),
    [
        (b'{"model":"a","messages":[{"role":"us', "a", b'{"model":"NEW","messages":[{"role":"us'),
        (b'{"model":"a"', "a", b'{"model":"NEW"'),
        (b'{"x":{"model":"b"}, "\\u006dodel" : "a" ,"y', "a", b'{"x":{"model":"b"}, "\\u006dodel" : "NEW" ,"y'),
        (b'{"model":"b","model":"a","p":"', "a", b'{"model":"b","model":"NEW","p":"'),
        (codecs.BOM_UTF8 + b'{"x":"\xc3\xa9","model":"a","y":"\xc3', "a", codecs.BOM_UTF8 + b'{"x":"\xc3\xa9","model":"NEW","y":"\xc3'),
        (b'{"model":"a","x":"' + b"x" * 2_000_000, "a", b'{"model":"NEW","x":"' + b"x" * 2_000_000),
    ],
)  # fmt: skip
def test_the_model_is_found_and_changed_in_the_beginning_of_a_body(part: bytes, name: str, expected: bytes) -> None:
    found = model_in_part(part)
    assert found is not None
    assert found[0] == name
    assert found[1].replaced(part, "NEW") == expected


@pytest.mark.parametrize(
    "part",
    [b"", b"{", b'{"mod', b'{"model":', b'{"model":"a', b'{"x":{"model":"a"', b'{"x":[{"model":"a"},', b'{"model":"a","model":null,"x"',
     b'[{"model":"a"},', b'{"model":""', b'{"x":"' + b"x" * MAX_LENIENT_BODY_BYTES + b'","model":"a","y":'],
)  # fmt: skip
def test_where_the_beginning_of_a_body_names_no_model_none_is_found(part: bytes) -> None:
    assert model_in_part(part) is None


# ── cost ──


@pytest.mark.parametrize("unit", [b'"a"', b'{"model":"a"}', b'"\\"model\\":\\"a\\""', b'[[["a"]]]'])
def test_the_time_for_a_megabyte_that_repeats_the_name_is_bounded(unit: bytes) -> None:
    """It is about that for reading such a body; work for each of the 250,000 names would take far longer."""
    body = b'{"x":[' + b",".join([unit] * (1_000_000 // (len(unit) + 1))) + b'],"model":"a"}'

    assert rewritten(body) == body[:-4] + json.dumps(NEW).encode() + b"}"
    assert least_s(lambda: rewritten(body)) < 10 * least_s(lambda: read_request_body("/", None, None, body))
