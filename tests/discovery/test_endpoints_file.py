import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.config.yaml_tree import FAULTS_MAX
from epp.discovery.endpoints_file import ENDPOINT_KEYS, FileEndpoint, read_endpoints_file
from epp.errors import ConfigError
from epp.pool.endpoint import MetricsTarget

EXAMPLES = Path(__file__).parents[2] / "config" / "endpoints"


def known_engine(name: str) -> str:
    if name.lower() not in {"vllm", "sglang"}:
        raise ValueError(f"expected one of vllm, sglang, found {name!r}")
    return name.lower()


def read(text: str) -> tuple[FileEndpoint, ...]:
    return read_endpoints_file(text, "endpoints.yaml", known_engine)


def read_one(*lines: str) -> FileEndpoint:
    """The one entry with these lines and what else it needs."""
    given_keys = {line.partition(":")[0] for line in lines}
    needed = {"name": "name: a", "address": "address: 10.0.0.1", "port": "port: 8000"}
    body = [*lines, *(line for key, line in needed.items() if key not in given_keys)]
    (entry,) = read("endpoints:\n- " + "\n  ".join(body) + "\n")
    return entry


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as raised:
        read(text)
    return raised.value.problems


def problem_of(*lines: str) -> str:
    with pytest.raises(ConfigError) as raised:
        read_one(*lines)
    (problem,) = raised.value.problems
    return problem


def test_an_entry_needs_a_name_an_address_and_a_port_and_has_defaults_for_the_rest() -> None:
    (entry,) = read("endpoints:\n- name: gpu-a\n  address: 10.0.0.1\n  port: 8000\n")

    assert entry == FileEndpoint(name="gpu-a", address="10.0.0.1", port=8000)
    spec = entry.spec(entry.address, entry.name)
    assert (spec.address, spec.name, spec.engine, spec.weight, spec.draining) == ("10.0.0.1:8000", "gpu-a", None, 1.0, False)
    assert spec.metrics == MetricsTarget()


def test_every_key_reaches_the_spec() -> None:
    text = (EXAMPLES / "every-key.yaml").read_text("utf-8")
    assert {key for entry in yaml.safe_load(text)["endpoints"] for key in entry} == set(ENDPOINT_KEYS)

    specs = [entry.spec(entry.address, entry.name) for entry in read(text)]

    assert [spec.address for spec in specs] == ["10.0.0.1:8000", "[fd00::7]:8000", "10.0.0.3:8000"]
    assert specs[0].engine == "vllm"
    assert specs[0].metrics == MetricsTarget(port=9400, path="/metrics", scheme="http")
    assert specs[0].labels == {"llm-d.ai/role": "decode", "tier": "1.10"}
    assert specs[0].weight == 2.0
    assert [spec.draining for spec in specs] == [False, False, True]


def test_the_reference_pickers_file_loads() -> None:
    entries = read((EXAMPLES / "file-discovery.yaml").read_text("utf-8"))

    assert [entry.name for entry in entries] == ["vllm-0", "default/vllm-1", "batch/vllm-1"]
    assert [entry.port for entry in entries] == [8000, 8000, 8000]
    assert entries[1].metrics.port == 9400
    assert entries[1].labels["llm-d.ai/role"] == "decode"


@pytest.mark.parametrize(
    ("example", "names"),
    [
        ("minimal.yaml", ["gpu-a", "gpu-b"]),
        ("every-key.yaml", ["decode-a", "prefill-a", "decode-b"]),
        ("hostnames.yaml", ["gpu-a", "workers"]),
        ("shared-values.yaml", ["large-a", "large-b", "large-c"]),
        ("file-discovery.yaml", ["vllm-0", "default/vllm-1", "batch/vllm-1"]),
        ("endpoints.json", ["gpu-a", "gpu-b"]),
    ],
)
def test_the_examples_load(example: str, names: list[str]) -> None:
    assert [entry.name for entry in read((EXAMPLES / example).read_text("utf-8"))] == names


def test_each_example_is_tested_above() -> None:
    assert len(list(EXAMPLES.iterdir())) == 6


def test_shared_values_are_merged_into_each_entry() -> None:
    entries = read((EXAMPLES / "shared-values.yaml").read_text("utf-8"))

    assert [(e.address, e.weight, e.labels["gpu"], e.draining) for e in entries] == [
        ("10.0.0.1", 4.0, "h100", False),
        ("10.0.0.2", 4.0, "h100", False),
        ("10.0.0.3", 4.0, "h100", True),
    ]


