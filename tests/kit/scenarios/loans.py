"""Scenarios of loans: a lender needs what it has lent, and pods of borrowers give it back after a notice, or must not.

Runs from LENT_FROM on have a sample of them, in an order drawn from the seed, after all disruptions: half of them with an even seed, the
other half with an odd one. `LoanHistory` judges each bind, notice and eviction; a scenario reports what does not happen in time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from tests.kit.checkers.api.loan_history import KEPT_FROM_HELD, KEPT_FROM_NEW, MEASURED_S, LoanHistory
from tests.kit.disruptions.run_context import RunContext
from tests.kit.scenarios.dedicated_nodes import LED_S, until_led
from tests.kit.scenarios.pooled import FAILED, GIVES_S, THROTTLED, PooledScenario, run_scenarios
from tests.kit.settings.setting import (
    HOURS_PERIOD_S,
    IDLE_THRESHOLD_PERCENT,
    LENDER,
    LENT,
    LENT_BY_HOURS,
    LENT_IDLE,
    LOAN_DEADLINE_S,
    LOAN_NOTICE_S,
    LoanTerms,
)
from tests.kit.world.loan_workloads import CORES_MILLI, NOTICE, LoanWorkload, LoanWorkloads

STEP_MILLI: Final = 250
"""All limits are multiples of it."""
RUNS_S: Final = 16.0
"""Time until new pods run that nothing holds back."""
RETURNS_S: Final = 24.0
"""Time until pods run after what held them back has ended: a backoff, and a bind."""
NOTICED_S: Final = 6.0
"""Time from a need until pods have a notice."""
WITHDRAWN_S: Final = 15.0
"""Time from the end of a need until its notices are removed: a process that has taken over keeps those that it finds for ten seconds."""


class LoanScenario(PooledScenario[LoanWorkload, LoanHistory]):
    """The nodes and workloads of one scenario, and its checks."""

    invariant, domain = "I17", LENDER

    def __init__(self, context: RunContext, loans: LoanWorkloads, history: LoanHistory, rng: random.Random) -> None:
        super().__init__(context, loans, history, rng, loans.pool())
        self.loans = loans
        self.terms = self.terms_of(LENT)

    def terms_of(self, lent: str) -> LoanTerms:
        """Returns the last loan of these nodes: of several borrowers, that one has to give first."""
        return [one for one in self.context.setting.loans if one.lent == lent][-1]

    async def node(self, lent: str = LENT) -> str:
        name = await self.loans.node(self.pool, lent)
        self.nodes.append(name)
        return name

    def limit(self, own_milli: int = 0) -> int:
        """Returns what the borrower may hold on a node where pods of the lender hold this."""
        return (CORES_MILLI - own_milli) * self.terms.share_percent // 100 - self.terms.headroom_milli

    def borrowing(self, milli: int, replicas: int, *, is_gang: bool = False, left: int | None = None) -> LoanWorkload:
        return self.loans.borrowing(self.pool, self.terms.borrower, milli, replicas, is_gang=is_gang, retries_left=left)

    async def lent(self, nodes: int = 1, ends_s: float | None = None) -> LoanWorkload | None:
        """Creates nodes and pods of the borrower that hold all that they may; None if these do not run. `ends_s`: see
        `PooledWorkload`; None: drawn.
        """
        for _ in range(nodes):
            await self.node()
        milli = self.rng.choice([STEP_MILLI, 2 * STEP_MILLI]) if self.limit() % (2 * STEP_MILLI) == 0 else STEP_MILLI
        jobs = self.borrowing(milli, nodes * self.limit() // milli)
        jobs.ends_s = jobs.ends_s if ends_s is None else ends_s
        await self.must_run(jobs, "they were created beside idle nodes", RUNS_S)
        return jobs if self.loans.runs(jobs) else None

    def needing(self, milli: int, replicas: int = 1, *, is_gang: bool = False) -> LoanWorkload:
        """Adds pods of the lender; each needs so much of what is lent."""
        return self.loans.own(self.pool, CORES_MILLI - self.limit() + milli, replicas, is_gang=is_gang)

    async def noticed(self, jobs: LoanWorkload, milli: int = 2 * STEP_MILLI) -> LoanWorkload | None:
        """Adds a pod of the lender that needs what is lent. Returns it when pods have a notice; None if none gets one."""
        own = self.needing(milli)
        has_notice = await self.until(lambda: self.history.with_notice(jobs.name) > 0, NOTICED_S)
        return own if has_notice else None

    async def must_be_back(self, why: str, within_s: float) -> None:
        """Reports a violation if borrowers hold too much after this time."""
        before = self.leader()
        if not await self.until(lambda: not any(map(self.history.held_too_much, self.nodes)), within_s):
            held = sum(map(self.history.held_too_much, self.nodes))
            self.report(before, f"I17: borrowers hold {held}m too much {within_s:g} s after {why}", within_s)

    async def must_be_withdrawn(self, jobs: LoanWorkload, why: str) -> None:
        """Reports a violation if pods keep their notices."""
        before = self.leader()
        if not await self.until(lambda: not self.history.with_notice(jobs.name), WITHDRAWN_S):
            self.report(before, f"I17: pods of {jobs.name} keep their notices: {why}", WITHDRAWN_S)


Scenario = Callable[[LoanScenario], Awaitable[bool]]
"""Returns False if it did not come to its event."""


async def run_loan_scenarios(context: RunContext, struck: Counter[str]) -> None:
    """Runs half of the scenarios, one after the other."""
    loans, history = context.world.loans, context.bind_checker.loans
    if loans is None or history is None:
        return
    rng = random.Random(f"{context.seed}/loan scenarios")
    context.faults.is_on = False
    await until_led(context, LENDER)

    def new() -> LoanScenario:
        return LoanScenario(context, loans, history, rng)

    await run_scenarios(context, struck, drawn_names(context.seed), SCENARIOS, new, rng)


# -- the lender grows and shrinks --------------------------------------------------------------------------------------------


async def _give_and_return(scenario: LoanScenario) -> bool:
    """The lender grows over what is lent, then within what is free, and shrinks."""
    jobs = await scenario.lent()
    if jobs is None:
        return False
    own = scenario.needing(scenario.rng.randint(1, 3) * STEP_MILLI)
    await scenario.must_run(own, "it was created beside pods on loan", GIVES_S)
    await scenario.must_be_back("the lender's pod was bound", GIVES_S)
    evicted = scenario.history.evicted(jobs.name)
    own.replicas = 0
    await scenario.must_run(jobs, "the lender has shrunk", RETURNS_S)
    return evicted > 0


async def _take_free_capacity(scenario: LoanScenario) -> bool:
    """The lender takes what was free, so that the borrower's share shrinks."""
    jobs = await scenario.lent()
    if jobs is None:
        return False
    own = scenario.needing(0)
    await scenario.must_run(own, "there is free capacity", RUNS_S)
    await scenario.must_be_back("the lender took what was free", GIVES_S)
    return scenario.history.evicted(jobs.name) > 0


