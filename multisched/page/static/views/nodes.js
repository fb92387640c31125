// Nodes: a heat map of what is requested now, or of the predicted peak; and one node with its pods and its forecast.

import { NoDocument, read } from "../api.js";
import { choice, el, figures, keyLink, link, nodeLink, number, podLink, replace, table } from "../dom.js";
import { amount, amounts, count, measure, moment, percent, plural, unit } from "../format.js";
import { heatMap, histogram, weekPlot } from "../plot.js";

const SHOWN = 500;

export const nodes = {
  name: "nodes", title: "Nodes", every: 3_000,
  open: (root, args, app) => (args[0] ? openNode(root, args[0], app) : openAll(root, app)),
};

const asked = { domain: "", resource: "cpu", kind: "now", time: "20:00", match: "", offset: 0 };
const KINDS = [["now", "requested now"], ["peak", "predicted peak"], ["at", "predicted at a time of day"]];

function openAll(root, app) {
  const controls = el("form", { class: "controls", onsubmit: (event) => event.preventDefault() }), body = el("div", {});
  const match = el("input", { type: "search", value: asked.match, size: "14", oninput: () => change("match", match.value) });
  const time = el("input", { type: "time", value: asked.time, onchange: () => time.value && change("time", time.value) });
  const controlSlots = { domain: el("span"), resource: el("span"), kind: el("span"), time: el("label", {}, "at ", time) };
  controls.append(controlSlots.kind, controlSlots.time, controlSlots.domain, controlSlots.resource, el("label", {}, "name contains ", match));
  root.append(el("h2", {}, "Nodes"), controls, body);
  let lastChoices = "";
  const change = (key, value) => {
    asked[key] = value;
    if (key !== "offset") asked.offset = 0;
    if (key === "kind" || key === "domain") lastChoices = "";
    app.read();
  };

  function choices(resources, doc) {
    const now = JSON.stringify([resources, asked.kind, asked.domain]);
    controlSlots.time.hidden = asked.kind !== "at";
    if (now === lastChoices) return;
    lastChoices = now;
    const domains = doc.domains.map((one) => [one.domain, one.domain]);
    const hasForecast = Boolean(doc.views.forecast);
    replace(controlSlots.kind, hasForecast && choice("show", KINDS, asked.kind, (value) => change("kind", value)));
    replace(controlSlots.domain, asked.kind === "now" && choice("domain", [["", "all domains"], ...domains], asked.domain, (value) => change("domain", value)));
    replace(controlSlots.resource, choice(asked.kind === "now" ? "resource" : "dimension", resources.map((one) => [one, one]), asked.resource, (value) => change("resource", value)));
  }

  return {
    async refresh() {
      const domain = app.overview.views.forecast?.[0];
      const found = asked.kind === "peak" ? await peaks(domain) : asked.kind === "at" ? await at(domain) : await requested();
      if (!found.resources.includes(asked.resource)) asked.resource = found.resources[0] ?? "cpu";
      choices(found.resources, app.overview);
      replace(body, found.drawn, pages(found.matching, change));
    },
  };
}

function pages(matching, change) {
  if (matching <= SHOWN) return null;
  const step = (by, text) => el("button", { type: "button", "data-key": text, disabled: asked.offset + by < 0 || asked.offset + by >= matching,
    onclick: () => change("offset", asked.offset + by) }, text);
  return el("p", {}, step(-SHOWN, "fuller nodes"), ` ${count(asked.offset + 1)} to ${count(Math.min(matching, asked.offset + SHOWN))} of ${count(matching)} `, step(SHOWN, "emptier nodes"));
}

async function requested() {
  const { domain, resource, match, offset } = asked;
  const doc = await read(["nodes"], { domain, resource, match, offset, limit: SHOWN });
  const at = doc.resources.indexOf(doc.sortedBy);
  const cells = doc.nodes.map((one) => ({ name: one.node, share: one.shares[at], note: one.isClosed ? "cordoned or invalid" : "" }));
  const total = doc.totals[at];
  const rows = doc.nodes.slice(0, 25).map((one) => [nodeLink(one.node), ...one.shares.map(percent), count(one.pods), one.isClosed ? "cordoned or invalid" : ""]);
  return {
    resources: doc.resources, matching: doc.matching,
    drawn: [
      el("p", {}, `${plural(doc.count, "node")}: ${amount(total.resource, total.requested)} of ${amount(total.resource, total.allocatable)} ${total.resource} requested`,
        total.allocatable ? ` (${percent(total.requested / total.allocatable)}).` : "."),
      histogram(total.histogram, `nodes by requested ${total.resource}`),
      heatMap(cells, `requested ${total.resource} / allocatable`),
      table("The fullest of these nodes: requested / allocatable", ["node", ...doc.resources.map(number), number("number of pods"), "state"], rows),
    ],
  };
}