@pytest.mark.parametrize("text", ["endpoints:\n", "endpoints: []\n", "{}", '{"endpoints": []}'])
def test_an_empty_list_is_an_empty_pool(text: str) -> None:
    assert read(text) == ()


@pytest.mark.parametrize("text", ["", " \n", "\n# nothing yet\n", "---\n", "null"])
def test_an_empty_file_is_a_fault_since_it_may_be_one_that_is_just_being_written(text: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith("endpoints.yaml: expected a map with the key endpoints, found nothing")


@pytest.mark.parametrize("port", ["8000", '"8000"', "'8000'"])
def test_a_port_may_be_a_number_or_text(port: str) -> None:
    assert read_one(f"port: {port}").port == 8000


@pytest.mark.parametrize(
    ("port", "found"),
    [("80a", '"80a"'), ("0", "0"), ("65536", "65536"), ("-1", "-1"), ("8000.0", "8000.0"), ("0o17", '"0o17"'), ("010", "010"),
     ("2:13", '"2:13"'), ("8_000", '"8_000"'), ("true", "true"), ("", "nothing"), ("[8000]", "a list"), ('""', '""')],
)  # fmt: skip
def test_what_is_no_port_is_refused_with_what_was_expected_and_found(port: str, found: str) -> None:
    problem = problem_of(f"port: {port}")

    assert problem == f"endpoints.yaml: endpoints[0].port: expected a port from 1 to 65535, found {found} (line 2)"


@pytest.mark.parametrize(
    ("address", "normal", "is_hostname"),
    [
        ("10.0.0.1", "10.0.0.1", False),
        ("FD00::7", "fd00::7", False),
        ('"[fd00::7]"', "fd00::7", False),
        ("GPU-A.lan", "gpu-a.lan", True),
    ],
)
def test_an_address_is_ipv4_ipv6_or_a_hostname(address: str, normal: str, is_hostname: bool) -> None:
    entry = read_one(f"address: {address}")

    assert (entry.address, entry.is_hostname) == (normal, is_hostname)


@pytest.mark.parametrize(
    "address", ["10.0.0.256", "10.0.0", "10.0.0.1:8000", "http://a", "a b", "", "1e3.5", "fe80::1%eth0", '"a,b"']
)
def test_what_is_no_address_is_refused(address: str) -> None:
    assert "endpoints[0].address: expected an IPv4 address, an IPv6 address or a hostname, found" in problem_of(
        f"address: {address}"
    )


@pytest.mark.parametrize("name", ["1e3", "0123", "yes", "1.10", "gpu a", "Ünïcode", "true"])
def test_a_name_is_taken_as_it_is_written(name: str) -> None:
    assert read_one(f"name: {name}").name == name


@pytest.mark.parametrize("name", ["", '""', '" a"', '"a\\n"', "[a]", "a" * 254])
def test_what_is_no_name_is_refused(name: str) -> None:
    assert "endpoints[0].name: expected a name of 1 to 253 printable characters, found" in problem_of(f"name: {name}")


def test_labels_are_texts_as_they_are_written() -> None:
    labels = read_one('labels: {a: 1.10, b: yes, c: "", d: 0x1F, e: true, f: 1-2}').labels

    assert labels == {"a": "1.10", "b": "yes", "c": "", "d": "0x1F", "e": "true", "f": "1-2"}


def test_a_label_without_a_value_or_with_a_list_is_refused() -> None:
    assert len(problems("endpoints:\n- {name: a, address: 10.0.0.1, port: 1, labels: {x: , y: [1], z: ok}}")) == 2


@pytest.mark.parametrize(("text", "weight"), [("2", 2.0), ("0.5", 0.5), ("1e1", 10.0)])
def test_a_weight_is_a_number(text: str, weight: float) -> None:
    assert read_one(f"weight: {text}").weight == weight


@pytest.mark.parametrize("weight", ["0", "-1", '"2"', "heavy", ".inf", ".nan", "1e999", "true", "[1]"])
def test_what_is_no_weight_greater_than_zero_is_refused(weight: str) -> None:
    assert "endpoints[0].weight: expected a number greater than 0, found" in problem_of(f"weight: {weight}")


@pytest.mark.parametrize("draining", ["yes", "on", '"true"', "1", "[true]"])
def test_draining_is_true_or_false_and_nothing_else(draining: str) -> None:
    assert read_one("draining: true").draining
    assert "endpoints[0].draining: expected true or false, found" in problem_of(f"draining: {draining}")


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ("{port: 0}", "endpoints[0].metrics.port: expected a port from 1 to 65535, found 0"),
        ("{path: metrics}", 'endpoints[0].metrics.path: expected a path such as /metrics, found "metrics"'),
        ('{path: "/a b"}', 'endpoints[0].metrics.path: expected a path such as /metrics, found "/a b"'),
        ("{scheme: ftp}", 'endpoints[0].metrics.scheme: expected one of http, https, found "ftp"'),
        ("{host: x}", 'endpoints[0].metrics.host: expected one of the keys port, path, scheme, found "host"'),
        ("9400", "endpoints[0].metrics: expected a map with port, path, scheme, found 9400"),
    ],
)
def test_wrong_metrics_are_refused_with_their_path(metrics: str, says: str) -> None:
    assert problem_of(f"metrics: {metrics}") == f"endpoints.yaml: {says} (line 2)"