async def _need_one_node(scenario: LoanScenario) -> bool:
    """Two pods of the lender need capacity of one node."""
    jobs = await scenario.lent()
    if jobs is None:
        return False
    free = CORES_MILLI - scenario.limit()
    own = scenario.loans.own(scenario.pool, free // 2 + 2 * STEP_MILLI, 2)
    await scenario.must_run(own, "they were created beside pods on loan", 2 * GIVES_S)
    await scenario.must_be_back("the lender's pods were bound", GIVES_S)
    return scenario.history.evicted(jobs.name) > 0


async def _start_a_gang(scenario: LoanScenario) -> bool:
    """A gang of the lender needs lent capacity of two nodes."""
    jobs = await scenario.lent(2)
    if jobs is None:
        return False
    own = scenario.needing(STEP_MILLI, 2, is_gang=True)
    await scenario.must_run(own, "the gang was created beside pods on loan", RETURNS_S)
    await scenario.must_be_back("the lender's gang was bound", GIVES_S)
    return scenario.history.evicted(jobs.name) > 0


async def _take_the_cheapest(scenario: LoanScenario) -> bool:
    """Pods of several ages and sizes, some with their last retry: those are evicted with which the least work is lost."""
    node, left = await scenario.node(), scenario.limit()
    while left >= STEP_MILLI and len(scenario.loans._workloads) < 9:
        milli = min(left, scenario.rng.choice((1, 1, 2, 3)) * STEP_MILLI)
        left -= milli
        retries = scenario.rng.choice((None, None, 0, 5)) if left else 0  # of the last one the least work would be lost
        one = scenario.borrowing(milli, 1, left=retries)
        await scenario.must_run(one, "there is room on loan", RUNS_S)
        await scenario.context.pause(3.0, 6.0)
    needed = scenario.rng.randint(1, 4) * STEP_MILLI
    if left:
        return False
    scenario.history.watch_choice(node)
    before, own = scenario.leader(), scenario.needing(needed)
    await scenario.must_run(own, "it was created beside pods on loan", GIVES_S)
    fault = scenario.history.fault_of_choice(node, scenario.limit() - max(0, scenario.limit(own.milli)))
    if fault:
        scenario.report(before, f"I17: {fault}", GIVES_S)
    return True


async def _end_slowly(scenario: LoanScenario) -> bool:
    """Pods of the borrower end by themselves, slowly, while others wait for what they hold."""
    jobs = await scenario.lent(ends_s=6.0)
    if jobs is None:
        return False
    jobs.replicas -= 2
    await scenario.context.pause(1.0, 2.0)
    others = scenario.borrowing(STEP_MILLI, 2)
    await scenario.must_run(others, "others have ended", RETURNS_S)
    return True


async def _close(scenario: LoanScenario) -> bool:
    """The hours of a loan begin, and end: then all is back."""
    await scenario.node(LENT_BY_HOURS)
    jobs = scenario.borrowing(2 * STEP_MILLI, scenario.rng.randint(2, 8))
    await scenario.must_run(jobs, "the hours of the loan have begun", HOURS_PERIOD_S / 2 + RUNS_S)
    before, hours = scenario.leader(), scenario.terms_of(LENT_BY_HOURS)

    def now_s() -> float:
        return scenario.context.clock.now().timestamp()

    await scenario.until(lambda: not hours.is_open(now_s()), HOURS_PERIOD_S)
    await scenario.context.pause(1.0, 2.0)
    if any(pod.node for pod in scenario.loans.pods_of(jobs)):
        scenario.report(before, f"I17: pods of {jobs.name} run after the hours of their loan", 0.0)
    return scenario.history.evicted(jobs.name) > 0


async def _follow_use(scenario: LoanScenario) -> bool:
    """Pods of the lender use little of what they request, then more: idle capacity is lent, and comes back."""
    node, history = await scenario.node(LENT_IDLE), scenario.history
    history.used(node, 0)
    own = scenario.loans.own(scenario.pool, CORES_MILLI)
    await scenario.must_run(own, "its node is idle", RUNS_S)
    jobs = scenario.borrowing(2 * STEP_MILLI, 8)
    jobs.is_idle = True
    bound = 0
    for use_milli in (scenario.rng.choice((500, 1000)), scenario.rng.choice((2100, 2600))):
        before = scenario.leader()
        own.use_milli = use_milli
        history.used(node, use_milli)
        await scenario.context.pause(MEASURED_S, MEASURED_S)
        kept = min(bound * jobs.milli, history.offers(node, IDLE_THRESHOLD_PERCENT, KEPT_FROM_HELD)[0])
        fits = max(kept, history.offers(node, IDLE_THRESHOLD_PERCENT, KEPT_FROM_NEW)[0]) // jobs.milli
        bound = sum(bool(pod.node) for pod in scenario.loans.pods_of(jobs))
        if bound != fits:
            what = f"I17: {bound} pods use idle capacity, and {fits} may, {MEASURED_S:g} s after {use_milli}m are used"
            scenario.report(before, what, 0.0)
    return history.evicted(jobs.name) > 0


# -- needs that end, budgets, and others' annotations ------------------------------------------------------------------------


async def _withdraw(scenario: LoanScenario) -> bool:
    """The lender's pod is deleted while pods have notices."""
    await scenario.node()
    jobs = scenario.borrowing(STEP_MILLI, scenario.limit() // STEP_MILLI - 1)
    await scenario.must_run(jobs, "there is room on loan", RUNS_S)
    own = await scenario.noticed(jobs)
    if own is None:
        return False
    late = scenario.borrowing(STEP_MILLI, 1)
    await scenario.context.pause(0.0, LOAN_NOTICE_S - 2.0)
    if scenario.history.evicted(jobs.name):
        return False
    own.replicas = 0
    await scenario.must_be_withdrawn(jobs, "the lender's pod is deleted")
    await scenario.must_run(late, "the lender needs nothing any more", RETURNS_S)
    await scenario.context.pause(LOAN_NOTICE_S, LOAN_NOTICE_S + 2.0)
    return not scenario.history.evicted(jobs.name)


async def _wait_for_budgets(scenario: LoanScenario) -> bool:
    """A PodDisruptionBudget protects the borrower's pods until the deadline."""
    jobs = await scenario.lent()
    if jobs is None:
        return False
    await scenario.loans.protect(jobs)
    await scenario.context.pause(1.0, 3.0)
    own = scenario.needing(2 * STEP_MILLI)
    await scenario.until(lambda: scenario.history.with_notice(jobs.name) > 0, NOTICED_S)
    await scenario.context.pause(LOAN_NOTICE_S + 1.0, LOAN_NOTICE_S + 2.0)
    is_kept = not scenario.history.evicted(jobs.name)
    await scenario.must_run(own, "the deadline of the loan has passed", LOAN_DEADLINE_S + GIVES_S)
    return is_kept


async def _forge(scenario: LoanScenario) -> bool:
    """Users write notices on pods on loan, whose time has passed or is far; and the lender needs capacity."""
    jobs = await scenario.lent()
    if jobs is None:
        return False
    now_s = scenario.context.clock.now().timestamp()
    at_s = scenario.rng.choice((now_s - 60.0, now_s - LOAN_NOTICE_S, now_s + 3_600.0))
    text = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for pod in scenario.loans.pods_of(jobs):
        await scenario.loans.annotate(pod, {NOTICE: text})
    await scenario.context.pause(1.0, 4.0)
    own = scenario.needing(2 * STEP_MILLI)
    await scenario.must_run(own, "it was created beside pods on loan", GIVES_S)
    return scenario.history.evicted(jobs.name) > 0


# -- processes and answers fail ----------------------------------------------------------------------------------------------


async def _kill_under_notice(scenario: LoanScenario) -> bool:
    """The leader is killed between notices and evictions."""
    jobs = await scenario.lent()
    own = None if jobs is None else await scenario.noticed(jobs)
    if jobs is None or own is None:
        return False
    await scenario.context.pause(0.0, LOAN_NOTICE_S - 1.0)
    if scenario.history.evicted(jobs.name) or not await scenario.kill_leader():
        return False
    await scenario.must_run(own, "the leader was killed", LED_S + GIVES_S)
    await scenario.must_be_back("the lender's pod was bound", GIVES_S)
    return True


async def _kill_and_withdraw(scenario: LoanScenario) -> bool:
    """The leader is killed under notices, and the need ends before another one leads. Later the lender needs capacity again."""
    jobs = await scenario.lent()
    own = None if jobs is None else await scenario.noticed(jobs)
    if jobs is None or own is None or not await scenario.kill_leader():
        return False
    own.replicas = 0
    await scenario.until(lambda: scenario.leader() is not None, LED_S)
    await scenario.context.until_in_use(scenario.nodes[0])
    await scenario.must_be_withdrawn(jobs, "the lender's pod is deleted, and another process leads")
    own.replicas = 1
    await scenario.must_run(own, "it was created again", LED_S + GIVES_S)
    return True


async def _kill_in_part(scenario: LoanScenario) -> bool:
    """The leader is killed when one member of a gang is evicted, and the eviction of the other one is refused."""
    await scenario.node()
    await scenario.node()
    gang = scenario.borrowing(scenario.limit(), 2, is_gang=True)
    await scenario.must_run(gang, "there is room on loan", RUNS_S)
    if not scenario.loans.runs(gang):
        return False
    member = scenario.rng.randrange(2)
    key = scenario.answer(gang, "eviction", scenario.rng.choice((THROTTLED, FAILED)), member=member)
    own = await scenario.noticed(gang)
    if own is None or not await scenario.until(lambda: scenario.history.evicted(gang.name) == 1, GIVES_S):
        return False
    is_killed = bool(scenario.history.in_part()) and await scenario.kill_leader()
    del scenario.context.faults.answers[key]
    await scenario.must_run(own, "the leader was killed", LED_S + GIVES_S)
    return is_killed


async def _kill_while_it_writes(scenario: LoanScenario) -> bool:
    """The leader is killed when some pods have their notice, and another one does not."""
    await scenario.node()
    jobs = scenario.borrowing(scenario.limit() // 2, 2)
    await scenario.must_run(jobs, "there is room on loan", RUNS_S)
    if not scenario.loans.runs(jobs):
        return False
    key = scenario.answer(jobs, "status", scenario.rng.choice((THROTTLED, FAILED)), member=scenario.rng.randrange(2))
    own = scenario.needing(scenario.limit() // 2 + STEP_MILLI)
    if not await scenario.until(lambda: scenario.history.with_notice(jobs.name) == 1, NOTICED_S):
        return False
    await scenario.context.pause(0.0, 3.0)
    is_killed = await scenario.kill_leader()
    del scenario.context.faults.answers[key]
    await scenario.must_run(own, "the leader was killed", LED_S + GIVES_S)
    return is_killed


async def _restart_when_lent(scenario: LoanScenario) -> bool:
    """The leader is killed when all is lent, and more pods of the borrower wait."""
    jobs = await scenario.lent(2)
    if jobs is None or not await scenario.kill_leader():
        return False
    scenario.borrowing(STEP_MILLI, 3)
    await scenario.until(lambda: scenario.leader() is not None, LED_S)
    await scenario.context.pause(4.0, 6.0)
    own = scenario.needing(STEP_MILLI)
    await scenario.must_run(own, "another process leads", LED_S + GIVES_S)
    return True


async def _lose_answers(scenario: LoanScenario) -> bool:
    """Answers to notices and evictions are lost, or are 429 and 500 for a while."""
    jobs = await scenario.lent()
    if jobs is None:
        return False
    what, faults = scenario.rng.sample(("status", "eviction"), scenario.rng.randint(1, 2)), scenario.context.faults
    for one in what:
        for member in range(jobs.replicas):
            key = scenario.answer(jobs, one, scenario.rng.choice((THROTTLED, FAILED)), member=member)
            if scenario.rng.random() < 0.5:
                del faults.answers[key]
                faults.unanswered.add(f"{key.rpartition('/')[0].rpartition('/')[2]}/{one}")
    own = scenario.needing(4 * STEP_MILLI)
    await scenario.context.pause(4.0, 8.0)
    faults.answers.clear()
    faults.unanswered.clear()
    await scenario.must_run(own, "the API answers again", GIVES_S + LOAN_NOTICE_S)
    return scenario.history.evicted(jobs.name) > 0


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "answers of loans lost": _lose_answers,
    "borrower's gang killed in part": _kill_in_part,
    "budget protects pods on loan": _wait_for_budgets,
    "cheapest pods give back": _take_the_cheapest,
    "gang of the lender starts": _start_a_gang,
    "leader killed and need ended": _kill_and_withdraw,
    "leader killed between notices of a loan": _kill_while_it_writes,
    "leader killed under notice of a loan": _kill_under_notice,
    "leader killed when all is lent": _restart_when_lent,
    "hours of a loan end": _close,
    "idle capacity follows the use": _follow_use,
    "lender grows and shrinks": _give_and_return,
    "lender takes free capacity": _take_free_capacity,
    "need of the lender ends": _withdraw,
    "notice of a loan forged": _forge,
    "pods on loan end slowly": _end_slowly,
    "two pods of the lender need one node": _need_one_node,
}


def drawn_names(seed: int) -> list[str]:
    """Returns the names of the scenarios of a seed."""
    return sorted(SCENARIOS)[seed % 2 :: 2]
