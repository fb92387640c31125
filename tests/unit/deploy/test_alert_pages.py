"""Alerts and their pages belong to each other, and alerts and dashboards name metrics of the program.

That each alert fires when it should is for `tests/real/test_alerts.py`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.monitoring.build import FOLDER
from tests.unit.test_docs import unknown_metrics

ROOT: Final = Path(__file__).parents[3]
PAGES: Final = ROOT / "docs" / "runbooks"
SEVERITIES: Final = {"critical", "warning", "info"}


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "deploy" / "monitoring" / "alerts.yaml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


each_alert = pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])


def metrics_in(text: str) -> str:
    """Names of ours in an expression, as `unknown_metrics` wants them."""
    found = re.findall(r"\bmultisched_[a-z_]+[a-z]", text)
    return " ".join(f"`{re.sub('_(bucket|sum|count)$', '', name)}`" for name in found)


def test_alerts_and_pages_match_one_to_one() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names)) > 20
    assert {path.stem for path in PAGES.glob("*.md")} - {"README"} == set(names)


def test_overview_lists_each_page_with_its_severity() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| (\w+) \|", (PAGES / "README.md").read_text("utf-8"), re.MULTILINE)
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in alerts()]


@each_alert
def test_alert_has_severity_summary_and_runbook_link(rule: dict[str, Any]) -> None:
    assert rule["alert"].startswith("Multisched")
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in SEVERITIES
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{rule['alert']}.md"
    assert rule["annotations"]["description"].endswith(".")
    assert "for" in rule


@each_alert
def test_page_has_meaning_diagnosis_and_action(rule: dict[str, Any]) -> None:
    text = (PAGES / f"{rule['alert']}.md").read_text("utf-8")
    assert text.startswith(f"# {rule['alert']}\n\nSeverity: {rule['labels']['severity']}. ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["What it means", "How to look", "What to do"]
    assert "```sh\n" in text


@each_alert
def test_alert_uses_existing_metrics(rule: dict[str, Any]) -> None:
    named = metrics_in(rule["expr"])
    assert named
    assert unknown_metrics(named) == set()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_dashboard_uses_existing_metrics(path: Path) -> None:
    panels = json.loads(path.read_text("utf-8"))["panels"]
    named = [metrics_in(target["expr"]) for panel in panels for target in panel.get("targets", ())]
    assert len(named) > 5
    assert unknown_metrics(" ".join(named)) == set()


def test_unknown_metric_is_found() -> None:
    assert unknown_metrics(metrics_in("sum(multisched_luck_bucket)")) == {"luck"}
