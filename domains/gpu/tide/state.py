"""The input (`TideState`) and the output (`TidePlan`) of the tide planner: immutable values.

The background task (`control.py`) and the simulation build a TideState and carry out a TidePlan; `planner.plan` maps one to the other.
Cards are whole GPUs and counted as integers. Times with the suffix `_s` are seconds since the epoch, on the clock of the caller; durations
in seconds have the same suffix, and their description says so. A gang is all pods that start and stop together; a single training pod is a
gang of one. Only nodes, gangs and inference pods of the domain belong in a state.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class NodeCards(msgspec.Struct, frozen=True):
    """The cards of one node that the domain may use; nodes that accept no new pods are left out."""

    name: str
    model: str
    """Model of all its cards; empty if the node names none."""
    total: int
    free: int
    """Cards that no pod holds, neither bound nor assumed nor being deleted."""
    leaving: int = 0
    """Cards of pods that are being deleted, of training and inference; they become free without a further decision."""


class ForecastOrigin(Enum):
    """The source of the expected demand; the values are texts of reports and metrics."""

    HISTORY = "history"
    """Learned from the demand of each inference service."""
    WINDOWS = "windows"
    """The configured windows, since there is too little history."""
    NONE = "none"
    """Neither history nor windows: demand is expected to stay as it is now."""


class DemandForecast(msgspec.Struct, frozen=True):
    """The cards that inference is expected to need, sampled at equal distances; linear between samples, constant beyond.

    `expected_cards` and `upper_cards` have the same length, at least 1; sample i is for `from_s + i * step_s`.
    """

    from_s: float
    step_s: float
    """Distance of two samples in seconds, above 0."""
    expected_cards: tuple[float, ...]
    upper_cards: tuple[float, ...]
    """Upper band: higher demand is unexpected. At least `expected_cards`."""
    error_cards: float = 0.0
    """Backtest error: what the demand rose above the expected rise within notice + grace, at a high quantile. At least 0."""
    origin: ForecastOrigin = ForecastOrigin.HISTORY

    def expected(self, t_s: float) -> float:
        """Returns the expected demand in cards."""
        return self._at(self.expected_cards, t_s)

    def upper(self, t_s: float) -> float:
        """Returns the upper band in cards."""
        return self._at(self.upper_cards, t_s)

    def highest_rise(self, from_s: float, to_s: float) -> float:
        """Returns by how many cards the expected demand within [from_s, to_s] exceeds that at `from_s`, at most; at least 0."""
        inner = range(self._index(from_s) + 1, self._index(to_s) + 1)
        later = [self.expected_cards[i] for i in inner if 0 <= i < len(self.expected_cards)]
        return max(0.0, max([*later, self.expected(to_s)]) - self.expected(from_s))

    @property
    def to_s(self) -> float:
        """Time of the last sample."""
        return self.from_s + self.step_s * (len(self.expected_cards) - 1)

    def _index(self, t_s: float) -> int:
        return int((t_s - self.from_s) // self.step_s)

    def _at(self, cards: tuple[float, ...], t_s: float) -> float:
        place = min(max((t_s - self.from_s) / self.step_s, 0.0), len(cards) - 1.0)
        low = min(int(place), len(cards) - 1)
        high = min(low + 1, len(cards) - 1)
        return cards[low] + (cards[high] - cards[low]) * (place - low)


class DemandSample(msgspec.Struct, frozen=True):
    """The demand of inference at a moment: cards of its running and waiting pods."""

    at_s: float
    cards: int


class WaitingInference(msgspec.Struct, frozen=True):
    """An inference pod that has no node yet."""

    uid: str
    cards: int
    """At least 1."""
    models: tuple[str, ...] = ()
    """Models of cards that it accepts; empty: any."""
    since_s: float = 0.0
    """When it was created."""


class InferenceState(msgspec.Struct, frozen=True, kw_only=True):
    """The inference pods of the domain and what they are expected to need."""

    running_cards: int
    """Cards held by bound and assumed pods that are not being deleted."""
    waiting: tuple[WaitingInference, ...] = ()
    forecast: DemandForecast
    recent: tuple[DemandSample, ...] = ()
    """Demand at earlier plans, oldest first, of `demand.RECENT_S` seconds; `demand.RecentDemand` collects it."""
    models: tuple[str, ...] = ()
    """Models of cards that inference uses or requests; empty: any. Nodes of other models are outside the tide."""
    new_models: tuple[str, ...] = ()
    """Models accepted by the pods that were created within `planner.TREND_S`: cards for the recent rise are of these; empty: any."""
    pod_cards: int = 1
    """Cards of the largest usual inference pod: free cards of a node count toward the headroom in multiples of it."""


class GangMember(msgspec.Struct, frozen=True):
    """A bound pod of a training gang."""

    uid: str
    node: str
    cards: int
    model: str = ""


class GangNotice(msgspec.Struct, frozen=True):
    """A notice that a gang was given and that is stored on its pods."""

    deadline_s: float
    """Not evicted before this moment."""
    for_demand: str = ""
    overrode_min_run_time: bool = False


class TrainingGang(msgspec.Struct, frozen=True, kw_only=True):
    """A running gang of training pods; gangs of which any member is being deleted are left out (`NodeCards.leaving`)."""

    key: str
    """`namespace/name` of the gang, or of the pod; unique in a state."""
    members: tuple[GangMember, ...]
    """All bound members, at least one."""
    started_s: float
    """When the last of its present members started."""
    checkpoint_s: float | None = None
    """Its last checkpoint as published by an annotation; None if it published none. A moment in the future counts as now."""
    retries_left: int | None = None
    """How often its controller will replace it before the workload fails (Job `backoffLimit`); None: not limited."""
    is_protected: bool = False
    """Never evicted: `evictable` does not select it, a PodDisruptionBudget allows no disruption, or another scheduler placed a pod."""
    notice: GangNotice | None = None
    returned_after_eviction_s: float | None = None
    """When it started again after the tide evicted it; None if the tide did not."""

    @property
    def cards(self) -> int:
        return sum(member.cards for member in self.members)


class WaitingGang(msgspec.Struct, frozen=True):
    """A training gang that waits for cards."""

    key: str
    cards: int
    """The cards of all its members."""


class TideState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the planner sees."""

    now_s: float
    nodes: tuple[NodeCards, ...]
    inference: InferenceState
    gangs: tuple[TrainingGang, ...] = ()
    waiting_gangs: tuple[WaitingGang, ...] = ()
    """In the order of the queue."""
    previous_limit_cards: int | None = None
    """`TidePlan.training_limit_cards` of the plan before; None at the first plan. A frozen tide keeps it."""
    evicted_last_hour_cards: int = 0
    """Cards of gangs that the tide evicted in the last hour, for the cap on evictions."""


