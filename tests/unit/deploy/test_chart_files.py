"""What the chart holds of other files is what those hold."""

from __future__ import annotations

from tests.unit.deploy.chart_files import generated, present


def test_chart_copies_are_up_to_date() -> None:
    old = {name for name, content in generated().items() if present().get(name) != content}
    assert not old, f"{sorted(old)} differ from what they are made of: run `make chart`"
    assert present().keys() == generated().keys(), "run `make chart`"