def test_the_metrics_host_of_the_reference_picker_must_be_the_endpoint_itself() -> None:
    assert read_one("metricsHost: 10.0.0.1:9400").metrics == MetricsTarget(port=9400)
    assert read_one("address: fd00::7", 'metricsHost: "[fd00:0::7]:9400"').metrics.port == 9400
    assert problem_of("metricsHost: 10.0.0.9:9400") == (
        "endpoints.yaml: endpoints[0].metricsHost: expected 10.0.0.1:port, the endpoint's own address, "
        'found "10.0.0.9:9400" (line 2)'
    )
    assert "expected either metrics or metricsHost, found both" in problem_of("metricsHost: 10.0.0.1:1", "metrics: {port: 1}")


def test_an_engine_is_named_as_the_catalog_names_it() -> None:
    assert read_one("engine: vLLM").engine == "vllm"
    assert (
        problem_of("engine: vlllm")
        == "endpoints.yaml: endpoints[0].engine: expected one of vllm, sglang, found 'vlllm' (line 2)"
    )


def test_an_unknown_key_is_an_error_that_names_the_allowed_keys() -> None:
    assert problem_of("prot: 1") == (
        f'endpoints.yaml: endpoints[0].prot: expected one of the keys {", ".join(ENDPOINT_KEYS)}, found "prot" (line 2)'
    )
    assert problems("endpoint: []\n") == (
        'endpoints.yaml: endpoint: expected one of the keys endpoints, found "endpoint" (line 1)',
    )


def test_a_key_that_would_not_stay_on_the_line_is_quoted_in_the_path() -> None:
    assert (
        problem_of('labels: {"a\\nb": }')
        == 'endpoints.yaml: endpoints[0].labels["a\\nb"]: expected a text, found nothing (line 2)'
    )
    assert problems('{"": 1}')[0].startswith('endpoints.yaml: [""]: expected one of the keys endpoints, found ""')


@pytest.mark.parametrize("key", ["name", "address", "port"])
def test_a_missing_key_is_named_with_its_entry(key: str) -> None:
    lines = {"name": "name: a", "address": "address: 10.0.0.1", "port": "port: 8000"}
    del lines[key]

    (problem,) = problems("endpoints:\n- " + "\n  ".join(lines.values()))

    assert problem.startswith(f"endpoints.yaml: endpoints[0].{key}: expected ")
    assert problem.endswith(", found nothing (line 2)")


def test_all_faults_of_a_file_are_told_at_once() -> None:
    found = problems(
        "endpoints:\n"
        "- {name: a, address: 10.0.0.1, port: 80a}\n"
        "- {name: a, address: nowhere.256, port: 1, weight: 0}\n"
        "- just text\n"
        "- {name: b, address: 10.0.0.1, port: 2}\n"
        "- {name: b, address: 10.0.0.1, port: 2}\n"
    )

    assert [problem.split(": expected")[0] for problem in found] == [
        "endpoints.yaml: endpoints[0].port",
        "endpoints.yaml: endpoints[1].address",
        "endpoints.yaml: endpoints[1].weight",
        "endpoints.yaml: endpoints[2]",
        "endpoints.yaml: endpoints[4].name",
        "endpoints.yaml: endpoints[4].address",
    ]


