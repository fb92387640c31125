"""Ready-made virtual nodes, as virtual-kubelet registers them. Pure functions.

Each node has an annotation with the settings of its provider, which makes its fake kubelet a virtual kubelet (`kubelet/provider.py`).
Source: virtual-kubelet @7b1385bcb, node/nodeutil/controller.go, cmd/virtual-kubelet/internal/commands/root/node.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from multisched.cluster.client.object_client import Document
from multisched.cluster.kubelet.provider import PROVIDER_ANNOTATION, ProviderSettings
from multisched.cluster.seed import VIRTUAL_TAINT, fake_node

CAPACITY: Final[Mapping[str, str]] = {"cpu": "10000", "memory": "40Ti", "pods": "5000"}
"""The capacity that each node reports. As with real providers, it is constant: it does not show the account's free capacity."""

DEFAULT_PROVIDER: Final = ProviderSettings()


def virtual_nodes(
    count: int, settings: ProviderSettings = DEFAULT_PROVIDER, capacity: Mapping[str, str] = CAPACITY
) -> list[Document]:
    """Returns `count` virtual nodes of one account, named ACCOUNT-NUMBER. `capacity` replaces single entries of CAPACITY."""
    return [_virtual_node(number, settings, capacity) for number in range(count)]


def _virtual_node(number: int, settings: ProviderSettings, capacity: Mapping[str, str]) -> Document:
    labels = {
        "type": "virtual-kubelet",
        "kubernetes.io/role": "agent",
        "node.kubernetes.io/exclude-from-external-load-balancers": "true",
    }
    name, zone = f"{settings.account}-{number:03d}", f"demo-{'abc'[number % 3]}"
    node = fake_node(name, zone, "agent", {**CAPACITY, **capacity}, labels=labels)
    node["metadata"]["annotations"] = {PROVIDER_ANNOTATION: msgspec.json.encode(settings).decode()}
    node["spec"] = {"taints": [{**VIRTUAL_TAINT, "value": settings.account}]}
    return node
