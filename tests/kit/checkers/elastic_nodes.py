"""What pods of a node may request together, by the node alone: on nodes of ELASTIC_UNITS, cpu and memory are no limit (I1).

Does not read `Node.elastic`, which the program sets.
"""

from __future__ import annotations

from collections.abc import Mapping

from multisched.model.objects import CPU, ELASTIC_AMOUNT, MEMORY, Node
from tests.kit.world.labels import ELASTIC_UNITS, UNIT


def limits_of(node: Node) -> Mapping[str, int]:
    """Returns resource -> the most that its pods may request together; other resources: none."""
    if node.labels.get(UNIT) not in ELASTIC_UNITS or node.malformed:
        return node.allocatable
    return {**node.allocatable, CPU: ELASTIC_AMOUNT, MEMORY: ELASTIC_AMOUNT}
