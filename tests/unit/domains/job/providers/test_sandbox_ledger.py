"""SandboxLedger: tokens and quota of units, and that a rebuilt ledger equals the kept one."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from domains.job.providers.breaker import FAILURES_TO_OPEN, PROBE_FIRST_S, PROBE_S, BreakerState
from domains.job.providers.sandbox_ledger import OUTCOME_MAX_S, SPARED_S, Cause, SandboxLedger
from domains.job.providers.settings import provider_settings
from multisched.framework.ledger import rebuild
from multisched.model.objects import Owner, Pod
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


def of_owner(name: str, owner: str) -> Pod:
    return make_pod(name, owner=Owner(uid=owner, kind="Job", name=owner))


def fail(kept: SandboxLedger, pod: Pod) -> None:
    kept.take(pod, 0)
    kept.bound(pod.uid)
    kept.learn(PodOutcome(replace(pod, node="n"), "ProviderFailed", "503"))


def in_outage(owner: str) -> SandboxLedger:
    """Returns a ledger whose breaker was opened by pods of this owner, at the time of the first probe."""
    kept = ledger()
    kept.set_node(0, make_node("n", labels=LABELS[0]))
    for number in range(FAILURES_TO_OPEN):
        fail(kept, of_owner(f"failed-{number}", owner))
    assert kept.units[0].breaker.state is BreakerState.OPEN
    later(kept, PROBE_FIRST_S)
    return kept


def later(kept: SandboxLedger, seconds: float) -> None:
    kept.now_s += seconds
    kept.expire()


def cause(kept: SandboxLedger, pod: Pod) -> Cause | None:
    return kept.cause_of(kept.units[0], pod)


def test_probe_is_no_pod_of_an_owner_that_has_just_lost_one() -> None:
    kept = in_outage("unlucky")
    unit = kept.units[0]
    assert cause(kept, of_owner("again", "unlucky")) is Cause.BREAKER
    assert cause(kept, of_owner("other", "other")) is None
    unit.is_wanted = False
    later(kept, SPARED_S - PROBE_FIRST_S)
    assert unit.is_wanted, "its pods are tried again when they may be the probe"
    assert cause(kept, of_owner("again", "unlucky")) is None


def test_replacement_of_an_evicted_pod_has_time_to_find_another_node() -> None:
    kept = in_outage("other")
    kept.units[0].spare("evicted", math.inf)
    later(kept, 100.0)  # its controller creates the replacement late
    replacement = of_owner("replacement", "evicted")
    assert cause(kept, replacement) is Cause.BREAKER
    later(kept, SPARED_S - 0.1)
    assert cause(kept, replacement) is Cause.BREAKER
    later(kept, 0.1)
    assert cause(kept, replacement) is None, "it may be the only one that needs the unit"


def test_owner_without_a_choice_probes_as_often_as_others() -> None:
    kept, probes_s = in_outage("only"), []
    for number in range(1_000):
        pod = of_owner(f"probe-{number}", "only")
        if cause(kept, pod) is None:
            probes_s.append(kept.now_s)
            fail(kept, pod)
        later(kept, 0.25)
    gaps_s = {later_s - one_s for one_s, later_s in pairwise(probes_s)}
    assert gaps_s == {PROBE_S}


def test_started_sandbox_ends_the_sparing() -> None:
    kept = in_outage("unlucky")
    probe = of_owner("probe", "other")
    kept.take(probe, 0)
    kept.bound(probe.uid)
    kept.learn(PodOutcome(replace(probe, node="n", phase="Running"), "", ""))
    assert kept.units[0].breaker.state is BreakerState.CLOSED
    assert not kept.units[0].spared


def test_paces_have_rates_quotas_and_breakers() -> None:
    kept = ledger()
    for row, labels in LABELS.items():
        kept.set_node(row, make_node(f"n{row}", labels=labels))
    rows = np.arange(4)
    kept.take(make_pod("p", spec=replace(make_pod("p").spec, requests={"cpu": 100})), 0)
    own, (eci, other) = kept.paced(rows)
    assert (own.tolist(), eci.rows.tolist(), other.rows.tolist()) == ([2], [0, 1], [3])
    assert (eci.tokens, eci.per_second) == (18, 4.0)
    assert (eci.pods, eci.cpu_milli, eci.memory_bytes) == (11, 5_500, math.inf), "rounded up to 500m"
    for number in range(FAILURES_TO_OPEN):
        fail(kept, of_owner(f"failed-{number}", "job"))
    _, (eci, _) = kept.paced(rows)
    assert (eci.tokens, eci.per_second) == (0, 0)
    assert kept.paced(rows[2:3])[1] == []


def test_few_pods_are_accepted_until_some_have_not_failed() -> None:
    kept = ledger()
    kept.set_node(0, make_node("n", labels=LABELS[0]))
    later(kept, 0.0)
    pods = [make_pod(f"p{number}") for number in range(FAILURES_TO_OPEN + 1)]
    for pod in pods[:-1]:
        assert not kept.fits(pod, 0)
        kept.take(pod, 0)
        kept.bound(pod.uid)
    assert cause(kept, pods[-1]) is Cause.START
    assert kept.units[0].is_wanted
    later(kept, 2.0)
    assert cause(kept, pods[-1]) is None


def test_place_in_a_quota_is_none_for_pods_that_are_requeued_as_time_passes() -> None:
    kept = ledger()
    kept.set_node(0, make_node("n", labels=LABELS[0]))
    later(kept, 0.0)
    pod = make_pod("waits")
    assert kept.has_place(pod)
    for number in range(FAILURES_TO_OPEN):
        kept.take(make_pod(f"p{number}"), 0)
        kept.bound(f"uid-p{number}")
    assert not kept.has_place(pod)
    assert kept.units[0].is_wanted, "only time keeps pods from the place"
    later(kept, 2.0)
    assert not kept.has_place(pod), "the background task requeues pods for it"
    kept.units[0].is_wanted = False
    assert kept.has_place(pod)
    kept.take(make_pod("large", spec=replace(pod.spec, requests={"cpu": 6_000})), 0)
    assert not kept.has_place(pod)
    assert not kept.units[0].is_wanted, "another pod has to end"