const FULL = 0.9;

/** A sentence on which of these nodes will be full. `shares` must be sorted, fullest first. @param {[string, number | null][]} shares */
function fullest(shares, resource, when) {
  const full = shares.filter(([, share]) => share >= FULL), [name, share] = shares[0] ?? [];
  if (!name) return null;
  const most = [" The fullest is ", nodeLink(name), `, with ${percent(share)}.`];
  return el("p", { class: full.length ? "warn lead" : "good lead" },
    full.length ? `${plural(full.length, "node")} of these will have ${percent(FULL)} or more of ${resource} in use ${when}.` : `None of these nodes will have ${percent(FULL)} of ${resource} in use ${when}.`, most);
}

async function at(domain) {
  const doc = await read(["forecast", "at"], { domain, moment: asked.time, limit: SHOWN });
  const resource = doc.dimensions.includes(asked.resource) ? asked.resource : doc.dimensions[0];
  const sorted = [...doc.nodes].sort((a, b) => (b.shares[resource] ?? -1) - (a.shares[resource] ?? -1));
  const rows = sorted.slice(0, 25).map((one) => [nodeLink(one.node), el("strong", {}, percent(one.shares[resource])), measure(resource, one.amounts[resource])]);
  return {
    resources: doc.dimensions, matching: sorted.length,
    drawn: [
      fullest(sorted.map((one) => [one.node, one.shares[resource]]), resource, `at ${doc.at}`),
      el("p", {}, `Highest predicted use at ${doc.at} over all days of the week (${doc.zone}), for the fullest ${count(sorted.length)} of ${plural(doc.count, "node")}. ${doc.state}.`),
      heatMap(sorted.map((one) => ({ name: one.node, share: one.shares[resource], note: doc.at })), `predicted ${resource} at ${doc.at} / capacity`),
      table(`Nodes by predicted ${resource} at ${doc.at}`, ["node", number("of its capacity"), number("amount")], rows),
    ],
  };
}

async function peaks(domain) {
  const doc = await read(["forecast", "nodes"], { domain, limit: SHOWN, offset: asked.offset, match: asked.match });
  const resource = doc.dimensions.includes(asked.resource) ? asked.resource : doc.dimensions[0];
  const rowOf = (one) => one.dimensions.find((row) => row.dimension === resource);
  const sorted = [...doc.nodes].sort((a, b) => (rowOf(b).share ?? -1) - (rowOf(a).share ?? -1));
  const rows = sorted.slice(0, 25).map((one) => [nodeLink(one.node), percent(rowOf(one).nowShare), el("strong", {}, percent(rowOf(one).share)), rowOf(one).at,
    `${measure(resource, rowOf(one).peak)} of ${measure(resource, rowOf(one).capacity)}`, count(one.pods), count(one.unknown)]);
  return {
    resources: doc.dimensions, matching: doc.count,
    drawn: [
      fullest(sorted.map((one) => [one.node, rowOf(one).share]), resource, "at their peak"),
      el("p", {}, `Predicted use at each node's fullest time of the week. Nodes are paged by their fullest dimension and sorted here by ${resource}. ${doc.state}.`),
      heatMap(sorted.map((one) => ({ name: one.node, share: rowOf(one).share, note: rowOf(one).at })), `predicted peak of ${resource} / capacity`),
      table(`Nodes by predicted peak of ${resource}`, ["node", number("predicted now"), number("peak"), "at", "amount", number("pods"), number("without profile")], rows),
    ],
  };
}

