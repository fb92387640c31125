// Overview: the present state of each domain, and the latest decisions in words. Uses only the stream.

import { el, figures, link, nodeLink, number, podLink, replace, table } from "../dom.js";
import { clock, count, ms, plain, plural } from "../format.js";
import { sparkline } from "../plot.js";
import { WORDS } from "./pending.js";

const KEPT = 120;

/** Domain -> bound pods per second in the last KEPT overviews; kept while the page is open. */
const rates = new Map();

export const overview = {
  name: "overview", title: "Overview", every: Infinity,
  open(root) {
    root.append(el("h2", {}, "Overview"), el("p", { class: "soft" }, "waiting for the first figures"));
    return {
      refresh: async () => {},
      onOverview(doc) {
        for (const one of doc.domains) remember(one);
        replace(root, el("h2", {}, "Overview"), waiting(doc), health(doc), el("div", { class: "cards" }, doc.domains.map(card)), decisions(doc));
      },
    };
  },
};

function remember(domain) {
  const kept = rates.get(domain.domain) ?? [];
  rates.set(domain.domain, [...kept, domain.boundPerSecond ?? 0].slice(-KEPT));
}

/** A sentence with the number of waiting pods per domain. */
function waiting(doc) {
  const parts = doc.domains.map((one) => [one.domain, Object.values(one.counts).reduce((sum, pods) => sum + pods, 0)]).filter(([, pods]) => pods);
  const total = parts.reduce((sum, [, pods]) => sum + pods, 0);
  return el("p", { class: "lead" }, total ? [link(["pending"], plural(total, "pod waits", "pods wait")), ": ",
    parts.map(([domain, pods], at) => [at ? ", " : "", `${count(pods)} in `, link(["pending", domain], domain)]), "."] : "No pod waits.");
}

function health(doc) {
  const troubles = [];
  if (!doc.isReady) troubles.push("the caches are not synced with the API server yet");
  if (doc.api.staleKinds.length) troubles.push(`no data from the API server about ${doc.api.staleKinds.join(", ")} for minutes`);
  if (doc.remarks) troubles.push(doc.remarks);
  const api = `API server: ${plural(doc.api.throttled, "throttled request")}, ${plural(doc.api.failedReads, "failed read")} since the start`;
  return el("section", { class: "health" },
    el("p", { class: troubles.length ? "warn" : "good" }, troubles.length ? troubles.join("; ") : "Synced with the API server."),
    el("p", { class: "soft" }, api));
}

function card(one) {
  const states = Object.entries(WORDS).filter(([state]) => one.counts[state]);
  const refusals = Object.entries(one.unschedulableByPlugin).sort(([, a], [, b]) => b - a).slice(0, 3);
  const latency = one.latency
    ? [["median to bind", ms(one.latency.p50Ms)], ["P90", ms(one.latency.p90Ms)], ["P99", ms(one.latency.p99Ms)]]
    : [["median to bind", "-"], ["P90", "-"], ["P99", "-"]];
  const kept = rates.get(one.domain) ?? [];
  return el("section", { class: "card", "aria-label": `domain ${one.domain}` },
    el("h3", {}, one.domain, " ", el("span", { class: one.isLeading ? "tag good" : "tag" }, one.isLeading ? "leading" : "standby")),
    el("p", { class: "soft" }, one.ledElsewhere || `${one.schedulerNames.join(", ")} · ${plural(one.nodes, "node")}`),
    el("p", { class: "rate" }, el("strong", {}, one.boundPerSecond === null ? "-" : plain(one.boundPerSecond)), " pods/s"),
    sparkline(kept, `pods per second of domain ${one.domain}, in the last ${kept.length} updates`),
    figures([["bound", count(one.bound)], ["attempts", count(one.attempts)], ["in flight", `${count(one.bindsInFlight)} of ${count(one.bindLimit)}`], ...latency,
      ["true conflicts", count(one.conflictsTrue)], ["false conflicts", count(one.conflictsFalse)]]),
    states.length
      ? el("ul", { class: "states" }, states.map(([state, words]) => el("li", {},
        link(["pending", one.domain], `${count(one.counts[state])} ${state}`), el("span", { class: "soft" }, `: ${words}`))))
      : el("p", { class: "soft" }, "no pod waits"),
    refusals.length > 0 && el("p", {}, "refused by ", refusals.map(([plugin, pods], at) => `${at ? ", " : ""}${plugin} (${count(pods)})`)));
}

function decisions(doc) {
  const rows = doc.decisions.map((one) => [clock(one.atSeconds), one.domain, podLink(one.namespace, one.name), nodeLink(one.node),
    count(one.score), one.why]);
  return table("The latest decisions", ["at", "domain", "pod", "node", number("score"), "why"], rows, "no pod was placed yet");
}
