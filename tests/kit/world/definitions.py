"""CustomResourceDefinitions of a simulated cluster. Their objects are not validated."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.kit.world.api_user import ApiUser


class CustomKind(NamedTuple):
    """One namespaced kind."""

    group: str
    version: str
    kind: str
    plural: str
    has_status_path: bool = True
    """It has the status subresource."""

    def path(self, namespace: str, name: str = "") -> str:
        """Returns the path of its objects, or of one of them."""
        objects = f"/apis/{self.group}/{self.version}/namespaces/{namespace}/{self.plural}"
        return f"{objects}/{name}" if name else objects

    @property
    def storage(self) -> str:
        """The key of its objects in the server's store."""
        return f"{self.plural}.{self.group}"


QUOTA_TREE = CustomKind("scheduling.sigs.k8s.io", "v1beta1", "ElasticQuotaTree", "elasticquotatrees")
LINKED_QUOTA = CustomKind("scheduling.sigs.k8s.io", "v1alpha1", "ElasticQuota", "elasticquotas", has_status_path=False)
RESOURCE_POLICY = CustomKind(
    "scheduling.alibabacloud.com", "v1alpha1", "ResourcePolicy", "resourcepolicies", has_status_path=False
)
POD_GROUP = CustomKind("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups")


async def install(user: ApiUser, kind: CustomKind) -> None:
    """Installs the kind, if it is not installed yet."""
    answer = await user.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _definition(kind))
    if answer.status not in (201, 409):
        raise AssertionError(answer.body)


def _definition(kind: CustomKind) -> dict[str, Any]:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}},
    }
    if kind.has_status_path:
        version["subresources"] = {"status": {}}
    names = {"kind": kind.kind, "plural": kind.plural}
    spec = {"group": kind.group, "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": kind.storage}, "spec": spec}
