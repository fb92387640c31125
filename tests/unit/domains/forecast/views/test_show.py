"""What the forecast shows: figures are those that placement goes by, and what-if comes true."""

from __future__ import annotations

import asyncio
import base64
import zlib

import msgspec
import numpy as np
import pytest

from domains.forecast.views.forecast_snapshot import ForecastSnapshot
from domains.forecast.views.report_document import CODES_MAX
from domains.forecast.views.show import document_of
from multisched.forecasting.profiles import Backtest, Origin, Profiles
from multisched.forecasting.recent import recent_of
from multisched.forecasting.usage import Usage
from multisched.framework.introspection import StateExportPlugin
from multisched.framework.registry import implements
from multisched.framework.views import Document, NoViewError, ViewedPlugin, ViewQuery
from multisched.testing.builders import make_node
from tests.unit.domains.forecast.fleets import NOW, ShownFleet, learned
from tests.unit.domains.forecast.profiles import make_profiles
from tests.unit.forecasting.weeks import MONDAY_S

EVENING, MORNING = 24 + 20, 24 + 7
"""Tuesday; NOW falls into the latter."""
FLAT = np.ones(168)


def evening(high: float) -> np.ndarray:
    return np.where(np.arange(168) == EVENING, high, 0.5)


def small_fleet() -> ShownFleet:
    """Two nodes with room and one that states none; `web` is busy on Tuesday evening, `cart` never."""
    log = {"multisched.io/capacity-log": "10"}
    fleet = ShownFleet(
        make_node("n1", annotations=log, cpu_milli=4_000),
        make_node("n2", annotations=log, cpu_milli=8_000),
        make_node("bare", allocatable={}),
        args={"dimensions": ["cpu", "log"]},
    )
    fleet.plugin.adopt(
        make_profiles(
            ("cpu", "log"), shop__web={"cpu": evening(2.0), "log": FLAT}, shop__cart={"cpu": FLAT, "log": 0 * FLAT}
        )
    )
    fleet.stand("shop/web", "w1", "n1")
    fleet.stand("shop/web", "w2", "n1")
    fleet.stand("shop/cart", "c1", "n2")
    fleet.stand("", "stranger", "n2")
    return fleet


def of_file(profiles: Profiles, what: str, **options: str) -> Document:
    return document_of(ViewQuery(what, options))(ForecastSnapshot(profiles, NOW.timestamp()))


async def test_nodes_are_sorted_by_peak_and_show_its_time() -> None:
    fleet = small_fleet()
    found = await fleet.show("nodes")
    assert [one["node"] for one in found["nodes"]] == ["n1", "n2", "bare"]
    first = found["nodes"][0]
    assert (first["pods"], first["unknown"], first["worst"]) == (2, 0, "cpu")
    cpu = first["dimensions"][0]
    assert (cpu["at"], found["now"]) == ("Tue 20:00", "Tue 07:00")
    assert cpu["share"] == pytest.approx(1.0, rel=1e-3)
    assert cpu["nowShare"] == pytest.approx(0.25, rel=1e-3)
    worst = fleet.plugin.worst(fleet.stand("shop/web", "w1", "n1"), 0)
    assert worst is not None
    assert worst.slot == cpu["at"]
    assert worst.percent == pytest.approx(100 * cpu["share"])


async def test_band_of_a_node_is_the_sum_of_those_of_its_services() -> None:
    fleet = small_fleet()
    profiles = make_profiles(("cpu",), shop__web={"cpu": evening(2.0)})
    gap = np.where(np.arange(168) == MORNING, np.nan, 1.0)
    low, high = (0.5 * profiles.peak * gap).astype(np.float32), (1.25 * profiles.peak).astype(np.float32)
    fleet.plugin.adopt(msgspec.structs.replace(profiles, low=low, high=high))
    fleet.stand("", "guest", "n1")
    found = await fleet.show("node", name="n1")
    cpu, log = found["node"]["dimensions"]
    guest = cpu["week"][EVENING] - 2 * 2.0
    assert guest > 0
    assert cpu["low"][EVENING] == pytest.approx(2 * 1.0 + guest, rel=1e-3)
    assert cpu["high"][EVENING] == pytest.approx(2 * 2.5 + guest, rel=1e-3)
    assert cpu["low"][MORNING] == pytest.approx(cpu["week"][MORNING]), "a gap in the bound"
    assert (log["low"], log["high"]) == (log["week"], log["week"]), "a dimension without a profile has no band"


