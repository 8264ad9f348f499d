"""How well the picture of the pool follows the Kubernetes API server."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric


class KubernetesMetrics:
    """A collector; it is registered only when the endpoints are pods.

    Plain numbers, changed by the event loop's thread only. `resource` is the plural of the API: `pods`, `inferencepools`.

    Attributes:
        unusable_pods: Reason → pods that match the pool and cannot be used.
        leads: Asks whether this replica is the leader; None without an election.
    """

    def __init__(self) -> None:
        self.unusable_pods: Mapping[str, int] = {}
        self.leads: Callable[[], bool] | None = None
        self._ages: Callable[[], Mapping[str, float | None]] = dict
        self._lists: Counter[str] = Counter()
        self._objects: dict[str, int] = {}
        self._watch_ends: Counter[tuple[str, str]] = Counter()
        self._errors: Counter[tuple[str, str]] = Counter()

    def read_ages_from(self, ages: Callable[[], Mapping[str, float | None]]) -> None:
        """Ask `ages` at each reading for each resource's seconds since the API server last proved our state current."""
        self._ages = ages

    def of(self, resource: str) -> "ResourceMetrics":
        """The part that counts for one resource."""
        return ResourceMetrics(self, resource)

    def listed(self, resource: str) -> None:
        """A whole list was taken in."""
        self._lists[resource] += 1

    def holds(self, resource: str, objects: int) -> None:
        """So many objects are known now."""
        self._objects[resource] = objects

    def watch_ended(self, resource: str, reason: str) -> None:
        """A watch is over; `reason` is one of a few words."""
        self._watch_ends[resource, reason] += 1

    def api_error(self, resource: str, reason: str) -> None:
        """The API server refused or could not be reached; `reason` is one of a few words."""
        self._errors[resource, reason] += 1

    def collect(self) -> Iterator[Metric]:
        """Make the families."""
        age = GaugeMetricFamily(
            "epp_kubernetes_state_age_seconds",
            "Since the API server last proved our state of a resource to be current.",
            labels=("resource",),
        )
        for resource, age_s in self._ages().items():
            if age_s is not None:
                age.add_metric((resource,), age_s)
        yield age
        objects = GaugeMetricFamily("epp_kubernetes_objects", "Objects known of a resource.", labels=("resource",))
        for resource, count in self._objects.items():
            objects.add_metric((resource,), count)
        yield objects
        lists = CounterMetricFamily("epp_kubernetes_lists_total", "Whole lists that were read.", labels=("resource",))
        for resource, count in self._lists.items():
            lists.add_metric((resource,), count)
        yield lists
        yield _by_reason("epp_kubernetes_watch_ends_total", "Watches that ended, by reason.", self._watch_ends)
        yield _by_reason("epp_kubernetes_api_errors_total", "Requests to the API server in vain, by reason.", self._errors)
        unusable = GaugeMetricFamily(
            "epp_unusable_pods", "Pods that match the pool and cannot be used, by reason.", labels=("reason",)
        )
        for reason, count in self.unusable_pods.items():
            unusable.add_metric((reason,), count)
        yield unusable
        if self.leads is not None:
            yield GaugeMetricFamily("epp_leader", "Whether this replica holds the Lease.", int(self.leads()))


class ResourceMetrics:
    """Counts for one resource, under its own name; what a reflector calls it does not matter."""

    def __init__(self, metrics: KubernetesMetrics, resource: str) -> None:
        self._metrics = metrics
        self._resource = resource

    def listed(self, _: str, duration_s: float, objects: int) -> None:
        """A whole list was taken in."""
        self._metrics.listed(self._resource)

    def watch_ended(self, _: str, reason: str) -> None:
        """A watch is over."""
        self._metrics.watch_ended(self._resource, reason)

    def api_error(self, _: str, reason: str) -> None:
        """A list or a watch failed."""
        self._metrics.api_error(self._resource, reason)


def _by_reason(name: str, sentence: str, counts: Mapping[tuple[str, str], int]) -> Metric:
    family = CounterMetricFamily(name, sentence, labels=("resource", "reason"))
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family
