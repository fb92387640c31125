"""The protocol of published slices: random stories of several processes, judged by the history of the API server alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from multisched.framework.slice_writes import SliceRequest
from multisched.model.slice_parts import NOTHING, SliceAmount, SliceOffer
from multisched.plugins.slices.borrower_slices import BorrowerSlices
from multisched.plugins.slices.lender_slices import LenderSlices
from tests.unit.plugins.loans.slices.slice_api import SliceApi
from tests.unit.plugins.loans.slices.slice_defects import DEFECTS
from tests.unit.plugins.loans.slices.slice_judge import BORROWER, LENDER, SliceJudge
from tests.unit.plugins.loans.slices.slice_stories import STORIES
from tests.unit.plugins.loans.slices.slice_world import ALLOCATABLE, NAMESPACE, SliceWorld

STEPS = 1_000
SEEDS_MAX = 200
"""Random stories in which a defect must show."""


@given(st.integers(0, 2**32 - 1))
@example(284)
@example(338)
def test_slices_never_overcommit_a_node(seed: int) -> None:
    world = SliceWorld(seed)
    world.run(STEPS)
    assert world.judge.violations == []


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_late_request_of_a_former_leader_has_no_effect(story: Callable[[SliceWorld], None]) -> None:
    world = SliceWorld(0)
    story(world)
    assert world.judge.violations == []
    assert world.api.pods


@given(st.integers(0, 2**32 - 1))
def test_both_sides_agree_when_the_disturbances_end(seed: int) -> None:
    world = SliceWorld(seed)
    world.weights["edit"] = 0
    world.run(STEPS)
    lender, _, borrower, _ = world.replicas
    world.pass_calmly(200, lender, borrower)
    assert world.judge.violations == []
    assert isinstance(lender.machine, LenderSlices)
    assert isinstance(borrower.machine, BorrowerSlices)
    assert (lender.machine.problems(), borrower.machine.problems()) == ({}, {})
    for node in ALLOCATABLE:
        offered = held = NOTHING
        for found in world.api.listed():
            assert found.spec is not None
            assert found.status is not None
            held += found.status.held.get(node, NOTHING)
            offered += found.spec.offers[node].amount if node in found.spec.offers else NOTHING
        assert lender.machine.reserved(node) == offered | held
        assert borrower.machine.usable(node) == held
        assert borrower.charged(node).is_within(held)
    lender.machine.touch_all()
    borrower.machine.touch_all()
    assert lender.machine.next_requests() == []
    assert borrower.machine.next_requests(borrower.charged_by_node()) == []


def first_violation(make: Callable[[int], SliceWorld]) -> str:
    for story in STORIES:
        world = make(0)
        story(world)
        if world.judge.violations:
            return world.judge.violations[0]
    for seed in range(SEEDS_MAX):
        world = make(seed)
        world.run(STEPS)
        if world.judge.violations:
            return world.judge.violations[0]
    return ""


@pytest.mark.parametrize("defect", DEFECTS)
def test_deliberate_defect_is_caught(defect: str) -> None:
    assert first_violation(DEFECTS[defect])


def test_only_objects_of_changed_nodes_are_looked_at() -> None:
    api, nodes = SliceApi(SliceJudge({})), [f"n{number}" for number in range(300)]
    lender, borrower = LenderSlices(LENDER, BORROWER, NAMESPACE, 8), BorrowerSlices(LENDER, BORROWER, NAMESPACE)
    amount = SliceAmount(1_000, 1 << 30, 10)

    def exchange() -> int:
        sent = [(machine, one) for machine in (lender, borrower) for one in requests_of(machine)]
        for machine, request in sent:
            machine.answered(request, api.handle(request))
        for found in api.listed():
            lender.observe(found)
            borrower.observe(found)
        return len(sent)

    def requests_of(machine: LenderSlices | BorrowerSlices) -> list[SliceRequest]:
        return machine.next_requests() if isinstance(machine, LenderSlices) else machine.next_requests({})

    lender.begin_term([])
    borrower.begin_term([])
    borrower.settle()
    for node in nodes:
        lender.offer(node, node, SliceOffer(amount), room=amount)
    while exchange():
        pass
    assert len(api.objects) == 8
    assert (lender.due_count, borrower.due_count) == (0, 0)
    assert all(lender.reserved(node) == borrower.offered_of(node) == amount for node in nodes)
    borrower.want("n7", amount)
    lender.withdraw("n8")
    assert (lender.due_count, borrower.due_count) == (1, 1)
    while exchange():
        pass
    assert (lender.reserved("n8"), borrower.usable("n7")) == (NOTHING, amount)


def test_borrower_returns_a_recalled_node_as_a_whole_or_when_asked_for_parts() -> None:
    api, charged, writes = SliceApi(SliceJudge({})), dict[str, SliceAmount](), list[int]()
    lender, borrower = LenderSlices(LENDER, BORROWER, NAMESPACE, 1), BorrowerSlices(LENDER, BORROWER, NAMESPACE)

    def use(cores: int) -> int:
        """The pods on the node request so much now; returns how many cores the object holds then."""
        charged["n"] = SliceAmount(cores, cores, cores)
        borrower.touch(["n"])
        settle()
        (found,) = api.listed()
        assert found.status is not None
        writes.append(found.status.writes)
        return found.status.held["n"].cpu_milli

    def settle() -> None:
        while sent := [(lender, one) for one in lender.next_requests()] + [
            (borrower, one) for one in borrower.next_requests(charged)
        ]:
            for machine, request in sent:
                machine.answered(request, api.handle(request))
            for found in api.listed():
                lender.observe(found)
                borrower.observe(found)

    lender.begin_term([])
    borrower.begin_term([])
    borrower.settle()
    lender.offer("n", "n", SliceOffer(SliceAmount(9, 9, 9)), room=SliceAmount(9, 9, 9))
    borrower.want("n", SliceAmount(9, 9, 9))
    assert use(9) == 9
    lender.recall("n", SliceAmount(4, 4, 4), 60)
    assert use(7) == 9, "a part"
    assert use(6) == 9
    borrower.return_kept()
    assert use(6) == 6
    assert use(5) == 6, "a part again"
    assert use(3) == 4, "the whole"
    assert [after - before for before, after in pairwise(writes)] == [0, 0, 1, 0, 1]


def test_borrower_returns_half_of_many_recalled_nodes_with_one_write() -> None:
    api, nodes = SliceApi(SliceJudge({})), [f"n{number}" for number in range(6)]
    lender, borrower = LenderSlices(LENDER, BORROWER, NAMESPACE, 1), BorrowerSlices(LENDER, BORROWER, NAMESPACE)
    whole, part = SliceAmount(9, 9, 9), SliceAmount(5, 5, 5)
    charged = dict.fromkeys(nodes, whole)

    def held() -> int:
        borrower.touch(nodes)
        while sent := [(lender, one) for one in lender.next_requests()] + [
            (borrower, one) for one in borrower.next_requests(charged)
        ]:
            for machine, request in sent:
                machine.answered(request, api.handle(request))
            for found in api.listed():
                lender.observe(found)
                borrower.observe(found)
        return sum(borrower.held(node).cpu_milli for node in nodes)

    lender.begin_term([])
    borrower.begin_term([])
    borrower.settle()
    for node in nodes:
        lender.offer(node, node, SliceOffer(whole), room=whole)
        borrower.want(node, whole)
    assert held() == 54
    for node in nodes:
        lender.recall(node, NOTHING, 60)
    charged["n0"] = part
    borrower.return_kept(parts=False)
    assert held() == 54, "no node as a whole"
    charged["n1"] = charged["n2"] = NOTHING
    borrower.return_kept(parts=False)
    assert held() == 32
    charged["n3"] = NOTHING
    assert held() == 32, "one of four"
    charged["n4"] = NOTHING
    assert held() == 14, "half of them"


def test_judge_accepts_a_full_node_and_reports_one_more_pod() -> None:
    judge = SliceJudge({"n": (10, 10, 2)})
    judge.on_pod("a", "n", "lender", (9, 9, 1))
    judge.on_pod("b", "n", "lender", (1, 1, 1))
    assert judge.violations == []
    judge.on_pod_gone("b")
    judge.on_pod("c", "n", "lender", (1, 2, 1))
    assert [text.split(":")[1].strip() for text in judge.violations] == ["overcommitted", "S1"]


def test_judge_reports_a_claim_above_the_offer_and_an_unheld_pod() -> None:
    judge = SliceJudge({"n": (10, 10, 2)})
    document = {
        "metadata": {"name": "x"},
        "spec": {"offers": {"n": {"cpuMilli": 2, "memoryBytes": 2, "pods": 1}}},
        "status": {"complete": True, "held": {"n": {"cpuMilli": 3, "memoryBytes": 2, "pods": 1}}},
    }
    judge.on_slice_set(document, "spec", by_leader=True)
    assert judge.violations == []
    judge.on_slice_set(document, "status", by_leader=True)
    judge.on_pod("a", "n", "borrower", (4, 1, 1))
    assert [text.split(":")[1].strip() for text in judge.violations] == ["S3", "S2"]
