"""`multisched queue`: asks a running multisched over HTTP what waits where, and why."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlencode

import msgspec

from multisched.cli.options import AskError
from multisched.cli.server import NoLeaderError, Server, answer, ask_leader
from multisched.framework.leading import Leader, LedElsewhere
from multisched.observe.queue_view import STATES, QueueView, WaitingPod, decode_queue, longest_waiting_first
from multisched.observe.tables import as_document, as_table


class Ask(msgspec.Struct, frozen=True):
    """Whom to ask for what."""

    server: Server
    domain: str | None = None
    limit: int = 500


def show(wanted: Ask, output: str) -> Iterator[str]:
    """The queue in the wanted form; then AskError for domains whose leaders could not be asked."""
    view, problems = fetch(wanted)
    if output in ("json", "yaml"):
        yield as_document(msgspec.to_builtins(view), output)
    elif view.domains:
        yield render(view, is_wide=output == "wide")
    if problems:
        raise AskError("; ".join(dict.fromkeys(map(str, problems))), problems[0].code)


def fetch(wanted: Ask) -> tuple[QueueView, list[AskError]]:
    """Asks the server, and the leaders of what it does not lead; and why some could not be asked. Raises AskError."""
    domain = {"domain": wanted.domain} if wanted.domain else {}
    view = answer(wanted.server, _path(wanted, domain), decode_queue)
    views, left = [view], list[LedElsewhere]()
    problems = list[AskError]()
    for alike in _by_leader(view.elsewhere):
        while alike:
            domains = [one.domain for one in alike]
            led = alike.popleft()
            path = _path(wanted, {"domain": led.domain})
            try:
                views.append(ask_leader(wanted.server, led, path, decode_queue, domains=domains))
            except NoLeaderError as error:
                left += [led, *alike]
                problems.append(error)
                break
            except AskError as error:
                left.append(led)
                problems.append(error)
    return _merged(views, left, wanted.limit), problems


def _by_leader(elsewhere: Sequence[LedElsewhere]) -> list[deque[LedElsewhere]]:
    """Those of which the same is to be said together."""
    found: dict[tuple[Leader | None, bool], deque[LedElsewhere]] = {}
    for led in elsewhere:
        found.setdefault((led.leader, led.is_taken_over), deque()).append(led)
    return list(found.values())


def _path(wanted: Ask, query: Mapping[str, str]) -> str:
    return f"/api/v1/queue?{urlencode({'limit': str(wanted.limit), **query})}"


def _merged(views: Sequence[QueueView], left: Sequence[LedElsewhere], limit: int) -> QueueView:
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


def render(view: QueueView, *, is_wide: bool = False) -> str:
    """Counts per domain, then the pods."""
    counts = [
        (d.domain, ",".join(d.scheduler_names), "yes" if d.is_leading else "no", *(d.counts.get(s, 0) for s in STATES))
        for d in view.domains
    ]
    parts = [as_table(("domain", "scheduler names", "leading", *STATES), counts, is_wide=True)]
    if view.pods:
        head = ["domain", "state", "namespace", "name", "age", "attempts", "retry in", "refused by", "why"]
        if is_wide:
            head[4:4] = ["priority", "qos", "node"]
        parts.append(as_table(head, [_row(pod, is_wide=is_wide) for pod in view.pods], is_wide=is_wide))
    if view.left_out:
        parts.append(f"{view.left_out} more; --limit shows up to 5000")
    return "\n\n".join(parts)


def _row(pod: WaitingPod, *, is_wide: bool) -> list[object]:
    row: list[object] = [pod.domain, pod.state, pod.namespace, pod.name]
    if is_wide:
        row += [pod.priority, pod.qos, pod.node]
    retry = _age(pod.retry_in_s) if pod.retry_in_s > 0 else ""
    return [*row, _age(pod.waiting_s), pod.attempts, retry, ",".join(pod.plugins), pod.message]


def _age(seconds: float) -> str:
    """As kubectl: the two largest units while small, then one."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m{whole % 60:02}s" if whole < 600 else f"{whole // 60}m"
    return f"{whole // 3600}h" if whole < 172_800 else f"{whole // 86_400}d"
