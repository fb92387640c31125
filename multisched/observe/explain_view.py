"""The history of a pod with reasons, as values: the documents of `/api/v1/explain`, which `multisched explain` prints.

Values only. `explain_attempt` and the composition root fill them in, the server encodes, the CLI decodes, and `explain_words` renders them
as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

NODES_NAMED: Final = 10
"""Nodes named for each verdict, unless more are requested."""
NODES_NAMED_MAX: Final = 5_000
RUNNERS_UP: Final = 5
REPLICAS_MAX: Final = 1_000
FITTING_MAX: Final = 10_000
"""Limit of replicas that may not preempt: each of them is one attempt."""


class PluginRefusal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Nodes that one plugin was the first to refuse, with one reason."""

    plugin: str
    code: str
    """Unschedulable, UnschedulableAndUnresolvable, Pending or Error."""
    reasons: tuple[str, ...]
    count: int
    nodes: tuple[str, ...] = ()
    """Some of them, by name."""
    is_for_nominated: bool = False
    """Refused only because pods nominated to the node will use its resources."""


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One plugin's score of one node: `score` (0..100) times `weight` counts."""

    plugin: str
    score: int
    weight: int
    raw: int | None = None
    """Before normalization; None: not recorded, as in all attempts but those of a trial."""


class Scored(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A feasible node and its score."""

    node: str
    total: int
    parts: tuple[Part, ...] = ()


class PointResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of one plugin at one extension point."""

    point: str
    plugin: str
    said: str


class Attempt(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One attempt at placing the pod."""

    number: int
    ago_s: float
    outcome: str
    """placed, refused, conflict, error or given up."""
    node: str = ""
    message: str = ""
    snapshot: str = ""
    """Source of verdicts and runners-up: own, earlier (of an identical pod, `snapshot_ago_s`), dropped or none."""
    snapshot_ago_s: float = 0.0
    domain_nodes: int = 0
    """Number of nodes that the domain may use."""
    looked_at: int = 0
    """Number of those that PreFilter left."""
    feasible: int = 0
    points: tuple[PointResult, ...] = ()
    refused: tuple[PluginRefusal, ...] = ()
    winner: Scored | None = None
    ties: int = 0
    """Number of nodes with the winner's score, itself included; one of them is chosen at random."""
    runners_up: tuple[Scored, ...] = ()
    passed_over: tuple[str, ...] = ()
    """Nodes with a higher score that were no longer feasible when the pod was to be assumed there."""
    nominated_node: str = ""
    victims: tuple[str, ...] = ()
    """Pods to be preempted, NAMESPACE/NAME."""
    victim_nodes: tuple[str, ...] = ()
    """The node of each victim."""


class Step(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One transition in the queue."""

    ago_s: float
    event: str
    state: str


class Wake(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Events that requeue a pod refused by this plugin."""

    plugin: str
    events: tuple[str, ...]


class OnNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to `--node`."""

    node: str
    text: str
    plugins: tuple[PointResult, ...] = ()
    """Result of each Filter plugin for this node."""
    scored: Scored | None = None


class Fix(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One change after which the pod fits; it was tried with all plugins."""

    kind: str
    """gate, request, quota, toleration, scheduler, selector, affinity, spread, pod affinity, host port, node or victim."""
    text: str
    size: float
    """Smaller is a smaller change; see `whatif.fixes`."""
    node: str
    """The node on which the pod would be placed then."""
    change: dict[str, Any]
    """The change, for programs."""
    command: str = ""
    """A kubectl command that makes the change, if one command can."""


class PodView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything known about one pod."""

    namespace: str
    name: str
    uid: str
    scheduler: str
    domain: str
    state: str
    """One of `queue_view.STATES`, or bound."""
    waiting_for: str
    """A sentence that says what the pod waits for now; empty for a bound pod."""
    node: str = ""
    requests: dict[str, int] = {}
    """Resource -> what the pod requests: milli-CPU for cpu, bytes or counts for all others."""
    since_s: float = 0.0
    """Seconds in this state; 0 if unknown."""
    waiting_s: float = 0.0
    """Seconds since the queue got it; 0 for a pod that is not in the queue."""
    retry_in_s: float | None = None
    """Seconds until it is retried even without an event; None if it is not retried by time."""
    attempts_made: int = 0
    wakes: tuple[Wake, ...] = ()
    history: tuple[Step, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    """The recorded attempts, the latest first."""
    now: Attempt | None = None
    """Result of an attempt made now in a sandbox, if none is recorded or it was requested."""
    on_node: OnNode | None = None
    fixes: tuple[Fix, ...] | None = None
    """None: not requested. Empty: no single change helps."""
    notes: tuple[str, ...] = ()


class Placement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Result for one replica."""

    replica: int
    node: str = ""
    """Empty if it cannot be placed."""
    total: int = 0
    ties: int = 0
    victims: tuple[str, ...] = ()
    """Pods to be preempted first, NAMESPACE/NAME."""
    message: str = ""
    """Why it cannot be placed."""


class WhatIfView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to --what-if."""

    namespace: str
    name: str
    domain: str
    replicas: int
    placements: tuple[Placement, ...]
    notes: tuple[str, ...] = ()


class WhatIfList(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to --what-if about several objects."""

    items: tuple[WhatIfView, ...]
    """In the order of the manifests. Pods that the queue would try earlier are placed before each."""
    notes: tuple[str, ...] = ()


class ExplainQuery(msgspec.Struct, frozen=True):
    """A query about one pod."""

    namespace: str
    name: str
    node: str = ""
    """The node of `--node`."""
    with_fixes: bool = False
    with_now: bool = False
    """With an attempt in a sandbox even if one is recorded: it has raw scores."""
    names: int = NODES_NAMED


class NotExplainedError(Exception):
    """There is no explanation; the message gives the reason.

    `status` as in HTTP: 404 not known, 422 invalid query, 429 too many queries, 503 not yet.
    """

    def __init__(self, message: str, *, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


class ExplainSource(Protocol):
    """Answers queries about pods. Trials run off the loop.

    All methods raise NotExplainedError, and NotLeadingError for a pod of a domain that another replica leads.
    """

    async def pod(self, query: ExplainQuery) -> PodView: ...

    async def what_if(self, document: Mapping[str, Any], replicas: int, *, preempts: bool = True) -> WhatIfView:
        """Places the pods of one manifest. `document`: a manifest with a pod in it. `preempts`: False: without preemptions."""
        ...

    async def what_if_list(self, documents: Sequence[Any], replicas: int) -> WhatIfList:
        """Places the pods of several manifests together."""
        ...


View = TypeVar("View", PodView, WhatIfView, WhatIfList)


def encode_view(view: PodView | WhatIfView | WhatIfList) -> bytes:
    """Returns JSON with camelCase names."""
    return msgspec.json.encode(view)


def decode_view(body: bytes, kind: type[View]) -> View:
    """Decodes JSON. Raises msgspec.DecodeError for anything else."""
    return msgspec.json.decode(body, type=kind)
