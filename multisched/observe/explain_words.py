"""Renders `explain_view` as lines for a terminal.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from multisched.model.plural import counted
from multisched.model.visible_text import escaped
from multisched.observe.explain_view import (
    Attempt,
    Fix,
    OnNode,
    Placement,
    PluginRefusal,
    PodView,
    Scored,
    WhatIfList,
    WhatIfView,
)

_UNITS = ((172_800, 86_400, "d"), (7_200, 3_600, "h"), (120, 60, "m"))


def pod_text(view: PodView) -> str:
    """Returns everything about one pod."""
    parts = [_head(view)]
    if view.on_node is not None:
        parts.append([f"Why not {view.on_node.node}", *_indented(_on_node(view.on_node))])
    elif view.now is not None and _is_news(view.now, view.attempts):
        verb = "placed again" if view.state == "bound" else "tried"
        parts.append([f"If it were {verb} now", *_indented(_attempt(view.now))])
    for number, attempt in enumerate(view.attempts if view.on_node is None else ()):
        parts.append([_attempt_head(attempt), *_indented(_attempt(attempt) if not number else _briefly(attempt))])
    if view.history and view.on_node is None:
        steps = (f"{ago(step.ago_s):>6} ago  {step.event} → {step.state}" for step in view.history)
        parts.append(["In the queue", *_indented(steps)])
    if view.wakes and view.on_node is None:
        wakes = (f"{wake.plugin}: {', '.join(wake.events) or 'no event'}" for wake in view.wakes)
        parts.append(["Events that would requeue it", *_indented(wakes)])
    if view.fixes is not None and (view.fixes or view.now is None or view.now.outcome != "placed"):
        parts.append(_fixes(view.fixes))
    parts += [[f"Note: {note}"] for note in view.notes]
    return "\n\n".join("\n".join(map(escaped, part)) for part in parts)


def what_if_text(view: WhatIfView | WhatIfList) -> str:
    """Returns where the replicas would be placed; replicas with equal results are grouped."""
    if isinstance(view, WhatIfList):
        notes = "\n".join(escaped(f"Note: {note}") for note in view.notes)
        return "\n\n".join(filter(None, (*map(what_if_text, view.items), notes)))
    placed = sum(bool(one.node) for one in view.placements)
    lines = [f"Of {view.replicas} x {view.namespace}/{view.name}, {placed} would be placed by domain {view.domain} now"]
    lines += _indented(_placements(view.placements))
    lines += [f"Note: {note}" for note in view.notes]
    return "\n".join(map(escaped, lines))


def ago(seconds: float) -> str:
    """Formats an age as kubectl does: one unit."""
    for least, unit, name in _UNITS:
        if seconds >= least:
            return f"{int(seconds) // unit}{name}"
    return f"{int(seconds)}s"


def _head(view: PodView) -> list[str]:
    lines = [f"Pod {view.namespace}/{view.name}, scheduler {view.scheduler}, domain {view.domain}"]
    if view.node:
        lines.append(f"{view.state.capitalize()} on {view.node}")
    else:
        times = f" since {ago(view.since_s)}, after {counted(view.attempts_made, 'attempt')}"
        lines.append(view.state.capitalize() + (times if view.since_s or view.attempts_made else ""))
    if view.waiting_for:
        lines.append(f"It waits for: {view.waiting_for}")
    if view.retry_in_s is not None and view.state != "gated":  # the flush only repeats the gate's result
        lines.append(f"Retried in {ago(view.retry_in_s)} at the latest")
    return lines


def _is_news(now: Attempt, attempts: Sequence[Attempt]) -> bool:
    """Returns False for a trial that ends like the last attempt if all of that one is known."""
    if not attempts or attempts[0].snapshot != "own":
        return True
    return (now.outcome, now.node, now.message) != (attempts[0].outcome, attempts[0].node, attempts[0].message)


def _attempt_head(attempt: Attempt) -> str:
    where = f" on {attempt.node}" if attempt.node else ""
    return f"Attempt {attempt.number}, {ago(attempt.ago_s)} ago: {attempt.outcome}{where}"


def _briefly(attempt: Attempt) -> Iterator[str]:
    if attempt.message:
        yield attempt.message
    if attempt.winner is not None:
        yield _scored(attempt.winner)


def _attempt(attempt: Attempt) -> Iterator[str]:
    if attempt.message:
        yield attempt.message
    for (point, said), equal_points in groupby(attempt.points, key=lambda one: (one.point, one.said)):
        yield f"{point:<11} {', '.join(one.plugin for one in equal_points)}: {said}"
    if attempt.domain_nodes and not attempt.looked_at and attempt.snapshot in ("own", "earlier"):
        yield f"Nodes: none of {attempt.domain_nodes} was evaluated"
    elif attempt.refused or attempt.snapshot in ("own", "earlier"):
        taken = (
            f"{attempt.feasible} of {attempt.looked_at} are feasible" if attempt.snapshot != "dropped" else "refused"
        )
        left_out = attempt.domain_nodes - attempt.looked_at
        suffix = f"; PreFilter left out {left_out}" if left_out and attempt.snapshot != "dropped" else ""
        when = _when(attempt)
        yield f"Nodes{when}: {taken}{suffix}"
        yield from _indented(map(_verdict, attempt.refused))
    if attempt.winner is not None:
        tied = f" (one of {attempt.ties} with this score, chosen at random)" if attempt.ties > 1 else ""
        yield f"Chosen      {_scored(attempt.winner)}{tied}"
        # Scores of an earlier snapshot cannot be compared with the winner's: pods were placed in between.
        title = "At the time" if attempt.snapshot == "earlier" else "Runner-up"
        for scored in attempt.runners_up:
            yield f"{title:<11} {_scored(scored)}"
    if attempt.passed_over:
        by_whom = (
            "refused at the last moment"
            if attempt.message
            else "no longer feasible when this pod was to be assumed there"
        )
        yield f"Passed over {', '.join(attempt.passed_over)}: {by_whom}"
    if attempt.victims:
        yield f"Preempts    {_victims(attempt)}"
        if set(attempt.victim_nodes) != {attempt.nominated_node}:
            yield f"Nominated   {attempt.nominated_node} is nominated for it meanwhile"
    elif attempt.nominated_node:
        yield f"Nominated   {attempt.nominated_node} is nominated for it"
    if attempt.snapshot == "dropped":
        yield "The results per node are no longer kept"


def _victims(attempt: Attempt) -> str:
    by_node: dict[str, list[str]] = {}
    for victim, node in zip(attempt.victims, attempt.victim_nodes, strict=True):
        by_node.setdefault(node, []).append(victim)
    return "; ".join(f"{', '.join(victims)} on {node}" for node, victims in by_node.items())


def _when(attempt: Attempt) -> str:
    if attempt.snapshot != "earlier":
        return ""
    return f" (as evaluated for an identical pod {ago(attempt.snapshot_ago_s - attempt.ago_s)} before)"


def _verdict(verdict: PluginRefusal) -> str:
    names = ", ".join(verdict.nodes)
    more = verdict.count - len(verdict.nodes)
    where = f"  [{names}{f' and {more} more' if more and names else ''}]" if names else ""
    suffix = " counting the pods that are nominated to it" if verdict.is_for_nominated else ""
    plugin_name = verdict.plugin or "-"
    return f"{verdict.count:>6} {plugin_name}: {', '.join(verdict.reasons)}{suffix} ({verdict.code}){where}"


def _scored(scored: Scored) -> str:
    sums = " + ".join(f"{part.plugin} {part.score}x{part.weight}" for part in scored.parts)
    return f"{scored.node}  {scored.total}" + (f" = {sums}" if sums else "")


def _on_node(answer: OnNode) -> Iterator[str]:
    yield answer.text
    for said in answer.plugins:
        yield f"{said.point:<11} {said.plugin}: {said.said}"
    if answer.scored is not None:
        yield f"Score       {_scored(answer.scored)}"


def _fixes(fixes: Sequence[Fix]) -> list[str]:
    if not fixes:
        return ["None of the tried single changes makes it fit"]
    lines = [*_fix(fixes[0], "The smallest fix: ")]
    if len(fixes) > 1:
        lines.append("Any one of these makes it fit, too")
    for fix in fixes[1:]:
        lines += _fix(fix, "  ")
    return lines


def _fix(fix: Fix, lead: str) -> Iterator[str]:
    yield f"{lead}{fix.text}; it is then placed on {fix.node}"
    if fix.command:
        yield f"      {fix.command}"


def _placements(placements: Sequence[Placement]) -> Iterator[str]:
    by_node: dict[tuple[str, str], list[Placement]] = {}
    for one in placements:
        by_node.setdefault((one.node, one.message), []).append(one)
    for (node, message), group in by_node.items():
        if not node:
            yield f"{counted(len(group), 'replica')} cannot be placed: {message}"
            continue
        victims = [victim for one in group for victim in one.victims]
        first = group[0]
        said = [f"score {first.total}"] if first.total or first.ties else []  # nominated nodes are not scored
        said += [f"one of {first.ties} with this score"] if first.ties > 1 else []
        said += [f"after these are preempted: {', '.join(victims)}"] if victims else []
        yield f"{counted(len(group), 'replica')} on {node}" + (f" ({', '.join(said)})" if said else "")


def _indented(lines: Iterator[str] | Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
