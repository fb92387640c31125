"""What the pods of some crowds want beside room: host ports on one address or all, disks, claims for one pod alone.

Some also say who must not be beside them, or not more of them.

A crowd wants one node at once, so that whatever is counted wrongly there shows at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from tests.kit.world.labels import ODD

SHARE: Final = 0.6
"""Of the crowds that may have one."""
FIRST_PORT: Final = 9_940
ADDRESSES: Final = ("", "0.0.0.0", "10.0.0.1", "10.0.0.2")
PROTOCOLS: Final = ("TCP", "TCP", "TCP", "UDP")
SOLE: Final = ("sole-0", "sole-1", "sole-2")

Trait = Callable[[dict[str, Any], random.Random], None]
"""Changes a pod."""


def drawn(rng: random.Random) -> Trait | None:
    """What all pods of one crowd want; None for most."""
    return (
        rng.choice((_ports, _disks, _attached, _single_pod_claim, _anti_affinity, _at_most_three))
        if rng.random() < SHARE
        else None
    )


def _ports(pod: dict[str, Any], rng: random.Random) -> None:
    """One or two of three, on any address."""
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
    """Disks that all may read, of which a node attaches so many and no more."""
    _give(pod, {"name": "v0", "gcePersistentDisk": {"pdName": f"read-{rng.randrange(5)}", "readOnly": True}})


def _single_pod_claim(pod: dict[str, Any], rng: random.Random) -> None:
    """A claim that one pod may use at a time, of pods of one domain: there its leader's account holds."""
    if pod["spec"]["schedulerName"] == "forecast-scheduler":
        _give(pod, {"name": "v0", "persistentVolumeClaim": {"claimName": rng.choice(SOLE)}})


def _anti_affinity(pod: dict[str, Any], rng: random.Random) -> None:
    """Loud ones bear no quiet ones on their host, and quiet ones have no say."""
    noise = rng.choice(("loud", "quiet", "quiet"))
    pod["metadata"]["labels"]["noise"] = noise
    if noise == "loud":
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"noise": "quiet"}}}
        pod["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _at_most_three(pod: dict[str, Any], rng: random.Random) -> None:
    """Three on one host at most, since there is one host alone, and two are asked for."""
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
    pod["metadata"]["labels"][ODD] = "yes"
