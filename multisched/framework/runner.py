"""Runs plugins: the only place where a plugin's exception, invalid result or refusal becomes a Status.

A Filter or Score that raises, or returns the wrong type, shape or range, raises `PluginFailure` with an Error
status here. The cycle catches it; no other exception of a plugin leaves this module.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import closing
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from multisched.framework.caching import MovedRowsPlugin, SignPlugin
from multisched.framework.node_view import Codes, Rows, Scores
from multisched.framework.normalize import MAX_SCORE
from multisched.framework.points import (
    CycleView,
    FilterPlugin,
    GroupPostFilterPlugin,
    NormalizeScorePlugin,
    PermitPlugin,
    PermitResult,
    Plugin,
    PostFilterPlugin,
    PostFilterResult,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    Refusals,
    ReservePlugin,
    ScorePlugin,
)
from multisched.framework.preemption import GroupDryRun
from multisched.framework.registry import implements
from multisched.framework.remote import RecheckingPlugin
from multisched.framework.status import SKIP, SUCCESS, Code, Status
from multisched.model.objects import Pod

_UINT8, _INT64, _INTP = np.dtype(np.uint8), np.dtype(np.int64), np.dtype(np.intp)

SAMPLED_EVERY = 10
"""Plugin calls are timed in one of this many attempts, as upstream: reading the clock costs more than many plugins."""

R = TypeVar("R")


class _Ended(NamedTuple):
    """The result of a plugin's search that has ended."""

    value: object


class PluginFailure(Exception):
    """A plugin failed; `status` is the status of its pod."""

    def __init__(self, status: Status) -> None:
        super().__init__(f"{status.plugin}: {status.message}")
        self.status = status


class PluginObserver(Protocol):
    """Receives sampled plugin calls and every failure."""

    def plugin_ran(self, plugin: str, point: str, seconds: float) -> None: ...

    def plugin_failed(self, plugin: str, point: str, error: BaseException | str) -> None: ...


