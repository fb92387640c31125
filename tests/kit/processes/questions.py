"""Questions of users that a running process answers from a copy: fixes of a pod, what-if, and plans.

The parts that answer over HTTP and on the command line are called; in virtual time the loop replaces their threads. A question must
change nothing, and no answer may name a node that the pod cannot use, by what the process has observed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, TypeVar

import msgspec
import orjson

from multisched.cluster.api.server import ApiServer
from multisched.cluster.base.storage import Store
from multisched.config.domains import judged_domains
from multisched.config.schema import Configuration
from multisched.framework.background import InThread
from multisched.framework.repair import RepairRefusedError, RepairRequest
from multisched.framework.views import NoViewError, ViewQuery
from multisched.model.objects import Pod
from multisched.model.wire import TransportError
from multisched.observe.explain_view import ExplainQuery, NotExplainedError
from multisched.shell.audit.cluster_judge import JudgeError, judge_cluster
from multisched.shell.plugin_views import ProgramViews
from multisched.shell.program import Program
from multisched.testing.sim_loop import SimClock
from multisched.whatif.explain_source import ProgramExplanations
from multisched.whatif.explain_trial import DumpExplanations
from multisched.whatif.repair_source import RepairPlans
from multisched.whatif.repair_trial import plan_on
from multisched.whatif.sandbox import UNASKED, DumpedCluster, SchedulerSandbox
from tests.kit.checkers.api.bind_checker import BindChecker
from tests.kit.plugins.permit_holds import HELD
from tests.kit.plugins.restless import MOVES
from tests.kit.processes.process import Process
from tests.kit.world.labels import HOSTNAME
from tests.kit.world.world import World

T = TypeVar("T")

PODS_ASKED, NAMED_ASKED, PLANNED = 2, 5, 5
"""Pods asked about in addition to named ones, number of named ones, and pods of what-if questions."""
ASKERS: Final = 10
"""Concurrent requests for one view: more than are served."""
REPLICAS_MAX: Final = 6
REFUSED: Final = (NotExplainedError, RepairRefusedError, NoViewError, JudgeError, TransportError)
"""Errors that may replace an answer."""
DUMPED: Final = {
    "namespaces": "Namespace",
    "nodes": "Node",
    "pods": "Pod",
    "services": "Service",
    "persistentvolumes": "PersistentVolume",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "storageclasses.storage.k8s.io": "StorageClass",
    "csinodes.storage.k8s.io": "CSINode",
    "priorityclasses.scheduling.k8s.io": "PriorityClass",
    "poddisruptionbudgets.policy": "PodDisruptionBudget",
}
"""Key of the store -> kind."""


class Questions:
    """Questions to one process at one moment."""

    def __init__(
        self,
        process: Process,
        names: Collection[str],
        *,
        configuration: Configuration,
        server: ApiServer,
        world: World,
        bind_checker: BindChecker,
        clock: SimClock,
        rng: random.Random,
    ) -> None:
        """`names`: pods that are always asked about."""
        self._process = process
        self._program = process.program
        self._names = names
        self._configuration = configuration
        self._store = server.store
        self._world = world
        self._bind_checker = bind_checker
        self._clock = clock
        self._rng = rng
        self._in_thread = _Watched(process.program, bind_checker.report_violation)
        self._explanations = ProgramExplanations(self._program, in_thread=self._in_thread)

    async def ask(self) -> None:
        """Asks some questions of each kind. Errors in REFUSED are allowed."""
        for question in (self._explain, self._ask_what_if, self._plan, self._dump, self._look):
            await question()

    async def _explain(self) -> None:
        pods = self._world.pods()
        waiting = [pod for pod in pods if not pod.node]
        named = [pod for pod in waiting if pod.name in self._names]
        asked = self._rng.sample(named, min(len(named), NAMED_ASKED))
        asked += self._rng.sample(waiting, min(len(waiting), PODS_ASKED)) + self._rng.sample(pods, min(len(pods), 2))
        asked += self._odd(pods)
        nodes = [*self._bind_checker.nodes(), "node-x", "elsewhere"]
        for pod in asked:
            node = self._rng.choice(nodes) if self._rng.random() < 0.2 else ""
            await self._unless_refused(lambda pod=pod, node=node: self._explain_one(pod, node))  # type: ignore[misc]
        for query in (
            ExplainQuery("default", "nobody"),
            *(ExplainQuery(p.namespace, p.name, "node-x") for p in pods[:2]),
        ):
            await self._unless_refused(lambda query=query: self._explanations.pod(query))  # type: ignore[misc]

    def _odd(self, pods: Collection[Pod]) -> list[Pod]:
        """Returns a malformed pod, a quarantined pod, and a pod of another scheduler, if there are any."""
        refused = [one.pod for one in self._program.pods.refused.values()]
        queues = [worker.queue for worker in self._program.router.workers()]
        aside = [entry.pod for queue in queues for entry in queue.entries() if entry.is_quarantined]
        served = self._configuration.served
        others = [pod for pod in pods if pod.node and pod.spec.scheduler_name not in served]
        return [*refused[:1], *aside[:1], *others[:1]]

    async def _explain_one(self, pod: Pod, node: str) -> None:
        view = await self._explanations.pod(ExplainQuery(pod.namespace, pod.name, node, with_fixes=not node))
        is_whole = not any(note.endswith(UNASKED) for note in view.notes)
        if view.now is not None and view.now.node and is_whole:
            self._judge(self._process.checker.delivered.pods.get(view.uid), view.domain, view.now.node)
        for fix in view.fixes or ():
            if fix.node not in self._process.checker.delivered.nodes:
                self._bind_checker.report_violation(f"{pod.key} is said to fit on {fix.node}, which is gone")

    async def _ask_what_if(self) -> None:
        for document in self._rng.sample(MANIFESTS, PLANNED):
            replicas = self._rng.randint(1, REPLICAS_MAX)
            await self._unless_refused(lambda d=document, r=replicas: self._explanations.what_if(d, r))  # type: ignore[misc]

    async def _plan(self) -> None:
        plans = RepairPlans(self._program, in_thread=self._in_thread)
        for domain in self._rng.sample(("", "forecast", "job", "gpu", "forcast"), 3):
            await self._unless_refused(lambda domain=domain: self._plan_one(plans, domain))  # type: ignore[misc]
            asked = RepairRequest(domain=domain)
            await self._unless_refused(lambda domain=domain: _later(lambda: plans.status(domain)))  # type: ignore[misc]
            await self._unless_refused(lambda asked=asked: plans.run(asked, "of no plan that was shown"))  # type: ignore[misc]
        views = ProgramViews(self._program, self._in_thread)
        for view, domain in (("forecast", "forecast"), ("weather", ""), (MOVES, ""), (MOVES, "gpu")):
            await self._unless_refused(lambda v=view, d=domain: views.document(v, ViewQuery("status", {"domain": d})))  # type: ignore[misc]
        query = ViewQuery("newest", {"domain": self._rng.choice(("forecast", "job"))})
        await asyncio.gather(*(self._unless_refused(lambda: views.document(MOVES, query)) for _ in range(ASKERS)))

    async def _plan_one(self, plans: RepairPlans, domain: str) -> None:
        plan = await plans.plan(RepairRequest(domain=domain, moves=3))
        for move in plan.moves if not any("not known here" in note for note in plan.notes) else ():
            self._judge(self._process.checker.delivered.pods.get(move.uid), plan.domain, move.to_node)

    async def _dump(self) -> None:
        """Asks as `multisched explain --dump` and `multisched repair plan --dump` do, with the objects of the API server."""
        known = DumpedCluster(_dumped(self._store), self._clock.now(), self._clock.monotonic())
        explanations = DumpExplanations(self._configuration, known)
        pods = self._world.pods()
        asked = [
            ExplainQuery(pod.namespace, pod.name, with_fixes=True) for pod in self._rng.sample(pods, min(len(pods), 4))
        ]
        asked += [
            ExplainQuery("default", "nobody"),
            *(ExplainQuery(p.namespace, p.name, "elsewhere") for p in pods[:1]),
        ]
        for query in asked:
            await self._unless_refused(lambda query=query: _later(lambda: explanations.pod(query)))  # type: ignore[misc]
        empty = DumpExplanations(self._configuration, DumpedCluster([msgspec.Raw(b'{"kind":"Pod"}')], known.now))
        await self._unless_refused(lambda: _later(lambda: empty.pod(asked[0])))
        document = self._rng.choice(MANIFESTS)  # what it places remains in its copy
        await self._unless_refused(lambda: _later(lambda: explanations.what_if(document, 2)))
        sandbox, repair = SchedulerSandbox(self._configuration, known), RepairRequest(domain="forecast")
        await self._unless_refused(lambda: _later(lambda: plan_on(sandbox, repair)))

    async def _look(self) -> None:
        """Judges the cluster as `multisched verify` does."""
        domains = judged_domains(self._configuration)
        await self._unless_refused(lambda: judge_cluster(self._process.transport, domains))

    async def _unless_refused(self, ask: Callable[[], Awaitable[object]]) -> None:
        try:
            await ask()
        except REFUSED as refused:
            if not str(refused):
                self._bind_checker.report_violation(f"a question was refused without a word: {type(refused).__name__}")

    def _judge(self, pod: Pod | None, domain: str, name: str) -> None:
        delivered = self._process.checker.delivered
        node = delivered.nodes.get(name)
        if pod is None:
            return
        fault = "which is gone" if node is None else delivered.fault_of_node(pod, domain, node)
        if fault:
            self._bind_checker.report_violation(f"I8: an answer says that {pod.key} would go to {name}, {fault}")


class _Watched(InThread):
    """Runs work on the loop in place of a thread, and reports if that has changed the program."""

    def __init__(self, program: Program, report_violation: Callable[[str], None]) -> None:
        self._program = program
        self._report_violation = report_violation

    async def __call__(self, work: Callable[[], T]) -> T:
        before = _state_of(self._program)
        try:
            return work()
        finally:
            changed = [name for name, found in _state_of(self._program).items() if found != before[name]]
            if changed:
                self._report_violation(f"a question has changed the program: {', '.join(changed)}")


def _state_of(program: Program) -> Mapping[str, object]:
    """Returns all state that a question could change, as immutable values."""
    cache, workers = program.cache, program.router.workers()
    return {
        "pods": [(entry.pod.uid, entry.pod.version, entry.node, entry.state) for entry in cache],
        "nodes": [(row, node.version, cache.nodes.version(row)) for row, node in cache.nodes.live_rows()],
        "queues": [(entry.uid, entry.state, entry.attempts) for one in workers for entry in one.queue.entries()],
        "nominations": [(pod.uid, pod.nominated_node) for pod in program.nominator.pods()],
        "ledgers": {ledger.name: repr(sorted(ledger.held().items())) for ledger in cache.ledgers},
        "pending": [*program.pods.pending],
    }


async def _later(work: Callable[[], T]) -> T:
    return work()


def _dumped(store: Store) -> list[msgspec.Raw]:
    """Returns a dump as kubectl prints it, with malformed and unneeded objects."""
    found: list[dict[str, Any]] = [{"kind": "Secret"}, {"kind": "Node"}, *({"kind": "Pod"} for _ in range(6))]
    for name, kind in DUMPED.items():
        found += [{**stored.document(), "kind": kind} for _, stored in store.collection(name).items()]
    return [msgspec.Raw(orjson.dumps(one)) for one in found]


def _manifest(scheduler: str = "forecast-scheduler", cpu: str = "500m", **spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "app-0:v1", "resources": {"requests": {"cpu": cpu}}}]
    return {
        "kind": "Pod",
        "metadata": {"name": "asked"},
        "spec": {"schedulerName": scheduler, "containers": containers, **spec},
    }


def _templated(pod: Mapping[str, Any]) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "app-0"}}, "spec": pod["spec"]}
    return {"kind": "Deployment", "metadata": {"name": "asked", "namespace": "team-a"}, "spec": {"template": template}}


MANIFESTS: Final[tuple[Any, ...]] = (
    _manifest(),
    _templated(_manifest(cpu="1500m")),
    _templated(_manifest(cpu="3500m", priorityClassName="system-cluster-critical")),
    _templated(_manifest("gpu-scheduler")),
    {"kind": "CronJob", "spec": {"jobTemplate": {"spec": _templated(_manifest("job-scheduler", "30"))["spec"]}}},
    _manifest(schedulingGates=[{"name": "gate"}]),
    _manifest("job-scheduler", priority=7, preemptionPolicy="Never"),
    _manifest(priorityClassName="system-node-critical", preemptionPolicy="Never"),
    _manifest(priorityClassName="nobody-knows-it"),
    _manifest("nobody"),
    _manifest(cpu="much"),
    _manifest(nodeName="node-1"),
    _manifest(tolerations=[{"key": f"t{at}", "operator": "Exists"} for at in range(300)]),
    _manifest(cpu="3900m", priorityClassName="system-node-critical", nodeSelector={HOSTNAME: "node-31"}),
    _manifest(cpu="3", priorityClassName="system-node-critical", nodeSelector={HOSTNAME: "node-34"}),
    _manifest(cpu="10m") | {"metadata": {"name": f"{HELD}asked"}},
    _manifest() | {"metadata": {"name": "asked", "labels": {"app": 7}}},
    ["a", "list"],
    {"kind": "ConfigMap"},
    {"kind": "Pod", "spec": 7},
    {"kind": "Pod", "spec": {}},
)
"""Manifests of what-if questions; some are invalid."""
