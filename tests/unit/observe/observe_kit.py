"""Builders for tests of observe: a clock that is set by hand, an API server that reviews tokens, and a served program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import orjson

from multisched.cluster.api.direct import DirectTransport
from multisched.cluster.api.server import ApiServer
from multisched.cluster.base.request import UserInfo
from multisched.framework.leading import NotLeadingError, NotLedHere
from multisched.framework.moving import RepairStatus
from multisched.framework.repair import RepairPeak, RepairPlan, RepairRefusedError, RepairRequest
from multisched.framework.views import NoViewError, ViewQuery
from multisched.model.wire import Response, Transport
from multisched.observe.admission_view import NotReviewedError
from multisched.observe.explain_view import ExplainQuery, NotExplainedError, Placement, PodView, WhatIfList, WhatIfView
from multisched.observe.health import Health
from multisched.observe.metrics import Metrics
from multisched.observe.nodes_view import NodeDetail, NodeShare, NodesQuery, NodesView, NoNodeError
from multisched.observe.overview_view import ApiHealth, Decided, DecisionList, FoundNames, Overview
from multisched.observe.page_routes import PageSources
from multisched.observe.pending_view import PendingView
from multisched.observe.preemptions_view import PreemptionList
from multisched.observe.queue_view import DomainQueue, NoDomainError, QueueView, WaitingPod
from multisched.observe.server import ServerSettings, Sources, serve

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
READER, STRANGER = "reader-token", "stranger-token"


@dataclass
class HandClock:
    """Moves when told to."""

    at_s: float = 0.0

    def monotonic(self) -> float:
        return self.at_s

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.at_s)


@dataclass
class Reviewer:
    """A transport to a real API server object that knows a reader and a stranger, counts requests and can go silent."""

    transport: Transport
    paths: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    instead: Response | Exception | None = None

    async def request(self, method: str, path: str, **rest: Any) -> Response:
        self.paths.append(path.rsplit("/", 1)[1])
        self.bodies.append(orjson.loads(rest["body"]))
        if isinstance(self.instead, Exception):
            raise self.instead
        return self.instead or await self.transport.request(method, path, **rest)

    def stream(self, path: str, **rest: Any) -> Any:
        return self.transport.stream(path, **rest)


async def a_reviewer(*paths: str) -> Reviewer:
    """RBAC as `deploy/` ships it for readers, but only of these paths; `/metrics` without any."""
    server = ApiServer(HandClock())
    server.tokens.add_fixed(READER, UserInfo("prometheus"))
    server.tokens.add_fixed(STRANGER, UserInfo("stranger"))
    transport = DirectTransport(server)
    await _create(
        transport,
        "clusterroles",
        "ClusterRole",
        {"rules": [{"nonResourceURLs": list(paths or ("/metrics",)), "verbs": ["get"]}]},
    )
    binding = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "prometheus"}],
    }
    await _create(transport, "clusterrolebindings", "ClusterRoleBinding", binding)
    return Reviewer(transport)


async def _create(transport: Transport, plural: str, kind: str, content: Mapping[str, Any]) -> None:
    document = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "reader"}, **content}
    path = f"/apis/rbac.authorization.k8s.io/v1/{plural}"
    answer = await transport.request("POST", path, body=orjson.dumps(document))
    assert answer.status == 201, answer.body


class OneQueue:
    """A QueueSource with one waiting pod, or as many as asked for."""

    def __init__(self, pods: int = 1) -> None:
        self._pods = pods

    def queue(self, *, domain: str | None, limit: int) -> QueueView:
        if domain == "broken":
            raise RuntimeError("a queue that fails")
        if domain == "nowhere":
            raise NoDomainError("domain nowhere: no such domain; there are job")
        pods = tuple(
            WaitingPod(
                domain="job",
                state="unschedulable",
                namespace="default",
                name=f"late-{i}",
                uid=f"u{i}",
                attempts=2,
                waiting_s=75.0,
                plugins=("NodeResourcesFit",),
                message="0/2 nodes are available: 2 Insufficient cpu.",
            )
            for i in range(min(self._pods, limit))
        )
        counts = {"active": 0, "backoff": 0, "unschedulable": self._pods, "gated": 0}
        domains = (DomainQueue(domain="job", scheduler_names=("job-scheduler",), is_leading=True, counts=counts),)
        return QueueView(domains=domains, pods=pods, left_out=self._pods - len(pods), identity="me")


class OneRepair:
    """A RepairSource that has nothing to mend, and echoes in its notes what it was asked."""

    async def plan(self, asked: RepairRequest) -> RepairPlan:
        if asked.domain == "broken":
            raise RuntimeError("a plan that fails")
        if asked.domain == "nowhere":
            raise RepairRefusedError("domain nowhere: no such domain", status=404)
        calm = RepairPeak("cpu", "Mon 20:00", 70.0)
        return RepairPlan(
            domain=asked.domain or "forecast",
            profiles_version=3,
            threshold_percent=asked.threshold_percent,
            moves=(),
            repaired=(),
            unrepaired=(),
            least_moves=0,
            worst_before=calm,
            worst_after=calm,
            nodes=2,
            pods=7,
            movable=5,
            kept={"it is not ready": 2},
            notes=(f"moves={asked.moves} {asked.moves_per_node} {asked.moves_per_service}",),
        )

    def status(self, domain: str) -> RepairStatus:
        if domain == "nowhere":
            raise RepairRefusedError("domain nowhere: no such domain", status=404)
        return RepairStatus(
            domain=domain or "forecast", mode="apply", is_open=True, opens_s=0.0, closes_s=3600.0, state="leaving",
            step=2, steps=3, move="shop/web-1 from n1 to n2", moved=4, moves_left=46, digest="abc",
        )  # fmt: skip

    async def run(self, asked: RepairRequest, digest: str) -> RepairStatus:
        if digest != "abc":
            raise RepairRefusedError("outside the windows of repair: the next one opens at 2026-01-01T01:00:00Z", 409)
        return msgspec.structs.replace(self.status(asked.domain), state="planned", steps=asked.moves or 3)


class OneExplanation:
    """An ExplainSource that knows the pod default/late, and echoes what it was asked."""

    async def pod(self, query: ExplainQuery) -> PodView:
        if query.name == "broken":
            raise RuntimeError("an explanation that fails")
        if query.name != "late":
            raise NotExplainedError(f"pod {query.namespace}/{query.name} is not known here")
        asked = (f"node={query.node}", f"fix={query.with_fixes}", f"names={query.names}")
        return PodView(
            namespace=query.namespace,
            name=query.name,
            uid="u",
            scheduler="job-scheduler",
            domain="job",
            state="active",
            waiting_for="its turn",
            notes=asked,
        )

    async def what_if(self, document: Mapping[str, Any], replicas: int, *, preempts: bool = True) -> WhatIfView:
        if not document:
            raise NotExplainedError("the manifest has no pod spec with containers", status=422)
        placements = tuple(Placement(replica=n + 1, node="n1") for n in range(replicas))
        return WhatIfView(namespace="default", name="new", domain="job", replicas=replicas, placements=placements)

    async def what_if_list(self, documents: Sequence[Any], replicas: int) -> WhatIfList:
        return WhatIfList(items=tuple([await self.what_if(one, replicas) for one in documents]))


class OneView:
    """A ViewSource of the view `forecast`, which has the document `nodes` and echoes what it was asked."""

    async def document(self, view: str, query: ViewQuery) -> bytes:
        if (view, query.name) != ("forecast", "nodes"):
            raise NoViewError(f"{view} has no {query.name}")
        return orjson.dumps({"asked": dict(query.options)})


@asynccontextmanager
async def served(
    settings: ServerSettings, *, health: Health | None = None, pods: int = 1, admission: OneReview | None = None
) -> AsyncIterator[str]:
    """The server on a free port of loopback."""
    sources = msgspec.structs.replace(sources_of(health or Health(), pods), admission=admission)
    async with serve(settings, sources) as url:
        yield url


class LedByAnother:
    """Every source of a replica that stands by."""

    def __init__(self, led: NotLedHere) -> None:
        self._error = NotLeadingError(led)

    def queue(self, *, domain: str | None, limit: int) -> QueueView:
        raise self._error

    def status(self, domain: str) -> RepairStatus:
        raise self._error

    async def pod(self, query: ExplainQuery) -> PodView:
        raise self._error

    async def what_if(self, document: Mapping[str, Any], replicas: int, *, preempts: bool = True) -> WhatIfView:
        raise self._error

    async def what_if_list(self, documents: Sequence[Any], replicas: int) -> WhatIfList:
        raise self._error

    async def plan(self, asked: RepairRequest) -> RepairPlan:
        raise self._error

    async def run(self, asked: RepairRequest, digest: str) -> RepairStatus:
        raise self._error

    async def document(self, view: str, query: ViewQuery) -> bytes:
        raise self._error


class OnePage:
    """The sources of a page of one domain, `job`; `changes` is set by the test. Nodes are named n0 to n599."""

    def __init__(self) -> None:
        self.changes = 0
        self.looks = 0
        self.remarks = ""
        self.error: Exception | None = None

    def change(self) -> None:
        self.changes += 1

    async def overview(self) -> Overview:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return Overview(
            identity="me",
            version="1",
            is_ready=True,
            remarks=self.remarks,
            api=ApiHealth(throttled=0, failed_reads=0),
            domains=(),
            decisions=(),
            views={},
            changes=self.changes,
        )

    async def decisions(self, *, domain: str | None, limit: int) -> DecisionList:
        if domain == "nowhere":
            raise NoDomainError("domain nowhere: no such domain; there are job")
        one = Decided(domain="job", namespace="a", name="b", node="n1", attempt=1, score=9, at_seconds=1.0)
        return DecisionList(decisions=(one,) * min(limit, 3))

    async def find(self, text: str) -> FoundNames:
        return FoundNames(pods=(("default", f"{text}-1"),), pods_total=1, nodes=(), nodes_total=0)

    async def preemptions(self, *, plugin: str, limit: int) -> PreemptionList:
        return PreemptionList(preemptions=())

    async def pending(self, *, group: str) -> PendingView:
        return PendingView(groups=(), groups_left_out=0, pods_total=len(group), age_s=0.0)

    async def nodes(self, query: NodesQuery) -> NodesView:
        if query.resource != "cpu":
            raise NoNodeError(f"no node here has {query.resource}; there are cpu")
        shown = range(query.offset, min(600, query.offset + query.limit))
        nodes = tuple(NodeShare(node=f"n{at}", shares=(0.5,), pods=1, is_closed=False) for at in shown)
        return NodesView(
            domain=query.domain or "", resources=("cpu",), sorted_by="cpu", count=600, totals=(), nodes=nodes,
            matching=600, offset=query.offset,
        )  # fmt: skip

    async def node(self, name: str) -> NodeDetail:
        raise NoNodeError(f"node {name} is not known here")


def sources_of(health: Health, pods: int = 1, page: OnePage | None = None) -> Sources:
    found = page or OnePage()
    pages = PageSources(found, found, found, found)
    return Sources(health, Metrics(), OneQueue(pods), OneExplanation(), OneRepair(), OneView(), page=pages)


class OneReview:
    """Reviews whatever is JSON; where it is `is_slow`, not before `go_on` is set."""

    def __init__(self, *, is_slow: bool = False, full_at: int = 0) -> None:
        self.asked = 0
        self.go_on, self.full = asyncio.Event(), asyncio.Event()
        self._full_at = full_at
        if not is_slow:
            self.go_on.set()

    async def review(self, body: bytes) -> bytes:
        self.asked += 1
        if self.asked == self._full_at:
            self.full.set()
        await self.go_on.wait()
        if not body.strip().startswith(b"{"):
            raise NotReviewedError("no review")
        return b'{"reviewed": %s}' % body
