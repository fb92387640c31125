"""SharedQuota: the plugin ElasticQuota of a domain whose quotas also limit domains that other processes may lead.

Pods of the lender leave free what is offered to others (`Level.kept`), and ask for it back if nothing else is missing. Pods of a
borrower are placed within what is offered to it, and wait at Permit until that much is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from multisched.framework.background import BackgroundPorts
from multisched.framework.context import PluginContext
from multisched.framework.events import Action, ClusterEvent
from multisched.framework.points import CycleView, PermitResult, PostFilterResult, Refusals
from multisched.framework.preemption import GroupDryRun
from multisched.framework.slice_writes import SlicePorts
from multisched.framework.status import SUCCESS, Code, Status
from multisched.framework.traits import Traits
from multisched.framework.views import Document, ViewPorts, ViewQuery
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Pod
from multisched.plugins.quota.elastic_quota import ElasticQuota
from multisched.plugins.quota.elastic_quota_args import ElasticQuotaArgs
from multisched.plugins.quota.quota_ledger import refusal_of_max
from multisched.plugins.quota.removal import Nominated
from multisched.plugins.quota.shared.borrowing import RoomBorrowing
from multisched.plugins.quota.shared.lending import Demand, RoomLending
from multisched.plugins.quota.shared.room import QuotaRoom
from multisched.plugins.quota.shared.terms import QuotaSharing
from multisched.plugins.slices.driver import NO_SLICE_SET_FIX, SliceDriver
from multisched.plugins.slices.slice_reports import SliceReports

CLAIM_WAIT_S: Final = 10.0
"""How long a pod waits at Permit for a claim."""
OFFERED: Final = ClusterEvent(ObjectKind.ELASTIC_QUOTA_TREE, Action.UPDATE, "QuotaRoomOffered")
"""More of a quota is offered, or has been returned."""
GIVEN_BACK: Final = "waits until other processes give back room of the quota"
NOT_OFFERED: Final = "room of the quota is not offered by the process that leads {}"


class SharedQuota(ElasticQuota):
    """The plugin of one domain under quotas that have several Leases."""

    traits = Traits(reads_objects=(*ElasticQuota.traits.reads_objects, ObjectKind.SLICE_SET))

    def __init__(self, context: PluginContext, args: ElasticQuotaArgs | None, sharing: QuotaSharing) -> None:
        super().__init__(context, args)
        ledger = self._ledger
        room = ledger.room if isinstance(ledger.room, QuotaRoom) else QuotaRoom(ledger, sharing)
        self._room, self._sharing = room, sharing
        self._is_borrower = context.domain in sharing.borrowers
        if context.domain not in room.drivers:  # else a reloaded profile, which continues with the known state
            room.drivers[context.domain] = self._made_driver(context)
        self.driver = room.drivers[context.domain]

    def _made_driver(self, context: PluginContext) -> SliceDriver:
        room, demand = self._room, Demand(self._room, context.pending)
        lending = [RoomLending(room, domain, demand, context.nominations) for domain in self._sharing.borrowers]
        return SliceDriver(
            context,
            room,
            [] if self._is_borrower else lending,
            [RoomBorrowing(room, context.domain)] if self._is_borrower else [],
            SliceReports("no room of quotas is offered to other processes"),
            on_more=lambda: context.notify(OFFERED),
            needs=lambda: room.needs.version + room.demand_version,
            plugin=self.name,
        )

    # -- the protocol ----------------------------------------------------------------------------------------------

    async def run(self, ports: BackgroundPorts) -> None:
        await self.driver.run(ports)

    async def own_slices(self, ports: SlicePorts) -> None:
        """See `framework.slice_writes.SlicingPlugin`."""
        self._room.is_live = True
        await self.driver.own(ports)

    def settle_slices(self) -> None:
        self.driver.settle()

    def pending_changed(self, pod: Pod) -> None:
        super().pending_changed(pod)
        if self._room.is_of_borrower(pod):
            self._room.demand_changed()

    # -- room that another process has -----------------------------------------------------------------------------

    def post_filter(self, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        """Waits if only what other processes may use is missing; else reclaims."""
        waits = self._waits_for_room((pod,), self._other_nominated(pod))
        if waits:
            return PostFilterResult(Status.unresolvable(waits), nominated_node=None)
        found = super().post_filter(cycle, pod, refusals)
        self._note_victims((pod,), found)
        return found

    def post_filter_group(
        self, cycle: CycleView, pods: Sequence[Pod], dry_run: GroupDryRun
    ) -> Generator[None, None, PostFilterResult]:
        waits = self._waits_for_room(pods, self._nominated_outside_group(pods))
        if waits:
            return PostFilterResult(Status.unresolvable(waits), nominated_node=None)
        found = yield from super().post_filter_group(cycle, pods, dry_run)
        self._note_victims(pods, found)
        return found

    def _waits_for_room(self, pods: Sequence[Pod], nominated: Nominated) -> str:
        """Returns what the pods wait for, if no max would refuse them once other processes use only what their pods hold; else empty."""
        ledger, levels = self._ledger, self._ledger.levels_of(pods[0])
        if not levels or any(ledger.levels_of(pod) is not levels or ledger.label_problem(pod) for pod in pods):
            return ""
        items = self._items_of(pods)
        has_guarantees = ledger.has_guarantees
        if self._is_borrower and self._room.pods.amount(levels, items) and not self._is_served():
            return f"{NOT_OFFERED.format(self._sharing.lender)}, which has published no SliceSet: {NO_SLICE_SET_FIX}"
        if refusal_of_max(levels, items, nominated, has_guarantees=has_guarantees, with_kept=False):
            return ""
        if self._is_borrower:
            return NOT_OFFERED.format(self._sharing.lender) if any(map(ledger.refusal, pods)) else ""
        if not refusal_of_max(levels, items, nominated, has_guarantees=has_guarantees, with_kept=True):
            return ""
        for pod in pods:
            self._room.needs.add(pod.uid, levels, ledger.amounts.items(pod))
        self.driver.wake()
        return GIVEN_BACK

    def _is_served(self) -> bool:
        """Reports whether the lender has published an object. Otherwise pods would be evicted for room that is not offered."""
        machine = self._room.borrowed.get(self._room.loan(self._domain))
        return not self._room.is_live or (machine is not None and machine.is_known)

    def _items_of(self, pods: Sequence[Pod]) -> tuple[tuple[str, int], ...]:
        total: dict[str, int] = {}
        for pod in pods:
            for name, amount in self._ledger.amounts.items(pod):
                total[name] = total.get(name, 0) + amount
        return tuple(total.items())

    def _note_victims(self, pods: Sequence[Pod], found: PostFilterResult) -> None:
        """Has borrowers return what victims of a reclaim use, before others of their pods use it."""
        if self._is_borrower or found.preemption is None:
            return
        victims = frozenset(pod.uid for pod in found.preemption.every_victim if self._room.is_of_borrower(pod))
        for pod in pods if victims else ():
            self._room.needs.add(pod.uid, self._ledger.levels_of(pod), self._ledger.amounts.items(pod), victims)
        if victims:
            self.driver.wake()

    # -- Permit ----------------------------------------------------------------------------------------------------

    def permit(self, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        """Holds a pod of a borrower until enough of its leaf is claimed."""
        key = self._room.waiting_at(pod.uid) if self._room.is_live else None
        if key is None:
            return PermitResult(SUCCESS)
        (side,) = self.driver.borrowed
        if side.may_use(key[1], self._room.waiting[key][pod.uid], 0.0):
            side.claim(pod.uid)
            return PermitResult(SUCCESS)
        self.driver.wake()
        return PermitResult(Status(Code.WAIT), CLAIM_WAIT_S)

    def reserve(self, cycle: CycleView, pod: Pod, node: str) -> Status:
        return SUCCESS

    def unreserve(self, cycle: CycleView, pod: Pod, node: str) -> None:
        self._room.forget_claim(pod.uid)

    # -- what people see -------------------------------------------------------------------------------------------

    async def show(self, query: ViewQuery, ports: ViewPorts) -> Callable[[], Document]:
        """See `framework.views.ViewedPlugin`."""
        shown, slices = await super().show(query, ports), self.driver.document()

        def document() -> Document:
            found: dict[str, Any] = {**shown(), "slices": slices}
            return found

        return document

    def health(self, now_s: float) -> str:
        return "; ".join(filter(None, (super().health(now_s), self.driver.health())))