async def test_part_of_a_list_has_the_fullest_nodes_and_the_services_with_most_pods() -> None:
    fleet = small_fleet()
    found = await fleet.show("nodes", limit="1", offset="1")
    assert ([one["node"] for one in found["nodes"]], found["count"]) == (["n2"], 3)
    found = await fleet.show("nodes", match="n")
    assert ([one["node"] for one in found["nodes"]], found["count"]) == (["n1", "n2"], 2)
    found = await fleet.show("at", moment="Tue 20:00", limit="1")
    assert ([one["node"] for one in found["nodes"]], found["count"], len(found["services"])) == (["n1"], 3, 1)
    fleet.plugin.adopt(learned(["shop/cart", "shop/web"], ("cpu", "log")))
    services = await fleet.show("services", limit="1")
    assert ({one["service"] for one in services["services"]}, services["servicesLeftOut"]) == ({"shop/web"}, 1)
    services = await fleet.show("services", match="cart")
    assert ({one["service"] for one in services["services"]}, services["servicesLeftOut"]) == ({"shop/cart"}, 0)
    for wrong in ("-1", "ten", "100001", "٣"):
        with pytest.raises(NoViewError, match="is not a number from 0 to 100000"):
            await fleet.show("nodes", limit=wrong)


def test_service_has_its_measured_days_if_they_are_kept() -> None:
    profiles = make_profiles(("cpu",), shop__web={"cpu": FLAT})
    assert of_file(profiles, "service", name="shop/web")["history"] is None
    values = np.full((1, 1, 48), 2.0, np.float32)
    values[0, 0, 0] = np.nan
    usage = Usage(MONDAY_S, 3_600.0, ("shop/web",), ("cpu",), values)
    recent = recent_of(usage, profiles.zone, profiles.slot_s)
    history = of_file(msgspec.structs.replace(profiles, recent=recent), "service", name="shop/web")["history"]
    mean = history["dimensions"]["cpu"]["mean"]
    assert history["startSeconds"] + history["slotSeconds"] * len(mean) == MONDAY_S + 48 * 3_600
    assert mean[-47:] == pytest.approx([2.0] * 47, rel=0.01)
    assert np.isnan(mean[-48])


async def test_pods_on_fallbacks_are_counted_and_unknown_capacity_shows_amounts_only() -> None:
    found = {one["node"]: one for one in (await small_fleet().show("nodes"))["nodes"]}
    assert (found["n2"]["pods"], found["n2"]["unknown"]) == (2, 1)
    log = found["bare"]["dimensions"][1]
    assert (log["capacity"], log["share"], log["peak"]) == (None, None, 0)


async def test_peak_without_a_pod_equals_the_peak_after_its_removal() -> None:
    fleet = ShownFleet(
        make_node("n1", cpu_milli=4_000, annotations={"multisched.io/capacity-log": "9"}),
        args={"dimensions": ["cpu", "log"]},
    )
    fleet.plugin.adopt(learned(["shop/a", "shop/b", "shop/c"], ("cpu", "log")))
    for number, service in enumerate(("shop/a", "shop/b", "shop/c", "shop/a", "other/unknown")):
        fleet.stand(service, f"p{number}", "n1")
    before = await fleet.show("node", name="n1")
    assert [one["amount"] for one in before["pods"]] == sorted((one["amount"] for one in before["pods"]), reverse=True)
    fullest = next(row for row in before["node"]["dimensions"] if row["dimension"] == before["node"]["worst"])
    assert sum(one["share"] for one in before["pods"]) == pytest.approx(fullest["share"])
    assert {one["pod"]: one["by"] for one in before["pods"]}["other/p4"] == "requests"

    for one in before["pods"]:
        name = one["pod"].partition("/")[2]
        entry = fleet.cache.placed(f"uid-{name}")
        assert entry is not None
        fleet.cache.remove(f"uid-{name}")
        [now] = (await fleet.show("nodes"))["nodes"]
        row = next(row for row in now["dimensions"] if row["dimension"] == now["worst"])
        assert one["left"] == {
            "dimension": row["dimension"],
            "at": row["at"],
            "share": pytest.approx(row["share"], abs=1e-6),
        }
        fleet.cache.place(entry.pod)


async def test_view_of_a_time_shows_nodes_and_services_then() -> None:
    fleet = small_fleet()
    found = await fleet.show("at", moment="Tue 20:30")
    assert [one["node"] for one in found["nodes"]] == ["n1", "n2", "bare"]
    assert found["nodes"][0]["shares"]["cpu"] == pytest.approx(1.0, rel=1e-3)
    assert [(one["service"], one["pods"]) for one in found["services"]] == [("shop/web", 2), ("shop/cart", 1)]
    now = await fleet.show("at", moment="now")
    assert now["nodes"][0]["shares"]["cpu"] == pytest.approx(0.25, rel=1e-3)
    assert (await fleet.show("at", moment="20:00"))["nodes"][0]["shares"]["cpu"] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("moment", ["noon", "24:00", "20:60", "Tuesday 20:00", "\u0662\u0660:\u0660\u0660"])
