"""How an explanation reads."""

from __future__ import annotations

import msgspec
import pytest

from multisched.observe.explain_view import (
    Attempt,
    Fix,
    OnNode,
    Part,
    Placement,
    PluginRefusal,
    PodView,
    PointResult,
    Scored,
    Step,
    Wake,
    WhatIfView,
)
from multisched.observe.explain_words import ago, pod_text, what_if_text

REFUSED = Attempt(
    number=3,
    ago_s=12.0,
    outcome="refused",
    message="0/4 nodes are available: 1 node(s) were unschedulable, 3 Insufficient cpu.",
    snapshot="own",
    domain_nodes=5,
    looked_at=4,
    feasible=0,
    points=(PointResult(point="Filter", plugin="NodeResourcesFit", said="refuses 3 of 4 nodes"),),
    refused=(
        PluginRefusal(plugin="NodeUnschedulable", code="Unschedulable", reasons=("cordoned",), count=1, nodes=("n4",)),
        PluginRefusal(
            plugin="NodeResourcesFit",
            code="Unschedulable",
            reasons=("Insufficient cpu",),
            count=3,
            nodes=("n1", "n2"),
            is_for_nominated=True,
        ),
    ),
)
WAITING = PodView(
    namespace="team",
    name="big",
    uid="u",
    scheduler="job-scheduler",
    domain="job",
    state="unschedulable",
    waiting_for="an event that can help NodeResourcesFit",
    since_s=130.0,
    retry_in_s=170.0,
    attempts_made=3,
    wakes=(Wake(plugin="NodeResourcesFit", events=("a node comes", "a pod on a node goes")),),
    history=(Step(ago_s=12.0, event="ScheduleAttemptFailure", state="unschedulable"),),
    attempts=(REFUSED,),
)


def test_nominated_replica_shows_no_score() -> None:
    placement = Placement(replica=1, node="n1", victims=("team/low",))
    view = WhatIfView(namespace="team", name="new", domain="job", replicas=1, placements=(placement,))
    assert what_if_text(view).endswith("\n  1 replica on n1 (after these are preempted: team/low)")


def test_gated_pod_shows_no_retry() -> None:
    gated = msgspec.structs.replace(WAITING, state="gated")
    assert "Retried" in pod_text(WAITING)
    assert "Retried" not in pod_text(gated)


def test_text_of_a_pending_pod() -> None:
    assert pod_text(WAITING) == (
        "Pod team/big, scheduler job-scheduler, domain job\n"
        "Unschedulable since 2m, after 3 attempts\n"
        "It waits for: an event that can help NodeResourcesFit\n"
        "Retried in 2m at the latest\n"
        "\n"
        "Attempt 3, 12s ago: refused\n"
        "  0/4 nodes are available: 1 node(s) were unschedulable, 3 Insufficient cpu.\n"
        "  Filter      NodeResourcesFit: refuses 3 of 4 nodes\n"
        "  Nodes: 0 of 4 are feasible; PreFilter left out 1\n"
        "         1 NodeUnschedulable: cordoned (Unschedulable)  [n4]\n"
        "         3 NodeResourcesFit: Insufficient cpu counting the pods that are nominated to it (Unschedulable)"
        "  [n1, n2 and 1 more]\n"
        "\n"
        "In the queue\n"
        "     12s ago  ScheduleAttemptFailure → unschedulable\n"
        "\n"
        "Events that would requeue it\n"
        "  NodeResourcesFit: a node comes, a pod on a node goes"
    )


def test_text_of_a_placed_pod() -> None:
    winner = Scored(node="n1", total=290, parts=(Part(plugin="Fit", score=90, weight=1), _taints(100, 2)))
    other = Scored(node="n2", total=250, parts=(Part(plugin="Fit", score=50, weight=1), _taints(100, 2)))
    attempt = Attempt(
        number=1,
        ago_s=7200.0,
        outcome="placed",
        node="n1",
        snapshot="earlier",
        snapshot_ago_s=7230.0,
        looked_at=2,
        domain_nodes=2,
        feasible=2,
        winner=winner,
        runners_up=(other,),
        passed_over=("n9",),
    )
    view = PodView(
        namespace="team",
        name="p",
        uid="u",
        scheduler="s",
        domain="d",
        state="bound",
        waiting_for="",
        node="n1",
        attempts=(attempt,),
    )
    assert pod_text(view) == (
        "Pod team/p, scheduler s, domain d\n"
        "Bound on n1\n"
        "\n"
        "Attempt 1, 2h ago: placed on n1\n"
        "  Nodes (as evaluated for an identical pod 30s before): 2 of 2 are feasible\n"
        "  Chosen      n1  290 = Fit 90x1 + TaintToleration 100x2\n"
        "  At the time n2  250 = Fit 50x1 + TaintToleration 100x2\n"
        "  Passed over n9: no longer feasible when this pod was to be assumed there"
    )


