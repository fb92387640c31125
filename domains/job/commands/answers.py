"""The document of `multisched jobs` as tables. Imported by a command that runs, not by its help."""

from __future__ import annotations

from typing import Any, Final

from multisched.cli.views import document_if_shown, document_of
from multisched.framework.views import Document, ViewQuery
from multisched.model.go_duration import go_duration
from multisched.model.visible_text import escaped
from multisched.observe.tables import as_document, as_table

VIEW: Final = "jobs"
UNITS_VIEW: Final = "units"
DOCUMENT: Final = "now"


def answer(source: Any, query: dict[str, str], output: str) -> str:
    """Returns the documents of jobs and of serverless units as one text."""
    found = document_of(source, VIEW, ViewQuery(DOCUMENT, query), fields=("atRisk", "owners"))
    units = document_if_shown(source, UNITS_VIEW, ViewQuery(DOCUMENT, {"domain": found["domain"]}), fields=("units",))
    found["units"] = [] if units is None else units["units"]
    return as_document(found, output) if output in ("json", "yaml") else tables(found, is_wide=output == "wide")


def tables(found: Document, *, is_wide: bool) -> str:
    """Renders serverless units, waiting pods, then owners with run times."""
    parts = []
    if found["units"]:
        head = ["unit", "breaker", "rate", "tokens", "pods", "starting", "started", "failed", "throttled", "evicted"]
        rows = [_unit(one) for one in found["units"]]
        parts.append(as_table([*head, "cost", "saved", "refused images"], rows, is_wide=is_wide))
        parts += [_refused(unit["name"], one) for unit in found["units"] for one in unit["refusedImages"]]
    if found["pods"]:
        head = ["pod", "predicted start", "predicted end", "deadline", "from", "at risk"]
        parts.append(as_table(head, [_pod(one) for one in found["pods"]], is_wide=is_wide))
    if found["owners"]:
        head = ["namespace", "owner", "runs", "median", "P90", "start-up", "coverage", "last run"]
        parts.append(as_table(head, [_owner(one) for one in found["owners"]], is_wide=is_wide))
    more = f" ({len(found['pods'])} shown; --limit shows more)" if len(found["pods"]) < found["waiting"] else ""
    predicted = f"predicted at {found['predictedAt']}" if found["predictedAt"] else "nothing predicted yet"
    footer = (
        f"domain {found['domain']}: {found['waiting']} waiting{more}, {found['atRisk']} deadlines at risk; {predicted}"
    )
    return "\n\n".join([*parts, escaped(footer)])


def _unit(one: Document) -> list[object]:
    rate, quota = one["rate"], one["quota"]["pods"]
    return [
        one["name"],
        one["breaker"] if one["probeInSeconds"] <= 0 else f"{one['breaker']}, {go_duration(one['probeInSeconds'])}",
        f"{rate['perSecond']:g}/{rate['configured']:g} per s",
        f"{rate['tokens']}/{rate['burst']:g}",
        f"{one['used']['pods']}/{'-' if quota is None else quota}",
        *(one[name] for name in ("starting", "started", "failed", "throttled", "evicted")),
        *(f"{one['cost'][name]:.4g}" for name in ("spent", "saved")),
        len(one["refusedImages"]),
    ]


def _refused(unit: str, one: Document) -> str:
    images = ", ".join(one["images"])
    left = go_duration(one["forSeconds"])
    return escaped(f"{unit} refuses {images} of namespace {one['namespace']} for {left}: {one['message']}")


def _pod(one: Document) -> list[object]:
    is_bound = one["deadline"] is not None
    risk = ("yes" if one["isAtRisk"] else "no") if is_bound else "-"
    return [
        one["pod"],
        one["predictedStart"] or "-",
        one["predictedEnd"] or "-",
        one["deadline"] or "-",
        one["deadlineFrom"],
        risk,
    ]


def _owner(one: Document) -> list[object]:
    times = [go_duration(one[f"{name}Seconds"]) for name in ("median", "p90", "startUp")]
    coverage = "-" if one["coverage"] is None else f"{one['coverage']:.0%}"
    return [
        one["namespace"],
        one["owner"] or "-",
        one["runs"],
        *times,
        coverage,
        f"{go_duration(one['ageSeconds'])} ago",
    ]
