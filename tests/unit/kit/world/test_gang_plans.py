"""Gangs that a run draws: of every form and size, and read by the judge as planned."""

from __future__ import annotations

import random

from multisched.verify.gang_objects import read_group, read_member
from tests.kit.world.gang_plans import (
    SIZE,
    Form,
    GangPlan,
    NeverStarts,
    drawn_gangs,
    group_manifest,
    member_manifest,
)

SEEDS = 200


def drawn(seed: int) -> list[GangPlan]:
    names = [f"gang-{number}" for number in range(4)]
    return drawn_gangs(
        random.Random(seed), names, ("default", "team-1"), ("job-scheduler", "gpu-scheduler"), ("node-3",)
    )


PLANS = [plan for seed in range(SEEDS) for plan in drawn(seed)]


def test_gangs_of_every_kind_are_drawn() -> None:
    assert {plan.form for plan in PLANS} == set(Form)
    assert {plan.never_starts for plan in PLANS} == {*NeverStarts, None}
    assert {plan.size for plan in PLANS} == set(range(SIZE[0], SIZE[1] + 1))
    assert any(plan.late for plan in PLANS)
    assert any(plan.failing for plan in PLANS)
    assert any(plan.succeeding for plan in PLANS)
    assert any(plan.groups for plan in PLANS)


def test_only_gangs_that_never_start_have_too_few_members() -> None:
    for plan in PLANS:
        assert (plan.minimum > plan.size) == (plan.never_starts is NeverStarts.TOO_FEW)
        assert plan.late < plan.size


def test_judge_reads_each_member_as_planned() -> None:
    for plan in PLANS:
        member = read_member(member_manifest(plan, "pod"))
        group = read_group(group_manifest(plan)) if plan.has_group else None

        assert member is not None
        assert member.key == (plan.namespace, plan.name)
        assert (group.minimum if group is not None else member.minimum) == plan.minimum
        assert ["/".join(key) for key in member.groups] == list(plan.groups)


def test_gangs_that_start_together_name_each_other() -> None:
    by_name = {f"{plan.namespace}/{plan.name}": plan for plan in drawn(0)}
    for seed in range(SEEDS):
        by_name = {f"{plan.namespace}/{plan.name}": plan for plan in drawn(seed)}
        for plan in by_name.values():
            assert all(by_name[name].groups == plan.groups for name in plan.groups)


def test_equal_seeds_give_equal_gangs() -> None:
    assert drawn(5) == drawn(5)
