"""The model servers and the endpoints file."""

from pathlib import Path

import yaml

from epp.demo.fleet import DRAINED, FLEET, FileEntry, endpoints_text, replace_file, sim_arguments


def test_the_fleet_has_five_engines_and_the_drained_server_is_in_it() -> None:
    assert {"vllm", "sglang", "llamacpp", "ollama"} <= {plan.engine for plan in FLEET}
    assert DRAINED in [plan.name for plan in FLEET]
    assert len({plan.name for plan in FLEET}) == len(FLEET)


def test_the_endpoints_file_names_each_server_once_and_says_who_drains() -> None:
    text = endpoints_text([FileEntry(name="a", port=1, weight=1.0), FileEntry(name="b", port=2, weight=0.5, draining=True)])

    assert yaml.safe_load(text) == {
        "endpoints": [
            {"name": "a", "address": "127.0.0.1", "port": 1, "weight": 1.0},
            {"name": "b", "address": "127.0.0.1", "port": 2, "weight": 0.5, "draining": True},
        ]
    }


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text("old")
    with file.open() as reader:
        replace_file(file, "new")
        assert reader.read() == "old"

    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_a_server_comes_back_on_the_port_it_had() -> None:
    arguments = sim_arguments(FLEET[0], port=4711, seed=5)

    assert arguments[arguments.index("--port") + 1] == "4711"
    assert arguments[arguments.index("--seed") + 1] == "5"
