"""Checks statuses of objects that plugins write: only the leader may write (I9), and they are true when the run is quiescent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from multisched.cluster.api.server import ApiServer
from multisched.config.plugins import plugin_registry, resolve_profile
from multisched.config.schema import Configuration
from multisched.framework.gangs import GANG_PLUGIN
from multisched.model.objects import Pod
from multisched.plugins.quota.quota_ledger import QUOTA
from tests.kit.checkers.api.lease_checker import LeaseChecker
from tests.kit.plugins.headcount import CONDITION, HEADCOUNT, sentence

BUDGETS = "poddisruptionbudgets.policy"
WRITERS: Final[Mapping[str, str]] = {
    "poddisruptionbudgets": HEADCOUNT,
    "elasticquotatrees": QUOTA,
    "elasticquotas": QUOTA,
    "podgroups": GANG_PLUGIN,
}
"""Plural of a kind -> plugin that writes its status."""


class StatusChecker:
    """Checks the writers of statuses, and what `Headcount` writes to PodDisruptionBudgets."""

    def __init__(
        self,
        server: ApiServer,
        configuration: Configuration,
        leases: LeaseChecker,
        pods: Callable[[], Mapping[str, Pod]],
        report_violation: Callable[[str], None],
    ) -> None:
        self._budgets = server.store.collection(BUDGETS)
        self._leases = leases
        self._pods = pods
        self._report_violation = report_violation
        registry = plugin_registry()
        plugins = {
            domain.name: {use.name.rpartition(":")[2] for use in resolve_profile(domain, registry).plugins}
            for domain in configuration.domains
        }
        self._domain_of = {
            plural: min((name for name, enabled in plugins.items() if plugin in enabled), default="")
            for plural, plugin in WRITERS.items()
        }
        """Plural of a kind -> domain whose lease is needed to write its status; empty if no domain has the plugin."""
        self._says = self._domain_of["poddisruptionbudgets"]

    def sent(self, sender: str, path: str) -> None:
        """Checks I9: the sender must lead the first domain that has the plugin."""
        domain = next((domain for plural, domain in self._domain_of.items() if f"/{plural}/" in path), "")
        if domain:
            self._leases.check(sender, domain, f"a status to {path.partition('?')[0]}")
        else:
            self._report_violation(f"I9: {sender} sent a status to {path}, and no plugin says any")

    def faults(self) -> Iterator[str]:
        """Yields budgets whose status has a wrong number of pods on nodes."""
        if not self._says:
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
