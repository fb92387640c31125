// GPU, jobs and loans: cards and their tide, serverless units, deadlines at risk, loans between domains.

import { NoDocument, read } from "../api.js";
import { el, figures, keyLink, nodeLink, number, replace, table } from "../dom.js";
import { amounts, clock, count, duration, moment, percent, plain, plural } from "../format.js";
import { linePlot } from "../plot.js";

const SHOWN = 100;

export const work = {
  name: "work", title: "GPU, jobs, loans", every: 5_000,
  open(root, args, app) {
    const body = el("div", {});
    root.append(el("h2", {}, "GPU, jobs, loans"), body);
    return {
      async refresh() {
        const views = app.overview.views;
        const parts = [["gpu", "nodes", gpu], ["tide", "now", tide], ["jobs", "now", jobs], ["units", "now", units], ["loans", "now", loans]];
        const drawn = [];
        for (const [view, name, draw] of parts) for (const domain of views[view] ?? []) drawn.push(await drawnOf(view, name, domain, draw));
        replace(body, drawn.length ? drawn : el("p", { class: "soft" }, "No domain has GPUs, jobs or loans."));
      },
    };
  },
};

async function drawnOf(view, name, domain, draw) {
  try {
    return draw(await read([view, name], { domain, ...(["gpu", "jobs", "loans"].includes(view) ? { limit: SHOWN } : {}) }));
  } catch (error) {
    if (error instanceof NoDocument && error.status !== 401) return el("p", { class: "soft" }, `${view} of domain ${domain}: ${error.message}`);
    throw error;
  }
}

function gpu(doc) {
  const used = (card) => 1 - card.freeMilli / 1000;
  const rows = doc.nodes.map((one) => [nodeLink(one.node), one.mode,
    el("span", { class: "cardbars", role: "img", "aria-label": one.cards.map((card) => `card ${card.card} ${percent(used(card))}`).join(", ") },
      one.cards.map((card) => el("span", { class: "bar small" }, el("span", { class: card.isHealthy ? "own" : "over", "width%": 100 * used(card) })))),
    plain(one.cards.reduce((sum, card) => sum + used(card), 0)), count(one.cards.length), count(one.pods), plain(one.fragmentMilli / 1000), count(one.unconfirmed.length), one.problems.join("; ") || "-"]);
  const cards = doc.nodes.flatMap((one) => one.cards), sick = cards.filter((card) => !card.isHealthy).length;
  return [
    cards.length > 0 && el("p", { class: sick ? "warn lead" : "lead" }, `${plain(cards.reduce((sum, card) => sum + used(card), 0))} of ${plural(cards.length, "card")} of these nodes are used; ${sick ? `${count(sick)} unhealthy` : "all are healthy"}.`),
    table(`GPU nodes of domain ${doc.domain}`, ["node", "mode", "cards", number("used"), number("of"), number("pods"), number("fragments"), number("unconfirmed"), "problems"], rows, "no node has GPUs"),
    doc.nodesLeftOut > 0 && el("p", { class: "soft" }, `${plural(doc.nodesLeftOut, "node")} not shown`), doc.notes.map((note) => el("p", { class: "soft" }, note)),
  ];
}

function tide(doc) {
  const hours = doc.forecast.hours, cards = doc.cards;
  return el("section", {},
    el("h3", {}, `Tide of domain ${doc.domain}`),
    el("p", { class: "lead" }, doc.isFrozen ? "The tide is frozen." : `Inference uses ${count(cards.inference)} of ${count(cards.total)} cards, training ${count(cards.training)}; training may hold ${count(doc.training.limitCards)}.`),
    linePlot({ title: "Cards that inference is expected to need in the next 24 hours", unit: "cards", labels: hours.map((one) => clock(Date.parse(one.at) / 1000).slice(0, 5)),
      lines: [["predicted", "expected", hours.map((one) => one.expectedCards)], ["upper", "upper bound", hours.map((one) => one.upperCards)]], mark: cards.total }),
    figures([["free", count(cards.free)], ["leaving", count(cards.leaving)], ["headroom", count(doc.headroom.cards)], ["waiting inference", count(cards.waitingInference)],
      ["gangs evicted", count(doc.losses.gangs)], ["card hours lost", plain(doc.losses.lostCardHours)], ["evicted / needed", doc.losses.evictedOverNeeded ?? "-"]]),
    table("Notices to training gangs", ["gang", number("cards"), "evicted at", "for", "state"], doc.notices.map((one) => [one.gang, count(one.cards), moment(one.deadline), one.for, one.isEvicting ? "evicting" : "has a notice"]), "no notice is in progress"),
    table("Training that waits", ["gang", number("cards"), "why"], doc.training.waiting.map((one) => [one.gang, count(one.cards), one.why || "-"]), "no training waits"));
}

