"""Whatever others hide in names and messages shows on every way out: tables, documents, sentences, pages, logs."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from domains.forecast.commands.page import page_of
from multisched.model.visible_text import is_hidden
from multisched.observe.health import HealthReport
from multisched.observe.logging import logging_to
from multisched.observe.queue_view import encode_queue
from multisched.testing.builders import make_node
from tests.unit.cli.test_cli import VIEW, answering, call
from tests.unit.domains.forecast.fleets import ShownFleet, learned
from tests.unit.observe.observe_kit import HandClock

HIDDEN = "a\x9b31m\u202eb\u200bc\x7f\x1b[2J\nforged \U000e0041"
SHOWN = (r"\x9b31m", r"\u202e", r"\u200b", r"\x7f", r"\x1b[2J", r"\nforged ")


def is_open(text: str) -> bool:
    """True if nothing is hidden in it, and no line of its own was put into it."""
    return not is_hidden(text.replace("\n", "")) and not any(line.startswith("forged") for line in text.splitlines())


@pytest.mark.parametrize("output", ["table", "wide", "json", "yaml"])
def test_command_output_has_no_hidden_characters(output: str) -> None:
    pod = replace(VIEW.pods[0], name=HIDDEN, message=HIDDEN, plugins=(HIDDEN,))
    with answering(200, encode_queue(replace(VIEW, pods=(pod,)))) as (url, _):
        code, out, _ = call("queue", "--server", url, "-o", output)
    assert (code, is_open(out)) == (0, True), out
    if output in ("json", "yaml"):
        document = json.loads(out) if output == "json" else yaml.safe_load(out)
        assert document["pods"][0]["name"] == HIDDEN, "a program that reads it gets what it was"
    else:
        assert all(part in out for part in SHOWN), out


def test_server_errors_have_no_hidden_characters() -> None:
    with answering(403, HIDDEN.encode()) as (url, _):
        code, _, err = call("queue", "--server", url)
    assert (code, is_hidden(err.replace("\n", ""))) == (1, False), err


@pytest.mark.parametrize("form", ["json", "text"])
def test_log_lines_have_no_hidden_characters(form: Any) -> None:
    stream = io.BytesIO()
    with logging_to(stream, level="info", form=form, clock=HandClock()):
        logging.getLogger("multisched.tests").info(HIDDEN, extra={"pod": HIDDEN, "pods": [HIDDEN]})
        try:
            int(HIDDEN)
        except ValueError:
            logging.getLogger("multisched.tests").exception("it failed")
    text = stream.getvalue().decode()
    assert not is_hidden(text.replace("\n", "")), text
    if form == "json":
        assert json.loads(text.splitlines()[0])["pod"] == HIDDEN


def test_health_text_has_no_hidden_characters() -> None:
    text = HealthReport({"caches": HIDDEN}, {"plugins": HIDDEN}).render()
    assert is_open(text), text


async def test_forecast_page_has_no_hidden_characters() -> None:
    fleet = ShownFleet(make_node(HIDDEN, cpu_milli=4_000), args={"dimensions": ["cpu"]})
    fleet.plugin.adopt(learned([HIDDEN], ("cpu",)))
    page = page_of(await fleet.show("report"))
    assert not is_hidden(page.replace("\n", ""))
    document = page.split('id="document">')[1].split("</script>")[0]
    names = {one["node"] for one in json.loads(document)["nodes"]["nodes"]}
    assert not any(map(is_hidden, names)), "the script writes them as they stand there"
    assert all(part in page for part in SHOWN)
