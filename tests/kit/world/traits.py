"""Additional requirements of the pods of some crowds: host ports, disks, ReadWriteOncePod claims, anti-affinity, spreading.

The pods of a crowd are for one node, so that wrong counts show at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from tests.kit.world.labels import ODD_VOLUMES

SHARE: Final = 0.6
"""Share of mixed crowds with a trait."""
FIRST_PORT: Final = 9_940
ADDRESSES: Final = ("", "0.0.0.0", "10.0.0.1", "10.0.0.2")
PROTOCOLS: Final = ("TCP", "TCP", "TCP", "UDP")
SOLE: Final = ("sole-0", "sole-1", "sole-2")

Trait = Callable[[dict[str, Any], random.Random], None]
"""Changes the manifest of a pod."""


def drawn(rng: random.Random) -> Trait | None:
    """Returns the trait of all pods of one crowd; None for no trait."""
    return (
        rng.choice((_ports, _disks, _attached, _single_pod_claim, _anti_affinity, _at_most_three))
        if rng.random() < SHARE
        else None
    )


def _ports(pod: dict[str, Any], rng: random.Random) -> None:
    """Adds one or two of three host ports, on any address."""
    wanted = rng.sample(range(FIRST_PORT, FIRST_PORT + 3), rng.choice((1, 1, 2)))
    pod["spec"]["containers"][0]["ports"] = [
        {
            "containerPort": number,
            "hostPort": number,
            "hostIP": rng.choice(ADDRESSES),
            "protocol": rng.choice(PROTOCOLS),
        }
        for number in wanted
    ]


def _disks(pod: dict[str, Any], rng: random.Random) -> None:
    disk = {"pdName": f"crowded-{rng.randrange(2)}", "readOnly": rng.random() < 0.4}
    _give(pod, {"name": "v0", "gcePersistentDisk": disk})


def _attached(pod: dict[str, Any], rng: random.Random) -> None:
    """Adds read-only disks, limited by what a node attaches."""
    _give(pod, {"name": "v0", "gcePersistentDisk": {"pdName": f"read-{rng.randrange(5)}", "readOnly": True}})


def _single_pod_claim(pod: dict[str, Any], rng: random.Random) -> None:
    """Adds a ReadWriteOncePod claim to pods of one domain, where it is exclusive among the pods of the leader."""
    if pod["spec"]["schedulerName"] == "forecast-scheduler":
        _give(pod, {"name": "v0", "persistentVolumeClaim": {"claimName": rng.choice(SOLE)}})


def _anti_affinity(pod: dict[str, Any], rng: random.Random) -> None:
    """Gives `loud` pods a host anti-affinity to `quiet` ones, and `quiet` ones none."""
    noise = rng.choice(("loud", "quiet", "quiet"))
    pod["metadata"]["labels"]["noise"] = noise
    if noise == "loud":
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"noise": "quiet"}}}
        pod["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _at_most_three(pod: dict[str, Any], rng: random.Random) -> None:
    """Limits the crowd to three pods on its node: maxSkew 3 with two required domains, of which one exists."""
    pod["metadata"]["labels"]["few"] = "yes"
    pod["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 3,
            "minDomains": 2,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"few": "yes"}},
        }
    ]


def _give(pod: dict[str, Any], volume: dict[str, Any]) -> None:
    pod["spec"]["volumes"] = [volume]
    pod["metadata"]["labels"][ODD_VOLUMES] = "yes"
