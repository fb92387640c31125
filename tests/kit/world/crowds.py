"""Crowds: many small pods for one node, created at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from tests.kit.world import traits
from tests.kit.world.api_user import ApiUser
from tests.kit.world.labels import HOSTNAME
from tests.kit.world.nodes import CROWDED
from tests.kit.world.pod_manifests import add_urgency, number_of, small_spec
from tests.kit.world.store_view import StoreView

CROWD_S, KEPT_EVERY = 8.0, 5
"""Time after which pending pods of a crowd are deleted, except one in STUBBORN_EVERY."""
RUN_S, ENDING_EVERY = 5.0, 4
"""One running pod in ENDING_EVERY is deleted RUN_S after its creation, so that its room becomes free."""


class Crowds:
    """The crowds of one run. Most pending pods are deleted after a while, and some running ones."""

    def __init__(self, user: ApiUser, objects: StoreView, rng: random.Random, next_number: Callable[[], int]) -> None:
        self._user = user
        self._objects = objects
        self._rng = rng
        self._next_number = next_number
        self._crowded: set[str] = set()

    async def add(
        self,
        node: str,
        count: int,
        *,
        scheduler: str = "forecast-scheduler",
        cpu: str = "500m",
        prefix: str = "",
        limits: Mapping[str, str] | None = None,
        respects_taints: bool = True,
        is_mixed: bool = False,
    ) -> list[str]:
        """Creates small plain pods for this node. Returns their names. `is_mixed`: some crowds also request other things than CPU
        (`traits`).
        """
        names = []
        trait = traits.drawn(self._rng) if is_mixed else None
        for _ in range(count):
            names.append(f"{prefix}pod-{self._next_number()}")
            self._crowded.add(names[-1])
            spec = small_spec(scheduler, cpu) | {"nodeSelector": {HOSTNAME: node}}
            if limits:
                spec["containers"][0]["resources"]["limits"] = dict(limits)
            if not respects_taints:
                spec["tolerations"] = [{"operator": "Exists"}]
            labels = {"app": f"app-{self._rng.randrange(5)}"}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": names[-1], "labels": labels}, "spec": spec}
            if trait is not None:
                trait(pod, self._rng)
            add_urgency(pod)
            await self._user.create_pod(pod)
        return names

    async def clear(self, now_s: float) -> None:
        """Deletes most pods that have been pending for CROWD_S, since each is tried again at every event, and some running ones."""
        for pod in list(self._objects.pods().values()):
            age_s = now_s - pod.created_s if pod.name in self._crowded else 0.0
            is_expired = age_s > CROWD_S and not pod.node and number_of(pod.name) % KEPT_EVERY
            is_done = age_s > RUN_S and pod.node and not number_of(pod.name) % ENDING_EVERY
            if is_expired or is_done:
                await self._user.delete_pod(pod)

    async def fill(self, bursts: int) -> None:
        """Creates crowds for random nodes of CROWDED."""
        for _ in range(bursts):
            await self.add(f"node-{self._rng.choice(CROWDED)}", 3, is_mixed=True)
