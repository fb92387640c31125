"""How a node goes from one domain to another while different replicas lead them.

The API server guards each pod, nobody guards a node. The new leader must not use it while binds of the old one are
under way. No clock says when that ends, since a watch may lag without a bound. So the old leader says it. Each leader
shows two annotations on its Lease, with every renewal:

- `nodes-seen`: a resourceVersion of nodes up to which it has seen everything. At that moment none of its binds was
  under way to a node that had left its domains. `SendCheck` lets no later one follow.
- `node-selection`: its rules, by which everybody else knows what it claims, though another configuration may be rolled out.

A row that joins a domain at version v is withheld until every other lease is settled. A lease is settled when it is
free: given back, or run out for a bind deadline. It is also settled when its holder has seen v, but nothing beyond what
this process has seen, and does not claim the node. Where it has seen more, a consistent read must show the node as this
process knows it. A watch may be a minute behind where no node changes. Then the row is withheld until all
pods that a consistent read has on the node are counted here. Two leaders whose rules both claim a node both leave it
alone. Rows between domains of one process are never withheld: one cache counts for both. Owned and run by `Program`, one
task.
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
"""Half of what all annotations may take. A longer one is not shown: then no other leader takes a node over from this process."""
PERIOD_S: Final = 0.5
"""Between two looks; a lease is renewed, and so shown to others, each retry period."""
NODES_LISTED_MAX: Final = 16
"""So many nodes that are to be admitted at once are listed one by one; for more of them everything is."""
SELECTIONS_MAX: Final = 16
"""Other configurations that are kept compiled."""
REPORTED_MAX: Final = 1_000
"""Rows whose wait was logged once."""


class _Withheld(msgspec.Struct, frozen=True):
    """A row that waits, and the version with which it joined."""

    domain: str
    rows: DomainRows
    row: int
    version: Version


class _Ahead(msgspec.Struct, frozen=True):
    """A leader that has seen more of nodes than this process."""

    obstacle: str
    seen: Version


class _Head(Wire):
    """Of a node in a list."""

    metadata: WireIdentity


class _Claims(msgspec.Struct, frozen=True):
    """Another configuration's node selection, compiled."""

    router: NodeRouter
    groups: Mapping[str, str]

    def claims(self, lease: str, node: Node) -> bool:
        """True if some domain under the lease may use the node."""
        domains = [domain for domain, group in self.groups.items() if group == lease]
        return any(self.router.usable_by(domain)(node) for domain in domains)


