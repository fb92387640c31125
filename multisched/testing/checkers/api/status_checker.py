"""Statuses of objects as a plugin has them written: by whoever may (I9), and true at rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from multisched.cluster.api.server import ApiServer
from multisched.config.schema import Configuration
from multisched.model.objects import Pod
from multisched.testing.checkers.api.lease_checker import LeaseChecker
from multisched.testing.plugins.headcount import CONDITION, HEADCOUNT, sentence

BUDGETS = "poddisruptionbudgets.policy"


class StatusChecker:
    """Judges what `Headcount` says at disruption budgets."""

    def __init__(
        self,
        server: ApiServer,
        configuration: Configuration,
        leases: LeaseChecker,
        pods: Callable[[], Mapping[str, Pod]],
        complain: Callable[[str], None],
    ) -> None:
        self._budgets = server.store.collection(BUDGETS)
        self._leases = leases
        self._pods = pods
        self._complain = complain
        domains = [
            domain.name
            for domain in configuration.domains
            if any(one.name.endswith(f":{HEADCOUNT}") for one in domain.profile.plugins.enabled)
        ]
        self._domain = min(domains, default="")
        """By whose lease budgets are written; empty where no domain has the plugin."""
        self._first_domain = min(domain.name for domain in configuration.domains)
        """By whose lease quotas and gangs are written: every profile has their plugins."""

    def sent(self, sender: str, path: str) -> None:
        """I9: of all processes the one that leads the first domain with the plugin."""
        if "/poddisruptionbudgets/" not in path:
            self._leases.check(sender, self._first_domain, f"a status to {path.partition('?')[0]}")
        elif self._domain:
            self._leases.check(sender, self._domain, f"a status to {path.partition('?')[0]}")
        else:
            self._complain(f"I9: {sender} sent a status to {path}, and no plugin says any")

    def faults(self) -> Iterator[str]:
        """Budgets that say another number than that of the pods that stand."""
        if not self._domain:
            return
        counts: dict[str, int] = {}
        for pod in self._pods().values():
            counts[pod.namespace] = counts.get(pod.namespace, 0) + bool(pod.node and not pod.is_terminal)
        for key, stored in dict(self._budgets.items()).items():
            said, wanted = _message(stored.document()), sentence(counts.get(key.partition("/")[0], 0))
            if said != wanted:
                yield f"I4: budget {key} says {said!r}, not {wanted!r}"


def _message(budget: Mapping[str, Any]) -> str:
    conditions = budget.get("status", {}).get("conditions") or ()
    return next((str(one.get("message")) for one in conditions if one.get("type") == CONDITION), "")