function jobs(doc) {
  const rows = doc.pods.map((one) => [keyLink(one.pod), one.isAtRisk ? el("strong", { class: "bad" }, "at risk") : one.deadline ? "in time" : "-", moment(one.predictedStart), moment(one.predictedEnd), moment(one.deadline), one.deadline ? one.deadlineFrom : "-"]);
  const owners = doc.owners.map((one) => [one.namespace, one.owner ?? "-", count(one.runs), duration(one.medianSeconds), duration(one.p90Seconds), percent(one.coverage), `${duration(one.ageSeconds)} ago`]);
  return el("section", {},
    el("h3", {}, `Jobs of domain ${doc.domain}`),
    el("p", { class: doc.atRisk ? "warn lead" : "lead" }, `${plural(doc.waiting, "pod waits", "pods wait")}, ${plural(doc.atRisk, "deadline")} at risk; predicted at ${moment(doc.predictedAt)}.`),
    table("Waiting pods, those at risk first", ["pod", "deadline", "predicted start", "predicted end", "must end by", "deadline from"], rows, "no pod waits"),
    el("details", {}, el("summary", {}, "Run times of each owner"), table("Run times", ["namespace", "owner", number("runs"), number("median"), number("P90"), number("coverage of P90"), "last run"], owners)));
}

function units(doc) {
  const rows = doc.units.map((one) => [one.name, el("span", { class: one.breaker === "closed" ? "good" : "bad" }, one.breaker), `${plain(one.rate.perSecond)} of ${plain(one.rate.configured)} /s`,
    `${count(one.used.pods)} of ${one.quota.pods === null ? "any" : count(one.quota.pods)}`, count(one.starting), count(one.failed), count(one.throttled), plain(one.cost.spent), plain(one.cost.saved)]);
  return table(`Serverless units of domain ${doc.domain}`, ["unit", "breaker", "rate", "pods", ...["starting", "failed", "throttled", "cost spent", "cost saved"].map(number)], rows, "there are no units");
}

function loans(doc) {
  const rows = doc.loans.map((one) => [one.from, one.kind, one.why || (one.closes ? `open until ${moment(one.closes)}` : "open"), count(one.nodes), count(one.pods), amounts(one.held), amounts(one.room), one.noticeSeconds === null ? "-" : duration(one.noticeSeconds)]);
  const nodes = doc.nodes.map((one) => [nodeLink(one.node), one.from, count(one.pods), amounts(one.held), one.recalledSince ? moment(one.recalledSince) : "-", one.why || "-"]);
  const notices = doc.notices.map((one) => [keyLink(one.pod), one.from, moment(one.evictedAt), one.isEvicted ? "evicted" : "has a notice", one.why]);
  return el("section", {},
    el("h3", {}, `Loans to domain ${doc.domain}`),
    el("p", {}, `${plural(doc.recalls.open, "recall")} open of ${count(doc.recalls.total)}, ${count(doc.recalls.late)} late, ${plural(doc.recalls.evicted, "pod")} evicted.`),
    table("Loans", ["from", "kind", "state", number("nodes"), number("pods"), "held", "can still be lent", number("notice")], rows, "there are no loans"),
    table("Nodes with pods on loan", ["node", "from", number("pods"), "held", "recalled since", "why"], nodes, "no pod is on loan"),
    notices.length > 0 && table("Pods with a notice to give capacity back", ["pod", "from", "evicted at", "state", "why"], notices));
}
