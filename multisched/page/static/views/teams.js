// Teams: the amounts that each level of the quota tree uses, borrows and lends; gangs, and what they wait for.

import { read } from "../api.js";
import { el, keyLink, number, replace, table } from "../dom.js";
import { amounts, clock, count, plural } from "../format.js";

const RECLAIM_S = 60;

export const teams = {
  name: "teams", title: "Teams", every: 5_000,
  open(root, args, app) {
    const body = el("div", {});
    root.append(el("h2", {}, "Teams"), body);
    return {
      async refresh() {
        const views = app.overview.views;
        const quotas = views.quotas ? await read(["quotas", "now"], { domain: views.quotas[0] }) : null;
        const reclaims = views.quotas ? await read(["decisions", "preemptions"], { plugin: "ElasticQuota" }) : null;
        const gangs = views.gangs ? await read(["gangs", "now"], { domain: views.gangs[0] }) : null;
        replace(body, quotas ? tree(quotas, reclaims) : el("p", { class: "soft" }, "No domain has quotas."), reclaims && reclaimTable(reclaims, quotas),
          gangs && gangTable(gangs));
      },
    };
  },
};

function tree(doc, reclaims) {
  if (!doc.source) return [el("p", {}, "No quota is in force."), doc.trouble && el("p", { class: "warn" }, doc.trouble)];
  const rows = doc.levels.flatMap((level) => Object.entries(level.resources).map(([resource, use], at) => [
    at ? "" : el("span", { class: `depth depth${Math.min(5, level.path.split(".").length - 1)}` }, level.path, spaces(level)),
    resource, bar(use), ...["used", "min", "borrowed", "lent", "max", "fairShare", "requested"].map((field) => use.shown[field] ?? "-")]));
  return el("section", {},
    el("h3", {}, "Quotas"),
    el("p", { class: "soft" }, `In force: ${doc.source}. `, key("own", "used of its min"), key("over", "borrowed"), key("lent", "lent to others"), key("idle", "idle min")),
    doc.trouble && el("p", { class: "warn" }, doc.trouble),
    el("p", { class: "lead" }, borrowing(doc), lastReclaim(reclaims, teamsOf(doc))),
    table("Levels of the tree", ["level", "resource", "0 to max", ...["used", "min", "borrowed", "lent", "max", "fair share", "requested"].map(number)], rows),
    doc.levelsLeftOut > 0 && el("p", { class: "soft" }, `${plural(doc.levelsLeftOut, "level")} not shown`));
}

/** A sentence with the levels that borrow and those that lend. */
function borrowing(doc) {
  const of = (field) => doc.levels.flatMap((level) => Object.entries(level.resources).filter(([, use]) => use[field] > 0)
    .map(([resource, use]) => `${level.path} ${use.shown[field]} ${resource}`)).join(", ");
  return of("borrowed") ? `Borrowed: ${of("borrowed")}. Lent: ${of("lent") || "nothing"}.` : "No team borrows from another now.";
}

/** A function that names the teams of pods. A team is the level of the tree that names the pod's namespace. */
function teamsOf(quotas) {
  const teamOf = new Map(quotas.levels.flatMap((level) => level.namespaces.map((namespace) => [namespace, level.path])));
  return (pods) => [...new Set(pods.map((one) => one.pod.split("/")[0]).map((namespace) => teamOf.get(namespace) ?? namespace))].join(", ");
}

/** A sentence on the latest reclaim, together with those between the same teams within RECLAIM_S before it. */
function lastReclaim(doc, teams) {
  const [last] = doc.preemptions;
  if (!last) return "";
  const by = teams(last.pods), from = teams(last.victims);
  const same = doc.preemptions.filter((one) => last.atSeconds - one.atSeconds < RECLAIM_S && teams(one.pods) === by && teams(one.victims) === from);
  const freed = {}, evicted = same.reduce((sum, one) => sum + one.victims.length + one.victimsLeftOut, 0);
  for (const one of same) for (const [resource, value] of Object.entries(one.freed)) freed[resource] = (freed[resource] ?? 0) + value;
  return ` At ${clock(last.atSeconds)}, ${by} reclaimed from ${from}: ${plural(evicted, "pod")} that requested ${amounts(freed)}.`;
}

/** The last reclaims: the teams, pods and amounts. */
function reclaimTable(doc, quotas) {
  const teams = teamsOf(quotas);
  const some = (pods, more) => [pods.slice(0, 5).map((one, at) => [at ? ", " : "", keyLink(one.pod)]),
    pods.length + more > 5 && ` and ${plural(pods.length + more - 5, "other")}`];
  const deleted = (one) => one.victims.filter((victim) => victim.state === "deleted").length;
  const rows = doc.preemptions.map((one) => [clock(one.atSeconds), teams(one.pods), some(one.pods, one.podsLeftOut), teams(one.victims), some(one.victims, one.victimsLeftOut),
    amounts(one.freed), el("span", { class: one.state === "not carried out" ? "bad" : null }, `${one.state}, ${count(deleted(one))} of ${count(one.victims.length)} deleted`)]);
  return table("The last reclaims", [number("at"), "reclaimed by", "for pods", "from", "evicted pods", "they requested", "state"], rows, "none since this process started");
}

const key = (kind, text) => el("span", { class: "key" }, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), ` ${text} `);

const spaces = (level) => (level.namespaces.length ? el("span", { class: "soft" }, ` ${level.namespaces.join(", ")}`, level.namespacesLeftOut ? ` and ${level.namespacesLeftOut} more` : "") : "");

/** A bar from 0 to the level's max, or to min or use if that is larger. The same row has the numbers. */
function bar(use) {
  const whole = Math.max(use.max ?? 0, use.min, use.used, 1e-9), part = (amount) => (100 * Math.max(0, amount)) / whole;
  const idle = use.min - use.used - use.lent;
  const parts = [["own", Math.min(use.used, use.used - use.borrowed)], ["over", use.borrowed], ["lent", use.lent], ["idle", idle]];
  return el("div", { class: "bar", "aria-hidden": "true" }, parts.filter(([, value]) => value > 0).map(([kind, value]) => el("span", { class: kind, "width%": part(value) })));
}

function gangTable(doc) {
  const state = (one) => (one.hasStarted ? "started" : one.isOverdue ? "overdue" : "waits");
  const rows = doc.gangs.map((one) => [one.gang, state(one), count(one.minimum), count(one.present), count(one.bound), count(one.running), count(one.finished),
    one.waiting.map((name, at) => [at ? ", " : "", keyLink(`${one.gang.split("/")[0]}/${name}`)]), one.why || "-"]);
  return [
    table(`Gangs: ${plural(doc.waiting, "gang waits", "gangs wait")} for something`, ["gang", "state", ...["minimum", "members", "bound", "running", "finished"].map(number), "members without a node", "waits because"], rows, "there are no gangs"),
    doc.gangsLeftOut > 0 && el("p", { class: "soft" }, `${plural(doc.gangsLeftOut, "gang")} not shown`),
  ];
}