async def test_invalid_time_is_reported(moment: str) -> None:
    with pytest.raises(NoViewError, match=r'is not a time of the week; write "20:00"'):
        await small_fleet().show("at", moment=moment)


async def test_namespace_of_a_service_is_optional_if_unambiguous() -> None:
    assert (await small_fleet().show("service", name="web"))["service"] == "shop/web"
    two = learned(["a/web", "b/web", "c/cart"], ("cpu",))
    with pytest.raises(NoViewError, match=r"no profile of web; did you mean [ab]/web or [ab]/web"):
        of_file(two, "service", name="web")
    assert of_file(two, "service", name="cart")["service"] == "c/cart"


async def test_missing_names_are_reported_with_a_fix() -> None:
    fleet = small_fleet()
    for what, options, message in (
        ("node", {"name": "n11"}, "domain shop has no node n11; did you mean n1"),
        ("node", {}, "node: the parameter name is missing"),
        ("service", {"name": "nope"}, "no profile of nope; multisched forecast services lists them"),
        ("service", {"name": "wbe"}, "no profile of wbe; did you mean shop/web"),
        ("service", {"name": "shop/wbe"}, "no profile of shop/wbe; did you mean shop/web"),
        ("node", {"nmae": "n1"}, "nmae: unknown parameter; known here: name, domain"),
        ("nodes", {"name": "n1"}, "name: unknown parameter; known here: limit, offset, match, domain"),
        ("stars", {}, "forecast has no document stars; write one of services, service, nodes"),
    ):
        with pytest.raises(NoViewError, match=message):
            await fleet.show(what, **options)
    with pytest.raises(NoViewError, match="no profiles are active yet"):
        await ShownFleet(make_node("n1")).show("nodes")
    with pytest.raises(NoViewError, match="a profiles file contains no nodes"):
        of_file(learned(["a"], ("cpu",)), "nodes")


async def test_deleted_node_is_not_shown_while_its_pods_are_removed() -> None:
    fleet = small_fleet()
    fleet.cache.remove_node("n2")
    assert [one["node"] for one in (await fleet.show("nodes"))["nodes"]] == ["n1", "bare"]


@pytest.mark.parametrize("turns", range(8))
async def test_snapshot_uses_one_set_of_profiles_despite_changes(turns: int) -> None:
    fleet = ShownFleet(
        *(make_node(f"n{number}", cpu_milli=10_000) for number in range(1_100)), args={"dimensions": ["cpu"]}
    )
    fleet.plugin.adopt(make_profiles(("cpu",), a={"cpu": FLAT}))
    for number in range(1_100):
        fleet.stand("a", f"p{number}", f"n{number}")
    shown = asyncio.create_task(fleet.show("nodes"))
    for _ in range(turns):
        await asyncio.sleep(0)
    fleet.plugin.adopt(make_profiles(("cpu",), version=2, a={"cpu": 2 * FLAT}))
    found = await shown
    assert {round(one["dimensions"][0]["peak"], 3) for one in found["nodes"]} == {float(found["version"])}


async def test_constantly_changing_profiles_are_an_error() -> None:
    fleet = ShownFleet(make_node("n1", cpu_milli=10_000))
    shown = asyncio.create_task(fleet.show("nodes"))
    while not shown.done():
        fleet.plugin.adopt(make_profiles(("cpu",), a={"cpu": FLAT}))
        await asyncio.sleep(0)
    with pytest.raises(NoViewError, match="during each attempt; try again in a moment"):
        await shown


def test_backtest_view_shows_choices_with_reasons_worst_first() -> None:
    profiles = learned([f"shop/s{number}" for number in range(12)], ("cpu", "log"))
    found = of_file(profiles, "backtest")
    errors = [row["error"] for row in found["series"]]
    assert errors == sorted(errors, reverse=True)
    for row in found["series"]:
        is_model = row["chosen"] == "seasonal"
        assert is_model == (row["model"] <= row["quantile"])
        assert row["why"] == f"the {'model' if is_model else 'quantile'} was better on the last 7 days"
    for one in found["percentiles"]:
        own = [row["error"] for row in found["series"] if row["dimension"] == one["dimension"]]
        assert one["error"]["p50"] == pytest.approx(np.percentile(own, 50))
        assert sum(one["chosen"].values()) == one["services"] == 12


