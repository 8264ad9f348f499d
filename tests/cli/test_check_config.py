"""`epp check-config`."""

from pathlib import Path

from click.testing import CliRunner

from epp.cli.check_config import command

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def check(tmp_path: Path, **texts: str) -> tuple[int, list[str]]:
    files = []
    for name, text in texts.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        files.append(str(file))
    result = CliRunner().invoke(command, files)
    return result.exit_code, [line.replace(f"{tmp_path}/", "") for line in result.output.splitlines()]


def test_valid_files_are_named_with_what_they_are(tmp_path: Path) -> None:
    code, lines = check(
        tmp_path, config=HEAD, pool="endpoints: [{name: a, address: 10.0.0.1, port: 8000}]", none="endpoints: []"
    )
    assert code == 0
    assert lines == [
        "config.yaml: configuration with profile 'default' (least-load-scorer), valid",
        "pool.yaml: endpoints file with 1 endpoint, valid",
        "none.yaml: endpoints file with 0 endpoints, valid",
    ]


def test_every_fault_of_every_file_is_told_and_the_exit_code_is_2(tmp_path: Path) -> None:
    """Field report 70."""
    code, lines = check(
        tmp_path,
        config=HEAD + "scrape: {interval: 5s, stalenessThreshold: 1s}\nplugins: [{type: nope}]",
        pool="endpoints: [{name: a, address: 10.0.0.1, port: 80a}]",
    )
    assert code == 2
    assert any("config.yaml: scrape.stalenessThreshold: expected at least 3 scrape intervals" in line for line in lines)
    assert any(line.startswith("pool.yaml: endpoints[0].port: expected a port") for line in lines)


def test_a_wrong_plugin_and_a_wrong_engine_are_told_together(tmp_path: Path) -> None:
    code, lines = check(
        tmp_path,
        config=HEAD + "plugins: [{type: nope}, {type: core-metrics-extractor, parameters: {engineConfigs: [{nam: x}]}}]",
    )
    assert code == 2
    assert any("plugins[0].type: expected one of" in line for line in lines)
    assert any("plugins[1].parameters.engineConfigs[0].nam" in line for line in lines)


def test_an_endpoints_file_may_use_the_engines_of_a_configuration_beside_it(tmp_path: Path) -> None:
    config = (
        HEAD + "plugins: [{type: core-metrics-extractor, parameters: {engineConfigs: [{name: mine, queuedRequestsSpec: q}]}}]"
    )
    pool = "endpoints: [{name: a, address: 10.0.0.1, port: 8000, engine: mine}]"
    assert check(tmp_path, pool=pool)[0] == 2
    assert check(tmp_path, pool=pool, config=config)[0] == 0


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(tmp_path / "nowhere.yaml")])
    assert result.exit_code == 2
    assert "nowhere.yaml: expected a readable file" in result.output


def test_faults_of_every_part_of_a_file_are_told_in_one_go(tmp_path: Path) -> None:
    code, lines = check(
        tmp_path,
        config=HEAD
        + "featureGates: [x]\nplugins: [{type: queue-scorer}, {type: nonsense-scorer}]\n"
        + "schedulingProfiles: [{name: d, plugins: [{pluginRef: nothing}]}]\nscrape: {interval: 5s, stalenessThreshold: 1s}",
    )
    assert code == 2
    assert [line.split(": expected")[0] for line in lines] == [
        "config.yaml: featureGates",
        "config.yaml: scrape.stalenessThreshold",
        "config.yaml: plugins[1].type",
        "config.yaml: schedulingProfiles[0].plugins[0].pluginRef",
    ]


def test_what_only_follows_from_a_fault_is_not_told(tmp_path: Path) -> None:
    _, lines = check(tmp_path, config=HEAD + "limits: {maxRequestBodyBytes: 1GiB, maxMessageBytes: much}")
    assert len(lines) == 1
    _, lines = check(tmp_path, config=HEAD + "plugins: [{name: q}]\nschedulingProfiles: [{name: d, plugins: [{pluginRef: q}]}]")
    assert len(lines) == 1


def test_an_unknown_engine_is_told_once_with_its_path(tmp_path: Path) -> None:
    _, (line,) = check(tmp_path, pool="endpoints: [{name: a, address: 10.0.0.1, port: 8000, engine: x}]")
    assert line.startswith("pool.yaml: endpoints[0].engine: expected one of ")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    code, lines = check(tmp_path, empty="")
    assert (code, lines) == (2, ["empty.yaml: expected a map with the key endpoints, found nothing (line 1)"])
