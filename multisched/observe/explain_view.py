"""What happened to a pod and why, as values: the answers of `/api/v1/explain`, and what `multisched explain` prints.

Values only. `explain_attempt` and the composition root fill them in, the server encodes, the CLI decodes, `explain_words`
puts them into sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

NODES_NAMED: Final = 10
"""Nodes named behind each verdict, unless more are asked for."""
NODES_NAMED_MAX: Final = 5_000
RUNNERS_UP: Final = 5
REPLICAS_MAX: Final = 1_000


class Verdict(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Nodes that one plugin refused first, and for one reason."""

    plugin: str
    code: str
    """Unschedulable, UnschedulableAndUnresolvable, Pending or Error."""
    reasons: tuple[str, ...]
    count: int
    nodes: tuple[str, ...] = ()
    """Some of them, by name."""
    is_for_nominated: bool = False
    """Refused only because pods that were promised the node will take its room."""


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One plugin's score of one node: `score` (0..100) times `weight` counts."""

    plugin: str
    score: int
    weight: int


class Scored(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A node that takes the pod, and how good it is."""

    node: str
    total: int
    parts: tuple[Part, ...] = ()


class PointSaid(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one plugin said at one extension point."""

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
    """Where verdicts and runners-up come from: own, earlier (of an identical pod, `snapshot_ago_s`), dropped or none."""
    snapshot_ago_s: float = 0.0
    domain_nodes: int = 0
    """Nodes that the domain may use."""
    looked_at: int = 0
    """Those of them that PreFilter left."""
    feasible: int = 0
    points: tuple[PointSaid, ...] = ()
    refused: tuple[Verdict, ...] = ()
    winner: Scored | None = None
    ties: int = 0
    """Nodes as good as the winner, itself included; chance decides among them."""
    runners_up: tuple[Scored, ...] = ()
    passed_over: tuple[str, ...] = ()
    """Nodes that were liked better, and no longer took the pod when it came to taking it."""
    nominated_node: str = ""
    victims: tuple[str, ...] = ()
    """Pods that are to make room, NAMESPACE/NAME."""
    victim_nodes: tuple[str, ...] = ()
    """The node of each victim."""


class Step(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One move in the queue."""

    ago_s: float
    event: str
    place: str


class Wake(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What makes a plugin that refused the pod think again."""

    plugin: str
    events: tuple[str, ...]


class OnNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to `--node`."""

    node: str
    text: str
    plugins: tuple[PointSaid, ...] = ()
    """What each Filter plugin said of it."""
    scored: Scored | None = None


class Fix(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One change after which the pod fits; tried, with all plugins, before it was written here."""

    kind: str
    """gate, request, quota, toleration, scheduler, selector, affinity, spread, pod affinity, host port, node or victim."""
    text: str
    size: float
    """Smaller is less; see `whatif.fixes`."""
    node: str
    """Where the pod would go then."""
    change: dict[str, Any]
    """The change for programs."""
    command: str = ""
    """How to do it with kubectl, where one command does."""


class PodView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything about one pod."""

    namespace: str
    name: str
    uid: str
    scheduler: str
    domain: str
    state: str
    """As in `queue_view.STATES`, or bound."""
    waiting_for: str
    """What it waits for now, in a sentence; empty for a pod that is bound."""
    node: str = ""
    since_s: float = 0.0
    """Seconds in this state; 0 where nobody remembers."""
    retry_in_s: float | None = None
    """Until it is tried again though nothing happens; None where time does not move it."""
    attempts_made: int = 0
    wakes: tuple[Wake, ...] = ()
    history: tuple[Step, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    """Those that are remembered, the latest first."""
    now: Attempt | None = None
    """How an attempt at this moment ends, tried in thought, where none is remembered or it was asked for."""
    on_node: OnNode | None = None
    fixes: tuple[Fix, ...] | None = None
    """None: not asked for. Empty: no single change helps."""
    notes: tuple[str, ...] = ()


class Placement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What becomes of one replica."""

    replica: int
    node: str = ""
    """Empty: nowhere."""
    total: int = 0
    ties: int = 0
    victims: tuple[str, ...] = ()
    """Pods that have to go first, NAMESPACE/NAME."""
    message: str = ""
    """Why nowhere."""


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
    """In the order of the manifests. Each finds the pods of the others placed that the queue would have tried before."""
    notes: tuple[str, ...] = ()


class ExplainQuery(msgspec.Struct, frozen=True):
    """The explanation of one pod."""

    namespace: str
    name: str
    node: str = ""
    """Why not this one."""
    with_fixes: bool = False
    names: int = NODES_NAMED


class NotExplainedError(Exception):
    """There is nothing to tell; the message says why.

    `status` as in HTTP: 404 not known, 422 the question itself is wrong, 429 too many ask, 503 not yet.
    """

    def __init__(self, message: str, *, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


class ExplainSource(Protocol):
    """Answers about pods. What has to be tried in thought is tried off the loop.

    All raise NotExplainedError, and NotLeadingError for a pod of a domain that is not led here.
    """

    async def pod(self, query: ExplainQuery) -> PodView: ...

    async def what_if(self, document: Mapping[str, Any], replicas: int) -> WhatIfView:
        """`document`: a manifest with a pod in it."""
        ...

    async def what_if_list(self, documents: Sequence[Any], replicas: int) -> WhatIfList:
        """`documents`: manifests that are tried together."""
        ...


View = TypeVar("View", PodView, WhatIfView, WhatIfList)


def encode_view(view: PodView | WhatIfView | WhatIfList) -> bytes:
    """JSON with camelCase names."""
    return msgspec.json.encode(view)


def decode_view(body: bytes, kind: type[View]) -> View:
    """Raises msgspec.DecodeError for anything else."""
    return msgspec.json.decode(body, type=kind)
