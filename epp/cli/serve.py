"""`epp serve`: runs the endpoint picker until SIGTERM or SIGINT."""

import os
from pathlib import Path
from typing import Any

import click

from epp.app import run
from epp.cli.reference_flags import with_reference_flags
from epp.cli.setting_options import Given, with_setting_options
from epp.config import kinds
from epp.config.document import Document
from epp.config.document_reader import read_document
from epp.config.environment import remarks
from epp.config.kinds import Kind
from epp.config.loader import load_settings
from epp.config.settings import declared
from epp.errors import ConfigError

CONFIG_FILE_VARIABLE = "EPP_CONFIG_FILE"
CONFIG_TEXT_VARIABLE = "EPP_CONFIG_TEXT"


@click.command("serve")
@click.option("--config-file", envvar=CONFIG_FILE_VARIABLE, help="Configuration file (EndpointPickerConfig); see config/.")
@click.option("--config-text", envvar=CONFIG_TEXT_VARIABLE, help="The same as text; not together with --config-file.")
@with_setting_options
@with_reference_flags
def command(config_file: str | None, config_text: str | None, given: Given, ignored_flags: list[str]) -> None:
    """Run the endpoint picker until SIGTERM or SIGINT.

    Exactly one source of endpoints: --pool-name or --endpoint-selector (in Kubernetes), --endpoints-file, --endpoint or
    --endpoints-dns. Every flag can also be set as EPP_<FLAG>; a flag beats the environment, the environment beats the
    configuration file.
    """
    document = _document(config_file, config_text)
    notes = tuple(remarks(os.environ, _variables()))
    run(load_settings(given, document, notes=notes), document, ignored_flags)


def _variables() -> dict[str, Kind[Any]]:
    of_settings = {setting.variable: setting.kind for _, _, setting, _ in declared() if setting.variable is not None}
    return {CONFIG_FILE_VARIABLE: kinds.TEXT, CONFIG_TEXT_VARIABLE: kinds.TEXT, **of_settings}


def _document(config_file: str | None, config_text: str | None) -> Document | None:
    if config_file is not None and config_text is not None:
        raise ConfigError("configuration: expected --config-file or --config-text, found both")
    if config_text is not None:
        return read_document(config_text, "--config-text")
    if config_file is None:
        return None
    return read_document(read_text(config_file), config_file)


def read_text(file: str) -> str:
    """The content of a file that a flag or argument names.

    Raises:
        ConfigError: It cannot be read, or is not UTF-8.
    """
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: expected a readable file, found: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: expected UTF-8, found byte {error.object[error.start]:#x} at {error.start}") from None
