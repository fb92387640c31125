"""HTTP extenders: filter the nodes that passed the plugins, score them, review preemptions, and bind pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np

from multisched.framework.extender import Offer
from multisched.framework.node_view import Rows, Scores
from multisched.framework.points import CycleView
from multisched.framework.ports import (
    BindAnswer,
    Binder,
    BindReply,
    BindRequest,
    Documents,
    ExtenderClient,
    ExtenderError,
    ExtenderSettings,
)
from multisched.framework.status import Code, Status
from multisched.model.objects import Pod
from multisched.plugins.extender.messages import (
    FilterAnswer,
    answer_bytes_max,
    arguments,
    binding_arguments,
    read_binding_answer,
    read_filter_answer,
    read_priorities,
)
from multisched.plugins.extender.preemption import (
    WHOLE_PODS_MAX,
    PreemptionRequest,
    PreemptionVerdict,
    Victims,
    checked,
    meta_arguments,
    offers_left,
    read_preemption_answer,
    request_of,
    whole_arguments,
)

logger = logging.getLogger(__name__)

NAME: Final = "Extender"
"""Upstream's name for all extenders together in the list of plugins that refused a pod."""

SCORE_SCALE: Final = 10
"""Factor that scales an extender's score, 0..10, to the range of a plugin's score, 0..100."""

READ_POD_S: Final = 5.0
READS_AT_ONCE: Final = 16
"""Maximum number of victims read concurrently."""

ANSWER_SLACK_S: Final = 1.0
"""Added to the extenders' own timeouts, for encoding and decoding."""

BINDING_PODS_MAX: Final = 65_536
"""Maximum number of reserved pods whose resources are kept until they are bound.

If there are more, the oldest is treated as a pod without requests: an extender with `managedResources` does not bind it.
"""

REASONS_MAX: Final = 256
"""Maximum number of distinct reasons kept from one response, since the pod's condition lists them."""

T = TypeVar("T")


class ExtenderRequest(msgspec.Struct, frozen=True):
    """Request of one attempt: the pod, and the nodes that passed every plugin."""

    namespace: str
    name: str
    resources: frozenset[str]
    nodes: tuple[str, ...]


class ExtenderResult(msgspec.Struct, frozen=True):
    """The combined result of all extenders."""

    refused: Mapping[str, Status]
    """Node -> status with the reason."""
    scores: Mapping[str, int]
    """Node -> score added to its total."""


