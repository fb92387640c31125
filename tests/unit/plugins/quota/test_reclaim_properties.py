"""Reclaiming over random trees, pods and arrivals: never over a max, never back and forth, nobody entitled waits for a borrower,
and nobody goes in vain."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from msgspec.structs import replace

from multisched.cycle.results import Placed, Unplaced
from multisched.model.objects import Pod
from multisched.plugins.quota.quota_ledger import QUOTA
from tests.unit.plugins.quota.plain_rules import NOBODY, Plain, sets_of
from tests.unit.plugins.quota.quota_cluster import QuotaCluster
from tests.unit.plugins.quota.stories import Story, arrives, opened, played, stories


@given(stories())
def test_histories_end_and_no_level_exceeds_its_max(story: Story) -> None:
    assert played(story).settle() == 0


@given(stories(has_guarantees=False))
def test_entitled_pod_does_not_wait_while_borrowers_could_be_evicted(story: Story) -> None:
    cluster = played(story)
    plain = Plain(cluster)
    for pod in cluster.pending.values():
        assert not plain.nodes_for(pod), f"{pod.name} fits and waits"
        for gone in plain.ways(pod):
            assert not plain.nodes_for(pod, gone), f"{set(gone)} could make room for {pod.name}"


def reclaims(story: Story) -> Iterator[tuple[QuotaCluster, Plain, Pod, Unplaced]]:
    """Each reclaim that the story comes to, before it is carried out, while nobody else is nominated."""
    cluster = opened(story)
    for number, one in enumerate(story.arrivals):
        arrives(cluster, number, one)
        for _ in range(3):
            for pod in list(cluster.pending.values()):
                if pod.uid not in cluster.pending:
                    continue
                plain = Plain(cluster)
                result = cluster.domain.schedule(pod)
                if isinstance(result, Placed):
                    cluster.domain.cache.forget(pod.uid)
                elif isinstance(result, Unplaced) and result.victims and not len(cluster.domain.nominator):
                    yield cluster, plain, pod, result
                cluster.attempt(pod)


@given(stories())
def test_victims_are_evictable_sufficient_and_minimal(story: Story) -> None:
    for _, plain, pod, result in reclaims(story):
        gone = frozenset(one.uid for one in result.victims)
        assert plain.may_all_go(gone, pod)
        assert result.nominated_node in plain.nodes_for(pod, gone)
        for fewer in (NOBODY, *sets_of(result.victims)):
            if fewer < gone:
                assert result.nominated_node not in plain.nodes_for(pod, fewer), f"{gone - fewer} go in vain"
        assert result.preemption is not None
        assert result.preemption.plugin == QUOTA


@given(stories())
def test_evicted_pods_may_not_reclaim_from_another_quota(story: Story) -> None:
    for cluster, plain, pod, result in reclaims(story):
        victims = [one for one in result.victims if one.namespace != pod.namespace]
        if not victims:
            continue
        for one in result.victims:
            cluster.domain.cache.remove(one.uid)
        placed = cluster.domain.schedule(pod)
        assert isinstance(placed, Placed), "the room was made for it"
        after = Plain(cluster)
        assert [after.entitled(one) for one in victims] == [0] * len(victims)
        for one in victims:
            back = cluster.domain.schedule(one)
            if isinstance(back, Placed):
                cluster.domain.cache.forget(one.uid)
            else:
                assert isinstance(back, Unplaced)
                assert all(other.namespace == one.namespace for other in back.victims)
        cluster.domain.cache.forget(pod.uid)
        for one in result.victims:
            cluster.domain.cache.place(plain.standing[one.uid])


@given(stories())
def test_claim_evicts_no_more_while_its_victims_are_deleting(story: Story) -> None:
    for cluster, _, pod, result in reclaims(story):
        going = [cluster.domain.cache.placed(one.uid) for one in result.victims]
        for entry in going:
            assert entry is not None
            cluster.domain.cache.place(replace(entry.pod, is_deleting=True))
        cluster.domain.nominator.nominate(pod, result.nominated_node or "")
        again = cluster.domain.schedule(pod)
        assert isinstance(again, Unplaced)
        assert again.nominated_node == result.nominated_node
        assert all(one.is_deleting for one in again.victims)
        return
