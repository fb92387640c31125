"""The built-in stage sets, in the format of stage files.

`fast`: pods run at once, Job pods succeed after the seconds in their annotation `multisched.io/run-seconds` (default: one second), and
deleted pods are removed at once. `general`: the same, but each step takes some seconds. `chaos`: `general`, with failing containers,
and nodes that become NotReady and Ready again.

In all sets, other pods with that annotation also succeed after that time unless their restartPolicy is Always, and the containers of pods
with the label `multisched.io/chaos: container-failed` fail.
"""

from __future__ import annotations

from functools import cache

from multisched.cluster.kubelet.stages import StageError, StageSet, load_stages

RUN_SECONDS_ANNOTATION = "multisched.io/run-seconds"
CHAOS_LABEL = "multisched.io/chaos"

_TEMPLATE = """
apiVersion: multisched.io/v1
kind: Stage
metadata: {{name: pod-ready}}
spec:
  resourceRef: {{kind: Pod}}
  selector:
    matchExpressions:
    - {{key: .metadata.deletionTimestamp, operator: DoesNotExist}}
    - {{key: .status.phase, operator: NotIn, values: [Running, Succeeded, Failed]}}
  delay: {{{ready}}}
  next: {{phase: Running}}
---
apiVersion: multisched.io/v1
kind: Stage
metadata: {{name: pod-complete-job}}
spec:
  resourceRef: {{kind: Pod}}
  selector:
    matchExpressions:
    - {{key: .metadata.deletionTimestamp, operator: DoesNotExist}}
    - {{key: .status.phase, operator: In, values: [Running]}}
    - {{key: ".metadata.ownerReferences.[].kind", operator: In, values: [Job]}}
  delay: {{{complete}, durationFrom: {{annotation: multisched.io/run-seconds}}}}
  next: {{phase: Succeeded, reason: Completed}}
---
apiVersion: multisched.io/v1
kind: Stage
metadata: {{name: pod-complete-annotated}}
spec:
  resourceRef: {{kind: Pod}}
  selector:
    matchExpressions:
    - {{key: .metadata.deletionTimestamp, operator: DoesNotExist}}
    - {{key: .status.phase, operator: In, values: [Running]}}
    - {{key: ".metadata.ownerReferences.[].kind", operator: NotIn, values: [Job]}}
    - {{key: .spec.restartPolicy, operator: NotIn, values: [Always]}}
    - {{key: '.metadata.annotations["multisched.io/run-seconds"]', operator: Exists}}
  delay: {{durationFrom: {{annotation: multisched.io/run-seconds}}}}
  next: {{phase: Succeeded, reason: Completed}}
---
apiVersion: multisched.io/v1
kind: Stage
metadata: {{name: pod-failed-on-request}}
spec:
  resourceRef: {{kind: Pod}}
  selector:
    matchLabels: {{multisched.io/chaos: container-failed}}
    matchExpressions:
    - {{key: .metadata.deletionTimestamp, operator: DoesNotExist}}
    - {{key: .status.phase, operator: In, values: [Running]}}
  weight: 10000
  next: {{phase: Failed, reason: Error, message: the container failed because of its pod's label multisched.io/chaos, exitCode: 1}}
---
apiVersion: multisched.io/v1
kind: Stage
metadata: {{name: pod-delete}}
spec:
  resourceRef: {{kind: Pod}}
  selector:
    matchExpressions:
    - {{key: .metadata.deletionTimestamp, operator: Exists}}
  delay: {{{delete}}}
  next: {{delete: true}}
"""

_CHAOS = """
---
apiVersion: multisched.io/v1
kind: Stage
metadata: {name: pod-container-failed}
spec:
  resourceRef: {kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Running]}
  delay: {durationMilliseconds: 5000, jitterDurationMilliseconds: 120000}
  next:
    phase: Failed
    reason: Error
    message: the container was ended by the chaos stages
    exitCode: 137
    event: {type: Warning, reason: BackOff, message: the container was ended by the chaos stages}
---
apiVersion: multisched.io/v1
kind: Stage
metadata: {name: node-not-ready}
spec:
  resourceRef: {kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select( .type == "Ready" ) | .status', operator: In, values: ["True"]}
  delay: {durationMilliseconds: 30000, jitterDurationMilliseconds: 600000}
  next: {ready: false, reason: KubeletNotReady, message: the chaos stages stopped this node}
---
apiVersion: multisched.io/v1
kind: Stage
metadata: {name: node-ready-again}
spec:
  resourceRef: {kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select( .type == "Ready" ) | .status', operator: In, values: ["False"]}
  delay: {durationMilliseconds: 10000, jitterDurationMilliseconds: 60000}
  next: {ready: true, reason: KubeletReady, message: the chaos stages started this node again}
"""

_FAST = _TEMPLATE.format(
    ready="durationMilliseconds: 0",
    complete="durationMilliseconds: 1000",
    delete="durationMilliseconds: 0",
)
_GENERAL = _TEMPLATE.format(
    ready="durationMilliseconds: 1000, jitterDurationMilliseconds: 5000",
    complete="durationMilliseconds: 5000, jitterDurationMilliseconds: 30000",
    delete="durationMilliseconds: 1000, jitterDurationMilliseconds: 5000",
)
BUILTIN = {"fast": _FAST, "general": _GENERAL, "chaos": _GENERAL + _CHAOS}


@cache
def builtin_stages(name: str) -> StageSet:
    """Returns a built-in set. Raises StageError for an unknown name."""
    if name not in BUILTIN:
        raise StageError(f"there is no built-in stage set {name!r}; write one of {', '.join(BUILTIN)}, or a file")
    return load_stages(BUILTIN[name], source=name)
