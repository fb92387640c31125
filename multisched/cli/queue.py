"""`multisched queue`: asks a running multisched over HTTP what waits where, and why."""

from __future__ import annotations

from urllib.parse import urlencode

import msgspec

from multisched.cli.server import Server, answer
from multisched.observe.queue_view import STATES, QueueView, WaitingPod, decode_queue
from multisched.observe.tables import as_document, as_table


class Ask(msgspec.Struct, frozen=True):
    """Whom to ask for what."""

    server: Server
    domain: str | None = None
    limit: int = 500


def show(wanted: Ask, output: str) -> str:
    """The queue in the wanted form. Raises AskError."""
    view = fetch(wanted)
    if output in ("json", "yaml"):
        return as_document(msgspec.to_builtins(view), output)
    return render(view, is_wide=output == "wide")


def fetch(wanted: Ask) -> QueueView:
    """Asks the server. Raises AskError."""
    query = {"limit": str(wanted.limit)} | ({"domain": wanted.domain} if wanted.domain else {})
    return answer(wanted.server, f"/api/v1/queue?{urlencode(query)}", decode_queue)


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
