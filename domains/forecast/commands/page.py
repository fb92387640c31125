"""The forecast report as one self-contained HTML page, which loads nothing from elsewhere.

Tables are written here, so that they work without scripts; plots, the heat map and what-if are drawn by `page.js` from
the document. Names are escaped: hidden characters are made visible, and markup is written as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

import orjson

from domains.forecast.commands.tables import amount, fraction, of_capacity
from multisched.model.plural import counted
from multisched.model.visible_text import escaped_document

_BESIDE: Final = Path(__file__)
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

Document = dict[str, Any]


def page_of(document: Document) -> str:
    """Renders the whole page."""
    document = escaped_document(document)
    title = f"Forecast of domain {document['domain']}" if document["domain"] else "Forecast"
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{escape(title)}</title>'
    )
    style, script = (_BESIDE.with_suffix(end).read_text() for end in (".css", ".js"))
    body = "\n".join([f"<h1>{escape(title)}</h1>", f"<p>{escape(_lead(document))}</p>", *_sections(document)])
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{style}</style></head>\n<body>\n{body}\n'
        f'<script type="application/json" id="document">{_embedded(document)}</script>\n<script>{script}</script>\n'
        "</body></html>"
    )


def _embedded(document: Document) -> str:
    """Encodes JSON that cannot close the surrounding script element."""
    return orjson.dumps(document).decode().replace("<", "\\u003c")


def _lead(document: Document) -> str:
    made = datetime.fromtimestamp(document["nowSeconds"], UTC)
    text = document["state"] or (f"profiles {document['version']}" if document["version"] else "profiles from files")
    left_out = document["servicesLeftOut"]
    services = counted(len(document["services"]), "service") + (
        f" with the largest use; {left_out} more omitted" if left_out else ""
    )
    return f"{made:%Y-%m-%d %H:%M} UTC, {document['now']} in {document['zone']}; {text}; {services}."


def _sections(document: Document) -> Iterator[str]:
    yield "<noscript><p>Plots, heat map and what-if need scripts; the tables hold the same figures.</p></noscript>"
    if document["nodes"] is not None:
        yield from _node_sections(document)
    yield "<h2>Services</h2>"
    history = document["history"]
    text = (
        "the same for each week; no history is stored here, --usage FILE.csv adds one"
        if history is None
        else "the last days"
    )
    yield f'<p class="scripted">Use per replica, {text}: the band in which new samples are expected, the predicted peak,'
    yield " the mean and the highest sample of each slot.</p>"
    notes = [] if history is None else history.get("notes", [])
    if notes:
        yield f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>"
    yield '<p class="scripted"><label>Service <select id="service"></select></label>'
    yield ' <label>with <input id="search" type="search" placeholder="part of its name"></label></p>'
    yield '<div id="plots" class="scripted"></div>'
    yield f"<details><summary>Table of services</summary>{_services_table(document)}</details>"


def _node_sections(document: Document) -> Iterator[str]:
    nodes = document["nodes"]
    left_out = f" {nodes['leftOut']} less full ones are omitted." if nodes["leftOut"] else ""
    dimensions = "".join(
        f'<option value="{index}">{escape(name)}</option>' for index, name in enumerate(nodes["dimensions"])
    )
    yield "<h2>Nodes</h2>"
    yield f'<p class="scripted">Share of capacity, in percent, the fullest at their peak first.{left_out}</p>'
    yield '<form class="scripted" id="look"><label><input type="radio" name="when" value="peak" checked> at each peak</label>'
    yield ' <label><input type="radio" name="when" value="now"> now</label>'
    yield ' <label><input type="radio" name="when" value="slot"> at <input id="slot" type="range" min="0"'
    yield f' max="{document["slots"] - 1}" value="{nodes["nowSlot"]}"></label> <output id="slotname"></output>'
    yield f' <label>in <select id="dimension"><option value="-1">the fullest dimension</option>{dimensions}</select></label></form>'
    yield '<p class="scripted" id="legend"></p><div id="heat" class="scripted"></div>'
    yield '<h3 class="scripted">What if</h3><form class="scripted" id="whatif">'
    yield '<label>this many replicas <input id="count" type="number" min="-200" max="200" value="1"></label>'
    yield ' <label>of <select id="which"></select></label> <button>come (or leave, below zero)</button>'
    yield ' <button type="button" id="back">take it back</button></form><div id="outcome" class="scripted" role="status"></div>'
    yield f"<details><summary>Table of nodes</summary>{_nodes_table(document)}</details>"


def _nodes_table(document: Document) -> str:
    nodes = document["nodes"]
    head = ["node", "pods", "without a profile"]
    head += [f"{name}{end}" for name in nodes["dimensions"] for end in (" at its peak", " when", " now")]
    rows = []
    for one in nodes["nodes"]:
        row = [one["node"], str(one["pods"]), str(one["unknown"])]
        for capacity, peak, now, slot in zip(one["capacity"], one["peak"], one["now"], one["slot"], strict=True):
            row += [_of(peak, capacity), _slot_name(slot, document["slotSeconds"]), _of(now, capacity)]
        rows.append(row)
    return _table(head, rows)


def _of(plain: float, capacity: float | None) -> str:
    return of_capacity(None if capacity is None else plain / max(capacity, 1e-9), plain)


def _services_table(document: Document) -> str:
    has_pods = any("pods" in one for one in document["services"])
    head = ["service", *(["pods"] if has_pods else [])]
    head += [f"{name}{end}" for name in document["dimensions"] for end in (" peak", " when", " error", " from")]
    rows = []
    for one in document["services"]:
        row = [one["service"], *([str(one["pods"])] if has_pods else [])]
        for known in one["dimensions"]:
            if known is None:
                row += ["-"] * 4
            else:
                when = _slot_name(known["slot"], document["slotSeconds"])
                row += [amount(known["peak"]), when, fraction(known["error"]), known["origin"]]
        rows.append(row)
    return _table(head, rows)


def _slot_name(slot: int, slot_s: int) -> str:
    day, second = divmod(slot * slot_s, 86_400)
    return f"{_DAYS[day]} {second // 3_600:02}:{second % 3_600 // 60:02}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
