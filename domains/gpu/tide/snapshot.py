"""Builds the input of the planner from this process's cluster state: nodes with cards, inference pods and training gangs.

Owned by the background task; writes nothing and reads no clock. A pod is inference if the settings select it, else training; only pods
with whole cards or fractions of cards count; if a gang has such a pod, all its members count. A fraction counts as whole cards, rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from domains.gpu.cards import CARD_MILLI
from domains.gpu.demand import ANY_CARD, GpuDemand
from domains.gpu.gpu_ledger import GpuLedger
from domains.gpu.hold import Hold
from domains.gpu.tide.planner import TREND_S
from domains.gpu.tide.settings import TideSettings
from domains.gpu.tide.state import GangMember, NodeCards, TrainingGang, WaitingGang, WaitingInference
from multisched.framework.context import PluginContext
from multisched.model.cluster_objects import PodDisruptionBudget
from multisched.model.job_progress import checkpoint_s, retries_left
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Node, Pod
from multisched.model.selectors import NO_EXECUTE, NO_SCHEDULE

NO_MODEL: Final = "a model that no node has"
"""In place of models for a pod that no model of the domain's nodes fits."""
NODE_TAINTS: Final = "node.kubernetes.io/"
"""Taints by which Kubernetes marks nodes that are not ready, under pressure or cordoned."""
SPECS_MAX: Final = 4096
"""Limit of cached entries of `_models_for`."""
NOT_OURS: Final = "another scheduler placed it, or a pod of it"
NO_OWNER: Final = "no controller would create its pod again"
NOT_EVICTABLE: Final = "`evictable` does not select it"
HIDDEN_BUDGETS: Final = "PodDisruptionBudgets cannot be read"


class RunningGang(msgspec.Struct, frozen=True):
    """A training gang and its pods."""

    gang: TrainingGang
    """With `notice` not set: the notices are added later."""
    pods: tuple[Pod, ...]
    """All placed members that are not leaving, by name; also those without cards."""
    protection: str
    """Why it is protected; empty if it is not."""


class Snapshot(msgspec.Struct, frozen=True):
    """The cluster at one moment."""

    nodes: tuple[NodeCards, ...]
    gangs: Mapping[str, RunningGang]
    leaving: Mapping[str, tuple[Pod, ...]]
    """Training gangs of which a member is leaving -> the members that are not."""
    waiting_gangs: tuple[WaitingGang, ...]
    inference_cards: int
    leaving_cards: int
    waiting_inference: tuple[WaitingInference, ...]
    models: tuple[str, ...]
    """See `InferenceState.models`."""
    pod_cards: int
    """See `InferenceState.pod_cards`."""
    has_outside: bool
    """Some nodes have cards of models outside the tide."""
    new_models: tuple[str, ...] = ()
    """See `InferenceState.new_models`."""


class _Group:
    """Members of one gang while they are collected."""

    def __init__(self) -> None:
        self.cards: dict[str, tuple[Pod, GangMember]] = {}
        self.is_leaving = False


