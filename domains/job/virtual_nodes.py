"""Virtual nodes: those of virtual-kubelet's taint or label. Source: virtual-kubelet, cmd/virtual-kubelet/internal/commands/root."""

from __future__ import annotations

from typing import Final

import numpy as np

from multisched.framework.node_view import Bools, NodeView, Rows
from multisched.model.objects import Node

TAINT_KEY: Final = "virtual-kubelet.io/provider"
LABEL: Final = ("type", "virtual-kubelet")


def is_virtual(node: Node) -> bool:
    return node.labels.get(LABEL[0]) == LABEL[1] or any(taint.key == TAINT_KEY for taint in node.taints)


def virtual_rows(nodes: NodeView, rows: Rows) -> Bools:
    """Returns bool[len(rows)]: as `is_virtual`, of each row's node."""
    tainted = np.array([any(taint.key == TAINT_KEY for taint in taints) for taints in nodes.taint_sets], np.bool_)
    found: Bools = tainted.take(nodes.taint_set.take(rows)) if len(tainted) else np.zeros(len(rows), np.bool_)
    return found | labelled_rows(nodes, rows, *LABEL)


def labelled_rows(nodes: NodeView, rows: Rows, key: str, value: str) -> Bools:
    """Returns bool[len(rows)]: whether the row's node has the label."""
    code = nodes.label_code(key, value)
    if not code:
        return np.zeros(len(rows), np.bool_)
    found: Bools = nodes.label_codes(key).take(rows) == code
    return found
