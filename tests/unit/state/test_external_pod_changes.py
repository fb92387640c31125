"""News of pods against a plain log: what came after a moment, and from when on that is no longer known."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from multisched.model.objects import Pod, PodSpec
from multisched.model.placement import PodAffinity, PodAffinityTerm
from multisched.state import external_pod_changes
from multisched.state.cluster_cache import ClusterCache
from multisched.state.external_pod_changes import CHANGES_BYTES_MAX, CHANGES_MAX, ExternalPodChanges
from multisched.testing.builders import make_node
from tests.unit.state.state_kit import make_pod, make_spec

TERM = PodAffinityTerm("kubernetes.io/hostname", None)
PLAIN, AWAY = PodSpec(), PodSpec(pod_affinity=PodAffinity(anti_required=(TERM,)))
NEAR = PodSpec(pod_affinity=PodAffinity(required=(TERM,)))
LARGE = PodSpec(size_bytes=CHANGES_BYTES_MAX // 3)
SPECS = (PLAIN, AWAY, NEAR, LARGE)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("log_added", "log_removed")), st.integers(0, 3)),
        st.tuples(
            st.just("moved"), st.sampled_from((0, 1, 3, CHANGES_MAX // 2, CHANGES_MAX // 2 + 1)), st.integers(0, 1)
        ),
        st.tuples(st.just("lose")),
    ),
    max_size=12,
)


@given(steps)
def test_since_returns_all_changes_or_none_if_some_were_dropped(story: list[tuple[Any, ...]]) -> None:
    changes, log, demanding, lost_until = ExternalPodChanges(), list[Pod | None](), 0, 0
    for number, step in enumerate(story):
        match step:
            case ("log_added" | "log_removed" as what, spec):
                pod = make_pod(f"p{number}", SPECS[spec])
                getattr(changes, what)(pod)
                log.append(pod)
                if what == "log_added" and spec == 1:
                    demanding = len(log)
            case ("moved", count, spec):
                pods = [make_pod(f"p{number}-{at}", SPECS[spec]) for at in range(count)]
                changes.log_moved(pods, count)
                if count > CHANGES_MAX // 2:
                    log.append(None)
                    demanding = lost_until = len(log)
                else:
                    log.extend(pods)
                    demanding = len(log) if spec == 1 and count else demanding
            case ("lose",):
                changes.log_unknown()
                log.append(None)
                demanding = lost_until = len(log)
        assert (changes.end, changes.demanding) == (len(log), demanding)
        assert changes.since(changes.end) == []
        kept = [end for end in range(len(log) + 1) if changes.since(end) is not None]
        assert kept == list(range(kept[0], len(log) + 1)), "what is forgotten is forgotten from the oldest on"
        assert kept[0] >= lost_until
        for end in {kept[0], len(log) // 2, lost_until, max(0, len(log) - 1)}:
            found = changes.since(end)
            assert found is None or [pod.uid for pod in found] == [pod.uid for pod in log[end:] if pod is not None]
        assert len(log) - kept[0] <= CHANGES_MAX
        sizes = sum(pod.kept_bytes for pod in log[kept[0] :] if pod is not None)
        assert sizes <= CHANGES_BYTES_MAX
        is_small = sum(pod.kept_bytes for pod in log[lost_until:] if pod is not None) <= CHANGES_BYTES_MAX
        if is_small and len(log) - lost_until <= CHANGES_MAX:
            assert kept[0] == lost_until, "nothing is forgotten before it has to be"


def test_log_keeps_no_annotations() -> None:
    changes = ExternalPodChanges()
    changes.log_added(make_pod("p", annotations={"large": "x"}))
    (pod,) = changes.since(0) or ()
    assert not pod.annotations
    assert external_pod_changes.keeps_away(make_pod("q", AWAY))
    assert not external_pod_changes.keeps_away(make_pod("q", NEAR))


def test_row_counts_external_pod_changes() -> None:
    cache = ClusterCache()
    for name in ("a", "b"):
        cache.set_node(make_node(name))
    assert [cache.external_changes(row) for row in (0, 1, 7)] == [0, 0, 0]
    cache.place(make_pod("p", node="b"))
    cache.place(make_pod("p", make_spec(cpu=1), node="b"))
    assert (cache.external_changes(0), cache.external_changes(1) > 1) == (0, True)
    before = cache.external_changes(1)
    cache.assume(make_pod("ours"), 1)
    assert cache.external_changes(1) == before, "we brought that one ourselves"
