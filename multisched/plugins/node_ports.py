"""NodePorts: refuses rows where another pod uses a host port that the pod requests."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from multisched.framework.dependency import Dependency
from multisched.framework.events import NODE_ADD, Action, ClusterEvent, EventObject, EventRegistration, Hint, Resource
from multisched.framework.node_view import Codes, Rows
from multisched.framework.points import CycleView, PreFilterResult
from multisched.framework.reasons import ReasonTable
from multisched.framework.status import SKIP, Code
from multisched.framework.traits import Traits
from multisched.model.objects import HostPort, Pod
from multisched.plugins.columns import zeros

_NO_USERS: Mapping[str, int] = {}


class NodePorts:
    """Source: kube-scheduler 1.36, plugins/nodeports/node_ports.go."""

    name = "NodePorts"
    depends_on = Dependency.ROW
    traits = Traits(signs_spec_only=True, wants_room_only=True)

    def __init__(self) -> None:
        self.reasons = ReasonTable(self.name)
        self._taken = self.reasons.code(
            Code.UNSCHEDULABLE, "node(s) didn't have free ports for the requested pod ports"
        )

    def pre_filter(self, cycle: CycleView, pod: Pod) -> PreFilterResult:
        return PreFilterResult() if pod.spec.host_ports else PreFilterResult(SKIP)

    def filter(self, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Returns uint8[rows]: refuses rows where a requested port is taken.

        The cost is linear in the number of rows or of rows where the port is in use, whichever is smaller.
        """
        codes = zeros(rows)
        for port in pod.spec.host_ports:
            users = cycle.nodes.port_users(port.protocol, port.port)
            if len(rows) <= len(users):
                taken = (at for at, row in enumerate(rows.tolist()) if _conflicts(port.ip, users.get(row, _NO_USERS)))
                codes[list(taken)] = self._taken
            elif held := sorted(row for row, ips in users.items() if _conflicts(port.ip, ips)):
                at = rows.searchsorted(held)
                at[at == len(rows)] = 0
                codes[at[rows[at] == held]] = self._taken
        return codes

    def sign(self, pod: Pod) -> Hashable:
        return pod.spec.host_ports

    def events_to_register(self) -> Sequence[EventRegistration]:
        return (
            EventRegistration(ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE, "AssignedPodDelete"), _after_delete),
            EventRegistration(NODE_ADD),
        )


def _conflicts(wanted: str, held: Mapping[str, int]) -> bool:
    """Reports whether the IPs conflict. An empty IP means every address, so it conflicts with all IPs."""
    return bool(held) if not wanted else "" in held or wanted in held


def _after_delete(pod: Pod, old: EventObject, new: EventObject) -> Hint:
    """Queues the pod if the deleted pod used one of its ports and had a node or a nominated node."""
    if not isinstance(old, Pod) or not (old.node or old.nominated_node):
        return Hint.SKIP
    frees = any(_is_same_port(want, held) for want in pod.spec.host_ports for held in old.spec.host_ports)
    return Hint.QUEUE if frees else Hint.SKIP


def _is_same_port(want: HostPort, held: HostPort) -> bool:
    return (want.protocol, want.port) == (held.protocol, held.port) and _conflicts(want.ip, {held.ip: 1})