class Headroom(msgspec.Struct, frozen=True):
    """Cards above the demand that are kept free, under notice or leaving."""

    cards: int
    """
    The larger of the two rises + the error, rounded up to whole pods; at most what the ceiling allows, at least what the floor or
    a window requires.
    """
    forecast_rise_cards: float
    """Rise that the forecast expects within notice + grace from now."""
    recent_rise_cards: float
    """Rise within the same time if the trend of the last minutes continues; used if it exceeds the rise of the forecast."""
    error_cards: float
    """Error of the forecast in its backtest, or the configured minimum if that is larger."""
    trend_cards: int = 0
    """The part of `cards` that only the recent rise requires: they must be of `InferenceState.new_models`."""


class NewNotice(msgspec.Struct, frozen=True):
    """A notice to write on all pods of a gang."""

    gang: str
    deadline_s: float
    """Now + the configured notice."""
    for_demand: str
    """A message that says what needs the cards: `inference: 3 pods wait for 4 cards`."""
    reason: str
    """Why this gang was chosen, as text: cards freed and work lost."""
    cards: int
    overrides_min_run_time: bool = False
    """The gang ran for less than the minimum run time, and demand exceeds the upper band."""


class Withdrawal(msgspec.Struct, frozen=True):
    """A notice to remove from all pods of a gang."""

    gang: str
    reason: str


class DueEviction(msgspec.Struct, frozen=True):
    """A gang whose deadline passed: evict all its members now, by uid."""

    gang: str
    uids: tuple[str, ...]
    cards: int
    work_lost_card_s: float
    """Work since its last checkpoint times its cards, in card-seconds; without checkpoints since its start."""


class UnmetPod(msgspec.Struct, frozen=True):
    """A waiting inference pod for which the tide frees no cards."""

    uid: str
    reason: str


class TidePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions of the planner."""

    is_frozen: bool = False
    """The tide is frozen: no new notice, no eviction, no withdrawal, and the limit of training as before."""
    headroom: Headroom
    demand_cards: int
    """Cards of running and waiting inference pods."""
    target_cards: int
    """Cards that inference has or could take at once after this plan: demand + headroom within floor and ceiling."""
    available_cards: int
    """Cards that inference has or can use: free, leaving or under notice, before this plan's new notices."""
    training_cards: int
    """Cards that training holds on nodes of the tide: with those under notice, without those of leaving pods."""
    training_limit_cards: int
    """Cards that training may hold now on nodes of the tide; a gang starts only if all its cards fit below the limit. At least 0."""
    kept_cards: int = 0
    """Cards below the limit that are kept for the first of `TideState.waiting_gangs`: other gangs start only below the rest."""
    held_until_s: float | None = None
    """Forecast time at which the first waiting gang may start; None: it may start now, no gang waits, or the forecast has no such time."""
    over_cap_cards: int = 0
    """Cards evicted in the last hour beyond the cap. The cap does not stop evictions for inference, only the growth of training."""
    held_for_cards: int = 0
    """Cards that inference is expected to need while training is held back, for `explain`; 0 if it is not held back."""
    notices: tuple[NewNotice, ...] = ()
    withdrawals: tuple[Withdrawal, ...] = ()
    evictions: tuple[DueEviction, ...] = ()
    unmet: tuple[UnmetPod, ...] = ()
    needed_cards: int = 0
    """Cards missing from the target before this plan's new notices; at least 0."""
    noticed_cards: int = 0
    """Cards of this plan's new notices; cards evicted ÷ needed is judged over a day (`demand.NeedTally`)."""
    exceeds_upper: bool = False
    """Demand exceeds the upper band of the forecast."""
    notes: tuple[str, ...] = ()
    """Remarks, as text: no history, not enough gangs that may be evicted, frozen."""
