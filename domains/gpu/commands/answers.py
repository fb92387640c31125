"""Gets the documents of `multisched gpu` and formats them. Imported by a command that runs, not by its help."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from multisched.cli.explain import fitting_pods
from multisched.cli.views import document_of
from multisched.framework.views import Document, ViewQuery
from multisched.observe.tables import as_document

VIEW: Final = "gpu"
TIDE_VIEW, TIDE_DOCUMENT = "tide", "now"


def answer(source: Any, name: str, query: dict[str, str], fit: Path | None, output: str, render: Any) -> str:
    """Returns the document `name` as text. `fit`: a manifest; adds how many of its pods fit."""
    found = document_of(source, VIEW, ViewQuery(name, query), fields=("typicalPods",))
    if fit is not None:
        _add_fit(found, source, fit)
    if output in ("json", "yaml"):
        return as_document(found, output)
    text: str = render(found, is_wide=output == "wide")
    return text


def tide_answer(source: Any, query: dict[str, str], output: str) -> str:
    """Returns the document of the tide as text."""
    from domains.gpu.commands import tide_tables

    found = document_of(source, TIDE_VIEW, ViewQuery(TIDE_DOCUMENT, query), fields=("headroom", "losses"))
    return (
        as_document(found, output) if output in ("json", "yaml") else tide_tables.tide(found, is_wide=output == "wide")
    )


def _add_fit(found: Document, source: Any, manifest: Path) -> None:
    """Adds how many pods of the manifest fit, to each node and in all."""
    fitting = fitting_pods(source, manifest)
    shown = found["nodes"] if "nodes" in found else [found["node"]]
    for one in shown:
        one["fit"] = fitting.by_node.get(one["node"], 0)
    found["fit"] = {
        "pod": fitting.pod,
        "total": fitting.total,
        "isLimit": fitting.is_limit,
        "otherNodes": {
            name: count for name, count in fitting.by_node.items() if name not in {one["node"] for one in shown}
        },
        "nextMessage": fitting.message,
        "notes": list(fitting.notes),
    }