class Runner:
    """Calls the plugins of one domain."""

    def __init__(self, observer: PluginObserver, stopwatch: Callable[[], float]) -> None:
        self._observer = observer
        self.stopwatch = stopwatch
        """Seconds of the domain's monotonic clock."""
        self._attempts = 0
        self._is_sampled = False

    def begin_attempt(self) -> None:
        """Decides whether this attempt's plugin calls are timed."""
        self._attempts += 1
        self._is_sampled = self._attempts % SAMPLED_EVERY == 1

    def call(self, plugin: Plugin, point: str, function: Callable[..., R], *args: Any) -> R:
        """Returns the plugin's result; an exception becomes PluginFailure. The PluginFailure of a nested plugin call is passed on."""
        if self._is_sampled:
            return self._timed(plugin, point, function, *args)
        try:
            return function(*args)
        except PluginFailure:
            raise
        except Exception as error:
            _note_node(error, point, args)
            raise self.failure(plugin, point, error) from error

    def _timed(self, plugin: Plugin, point: str, function: Callable[..., R], *args: Any) -> R:
        started = self.stopwatch()
        try:
            return function(*args)
        except PluginFailure:
            raise
        except Exception as error:
            _note_node(error, point, args)
            raise self.failure(plugin, point, error) from error
        finally:
            self._observer.plugin_ran(plugin.name, point, self.stopwatch() - started)

    def sign(self, plugins: Sequence[SignPlugin], pod: Pod) -> list[Hashable | None]:
        """Returns the fragments of several plugins. One loop instead of a call each, since every attempt signs its pod."""
        if self._is_sampled:
            return self._sign_singly(plugins, pod)
        try:
            found = [plugin.sign(pod) for plugin in plugins]
            hash(tuple(found))
        except Exception:  # noqa: BLE001 - asked one by one, the plugin that fails is known
            return self._sign_singly(plugins, pod)
        return found

    def _sign_singly(self, plugins: Sequence[SignPlugin], pod: Pod) -> list[Hashable | None]:
        """Does what `sign` does, for an attempt whose plugin calls are timed or fail."""
        found: list[Hashable | None] = []
        started = self.stopwatch() if self._is_sampled else 0.0
        for plugin in plugins:
            try:
                fragment = plugin.sign(pod)
                hash(fragment)  # raises here, as the plugin's own failure, if the fragment is not hashable
            except Exception as error:
                raise self.failure(plugin, "Sign", error) from error
            found.append(fragment)
            if self._is_sampled:
                before, started = started, self.stopwatch()
                self._observer.plugin_ran(plugin.name, "Sign", started - before)
        return found

    def failure(self, plugin: Plugin, point: str, error: BaseException | str) -> PluginFailure:
        """Reports the failure to the observer and returns it with an Error status. Notes of the error (`add_note`) follow its text."""
        self._observer.plugin_failed(plugin.name, point, error)
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}{notes}"
        return PluginFailure(Status(Code.ERROR, plugin.name, (sentence(plugin, point, text),)))

    def pre_filter(self, plugin: PreFilterPlugin, cycle: CycleView, pod: Pod) -> PreFilterResult:
        result = self.call(plugin, "PreFilter", plugin.pre_filter, cycle, pod)
        if not isinstance(result, PreFilterResult):
            raise self.failure(plugin, "PreFilter", f"returned {type(result).__name__}, not PreFilterResult")
        if result.status.code is Code.ERROR:
            raise self.failure(plugin, "PreFilter", result.status.message)
        return result

    def moved_rows(self, plugin: MovedRowsPlugin, cycle: CycleView, pod: Pod) -> Rows | None:
        rows = self.call(plugin, "Filter", plugin.moved_rows, cycle, pod)
        if rows is not None and not (isinstance(rows, np.ndarray) and rows.dtype == _INTP and rows.ndim == 1):
            raise self.failure(
                plugin, "Filter", f"moved rows: returned {type(rows).__name__}, not {_INTP}[rows] or None"
            )
        return rows

    def filter(self, plugin: FilterPlugin, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        codes = self.call(plugin, "Filter", plugin.filter, cycle, pod, rows)
        self._check(plugin, "Filter", codes, _UINT8, rows)
        return codes

    def recheck(self, plugin: FilterPlugin, cycle: CycleView, pod: Pod, rows: Rows) -> Codes:
        """Runs Filter for rows that changed since the request; a `RecheckingPlugin` runs its own check instead."""
        again = plugin.recheck if implements(plugin, RecheckingPlugin) else plugin.filter
        codes = self.call(plugin, "Filter", again, cycle, pod, rows)
        self._check(plugin, "Filter", codes, _UINT8, rows)
        return codes

    def post_filter(self, plugin: PostFilterPlugin, cycle: CycleView, pod: Pod, refusals: Refusals) -> PostFilterResult:
        """Returns the plugin's result; a failure becomes an Error status, because PostFilter does not change the pod's refusal."""
        return self._post_filter(plugin, plugin.post_filter, cycle, pod, refusals)

    def post_filter_group(
        self, plugin: GroupPostFilterPlugin, cycle: CycleView, pods: Sequence[Pod], dry_run: GroupDryRun
    ) -> Generator[None, None, PostFilterResult]:
        """Like `post_filter`, for pods that must start together. Yields when the plugin's search pauses."""
        try:
            search = self.call(plugin, "PostFilter", plugin.post_filter_group, cycle, pods, dry_run)
            if not isinstance(search, Generator):
                text = f"returned {type(search).__name__}, not a generator that ends with a PostFilterResult"
                raise self.failure(plugin, "PostFilter", text)
            with closing(search):
                while (ended := self.call(plugin, "PostFilter", _advanced, search)) is None:
                    yield
        except PluginFailure as failure:
            return PostFilterResult(failure.status)
        return self._checked(plugin, ended.value)

    def _post_filter(self, plugin: Plugin, function: Callable[..., PostFilterResult], *args: Any) -> PostFilterResult:
        try:
            result = self.call(plugin, "PostFilter", function, *args)
        except PluginFailure as failure:
            return PostFilterResult(failure.status)
        return self._checked(plugin, result)

    def _checked(self, plugin: Plugin, result: object) -> PostFilterResult:
        if not isinstance(result, PostFilterResult):
            text = f"returned {type(result).__name__}, not PostFilterResult"
            return PostFilterResult(self.failure(plugin, "PostFilter", text).status)
        return result

    def pre_score(self, plugin: PreScorePlugin, cycle: CycleView, pod: Pod, rows: Rows) -> Status:
        status = self.call(plugin, "PreScore", plugin.pre_score, cycle, pod, rows)
        if not isinstance(status, Status):
            raise self.failure(plugin, "PreScore", f"returned {type(status).__name__}, not Status")
        if status.code not in (Code.SUCCESS, Code.SKIP):
            raise self.failure(plugin, "PreScore", status.message)
        return status

    def score(self, plugin: ScorePlugin, cycle: CycleView, pod: Pod, rows: Rows) -> Scores:
        raw = self.call(plugin, "Score", plugin.score, cycle, pod, rows)
        self._check(plugin, "Score", raw, _INT64, rows)
        return raw

    def normalize(self, plugin: NormalizeScorePlugin, cycle: CycleView, pod: Pod, raw: Scores) -> Scores:
        scores = self.call(plugin, "NormalizeScore", plugin.normalize_score, cycle, pod, raw)
        self._check(plugin, "NormalizeScore", scores, _INT64, raw)
        self.check_range(plugin, scores)
        return scores

    def check_range(self, plugin: Plugin, scores: Scores) -> None:
        """Raises PluginFailure unless all final scores of feasible rows are within 0..MAX_SCORE."""
        if len(scores) and not (scores.item(scores.argmin()) >= 0 and scores.item(scores.argmax()) <= MAX_SCORE):
            found = f"{int(scores.min())}..{int(scores.max())}"
            raise self.failure(plugin, "Score", f"returned scores {found}, outside 0..{MAX_SCORE}")

    def reserve(self, plugin: ReservePlugin, cycle: CycleView, pod: Pod, node: str) -> Status:
        """Returns the plugin's status; a failure becomes an Error status, because what was reserved must be undone either way."""
        return self._status(plugin, "Reserve", plugin.reserve, cycle, pod, node)

    def unreserve(self, plugin: ReservePlugin, cycle: CycleView, pod: Pod, node: str) -> None:
        """Never raises: an exception is reported to the observer, so that the other plugins are unreserved too."""
        try:
            plugin.unreserve(cycle, pod, node)
        except Exception as error:  # noqa: BLE001 - one plugin's failure must not keep the others from unreserving
            self._observer.plugin_failed(plugin.name, "Unreserve", error)

    def permit(self, plugin: PermitPlugin, cycle: CycleView, pod: Pod, node: str) -> PermitResult:
        try:
            result = self.call(plugin, "Permit", plugin.permit, cycle, pod, node)
        except PluginFailure as failure:
            return PermitResult(failure.status)
        if not isinstance(result, PermitResult):
            return PermitResult(self.failure(plugin, "Permit", f"returned {type(result).__name__}").status)
        return PermitResult(in_full(plugin, "Permit", result.status), result.timeout_s)

    def status(self, plugin: Plugin, point: str, function: Callable[..., Status], *args: Any) -> Status:
        """Runs an extension point that returns a Status; a failure becomes an Error status."""
        return self._status(plugin, point, function, *args)

    def _status(self, plugin: Plugin, point: str, function: Callable[..., Status], *args: Any) -> Status:
        try:
            status = self.call(plugin, point, function, *args)
        except PluginFailure as failure:
            return failure.status
        if not isinstance(status, Status):
            return self.failure(plugin, point, f"returned {type(status).__name__}, not Status").status
        return status if status is SUCCESS or status is SKIP else in_full(plugin, point, status)

    def _check(self, plugin: Plugin, point: str, found: Any, dtype: np.dtype[Any], rows: Any) -> None:
        if not isinstance(found, np.ndarray) or found.dtype != dtype or found.shape != rows.shape:
            shape = f"{found.dtype}{list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
            raise self.failure(plugin, point, f"returned {shape}, not {dtype}[{len(rows)}]")


def _note_node(error: Exception, point: str, args: Sequence[Any]) -> None:
    """Adds a note with the node's name if Filter was called for one row only. `args`: cycle, pod and rows."""
    if point == "Filter" and len(args) == 3 and len(args[2]) == 1 and not getattr(error, "__notes__", ()):
        error.add_note(f"on node {args[0].nodes.node(int(args[2][0])).name}")


def _advanced(search: Generator[None, None, object]) -> _Ended | None:
    """Advances the search to its next pause; returns how it ended, if it did."""
    try:
        next(search)
    except StopIteration as ended:
        return _Ended(ended.value)
    return None


def in_full(plugin: Plugin, point: str, status: Status) -> Status:
    """Returns a plugin's own status with its name. The text of an Error names the extension point, as upstream."""
    if status.code is not Code.ERROR:
        return status.by(plugin.name)
    text = sentence(plugin, point, status.message)
    return Status(Code.ERROR, plugin.name, (text,), status.is_denied, status.condition_reason)


def sentence(plugin: Plugin, point: str, text: str) -> str:
    """Returns an error's message for the owner of a pod, in upstream's form."""
    where = _WHERE.get(point, f"{point} plugin")
    return f'running {where} "{plugin.name}": {text}'


_WHERE = {
    "AddPod": "AddPod on PreFilter plugin",
    "RemovePod": "RemovePod on PreFilter plugin",
    "PreBindPreFlight": "PreBindPreFlight",
}
"""Extension points whose names in upstream's messages differ."""
