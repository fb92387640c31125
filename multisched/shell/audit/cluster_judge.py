"""Runs the judge (`multisched.verify`) on a live cluster. It makes its own lists and never reads the cache that it judges.

`judge_cluster` runs it once, for commands. `ClusterJudge` runs it periodically in a running program: it fetches pages on the
event loop, judges them in a separate process, and reports the findings by metrics and events.
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
"""Maximum number of attempts to list the cluster if the continue token expires."""
LOOK_MAX_S: Final = 600.0
"""Timeout of one run, from the first page to the findings; its process is then killed."""
EVENTS_MAX: Final = 20
"""Maximum number of events per run; metrics count all findings."""
REASON: Final = "ViolatesPlacementRule"

logger = logging.getLogger(__name__)

_UNREAD: Final[Mapping[str, str]] = {
    "Namespace": "podAffinity, podAntiAffinity (namespaceSelector)",
    "StorageClass": "volumes",
    "CSINode": "volumes",
    "PersistentVolume": "volumes",
    "PersistentVolumeClaim": "volumes",
    "Device": "devices (Koordinator)",
}
"""Kind -> the rules that cannot be judged fully if the kind cannot be listed."""


Begin = Callable[[], Awaitable[None]]
AddPage = Callable[[str, Sequence[bytes]], Awaitable[None]]


class JudgeError(RefusedError):
    """Nodes or pods cannot be listed. The message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.NO_CLUSTER)


async def judge_cluster(transport: Transport, domains: Sequence[Domain]) -> Report:
    """Judges every pod of the cluster, in this process. Raises JudgeError, or TransportError if no server answers."""
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
    """Passes all pages to `add_page`; starts again if the continue token expired. Returns kind -> why it cannot be listed."""
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
    raise JudgeError(f"a list's continue token expired in each of {LIST_TRIES} attempts; try again")


def _document(raw: bytes) -> Any:
    """Decodes JSON. Replaces invalid UTF-8 as Go does, so that one such object does not fail the whole run."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return orjson.loads(with_valid_text(raw))


class _Begin(msgspec.Struct, frozen=True):
    """Request to the process: drop all objects."""


class _Page(msgspec.Struct, frozen=True):
    """Request to the process: add objects of one kind."""

    kind: str
    items: Sequence[bytes]


class _Judge(msgspec.Struct, frozen=True):
    """Request to the process: return the findings."""


class JudgeAssistant(Assistant):
    """The judge in its child process."""

    def __init__(self, settings: object, ports: ProcessPorts) -> None:
        assert isinstance(settings, tuple)
        self._domains: Sequence[Domain] = settings
        self._judge = Judge(self._domains)

    async def answer(self, question: object) -> object:
        """Handles a request. Returns findings for `_Judge`, else None."""
        if isinstance(question, _Page):
            for raw in question.items:
                self._judge.add(question.kind, _document(raw))
            return None
        judge, self._judge = self._judge, Judge(self._domains)
        return [one for one in judge.findings() if one.is_sure] if isinstance(question, _Judge) else None


FACTORY: Final = "multisched.shell.audit.cluster_judge:JudgeAssistant"


class JudgeStatistics(msgspec.Struct):
    """Results of the runs."""

    runs: int = 0
    failures: int = 0
    ended_at_s: float = 0.0
    """Epoch seconds of the end of the last successful run; 0 before."""
    seconds: float = 0.0
    """Duration of that run."""
    violations: Mapping[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(RULES, 0))
    """Rule -> number of pods that certainly violate it."""


class ClusterJudge:
    """A judge that runs every `every_s` while `may_look` returns True. A failed run is logged and retried in the next period."""

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
        """`open_process`: opens a process for each run, with the current configuration of domains."""
        self._transport = transport
        self._open_process = open_process
        self._events = events
        self._clock = clock
        self._every_s = every_s
        self._reporter = reporter
        self._may_look = may_look
        self.statistics = JudgeStatistics()

    async def run(self) -> None:
        """Judges periodically until cancelled."""
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
        """Judges the cluster once."""
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
                await process.close()  # frees its memory between runs
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
