"""Crowds: many small pods that want one node at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from tests.kit.world import traits
from tests.kit.world.api_user import ApiUser
from tests.kit.world.labels import HOSTNAME
from tests.kit.world.nodes import CROWDED
from tests.kit.world.pod_manifests import add_urgency, number_of, small_spec
from tests.kit.world.store_view import StoreView

CROWD_S, STUBBORN_EVERY = 8.0, 5
"""How long the pods of a crowd wait; one in so many stays for ever."""
RUN_S, ENDING_EVERY = 5.0, 4
"""Of those that run, one in so many ends a while after it was made: what it held is what others wait for."""


class Crowds:
    """Those of one run: most give up after a while, and some that run end."""

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
        """Small plain pods that go to this one node; their names. Mixed: some crowds are after more than CPU (`traits`)."""
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
        """Of crowds that have waited for CROWD_S in vain most give up: each of them is tried again at every event. Some that run
        end."""
        for pod in list(self._objects.pods().values()):
            age_s = now_s - pod.created_s if pod.name in self._crowded else 0.0
            is_tired = age_s > CROWD_S and not pod.node and number_of(pod.name) % STUBBORN_EVERY
            is_done = age_s > RUN_S and pod.node and not number_of(pod.name) % ENDING_EVERY
            if is_tired or is_done:
                await self._user.delete_pod(pod)

    async def fill(self, bursts: int) -> None:
        """Crowds on nodes that crowds want."""
        for _ in range(bursts):
            await self.add(f"node-{self._rng.choice(CROWDED)}", 3, is_mixed=True)
