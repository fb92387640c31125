"""SandboxLedger: which pods have or get a sandbox of which serverless unit, and which units accept pods now.

Owns the units. A pod takes a token of its unit's rate, and the permission of its breaker, in the step that assumes it; both are given
back if it is not bound. No clock: the background task sets `now_s`. Written by the cache and commit (`framework.ledger.Ledger`), by
ServerlessUnits (binds, outcomes) and by its background task (`control.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Final

import numpy as np

from domains.job.domain_waits import Pace
from domains.job.providers.breaker import Attempt, Breaker, BreakerState
from domains.job.providers.cost_meter import CostMeter
from domains.job.providers.create_window import CreateWindow
from domains.job.providers.messages import Failure, Messages
from domains.job.providers.rate import SandboxRate, Token
from domains.job.providers.settings import ProviderSettings, Quota, UnitSettings
from domains.job.providers.sizes import SECONDS_PER_HOUR, Size
from multisched.framework.node_view import Int32, Rows
from multisched.model.objects import CPU, MEMORY, Node, Pod
from multisched.model.pod_outcome import PodOutcome

PROVIDER_FAILED: Final = "ProviderFailed"
"""status.reason that a virtual kubelet writes if its provider refuses a pod."""
NO_UNIT: Final = -1
QUARANTINE_S: Final = 600.0
"""A template that a unit refused permanently is tried there again after this time, because what it refers to may have changed."""
QUARANTINED_MAX: Final = 1_000
SPARED_S: Final = 10.0
"""If an owner has just lost a pod in a failing unit, its pods are not sent there as probes for this time: they may fit on other nodes."""
SPARED_MAX: Final = 1_000
"""Limit of such owners per unit. Above it, the owner that was added first is dropped."""
ELASTIC_RESOURCES: Final = frozenset({CPU, MEMORY})
"""Resources that a node's allocatable does not limit if the unit has `capacity: elastic`."""
OUTCOME_MAX_S: Final = 10.0
"""How long the outcome of a pod is awaited after the pod was deleted: the watch of ended pods may be slower."""
NO_ANNOTATIONS: Final[Mapping[str, str]] = {}

Template = tuple[str, tuple[str, ...]]
"""Namespace and images: pods that a provider refuses permanently have these in common."""
NO_TEMPLATE: Final[Template] = ("", ())
"""Template of no pod."""


class Cause(Enum):
    """Why a unit does not accept a pod now."""

    TEMPLATE = "the provider has refused pods with these images, which are tried there again after 10 minutes"
    BREAKER = "its sandboxes fail, and only single pods are tried there until one starts"
    QUOTA = "its quota is used up"
    SIZE = "no size of its sandboxes is large enough"
    RATE = "its rate allows no more sandboxes now, and the pod is tried again when it does"
    START = "few sandboxes are created there at once until some have not failed, and the pod is tried again then"
    PRICE = "it has a price, and the pod may still wait for other nodes"


PACED: Final = (Cause.RATE, Cause.START, Cause.BREAKER)
"""Causes after which the background task requeues pods as soon as the unit accepts them."""
TIMED: Final = (*PACED, Cause.PRICE)
"""Causes for which a pod waits although the unit has room for it."""


def template_of(pod: Pod) -> Template:
    return pod.namespace, pod.spec.images


def owner_of(pod: Pod) -> str:
    """Returns the uid of the controller; empty if there is none."""
    return "" if pod.owner is None else pod.owner.uid


def size_of(pod: Pod) -> tuple[int, int]:
    """Returns thousandths of cores and bytes of memory that the pod requests."""
    return pod.spec.requests.get("cpu", 0), pod.spec.requests.get("memory", 0)


