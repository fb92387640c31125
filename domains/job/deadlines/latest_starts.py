"""LatestStarts: when pods must start at the latest, computed once for all equal pods of one owner.

Owns the groups: pods of one namespace with the same owner, spec and annotations. A burst of 10,000 pods of one Job is one group,
so that a pod costs one look-up. `changed` reads again what a group depends on in addition to its pods: Job, CronJob, run times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from domains.job.deadlines.deadline import DeadlineOrigin, DeadlineRule, annotated_rule, rule_of
from domains.job.deadlines.settings import DeadlineSettings
from domains.job.runtimes.history import NOTHING_KNOWN, Prediction, RunKey
from domains.job.runtimes.kept_history import KeptHistory
from multisched.framework.objects_view import ObjectsView
from multisched.model.cluster_objects import CronJob, Job
from multisched.model.object_kinds import ObjectKind
from multisched.model.objects import Owner, Pod, PodSpec

BUCKET_S: Final = 1.0
MARGIN_SHARE: Final = 0.05
"""Smaller changes of a margin are ignored, because each change sorts the pods of the group again."""
GROUPS_MAX: Final = 20_000
_OF_CRON_JOB: Final = re.compile(r"(.+)-\d{8,10}", re.ASCII)
"""Name of a CronJob's Job: the minute of its run is appended."""

GroupKey = tuple[str, str, int, int]


class Group(msgspec.Struct):
    """Equal pods of one owner."""

    namespace: str
    owner: Owner | None
    spec: PodSpec
    annotations: Mapping[str, str]
    """Kept alive, because their ids are in the key of the group."""
    images: str
    annotated: DeadlineRule | None
    """The rule of the annotation."""
    run_key: RunKey = RunKey("")
    rule: DeadlineRule = DeadlineRule(DeadlineOrigin.MAX_WAIT)
    prediction: Prediction = NOTHING_KNOWN
    margin_s: float = 0.0
    """P90 of the run time and the start-up: a pod that starts later misses its deadline. 0 without a deadline."""

    def latest_start_s(self, created_s: float) -> float:
        """Returns the latest start, in seconds since the epoch, not before the creation."""
        return max(created_s, self.rule.of(created_s) - self.margin_s)


class LatestStarts:
    """Latest starts of the pods of one domain."""

    def __init__(self, objects: ObjectsView, kept: KeptHistory, settings: DeadlineSettings) -> None:
        self._objects = objects
        self._kept = kept
        self._settings = settings
        self._groups: dict[GroupKey, Group] = {}
        self._seen_objects: tuple[int, ...] = ()
        self._seen_runs = 0
        self._have_objects_changed = True

    def __len__(self) -> int:
        return len(self._groups)

    def group_of(self, pod: Pod) -> Group:
        """Returns the pod's group."""
        key = key_of(pod)
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= GROUPS_MAX:
                self._groups.clear()
            group = self._groups[key] = Group(
                pod.namespace,
                pod.owner,
                pod.spec,
                pod.annotations,
                images_of(pod.spec),
                annotated_rule(pod.annotations),
            )
            self._compute(group)
        return group

    def bucket_of(self, pod: Pod) -> int:
        """Returns the bucket of the pod's latest start; a smaller one is more urgent."""
        return int(self.group_of(pod).latest_start_s(pod.created_s) // BUCKET_S)

    def run_key_of(self, pod: Pod) -> RunKey:
        """Returns the key under which the run of the pod is recorded."""
        return RunKey(
            pod.namespace,
            self._root(pod.namespace, pod.owner, self._job(pod.namespace, pod.owner)),
            images_of(pod.spec),
        )

    def has_changed(self) -> bool:
        """Reports whether `changed` may find changes since the last call of this method."""
        objects, runs = self._objects.versions(ObjectKind.JOB, ObjectKind.CRON_JOB), self._kept.history.version
        self._have_objects_changed = objects != self._seen_objects
        have_runs_changed = runs != self._seen_runs
        self._seen_objects, self._seen_runs = objects, runs
        return self._have_objects_changed or have_runs_changed

    def changed(self) -> Iterator[GroupKey | None]:
        """Computes all groups again, and yields for each its key if the latest start of its pods moved, else None.

        If `has_changed` found the Jobs and CronJobs unchanged, only predictions can differ.
        """
        compute = self._compute if self._have_objects_changed else self._predict
        for key, group in list(self._groups.items()):
            yield key if compute(group) else None

    def keep_only(self, used: set[GroupKey]) -> None:
        """Forgets groups without a waiting pod."""
        self._groups = {key: group for key, group in self._groups.items() if key in used}

    def _compute(self, group: Group) -> bool:
        job = self._job(group.namespace, group.owner)
        cron_job = self._cron_job(group.namespace, job)
        rule, before = rule_of(group.annotated, job, cron_job, self._settings.max_wait_s), group.rule
        group.rule = rule
        group.run_key = RunKey(group.namespace, self._root(group.namespace, group.owner, job), group.images)
        return self._predict(group, is_new=rule != before)

    def _predict(self, group: Group, *, is_new: bool = False) -> bool:
        """Returns whether the latest start moved. `is_new`: the rule has changed."""
        found = self._kept.history.predict(group.run_key)
        if found is group.prediction and not is_new:
            return False
        group.prediction = found
        # The longest wait bounds the wait, not the end.
        margin_s = 0.0 if group.rule.origin is DeadlineOrigin.MAX_WAIT else found.p90_s + found.start_up_s
        if not is_new and abs(margin_s - group.margin_s) < max(BUCKET_S, MARGIN_SHARE * group.margin_s):
            return False
        group.margin_s = margin_s
        return True

    def _job(self, namespace: str, owner: Owner | None) -> Job | None:
        if owner is None or owner.kind != "Job":
            return None
        found = self._objects.get(ObjectKind.JOB, namespace, owner.name)
        return found if isinstance(found, Job) and found.uid == owner.uid else None

    def _cron_job(self, namespace: str, job: Job | None) -> CronJob | None:
        if job is None or job.owner is None or job.owner.kind != "CronJob":
            return None
        found = self._objects.get(ObjectKind.CRON_JOB, namespace, job.owner.name)
        return found if isinstance(found, CronJob) and not found.malformed else None

    def _root(self, namespace: str, owner: Owner | None, job: Job | None) -> str:
        """Returns KIND/NAME of the root owner. The CronJob of a Job that is deleted or cannot be read is derived from its name."""
        if owner is None:
            return ""
        if job is not None:
            root = job.owner or owner
            return f"{root.kind}/{root.name}"
        by_name = _OF_CRON_JOB.fullmatch(owner.name) if owner.kind == "Job" else None
        return f"{owner.kind}/{owner.name}" if by_name is None else f"CronJob/{by_name[1]}"


def key_of(pod: Pod) -> GroupKey:
    """Returns the key of the pod's group; specs and annotations of equal pods are one object (`model.decode`)."""
    return pod.namespace, "" if pod.owner is None else pod.owner.uid, id(pod.spec), id(pod.annotations)


def images_of(spec: PodSpec) -> str:
    """Returns a hash of the images of all containers."""
    return blake2b("\n".join(spec.images).encode(), digest_size=8).hexdigest()
