"""The objects of the API server put together: they become the membership of the pool. No input or output here."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from epp.discovery.kubernetes.inference_pool import PoolDefinition
from epp.discovery.kubernetes.label_selector import LabelSelector
from epp.discovery.kubernetes.membership import Membership, MembershipResult
from epp.discovery.kubernetes.objects import InferencePool, InferencePoolV1Alpha2, Pod
from epp.discovery.kubernetes.pods import UnusableReason
from epp.errors import ConfigError
from epp.pool.state import PoolState

H2C = "kubernetes.io/h2c"
"""`appProtocol` of ports that speak HTTP/2 without TLS, and nothing else."""


class PictureLog(Protocol):
    """Where changes are told, once each."""

    def info(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...


class Operator(Protocol):
    """Who hears of what needs a person, outside the log (metrics, Events on the pool)."""

    def unusable_pods(self, by_reason: Mapping[str, int]) -> None:
        """So many pods match and cannot be used now; every reason is there, most of them with 0."""
        ...

    def warn(self, reason: str, note: str) -> None:
        """Something new is wrong; `reason` is a word in CamelCase, `note` a sentence."""
        ...


class PoolPicture:
    """Keeps `PoolState` equal to the InferencePool and the pods, as far as they are known.

    Attributes:
        definition: What the pool consists of; None while there is none. A definition that cannot be used leaves the last
            good one in force.
    """

    def __init__(
        self,
        pool: PoolState,
        membership: Membership,
        *,
        definition: PoolDefinition | None,
        on_selector: Callable[[], None],
        operator: Operator,
        log: PictureLog,
    ) -> None:
        """Args:
        definition: From flags; None when an InferencePool gives it.
        on_selector: Called when other pods than before are needed.
        """
        self.definition = definition
        self._pool = pool
        self._membership = membership
        self._on_selector = on_selector
        self._operator = operator
        self._log = log
        self._pods: Mapping[str, Pod] | None = None
        self._pods_of: LabelSelector | None = None
        self._waited_enough = False
        self._exists = True
        self._fault: str | None = None
        self._told: dict[str, str] = {}

    def take_pool(self, found: InferencePool | InferencePoolV1Alpha2 | None, name: str) -> None:
        """The API server says what the InferencePool `name` is now, None when there is none."""
        if found is None or found.metadata.deletion_timestamp is not None:
            self._pool_is_missing(name)
            return
        before = self.definition
        try:
            if isinstance(found, InferencePool):
                definition = PoolDefinition.from_v1(found)
            else:
                definition = PoolDefinition.from_v1alpha2(found)
        except ConfigError as error:
            self._pool_is_faulty(str(error))
            return
        self._fault = None
        if not self._exists:
            self._exists = True
            self._log.info("the InferencePool is there", pool=name)
        if definition == before:
            return
        self.definition = definition
        self._pool.details = {**self._pool.details, "app_protocol": definition.app_protocol}
        if definition.app_protocol == H2C:
            self._log.info("metrics are read by HTTP/1.1, also in this pool of h2c; pods can name a port for them", pool=name)
        self._sync()
        if self.wanted_selector is not None:
            self._on_selector()

    @property
    def wanted_selector(self) -> LabelSelector | None:
        """Whose pods are needed and not known; None when all is known that can be."""
        definition = self.definition
        return None if definition is None or self.has_pods_of(definition.selector) else definition.selector

    def has_pods_of(self, selector: LabelSelector) -> bool:
        """Whether the pods of this selector were listed, and not others since."""
        return self._pods_of == selector

    def take_pods(self, pods: Mapping[str, Pod], selector: LabelSelector) -> None:
        """All pods of a selector, by uid.

        Those of the one before still count until those of the new one are there; then they say nothing any more.
        """
        wanted = None if self.definition is None else self.definition.selector
        if self._pods_of is not None and selector not in (self._pods_of, wanted):
            return
        self._pods, self._pods_of = dict(pods), selector
        self._sync()

    def stop_waiting(self) -> None:
        """The list of pods for a new selector does not come: go on with those of the known ones that match it."""
        if not self._waited_enough:
            self._waited_enough = True
            self._sync()

    def _sync(self) -> None:
        definition = self.definition
        if definition is None or self._pods is None or self._pods_of is None:
            return
        if self._pods_of == definition.selector:
            self._waited_enough = False
        elif not self._waited_enough:
            # A change of selector must not leave the pool empty for the time of a request to the API server.
            definition = replace(definition, selector=self._pods_of)
        result = self._membership.specs(self._pods, definition)
        self._pool.sync(result.specs)
        self._tell(result)

    def _pool_is_missing(self, name: str) -> None:
        if self._exists or self.definition is not None:
            sentence = f"InferencePool {name}: expected it to exist, found none; no endpoint until it is there"
            self._log.warning("the InferencePool is missing", pool=name, detail=sentence)
        self._exists = False
        self._fault = None
        self.definition = None
        if self._pool.listed:
            self._pool.sync(())
            self._tell(MembershipResult((), (), ()))

    def _pool_is_faulty(self, sentence: str) -> None:
        if sentence == self._fault:
            return
        self._fault = sentence
        in_force = "none" if self.definition is None else "the last good one"
        self._log.warning("the InferencePool cannot be used", detail=sentence, in_force=in_force)
        self._operator.warn("InvalidPool", sentence)

    def _tell(self, result: MembershipResult) -> None:
        counts = Counter(each.reason for each in result.unusable)
        self._operator.unusable_pods({reason.value: counts[reason] for reason in UnusableReason})
        if not (result.unusable or result.problems or self._told):
            return
        for each in result.unusable:
            if each.sentence not in self._told:
                self._log.warning("a pod cannot be used", pod=each.pod, reason=each.reason.value, detail=each.sentence)
                self._operator.warn("UnusablePod", each.sentence)
        for problem in result.problems:
            if problem.sentence not in self._told:
                self._log.warning("a mark on a pod is not followed", pod=problem.pod, detail=problem.sentence)
                self._operator.warn("BadPodMark", problem.sentence)
        # What was told of a pod is not told again while it is there, even if its readiness comes and goes.
        there = {pod.metadata.name for pod in (self._pods or {}).values()}
        told = {sentence: pod for sentence, pod in self._told.items() if pod in there}
        told |= {each.sentence: each.pod for each in result.unusable}
        self._told = told | {problem.sentence: problem.pod for problem in result.problems}
