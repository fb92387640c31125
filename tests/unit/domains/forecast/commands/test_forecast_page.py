"""The report page: one file that asks nobody for anything, in which names stay names, and which stays small."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import numpy as np

from domains.forecast.commands.page import page_of
from multisched.forecasting.profiles import Profiles
from multisched.forecasting.recent import Recent
from multisched.framework.views import Document
from multisched.testing.builders import make_node
from tests.unit.domains.forecast.fleets import ShownFleet, learned

EVIL = "shop/</script><img src=x onerror=alert(1)>"
PAGE_BYTES_MAX = 10_000_000
"""Of noise, which deflates to nothing less."""


class Read(HTMLParser):
    """What stands in the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.rows: list[list[str]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "input"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data


async def a_document(**options: Any) -> Document:
    nodes = (make_node("n1", cpu_milli=4_000), make_node("<n2>", cpu_milli=8_000), make_node("bare", allocatable={}))
    fleet = ShownFleet(*nodes, args={"dimensions": ["cpu", "log<"]})
    fleet.plugin.adopt(learned(["shop/web", EVIL], ("cpu", "log<")))
    fleet.stand("shop/web", "w1", "n1")
    return await fleet.show("report", **options)


async def test_page_is_complete_and_loads_nothing() -> None:
    read = Read(page_of(await a_document()))
    assert read.open == [], "every tag is closed"
    assert not [one for one in read.attributes if one[1] in ("src", "href", "action", "srcset", "data")]
    assert not {"link", "img", "iframe", "object", "base"} & set(read.tags)
    (policy,) = [value for tag, name, value in read.attributes if (tag, name) == ("meta", "content") and "src" in value]
    assert policy.startswith("default-src 'none';")
    assert "fetch(" not in read.scripts[1]
    assert "innerHTML" not in read.scripts[1]


async def test_names_are_escaped_in_the_page() -> None:
    document = await a_document()
    page = page_of(document)
    assert "<img" not in page
    read = Read(page)
    assert len(read.scripts) == 2
    assert json.loads(read.scripts[0]) == document, "nothing ends the script early"
    assert any(EVIL in "".join(row) for row in read.rows)


async def test_page_has_tables_of_nodes_and_services_without_scripts() -> None:
    read = Read(page_of(await a_document()))
    rows = {row[0]: row for row in read.rows if row}
    assert rows["node"][:6] == ["node", "pods", "without a profile", "cpu at its peak", "cpu when", "cpu now"]
    assert rows["n1"][1:3] == ["1", "0"]
    assert rows["n1"][3].endswith(" %")
    assert rows["<n2>"][3] == "0 %"
    assert rows["shop/web"][1] == "1"
    assert "noscript" in read.tags


async def test_node_with_zero_capacity_is_full_and_unknown_capacity_is_not_judged() -> None:
    document = await a_document()
    place = next(at for at, one in enumerate(document["nodes"]["nodes"]) if one["node"] == "n1")
    for capacity, told in ((0.0, "> 9999 %"), (None, None)):
        document["nodes"]["nodes"][place]["capacity"][0] = capacity
        row = next(row for row in Read(page_of(document)).rows if row[:1] == ["n1"])
        assert row[3] == told or (told is None and not row[3].endswith("%"))


async def test_page_shows_services_without_nodes_and_history() -> None:
    document = await a_document() | {"nodes": None, "history": None, "domain": ""}
    read = Read(page_of(document))
    assert "shop/web" in {row[0] for row in read.rows if row}
    assert ("div", "id", "heat") not in read.attributes


def noise(services: int, dimensions: int, rng: np.random.Generator) -> Profiles:
    shape = (services, dimensions, 168)
    peak, low, high = (rng.random(shape, np.float32) for _ in range(3))
    codes = rng.integers(0, 255, (2, services, dimensions, 336)).astype(np.uint8)
    names = tuple(f"namespace-{number % 20}/service-{number}-backend" for number in range(services))
    kinds = tuple(f"dimension-{number}" for number in range(dimensions))
    scale = rng.random(shape[:2], np.float32)
    recent = Recent(0.0, 3_600, names, kinds, scale, codes[0], codes[1])
    origin = np.full(shape[:2], 3, np.uint8)
    return Profiles(1, 0.0, 0.0, names, kinds, peak, low, high, origin, scale, recent=recent)


async def test_page_of_1000_services_and_500_nodes_has_few_megabytes() -> None:
    profiles = noise(1_000, 5, np.random.default_rng(0))
    nodes = [
        make_node(f"node-{n}", annotations={f"multisched.io/capacity-dimension-{d}": "20" for d in range(5)})
        for n in range(500)
    ]
    fleet = ShownFleet(*nodes)
    fleet.plugin.adopt(profiles)
    for number in range(5_000):
        fleet.stand(profiles.services[number % 1_000], f"pod-{number}", f"node-{number * 7 % 500}")

    page = page_of(await fleet.show("report"))

    assert len(page.encode()) < PAGE_BYTES_MAX
    read = Read(page)
    assert len(read.rows) == 1_000 + 500 + 2