class Handover:
    """Withholds a node that joins a domain until binds of its former leader are over.

    A lease goes by the name of its group here, without the common prefix.
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
        """`relist`: returns once nodes and pods are as new as that moment."""
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
        """Every lease that somebody may bind by, as far as known."""
        self._settled: set[str] = set()
        """Leases of ours whose former holders' binds have ended and are counted here."""
        self._open: set[str] = set()
        """Domains that lead."""
        self._watchers: dict[str, LeaseWatcher] = {}
        self._selections: dict[str | None, _Claims | None] = {}
        self._seen: dict[str, str] = {}
        self._reported: set[tuple[str, int, Version]] = set()

    def guard(self, keepers: Mapping[str, LeaseKeeper], rows: Mapping[str, DomainRows]) -> None:
        """`keepers`: by group; `rows`: by domain. Without keepers there is one process, and nothing to hand over."""
        self._keepers = keepers
        if keepers:
            for domain, its_rows in rows.items():
                its_rows.may_join = lambda node, domain=domain: domain not in self._open or self._is_alone  # type: ignore[misc]
            self._publish()

    # -- leading ---------------------------------------------------------------------------------------------------

    def held_before_list(self, groups: Iterable[str]) -> None:
        """The first list began while these leases could be bound by: what their former holders did is in it."""
        self._settled.update(groups)

    async def judge_new_leases(self, domain: str) -> None:
        """Once the first lists are in, and the domain's lease is held.

        A lease of ours that was not there is new, or somebody deleted it. Lists are read anew. If it may have been
        deleted, its time is waited for, as after any other holder.

        A list from before a lease was made tells nothing: its holder may have bound since (found by simulation; I9).
        """
        made = self._made_unseen(self._keepers)
        if not made:
            return
        await self._relist(max(keeper.term.made_unseen_at for keeper in made.values()))
        made = self._made_unseen(made)  # another domain of ours may have judged them meanwhile, and begun to bind
        is_led = self._may_be_led_unseen()
        for group, keeper in made.items():
            if is_led:
                self.lost(group)
            else:
                keeper.term.count_as_new()
        if is_led and self._groups[domain] in made:
            fields = {"domain": domain, "seconds": round(made[self._groups[domain]].term.unseen_in_s(), 1)}
            logger.info("no lease, and pods of ours stand here: waiting for whoever may have held one", extra=fields)

    @staticmethod
    def _made_unseen(keepers: Mapping[str, LeaseKeeper]) -> dict[str, LeaseKeeper]:
        return {group: keeper for group, keeper in keepers.items() if keeper.term.unseen_in_s() > 0}

    def _may_be_led_unseen(self) -> bool:
        """Somebody may bind by a lease that is not there, since it was deleted: pods of ours that stand somewhere tell that there
        was one. Where none does, nobody has led yet, and nobody is waited for."""
        return any(entry.pod.spec.scheduler_name in self._served for entry in self._cache)

    def lost(self, group: str) -> None:
        """Somebody else may bind by the lease from now on."""
        self._settled.discard(group)

    @property
    def _is_alone(self) -> bool:
        """True if nobody else can bind by any lease, and what others bound by them is counted here."""
        return self._leases <= self._settled

    def is_settled(self, domain: str) -> bool:
        """True if the lists are new enough to lead the domain by."""
        return self._groups[domain] in self._settled and self._is_alone

    async def others(self, domain: str) -> Mapping[str, Holding | None]:
        """Before a new leader's list: who else may bind now. What they have seen by then is in the list.

        Leases that this process has taken as well are waited for, a bind deadline at most. Who takes over several
        domains takes their rows at once.
        """
        group = self._groups[domain]
        self._discover(self._keepers[group].inherited)
        waits_s = (keeper.term.may_bind_in_s() for keeper in self._keepers.values())
        await anyio.sleep(max((wait_s for wait_s in waits_s if wait_s < math.inf), default=0.0))
        return await self._read({group})

    def open(self, worker: DomainWorker, others: Mapping[str, Holding | None]) -> None:
        """The domain leads from now on. Rows to which others may be binding are withheld."""
        domain, rows = worker.name, self._router.rows_of(worker)
        self._settled.add(self._groups[domain])
        self._open.add(domain)
        is_behind = bool(self._ahead(others))
        for row in rows.rows.tolist():
            node = self._cache.nodes.node(row)
            if is_behind or self._obstacle(domain, node, node.version, others):
                rows.withhold(row, node)

    # -- as long as it runs ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled: shows what was seen, and admits rows."""
        while self._keepers:
            self._publish()
            await self._admit()
            await anyio.sleep(PERIOD_S)

    def waiting(self) -> str:
        """For people: how many nodes wait for another leader; empty if none does."""
        names = sorted({self._cache.nodes.node(one.row).name for one in self._withheld()})
        return f"{len(names)} nodes wait for another leader, for instance {names[0]}" if names else ""

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
            # They join with that list now. Nothing was shown to others meanwhile: who was free of them before still is.
            free = [(_as_listed(one), node) for one, node in free]
            are_counted = True
        if are_counted:
            for one, node in free:
                self._let_in(one, node.uid)
            return
        async with anyio.create_task_group() as tasks:  # side by side: one that hangs or fails holds up no other
            for one, node in free:
                tasks.start_soon(self._let_in_once_counted, one, node)

    def _free_node(self, one: _Withheld, others: Mapping[str, Holding | None]) -> Node | None:
        """The row's node, if it still waits and nobody else may be binding to it."""
        node = self._cache.nodes.node_at(one.row)
        if node is None or one.rows.withheld.get(one.row) != one.version:
            return None
        obstacle = self._obstacle(one.domain, node, one.version, others)
        if obstacle:
            self._report(one, node, obstacle)
        return None if obstacle else node

    async def _let_in_once_counted(self, one: _Withheld, node: Node) -> None:
        try:
            are_counted = await self._counts_all_on(node.name)
        except (ApiError, TransportError, MalformedAnswerError) as error:
            extra = {"node": node.name, "error": str(error)}
            logger.warning("pods of a node that joins cannot be listed", extra=extra)
            return
        if are_counted:
            self._let_in(one, node.uid)

    def _let_in(self, one: _Withheld, uid: str) -> None:
        node = self._cache.nodes.node_at(one.row)
        if node is None or node.uid != uid:
            return
        used = self._router.uses_of(one.row)
        one.rows.admit(one.row, one.version)
        uses = self._router.uses_of(one.row)
        self._router.notify_node(node, node, used, uses, self._clock.monotonic())

    async def _unchanged(self, nodes: Sequence[Node], ahead: Sequence[_Ahead]) -> Set[str]:
        """Of those that nobody can have seen otherwise than they are known here. By a read as new as what others have seen."""
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
            logger.warning("nodes that join cannot be listed", extra={"error": str(error)})
            return set()
        return {node.uid for node in nodes if (node.uid, node.version) in found}

    async def _counts_all_on(self, name: str) -> bool:
        """True if every pod that the API server has on the node is counted here: the last leader's binds among them."""
        selector = ",".join(part for part in (f"spec.nodeName={name}", self._pod_selector) if part)
        pages = list_pages(self._transport, "/api/v1/pods", field_selector=selector, page_items=0)
        async with aclosing(pages):
            async for page in pages:
                if not all(self._pods.is_in_step(raw) for raw in page.items):
                    return False
        return True

    def _report(self, one: _Withheld, node: Node, obstacle: str) -> None:
        key = (one.domain, one.row, one.version)
        if key not in self._reported:
            if len(self._reported) >= REPORTED_MAX:
                self._reported.clear()
            self._reported.add(key)
            logger.info("node waits", extra={"node": node.name, "domain": one.domain, "why": obstacle})

    # -- the others ------------------------------------------------------------------------------------------------

    async def _read(self, but: set[str]) -> Mapping[str, Holding | None]:
        """Every lease that is not settled, as it is now. A lease that another configuration names is read, too."""
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
            # Once it may be bound by, nothing of its former holder is on its way; whoever asks lists after that.
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
        return None if holding is NOT_THERE and not self._may_be_led_unseen() else holding

    def _discover(self, annotations: Mapping[str, str]) -> None:
        claims = self._claims(annotations)
        if claims is not None:
            self._leases.update(claims.groups.values())

    def _obstacle(self, domain: str, node: Node, version: Version, others: Mapping[str, Holding | None]) -> str:
        """Why somebody else may still bind to the node; empty: nobody does."""
        for group, who, holding in self._unsettled(others):
            claims = self._claims(holding.annotations)
            if claims is None:
                return f"{who}, which does not say what nodes it uses"
            if self._groups[domain] not in claims.groups.values():
                return f"{who}, whose configuration has no lease for domain {domain}, and would not ask before it takes the node"
            if claims.claims(group, node):
                return f"{who}, whose configuration gives it the node, too"
            if not is_covered(version, _seen(holding)):
                return f"{who}, which has not seen yet that the node left"
        return ""

    def _ahead(self, others: Mapping[str, Holding | None]) -> list[_Ahead]:
        """Leaders that may have any node again, by what this process has not seen."""
        position = version_of(self._nodes.position)
        return [
            _Ahead(f"{who}, which has seen more of nodes than this process, and may have it again", _seen(holding))
            for _, who, holding in self._unsettled(others)
            if not is_covered(_seen(holding), position)
        ]

    def _unsettled(self, others: Mapping[str, Holding | None]) -> Iterator[tuple[str, str, Holding]]:
        """The leases that somebody may bind by: the group, who holds it in words, and what that one shows."""
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
    metadata = msgspec.json.decode(raw, type=_Head).metadata
    return metadata.uid, version_of(metadata.resource_version)


def _as_listed(one: _Withheld) -> _Withheld:
    return msgspec.structs.replace(one, version=one.rows.withheld.get(one.row, one.version))
