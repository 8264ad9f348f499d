"""How often rules gave requests another model, under the names of both generations of reference pickers.

Names and labels: Gateway API Inference Extension `pkg/epp/metrics/metrics.go`, llm-d router `docs/metrics.md`.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from epp.telemetry.labels import LabelLimit

NAMES = ("inference_extension_model_rewrite_decisions_total", "llm_d_epp_model_rewrite_decisions_total")
LABELS = ("model_rewrite_name", "model_name", "target_model")


class RewriteMetrics:
    """Counts decisions; a Prometheus collector.

    Args:
        models: Bounds the models that clients name. Those of the rules keep a label of their own, here and wherever else
            this object gives labels.
    """

    def __init__(self, models: LabelLimit) -> None:
        self._models = models
        self._decisions: Counter[tuple[str, str, str]] = Counter()

    def decided(self, rewrite_name: str, model: str, target_model: str) -> None:
        """The rules of the object `rewrite_name` gave a request for `model` the model `target_model`."""
        target = self._models.configured(target_model)
        self._decisions[rewrite_name, self._models.label(model), target] += 1

    def collect(self) -> Iterator[Metric]:
        """The families, read by the registry."""
        for name in NAMES:
            family = CounterMetricFamily(name, "Requests for which a rule chose the model.", labels=LABELS)
            for labels, decisions in self._decisions.items():
                family.add_metric(labels, decisions)
            yield family
