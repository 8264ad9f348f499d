"""The engine catalog that a configuration file asks for."""

from collections.abc import Sequence

from epp.config.document import Document
from epp.errors import ConfigError
from epp.scrape.catalog import EngineCatalog
from epp.scrape.engines.custom import ExtractorParameters, extractor_parameters

EXTRACTOR_TYPE = "core-metrics-extractor"
SCRAPE_PLUGIN_TYPES: Sequence[str] = (EXTRACTOR_TYPE,)
"""Plugin types of the configuration file that belong to scraping."""


def configured_catalog(document: Document | None) -> EngineCatalog:
    """The built-in engines and those that the user describes.

    Raises:
        ConfigError: A `core-metrics-extractor` is wrong, or there are several.
    """
    found = [] if document is None else [p for p in document.plugins if p.type == EXTRACTOR_TYPE]
    if len(found) > 1:
        raise ConfigError(f"{found[1].where}: expected one {EXTRACTOR_TYPE}, found {len(found)}")
    parameters = ExtractorParameters()
    if found:
        parameters = extractor_parameters(found[0].parameters, f"{found[0].where}.parameters")
    return EngineCatalog(
        custom=parameters.engines, label_key=parameters.engine_label_key, default_engine=parameters.default_engine
    )
