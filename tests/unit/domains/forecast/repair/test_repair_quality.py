"""Repair plans against an exact search of all plans on small cases, and against every constraint on random ones.

The exact search here knows nothing of the planner: it walks all placements that can be reached by allowed moves, breadth first.
Figures of a longer run: `python -m tests.unit.domains.forecast.repair.test_repair_quality SEEDS`.
"""

from __future__ import annotations

import sys
from collections import Counter

import msgspec
import numpy as np
import pytest

from domains.forecast.repair.case import Disruptions, Fits, Mask, RepairCase
from domains.forecast.repair.plan import Plan, plan_repair
from domains.forecast.settings.repair_limits import RepairLimits
from tests.unit.domains.forecast.repair.cases import make_case

EPSILON = 1e-9
DEPTH_MAX = 4
POSITIONS_MAX = 60_000


def random_case(seed: int) -> tuple[RepairCase, RepairLimits, Fits]:
    """2 to 8 nodes, up to 14 pods of various sizes over two dimensions and three slots, tight, with rules of all kinds."""
    rng = np.random.default_rng(seed)
    nodes, pods = int(rng.integers(2, 9)), int(rng.integers(6, 15))
    fill = rng.uniform(0.45, 0.75)
    sizes = rng.dirichlet(np.full(pods, 3.0)) * nodes * fill
    where = rng.integers(0, nodes, pods)
    shapes = rng.uniform(0.15, 1.0, (pods, 2, 3)) if rng.random() < 0.8 else rng.random((pods, 2, 3)) ** 3
    placed = [[(sizes[p] * shapes[p]).tolist() for p in range(pods) if where[p] == node] for node in range(nodes)]
    quarter = rng.random(pods) < 0.25
    case = make_case(
        placed,
        service=(np.arange(pods) // 2).tolist(),
        fixed=(quarter & (rng.random() < 0.5)).astype(int).tolist(),
        gang=np.where(rng.random(pods) < 0.1, 0, -1).tolist(),
        gang_spare=[1],
        disruptions=[Disruptions("ns/a", int(rng.integers(0, 3)), (0, 1)), Disruptions("ns/b", 1, (1, 2, 3))],
        free=rng.integers(0 if rng.random() < 0.3 else 5, 8, nodes).tolist(),
    )
    fitting = rng.random((pods, nodes)) < (0.8 if rng.random() < 0.5 else 1.0)

    def fits(pod: int) -> Mask:
        return np.asarray(fitting[pod])

    limits = RepairLimits(
        (0.8,),
        moves_per_window=int(rng.integers(1, 8)),
        moves_per_node=int(rng.integers(1, 6)),
        moves_per_service=int(rng.integers(1, 3)),
        swell=float(rng.choice([0.0, 0.1, 0.3])),
        move_gangs=bool(rng.random() < 0.3),
        keep_apart=bool(rng.random() < 0.3),
    )
    return case, limits, fits


class Rules:
    """What a sequence of moves may do, in the plainest words."""

    def __init__(self, case: RepairCase, limits: RepairLimits, fits: Fits) -> None:
        self.case, self.limits = case, limits
        self.start = tuple(case.pods.node.tolist())
        self.fitting = np.array([fits(pod) for pod in range(len(self.start))])
        self.movable = [self._movable(pod) for pod in range(len(self.start))]
        self.threshold = limits.threshold[0]
        self.hot = self.passing(self.start)

    def _movable(self, pod: int) -> bool:
        pods, budgets = self.case.pods, [d for d in self.case.disruptions if pod in d.pods]
        gang = int(pods.gang[pod])
        gang_may = gang < 0 or (self.limits.move_gangs and bool(self.case.gang_spare[gang] > 0))
        return bool(pods.fixed[pod] == 0) and gang_may and len(budgets) < 2 and all(d.allowed > 0 for d in budgets)

    def load(self, node: int, where: tuple[int, ...]) -> np.ndarray:
        pods = [pod for pod, at in enumerate(where) if at == node]
        load: np.ndarray = self.case.curves[pods].sum(axis=0)
        return load

    def passing(self, where: tuple[int, ...]) -> frozenset[int]:
        nodes = range(len(self.case.nodes.names))
        return frozenset(n for n in nodes if self.load(n, where).max() > self.threshold + EPSILON)

    def allows(self, where: tuple[int, ...], pod: int, target: int) -> bool:
        """One more step, given where pods stand after the steps before it."""
        source = where[pod]
        if source == target or source != self.start[pod] or not self.movable[pod] or not self.fitting[pod, target]:
            return False
        replicas = Counter(where[p] for p in np.flatnonzero(self.case.pods.service == self.case.pods.service[pod]))
        if self.limits.keep_apart and replicas[target] >= replicas[source]:
            return False
        moved = [p for p, at in enumerate(where) if at != self.start[p]] + [pod]
        after = tuple(target if p == pod else at for p, at in enumerate(where))
        if not self._within_budgets(moved, after):
            return False
        came = sum(after[p] == target for p in moved) - sum(self.start[p] == target for p in moved)
        if came > self.case.nodes.free[target, 0]:
            return False
        old, both = self.load(target, where).max(axis=1), self.load(target, after).max(axis=1)
        past = old > self.threshold + EPSILON
        bearable = np.where(past, old + self.limits.swell, self.threshold)
        return bool((both <= bearable + EPSILON).all())

    def _within_budgets(self, moved: list[int], after: tuple[int, ...]) -> bool:
        per_node = Counter(node for pod in moved for node in (self.start[pod], after[pod]))
        per_service = Counter(self.case.pods.service[moved].tolist())
        return (
            len(moved) <= self.limits.moves_per_window
            and max(per_node.values()) <= self.limits.moves_per_node
            and max(per_service.values()) <= self.limits.moves_per_service
        )

    def is_end(self, where: tuple[int, ...]) -> bool:
        """No node passes that did not before, and none of those left is worse than it was."""
        left = self.passing(where)
        fine = (self.load(n, where).max(axis=1) <= self.load(n, self.start).max(axis=1) + EPSILON for n in left)
        return left <= self.hot and all(all(rows) for rows in fine)


def best_possible(rules: Rules) -> tuple[int, int] | None:
    """Nodes mended and moves of the best plan of up to DEPTH_MAX moves; None: too many placements to look at."""
    best, seen, edge = (0, 0), {rules.start}, [rules.start]
    nodes = range(len(rules.case.nodes.names))
    for depth in range(1, DEPTH_MAX + 1):
        found = []
        for where in edge:
            for pod in range(len(where)):
                for target in nodes:
                    after = (*where[:pod], target, *where[pod + 1 :])
                    if after not in seen and rules.allows(where, pod, target):
                        seen.add(after)
                        found.append(after)
                        if len(seen) > POSITIONS_MAX:
                            return None
        for where in found:
            repaired = len(rules.hot) - len(rules.passing(where))
            if repaired > best[0] and rules.is_end(where):
                best = (repaired, depth)
        if best[0] == len(rules.hot):
            break
        edge = found
    return best


def check(rules: Rules, plan: Plan) -> None:
    """Every step is allowed, and the plan is what it says it is."""
    where = rules.start
    for step in plan.steps:
        move = step.move
        assert where[move.pod] == move.source
        assert rules.allows(where, move.pod, move.target)
        before = rules.passing(where)
        where = tuple(move.target if pod == move.pod else at for pod, at in enumerate(where))
        assert rules.passing(where) <= before
        assert step.source_peaks == pytest.approx(rules.load(move.source, where).max(axis=1))
        assert step.target_peaks == pytest.approx(rules.load(move.target, where).max(axis=1))
    assert rules.is_end(where)
    names = rules.case.nodes.names
    assert {names[node] for node in rules.passing(where)} == {one.node for one in plan.unrepaired}
    assert {names[node] for node in rules.hot} == {*plan.repaired, *(one.node for one in plan.unrepaired)}
    assert all(one.why for one in plan.unrepaired)
    assert plan.least_moves <= len(plan.steps)
    _check_budgets_in_order(rules, plan)


def _check_budgets_in_order(rules: Rules, plan: Plan) -> None:
    """With every step under way whose forerunners are done, no PodDisruptionBudget is overdrawn."""
    for budget in rules.case.disruptions:
        taking = [place for place, step in enumerate(plan.steps) if step.move.pod in budget.pods]
        for number, place in enumerate(taking):
            done = set(plan.steps[place].waits_for)
            assert len([other for other in taking[:number] if other not in done]) < budget.allowed


@pytest.mark.parametrize("first", range(0, 400, 20))
def test_random_plans_stay_within_every_rule(first: int) -> None:
    for seed in range(first, first + 20):
        case, limits, fits = random_case(seed)
        check(Rules(case, limits, fits), plan_repair(case, msgspec.structs.replace(limits, work_max=4_000_000), fits))


@pytest.mark.parametrize("first", [*(pytest.param(one, marks=pytest.mark.slow) for one in (0, 10)), 20])
def test_small_plans_are_optimal_in_nodes_and_near_optimal_in_moves(first: int) -> None:
    assert compare(range(first, first + 10))[1] == []


def test_the_same_case_gives_the_same_plan() -> None:
    for seed in range(10):
        case, limits, fits = random_case(seed)
        assert plan_repair(case, limits, fits) == plan_repair(case, limits, fits)


def compare(seeds: range) -> tuple[int, list[str]]:
    """How many cases had an exact answer with something to mend, and where the plan falls short of it."""
    compared, short = 0, []
    for seed in seeds:
        case, limits, fits = random_case(seed)
        rules = Rules(case, limits, fits)
        best = best_possible(rules) if rules.hot else None
        if best is None:
            continue
        plan = plan_repair(case, limits, fits)
        check(rules, plan)
        compared += best[0] > 0
        repaired, moves = len(plan.repaired), len(plan.steps)
        if repaired < best[0] or (repaired == best[0] and moves > 1.2 * best[1]):
            short.append(f"seed {seed}: {repaired} nodes with {moves} moves, best {best[0]} with {best[1]}")
    return compared, short


if __name__ == "__main__":
    seeds_compared, shortfalls = compare(range(int(sys.argv[1]) if len(sys.argv) > 1 else 300))
    print(*shortfalls, f"{seeds_compared} cases with something to mend, {len(shortfalls)} fall short", sep="\n")
