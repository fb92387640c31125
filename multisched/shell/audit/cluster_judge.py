"""The judge (`multisched.verify`) on a live cluster: by lists of its own, never by the cache of the program it judges.

`judge_cluster` is one look, for commands. `ClusterJudge` looks again and again beside a running program. It fetches
pages on the loop and judges them in a process of its own. Metrics and events report the findings.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import anyio
import msgspec
import orjson

from multisched.client.cluster_list import cluster_pages
from multisched.client.errors import ApiError, Gone, with_hint
from multisched.client.lister import MalformedAnswerError
from multisched.config.options import ExitCode, RefusedError
from multisched.framework.background import Assistant, BackgroundProcessError, ProcessPorts
from multisched.framework.ports import Clock, Event, EventSink, ObjectRef
from multisched.model.decode_metadata import with_valid_text
from multisched.model.wire import Transport, TransportError
from multisched.shell.workers.background_processes import OwnedProcess
from multisched.verify import RULES, Domain, Finding, Judge, Report
from multisched.verify.report import Unjudged, report_of

LIST_TRIES: Final = 3
"""A list whose token expires between two pages begins anew so often."""
LOOK_MAX_S: Final = 600.0
"""One look, from the first page to the verdict; then its process is killed."""
EVENTS_MAX: Final = 20
"""Pods that get an event after one look; metrics count all of them."""
REASON: Final = "StandsAgainstRule"

logger = logging.getLogger(__name__)

_UNREAD: Final[Mapping[str, str]] = {
    "Namespace": "podAffinity, podAntiAffinity (namespaceSelector)",
    "StorageClass": "volumes",
    "CSINode": "volumes",
    "PersistentVolume": "volumes",
    "PersistentVolumeClaim": "volumes",
}
"""Kind -> the rules of which less can be said without it."""


Begin = Callable[[], Awaitable[None]]
AddPage = Callable[[str, Sequence[bytes]], Awaitable[None]]


class JudgeError(RefusedError):
    """Nodes or pods cannot be had; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.NO_CLUSTER)


async def judge_cluster(transport: Transport, domains: Sequence[Domain]) -> Report:
    """Every pod of the cluster, in this process. Raises JudgeError, or TransportError where no server answers."""
    judge = Judge(domains)

    async def begin() -> None:
        nonlocal judge
        judge = Judge(domains)

    async def add_page(kind: str, items: Sequence[bytes]) -> None:
        for raw in items:
            judge.add(kind, _document(raw))

    refused = await _listed(transport, begin, add_page)
    found = report_of(judge, has_domains=bool(domains))
    unread = [Unjudged(_UNREAD[kind], f"{kind} cannot be listed: {why}") for kind, why in refused.items()]
    return found._replace(not_judged=[*found.not_judged, *unread])


async def _listed(transport: Transport, begin: Begin, add_page: AddPage) -> Mapping[str, str]:
    """Tells all pages, from the beginning where a list expired; what may not be read."""
    for _ in range(LIST_TRIES):
        refused: dict[str, str] = {}
        await begin()
        try:
            async for kind, items in cluster_pages(transport, refused):
                await add_page(kind, [bytes(raw) for raw in items])
        except Gone:
            continue
        except (ApiError, MalformedAnswerError) as error:
            raise JudgeError(f"nodes and pods cannot be listed: {with_hint(error)}") from error
        return refused
    raise JudgeError("the lists expire before they end; try again")


def _document(raw: bytes) -> Any:
    """As Go reads it: one object whose text is not UTF-8 must not keep all others from being judged."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return orjson.loads(with_valid_text(raw))


class _Begin(msgspec.Struct, frozen=True):
    """To the process: forget everything."""


class _Page(msgspec.Struct, frozen=True):
    """To the process: objects of one kind."""

    kind: str
    items: Sequence[bytes]


class _Judge(msgspec.Struct, frozen=True):
    """To the process: what do you find?"""


class JudgeAssistant(Assistant):
    """The judge in its process."""

    def __init__(self, settings: object, ports: ProcessPorts) -> None:
        assert isinstance(settings, tuple)
        self._domains: Sequence[Domain] = settings
        self._judge = Judge(self._domains)

    async def answer(self, question: object) -> object:
        """None for a `_Page`; findings for `_Judge`."""
        if isinstance(question, _Page):
            for raw in question.items:
                self._judge.add(question.kind, _document(raw))
            return None
        judge, self._judge = self._judge, Judge(self._domains)
        return [one for one in judge.findings() if one.is_sure] if isinstance(question, _Judge) else None


FACTORY: Final = "multisched.shell.audit.cluster_judge:JudgeAssistant"


class JudgeStatistics(msgspec.Struct):
    """How the looks went."""

    runs: int = 0
    failures: int = 0
    ended_at_s: float = 0.0
    """Epoch seconds of the last look that succeeded; 0 before."""
    seconds: float = 0.0
    """How long that took."""
    violations: Mapping[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(RULES, 0))
    """Rule -> pods that stand against it for sure."""


class ClusterJudge:
    """Looks at the cluster every `every_s` while `may_look` says so. A look that fails is logged and tried again next time."""

    def __init__(
        self,
        transport: Transport,
        open_process: Callable[[], OwnedProcess],
        events: EventSink,
        clock: Clock,
        *,
        every_s: float,
        reporter: str,
        may_look: Callable[[], bool],
    ) -> None:
        """`open_process`: a new one for each look, which knows the domains as they are configured by then."""
        self._transport = transport
        self._open_process = open_process
        self._events = events
        self._clock = clock
        self._every_s = every_s
        self._reporter = reporter
        self._may_look = may_look
        self.statistics = JudgeStatistics()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await anyio.sleep(self._every_s)
            if not self._may_look():
                self.statistics.violations = dict.fromkeys(RULES, 0)
                continue
            try:
                with anyio.fail_after(LOOK_MAX_S):
                    await self.look()
            except (JudgeError, TransportError, BackgroundProcessError, TimeoutError) as error:
                self.statistics.failures += 1
                logger.warning("the cluster could not be judged", extra={"reason": str(error) or type(error).__name__})

    async def look(self) -> None:
        """Once, now."""
        began_s, process = self._clock.monotonic(), self._open_process()

        async def begin() -> None:
            await process.ask(_Begin())

        async def add_page(kind: str, items: Sequence[bytes]) -> None:
            await process.ask(_Page(kind, items))

        try:
            await _listed(self._transport, begin, add_page)
            found: list[Finding] = await process.ask(_Judge())
        finally:
            with anyio.CancelScope(shield=True):
                await process.close()  # between looks it need not hold any memory
        counts = Counter(finding.rule for finding in found)
        statistics = self.statistics
        statistics.runs += 1
        statistics.ended_at_s = self._clock.now().timestamp()
        statistics.seconds = self._clock.monotonic() - began_s
        statistics.violations = {rule: counts[rule] for rule in RULES}
        for finding in found[:EVENTS_MAX]:
            self._report(finding)

    def _report(self, finding: Finding) -> None:
        namespace, _, name = finding.pod.partition("/")
        self._events.record(
            Event(
                ObjectRef("Pod", namespace, name, finding.uid),
                "Warning",
                REASON,
                "Verifying",
                f"{finding.rule}: {finding.message} (node {finding.node})",
                self._reporter,
            )
        )
