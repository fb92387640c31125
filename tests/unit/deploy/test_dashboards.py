"""The dashboards of `deploy/monitoring`: as their code makes them, as Grafana's types have them, nothing over another.

That their queries give series is for `tests/real/test_monitoring.py`.
"""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.monitoring.boards import BOARDS
from tests.monitoring.build import FOLDER, text_of
from tests.monitoring.panels import Board

each_board = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)

plugins.register_default_plugins()


def document_of(board: Board) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FOLDER / f"{board.name}.json").read_text("utf-8"))
    return document


def as_grafana_reads(document: dict[str, Any]) -> dict[str, Any]:
    """What is left of a document in Grafana's own types, which are generated from its schema."""
    read: dict[str, Any] = json.loads(JSONEncoder().encode(Dashboard.from_json(document)))
    return read


def test_there_is_one_file_per_dashboard_and_no_other() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{board.name}.json" for board in BOARDS}


@each_board
def test_dashboard_files_equal_the_generated_ones(board: Board) -> None:
    written = (FOLDER / f"{board.name}.json").read_text("utf-8")
    assert written == text_of(board), "run: python -m tests.monitoring.build"


@each_board
def test_dashboards_have_only_fields_that_grafana_reads(board: Board) -> None:
    document = document_of(board)
    assert as_grafana_reads(document) == document


def test_unknown_dashboard_field_is_found() -> None:
    document = document_of(BOARDS[0])
    document["panels"][1]["fieldConfig"]["defaults"]["colour"] = "red"
    assert as_grafana_reads(document) != document


@each_board
def test_panels_have_unique_ids_and_do_not_overlap(board: Board) -> None:
    panels = document_of(board)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        is_above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert is_beside or is_above, (one, other)
        assert one["x"] + one["w"] <= 24


@each_board
def test_queries_select_only_the_jobs_of_multisched(board: Board) -> None:
    """Grafana puts `allValue` into queries where there is one, and else what the variable's query found."""
    variables = {one["name"]: one for one in document_of(board)["templating"]["list"]}
    assert variables["job"]["query"] == "label_values(multisched_build_info, job)"
    assert [name for name, one in variables.items() if "allValue" in one] == []


@each_board
def test_every_panel_has_a_description(board: Board) -> None:
    panels = [panel for panel in document_of(board)["panels"] if panel["type"] != "row"]
    assert [panel["title"] for panel in panels if not panel["description"].endswith(".")] == []
