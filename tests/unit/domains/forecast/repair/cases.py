"""Small clusters for the tests of repair: nodes of one size, pods as shares of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from domains.forecast.repair.case import NO_GANG, Disruptions, Fits, Floats, Mask, Nodes, Pods, RepairCase

Curve = Sequence[Sequence[float]]


def fits_any_node(nodes: int) -> Fits:
    """Pods that fit any node."""

    def fits(pod: int) -> Mask:
        return np.ones(nodes, np.bool_)

    return fits


def make_case(
    placed: Sequence[Sequence[Curve | float]],
    *,
    service: Sequence[int] | None = None,
    gang: Sequence[int] | None = None,
    gang_spare: Sequence[int] = (),
    fixed: Sequence[int] | None = None,
    cold_start: Sequence[int] | None = None,
    disruptions: Sequence[Disruptions] = (),
    free: Sequence[int] | None = None,
    quota_room: Sequence[int] | None = None,
    base: float = 0.0,
) -> RepairCase:
    """One list of pods per node; a pod is its curve [dimensions][slots], a number for one dimension at one slot. Pods are
    numbered as they stand here, each requests one of one resource and has a service of its own."""
    curves = [np.atleast_2d(np.array(pod, np.float64)) for pods in placed for pod in pods]
    where = [node for node, pods in enumerate(placed) for _ in pods]
    count, shape = len(curves), curves[0].shape
    loads: Floats = np.full((len(placed), *shape), base)
    for node, curve in zip(where, curves, strict=True):
        loads[node] += curve
    room = [1_000] * len(placed) if free is None else free
    pods = Pods(
        names=tuple(f"ns/pod-{number}" for number in range(count)),
        node=np.array(where, np.int64),
        curve=np.arange(count),
        service=np.array(range(count) if service is None else service, np.int64),
        namespace=np.zeros(count, np.int64),
        requests=np.ones((count, 1), np.int64),
        gang=np.array([NO_GANG] * count if gang is None else gang, np.int64),
        fixed=np.array([0] * count if fixed is None else fixed, np.uint8),
        cold_start=np.array([0] * count if cold_start is None else cold_start, np.uint8),
    )
    nodes = Nodes(
        names=tuple(f"node-{number}" for number in range(len(placed))),
        loads=loads,
        capacity=np.ones((len(placed), shape[0])),
        free=np.array(room, np.int64)[:, None],
    )
    return RepairCase(
        dimensions=("cpu", "log", "net")[: shape[0]],
        nodes=nodes,
        pods=pods,
        curves=np.array(curves),
        disruptions=tuple(disruptions),
        gang_spare=np.array(gang_spare, np.int64),
        quota_room=np.zeros((0, 0), np.int64) if quota_room is None else np.array(quota_room, np.int64)[:, None],
    )