class Sandbox:
    """The sandbox of one pod, with the amounts that it holds of the unit's quota."""

    __slots__ = (
        "attempt",
        "is_bound",
        "is_metered",
        "is_started",
        "kept_from",
        "left_s",
        "owner",
        "requests",
        "row",
        "since_s",
        "template",
        "token",
        "unit",
    )

    def __init__(self, unit: Unit | None, row: int, pod: Pod, since_s: float) -> None:
        self.unit, self.row = unit, row
        self.requests, self.template, self.owner = size_of(pod), template_of(pod), owner_of(pod)
        self.since_s = since_s
        """Monotonic seconds at which it was taken, or first seen."""
        self.token: Token | None = None
        self.attempt: Attempt | None = None
        """Set with `token`, until the outcome is known. None also for pods that were bound before this process started."""
        self.is_bound = self.is_started = self.is_metered = False
        self.kept_from: Sequence[Unit] = ()
        """Units that did not accept the pod because of their price, before it was placed elsewhere."""
        self.left_s = 0.0
        """Monotonic seconds at which the pod left its node."""

    @property
    def size(self) -> Size | None:
        """The rounded size; None without a unit, or if no sandbox of the unit is large enough."""
        return None if self.unit is None else self.unit.settings.sizes.rounded(*self.requests)


class Unit:
    """A serverless unit."""

    def __init__(self, settings: UnitSettings) -> None:
        self.settings = settings
        self.rate = SandboxRate(settings.burst, settings.per_second, 0.0)
        self.breaker = Breaker()
        self.window = CreateWindow()
        self.spared: dict[str, float] = {}
        """uid of an owner that has lost a pod in this unit since a sandbox last started -> time until which its pods are not used as
        probes. Infinite until one of its pods is tried, then SPARED_S later.
        """
        self.version = 0
        """Raised when the set of pods that it accepts may have changed."""
        self.is_wanted = False
        """A pod was refused for a cause of PACED, and must be requeued when the unit accepts pods again."""
        self.used: Counter[str] = Counter()
        """pods, cpu (thousandths) and memory (bytes) of its sandboxes."""
        self.refused: dict[Template, tuple[float, str]] = {}
        """Template that was refused permanently -> until when it is not tried, and the message."""
        self.taken = self.created = self.failed = self.evicted = 0
        """Counts since the start."""
        self.payers: dict[str, Pod] = {}
        """With `waitFirst`: uid -> pod, of pending pods that may use the unit, as last decided by the background task."""
        self.kept: set[str] = set()
        """With `waitFirst`: uids of the pending pods that must wait for other nodes."""
        self.spent, self.saved = CostMeter(), CostMeter()
        """Since the start: cost of its sandboxes, and cost avoided by pods that waited because of the price and ran elsewhere."""
        self.imported: Cause | None = None
        """In a what-if sandbox: why the unit accepts no pod in the program that was copied."""

    @property
    def name(self) -> str:
        return self.settings.name

    def cause(self, template: Template, size: Size | None, now_s: float, owner: str = "") -> Cause | None:
        """Returns why it does not accept a pod with this template, size and owner now; None if it does."""
        if self.refused and self.refused.get(template, (0.0, ""))[0] > now_s:
            return Cause.TEMPLATE
        if size is None:
            return Cause.SIZE
        if self.imported is not None or self.breaker.ready_in_s(now_s) > 0 or self.spares(owner, now_s):
            return self.imported or Cause.BREAKER
        if not self.has_quota(size):
            return Cause.QUOTA
        if not self.rate.available(now_s):
            return Cause.RATE
        return None if self.breaker.state is not BreakerState.CLOSED or self.window.room(now_s) else Cause.START

    def accepts(self, now_s: float) -> int:
        """Returns how many pods it accepts now by its rate, window and breaker alone."""
        if self.breaker.ready_in_s(now_s) > 0:
            return 0
        most = self.window.room(now_s) if self.breaker.state is BreakerState.CLOSED else 1
        return min(most, self.rate.available(now_s))

    def spare(self, owner: str, until_s: float) -> None:
        """Excludes pods of the owner from probing until this time; infinite: see `spared`. Does nothing for an empty owner."""
        if not owner:
            return
        if len(self.spared) >= SPARED_MAX:
            self.spared.pop(next(iter(self.spared)))
        self.spared[owner] = max(until_s, self.spared.get(owner, 0.0))
        self.version += 1

    def spares(self, owner: str, now_s: float) -> bool:
        """Reports whether the unit's sandboxes fail and pods of this owner are excluded from probing now."""
        return self.breaker.state is not BreakerState.CLOSED and self.spared.get(owner, 0.0) > now_s

    @property
    def waits_first(self) -> bool:
        return self.settings.max_wait_s is not None

    def per_hour(self, requests: tuple[int, int]) -> float:
        """Returns the price per hour of the sandbox for these requests; 0 if it has none."""
        size = self.settings.sizes.rounded(*requests)
        return 0.0 if size is None else self.settings.price.of(size, SECONDS_PER_HOUR)

    def next_payers(self, count: int) -> Sequence[Pod]:
        """Returns at most `count` payers, in turn: first those that were not returned for the longest time."""
        found = list(islice(self.payers.items(), count))
        for uid, pod in found:
            del self.payers[uid]
            self.payers[uid] = pod
        return [pod for _, pod in found]

    def has_quota(self, size: Size) -> bool:
        quota, used = self.settings.quota, self.used
        return (
            (quota.pods is None or used["pods"] < quota.pods)
            and (quota.cpu_milli is None or used["cpu"] + size.cpu_milli <= quota.cpu_milli)
            and (quota.memory_bytes is None or used["memory"] + size.memory_bytes <= quota.memory_bytes)
        )

    def count(self, size: Size | None, sign: int) -> None:
        """Adds (1) or removes (-1) a sandbox."""
        self.used["pods"] += sign
        if size is not None:
            self.used["cpu"] += sign * size.cpu_milli
            self.used["memory"] += sign * size.memory_bytes
        self.version += 1


