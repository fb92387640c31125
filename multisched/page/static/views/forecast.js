// Forecast: services with their peaks and errors, the week of one service, the age of the data, the repair plan.

import { NoDocument, read } from "../api.js";
import { el, figures, keyLink, link, nodeLink, number, replace, table } from "../dom.js";
import { count, duration, measure, percent, plural, unit } from "../format.js";
import { weekPlot } from "../plot.js";

const OLD_S = 3 * 86400;
const SHOWN = 100;

export const forecast = {
  name: "forecast", title: "Forecast", every: 30_000,
  open(root, [domain = "", service = ""], app) {
    const body = el("div", {}), repairs = el("div", {});
    root.append(el("h2", {}, service ? `Service ${service}` : "Forecast"), body, repairs);
    return {
      async refresh() {
        const domains = app.overview.views.forecast ?? [];
        if (!domains.length) { replace(body, el("p", { class: "soft" }, "No domain has a forecast.")); return; }
        const chosen = domain || domains[0];
        const others = domains.length > 1 ? el("p", {}, domains.map((one) => [link(["forecast", one], one), " "])) : null;
        replace(body, others, service ? await week(chosen, service) : await all(chosen));
        if (!service && !repairs.childElementCount) replace(repairs, await repair(chosen));
      },
    };
  },
};

/** A sentence on the age of the data; a warning if the newest sample is older than OLD_S. */
function age(doc) {
  const old = doc.nowSeconds - doc.newestSeconds;
  return [
    el("p", { class: old > OLD_S ? "warn lead" : "good lead" }, `The forecast is ${old > OLD_S ? "not fresh" : "fresh"}: its newest sample is ${duration(old)} old.`),
    el("p", { class: "soft" }, `It is ${doc.now} in ${doc.zone}; ${doc.state}.`),
  ];
}

async function all(domain) {
  const doc = await read(["forecast", "services"], { domain, limit: SHOWN });
  const rows = doc.services.map((one) => [link(["forecast", domain, one.service], one.service), one.dimension, el("strong", {}, measure(one.dimension, one.peak)), one.at, measure(one.dimension, one.mean),
    percent(one.error), one.origin, count(one.pods)]);
  return [
    age(doc),
    table("Services: use of one replica", ["service", "dimension", number("peak"), "at", number("mean"), number("error"), "from", number("pods")], rows, "no service has a profile"),
    doc.servicesLeftOut > 0 && el("p", { class: "soft" }, `${plural(doc.servicesLeftOut, "service")} with fewer pods not shown`),
  ];
}

async function week(domain, service) {
  const doc = await read(["forecast", "service"], { domain, name: service });
  const measured = (dimension) => doc.history?.dimensions[dimension];
  return [
    el("p", {}, link(["forecast", domain], "all services")),
    age(doc),
    el("p", { class: "soft" }, "Use of one replica in each hour of the week: the predicted peak, and the band in which new samples are expected.",
      doc.history ? " The measured use of the last days is shown below." : " The program has recorded no use of this service."),
    doc.dimensions.map((row) => [
      weekPlot({
        title: `${row.dimension}: predicted peak ${measure(row.dimension, row.highest)} at ${row.at}, mean ${measure(row.dimension, row.mean)}, error ${percent(row.error)}, from ${row.origin}`,
        unit: unit(row.dimension), predicted: row.peak, low: row.low, high: row.high, slotSeconds: doc.slotSeconds, nowSeconds: doc.nowSeconds, zone: doc.zone,
      }),
      measured(row.dimension) && weekPlot({
        title: `${row.dimension}: measured on the last days, mean and highest sample`, unit: unit(row.dimension), bandName: "up to the highest sample", measured: measured(row.dimension).mean, high: measured(row.dimension).top,
        low: measured(row.dimension).mean, slotSeconds: doc.history.slotSeconds, startSeconds: doc.history.startSeconds, zone: doc.zone,
      }),
    ]),
  ];
}

const peak = (one) => `${one.dimension} ${Math.round(one.percent)} % at ${one.at}`;

/** The state of repair. A plan is made only on request: it takes seconds, on a copy of the cluster. */
async function repair(domain) {
  const plan = el("div", { "aria-live": "polite" });
  const button = el("button", { type: "button", onclick: async () => {
    button.disabled = true;
    replace(plan, el("p", { class: "soft" }, "planning on a copy of the cluster"));
    replace(plan, await orWhyNot(async () => planOf(await read(["repair", "plan"], { domain }))));
    button.disabled = false;
  } }, "Make a repair plan");
  const status = await orWhyNot(async () => statusOf(await read(["repair", "status"], { domain })));
  return el("section", {}, el("h3", {}, "Repair"), status, el("p", {}, button), plan);
}

async function orWhyNot(draw) {
  try {
    return await draw();
  } catch (error) {
    if (error instanceof NoDocument && error.status !== 401) return el("p", { class: "soft" }, error.message);
    throw error;
  }
}

const statusOf = (status) => figures([["mode", status.mode], ["window", status.isOpen ? "open" : "closed"], ["last run", status.state || "none"],
  ["step", status.steps ? `${status.step} of ${status.steps}` : "-"], ["moves left", count(status.movesLeft)]]);

function planOf(plan) {
  const limits = Object.entries(plan.thresholdPercent).map(([name, value]) => `${name} ${value} %`).join(", ");
  const rows = plan.moves.map((move, at) => [count(at + 1), keyLink(move.pod), nodeLink(move.fromNode), nodeLink(move.toNode), peak(move.fromBefore), peak(move.fromAfter)]);
  return [
    el("p", { class: "lead" }, plan.moves.length || plan.unrepaired.length
      ? `${plural(plan.moves.length, "move")} would bring ${plural(plan.repaired.length, "node")} below its threshold (${limits}); ${plural(plan.unrepaired.length, "node")} would stay above.`
      : `No node is predicted to exceed its threshold (${limits}): nothing to repair.`),
    figures([["worst peak now", peak(plan.worstBefore)], ["worst peak after", peak(plan.worstAfter)], ["movable pods", `${count(plan.movable)} of ${count(plan.pods)}`]]),
    rows.length > 0 && table("Planned moves", [number("#"), "pod", "from", "to", "peak before", "peak after"], rows),
    plan.notes.map((note) => el("p", { class: "soft" }, note)),
  ];
}
