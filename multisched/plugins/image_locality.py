"""ImageLocality: prefers rows that have the pod's images, by their size and how far they have spread."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from multisched.framework.dependency import Dependency
from multisched.framework.node_view import Rows, Scores
from multisched.framework.normalize import MAX_SCORE
from multisched.framework.points import CycleView
from multisched.framework.traits import Traits
from multisched.model.objects import Pod

MEBI = 1024 * 1024
SUM_BYTES_MIN = 23 * MEBI
SUM_BYTES_MAX_PER_CONTAINER = 1000 * MEBI


class ImageLocality:
    """Source: kube-scheduler 1.36, plugins/imagelocality/image_locality.go."""

    name = "ImageLocality"
    depends_on = Dependency.NODES
    traits = Traits(signs_spec_only=True)

    def score(self, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        """int64[rows], 0..100: bytes of the pod's images present, each scaled by the share of nodes that have it.

        The sum is held within 23 MiB and 1000 MiB per container, then scaled linearly. An image counts everywhere with
        the size its first node reported (as upstream's cache keeps it).
        """
        spec, nodes = pod.spec, cycle.nodes
        total: Scores | None = None
        for image in (*spec.images, *spec.image_volumes):
            users = nodes.image_users(normalized(image))
            if not users:
                continue
            if total is None:
                total = np.zeros(len(nodes.is_unschedulable), np.int64)
            size, spread = next(iter(users.values())), len(users) / nodes.node_count
            total[np.fromiter(users, np.intp, len(users))] += int(float(size) * spread)
        if total is None:
            return np.zeros(len(rows), np.int64)
        most = SUM_BYTES_MAX_PER_CONTAINER * len(spec.images)
        # Upstream tests the lower bound first; they are in order whenever there is a container.
        held = np.minimum(np.maximum(total.take(rows), SUM_BYTES_MIN), max(most, SUM_BYTES_MIN))
        held -= SUM_BYTES_MIN
        held *= MAX_SCORE
        held //= max(1, most - SUM_BYTES_MIN)
        return held

    def sign(self, pod: Pod) -> Hashable:
        return pod.spec.images, pod.spec.image_volumes


def normalized(image: str) -> str:
    """The name with its tag: `:latest` where it has none."""
    return f"{image}:latest" if image.rfind(":") <= image.rfind("/") else image
