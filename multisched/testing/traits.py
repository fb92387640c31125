"""What the pods of some crowds want beside room: ports of their host on one address or all, disks, claims for one pod alone.

A crowd wants one node at once, so that whatever is counted wrongly there shows at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from multisched.testing.storage import ODD

SHARE: Final = 0.4
"""Of the crowds that may have one."""
FIRST_PORT: Final = 9_940
ADDRESSES: Final = ("", "0.0.0.0", "10.0.0.1", "10.0.0.2")  # noqa: S104 - asked for, not listened on
PROTOCOLS: Final = ("TCP", "TCP", "TCP", "UDP")
SOLE: Final = ("sole-0", "sole-1", "sole-2")

Trait = Callable[[dict[str, Any], random.Random], None]
"""Changes a pod."""


def drawn(rng: random.Random) -> Trait | None:
    """What all pods of one crowd want; None for most."""
    return rng.choice((_ports, _ports, _disks, _sole)) if rng.random() < SHARE else None


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


def _sole(pod: dict[str, Any], rng: random.Random) -> None:
    """A claim that one pod may use at a time, of pods of one domain: there its leader's books hold."""
    if pod["spec"]["schedulerName"] == "forecast-scheduler":
        _give(pod, {"name": "v0", "persistentVolumeClaim": {"claimName": rng.choice(SOLE)}})


def _give(pod: dict[str, Any], volume: dict[str, Any]) -> None:
    pod["spec"]["volumes"] = [volume]
    pod["metadata"]["labels"][ODD] = "yes"
