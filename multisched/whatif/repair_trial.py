"""A repair plan by trial: the domain's plugin plans on a copy of the cluster.

Synchronous, over a `SchedulerSandbox` that no other code uses; see `repair_source.py` for a running program.
"""

from __future__ import annotations

import msgspec

from multisched.framework.repair import RepairInput, RepairPlan, RepairRequest
from multisched.shell.domain import DomainWorker
from multisched.whatif.placed_pod_fits import PlacedPodFits
from multisched.whatif.repair_choice import choose
from multisched.whatif.sandbox import SchedulerSandbox


def plan_on(sandbox: SchedulerSandbox, request: RepairRequest) -> RepairPlan:
    """Returns the plan for a copy of the cluster. Raises RepairRefusedError."""
    worker, plugin = choose(sandbox.program, request.domain)
    fits = PlacedPodFits(sandbox, worker, plugin.name)
    cache, program = sandbox.cache, sandbox.program
    nominated = ((pod, cache.nodes.row_of(pod.nominated_node)) for pod in sandbox.nominator.pods())
    plan = plugin.plan_repair(
        RepairInput(
            domain=worker.name,
            nodes=cache.nodes,
            rows=program.router.rows_of(worker).rows,
            placed=tuple((entry.pod, entry.row) for entry in cache if entry.row >= 0),
            nominated=tuple((pod, row) for pod, row in nominated if row is not None),
            objects=cache.objects,
            scheduler_names=frozenset(program.scheduler_names[worker.name]),
            fits=fits,
            notes=(*sandbox.notes, *_unasked(worker)),
        ),
        request,
    )
    return msgspec.structs.replace(plan, notes=(*plan.notes, *fits.notes()))


def _unasked(worker: DomainWorker) -> tuple[str, ...]:
    names = sorted(worker.plugins.remote_names | {judge.name for judge in worker.plugins.extenders})
    return (
        (f"{', '.join(names)} would send requests to decide where pods fit; their responses are not known here",)
        if names
        else ()
    )