def test_telling_faults_ends_after_a_thousand() -> None:
    found = problems("endpoints: [" + "1," * 100_000 + "]")

    assert len(found) == FAULTS_MAX + 1
    assert found[-1] == "endpoints.yaml: expected fewer faults, found 1000 and stopped there"


def test_a_name_used_twice_names_both_entries() -> None:
    assert problems(
        "endpoints: [{name: a, address: 10.0.0.1, port: 1}, {name: a, address: 10.0.0.2, port: 1, namespace: default}]"
    ) == ("endpoints.yaml: endpoints[1].name: expected one that is used once, found a, as in endpoints[0] (line 1)",)


def test_an_address_and_port_used_twice_is_an_error_however_it_is_written() -> None:
    (problem,) = problems("endpoints: [{name: a, address: 'fd00::7', port: 1}, {name: b, address: 'FD00:0::7', port: '1'}]")

    assert "endpoints[1].address: expected one that is used once, found fd00::7 port 1, as in endpoints[0]" in problem
    assert len(read("endpoints: [{name: a, address: 10.0.0.1, port: 1}, {name: b, address: 10.0.0.1, port: 2}]")) == 2


@pytest.mark.parametrize("text", ["just text", "[]", "- name: a", "endpoints: {a: b}", "endpoints: 7", '"endpoints"'])
def test_another_shape_is_refused(text: str) -> None:
    assert all("expected a map with the key endpoints" in p or "endpoints: expected a list" in p for p in problems(text))


# ── whatever is in the file, it is read or refused ──

KEYS = st.sampled_from([*ENDPOINT_KEYS, "path", "x"]) | st.text(max_size=4)
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(["10.0.0.1", "a", "8000"])
)
JUNK = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=20,
)


def refusal(text: str) -> tuple[str, ...] | None:
    """The faults that are told of `text`; None when it is read, and then what was read is checked."""
    try:
        entries = read(text)
    except ConfigError as error:
        return error.problems
    for entry in entries:
        assert 1 <= entry.port <= 65535
        assert entry.weight > 0
        assert entry.is_hostname or entry.spec(entry.address, entry.name).address
    return None


def reads_or_refuses(text: str) -> None:
    told = refusal(text)
    assert told is None or told
    assert all(problem.startswith("endpoints.yaml: ") and "\n" not in problem for problem in told or ())


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    reads_or_refuses(text)


@given(st.text(alphabet="endpoit:s-[]{}&*!<>\"'\n ,ax017#|%"))
@settings(max_examples=400, deadline=None)
def test_any_text_of_the_characters_of_yaml_is_read_or_refused(text: str) -> None:
    reads_or_refuses(text)


@given(st.lists(JUNK, max_size=4), st.sampled_from([json.dumps, yaml.safe_dump]))
@settings(max_examples=300, deadline=None)
def test_any_values_are_read_or_refused(values: list[Any], write: Callable[[Any], str]) -> None:
    reads_or_refuses(write({"endpoints": values}))


NAMES = st.text(alphabet="abcxyz019.-_", min_size=1)
ENTRIES = st.fixed_dictionaries(
    {"name": NAMES, "address": st.ip_addresses().map(str), "port": st.integers(1, 65535)},
    optional={
        "weight": st.floats(0.01, 1000),
        "draining": st.booleans(),
        "labels": st.dictionaries(st.text("ab/", min_size=1), st.text("01e.-")),
    },
)


@given(
    st.lists(ENTRIES, unique_by=(lambda entry: entry["name"], lambda entry: (entry["address"], entry["port"])), max_size=5),
    st.sampled_from([json.dumps, yaml.safe_dump]),
)
@settings(max_examples=200, deadline=None)
def test_what_a_program_writes_is_what_is_read(entries: list[dict[str, Any]], write: Callable[[Any], str]) -> None:
    read_back = read(write({"endpoints": entries}))

    for entry, wanted in zip(read_back, entries, strict=True):
        assert (entry.name, entry.port, entry.weight) == (wanted["name"], wanted["port"], wanted.get("weight", 1.0))
        assert (entry.labels, entry.draining) == (wanted.get("labels", {}), wanted.get("draining", False))
