"""The forecast report as one self-contained HTML page, which loads nothing from elsewhere.

Stylesheet, tables and plots are those of the web page (`multisched.page.report`). Plots, the heat map and what-if are drawn by
`page.js` from the document. Names are escaped: hidden characters are made visible, and markup is written as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

import orjson

from domains.forecast.commands.tables import amount, fraction, of_capacity
from multisched.model.plural import counted
from multisched.model.visible_text import escaped_document
from multisched.page.report import report_page, report_table

_BESIDE: Final = Path(__file__)
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

Document = dict[str, Any]


def page_of(document: Document) -> str:
    """Renders the whole page."""
    document = escaped_document(document)
    title = escape(f"Forecast of domain {document['domain']}" if document["domain"] else "Forecast")
    body = [f"<p>{escape(_lead(document))}</p>", *_sections(document)]
    script = _BESIDE.with_suffix(".js").read_text()
    return report_page(title, escape(_verdict(document)), body, orjson.dumps(document).decode(), script)


def _verdict(document: Document) -> str:
    """Returns which nodes are predicted to be too full, or the busiest service."""
    shares = [
        (peak / max(capacity, 1e-9), one, index)
        for one in (document["nodes"] or {"nodes": ()})["nodes"]
        for index, (peak, capacity) in enumerate(zip(one["peak"], one["capacity"], strict=True))
        if capacity is not None
    ]
    if not shares:
        known = counted(len(document["services"]), "service")
        return f"{known} have a forecast; there are no nodes with a capacity to compare it with."
    over = len({one["node"] for share, one, _ in shares if share > 1.0})
    share, one, index = max(shares, key=lambda found: found[0])
    when = _slot_name(one["slot"][index], document["slotSeconds"])
    who = f"{counted(over, 'node')} of {len(document['nodes']['nodes'])} will be" if over else "No node will be"
    name = document["nodes"]["dimensions"][index]
    return (
        f"{who} fuller than its capacity; the fullest is {one['node']}, with {fraction(share)} of its {name} at {when}."
    )


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
    yield f'<p class="scripted">Use per replica, {text}. Predicted: the band in which new samples are expected, and the peak.'
    yield " Measured, in another colour: the mean and the highest sample of each slot.</p>"
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
    yield '<div id="heat" class="scripted"></div>'
    yield '<h3 class="scripted">What if</h3><form class="scripted" id="whatif">'
    yield '<label>Add <input id="count" type="number" min="-200" max="200" value="1"></label>'
    yield ' <label>replicas (negative: remove) of <select id="which"></select></label> <button>Apply</button>'
    yield ' <button type="button" id="back">Reset</button></form><div id="outcome" class="scripted" role="status"></div>'
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
    return report_table("Predicted use of nodes", head, rows)


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
    return report_table("Services: use of one replica", head, rows)


def _slot_name(slot: int, slot_s: int) -> str:
    day, second = divmod(slot * slot_s, 86_400)
    return f"{_DAYS[day]} {second // 3_600:02}:{second % 3_600 // 60:02}"
