"""The kinds that a server serves, custom ones included, from its discovery documents.

Keeps the last result. Contains each kind once, in its group's preferred version, and only kinds with the verbs get, list, watch, patch and
delete. Used by the garbage collector and the namespace controller.
"""

from __future__ import annotations

from collections.abc import Iterator

from multisched.cluster.client.object_client import Document, ObjectClient, Resource

_NEEDED_VERBS = {"list", "watch", "delete", "get", "patch"}
_SKIPPED = {("", "Event"), ("events.k8s.io", "Event")}
"""Events have no owners and no dependents, and there are many."""


class ApiKinds:
    """All kinds of one server, by group and kind."""

    def __init__(self, client: ObjectClient) -> None:
        self._client = client
        self.kinds: dict[tuple[str, str], Resource] = {}

    async def refresh(self) -> None:
        """Reads discovery again. Raises RefusedError or TransportError, without a change of `kinds`."""
        versions = ["v1"]
        groups = (await self._client.call("GET", "/apis")).expect().document["groups"]
        versions += [group["preferredVersion"]["groupVersion"] for group in groups]
        kinds: dict[tuple[str, str], Resource] = {}
        for version in versions:
            root = "/apis" if "/" in version else "/api"
            answer = (await self._client.call("GET", f"{root}/{version}")).expect(
                404
            )  # 404: its last kind was just removed
            if answer.is_success:
                for resource in _resources(version, answer.document):
                    kinds[resource.group, resource.kind] = resource
        self.kinds = kinds

    def kinds_with_owners(self) -> Iterator[Resource]:
        """Yields every kind whose objects can be owners or dependents: all except Event."""
        return (resource for key, resource in self.kinds.items() if key not in _SKIPPED)

    def find(self, api_version: str, kind: str) -> Resource | None:
        """Returns the kind that an owner reference names, ignoring the reference's version."""
        group = api_version.rpartition("/")[0]
        return self.kinds.get((group, kind))


def _resources(group_version: str, document: Document) -> Iterator[Resource]:
    group, _, version = group_version.rpartition("/")
    for entry in document["resources"]:
        if "/" not in entry["name"] and set(entry["verbs"]) >= _NEEDED_VERBS:
            yield Resource(group, version, entry["name"], entry["kind"], is_namespaced=bool(entry["namespaced"]))
