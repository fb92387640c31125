"""Handover of a node from one domain to another while different replicas lead them.

The API server prevents two binds of a pod, but not two leaders that bind to one node. The new leader must not use the node
while binds of the old leader are in flight. No timeout is safe, because a watch may lag without a bound. So the old leader
confirms the move. Each leader writes two annotations to its Lease with every renewal:

- `nodes-seen`: a resourceVersion of nodes up to which it has seen all changes, recorded when it had no bind in flight to a node
  that had left its domains. `SendCheck` prevents later binds to such a node.
- `node-selection`: its selection rules. Other leaders need them, because configurations may differ during a rolling update.

A row that joins a domain at version v is withheld until no other lease blocks it. A lease does not block if it is free (released,
or expired for at least a bind deadline), or if its holder has seen v and does not claim the node. If the holder has seen a newer version
than this process, a consistent read must also show the node unchanged, since a watch may lag by a minute while no node changes.
Then the row is withheld until the cache accounts for all pods that a consistent read shows on the node. If the rules of two
leaders claim one node, both leave it unused. Rows that move between domains of one process are never withheld, because both use
the same cache. Owned and run by `Program` in one task.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import aclosing
from typing import Final

import anyio
import msgspec

from multisched.client.errors import ApiError
from multisched.client.lease import LeaseKeeper
from multisched.client.lease_record import NOT_THERE, Holding, LeaseWatcher
from multisched.client.lister import MalformedAnswerError, list_pages
from multisched.client.reflector import Reflector
from multisched.config.nodes import NodeRouter, NodeSelection, lease_groups
from multisched.config.schema import Configuration
from multisched.framework.ports import Clock
from multisched.model.decode_metadata import WireIdentity
from multisched.model.decode_selectors import Wire
from multisched.model.objects import Node
from multisched.model.version import Version, is_covered, version_of
from multisched.model.wire import Transport, TransportError
from multisched.shell.domain import DomainWorker
from multisched.shell.ingest.pods_and_nodes import PodIngest
from multisched.shell.ingest.router import Router
from multisched.state.cluster_cache import ClusterCache
from multisched.state.domain_rows import DomainRows

logger = logging.getLogger(__name__)

SEEN_ANNOTATION: Final = "multisched.io/nodes-seen"
SELECTION_ANNOTATION: Final = "multisched.io/node-selection"
SELECTION_CHARS_MAX: Final = 128 * 1024
"""Half of the size limit of all annotations. A longer selection is not written, and then no other leader can take over nodes of
this process."""
PERIOD_S: Final = 0.5
"""Period of the checks. Annotations reach other leaders with the next renewal of the lease."""
NODES_LISTED_MAX: Final = 16
"""Maximum number of nodes to admit for which nodes and pods are listed per node; beyond it, all nodes and pods are listed."""
SELECTIONS_MAX: Final = 16
"""Maximum number of node selections of other configurations that are kept compiled."""
REPORTED_MAX: Final = 1_000
"""Maximum number of withheld rows remembered as logged."""


class _Withheld(msgspec.Struct, frozen=True):
    """A withheld row, and the node version with which it joined."""

    domain: str
    rows: DomainRows
    row: int
    version: Version


class _Ahead(msgspec.Struct, frozen=True):
    """A leader that has seen newer node versions than this process."""

    obstacle: str
    seen: Version


class _ListedNode(Wire):
    """The metadata of a node in a list."""

    metadata: WireIdentity


class _Claims(msgspec.Struct, frozen=True):
    """Another configuration's node selection, compiled."""

    router: NodeRouter
    groups: Mapping[str, str]

    def claims(self, lease: str, node: Node) -> bool:
        """Reports whether a domain under the lease may use the node, other than by slices that its lender offers."""
        domains = [domain for domain, group in self.groups.items() if group == lease]
        return any(
            self.router.usable_by(domain)(node) and not self.router.sliced_for(domain)(node) for domain in domains
        )


