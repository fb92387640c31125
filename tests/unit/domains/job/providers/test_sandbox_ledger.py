"""SandboxLedger: tokens and quota of units, and that a rebuilt ledger equals the kept one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from domains.job.providers.sandbox_ledger import OUTCOME_MAX_S, SandboxLedger
from domains.job.providers.settings import provider_settings
from multisched.framework.ledger import rebuild
from multisched.model.pod_outcome import PodOutcome
from multisched.testing.builders import make_node, make_pod

ARGS = {
    "units": [
        {
            "name": "eci",
            "nodeSelector": {"type": "virtual-kubelet"},
            "rate": {"burst": 20, "perSecond": 4},
            "quota": {"pods": 12, "cpu": "6"},
            "roundTo": {"cpu": "500m", "memory": "1Gi"},
        },
        {"name": "other", "nodeSelector": {"type": "other"}},
    ]
}
LABELS = {0: {"type": "virtual-kubelet"}, 1: {"type": "virtual-kubelet"}, 2: {}, 3: {"type": "other"}}


def ledger() -> SandboxLedger:
    return SandboxLedger(provider_settings(ARGS), frozenset({"default-scheduler", "job-scheduler"}))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("take", "bound", "runs", "throttled", "fails", "gone", "relabel", "later")),
            st.integers(0, 15),
            st.integers(0, 3),
        ),
        max_size=60,
    )
)
def test_kept_ledger_equals_a_rebuilt_one_and_never_passes_a_quota(events: list[tuple[str, int, int]]) -> None:
    kept, labels = ledger(), {row: row for row in range(4)}
    nodes = {row: make_node(f"n{row}", labels=LABELS[row]) for row in range(4)}
    for row, made in nodes.items():
        kept.set_node(row, made)
    spec = make_pod("p").spec
    pods = {n: make_pod(f"p{n}", spec=replace(spec, requests={"cpu": 100 * n + 100})) for n in range(16)}
    rows: dict[str, int] = {}
    for what, number, row in events:
        pod = pods[number]
        if what == "take" and pod.uid not in rows and not kept.fits(pod, row):
            kept.take(pod, row)
            rows[pod.uid] = row
        elif what == "gone" and rows.pop(pod.uid, None) is not None:
            kept.release(pod.uid)
        elif what == "relabel":
            labels[row] = number % 4
            nodes[row] = make_node(f"n{row}", labels=LABELS[labels[row]])
            kept.set_node(row, nodes[row])
        elif what == "later":
            kept.now_s += 0.5 * number
            kept.expire()
        elif pod.uid in rows and what == "bound":
            kept.bound(pod.uid)
        elif pod.uid in rows:
            phase = "Running" if what == "runs" else "Pending"
            reason = "" if what == "runs" else "ProviderFailed"
            message = "Throttling" if what == "throttled" else "503"
            kept.learn(PodOutcome(replace(pod, phase=phase, node=f"n{row}"), reason, message))
        fresh = rebuild(kept, nodes.items(), [(pods[n], rows[pods[n].uid]) for n in pods if pods[n].uid in rows])
        assert fresh.held() == kept.held()
        assert isinstance(fresh, SandboxLedger)
        assert [+unit.used for unit in fresh.units] == [+unit.used for unit in kept.units]
        if what == "take":
            assert kept.units[0].used["pods"] <= 12
            assert kept.units[0].used["cpu"] <= 6000


def test_token_of_a_pod_that_is_not_bound_is_given_back() -> None:
    kept = ledger()
    kept.set_node(0, make_node("n", labels=LABELS[0]))
    pod, rate = make_pod("p"), kept.units[0].rate
    before = rate.available(0.0)
    kept.take(pod, 0)
    assert rate.available(0.0) == before - 1
    kept.release(pod.uid)
    assert rate.available(0.0) == before
    assert not kept.ended


def test_outcome_that_comes_after_the_pod_is_gone_counts() -> None:
    kept = ledger()
    kept.set_node(0, make_node("n", labels=LABELS[0]))
    pods = [make_pod(f"p{number}") for number in range(3)]
    for pod in pods:
        kept.take(pod, 0)
        kept.bound(pod.uid)
        kept.release(pod.uid)
    for pod in pods[:2]:
        kept.learn(PodOutcome(replace(pod, node="n", phase="Failed"), "ProviderFailed", "Throttling"))
    assert kept.units[0].rate.throttled == 2
    kept.now_s = OUTCOME_MAX_S
    kept.expire()
    assert not kept.ended
    assert kept.units[0].failed == 2