def _taints(score: int, weight: int) -> Part:
    return Part(plugin="TaintToleration", score=score, weight=weight)


def test_node_query_omits_everything_else() -> None:
    answer = OnNode(node="n4", text="It is not feasible: cordoned.", plugins=())
    text = pod_text(msgspec.structs.replace(WAITING, on_node=answer))
    assert text.endswith("Why not n4\n  It is not feasible: cordoned.")
    assert "Attempt" not in text


def test_fixes_are_listed_with_the_target_node() -> None:
    fix = Fix(kind="node", text="uncordon node n4", size=0.7, node="n4", change={}, command="kubectl uncordon n4")
    assert pod_text(msgspec.structs.replace(WAITING, fixes=(fix,))).endswith(
        "The smallest fix: uncordon node n4; it is then placed on n4\n      kubectl uncordon n4"
    )
    other = Fix(kind="victim", text="delete pod p", size=1.0, node="n1", change={})
    assert pod_text(msgspec.structs.replace(WAITING, fixes=(fix, other))).endswith(
        "      kubectl uncordon n4\nAny one of these makes it fit, too\n  delete pod p; it is then placed on n1"
    )
    assert pod_text(msgspec.structs.replace(WAITING, fixes=())).endswith(
        "None of the tried single changes makes it fit"
    )


def test_trial_is_shown_if_it_differs_from_the_last_attempt() -> None:
    same = pod_text(msgspec.structs.replace(WAITING, now=msgspec.structs.replace(REFUSED, number=9)))
    assert "If it were tried now" not in same
    placed = Attempt(number=9, ago_s=0.0, outcome="placed", node="n1")
    assert "If it were tried now" in pod_text(msgspec.structs.replace(WAITING, now=placed))


def test_plugins_with_equal_messages_share_a_line() -> None:
    said = [PointResult(point="PreFilter", plugin=name, said="has nothing to check") for name in ("A", "B")]
    points = (*said, PointResult(point="PreFilter", plugin="C", said="passes"))
    text = pod_text(msgspec.structs.replace(WAITING, attempts=(msgspec.structs.replace(REFUSED, points=points),)))
    assert "  PreFilter   A, B: has nothing to check\n  PreFilter   C: passes\n" in text


def test_dropped_snapshot_is_reported_as_dropped() -> None:
    text = pod_text(msgspec.structs.replace(WAITING, attempts=(msgspec.structs.replace(REFUSED, snapshot="dropped"),)))
    assert "The results per node are no longer kept" in text


def test_foreign_names_cannot_inject_terminal_escapes() -> None:
    assert "\x1b" not in pod_text(msgspec.structs.replace(WAITING, waiting_for="\x1b[31mred"))


def test_replicas_on_one_node_are_grouped() -> None:
    placements = (
        Placement(replica=1, node="n1", total=290, ties=2),
        Placement(replica=2, node="n2", total=280, victims=("team/low",)),
        Placement(replica=3, node="n1", total=270),
        Placement(replica=4, message="0/2 nodes are available: 2 Insufficient cpu."),
    )
    view = WhatIfView(namespace="team", name="web", domain="job", replicas=4, placements=placements, notes=("so",))
    assert what_if_text(view) == (
        "Of 4 x team/web, 3 would be placed by domain job now\n"
        "  2 replicas on n1 (score 290, one of 2 with this score)\n"
        "  1 replica on n2 (score 280, after these are preempted: team/low)\n"
        "  1 replica cannot be placed: 0/2 nodes are available: 2 Insufficient cpu.\n"
        "Note: so"
    )


def test_ages_are_shown_with_one_unit() -> None:
    assert [ago(seconds) for seconds in (0.4, 119, 120, 7199, 7200, 172_800)] == [
        "0s",
        "119s",
        "2m",
        "119m",
        "2h",
        "2d",
    ]


@pytest.mark.parametrize(
    ("nodes", "lines"),
    [
        (("n1", "n1"), "Preempts    team/a, team/b on n1\n"),
        (("n1", "n2"), "Preempts    team/a on n1; team/b on n2\n  Nominated   n1 is nominated for it meanwhile\n"),
        (("n2", "n2"), "Preempts    team/a, team/b on n2\n  Nominated   n1 is nominated for it meanwhile\n"),
    ],
)
def test_victims_are_listed_with_their_nodes(nodes: tuple[str, ...], lines: str) -> None:
    preempts = msgspec.structs.replace(
        REFUSED, nominated_node="n1", victims=("team/a", "team/b"), victim_nodes=nodes, snapshot="dropped"
    )
    assert lines in pod_text(msgspec.structs.replace(WAITING, attempts=(preempts,)))
