"""Scenarios of the tide: inference grows and shrinks, and training gives its cards after a notice, or must not.

Runs from TIDED_FROM up to CONTESTED_FROM have a sample of them, in an order drawn from the seed, after all disruptions: half of them
with an even seed, the other half with an odd one. `TideHistory` judges each notice and eviction; a scenario reports what does not
happen in time.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import orjson

from multisched.shell.configuration_watch import LOOK_S
from tests.kit.checkers.api.tide_history import TideHistory
from tests.kit.disruptions.run_context import RunContext
from tests.kit.processes.configuration_files import LATE_MAX_S
from tests.kit.scenarios.dedicated_nodes import LED_S, leader, until_led
from tests.kit.scenarios.pooled import FAILED, GIVES_S, THROTTLED, PooledScenario, run_scenarios
from tests.kit.settings.changed_files import ChangedFile
from tests.kit.settings.setting import TIDE_MIN_RUN_S, TIDE_NOTICE_S, text_of, tided_document
from tests.kit.world.api_user import NAMESPACE
from tests.kit.world.tide_workloads import NOTICE, OTHER_MODEL, TRAINING, UNEVICTABLE, TideWorkload, TideWorkloads

GPUS: Final = "gpu"
RUNS_S: Final = 16.0
"""Time until new training runs, at most: it is planned, and bound."""
RETURNS_S: Final = 24.0
"""Time until training is back after inference has shrunk: the quiet time, and a backoff."""
BELIEVED_S: Final = 31.0
"""A process that takes over believes what it finds for so long."""
STAYS_S: Final = 9.0
"""Time for which a gang is observed that must not get a notice: longer than a notice."""


class TideScenario(PooledScenario[TideWorkload, TideHistory]):
    """The nodes and workloads of one scenario, and its checks."""

    invariant, domain = "I15", GPUS

    def __init__(self, context: RunContext, tides: TideWorkloads, history: TideHistory, rng: random.Random) -> None:
        super().__init__(context, tides, history, rng, tides.pool())
        self.tides = tides

    async def node(self, cards: int, **more: str) -> str:
        name = await self.tides.node(self.pool, cards, **more)
        self.nodes.append(name)
        return name

    def gang(self, size: int, cards: int, **more: str | bool) -> TideWorkload:
        return self.tides.gang(self.pool, size, cards, **more)  # type: ignore[arg-type]

    async def old_gang(self, size: int = 2, cards: int = 4, nodes: int = 2) -> TideWorkload | None:
        """Creates nodes and a gang that fills them. Returns the gang after its minimum run time; None if it does not run."""
        for _ in range(nodes):
            await self.node(size * cards // nodes)
        gang = self.gang(size, cards)
        if not await self.until(lambda: self.tides.runs(gang), RUNS_S):
            return None
        await self.context.pause(TIDE_MIN_RUN_S + 1.0, TIDE_MIN_RUN_S + 3.0)
        return gang

    async def noticed(self, gang: TideWorkload, service: int = 2) -> TideWorkload | None:
        """Creates a service. Returns it when all members of the gang have a notice; None if they do not get it."""
        found = self.tides.service(self.pool, service)
        has_notice = await self.until(lambda: self.history.with_notice(gang.name) >= gang.replicas, 6.0)
        return found if has_notice else None

    async def must_run_alone(self, gang: TideWorkload, what: str, for_s: float = STAYS_S) -> None:
        """Reports a violation if the gang gets a notice within this time."""
        before, notices = self.leader(), self.history.notices(gang.name)
        if await self.until(lambda: self.history.notices(gang.name) > notices, for_s):
            self.report(before, f"I15: {gang.name} gets a notice: {what}", for_s)

    async def freeze(self, *, is_frozen: bool) -> None:
        """Changes the configuration file. A tide counts as frozen when all processes have seen it."""
        if not is_frozen:
            self.history.is_frozen = False
        document = tided_document(is_frozen=is_frozen)
        self.context.replicas.change_file(ChangedFile(text_of(document), is_good=True))
        await self.context.pause(LATE_MAX_S + LOOK_S + 2.0, LATE_MAX_S + LOOK_S + 2.0)
        self.history.is_frozen = is_frozen


Scenario = Callable[[TideScenario], Awaitable[bool]]
"""Returns False if it did not come to its event."""


async def run_tide_scenarios(context: RunContext, struck: Counter[str]) -> None:
    """Runs half of the scenarios, one after the other."""
    tides, history = context.world.tides, context.bind_checker.tide
    if tides is None or history is None:
        return
    rng = random.Random(f"{context.seed}/tide scenarios")
    context.faults.is_on = False
    await until_led(context, GPUS)

    def new() -> TideScenario:
        return TideScenario(context, tides, history, rng)

    await run_scenarios(context, struck, drawn_names(context.seed), SCENARIOS, new, rng)


# -- inference grows and shrinks ---------------------------------------------------------------------------------------------


async def _give_and_return(scenario: TideScenario) -> bool:
    """Inference grows, shrinks when the gang has gone, and grows again when it is back, within its minimum run time."""
    gang = await scenario.old_gang()
    if gang is None:
        return False
    service = scenario.tides.service(scenario.pool, scenario.rng.randint(1, 4))
    await scenario.must_run(service, "they were created beside old training", GIVES_S)
    await scenario.must_be_whole()
    service.replicas = 0
    await scenario.must_run(gang, "inference has shrunk", RETURNS_S)
    if not (scenario.history.evicted(gang.name) and scenario.tides.runs(gang)):
        return False
    service.replicas = 2
    await scenario.must_run(service, "the gang's minimum run time began", TIDE_MIN_RUN_S + GIVES_S)
    return True


async def _withdraw(scenario: TideScenario) -> bool:
    """A gang has a notice, and a node comes that has room for inference."""
    gang = await scenario.old_gang()
    service = None if gang is None else await scenario.noticed(gang)
    if gang is None or service is None:
        return False
    await scenario.node(4)
    await scenario.must_run(service, "a node with free cards came", GIVES_S)
    await scenario.must_run_alone(gang, "a node has room for inference")
    return scenario.history.was_withdrawn(gang.name)


async def _spare_protected(scenario: TideScenario) -> bool:
    """Training that may not be evicted stays, and other training goes, or none."""
    await scenario.node(4)
    kind = scenario.rng.choice(("budget", "selector", "owner"))
    kept = scenario.gang(2, 2, role=UNEVICTABLE if kind == "selector" else TRAINING, has_owner=kind != "owner")
    if kind == "budget":
        await scenario.tides.protect(kept)
    scenario.history.protect(kept.name)
    gang = await scenario.old_gang()
    if gang is None or not scenario.tides.runs(kept):
        return False
    service = scenario.tides.service(scenario.pool, 10)
    await scenario.until(lambda: scenario.history.evicted(gang.name) >= gang.replicas, GIVES_S)
    await scenario.must_run_alone(kept, "it may not be evicted")
    return bool(service.created and scenario.history.evicted(gang.name))


async def _ask_for_another_model(scenario: TideScenario) -> bool:
    """Inference asks for cards that training does not hold."""
    await scenario.node(1, model=OTHER_MODEL)
    gang = await scenario.old_gang()
    if gang is None:
        return False
    service = scenario.tides.service(scenario.pool, 3, model=OTHER_MODEL)
    await scenario.must_run_alone(gang, "inference cannot use its cards")
    return service.created >= service.replicas


# -- failures ----------------------------------------------------------------------------------------------------------------


async def _kill_under_notice(scenario: TideScenario) -> bool:
    """The leader is killed between notice and eviction."""
    gang = await scenario.old_gang()
    service = None if gang is None else await scenario.noticed(gang)
    if gang is None or service is None:
        return False
    await scenario.context.pause(0.0, TIDE_NOTICE_S - 1.0)
    if scenario.history.evicted(gang.name) or not await scenario.kill_leader():
        return False
    await scenario.must_run(service, "the leader was killed", LED_S + GIVES_S)
    return True


async def _kill_while_it_writes(scenario: TideScenario) -> bool:
    """The leader is killed when one member has its notice, and the other does not."""
    gang = await scenario.old_gang()
    if gang is None:
        return False
    key = scenario.answer(gang, "status", scenario.rng.choice((THROTTLED, FAILED)), member=1)
    service = scenario.tides.service(scenario.pool, 2)
    if not await scenario.until(lambda: scenario.history.with_notice(gang.name) == 1, 6.0):
        return False
    await scenario.context.pause(0.0, 3.0)
    is_killed = await scenario.kill_leader()
    del scenario.context.faults.answers[key]
    await scenario.must_run(service, "the leader was killed", LED_S + GIVES_S)
    return is_killed


async def _kill_in_part(scenario: TideScenario) -> bool:
    """The leader is killed when one member is evicted, and the eviction of the other one is refused."""
    gang = await scenario.old_gang()
    if gang is None:
        return False
    key = scenario.answer(gang, "eviction", THROTTLED, member=1)
    service = await scenario.noticed(gang, 6)
    if service is None or not await scenario.until(lambda: scenario.history.evicted(gang.name) == 1, GIVES_S):
        return False
    is_killed = bool(scenario.history.in_part()) and await scenario.kill_leader()
    del scenario.context.faults.answers[key]
    await scenario.must_run(service, "the leader was killed", LED_S + GIVES_S)
    return is_killed


async def _lose_answers(scenario: TideScenario) -> bool:
    """Answers to notices and evictions are lost, or are 429 and 500 for a while."""
    gang = await scenario.old_gang()
    if gang is None:
        return False
    what = scenario.rng.sample(("status", "eviction"), scenario.rng.randint(1, 2))
    faults = scenario.context.faults
    for one in what:
        member = scenario.rng.randrange(2)
        key = scenario.answer(gang, one, scenario.rng.choice((THROTTLED, FAILED)), member=member)
        faults.unanswered.add(f"{key.rpartition('/')[0].rpartition('/')[2]}/{one}")
        if scenario.rng.random() < 0.5:
            del faults.answers[key]
    service = scenario.tides.service(scenario.pool, 6)
    await scenario.context.pause(6.0, 10.0)
    faults.answers.clear()
    faults.unanswered.clear()
    await scenario.must_run(service, "the API answers again", GIVES_S + TIDE_NOTICE_S)
    return scenario.history.evicted(gang.name) > 0


# -- the switch, and others' annotations -------------------------------------------------------------------------------------


async def _freeze(scenario: TideScenario) -> bool:
    """The tide is frozen before inference grows, or when a gang's eviction is refused at its deadline; and unfrozen."""
    gang = await scenario.old_gang()
    if gang is None:
        return False
    service = scenario.tides.service(scenario.pool, 0)
    if is_under_notice := scenario.rng.random() < 0.5:
        scenario.answer(gang, "eviction", THROTTLED, member=0)
        service.replicas = 2
        if not await scenario.until(lambda: scenario.history.with_notice(gang.name) >= 2, 6.0):
            return False
    await scenario.freeze(is_frozen=True)
    scenario.context.faults.answers.clear()
    service.replicas = 2
    await scenario.context.pause(STAYS_S, STAYS_S)
    is_kept = not scenario.history.evicted(gang.name)
    await scenario.freeze(is_frozen=False)
    await scenario.must_run(service, "the tide goes on", GIVES_S)
    return is_kept and bool(is_under_notice or scenario.history.notices(gang.name))


