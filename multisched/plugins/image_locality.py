"""ImageLocality: prefers rows that have the pod's images, by image size and by the share of nodes that have the image."""

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
        """Returns int64[rows], 0..100: bytes of the pod's images on the row, each scaled by the share of nodes that have it.

        The sum is clamped to 23 MiB..1000 MiB per container, then scaled linearly. Every node counts an image with the
        size that the first node reported, as upstream's cache does.
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
        # Upstream clamps to the lower bound first; the order matters only for a pod without containers.
        held = np.minimum(np.maximum(total.take(rows), SUM_BYTES_MIN), max(most, SUM_BYTES_MIN))
        held -= SUM_BYTES_MIN
        held *= MAX_SCORE
        held //= max(1, most - SUM_BYTES_MIN)
        return held

    def sign(self, pod: Pod) -> Hashable:
        return pod.spec.images, pod.spec.image_volumes


def normalized(image: str) -> str:
    """Returns the image name with its tag; the default is `:latest`."""
    return f"{image}:latest" if image.rfind(":") <= image.rfind("/") else image
