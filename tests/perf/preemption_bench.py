"""What preemption costs in the core alone: `python -m tests.perf.preemption_bench [--nodes 5000] [--per-node 20] [--check]`.

No API server, no event loop: attempts of pods that fit nowhere, on full nodes, with labels of its own for each pod that
stands there. Told in milliseconds of CPU time, of each kind the median and the worst:
first      a class of preemptors that nobody has seen, the columns of all standing pods not made yet.
first step the longest piece of that attempt between two pauses.
budgets    the longest piece of such an attempt with a thousand PodDisruptionBudgets, each of one pod.
wide       the same with twenty PodDisruptionBudgets, each of every pod.
count      the first count of standing pods by a relation, in a process that has counted none.
next       the same class again, when one victim has left and another pod has taken its room.
impossible equal priority everywhere, so that there is nobody to preempt; 100 pods are placed between two attempts.
related    a pod whose ten anti-affinity terms and whose spreading concern every standing pod, so that each node is tested by itself.
step       the longest piece of such an attempt between two pauses.
The last two are measured with a tenth of the nodes.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

import msgspec
import orjson

from multisched.cycle.results import Unplaced
from multisched.model.decode import Decoder
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.placement import PodQuery, PodScope
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.shell.garbage import disable_gc
from multisched.shell.step_clock import StepClock
from multisched.testing.builders import pop_pod
from tests.perf.core_bench import Core
from tests.perf.workload import pod

CPU_MILLI: Final = 100
"""Of each standing pod; nodes have 16 CPUs and more, and all but one of their CPUs are taken by one large pod."""
PLACED_BETWEEN: Final = 100
ATTEMPTS: Final = 20
BUDGETS: Final = 1_000
WIDE_BUDGETS: Final = 20
BARS_MS: Final = {
    "first": 200.0,
    "first step": 50.0,
    "budgets": 50.0,
    "wide": 50.0,
    "count": 50.0,
    "next": 3.0,
    "impossible": 2.0,
    "step": 50.0,
}
RELATED: Final = 5
"""Attempts of related pods."""
EXISTS: Final = {"key": "number", "operator": "Exists"}
TERMS: Final = [
    {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchExpressions": [EXISTS, {"key": f"k{number}", "operator": "DoesNotExist"}]},
    }
    for number in range(10)
]
RELATIONS: Final[dict[str, Any]] = {
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}},
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchExpressions": [EXISTS]},
        }
    ],
}
"""What a related pod adds to its spec."""


class Full:
    """A cluster on which a pod of 15 CPUs finds no room, and small ones do."""

    def __init__(self, nodes: int, per_node: int, priority: int) -> None:
        self._decoder = Decoder()
        self.clock = StepClock(time.process_time)
        self.core = Core("default", nodes, self._decoder, pods_before=0, budget=self.clock)
        self._made = 0
        self.standing: list[Pod] = []
        for index in range(nodes):
            cpu_milli = (16, 32, 64)[index % 3] * 1_000 - 2_000 - per_node * CPU_MILLI
            self._stand(f"node-{index:06}", cpu_milli, priority)
        for index in range(nodes * (per_node - 1)):
            self._stand(f"node-{index % nodes:06}", CPU_MILLI, priority)
        disable_gc()

    def _stand(self, node: str, cpu_milli: int, priority: int) -> None:
        found = self._pod(cpu_milli, priority)
        found["spec"]["nodeName"], found["status"] = node, {"phase": "Running"}
        self.standing.append(self._decoder.pod(orjson.dumps(found)))
        self.core.cache.place(self.standing[-1])

    def _pod(self, cpu_milli: int, priority: int) -> dict[str, Any]:
        self._made += 1
        found: dict[str, Any] = pod(f"pod-{self._made:06}", "forecast-scheduler")
        found["metadata"] |= {"namespace": "bench", "uid": f"p-{self._made}", "labels": {"number": str(self._made)}}
        found["spec"]["priority"] = priority
        found["spec"]["containers"][0]["resources"] = {"requests": {"cpu": f"{cpu_milli}m"}}
        return found

    def attempt_ms(self, cpu_milli: int, priority: int, *, preempts: bool) -> float:
        """CPU time of one attempt that finds no room."""
        return sum(self.steps_ms(cpu_milli, priority, preempts=preempts))

    def steps_ms(
        self, cpu_milli: int, priority: int, *, preempts: bool, spec: Mapping[str, object] | None = None
    ) -> list[float]:
        """CPU time of each step of such an attempt. `spec`: what the pod adds to its spec."""
        document = self._pod(cpu_milli, priority)
        document["spec"].update(spec or {})
        self.core.queue.add(self._decoder.pod(orjson.dumps(document)), 0.0)
        entry = pop_pod(self.core.queue, 1.0)
        assert entry is not None
        running, steps, result = self.core.cycle.attempt(entry), list[float](), None
        while result is None:
            self.clock.begin()
            began = time.process_time()
            try:
                next(running)
            except StopIteration as ended:
                result = ended.value
            steps.append((time.process_time() - began) * 1e3)
        self.core.queue.done(entry.pod.uid)
        assert isinstance(result, Unplaced)
        assert bool(result.victims) is preempts, result.message
        return steps

    def count_ms(self) -> float:
        """CPU time of one count of the standing pods."""
        began = time.process_time()
        every = PodQuery((PodScope(LabelSelector((Requirement("number", Operator.EXISTS),)), frozenset({"bench"})),))
        assert self.core.cache.nodes.pod_counts.matching(every).total == len(self.standing)
        return (time.process_time() - began) * 1e3

    def set_budgets(self, selectors: Sequence[Mapping[str, Any]]) -> None:
        kind = ObjectKind.POD_DISRUPTION_BUDGET
        for number, selector in enumerate(selectors):
            metadata = {"name": f"b{number}", "namespace": "bench", "uid": f"b{number}", "resourceVersion": "1"}
            spec = {"selector": selector}
            document = orjson.dumps({"metadata": metadata, "spec": spec, "status": {"disruptionsAllowed": 0}})
            self.core.cache.objects.set(kind, kind.definition.decode(msgspec.Raw(document)))

    def place(self, count: int) -> None:
        for _ in range(count):
            self.core.queue.add(self._decoder.pod(orjson.dumps(self._pod(10, 0))), 0.0)
        assert self.core.decide(count) == count


def measure(nodes: int, per_node: int) -> dict[str, list[float]]:
    low, equal = Full(nodes, per_node, priority=0), Full(nodes, per_node, priority=100)
    count_ms = low.count_ms()
    steps = low.steps_ms(10_000, 100, preempts=True)
    protected, covered = (Full(nodes, per_node, priority=0) for _ in range(2))
    protected.set_budgets([{"matchLabels": {"number": str(number)}} for number in range(BUDGETS)])
    absent = [{"key": f"k{number}", "operator": "DoesNotExist"} for number in range(WIDE_BUDGETS)]
    covered.set_budgets([{"matchExpressions": [EXISTS, one]} for one in absent])
    found: dict[str, list[float]] = {
        "first": [sum(steps)],
        "first step": [max(steps)],
        "budgets": [max(protected.steps_ms(10_000, 100, preempts=True))],
        "wide": [max(covered.steps_ms(10_000, 100, preempts=True))],
        "count": [count_ms],
        "next": [],
        "impossible": [],
    }
    for _ in range(ATTEMPTS):
        low.core.cache.remove(low.standing.pop().uid)
        low.place(1)
        found["next"].append(low.attempt_ms(10_000, 100, preempts=True))
    equal.attempt_ms(10_000, 100, preempts=False)
    for _ in range(ATTEMPTS):
        equal.place(PLACED_BETWEEN)
        # Nobody of lower priority was there before: those just placed are small, and do not make the room.
        found["impossible"].append(equal.attempt_ms(10_000, 0, preempts=False))
    few = Full(nodes // 10, per_node, priority=0)
    attempts = [few.steps_ms(10_000, 100, preempts=True, spec=RELATIONS) for _ in range(RELATED)]
    return found | {"related": [sum(steps) for steps in attempts], "step": [max(steps) for steps in attempts]}


def missed(found: dict[str, list[float]]) -> list[str]:
    """The bars that were not reached, each as a sentence."""
    return [
        f"{kind}: {median(times):.2f} ms, the bar is {BARS_MS[kind]} ms"
        for kind, times in found.items()
        if median(times) > BARS_MS.get(kind, math.inf)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 if a bar is missed and --check was given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--per-node", type=int, default=20, help="pods on each node")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args(arguments)
    found = measure(options.nodes, options.per_node)
    for kind, times in found.items():
        print(f"{kind:>11} {median(times):>8.2f} ms, worst {max(times):>8.2f}")
    problems = missed(found)
    for problem in problems:
        print(f"MISSED {problem}")
    return 1 if problems and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
