"""Defects that show when somebody edits an object or the configuration file: a pod that this helps is not retried, or counts wrongly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from multisched.framework.events import Action, EventRegistration, Resource
from multisched.model.objects import Pod
from multisched.plugins.quota import elastic_quota, removal
from multisched.plugins.quota.elastic_quota import ElasticQuota
from multisched.plugins.quota.quota_ledger import QuotaLedger
from multisched.queueing import pod_changes
from multisched.queueing.readmission import Readmission
from multisched.shell.ingest.pods_and_nodes import PodIngest
from tests.sim.defects import defect, put


@defect
def deleted_quotas_wake_nobody() -> None:
    """The deletion of quotas is no event for the pods that they refused."""
    genuine = ElasticQuota.events_to_register

    def events(self: ElasticQuota) -> Sequence[EventRegistration]:
        return [
            one
            if isinstance(one.event.resource, Resource)
            else replace(one, event=replace(one.event, action=one.event.action & ~Action.DELETE))
            for one in genuine(self)
        ]

    put(ElasticQuota, "events_to_register", events)


@defect
def corrected_annotations_are_no_change() -> None:
    """A pending pod whose annotations change is not retried."""
    genuine = pod_changes._differs_otherwise
    put(pod_changes, "_differs_otherwise", lambda old, new: genuine(old, replace(new, annotations=old.annotations)))


@defect
def further_members_wake_no_lead() -> None:
    """A member that comes to a gang that is parked changes nothing for it."""
    put(Readmission, "_came", lambda self, entry, lead, now_s, tally: None)


@defect
def new_tolerations_reach_no_pending_pod() -> None:
    """Tolerations that a domain gets count for pods that come later."""

    def use_policies(self: PodIngest, tolerations: Mapping[str, Any]) -> None:
        self._tolerations = {name: added for name, added in tolerations.items() if added}

    put(PodIngest, "use_policies", use_policies)


@defect
def resized_pods_keep_their_share_of_a_quota() -> None:
    """A placed pod counts with the amounts with which it was placed."""
    genuine = QuotaLedger.restore

    def restore(self: QuotaLedger, pod: Pod) -> None:
        held = self._holding_of.get(pod.uid)
        if held is None or held.levels is not self.levels_of(pod):
            genuine(self, pod)

    put(QuotaLedger, "restore", restore)


@defect
def gangs_claim_by_their_first_member() -> None:
    """A gang evicts what is less important than its most important member."""
    genuine = removal.claim_of

    def claim_of(ledger: QuotaLedger, *pods: Pod, **more: Any) -> Any:
        claim = genuine(ledger, *pods, **more)
        return None if claim is None else replace(claim, priority=pods[0].spec.priority)

    for module in (removal, elastic_quota):
        put(module, "claim_of", claim_of)