@pytest.mark.parametrize(
    ("origin", "model", "quantile", "days", "why"),
    [
        (Origin.QUANTILE, np.nan, np.nan, np.nan, "too few days for hours of the week"),
        (Origin.SLOT_QUANTILE, np.nan, 0.2, 3.5, "too few days for the model"),
        (Origin.SLOT_QUANTILE, 0.3, 0.2, 3.5, "the quantile was better on the last 3.5 days"),
        (Origin.SEASONAL, np.nan, np.nan, np.nan, "no samples on the last days: not tested"),
        (Origin.ATTRIBUTED, np.nan, np.nan, np.nan, "a share of node totals: not tested"),
    ],
)
def test_each_choice_has_its_reason(origin: Origin, model: float, quantile: float, days: float, why: str) -> None:
    def one(value: float) -> np.ndarray:
        return np.full((1, 1), value, np.float32)

    flat = make_profiles(("cpu",), a={"cpu": FLAT})
    tested = Backtest(one(model), one(quantile), one(np.nan), one(days))
    profiles = msgspec.structs.replace(flat, origin=np.full((1, 1), origin, np.uint8), tested=tested)
    [row] = of_file(profiles, "backtest")["series"]
    assert row["why"] == why


def test_profiles_without_backtest_results_are_an_error() -> None:
    with pytest.raises(NoViewError, match="contain no backtest results; a refit"):
        of_file(make_profiles(("cpu",), a={"cpu": FLAT}), "backtest")


def unpacked(data: str, *shape: int) -> np.ndarray:
    lessened = np.frombuffer(zlib.decompress(base64.b64decode(data)), np.uint8).reshape(shape)
    return np.cumsum(lessened, axis=-1, dtype=np.uint8)


async def test_report_has_curves_history_and_loads_of_its_steps() -> None:
    fleet = small_fleet()
    profiles = learned(["shop/web", "shop/cart"], ("cpu", "log"))
    fleet.plugin.adopt(profiles)
    found = await fleet.show("report")
    codes = unpacked(found["curves"]["data"], 3, 2, 2, 168)
    scale = np.array(found["curves"]["scale"])[..., None]
    np.testing.assert_allclose(codes[0] * scale, profiles.peak, atol=float(scale.max()))
    np.testing.assert_allclose(codes[2] * scale, profiles.high, atol=float(3 * scale.max()))
    recent = profiles.recent
    assert recent is not None
    past = unpacked(found["history"]["data"], 2, 2, 2, recent.mean.shape[2])
    assert np.abs(past[0].astype(int) - recent.mean).max() <= 1
    assert found["history"]["weekSlots"][:2] == [0, 1]
    nodes = found["nodes"]
    assert [one["node"] for one in nodes["nodes"]] == [one["node"] for one in (await fleet.show("nodes"))["nodes"]]
    loads = unpacked(nodes["data"], 3, 2, 168) * np.array(nodes["scale"])[..., None]
    np.testing.assert_allclose(loads.max(axis=2), [one["peak"] for one in nodes["nodes"]], rtol=1e-3)
    standing = {one["node"]: one["services"] for one in nodes["nodes"]}
    assert standing == {"n1": [[0, 2]], "n2": [[1, 1]], "bare": []}


def test_report_size_is_limited_and_the_omitted_services_are_counted() -> None:
    services, slots = 200, 2_016
    peak = np.ones((services, 5, slots), np.float32)
    peak[7] *= 50
    flat = np.ones((services, 5))
    names = tuple(f"s{number}" for number in range(services))
    profiles = Profiles(
        1, 0.0, 0.0, names, tuple("abcde"), peak, peak, peak, flat.astype(np.uint8), flat.astype(np.float32), slot_s=300
    )
    found = of_file(profiles, "report")
    kept = len(found["services"])
    assert found["servicesLeftOut"] == services - kept > 0
    assert kept * 5 * (3 + 2 * 2) * slots <= CODES_MAX
    assert "s7" in {one["service"] for one in found["services"]}


def test_history_of_other_services_and_dimensions_is_ignored() -> None:
    profiles = msgspec.structs.replace(learned(["a", "b"], ("cpu", "log")), recent=None)
    found = of_file(profiles, "report")
    assert found["history"] is None
    from domains.forecast.views.report_document import with_history

    values = np.full((2, 2, 14 * 24), 5, np.float32)
    recent = recent_of(Usage(MONDAY_S, 3_600.0, ("b", "c"), ("log", "net"), values), "UTC", 3_600)
    past = unpacked(with_history(found, recent)["history"]["data"], 2, 2, 2, 336)
    assert (past[:, 1, 1] == 254).all(), "of b's log"
    assert np.count_nonzero(past != 255) == 2 * 336


def test_plugin_implements_views_and_state_export() -> None:
    plugin = small_fleet().plugin
    assert implements(plugin, ViewedPlugin)
    assert implements(plugin, StateExportPlugin)
