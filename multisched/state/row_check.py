"""Checks whether a row of the NodeTable is the sum of its node and its pods, for the audit of every row (I4).

Pure: reads the table, changes nothing. `ClusterCache.repair_row` repairs the faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from multisched.framework.volume_users import ClaimKey, users_of
from multisched.model.objects import PODS, Node, Pod
from multisched.model.volumes import Disk
from multisched.state.columns.resources import SCORED
from multisched.state.node_table import NodeTable

Ports = dict[tuple[str, int, str], int]
"""(protocol, port, ip) -> pods on the row that use it."""


Volumes = dict[ClaimKey | Disk, int]
"""Claim or disk -> volumes of pods on the row that use it."""


def row_faults(table: NodeTable, rows: Sequence[int]) -> dict[int, str]:
    """Returns row -> what is wrong there, with both values; skips rows without a node."""
    ports = _ports_held(table, rows)
    volumes = _volumes_held(table, rows)
    counted = table.pod_counts.faults({row: table.pods_by_uid(row).values() for row in rows})
    columns = {name: table.requested(name) for name in table.resources}
    faults: dict[int, str] = {}
    for row in rows:
        node = table.node_at(row)
        if node is None:
            continue
        pods = table.pods_by_uid(row)
        said = {name: int(column[row]) for name, column in columns.items()}
        fault = (
            _sums_fault(table, row, pods.values(), said)
            or _ports_fault(pods.values(), ports.get(row, {}))
            or _volumes_fault(pods.values(), volumes.get(row, {}))
            or counted.get(row, "")
            or _node_fault(table, row, node)
        )
        if fault:
            faults[row] = f"node {node.name}: {fault}"
    return faults


def _sums_fault(table: NodeTable, row: int, pods: Iterable[Pod], said: Mapping[str, int]) -> str:
    sums = dict.fromkeys(said, 0)
    cpu = memory = count = 0
    for pod in pods:
        count += 1
        for name, amount in pod.requests.items():
            if name in sums:
                sums[name] += amount
        scored = pod.scoring_requests
        cpu, memory = cpu + scored[0], memory + scored[1]
    sums[PODS] = count
    if said != sums:
        differing = sorted(name for name in sums if said[name] != sums[name])
        return f"columns say {[(n, said[n]) for n in differing]}, its pods {[(n, sums[n]) for n in differing]}"
    scoring = [int(table.scoring_requested(name)[row]) for name in SCORED]
    if scoring != [cpu, memory]:
        return f"scoring columns say {scoring}, its pods {[cpu, memory]}"
    return ""


def _ports_held(table: NodeTable, rows: Sequence[int]) -> dict[int, Ports]:
    """Returns the table's port users on these rows; costs at most one look-up per port and row."""
    wanted = set(rows)
    held: dict[int, Ports] = {}
    for (protocol, port), users in table.ports.items():
        for row in users.keys() & wanted:
            for ip, count in users[row].items():
                held.setdefault(row, {})[protocol, port, ip] = count
    return held


def _ports_fault(pods: Iterable[Pod], said: Ports) -> str:
    wanted: Ports = {}
    for pod in pods:
        for port in pod.spec.host_ports:
            key = (port.protocol, port.port, port.ip)
            wanted[key] = wanted.get(key, 0) + 1
    return "" if wanted == said else f"held ports say {said}, its pods {wanted}"


def _volumes_held(table: NodeTable, rows: Sequence[int]) -> dict[int, Volumes]:
    """Returns the table's claims and disks in use on these rows."""
    wanted = set(rows)
    held: dict[int, Volumes] = {}
    claims, disks = table.volume_users.counts()
    for claim, users in claims.items():
        for row in users.keys() & wanted:
            held.setdefault(row, {})[claim] = users[row]
    for uses in disks.values():
        for row in uses.keys() & wanted:
            held.setdefault(row, {}).update(uses[row].items())
    return held


def _volumes_fault(pods: Iterable[Pod], said: Volumes) -> str:
    claims, disks = users_of([(0, pods)]).counts()
    wanted: Volumes = {claim: users[0] for claim, users in claims.items()}
    for uses in disks.values():
        wanted.update(uses[0].items())
    return "" if wanted == said else f"volumes in use say {said}, its pods {wanted}"


def _node_fault(table: NodeTable, row: int, node: Node) -> str:
    for name in table.resources:
        amount = node.limit(name)
        if int(table.allocatable(name)[row]) != amount:
            return f"allocatable {name} is {int(table.allocatable(name)[row])}, the node says {amount}"
    if table.taint_sets[int(table.taint_set[row])] != node.taints:
        return f"taints are {table.taint_sets[int(table.taint_set[row])]}, the node says {node.taints}"
    if bool(table.is_unschedulable[row]) != node.is_unschedulable:
        return f"unschedulable is {bool(table.is_unschedulable[row])}, the node says {node.is_unschedulable}"
    for key, column in table.label_columns():
        value = column.values[int(column.codes[row])] if column.codes[row] else None
        if value != node.labels.get(key):
            return f"label {key} is {value!r}, the node says {node.labels.get(key)!r}"
    return ""
