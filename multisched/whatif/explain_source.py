"""Answers queries about pods of a running program: from its records, or from a sandbox if a trial is needed.

`ProgramExplanations` implements `observe.explain_view.ExplainSource`. Records are read on the loop, which is cheap.
Trials (fixes, what-if, a pod without records) run in a thread on a copy, one query at a time, so that scheduling
continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from multisched.framework.background import InThread
from multisched.framework.leading import FindLeader, led_here, require_led
from multisched.framework.registry import Registry
from multisched.observe.explain_view import ExplainQuery, NotExplainedError, PodView, WhatIfList, WhatIfView
from multisched.shell.program import Program
from multisched.shell.workers.background_threads import in_worker_thread

if TYPE_CHECKING:
    from multisched.whatif.explain_known import KnownPod
    from multisched.whatif.sandbox import SchedulerSandbox
    from multisched.whatif.what_if_plan import Plan

QUESTIONS_MAX = 8
"""Limit of queries that wait for a sandbox or use one; further ones get a 429."""

R = TypeVar("R", PodView, WhatIfList)

# The modules for answers are imported at the first query: most processes get none, and the import would lengthen
# each start.


class ProgramExplanations:
    """Answers queries about pods of a running program."""

    def __init__(
        self,
        program: Program,
        registry: Registry | None = None,
        in_thread: InThread = in_worker_thread,
        find_leader: FindLeader = led_here,
    ) -> None:
        """`in_thread`: runs a trial in place of a worker thread; simulations pass one."""
        self._program = program
        self._find_leader = find_leader
        self._registry = registry
        self._in_thread = in_thread
        self._stage = anyio.Lock()
        self._questions = 0

    async def pod(self, query: ExplainQuery) -> PodView:
        """See `ExplainSource`."""
        from multisched.whatif.explain_known import describe, require_node
        from multisched.whatif.explain_trial import complete

        known = await self._find(query)
        if known.worker is not None:
            require_led(self._find_leader, known.worker.name)
        nodes = self._program.cache.nodes
        if query.node and nodes.row_of(query.node) is None:
            names = [node.name for _, node in nodes.live_rows()]
            await self._in_thread(lambda: require_node(query.node, names))
        view = describe(self._program, known, query)
        is_explained = any(attempt.snapshot in ("own", "earlier") for attempt in view.attempts[:1])
        if query.node:
            is_explained = view.on_node is not None
        if known.worker is None or known.refusal or (is_explained and not query.with_fixes and not query.with_now):
            return view
        return await self._try_out(lambda sandbox: complete(view, sandbox, known.pod, query))

    async def _find(self, query: ExplainQuery) -> KnownPod:
        from multisched.whatif.explain_known import find_pod, foreign_pod

        try:
            return find_pod(self._program, query.namespace, query.name)
        except NotExplainedError as error:
            if self._program.is_ready:
                raise await foreign_pod(self._program, query, error) from error
            text = "the caches are not synced with the API server yet; retry in a moment"
            raise NotExplainedError(text, status=503) from error

    async def what_if(self, document: Mapping[str, Any], replicas: int, *, preempts: bool = True) -> WhatIfView:
        """See `ExplainSource`."""
        from multisched.whatif.what_if_plan import plan_of

        found = await self._what_if(plan_of(document, self._program.decoder), replicas, preempts=preempts)
        return found.items[0]

    async def what_if_list(self, documents: Sequence[Any], replicas: int) -> WhatIfList:
        """See `ExplainSource`."""
        from multisched.whatif.what_if_plan import plan_of_all

        return await self._what_if(plan_of_all(documents, self._program.decoder), replicas)

    async def _what_if(self, plan: Plan, replicas: int, *, preempts: bool = True) -> WhatIfList:
        from multisched.shell.ingest.priority_classes import read_classes
        from multisched.whatif.what_if import what_if

        for planned in plan.pods:
            worker = self._program.router.worker_of(planned.pod)
            if worker is not None:
                require_led(self._find_leader, worker.name)
        classes = await read_classes(self._program.transport)
        admitted = plan.admitted(None, classes) if isinstance(classes, str) else plan.admitted(classes)
        return await self._try_out(lambda sandbox: what_if(sandbox, admitted, replicas, preempts=preempts))

    async def _try_out(self, ask: Callable[[SchedulerSandbox], R]) -> R:
        if self._questions >= QUESTIONS_MAX:
            raise NotExplainedError("too many queries at once; retry in a moment", status=429)

        from multisched.whatif.sandbox import ClusterSnapshot, trial

        def answer(snapshot: ClusterSnapshot) -> R:
            with trial(self._program.configuration, snapshot, self._registry) as sandbox:
                return ask(sandbox)

        self._questions += 1
        try:
            async with self._stage:
                snapshot = ClusterSnapshot.of(self._program)
                return await self._in_thread(partial(answer, snapshot))
        finally:
            self._questions -= 1
