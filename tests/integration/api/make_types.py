"""Writes multisched/cluster/base/types.json from the sources of k8s.io/api and k8s.io/apimachinery (Apache-2.0).

    python -m tests.integration.api.make_types ~/go/pkg/mod/k8s.io 0.36.3

The file says, per Go type that the embedded cluster serves, each field's name, protobuf number, type and how its list
merges. It is data about the API, needed to read protobuf bodies, to find unknown fields and to merge lists.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOTS = {
    "core.v1": "Binding ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod "
    "PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount",
    "apps.v1": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "batch.v1": "CronJob Job",
    "autoscaling.v1": "Scale",
    "autoscaling.v2": "HorizontalPodAutoscaler",
    "policy.v1": "Eviction PodDisruptionBudget",
    "scheduling.v1": "PriorityClass",
    "storage.v1": "CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment",
    "coordination.v1": "Lease",
    "events.v1": "Event",
    "discovery.v1": "EndpointSlice",
    "networking.v1": "Ingress NetworkPolicy",
    "rbac.v1": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "resource.v1": "DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice",
    "admissionregistration.v1": "MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding "
    "ValidatingWebhookConfiguration",
    "authentication.v1": "SelfSubjectReview TokenRequest TokenReview",
    "authorization.v1": "LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
    "meta.v1": "DeleteOptions ObjectMeta",
}
FIELD = re.compile(r"(optional|repeated|required)?\s*(map<\s*\w+\s*,\s*[\w.]+\s*>|[\w.]+)\s+(\w+)\s*=\s*(\d+);")
TAG = re.compile(r'(?P<pointer>\*?)\S*\s+`(?:[^`]*\s)?json:"(?P<json>[^"]*)"(?P<rest>[^`]*)')


def short(name: str) -> str:
    """`k8s.io.api.core.v1.Pod` as `core.v1.Pod`."""
    for prefix in (
        "k8s.io.api.",
        "k8s.io.apimachinery.pkg.apis.",
        "k8s.io.apimachinery.pkg.api.",
        "k8s.io.apimachinery.pkg.util.",
        "k8s.io.apimachinery.pkg.",
    ):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


Tags = dict[tuple[str, int], tuple[str, str, bool]]


def go_tags(folder: Path) -> Tags:
    """(struct, protobuf number) → (JSON name, the other tags, whether it is a pointer)."""
    found: Tags = {}
    for path in folder.glob("*.go"):
        struct = ""
        for line in path.read_text().splitlines():
            if match := re.match(r"type (\w+) struct", line):
                struct = match[1]
            match, number = TAG.search(line), re.search(r'protobuf:"\w+,(\d+),', line)
            if match and number:
                found[struct, int(number[1])] = (match["json"], match["rest"], bool(match["pointer"]))
    return found


def messages(path: Path) -> dict[str, dict[str, list[object]]]:
    """Messages of one generated.proto."""
    text = path.read_text()
    package = re.search(r"^package ([\w.]+);", text, re.MULTILINE)
    assert package
    tags = go_tags(path.parent)
    found: dict[str, dict[str, list[object]]] = {}
    for match in re.finditer(r"^message (\w+) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        fields: dict[str, list[object]] = {}
        comments: list[str] = []
        for line in match[2].splitlines():
            stripped = line.strip()
            if stripped.startswith("//"):
                comments.append(stripped)
                continue
            field = FIELD.fullmatch(stripped)
            if field:
                name, entry = _field(field, match[1], package[1], tags, comments)
                fields[name] = entry
            comments = []
        found[short(f"{package[1]}.{match[1]}")] = fields
    return found


def _field(
    field: re.Match[str], message: str, package: str, tags: Tags, comments: list[str]
) -> tuple[str, list[object]]:
    label, kind, name, number = field.groups()
    json_name, rest, is_pointer = tags.get((message, int(number)), (name, "", False))
    is_inline = json_name == ",inline" or json_name.startswith(",inline")
    shown = json_name.partition(",")[0] or name
    shape = "map" if kind.startswith("map") else "list" if label == "repeated" else "pointer" if is_pointer else ""
    if shape == "map":
        kind = kind.partition(",")[2].strip(" >")
    if "." not in kind and kind[0].isupper():
        kind = f"{package}.{kind}"
    kind = short(kind.lstrip("."))
    entry: list[object] = [int(number), kind, "inline" if is_inline else shape]
    merge_key = re.search(r'patchMergeKey:"(\w+)"', rest)
    is_merged = "patchStrategy:" in rest and "merge" in rest.partition("patchStrategy:")[2].partition('" ')[0]
    keys = [comment.partition("=")[2] for comment in comments if "+listMapKey=" in comment]
    kinds = [comment.partition("=")[2] for comment in comments if "+listType=" in comment]
    if merge_key or is_merged or kinds:
        entry += [merge_key[1] if merge_key else "", is_merged, kinds[0] if kinds else "", keys]
    return shown, entry


def main(folder: str, version: str) -> None:
    """Writes the file."""
    every: dict[str, dict[str, list[object]]] = {}
    for module in (f"api@v{version}", f"apimachinery@v{version}"):
        for path in sorted((Path(folder) / module).rglob("generated.proto")):
            every |= messages(path)
    wanted = [f"{package}.{name}" for package, names in ROOTS.items() for name in names.split()]
    kept: dict[str, dict[str, list[object]]] = {}
    while wanted:
        name = wanted.pop()
        if name not in kept and name in every:
            kept[name] = every[name]
            wanted += [str(entry[1]) for entry in every[name].values()]
    target = Path(__file__).parents[3] / "multisched/cluster/base/types.json"
    lines = [f"{json.dumps(name)}: {json.dumps(kept[name], separators=(',', ':'))}" for name in sorted(kept)]
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(len(kept), "types,", target.stat().st_size, "bytes")


if __name__ == "__main__":
    main(*sys.argv[1:3])
