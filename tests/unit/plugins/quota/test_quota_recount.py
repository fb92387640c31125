"""Counts of many pods under another tree: they take several steps, between which pods come, go and change."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from multisched.model.objects import Pod
from multisched.model.quota_tree import GUARANTEE_ATTRIBUTE
from multisched.model.quotas.koordinator import POD_LABEL
from multisched.plugins.quota import quota_ledger
from multisched.plugins.quota.quota_ledger import QuotaLedger
from multisched.state.cluster_cache import PlacedPod, PodState
from multisched.testing.builders import make_pod
from tests.unit.model.quotas.quota_documents import Json, linked
from tests.unit.plugins.quota.test_quota_source import Desk
from tests.unit.plugins.quota.trees import leaf, node

NAMESPACES = ("both", "leaves", "joins", "none")
"""With a leaf in both trees, in the first only, in the second only, and in none."""
AT_ONCE = 5


def tree(*leaves: Json) -> Json:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1beta1",
        "kind": "ElasticQuotaTree",
        "metadata": {"name": "tree", "namespace": "kube-system", "uid": "tree"},
        "spec": {"root": node("root", {"cpu": 100}, {"cpu": 100}, *leaves)},
    }


KEPT = {GUARANTEE_ATTRIBUTE: "cpu=5"}
FIRST = (tree(leaf("both", 1, 30), leaf("leaves", 1, 30)),)
SECOND = (tree(node("group", {"cpu": 9}, {"cpu": 20}, leaf("both", 1, 20), leaf("joins", 8, 20, attributes=KEPT))),)
NAMED = tuple(linked(name, 1, 40, namespaces=["both", "joins"]) for name in ("a", "b"))
"""Quotas that pods name by a label."""


class Cluster:
    """Placed pods, and a ledger over them that counts AT_ONCE pods in a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *quotas: Json) -> None:
        monkeypatch.setattr(quota_ledger, "PODS_AT_ONCE", AT_ONCE)
        self.desk = Desk()
        self.placed: dict[str, PlacedPod] = {}
        self.ledger = QuotaLedger(self.desk.source, self._pods, find=self.placed.get)
        self.counted = 0
        """Number of trees that have come into force after several steps."""
        self.ledger.on_counted = self._count
        self._made = 0
        self.desk.apply(*quotas)
        self.ledger.renew()

    def _pods(self) -> Iterable[Pod]:
        return [entry.pod for entry in self.placed.values()]

    def _count(self) -> None:
        self.counted += 1

    def place(self, pod: Pod) -> None:
        """A new pod, or another version of one; as `LedgerRegistry.restore`."""
        self.placed[pod.uid] = PlacedPod(pod, "n", 0, PodState.CONFIRMED)
        if self.ledger.is_used_by(pod):
            self.ledger.restore(pod)
        else:
            self.ledger.release(pod.uid)

    def delete(self, uid: str) -> None:
        del self.placed[uid]
        self.ledger.release(uid)

    def assume(self, pod: Pod) -> bool:
        """As a commit: assumes the pod if the ledger admits it."""
        is_used = self.ledger.is_used_by(pod)
        if is_used and self.ledger.fits(pod):
            return False
        if is_used:
            self.ledger.take(pod)
        self.placed[pod.uid] = PlacedPod(pod, "n", 0, PodState.CONFIRMED)
        return True

    def pod(self, rng: random.Random) -> Pod:
        self._made += 1
        pod = make_pod(f"p{self._made}", namespace=rng.choice(NAMESPACES), cpu_milli=rng.randint(1, 3) * 1000)
        return replace(pod, labels={POD_LABEL: rng.choice("ab")}, is_deleting=rng.random() < 0.2)

    def change(self, rng: random.Random) -> None:
        """One pod comes, goes, is resized or begins to terminate."""
        some = rng.choice(list(self.placed.values())).pod
        rng.choice((
            lambda: self.assume(replace(self.pod(rng), is_deleting=False)),
            lambda: self.place(self.pod(rng)),
            lambda: self.delete(some.uid),
            lambda: self.place(replace(some, spec=self.pod(rng).spec)),
            lambda: self.place(replace(some, is_deleting=True)),
        ))()  # fmt: skip

    def check(self) -> None:
        """The ledger is as if all pods were counted now, under the tree that it has."""
        fresh = self.ledger.empty_copy()
        for entry in self.placed.values():
            if fresh.is_used_by(entry.pod):
                fresh.restore(entry.pod)
        assert self.ledger.sums() == fresh.sums()
        assert self.ledger.held() == fresh.held()
        assert set(self.ledger.terminating) == set(fresh.terminating)
        for level, wanted in zip(self.ledger.levels, fresh.levels, strict=True):
            assert {name: level.used_and_reserved(name) for name in ("cpu", "pods")} == {
                name: wanted.used_and_reserved(name) for name in ("cpu", "pods")
            }

    def paths(self) -> set[str]:
        return {level.path for level in self.ledger.levels}


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize(("before", "after"), [(FIRST, SECOND), ((), SECOND), ((), NAMED)])
def test_pods_that_change_during_a_count_count_once(
    before: tuple[Json, ...], after: tuple[Json, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, cluster = random.Random(seed), Cluster(monkeypatch, *before)
    for _ in range(40):
        cluster.place(cluster.pod(rng))
    known, generation = cluster.paths(), cluster.ledger.generation
    cluster.desk.apply(*after)
    steps = 1
    while cluster.ledger.catch_up():
        steps += 1
        assert (cluster.paths(), cluster.ledger.generation) == (known, generation), "the previous tree stays in force"
        for _ in range(rng.randint(0, 3)):
            cluster.change(rng)
            cluster.check()
    assert (steps, cluster.counted) == (40 // AT_ONCE, 1)
    assert cluster.paths() != known
    for _ in range(10):
        cluster.check()
        cluster.change(rng)


def test_previous_max_holds_until_all_pods_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, tree(leaf("both", 0, 21)))
    for number in range(20):
        assert cluster.assume(make_pod(f"p{number}", namespace="both", cpu_milli=1000))
    cluster.desk.apply(tree(leaf("both", 0, 40)))
    assert cluster.ledger.catch_up()
    assert cluster.assume(make_pod("last", namespace="both", cpu_milli=1000))
    assert "21 used, 1 requested, max 21" in cluster.ledger.fits(make_pod("over", namespace="both", cpu_milli=1000))
    while cluster.ledger.catch_up():
        pass
    assert cluster.ledger.fits(make_pod("over", namespace="both", cpu_milli=19_000)) == ""
    assert "21 used, 20 requested, max 40" in cluster.ledger.fits(make_pod("o", namespace="both", cpu_milli=20_000))


def test_edit_during_a_count_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, tree(leaf("both", 0, 20)))
    for number in range(2 * AT_ONCE):
        cluster.place(make_pod(f"p{number}", namespace="both", cpu_milli=1000))
    maxima = [cluster.ledger.levels[1].max["cpu"]]
    for most in (30, 40):
        cluster.desk.apply(tree(leaf("both", 0, most)))
        assert cluster.ledger.catch_up()
    while cluster.ledger.catch_up():
        maxima.append(cluster.ledger.levels[1].max["cpu"])
    maxima.append(cluster.ledger.levels[1].max["cpu"])
    assert list(dict.fromkeys(maxima)) == [20_000, 30_000, 40_000]
    cluster.check()


def test_few_pods_are_counted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, *FIRST)
    for number in range(AT_ONCE):
        cluster.place(make_pod(f"p{number}", namespace="joins", cpu_milli=1000))
    cluster.desk.apply(*SECOND)
    assert cluster.ledger.levels_of(make_pod("p", namespace="joins"))
    assert not cluster.ledger.catch_up()
    assert cluster.counted == 0, "the event of the object already woke the pods"
    cluster.check()
