"""Reading a registry as Prometheus would."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


class Page:
    """The text page of a registry, parsed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.text = generate_latest(registry).decode()
        self.families: dict[str, Metric] = {family.name: family for family in text_string_to_metric_families(self.text)}

    def value(self, name: str, /, **labels: str) -> float | None:
        """The value of the one sample of that name whose labels include `labels`; None when there is none."""
        found = self.samples(name, **labels)
        assert len(found) <= 1, f"{name}{labels}: {len(found)} samples"
        return found[0][1] if found else None

    def samples(self, name: str, /, **labels: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of all samples of that name whose labels include `labels`."""
        return [
            (sample.labels, sample.value)
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def type_of(self, name: str) -> str:
        """The type of the family `name` (of counters without `_total`, as the parser names them)."""
        return self.families[name].type