class HTTPExtenders:
    """Source: kube-scheduler 1.36, pkg/scheduler/extender.go and schedule_one.go (findNodesThatPassExtenders and after)."""

    name = NAME

    def __init__(self, clients: Sequence[ExtenderClient], documents: Documents) -> None:
        # Ignorable extenders come last, as in upstream.
        self._clients = sorted(clients, key=lambda client: client.settings.is_ignorable)
        self._documents = documents
        self._resources: dict[str, frozenset[str]] = {}
        self._failing: set[tuple[str, str]] = set()
        self._names: dict[int, str] = {}
        """Row -> node name, valid for the nodes version `_names_at`."""
        self._names_at = -1
        filters = [c.settings.timeout_s for c in self._clients if c.settings.filter_verb]
        scorers = [c.settings.timeout_s for c in self._clients if c.settings.prioritize_verb]
        preemptors = [READ_POD_S + c.settings.timeout_s for c in self._clients if c.settings.preempt_verb]
        longest_s = max(sum(filters) + max(scorers, default=0.0), sum(preemptors))
        self.response_timeout_s = READ_POD_S + longest_s + ANSWER_SLACK_S

    # -- filter and prioritize -------------------------------------------------------------------------------------

    def request(self, cycle: CycleView, pod: Pod, rows: Rows) -> object | None:
        """Returns the request with node names; None if no extender that filters or scores is interested in the pod."""
        resources = frozenset(pod.spec.requests)
        if not any(
            (c.settings.filter_verb or c.settings.prioritize_verb) and _manages(c.settings, resources)
            for c in self._clients
        ):
            return None
        return ExtenderRequest(pod.namespace, pod.name, resources, tuple(self._names_of(cycle, rows)))

    async def response(self, request: object) -> ExtenderResult | PreemptionVerdict:
        """Returns the extenders' verdict on an attempt or on a preemption.

        Raises ExtenderError if a non-ignorable extender fails, UnreachableError if the pod cannot be read.
        """
        if isinstance(request, PreemptionRequest):
            return await self._negotiated(request)
        assert isinstance(request, ExtenderRequest)
        return await self._judged(request)

    async def _judged(self, request: ExtenderRequest) -> ExtenderResult:
        """Calls the filters one after another, each with the nodes that the previous ones kept, then all scorers concurrently."""
        pod = await self._documents.pod(request.namespace, request.name)
        if pod is None:
            return ExtenderResult({}, {})  # the pod was deleted in the meantime: the deletion ends the attempt
        clients = [c for c in self._clients if _manages(c.settings, request.resources)]
        left, reasons = list(request.nodes), dict[str, Status]()
        for client in clients:
            if client.settings.filter_verb and left:
                left = await self._filtered(client, pod, left, reasons)
        kept = set(left)
        refused = {name: reasons.get(name, _UNSAID) for name in request.nodes if name not in kept}
        # As upstream: no scores are requested if at most one node is left.
        scorers = [c for c in clients if c.settings.prioritize_verb] if len(left) > 1 else []
        found = await asyncio.gather(*(self._scored(client, pod, left) for client in scorers))
        scores: dict[str, int] = {}
        for one in found:
            for name, score in one.items():
                scores[name] = scores.get(name, 0) + score
        return ExtenderResult(refused, scores)

    async def _filtered(
        self, client: ExtenderClient, pod: bytes, left: list[str], reasons: dict[str, Status]
    ) -> list[str]:
        """Returns the nodes that the extender keeps; adds its reasons for the others to `reasons`."""
        settings = client.settings
        try:
            body = await self._post(client, settings.filter_verb, self._arguments(settings, pod, left))
            found = _read(client, settings.filter_verb, read_filter_answer, body)
            kept = _kept(client, found, left)
        except ExtenderError as error:
            if not settings.is_ignorable:
                raise
            self._report_failure(client, settings.filter_verb, error)
            return left
        self._report_success(client, settings.filter_verb)
        reasons.update(_reasons(settings.url, found, left))
        return kept

    async def _scored(self, client: ExtenderClient, pod: bytes, nodes: list[str]) -> dict[str, int]:
        """Returns the extender's weighted scores. If it fails, returns none, as upstream: a failed score never fails the attempt."""
        settings = client.settings
        try:
            body = await self._post(client, settings.prioritize_verb, self._arguments(settings, pod, nodes))
            found = _read(client, settings.prioritize_verb, read_priorities, body)
        except ExtenderError as error:
            self._report_failure(client, settings.prioritize_verb, error)
            return {}
        self._report_success(client, settings.prioritize_verb)
        return {name: score * settings.weight * SCORE_SCALE for name, score in found.items()}

    def verdicts(self, cycle: CycleView, pod: Pod, rows: Rows) -> Mapping[int, Status]:
        refused = self._verdict(cycle).refused
        if not refused:
            return {}
        return {at: refused[name] for at, name in enumerate(self._names_of(cycle, rows)) if name in refused}

    def add_up(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        scores = self._verdict(cycle).scores
        if not scores:
            return np.zeros(len(rows), np.int64)
        return np.array([scores.get(name, 0) for name in self._names_of(cycle, rows)], np.int64)

    def _names_of(self, cycle: CycleView, rows: Rows) -> list[str]:
        """Returns the rows' node names. Cached, since each attempt asks three times for thousands of them, and they seldom change."""
        nodes, known = cycle.nodes, self._names
        if self._names_at != nodes.nodes_version:
            known.clear()
            self._names_at = nodes.nodes_version
        found = []
        for row in rows.tolist():
            name = known.get(row)
            if name is None:
                name = known[row] = nodes.node(row).name
            found.append(name)
        return found

    def _verdict(self, cycle: CycleView) -> ExtenderResult:
        found = cycle.responses[self.name]
        assert isinstance(found, ExtenderResult)
        return found

    # -- preemption ------------------------------------------------------------------------------------------------

    def negotiates(self, pod: Pod) -> bool:
        resources = frozenset(pod.spec.requests)
        return any(c.settings.preempt_verb and _manages(c.settings, resources) for c in self._clients)

    def preemption_request(self, cycle: CycleView, pod: Pod, offers: Sequence[Offer]) -> PreemptionRequest:
        return request_of(cycle, pod, offers)

    def remaining_offers(self, cycle: CycleView, offers: Sequence[Offer], answer: object) -> Sequence[Offer]:
        assert isinstance(answer, PreemptionVerdict)
        return offers_left(cycle, answer)

    async def _negotiated(self, request: PreemptionRequest) -> PreemptionVerdict:
        """Sends the candidates to one extender after another, each with those that the previous ones kept."""
        pod = await self._documents.pod(request.namespace, request.name)
        left: Mapping[str, Victims] = request.offered if pod is not None else {}
        for client in self._clients:
            settings = client.settings
            if pod is None or not left or not settings.preempt_verb:
                continue
            if not _manages(settings, request.resources):
                continue
            try:
                left = await self._preempted(client, pod, left, request)
            except ExtenderError as error:
                if not settings.is_ignorable:
                    raise
                self._report_failure(client, settings.preempt_verb, error)
            else:
                self._report_success(client, settings.preempt_verb)
        return PreemptionVerdict(left)

    async def _preempted(
        self, client: ExtenderClient, pod: bytes, left: Mapping[str, Victims], request: PreemptionRequest
    ) -> Mapping[str, Victims]:
        verb = client.settings.preempt_verb
        if client.settings.is_node_cache_capable:
            body = await meta_arguments(pod, left)
        else:
            body = whole_arguments(pod, left, await self._whole(client, left, request))
        answer = await self._post(client, verb, body)
        try:
            found = await read_preemption_answer(answer)
        except ValueError as error:
            raise ExtenderError(_named(client, verb, str(error))) from error
        try:
            return await checked(found, left, request, is_ignorable=client.settings.is_ignorable)
        except ExtenderError as error:
            raise ExtenderError(_named(client, verb, str(error))) from error

    async def _whole(
        self, client: ExtenderClient, left: Mapping[str, Victims], request: PreemptionRequest
    ) -> dict[str, bytes]:
        """Returns uid -> JSON of the victim. Raises ExtenderError if there are too many victims."""
        count = sum(len(victims.uids) for victims in left.values())
        if count > WHOLE_PODS_MAX:
            text = f"needs {count} complete victims in a request, more than {WHOLE_PODS_MAX}; set nodeCacheCapable"
            raise ExtenderError(_named(client, client.settings.preempt_verb, text))
        wanted: dict[str, Pod] = {}
        for node, victims in left.items():
            pods = request.pods_by_uid(node)
            wanted.update({uid: pods[uid] for uid in victims.uids})
        turns = asyncio.Semaphore(READS_AT_ONCE)

        async def read(pod: Pod) -> bytes | None:
            async with turns:
                return await self._documents.pod(pod.namespace, pod.name)

        found = await asyncio.gather(*(read(pod) for pod in wanted.values()))
        return {uid: whole for uid, whole in zip(wanted, found, strict=True) if whole is not None}

    # -- bind ------------------------------------------------------------------------------------------------------

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        """Keeps the pod's requested resources until it is bound: they decide which extender binds it."""
        if any(c.settings.bind_verb for c in self._clients):
            if len(self._resources) >= BINDING_PODS_MAX:
                del self._resources[next(iter(self._resources))]
            self._resources[pod.uid] = frozenset(pod.spec.requests)
        return Status()

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._resources.pop(pod.uid, None)

    def post_bind(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._resources.pop(pod.uid, None)

    async def bind(self, binder: Binder, request: BindRequest, *, timeout_s: float) -> BindReply | None:
        """Lets the first interested extender bind the pod; returns None if there is none, or if all of them are ignorable and fail.

        If the extender reports success, the caller verifies it with a read (DELEGATED). Raises ExtenderError if the call
        failed but the pod may have been bound.
        """
        resources = self._resources.get(request.uid, frozenset())
        for client in self._clients:
            if not client.settings.bind_verb or not _manages(client.settings, resources):
                continue
            try:
                async with asyncio.timeout(timeout_s):
                    await self._bound(client, request)
            except (ExtenderError, TimeoutError) as error:
                if client.settings.is_ignorable:
                    self._report_failure(client, client.settings.bind_verb, error)
                    continue
                if isinstance(error, ExtenderError) and not error.was_sent:
                    return BindReply(BindAnswer.REJECTED, message=str(error))
                text = str(error) or f"no answer within {timeout_s:g} s"
                raise ExtenderError(_named(client, client.settings.bind_verb, text)) from error
            self._report_success(client, client.settings.bind_verb)
            said = _named(client, client.settings.bind_verb, "reported that it bound the pod, but the pod is not bound")
            return BindReply(BindAnswer.DELEGATED, message=said)
        return None

    async def _bound(self, client: ExtenderClient, request: BindRequest) -> None:
        verb = client.settings.bind_verb
        body = binding_arguments(request.namespace, request.name, request.uid, request.node)
        error = _read(client, verb, read_binding_answer, await self._post(client, verb, body))
        if error:
            raise ExtenderError(_named(client, verb, error))

    # -- HTTP ------------------------------------------------------------------------------------------------------

    def _arguments(self, settings: ExtenderSettings, pod: bytes, names: Sequence[str]) -> bytes:
        nodes = None if settings.is_node_cache_capable else map(self._documents.node, names)
        return arguments(pod, names, nodes)

    async def _post(self, client: ExtenderClient, verb: str, body: bytes) -> bytes:
        return await client.post(verb, body, answer_bytes_max=answer_bytes_max(body))

    def _report_failure(self, client: ExtenderClient, verb: str, error: BaseException) -> None:
        """Logs an ignored failure once until the next success, not for every pod."""
        key = (client.settings.url, verb)
        if key not in self._failing:
            self._failing.add(key)
            logger.warning(
                "extender failed and is ignored", extra={"extender": client.settings.url, "error": str(error)}
            )

    def _report_success(self, client: ExtenderClient, verb: str) -> None:
        key = (client.settings.url, verb)
        if key in self._failing:
            self._failing.discard(key)
            logger.info("extender responds again", extra={"extender": client.settings.url, "verb": verb})


_UNSAID: Final = Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, NAME)
"""Status of a node that an extender leaves out without a reason, as in upstream."""


def _manages(settings: ExtenderSettings, resources: frozenset[str]) -> bool:
    return not settings.managed_resources or not settings.managed_resources.isdisjoint(resources)


def _kept(client: ExtenderClient, found: FilterAnswer, left: Sequence[str]) -> list[str]:
    """Returns the nodes of `left` that the response names. Raises ExtenderError if it has an error or names another node."""
    settings = client.settings
    if found.error:
        raise ExtenderError(_named(client, settings.filter_verb, found.error))
    by_name = settings.is_node_cache_capable and found.node_names is not None
    named = set((found.node_names if by_name else found.nodes) or ())
    unknown = named.difference(left)
    if unknown:
        text = f'claims a filtered node "{min(unknown)[:253]}" which is not found in the input node list'
        raise ExtenderError(f'extender "{settings.url}" {text}')
    return [name for name in left if name in named]


def _reasons(url: str, found: FilterAnswer, asked: Sequence[str]) -> dict[str, Status]:
    """Returns node -> status with the response's reason. Beyond REASONS_MAX distinct reasons, uses one general reason."""
    texts: dict[tuple[Code, str], Status] = {}
    said: dict[str, Status] = {}
    nodes = set(asked)
    for code, failed in (
        (Code.UNSCHEDULABLE, found.failed),
        (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, found.unresolvable),
    ):
        for name, text in failed.items():
            if name not in nodes:
                continue
            reason = text if (code, text) in texts or len(texts) < REASONS_MAX else f"node(s) refused by extender {url}"
            said[name] = texts.setdefault((code, reason), Status(code, NAME, (reason,)))
    return said


def _named(client: ExtenderClient, verb: str, text: str) -> str:
    return f'extender "{client.settings.url}" ({verb}): {text}'


def _read(client: ExtenderClient, verb: str, reader: Callable[[bytes], T], body: bytes) -> T:
    try:
        return reader(body)
    except ValueError as error:
        raise ExtenderError(_named(client, verb, str(error))) from error