class TideSnapshots:
    """Takes snapshots for one domain."""

    def __init__(self, context: PluginContext, ledger: GpuLedger, settings: TideSettings) -> None:
        self._context = context
        self._ledger = ledger
        self._settings = settings
        self._accepted: dict[tuple[int, int], tuple[Pod, tuple[str, ...]]] = {}
        """Ids of spec and annotations -> a pod with these, and the models that it accepts."""
        self._accepted_by: tuple[int, tuple[int, ...]] = -1, ()
        """Version of the nodes and rows of the domain from which `_accepted` was computed: rows can change while nodes do not."""
        self._models: tuple[str, ...] = ()
        self._pod_cards = 1

    def is_inference(self, pod: Pod) -> bool:
        return self._settings.inference.selects(pod.namespace, pod.labels, pod.spec.priority)

    def is_training(self, pod: Pod) -> bool:
        return self._ledger.is_used_by(pod) and not self.is_inference(pod) and self.cards_of(pod) > 0

    def cards_of(self, pod: Pod) -> int:
        """Returns the cards that a pod requests; 0 if it requests none, or by names that have no cards (MIG, time-slicing)."""
        demands = self._ledger.demands(pod)
        return 0 if not demands or demands.problem else demanded_cards(demands.first)

    def gang_of(self, pod: Pod) -> str:
        """Returns the key of the pod's gang, or of the first gang if several start together; for a single pod, its own key."""
        key = self._context.gangs.key_of(pod.uid)
        return pod.key if key is None else min(self._context.gangs.together_with(key))

    def take(self, now_s: float) -> Snapshot:
        """Copies what the planner needs. `now_s`: epoch seconds, used as the start of members that have not started yet."""
        rows = self._rows()
        nodes = [self._context.nodes.node(row) for row in rows]
        self._note_nodes(rows)
        groups: dict[str, _Group] = {}
        inference: list[tuple[Pod, int]] = []
        found: list[NodeCards] = []
        leaving_cards = 0
        for row, node in zip(rows, nodes, strict=True):
            leaving = 0
            for pod, hold in self._holders(row):
                cards = held_cards(hold)
                if self.is_inference(pod):
                    inference.append((pod, 0 if pod.is_leaving else cards))
                else:
                    group = groups.setdefault(self.gang_of(pod), _Group())
                    group.is_leaving |= pod.is_leaving
                    if not pod.is_leaving:
                        group.cards[pod.uid] = pod, GangMember(pod.uid, node.name, cards, self._model(row))
                leaving += cards if pod.is_leaving else 0
            leaving_cards += leaving
            if _accepts_pods(node):
                found.append(self._node_cards(row, node, leaving))
        waiting, waiting_gangs = self._waiting()
        pods = [pod for pod, _ in (*inference, *waiting)]
        models = self._models_of(pods)
        self._pod_cards = max([cards for _, cards in (*inference, *waiting)], default=0) or self._pod_cards
        return Snapshot(
            tuple(found),
            self._gangs(groups, now_s),
            {key: tuple(pod for pod, _ in group.cards.values()) for key, group in groups.items() if group.is_leaving},
            waiting_gangs,
            sum(cards for _, cards in inference),
            leaving_cards,
            tuple(WaitingInference(p.uid, cards, self._models_for(p), p.created_s) for p, cards in waiting),
            models,
            self._pod_cards,
            any(models and node.model not in models for node in found),
            self._accepted_by_any(pod for pod in pods if pod.created_s > now_s - TREND_S) or (),
        )

    # -- nodes -----------------------------------------------------------------------------------------------------------

    def _rows(self) -> Sequence[int]:
        """Returns the rows of the domain that have cards."""
        rows = None if self._context.rows is None else set(self._context.rows().tolist())
        known = ((row, cards) for row, name, cards in self._ledger.rows_with_cards() if name and cards.node.cards)
        return [row for row, _ in known if rows is None or row in rows]

    def _holders(self, row: int) -> Iterator[tuple[Pod, Hold]]:
        for uid, hold in self._ledger.cards(row).holds.items():
            placed = self._context.hold.placed(uid)
            if placed is not None:
                yield placed.pod, hold

    def _model(self, row: int) -> str:
        return self._ledger.cards(row).node.cards[0].model

    def _node_cards(self, row: int, node: Node, leaving: int) -> NodeCards:
        cards = self._ledger.cards(row)
        healthy = [place for place, card in enumerate(cards.node.cards) if card.is_healthy]
        free = sum(cards.free[place] == cards.totals[place] for place in healthy)
        return NodeCards(node.name, self._model(row), len(healthy), free, leaving)

    # -- models ----------------------------------------------------------------------------------------------------------

    def _note_nodes(self, rows: Sequence[int]) -> None:
        version = self._context.nodes.nodes_version, tuple(rows)
        if version != self._accepted_by or len(self._accepted) > SPECS_MAX:
            self._accepted_by = version
            self._accepted.clear()

    def _models_for(self, pod: Pod) -> tuple[str, ...]:
        """Returns the models of cards that the pod accepts, by its demand and its node affinity; empty: any."""
        key = id(pod.spec), id(pod.annotations)
        known = self._accepted.get(key)
        if known is None:
            known = self._accepted[key] = pod, self._accepted_models(pod)
        return known[1]

    def _accepted_models(self, pod: Pod) -> tuple[str, ...]:
        demands, affinity = self._ledger.demands(pod), pod.spec.affinity
        is_open = not affinity.node_selector and affinity.required is None
        if is_open and all(demand.filter is ANY_CARD for demand in demands.by_mode.values()):
            return ()
        every, accepted = set[str](), set[str]()
        for row in self._rows():
            model, node = self._model(row), self._context.nodes.node(row)
            every.add(model)
            if model not in accepted and affinity.matches(node.labels, node.name):
                demand, _ = demands.on(self._ledger.cards(row).node.mode)
                if demand.filter.accepts_model(model):
                    accepted.add(model)
        if accepted == every:
            return ()
        return tuple(sorted(accepted)) or (NO_MODEL,)

    def _models_of(self, inference: Iterable[Pod]) -> tuple[str, ...]:
        """Returns the models of the tide: those that inference accepts. While there is no inference pod, the last result is kept."""
        found = self._accepted_by_any(inference)
        if found is not None:
            self._models = found
        return self._models

    def _accepted_by_any(self, pods: Iterable[Pod]) -> tuple[str, ...] | None:
        """Returns the models that any of the pods accepts, empty for all models; None if there is no such model or no pod."""
        found = {self._models_for(pod) for pod in pods}
        if () in found:
            return ()
        return tuple(sorted({model for models in found for model in models} - {NO_MODEL})) or None

    # -- pods that wait ----------------------------------------------------------------------------------------------------

    def _waiting(self) -> tuple[list[tuple[Pod, int]], tuple[WaitingGang, ...]]:
        """Returns waiting inference pods with their cards, and waiting gangs in the order of the queue."""
        context, inference, gangs = self._context, list[tuple[Pod, int]](), dict[str, int]()
        served = context.scheduler_names
        # Before the sort, because few pods have cards.
        found = [pod for pod in context.pending() if self._ledger.is_used_by(pod)]
        for pod in sorted(found, key=lambda one: (-one.spec.priority, one.created_s, one.key)):
            cards = self.cards_of(pod)
            is_ours = served is None or pod.spec.scheduler_name in served
            if not cards or not is_ours or pod.gates or pod.is_deleting or context.hold.placed(pod.uid) is not None:
                continue
            if self.is_inference(pod):
                inference.append((pod, cards))
                continue
            key = context.gangs.key_of(pod.uid)
            if key is None or not context.gangs.why_not_yet(key):
                gang = self.gang_of(pod)
                gangs[gang] = gangs.get(gang, 0) + cards
        return inference, tuple(WaitingGang(key, cards) for key, cards in gangs.items())

    # -- gangs -------------------------------------------------------------------------------------------------------------

    def _gangs(self, groups: Mapping[str, _Group], now_s: float) -> dict[str, RunningGang]:
        found = {}
        for key, group in groups.items():
            if not group.is_leaving:
                members = self._all_members(group)
                found[key] = self._gang(key, group, members, now_s)
        return found

    def _all_members(self, group: _Group) -> list[Pod]:
        """Returns the placed members of the gang that are not leaving; also those without cards, such as a launcher."""
        pods = {uid: pod for uid, (pod, _) in group.cards.items()}
        gangs = self._context.gangs
        keys = {key for uid in group.cards if (key := gangs.key_of(uid)) is not None}
        for together in {other for key in keys for other in gangs.together_with(key)}:
            for uid in gangs.placed_members(together):
                placed = self._context.hold.placed(uid)
                if uid not in pods and placed is not None:
                    pods[uid] = placed.pod
        return sorted(pods.values(), key=lambda pod: (pod.key, pod.uid))

    def _gang(self, key: str, group: _Group, pods: Sequence[Pod], now_s: float) -> RunningGang:
        checkpoints = [at_s for pod in pods if (at_s := checkpoint_s(pod.annotations)) is not None]
        retries = [left for pod in pods if (left := retries_left(pod.annotations)) is not None]
        protection = self.protection(pods)
        gang = TrainingGang(
            key=key,
            members=tuple(member for _, member in group.cards.values()),
            started_s=max(pod.started_s or now_s for pod in pods),
            checkpoint_s=max(checkpoints, default=None),
            retries_left=min(retries, default=None),
            is_protected=bool(protection),
        )
        return RunningGang(gang, tuple(pods), protection)

    def protection(self, pods: Sequence[Pod]) -> str:
        """Returns why the gang of these pods is not evicted; empty if it may be. Counts evictions that the watch has not shown yet."""
        served, evictable = self._context.scheduler_names, self._settings.evictable
        for pod in pods:
            if served is not None and pod.spec.scheduler_name not in served:
                return NOT_OURS
            if pod.owner is None:
                return NO_OWNER
            if not evictable.selects(pod.namespace, pod.labels, pod.spec.priority):
                return NOT_EVICTABLE
        return self._kept_by_budget(pods)

    def _kept_by_budget(self, pods: Sequence[Pod]) -> str:
        """Returns which PodDisruptionBudget would stop the eviction before all members are evicted; empty if none does."""
        objects = self._context.objects
        if objects.unreadable(ObjectKind.POD_DISRUPTION_BUDGET):
            return HIDDEN_BUDGETS
        uids = {pod.uid for pod in pods}
        evicted = [pod for pod in self._context.victims.pods() if pod.uid not in uids]
        for namespace in sorted({pod.namespace for pod in pods}):
            budgets = objects.disruption_budgets(namespace)
            members = [pod for pod in pods if pod.namespace == namespace] if budgets else []
            seen: set[str] = set()
            for budget in budgets:
                selected = [pod for pod in members if _is_selected(budget, pod)]
                if budget.malformed or not seen.isdisjoint(pod.uid for pod in selected):
                    return f"PodDisruptionBudget {budget.key} is malformed, or one of several of a pod"
                seen.update(pod.uid for pod in selected)
                used = sum(pod.namespace == namespace and _is_selected(budget, pod) for pod in evicted)
                if selected and len(selected) + used > budget.disruptions_allowed:
                    return f"PodDisruptionBudget {budget.key} allows {budget.disruptions_allowed} disruptions"
        return ""


def held_cards(hold: Hold) -> int:
    """Returns the cards of a hold; fractions are added up and rounded up."""
    if hold.is_whole or not hold.amount.milli:
        return hold.count
    return -(-hold.count * hold.amount.milli // CARD_MILLI)


def demanded_cards(demand: GpuDemand) -> int:
    """Returns the cards of a demand, as `held_cards` does of the hold."""
    if demand.is_counted:
        return 0
    if demand.is_whole or not demand.amount.milli:
        return demand.count
    return -(-sum(part.count * part.amount.milli for part in demand.parts) // CARD_MILLI)


def _accepts_pods(node: Node) -> bool:
    is_marked = any(t.key.startswith(NODE_TAINTS) and t.effect in (NO_SCHEDULE, NO_EXECUTE) for t in node.taints)
    return not (node.is_unschedulable or node.malformed or is_marked)


def _is_selected(budget: PodDisruptionBudget, pod: Pod) -> bool:
    return budget.selector is not None and budget.selector.matches(pod.labels) and pod.name not in budget.disrupted_pods
