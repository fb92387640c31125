"""`multisched queue`: queries a running multisched over HTTP for the pending pods per queue, with the reason."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

import msgspec

from multisched.cli.options import QueryError
from multisched.cli.server import NoLeaderError, Server, answer, ask_leader
from multisched.framework.leading import Leader, NotLedHere
from multisched.observe.queue_view import (
    PODS_SHOWN_MAX,
    STATES,
    QueueView,
    WaitingPod,
    decode_queue,
    longest_waiting_first,
)
from multisched.observe.tables import as_document, as_table, terminal_width

SHOWN: Final = 100
SHOWN_ON_TERMINAL: Final = 20


class QueueQuery(msgspec.Struct, frozen=True):
    """The query of `multisched queue`, and the server for it."""

    server: Server
    domain: str | None = None
    limit: int = SHOWN


def show(wanted: QueueQuery, output: str) -> Iterator[str]:
    """Yields the queue in the requested format; then raises QueryError for domains whose leaders could not be queried."""
    view, problems = fetch(wanted)
    if output in ("json", "yaml"):
        yield as_document(msgspec.to_builtins(view), output)
    elif view.domains:
        yield render(view, is_wide=output == "wide")
    if problems:
        raise QueryError("; ".join(dict.fromkeys(map(str, problems))), problems[0].code)


def fetch(wanted: QueueQuery) -> tuple[QueueView, list[QueryError]]:
    """Queries the server, and the leaders of the other domains; also returns why some could not be queried. Raises QueryError."""
    domain = {"domain": wanted.domain} if wanted.domain else {}
    view = answer(wanted.server, _path(wanted, domain), decode_queue)
    views, left = [view], list[NotLedHere]()
    problems = list[QueryError]()
    for group in _by_leader(view.elsewhere):
        while group:
            domains = [one.domain for one in group]
            led = group.popleft()
            path = _path(wanted, {"domain": led.domain})
            try:
                views.append(ask_leader(wanted.server, led, path, decode_queue, domains=domains))
            except NoLeaderError as error:
                left += [led, *group]
                problems.append(error)
                break
            except QueryError as error:
                left.append(led)
                problems.append(error)
    return _merged(views, left, wanted.limit), problems


def _by_leader(elsewhere: Sequence[NotLedHere]) -> list[deque[NotLedHere]]:
    """Groups the domains that have the same leader and state."""
    found: dict[tuple[Leader | None, bool], deque[NotLedHere]] = {}
    for led in elsewhere:
        found.setdefault((led.leader, led.is_taken_over), deque()).append(led)
    return list(found.values())


def _path(wanted: QueueQuery, query: Mapping[str, str]) -> str:
    return f"/api/v1/queue?{urlencode({'limit': str(wanted.limit), **query})}"


def _merged(views: Sequence[QueueView], left: Sequence[NotLedHere], limit: int) -> QueueView:
    if len(views) == 1:
        return views[0]
    pods = sorted((pod for view in views for pod in view.pods), key=longest_waiting_first)
    return QueueView(
        domains=tuple(sorted((one for view in views for one in view.domains), key=lambda one: one.domain)),
        pods=tuple(pods[:limit]),
        left_out=sum(view.left_out for view in views) + max(0, len(pods) - limit),
        elsewhere=tuple(left),
        identity=views[0].identity,
    )


def shown_at_once(output: str) -> int:
    """Returns the default number of pods: a screenful on a terminal."""
    is_for_people = output not in ("json", "yaml") and terminal_width() is not None
    return SHOWN_ON_TERMINAL if is_for_people else SHOWN


def render(view: QueueView, *, is_wide: bool = False, width: int | None = None) -> str:
    """Returns counts per domain, then the pods; fewer columns if the terminal is too narrow. `width`: see `as_table`."""
    columns = None if is_wide else width or terminal_width()
    parts = [_domains(view, columns)]
    if view.pods:
        parts.append(_pods(view, columns, is_wide=is_wide))
    if view.left_out:
        parts.append(f"… and {view.left_out} more (--limit shows up to {PODS_SHOWN_MAX})")
    return "\n\n".join(parts)


def _domains(view: QueueView, width: int | None) -> str:
    names = [
        (
            d.domain,
            ",".join(d.scheduler_names),
            "yes" if d.is_leading else "no",
            f"{d.binds_in_flight}/{d.bind_limit}",
            d.cycle_limit,
        )
        for d in view.domains
    ]
    counts = [[d.counts.get(state, 0) for state in STATES] for d in view.domains]
    head = ("domain", "scheduler names", "leading", "binds", "cycles")
    full = as_table((*head, *STATES), [(*n, *c) for n, c in zip(names, counts, strict=True)], is_wide=True)
    if width is None or _fits(full, width):
        return full
    waiting = [", ".join(f"{n} {state}" for n, state in zip(c, STATES, strict=True) if n) for c in counts]
    return as_table((*head, "waiting"), [(*n, w) for n, w in zip(names, waiting, strict=True)], width=width)


def _pods(view: QueueView, width: int | None, *, is_wide: bool) -> str:
    head = ["domain", "state", "namespace", "name", "age", "attempts", "retry in", "refused by", "why"]
    if is_wide:
        head[4:4] = ["priority", "qos", "node"]
    full = as_table(head, [_row(pod, is_wide=is_wide) for pod in view.pods], is_wide=True)
    if width is None or _fits(full, width):
        return full
    return as_table(
        ("pod", "domain", "state", "age", "tries", "why"),
        [_short_row(pod) for pod in view.pods],
        width=width,
    )


def _fits(table: str, width: int) -> bool:
    return max(map(len, table.splitlines())) <= width


def _row(pod: WaitingPod, *, is_wide: bool) -> list[object]:
    row: list[object] = [pod.domain, pod.state, pod.namespace, pod.name]
    if is_wide:
        row += [pod.priority, pod.qos, pod.node]
    return [*row, _age(pod.waiting_s), pod.attempts, _retry(pod), ",".join(pod.plugins), pod.message]


def _short_row(pod: WaitingPod) -> list[object]:
    why = ": ".join(filter(None, (", ".join(pod.plugins), pod.message)))
    retry = f"(retry in {_retry(pod)})" if pod.retry_in_s > 0 else ""
    name = f"{pod.namespace}/{pod.name}"
    return [name, pod.domain, pod.state, _age(pod.waiting_s), pod.attempts, f"{why} {retry}".strip()]


def _retry(pod: WaitingPod) -> str:
    return _age(pod.retry_in_s) if pod.retry_in_s > 0 else ""


def _age(seconds: float) -> str:
    """Formats an age as kubectl does: the two largest units if small, else one."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m{whole % 60:02}s" if whole < 600 else f"{whole // 60}m"
    return f"{whole // 3600}h" if whole < 172_800 else f"{whole // 86_400}d"