async def _forge(scenario: TideScenario) -> bool:
    """A user writes a notice whose deadline has passed on a gang within its minimum run time, for which inference waits."""
    before = leader(scenario.context, GPUS)
    await scenario.context.pause(BELIEVED_S, BELIEVED_S)
    if before is None or leader(scenario.context, GPUS) is not before:
        return False
    for _ in range(2):
        await scenario.node(4)
    gang = scenario.gang(2, 4)
    if not await scenario.until(lambda: scenario.tides.runs(gang), RUNS_S):
        return False
    service = scenario.tides.service(scenario.pool, 2)
    await scenario.until(lambda: bool(service.created), 2.0)
    now_s = scenario.context.clock.now().timestamp()
    text = _forged(f"{NAMESPACE}/{gang.name}", now_s - TIDE_NOTICE_S - 1.0)
    for pod in scenario.tides.pods_of(gang):
        await scenario.tides.annotate(pod, {NOTICE: text})
    await scenario.must_run_alone(gang, "a forged one is none")
    await scenario.must_run(service, "the gang's minimum run time began", TIDE_MIN_RUN_S + GIVES_S)
    return bool(service.created)


def _forged(gang: str, issued_s: float) -> str:
    """Returns the text of a notice with a correct id, which has ended."""
    issued, deadline = (
        datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        for at_s in (round(issued_s, 3), round(issued_s + TIDE_NOTICE_S, 3))
    )
    digest = hashlib.sha256(f"{gang}\n{issued}\nforged".encode()).hexdigest()[:16]
    return orjson.dumps({"deadline": deadline, "for": "forged", "id": digest, "issued": issued, "pods": 2}).decode()


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "answers of the tide lost": _lose_answers,
    "gang gives its cards and returns": _give_and_return,
    "inference of another model waits": _ask_for_another_model,
    "leader killed between two evictions": _kill_in_part,
    "leader killed between two notices": _kill_while_it_writes,
    "leader killed under notice": _kill_under_notice,
    "notice forged": _forge,
    "notice withdrawn": _withdraw,
    "protected training beside the tide": _spare_protected,
    "tide frozen": _freeze,
}


def drawn_names(seed: int) -> list[str]:
    """Returns the names of the scenarios of a seed."""
    return sorted(SCENARIOS)[seed % 2 :: 2]
