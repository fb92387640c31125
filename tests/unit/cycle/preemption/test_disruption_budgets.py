"""Violated PodDisruptionBudgets of many rows at once, against a pod-by-pod count; and how many of them are read one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.model.selectors import LabelSelector, Operator, Requirement
from multisched.plugins import disruption_budgets
from multisched.plugins.disruption_budgets import DisruptionBudgets
from multisched.state.cluster_cache import ClusterCache
from multisched.state.pods_by_priority import PodColumns
from multisched.testing.builders import make_node, make_pod

NODES: Final = ("n0", "n1", "n2")
SELECTORS: Final = (
    LabelSelector((Requirement("app", Operator.IN, ("web",)),)),
    LabelSelector((Requirement("app", Operator.EXISTS),)),
    LabelSelector((Requirement("app", Operator.NOT_IN, ("web",)),)),
)

budgets = st.builds(
    lambda namespace, selector, allowed, disrupted: (namespace, selector, allowed, frozenset(disrupted)),
    st.sampled_from(("default", "other")),
    st.sampled_from(SELECTORS),
    st.integers(-1, 2),
    st.sets(st.sampled_from([f"p{number}" for number in range(8)]), max_size=2),
)
pods = st.builds(
    lambda namespace, app, node, priority: (namespace, app, node, priority),
    st.sampled_from(("default", "other")),
    st.sampled_from(("web", "db", None)),
    st.sampled_from(NODES),
    st.integers(0, 3),
)


def set_budgets(cache: ClusterCache, drawn: Sequence[tuple[str, LabelSelector, int, frozenset[str]]]) -> None:
    for number, (namespace, selector, allowed, disrupted) in enumerate(drawn):
        one = PodDisruptionBudget(
            name=f"b{number}",
            namespace=namespace,
            selector=selector,
            disruptions_allowed=allowed,
            disrupted_pods=disrupted,
        )
        cache.objects.set(ObjectKind.POD_DISRUPTION_BUDGET, one)


def violating_by_pod(cache: ClusterCache, victims: Sequence[Pod]) -> set[str]:
    """Source: kube-scheduler 1.36, plugins/defaultpreemption, filterPodsWithPDBViolation."""
    taken, found = Counter[str](), set[str]()
    for pod in victims:
        for one in cache.objects.disruption_budgets(pod.namespace):
            assert one.selector is not None
            if pod.labels and one.selector.matches(pod.labels) and pod.name not in one.disrupted_pods:
                taken[one.key] += 1
                if taken[one.key] > one.disruptions_allowed:
                    found.add(pod.uid)
    return found


def violating_at_once(found: DisruptionBudgets, columns: PodColumns, victims: np.ndarray) -> set[str]:
    ks, rows = np.nonzero(found.violating(columns, victims))
    return {columns.pod(*at).uid for at in zip(ks.tolist(), rows.tolist(), strict=True)}


@pytest.mark.parametrize("many", [0, 256])
@given(st.lists(pods, min_size=1, max_size=12), st.lists(budgets, max_size=4), st.integers(1, 3))
def test_violations_equal_a_count_pod_by_pod(
    many: int,
    placed: list[tuple[str, str | None, str, int]],
    drawn: list[tuple[str, LabelSelector, int, frozenset[str]]],
    below: int,
) -> None:
    cache = ClusterCache()
    for name in NODES:
        cache.set_node(make_node(name))
    for number, (namespace, app, node, priority) in enumerate(placed):
        labels = {} if app is None else {"app": app}
        pod = make_pod(
            f"p{number % 8}",
            namespace=namespace,
            uid=f"u{number}",
            node=node,
            priority=priority,
            labels=labels,
            started_s=1.0 + number,
        )
        cache.place(pod)
    set_budgets(cache, drawn)
    columns = cache.pods_by_priority.blocks(np.arange(len(NODES)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disruption_budgets, "MANY", many)
        found, wanted = set[str](), set[str]()
        for some in columns:
            found |= violating_at_once(DisruptionBudgets(cache.objects), some, some.priority < below)
            for i in range(len(some.rows)):
                wanted |= violating_by_pod(cache, [pod for pod in some.order(i) if pod.spec.priority < below])
    assert found == wanted


class CountedPods:
    """`PlacedPods` that count the pods read one by one."""

    def __init__(self, columns: PodColumns) -> None:
        self._columns = columns
        self.rows, self.priority, self.started_s = columns.rows, columns.priority, columns.started_s
        self.label_set, self.label_sets, self.pause = columns.label_set, columns.label_sets, columns.pause
        self.reads = 0

    def pod(self, k: int, i: int) -> Pod:
        self.reads += 1
        return self._columns.pod(k, i)


def test_budgets_that_select_all_pods_read_each_pod_once() -> None:
    """Twenty budgets of 100,000 pods took a tenth of a second of one step, and two seconds with a pod that is disrupted."""
    cache, count = ClusterCache(), 400
    cache.set_node(make_node("n0", pods=count))
    for number in range(count):
        cache.place(make_pod(f"p{number}", node="n0", labels={"app": str(number)}))
    set_budgets(cache, [("default", SELECTORS[1], number, frozenset({f"p{number}"})) for number in range(20)])
    (columns,) = cache.pods_by_priority.blocks(np.arange(1))
    counted = CountedPods(columns)
    violating = DisruptionBudgets(cache.objects).violating(counted, np.ones_like(columns.priority, np.bool_))
    assert np.count_nonzero(violating) == count - 1
    assert counted.reads <= count
