"""`epp check-config`: validates configuration and endpoints files."""

import random
import sys

import click

from epp.cli.serve import read_text
from epp.config.document_reader import Reading, try_document
from epp.config.loader import load_settings
from epp.config.settings import ScrapeSettings, declared
from epp.config.yaml_tree import YamlMap, read_yaml
from epp.discovery.endpoints_file import read_endpoints_file
from epp.errors import ConfigError
from epp.scheduling.catalog import Workshop, build_profile
from epp.scheduling.profile import SchedulingProfile
from epp.scrape.configured import SCRAPE_PLUGIN_TYPES, configured_catalog

PLUGIN_SECTIONS = frozenset({"plugins", "schedulingProfiles"})
SETTING_SECTIONS = frozenset(setting.key.partition(".")[0] for _, _, setting, _ in declared() if setting.key)


@click.command("check-config")
@click.argument("files", nargs=-1, required=True)
def command(files: tuple[str, ...]) -> None:
    """Check configuration files (EndpointPickerConfig) and endpoints files, recognised by what stands in them.

    An endpoints file may use the engines that a configuration file beside it describes. Prints each fault as
    `file: path: expected …, found …`. Exit code 2 if there is any.
    """
    problems: list[str] = []
    verdicts: list[str] = []
    catalogs = [configured_catalog(None)]
    endpoint_files: list[tuple[str, str]] = []
    for file in files:
        try:
            text = read_text(file)
            if _is_endpoints_file(text, file):
                endpoint_files.append((file, text))
                continue
            reading = try_document(text, file)
            profile = _check(reading)
            catalogs.append(configured_catalog(reading.document))
            verdicts.append(f"{file}: configuration with profile {profile.name!r} ({', '.join(profile.scorer_names)}), valid")
        except ConfigError as error:
            problems += error.problems
    for file, text in endpoint_files:
        try:
            count = len(read_endpoints_file(text, file, lambda name: catalogs[-1].named(name).name))
            verdicts.append(f"{file}: endpoints file with {count} {'endpoint' if count == 1 else 'endpoints'}, valid")
        except ConfigError as error:
            problems += error.problems
    for verdict in verdicts:
        print(verdict)
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(2 if problems else 0)


def _is_endpoints_file(text: str, file: str) -> bool:
    root = read_yaml(text, file)
    return root is None or (isinstance(root, YamlMap) and not {"apiVersion", "kind"} & root.entries.keys())


def _check(reading: Reading) -> SchedulingProfile:
    """The profile of a configuration; all its faults at once, but none that only follows from another.

    Raises:
        ConfigError: Those faults.
    """
    document = reading.document
    problems = list(reading.problems)
    faulty_plugins = not reading.faulty_sections.isdisjoint(PLUGIN_SECTIONS)
    staleness_s = ScrapeSettings().staleness_s
    profile: SchedulingProfile | None = None
    if not faulty_plugins:
        try:
            configured_catalog(document)
        except ConfigError as error:
            problems += error.problems
    if reading.faulty_sections.isdisjoint(SETTING_SECTIONS):
        try:
            staleness_s = load_settings({}, document, needs_source=False).settings.scrape.staleness_s
        except ConfigError as error:
            problems += error.problems
    if not faulty_plugins:
        try:
            workshop = Workshop(rng=random.Random(0), staleness_s=staleness_s)  # noqa: S311 — picks nothing
            profile = build_profile(document, workshop, SCRAPE_PLUGIN_TYPES)
        except ConfigError as error:
            problems += error.problems
    if problems or profile is None:
        raise ConfigError(*problems)
    return profile
