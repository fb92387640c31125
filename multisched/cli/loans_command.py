"""The command `multisched loans`: its options, and the document of the plugin Loans as tables."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from multisched.cli.options import Format, Output
from multisched.cli.query_commands import SourceOptions, query_command

loans_app = typer.Typer(
    name="loans", help="Show what domains lend to each other, what borrowers use of it, and what they must return."
)

VIEW: Final = "loans"
DOCUMENT: Final = "now"
UNITS: Final = {"cpuMilli": 1_000, "memoryBytes": 2**30}
"""Field of a document -> amounts in one unit of the table: cores, GiB."""


@loans_app.callback(invoke_without_command=True)
@query_command(SourceOptions)
def loans(
    options: SourceOptions,
    domain: Annotated[
        str | None, typer.Option(help="The borrowing domain; required if several domains borrow.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of nodes, and of pods. Default: 200.")
    ] = None,
    output: Format = Output.TABLE,
) -> str:
    """Show each loan of a borrowing domain, the nodes on which its pods use lent capacity, and pods that have a notice of eviction."""
    from multisched.cli.views import document_of
    from multisched.framework.views import ViewQuery
    from multisched.observe.tables import as_document

    given = {"domain": domain, "limit": limit}
    query = ViewQuery(DOCUMENT, {name: str(one) for name, one in given.items() if one is not None})
    found = document_of(options.source(), VIEW, query, fields=("loans", "nodes", "notices", "recalls"))
    return as_document(found, output.value) if output in (Output.JSON, Output.YAML) else _tables(found, output)


def _tables(found: dict[str, Any], output: Output) -> str:
    from multisched.model.visible_text import escaped
    from multisched.observe.tables import as_table

    is_wide = output is Output.WIDE
    parts = []
    head = ["from", "kind", "state", "nodes", "pods", "cpu held", "cpu more", "memory held", "memory more", "notice"]
    parts.append(as_table(head, [_loan(one) for one in found["loans"]], is_wide=is_wide))
    if found["nodes"]:
        head = ["node", "from", "pods", "cpu held", "memory held", "recalled since", "why"]
        parts.append(as_table(head, [_node(one) for one in found["nodes"]], is_wide=is_wide))
    if found["notices"]:
        head = ["pod", "from", "evicted at", "state", "why"]
        parts.append(as_table(head, [_notice(one) for one in found["notices"]], is_wide=is_wide))
    if found.get("slices"):
        head = ["lender", "borrower", "cpu offered", "cpu held", "memory offered", "memory held", "problems"]
        parts.append(as_table(head, [_slices(one) for one in found["slices"]], is_wide=is_wide))
    recalls, shown = found["recalls"], len(found["nodes"])
    more = f" ({shown} shown; --limit shows more)" if shown < found["nodesOnLoan"] else ""
    footer = (
        f"domain {found['domain']}: pods on loan on {found['nodesOnLoan']} nodes{more}; {recalls['open']} recalls open of"
        f" {recalls['total']}, {recalls['late']} late, {recalls['evicted']} pods evicted"
    )
    return "\n\n".join([*parts, escaped(footer)])


def _amount(amounts: dict[str, int], name: str) -> str:
    return f"{amounts[name] / UNITS[name]:.4g}" if name in amounts else "-"


def _loan(one: dict[str, Any]) -> list[object]:
    state = "open" if not one["why"] else one["why"]
    when = f", until {one['closes']}" if one["closes"] else f", opens {one['opens']}" if one["opens"] else ""
    pairs = [(one[part], name) for name in UNITS for part in ("held", "room")]
    notice = "-" if one["noticeSeconds"] is None else f"{one['noticeSeconds']:g}s"
    return [
        one["from"],
        one["kind"],
        f"{state}{when}",
        one["nodes"],
        one["pods"],
        *(_amount(*pair) for pair in pairs),
        notice,
    ]


def _node(one: dict[str, Any]) -> list[object]:
    held = [_amount(one["held"], name) for name in UNITS]
    return [one["node"], one["from"], one["pods"], *held, one["recalledSince"] or "-", one["why"] or "-"]


def _slices(one: dict[str, Any]) -> list[object]:
    amounts = [_amount(one[part], name) for name in UNITS for part in ("offered", "held")]
    problems = [f"{name}: {text}" for name, text in one["problems"].items()]
    state = "" if one["isOwned"] else "not taken over yet"
    return [one["lender"], one["borrower"], *amounts, "; ".join(filter(None, [state, *problems])) or "-"]


def _notice(one: dict[str, Any]) -> list[object]:
    state = "evicted" if one["isEvicted"] else "has a notice"
    return [one["pod"], one["from"], one["evictedAt"], state, one["why"]]
