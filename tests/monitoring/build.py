"""Writes `deploy/monitoring/dashboards`: `python -m tests.monitoring.build`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from tests.monitoring.boards import BOARDS
from tests.monitoring.panels import Board, built

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "monitoring" / "dashboards"


def text_of(board: Board) -> str:
    """The file of a dashboard."""
    return JSONEncoder(indent=2, sort_keys=True).encode(built(board)) + "\n"


def main() -> None:
    for board in BOARDS:
        (FOLDER / f"{board.name}.json").write_text(text_of(board), "utf-8")


if __name__ == "__main__":
    main()