function openNode(root, name, app) {
  const body = el("div", {});
  root.append(el("p", {}, link(["nodes"], "all nodes")), el("h2", {}, `Node ${name}`), body);
  const readForNode = (view, domains) => Promise.all((app.overview.views[view] ?? []).filter((domain) => domains.includes(domain))
    .map((domain) => orNone(read([view, "node"], { name, domain }))));
  return {
    async refresh() {
      const doc = await read(["nodes", name]);
      const forecasts = await readForNode("forecast", doc.domains), lent = await readForNode("loans", app.overview.views.loans ?? []);
      const cards = await readForNode("gpu", doc.domains);
      replace(body, detail(doc), loansOf(lent.filter(Boolean)), forecasts.filter(Boolean).map(forecast), cards.filter(Boolean).map(gpu), podsOf(doc));
    },
  };
}

async function orNone(document) {
  try {
    return await document;
  } catch (error) {
    if (error instanceof NoDocument && error.status !== 401) return null; // the domain has no such node
    throw error;
  }
}

function detail(doc) {
  const rows = Object.entries(doc.resources).map(([resource, [held, all]]) => [resource, amount(resource, held), amount(resource, all), all ? percent(held / all) : "-"]);
  return [
    figures([["domains", doc.domains.join(", ") || "none"], ["pods", count(doc.pods.length + doc.podsLeftOut)], ["state", doc.isUnschedulable ? "cordoned" : doc.malformed ? "invalid" : "open"]]),
    doc.malformed && el("p", { class: "problem" }, doc.malformed),
    doc.taints.length > 0 && el("p", {}, `Taints: ${doc.taints.join(", ")}`),
    table("Resources", ["resource", number("requested"), number("allocatable"), number("share")], rows),
    el("details", {}, el("summary", {}, `Labels (${Object.keys(doc.labels).length})`), table("Labels", ["key", "value"], Object.entries(doc.labels))),
  ];
}

/** Amounts of the node that other domains may borrow, and those that they hold. */
function loansOf(docs) {
  const rows = docs.flatMap((doc) => doc.loans.map((one) => [one.from, one.to, one.kind, one.why || (one.closes ? `open until ${moment(one.closes)}` : "open"),
    count(one.pods), amounts(one.held), amounts(one.room), one.onLoan?.recalledSince ? `since ${moment(one.onLoan.recalledSince)}: ${one.onLoan.why}` : "-"]));
  return rows.length > 0 && table("Loans of this node", ["from", "to", "kind", "state", number("pods"), "held", "can still be lent", "recalled"], rows);
}

function forecast(doc) {
  return el("section", {}, el("h3", {}, "Predicted load"), el("p", { class: "soft" }, `${doc.now} in ${doc.zone}; ${doc.state}`),
    doc.node.dimensions.map((row) => weekPlot({
      title: `${row.dimension}: predicted peak ${measure(row.dimension, row.peak)} at ${row.at}, ${percent(row.share)} of its capacity`,
      unit: unit(row.dimension), predicted: row.week, low: row.low, high: row.high, bandName: "sum of the bands of its services", mark: row.capacity, slotSeconds: doc.slotSeconds, nowSeconds: doc.nowSeconds, zone: doc.zone,
    })),
    table("Pods, by predicted use at the node's peak", ["pod", "service", number("share of the node's capacity"), "predicted by", number("peak without it")],
      doc.pods.slice(0, 50).map((one) => [keyLink(one.pod), one.service, percent(one.share), one.by, percent(one.left.share)])));
}

function gpu(doc) {
  const rows = doc.node.cards.map((card) => [count(card.card), card.model || "-", percent(1 - card.freeMilli / 1000), card.isHealthy ? "healthy" : "unhealthy", count(card.pods)]);
  return [
    table(`GPU cards, mode ${doc.node.mode}`, [number("card"), "model", number("used"), "state", number("pods")], rows),
    doc.node.problems.map((problem) => el("p", { class: "warn" }, problem)),
  ];
}

function podsOf(doc) {
  const rows = doc.pods.map((one) => [podLink(one.namespace, one.name), one.scheduler, amount("cpu", one.requests.cpu ?? 0), amount("memory", one.requests.memory ?? 0),
    count(one.priority), one.isLeaving ? "terminating or to be evicted" : ""]);
  return [table("Pods, the largest CPU requests first", ["pod", "scheduler", number("cpu"), number("memory"), number("priority"), "state"], rows, "no pod is here"),
    doc.podsLeftOut > 0 && el("p", { class: "soft" }, `${plural(doc.podsLeftOut, "pod")} not shown`)];
}