class Handover:
    """Handover of nodes: withholds a node that joins a domain until no bind of its former leader is in flight.

    Leases are identified by group, without the common name prefix.
    """

    def __init__(
        self,
        configuration: Configuration,
        transport: Transport,
        clock: Clock,
        namespace: str,
        cache: ClusterCache,
        router: Router,
        pods: PodIngest,
        nodes: Reflector,
        pod_selector: str,
        relist: Callable[[float], Awaitable[None]],
    ) -> None:
        """`relist`: waits until the lists of nodes and pods began after the given monotonic time."""
        self._relist = relist
        self._configuration = configuration
        self._transport = transport
        self._clock = clock
        self._namespace = namespace
        self._cache = cache
        self._router = router
        self._pods = pods
        self._nodes = nodes
        self._pod_selector = pod_selector
        selection = NodeSelection.of(configuration)
        written = selection.written()
        self._selection = written if len(written) <= SELECTION_CHARS_MAX else ""
        self._groups = lease_groups(selection)
        self._served = configuration.served
        self._keepers: Mapping[str, LeaseKeeper] = {}
        self._leases = set(self._groups.values())
        """Groups of all known leases, of this and other configurations."""
        self._settled: set[str] = set()
        """Held leases whose former holders' binds have ended and are in the cache."""
        self._open: set[str] = set()
        """Domains that this process leads."""
        self._watchers: dict[str, LeaseWatcher] = {}
        self._selections: dict[str | None, _Claims | None] = {}
        self._seen: dict[str, str] = {}
        self._reported: set[tuple[str, int, Version]] = set()

    def guard(self, keepers: Mapping[str, LeaseKeeper], rows: Mapping[str, DomainRows]) -> None:
        """Starts withholding rows. `keepers`: by group; `rows`: by domain. Without keepers there is one process, and no row is withheld."""
        self._keepers = keepers
        if keepers:
            for domain, its_rows in rows.items():
                its_rows.may_join = lambda node, domain=domain: domain not in self._open or self._is_alone  # type: ignore[misc]
            self._publish()

    # -- leading ---------------------------------------------------------------------------------------------------

    def held_before_list(self, groups: Iterable[str]) -> None:
        """Marks leases as settled that allowed binds before the first list began: the list contains all binds of former holders."""
        self._settled.update(groups)

    async def judge_new_leases(self, domain: str) -> None:
        """Decides whether leases that this process created are new, or had been deleted while another process held them.

        Must be called after the first lists, with the domain's lease held. Relists. If pods of this scheduler are on nodes, the
        lease may have been deleted while held, so it allows no binds for one lease duration, as after any other holder. A list that
        began before the creation is not sufficient, because a holder may have bound since then (I9).
        """
        made = self._created_without_record(self._keepers)
        if not made:
            return
        await self._relist(max(keeper.term.creation_began_at for keeper in made.values()))
        # Another domain of this process may have decided in the meantime, and begun to bind.
        made = self._created_without_record(made)
        is_led = self._may_have_unrecorded_holder()
        for group, keeper in made.items():
            if is_led:
                self.lost(group)
            else:
                keeper.term.count_as_new()
        if is_led and self._groups[domain] in made:
            fields = {"domain": domain, "seconds": round(made[self._groups[domain]].term.unrecorded_holder_wait_s(), 1)}
            logger.info(
                "the lease was missing, but pods of this scheduler are on nodes: waiting for a possible former holder",
                extra=fields,
            )

    @staticmethod
    def _created_without_record(keepers: Mapping[str, LeaseKeeper]) -> dict[str, LeaseKeeper]:
        return {group: keeper for group, keeper in keepers.items() if keeper.term.unrecorded_holder_wait_s() > 0}

    def _may_have_unrecorded_holder(self) -> bool:
        """Reports whether a missing lease may have been deleted while it was held: pods of this scheduler are on nodes. Without such
        pods no process has led yet."""
        return any(entry.pod.spec.scheduler_name in self._served for entry in self._cache)

    def lost(self, group: str) -> None:
        """Handles the loss of a lease: another process may bind under it from now on."""
        self._settled.discard(group)

    @property
    def _is_alone(self) -> bool:
        """True if no other process can bind under any lease, and all binds of other processes are in the cache."""
        return self._leases <= self._settled

    def is_settled(self, domain: str) -> bool:
        """Reports whether the lists are new enough to lead the domain."""
        return self._groups[domain] in self._settled and self._is_alone

    async def others(self, domain: str) -> Mapping[str, Holding | None]:
        """Returns the other leases under which binds may be in flight: group -> holding, or None if free.

        A new leader calls it before its list, so that the list contains all changes that these holders have seen. Waits until the
        other leases of this process allow binds, so that a process that takes over several domains takes their rows at once.
        """
        group = self._groups[domain]
        self._discover(self._keepers[group].inherited)
        waits_s = (keeper.term.may_bind_in_s() for keeper in self._keepers.values())
        await anyio.sleep(max((wait_s for wait_s in waits_s if wait_s < math.inf), default=0.0))
        return await self._read({group})

    def open(self, worker: DomainWorker, others: Mapping[str, Holding | None]) -> None:
        """Opens a domain that this process now leads. Withholds rows to which other leaders may still bind."""
        domain, rows = worker.name, self._router.rows_of(worker)
        self._settled.add(self._groups[domain])
        self._open.add(domain)
        is_behind = bool(self._ahead(others))
        for row in rows.rows.tolist():
            node = self._cache.nodes.node(row)
            if is_behind or self._obstacle(domain, node, node.version, others):
                rows.withhold(row, node)

    # -- running ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Publishes the annotations and admits rows, periodically until cancelled."""
        while self._keepers:
            self._publish()
            await self._admit()
            await anyio.sleep(PERIOD_S)

    def waiting(self) -> str:
        """Returns a message with the number of withheld nodes; empty if there are none."""
        names = sorted({self._cache.nodes.node(one.row).name for one in self._withheld()})
        count = "1 node waits" if len(names) == 1 else f"{len(names)} nodes wait"
        return f"{count} for another leader, for instance {names[0]}" if names else ""

    def _publish(self) -> None:
        workers = self._router.workers()
        for group, keeper in self._keepers.items():
            led = [worker for worker in workers if self._groups[worker.name] == group]
            shown = {SELECTION_ANNOTATION: self._selection}
            if all(worker.name in self._open for worker in led):
                if not any(worker.has_strayed_binds for worker in led):
                    self._seen[group] = self._nodes.position
                shown[SEEN_ANNOTATION] = self._seen.get(group, "")
            keeper.annotations = shown

    def _withheld(self) -> list[_Withheld]:
        workers = [worker for worker in self._router.workers() if worker.name in self._open]
        found = [(worker.name, self._router.rows_of(worker)) for worker in workers]
        return [_Withheld(name, rows, row, version) for name, rows in found for row, version in rows.withheld.items()]

    async def _admit(self) -> None:
        waiting = self._withheld()
        if not waiting:
            return
        others = await self._read(set())
        free = [(one, node) for one in waiting if (node := self._free_node(one, others)) is not None]
        ahead = self._ahead(others)
        if ahead and free:
            unchanged = await self._unchanged([node for _, node in free], ahead)
            for one, node in free:
                if node.uid not in unchanged:
                    self._report(one, node, ahead[0].obstacle)
            free = [(one, node) for one, node in free if node.uid in unchanged]
        are_counted = self._is_alone
        if not are_counted and len(free) > NODES_LISTED_MAX:
            await self._relist(self._clock.monotonic())
            # The rows now join at that list's versions. `others` is still valid: this process published nothing in between.
            free = [(_as_listed(one), node) for one, node in free]
            are_counted = True
        if are_counted:
            for one, node in free:
                self._admit_row(one, node.uid)
            return
        # Concurrently: a node whose list hangs or fails does not block others.
        async with anyio.create_task_group() as tasks:
            for one, node in free:
                tasks.start_soon(self._admit_row_once_counted, one, node)

    def _free_node(self, one: _Withheld, others: Mapping[str, Holding | None]) -> Node | None:
        """Returns the row's node if it is still withheld and no other leader may be binding to it."""
        node = self._cache.nodes.node_at(one.row)
        if node is None or one.rows.withheld.get(one.row) != one.version:
            return None
        obstacle = self._obstacle(one.domain, node, one.version, others)
        if obstacle:
            self._report(one, node, obstacle)
        return None if obstacle else node

    async def _admit_row_once_counted(self, one: _Withheld, node: Node) -> None:
        try:
            are_counted = await self._counts_all_on(node.name)
        except (ApiError, TransportError, MalformedAnswerError) as error:
            extra = {"node": node.name, "error": str(error)}
            logger.warning("cannot list the pods of a withheld node", extra=extra)
            return
        if are_counted:
            self._admit_row(one, node.uid)

    def _admit_row(self, one: _Withheld, uid: str) -> None:
        node = self._cache.nodes.node_at(one.row)
        if node is None or node.uid != uid:
            return
        used = self._router.uses_of(one.row)
        one.rows.admit(one.row, one.version)
        uses = self._router.uses_of(one.row)
        self._router.notify_node(node, node, used, uses, self._clock.monotonic())

    async def _unchanged(self, nodes: Sequence[Node], ahead: Sequence[_Ahead]) -> Set[str]:
        """Returns the uids of nodes that a consistent read shows unchanged. The read must cover what the leaders `ahead` have seen."""
        names = [node.name for node in nodes] if len(nodes) <= NODES_LISTED_MAX else [""]
        found: set[tuple[str, Version]] = set()
        try:
            for name in names:
                selector = f"metadata.name={name}" if name else ""
                pages = list_pages(self._transport, "/api/v1/nodes", field_selector=selector)
                async with aclosing(pages):
                    async for page in pages:
                        if all(is_covered(one.seen, version_of(page.version)) for one in ahead):
                            found.update(_identity(raw) for raw in page.items)
        except (ApiError, TransportError, MalformedAnswerError, msgspec.MsgspecError) as error:
            logger.warning("cannot list withheld nodes", extra={"error": str(error)})
            return set()
        return {node.uid for node in nodes if (node.uid, node.version) in found}

    async def _counts_all_on(self, name: str) -> bool:
        """Reports whether the cache accounts for every pod that a consistent read shows on the node."""
        selector = ",".join(part for part in (f"spec.nodeName={name}", self._pod_selector) if part)
        pages = list_pages(self._transport, "/api/v1/pods", field_selector=selector, page_items=0)
        async with aclosing(pages):
            async for page in pages:
                if not all(self._pods.matches_cache(raw) for raw in page.items):
                    return False
        return True

    def _report(self, one: _Withheld, node: Node, obstacle: str) -> None:
        key = (one.domain, one.row, one.version)
        if key not in self._reported:
            if len(self._reported) >= REPORTED_MAX:
                self._reported.clear()
            self._reported.add(key)
            logger.info("node withheld", extra={"node": node.name, "domain": one.domain, "why": obstacle})

    # -- other leaders ---------------------------------------------------------------------------------------------

    async def _read(self, but: set[str]) -> Mapping[str, Holding | None]:
        """Reads every lease that is not settled, including leases that only another configuration names. `but`: leases to leave out."""
        found: dict[str, Holding | None] = {}
        while True:
            missing = self._leases - self._settled - but - found.keys()
            if not missing:
                return found
            for group in sorted(missing):
                found[group] = await self._read_one(group)
                holding = found[group]
                if holding is not None:
                    self._discover(holding.annotations)

    async def _read_one(self, group: str) -> Holding | None:
        keeper = self._keepers.get(group)
        if keeper is not None and keeper.term.is_leading:
            # Once the lease allows binds, its former holder has no bind in flight. The caller lists after this read.
            return (
                None
                if keeper.term.may_bind()
                else Holding("this process, which waits for the former holder's binds", {})
            )
        watcher = self._watchers.get(group)
        if watcher is None:
            settings = self._configuration.lease
            watcher = self._watchers[group] = LeaseWatcher(
                self._transport,
                self._clock,
                self._namespace,
                f"{settings.name_prefix}-{group}",
                duration_s=settings.duration_s,
                grace_s=self._configuration.client.bind_timeout_s,
            )
        holding = await watcher.read()
        return None if holding is NOT_THERE and not self._may_have_unrecorded_holder() else holding

    def _discover(self, annotations: Mapping[str, str]) -> None:
        claims = self._claims(annotations)
        if claims is not None:
            self._leases.update(claims.groups.values())

    def _obstacle(self, domain: str, node: Node, version: Version, others: Mapping[str, Holding | None]) -> str:
        """Returns why another leader may still bind to the node; empty if no other leader may."""
        for group, holder, holding in self._unsettled(others):
            claims = self._claims(holding.annotations)
            if claims is None:
                return f"{holder}, which does not publish its node selection"
            if self._groups[domain] not in claims.groups.values():
                return (
                    f"{holder}, whose configuration has no lease for domain {domain} and may use the node without waiting for"
                    " that domain"
                )
            if claims.claims(group, node):
                return f"{holder}, whose configuration also claims the node"
            if not is_covered(version, _seen(holding)):
                return f"{holder}, which has not yet seen that the node left"
        return ""

    def _ahead(self, others: Mapping[str, Holding | None]) -> list[_Ahead]:
        """Returns the leaders that have seen newer node versions than this process. They may have claimed any node again."""
        position = version_of(self._nodes.position)
        return [
            _Ahead(
                f"{holder}, which has seen newer node changes than this process and may claim it again", _seen(holding)
            )
            for _, holder, holding in self._unsettled(others)
            if not is_covered(_seen(holding), position)
        ]

    def _unsettled(self, others: Mapping[str, Holding | None]) -> Iterator[tuple[str, str, Holding]]:
        """Yields the leases under which another process may bind: group, a phrase that names the holder, and the holding."""
        for group, holding in others.items():
            if holding is not None and group not in self._settled:
                yield group, f"the lease of {group} is held by {holding.holder}", holding

    def _claims(self, annotations: Mapping[str, str]) -> _Claims | None:
        text = annotations.get(SELECTION_ANNOTATION)
        if text not in self._selections:
            if len(self._selections) >= SELECTIONS_MAX:
                self._selections.clear()
            selection = NodeSelection.read(text) if text else None
            compiled = None if selection is None else _Claims(NodeRouter(selection), lease_groups(selection))
            self._selections[text] = compiled
        return self._selections[text]


def _seen(holding: Holding) -> Version:
    return version_of(holding.annotations.get(SEEN_ANNOTATION, ""))


def _identity(raw: msgspec.Raw) -> tuple[str, Version]:
    metadata = msgspec.json.decode(raw, type=_ListedNode).metadata
    return metadata.uid, version_of(metadata.resource_version)


def _as_listed(one: _Withheld) -> _Withheld:
    return msgspec.structs.replace(one, version=one.rows.withheld.get(one.row, one.version))
