"""The configuration file: an `EndpointPickerConfig` with the sections of `epp.config.settings` beside its plugins.

```yaml
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:                       # optional; what each type is and takes: epp.scheduling.catalog
- {type: queue-scorer}
- {name: best, type: max-score-picker, parameters: {maxNumOfEndpoints: 1}}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer, weight: 2}, {pluginRef: best}]
scrape: {interval: 100ms}      # sections: drain, health, limits, requests, scrape
```
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig:
    """One entry of `plugins`.

    Attributes:
        where: File and path, for errors.
        name: What `pluginRef` says; the type where no name is given.
        parameters: As plain values.
    """

    where: str
    name: str
    type: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRef:
    """One entry of a profile's `plugins`."""

    where: str
    name: str
    weight: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """One entry of `schedulingProfiles`."""

    where: str
    name: str
    plugins: Sequence[PluginRef] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A configuration file that was read.

    Attributes:
        values: Settings given in the file, as (group, attribute) → value.
    """

    where: str
    values: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    plugins: Sequence[PluginConfig] = ()
    profiles: Sequence[ProfileConfig] = ()
