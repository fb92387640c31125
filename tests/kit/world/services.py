"""Services and controllers that select the pods of an app: default spreading depends on them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.kit.world.api_user import ApiUser


class Services:
    """Creates and deletes services and controllers of apps."""

    def __init__(self, user: ApiUser) -> None:
        self._user = user

    async def expose(self, apps: Sequence[int]) -> None:
        """Creates a service, a replica set, a stateful set and a replication controller for pods of each app."""
        for app in apps:
            await self.expose_app(f"app-{app}")

    async def expose_app(self, app: str) -> None:
        selector = {"app": app}
        labels = {"matchLabels": selector}
        for path, spec in (
            ("/api/v1/namespaces/default/services", {"selector": selector, "ports": [{"port": 80}]}),
            ("/api/v1/namespaces/default/replicationcontrollers", {"replicas": 0, "selector": selector}),
            ("/apis/apps/v1/namespaces/default/replicasets", {"replicas": 0, "selector": labels}),
            (
                "/apis/apps/v1/namespaces/default/statefulsets",
                {"replicas": 0, "selector": labels, "serviceName": "s"},
            ),
        ):
            template = {"metadata": {"labels": selector}, "spec": {"containers": [{"name": "main", "image": "a"}]}}
            body = {
                "metadata": {"name": app},
                "spec": spec if "ports" in spec else {**spec, "template": template},
            }
            await self._user.send("POST", path, body)

    async def hide(self, app: int) -> None:
        for path in ("/api/v1/namespaces/default/services", "/apis/apps/v1/namespaces/default/replicasets"):
            await self._user.send("DELETE", f"{path}/app-{app}")

    async def hide_app(self, app: str) -> None:
        """Deletes all that `expose_app` has created."""
        for kind in ("services", "replicationcontrollers"):
            await self._user.send("DELETE", f"/api/v1/namespaces/default/{kind}/{app}")
        for kind in ("replicasets", "statefulsets"):
            await self._user.send("DELETE", f"/apis/apps/v1/namespaces/default/{kind}/{app}")