class SandboxLedger:
    """Implements `ElasticLedger` of `framework.ledger`."""

    name = "sandboxes"

    def __init__(self, settings: ProviderSettings, scheduler_names: frozenset[str] | None) -> None:
        """`scheduler_names`: schedulerNames of the pods that count; None: all."""
        self.settings = settings
        self._names = scheduler_names
        self._messages = Messages(settings.messages)
        self.units: Sequence[Unit] = [Unit(one) for one in settings.units]
        self.priced: Sequence[Unit] = [unit for unit in self.units if unit.waits_first]
        self.now_s = 0.0
        """Monotonic seconds, as the background task set them last."""
        self._unit_of_row: dict[int, int] = {}
        self.sandboxes: dict[str, Sandbox] = {}
        """uid -> what the pod holds; pods on other rows hold nothing, and are kept in case their row joins a unit."""
        self.ended: dict[str, Sandbox] = {}
        """The same for bound pods that left their node and whose outcome is not known yet."""
        self.version_of_nodes = 0

    # -- Ledger ----------------------------------------------------------------------------------------------------

    def is_used_by(self, pod: Pod) -> bool:
        return self._names is None or pod.spec.scheduler_name in self._names

    def version(self, row: int) -> int:
        unit = self.unit_of(row)
        return self.version_of_nodes + (0 if unit is None else unit.version)

    def fits(self, pod: Pod, row: int) -> str:
        """Returns why the unit of the row does not accept the pod now, as a message for users; empty if it does, or if the row has no
        unit.
        """
        unit = self.unit_of(row)
        if unit is None or pod.uid in self.sandboxes:
            return ""
        cause = self.cause_of(unit, pod)
        return "" if cause is None else refusal_of(unit, cause)

    def take(self, pod: Pod, row: int) -> Mapping[str, str]:
        """Takes a token and the permission of the breaker. The binding needs no annotations."""
        if pod.uid not in self.sandboxes:
            unit = self.unit_of(row)
            taken = self._add(pod, row)
            taken.kept_from = [one for one in self.priced if one is not unit and pod.uid in one.kept]
            if unit is not None:
                taken.attempt = unit.breaker.take(self.now_s)
                taken.token = unit.rate.take(self.now_s)
                assert taken.attempt is not None, f"{pod.key}: {unit.name} accepts pods"
                assert taken.token is not None, f"{pod.key}: {unit.name} has a token"
                if unit.breaker.state is BreakerState.CLOSED:
                    unit.window.take(taken.attempt)
                unit.taken += 1
                unit.version += 1
        return NO_ANNOTATIONS

    def restore(self, pod: Pod, row: int) -> None:
        """Accounts for a bound pod. If it does not run yet and another process has placed it, a token is taken for it."""
        known = self.sandboxes.get(pod.uid)
        if known is not None and known.row == row:
            return
        if known is not None:
            self.release(pod.uid)
        added = self._add(pod, row)
        added.is_bound = True
        added.is_started = pod.phase != "Pending"
        if added.is_started:
            self._meter(added)
        elif added.unit is not None:
            added.token = added.unit.rate.take(self.now_s)

    def release(self, uid: str) -> None:
        sandbox = self.sandboxes.pop(uid, None)
        if sandbox is None:
            return
        self._unmeter(sandbox)
        if sandbox.unit is None:
            return
        sandbox.unit.count(sandbox.size, -1)
        if sandbox.is_bound and sandbox.token is not None and sandbox.token.is_open:
            sandbox.left_s = self.now_s
            self.ended[uid] = sandbox
            return
        if sandbox.token is not None:
            sandbox.unit.rate.give_back(sandbox.token, self.now_s)
        if sandbox.attempt is not None and not sandbox.is_bound:
            sandbox.unit.window.settled(sandbox.attempt)
            sandbox.unit.breaker.give_back(sandbox.attempt, self.now_s)

    def set_node(self, row: int, node: Node | None) -> None:
        index = NO_UNIT if node is None else self._index_of(node)
        before = self._unit_of_row.get(row, NO_UNIT)
        if index == before:
            return
        self._unit_of_row.pop(row, None)
        if index != NO_UNIT:
            self._unit_of_row[row] = index
        self.version_of_nodes += 1
        unit = self.unit_of(row)
        for one in self.sandboxes.values():
            if one.row == row:
                is_metered = one.is_metered
                self._unmeter(one)
                if one.unit is not None:
                    one.unit.count(one.size, -1)
                    if one.attempt is not None:
                        one.unit.window.settled(one.attempt)
                one.unit = unit
                if unit is not None:
                    unit.count(one.size, 1)
                if is_metered:
                    self._meter(one)
                one.token = one.attempt = None

    def elastic(self, node: Node) -> frozenset[str]:
        index = self._index_of(node)
        return ELASTIC_RESOURCES if index != NO_UNIT and self.units[index].settings.is_elastic else frozenset()

    def _index_of(self, node: Node) -> int:
        """Returns the number of the first unit that selects the node."""
        return next((n for n, unit in enumerate(self.units) if unit.settings.selects(node.labels)), NO_UNIT)

    def held(self) -> Mapping[str, object]:
        return {
            uid: (one.row, None if one.unit is None else one.unit.name, one.size) for uid, one in self.sandboxes.items()
        }

    def empty_copy(self) -> SandboxLedger:
        return SandboxLedger(self.settings, self._names)

    def _add(self, pod: Pod, row: int) -> Sandbox:
        added = self.sandboxes[pod.uid] = Sandbox(self.unit_of(row), row, pod, self.now_s)
        if added.unit is not None:
            added.unit.count(added.size, 1)
        return added

    # -- units -----------------------------------------------------------------------------------------------------

    @property
    def has_rows(self) -> bool:
        return bool(self._unit_of_row)

    def unit_of(self, row: int) -> Unit | None:
        index = self._unit_of_row.get(row, NO_UNIT)
        return None if index == NO_UNIT else self.units[index]

    def rows_of(self, units: Sequence[Unit]) -> Iterator[int]:
        """Yields the rows of these units."""
        wanted = {number for number, unit in enumerate(self.units) if unit in units}
        return (row for row, number in self._unit_of_row.items() if number in wanted)

    def indices(self, rows: Rows) -> Int32:
        """Returns int32[rows]: the number of each row's unit, or NO_UNIT."""
        return np.array([self._unit_of_row.get(row, NO_UNIT) for row in rows.tolist()], np.int32)

    def cause_of(self, unit: Unit, pod: Pod) -> Cause | None:
        """Returns why the unit does not accept the pod now; None if it does. Marks the unit as wanted if the pod waits for it.

        Ignores prices: they are a rule of one domain (`cause_with_price`), and pods of other domains use the unit, too.
        """
        owner = owner_of(pod)
        if unit.spared.get(owner) == math.inf and unit.breaker.state is not BreakerState.CLOSED:
            unit.spared[owner] = self.now_s + SPARED_S
        cause = unit.cause(template_of(pod), unit.settings.sizes.rounded(*size_of(pod)), self.now_s, owner)
        if cause in PACED or (cause is Cause.QUOTA and unit.waits_first):
            unit.is_wanted = True
        return cause

    def cause_with_price(self, unit: Unit, pod: Pod) -> Cause | None:
        """The same as `cause_of`, but also refuses pods that must wait for other nodes because of the price."""
        if not unit.waits_first or pod.uid in unit.payers:
            return self.cause_of(unit, pod)
        cause = unit.cause(template_of(pod), unit.settings.sizes.rounded(*size_of(pod)), self.now_s)
        return cause if cause in (Cause.TEMPLATE, Cause.SIZE) else Cause.PRICE

    def has_place(self, pod: Pod) -> bool:
        """Reports whether a unit with a quota accepts pods of this size now, whatever their images, owner and price.

        A unit with a cause of PACED is marked as wanted and counts as one that accepts no pods: the background task requeues the pods
        that wait for it as the unit accepts them.
        """
        found = False
        for unit in self.units:
            if unit.settings.quota != Quota():
                cause = unit.cause(NO_TEMPLATE, unit.settings.sizes.rounded(*size_of(pod)), self.now_s)
                unit.is_wanted |= cause in PACED
                found |= cause is None and not unit.is_wanted
        return found

    def unpriced(self, rows: Rows) -> Rows:
        """Returns the rows that do not belong to a unit with `waitFirst`."""
        if not self.priced:
            return rows
        waits = np.array([*(unit.waits_first for unit in self.units), False], np.bool_)
        kept: Rows = rows[~waits[self.indices(rows)]]
        return kept

    def paced(self, rows: Rows) -> tuple[Rows, Sequence[Pace]]:
        """Returns the rows without a unit, and the paces of the units of the other rows. Ignores the window of creates, which lasts
        only seconds.
        """
        indices = self.indices(rows)
        found = [_pace(unit, rows[indices == number], self.now_s) for number, unit in enumerate(self.units)]
        return rows[indices == NO_UNIT], [pace for pace in found if len(pace.rows)]

    # -- outcomes of sandboxes ---------------------------------------------------------------------------------------

    def bound(self, uid: str) -> None:
        """Records that the API server has bound the pod: its virtual kubelet creates a sandbox."""
        found = self.sandboxes.get(uid)
        if found is not None:
            found.is_bound = True
            if found.unit is not None and found.attempt is not None:
                found.unit.window.bound(found.attempt, self.now_s)

    def learn(self, outcome: PodOutcome) -> Failure | None:
        """Passes the outcome of a bound pod to its unit. Returns the kind of failure if it is a new failure, else None."""
        pod = outcome.pod
        found = self.sandboxes.get(pod.uid) or self.ended.pop(pod.uid, None)
        if found is None:
            return None
        has_begun = bool(outcome.began_s or pod.phase in ("Running", "Succeeded"))
        if has_begun and not found.is_started:
            self._starts(found, outcome)
        if found.unit is None:
            return None
        found.is_bound = True
        is_first = found.token is not None and found.token.is_open
        if has_begun:
            if is_first:
                self._succeeded(found, found.unit)
            return None
        has_failed = outcome.reason == PROVIDER_FAILED or pod.phase == "Failed"
        if not (has_failed and is_first):
            return None
        failure = self._messages.classify(outcome.message, outcome.reason)
        self._failed(found, found.unit, failure, outcome.message)
        return failure

    def expire(self) -> None:
        """Applies what depends only on time: creates that survived, quarantines that ended, and pods that were deleted before their
        sandbox started and whose outcomes are no longer awaited.
        """
        for uid in [uid for uid, one in self.ended.items() if one.left_s + OUTCOME_MAX_S <= self.now_s]:
            sandbox = self.ended.pop(uid)
            assert sandbox.unit is not None, "kept for its outcome"
            assert sandbox.token is not None, "kept for its outcome"
            sandbox.unit.rate.on_failed(sandbox.token)
            if sandbox.attempt is not None:
                sandbox.unit.window.settled(sandbox.attempt)
                sandbox.unit.breaker.on_neutral(sandbox.attempt, self.now_s)
        for unit in self.units:
            for attempt in unit.window.settle(self.now_s):
                unit.breaker.on_survived(attempt)
            if any(until_s <= self.now_s for until_s in unit.spared.values()):
                unit.spared = {owner: until_s for owner, until_s in unit.spared.items() if until_s > self.now_s}
                unit.version += 1
                unit.is_wanted |= unit.breaker.state is not BreakerState.CLOSED
            if any(until_s <= self.now_s for until_s, _ in unit.refused.values()):
                unit.refused = {key: found for key, found in unit.refused.items() if found[0] > self.now_s}
                unit.version += 1
                unit.is_wanted = True

    # -- costs -----------------------------------------------------------------------------------------------------

    def _starts(self, found: Sandbox, outcome: PodOutcome) -> None:
        """Records that the pod has started. The first version of the pod that shows this may also show its end."""
        found.is_started = True
        if outcome.ended_s:
            hours = max(0.0, outcome.ended_s - outcome.began_s) / SECONDS_PER_HOUR
            for meter, per_hour in self._meters(found):
                meter.add(hours * per_hour)
        elif outcome.pod.uid in self.sandboxes:
            self._meter(found)

    def _meter(self, one: Sandbox) -> None:
        one.is_metered = True
        for meter, per_hour in self._meters(one):
            meter.start(per_hour, self.now_s)

    def _unmeter(self, one: Sandbox) -> None:
        if one.is_metered:
            one.is_metered = False
            for meter, per_hour in self._meters(one):
                meter.stop(per_hour, self.now_s)

    @staticmethod
    def _meters(one: Sandbox) -> Iterator[tuple[CostMeter, float]]:
        if one.unit is not None:
            yield one.unit.spent, one.unit.per_hour(one.requests)
        for unit in one.kept_from:
            yield unit.saved, unit.per_hour(one.requests)

    # -- outcomes --------------------------------------------------------------------------------------------------

    def _succeeded(self, found: Sandbox, unit: Unit) -> None:
        assert found.token is not None, "the first outcome"
        unit.created += 1
        unit.rate.on_success(found.token)
        if found.attempt is not None:
            unit.window.survived(found.attempt, self.now_s)
            unit.breaker.on_success(found.attempt)
        if unit.breaker.state is BreakerState.CLOSED:
            unit.spared.clear()
        unit.version += 1

    def _failed(self, found: Sandbox, unit: Unit, failure: Failure, message: str) -> None:
        assert found.token is not None, "the first outcome"
        unit.failed += 1
        if failure is Failure.THROTTLED:
            unit.rate.on_throttled(found.token, self.now_s)
        else:
            unit.rate.on_failed(found.token)
        if found.attempt is not None:
            if failure is Failure.TRANSIENT:
                unit.window.failed(found.attempt, self.now_s)
                unit.breaker.on_failure(found.attempt, self.now_s)
                unit.spare(found.owner, self.now_s + SPARED_S)
            else:
                unit.window.settled(found.attempt)
                unit.breaker.on_neutral(found.attempt, self.now_s)
        if failure is Failure.PERMANENT:
            if len(unit.refused) >= QUARANTINED_MAX:
                unit.refused.pop(next(iter(unit.refused)))
            unit.refused[found.template] = (self.now_s + QUARANTINE_S, message)
        unit.version += 1


def _pace(unit: Unit, rows: Rows, now_s: float) -> Pace:
    quota, used = unit.settings.quota, unit.used
    left = (
        math.inf if most is None else max(0, most - used[name])
        for name, most in (("cpu", quota.cpu_milli), ("memory", quota.memory_bytes), ("pods", quota.pods))
    )
    if unit.breaker.state is not BreakerState.CLOSED:
        return Pace(rows, 0.0, 0.0, *left)
    return Pace(rows, unit.rate.available(now_s), unit.rate.per_second, *left)


def refusal_of(unit: Unit, cause: Cause) -> str:
    return f"node(s) of serverless unit {unit.name}: {cause.value}"
