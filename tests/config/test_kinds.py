"""How values are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.config import kinds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("50ms", 0.05),
        ("2s", 2.0),
        ("1m", 60.0),
        ("1m30s", 90.0),
        ("1h", 3600.0),
        ("1.5s", 1.5),
        ("100us", 0.0001),
        ("0", 0.0),
        (0, 0.0),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert kinds.DURATION.read(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["5", 5, "-1s", "1 s", "", "s", True, None, "1x", "1s2", [], "nan", "1e3s"])
def test_what_is_no_duration_says_what_one_looks_like(text: object) -> None:
    """Field report 70: a negative interval, a number without a unit."""
    with pytest.raises(ValueError, match=r"expected a duration such as 50ms, 2s or 1m, found"):
        kinds.DURATION.read(text)


def test_a_duration_has_a_least_value() -> None:
    with pytest.raises(ValueError, match="of at least 10ms, found '5ms'"):
        kinds.duration(minimum_s=0.01).read("5ms")


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 64 << 20), (1048576, 1 << 20), ("1Gi", 1 << 30), ("10kB", 10_000), ("5 MB", 5_000_000)]
)
def test_sizes(text: object, size: int) -> None:
    assert kinds.SIZE.read(text) == size


@pytest.mark.parametrize("text", ["-1", "1.5MiB", "MiB", True, None, "1TiB1"])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected a number of bytes"):
        kinds.SIZE.read(text)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("False", False), ("1", True), ("0", False), (True, True), ("f", False)]
)
def test_booleans_are_those_of_gos_flag_package(text: object, value: bool) -> None:
    assert kinds.BOOLEAN.read(text) is value


@pytest.mark.parametrize("text", ["yes", "", "2", None])
def test_what_is_no_boolean_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected true or false"):
        kinds.BOOLEAN.read(text)


@pytest.mark.parametrize("text", ["65536", "-1", "http", 80.5, True])
def test_what_is_no_port_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected a port"):
        kinds.PORT.read(text)


ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.lists(st.text())
    | st.dictionaries(st.text(), st.text())
)
ALL = [
    kinds.TEXT,
    kinds.BOOLEAN,
    kinds.PORT,
    kinds.SIZE,
    kinds.DURATION,
    kinds.COUNT,
    kinds.TEXT_LIST,
    kinds.TEXT_MAP,
    kinds.PATH,
    kinds.number(minimum=1),
    kinds.choice("a", "b"),
]


@given(st.sampled_from(ALL), ANYTHING)
def test_nothing_but_a_value_error_ever_comes_out(kind: kinds.Kind[object], value: object) -> None:
    try:
        kind.read(value)
    except ValueError as error:
        assert f"expected {kind.expected}, found" in str(error)


def test_headers_that_are_no_texts_are_named_without_any_value() -> None:
    with pytest.raises(ValueError, match=r"^expected a map of texts, found a number at 'x-tenant'$"):
        kinds.TEXT_MAP.read({"authorization": "Bearer SECRET", "x-tenant": 5})
    with pytest.raises(ValueError, match=r"^expected a map of texts, found a text$"):
        kinds.TEXT_MAP.read("Bearer SECRET")


@pytest.mark.parametrize("value", ["x" * 100_000, ["x"] * 100_000, 10**5000], ids=["text", "list", "number"])
@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_a_long_value_is_cut_in_the_error(kind: kinds.Kind[object], value: object) -> None:
    try:
        kind.read(value)
    except ValueError as error:
        assert len(str(error)) < 250


@pytest.mark.parametrize("value", [2**31, 2**32, 0])
def test_a_count_fits_into_what_goes_over_the_wire(value: int) -> None:
    with pytest.raises(ValueError, match="expected a whole number from 1 to 2147483647"):
        kinds.COUNT.read(value)


def test_a_size_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a number of bytes"):
        kinds.SIZE.read(0)


@pytest.mark.parametrize("path", ["metrics", "/a b", "/é", "/a\n", "", "http://x/metrics", None])
def test_what_is_no_path_is_refused(path: object) -> None:
    with pytest.raises(ValueError, match="expected a path such as /metrics"):
        kinds.PATH.read(path)
