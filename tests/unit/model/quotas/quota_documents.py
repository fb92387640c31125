"""Quota objects as documents, for tests: CPU alone, unless a test says more."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from multisched.model.cluster_objects import ElasticQuota, KoordinatorQuota
from multisched.model.decode_objects import decode_elastic_quota, decode_koordinator_quota
from multisched.model.decode_quotas import KOORDINATOR
from multisched.model.object_kinds import ObjectKind

Json = dict[str, Any]


def flat(namespace: str, least: Any, most: Any, name: str = "quota") -> Json:
    """Of scheduler-plugins: a number stands for CPUs."""
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": bounds(least, most),
    }


def bounds(least: Any, most: Any) -> Json:
    spec = {"min": least, "max": most}
    return {key: one if isinstance(one, dict) else {"cpu": one} for key, one in spec.items() if one is not None}


def linked(
    name: str, least: Any, most: Any, parent: str = "", *, namespace: str = "kube-system", **fields: Any
) -> Json:
    """Of Koordinator: fields are labels, as `is_parent="true"`, and annotations, as lists and maps."""
    labels = {f"{KOORDINATOR}parent": parent} if parent else {}
    annotations = {}
    for key, value in fields.items():
        full = f"{KOORDINATOR}{key.replace('_', '-')}"
        if key in ("shared_weight", "namespaces", "total_resource"):
            annotations[full] = value if isinstance(value, str) else orjson.dumps(value).decode()
        else:
            labels[full] = value
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
        "spec": bounds(least, most),
    }


def kind_of(document: Json) -> ObjectKind:
    """By its apiVersion and kind, as the API server tells two ElasticQuotas apart."""
    group = document["apiVersion"].rpartition("/")[0]
    return next(k for k in ObjectKind if (k.definition.group, k.definition.name) == (group, document["kind"]))


def decoded_flat(document: Json) -> ElasticQuota:
    return decode_elastic_quota(msgspec.Raw(orjson.dumps(document)))


def decoded_linked(document: Json) -> KoordinatorQuota:
    return decode_koordinator_quota(msgspec.Raw(orjson.dumps(document)))
