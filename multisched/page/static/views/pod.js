// A pod: why it waits, or why it was placed on its node. Filters by plugin, the score table, events that requeue it, the smallest fix.

import { NoDocument, read } from "../api.js";
import { el, figures, link, nodeLink, keyLink, number, replace, table } from "../dom.js";
import { amounts, count, duration, plural } from "../format.js";

export const pod = {
  name: "pod", title: "Pod", every: 3_000, within: "decisions",
  open(root, [namespace = "", name = ""]) {
    const body = el("div", {}), answer = el("div", { "aria-live": "polite" });
    const button = (text, query, draw) => el("button", { type: "button", onclick: (event) => onCopy(event.target, query, draw) }, text);
    const fix = button("Find the smallest fix", { fix: "true" }, (view) => fixTable(view.fixes));
    const raw = button("Score again with raw scores", { now: "true" }, (view) => (view.now ? attempt(view.now, false) : notes(view)));
    const tools = el("p", { class: "tools" }, fix, " ", raw, " ", link(["try", namespace], "Try a pod (what-if)"));
    const head = el("div", {});
    root.append(el("h2", {}, `Pod ${namespace}/${name}`), head, tools, answer, body);

    /** Sends a query that the server answers with a trial on a copy of the cluster; that may take seconds. */
    async function onCopy(asked, query, draw) {
      asked.disabled = true;
      replace(answer, el("p", { class: "soft" }, "trying it on a copy of the cluster"));
      try {
        replace(answer, draw(await read(["explain", "pod", namespace, name], query)));
      } catch (error) {
        if (!(error instanceof NoDocument)) throw error;
        replace(answer, el("p", { class: "problem" }, error.message));
      } finally {
        asked.disabled = false;
      }
    }

    return {
      async refresh() {
        const view = await read(["explain", "pod", namespace, name]);
        fix.hidden = view.state === "bound";
        const attempts = view.attempts.length ? view.attempts : view.now ? [view.now] : [];
        replace(head, state(view));
        replace(body, wakes(view), attempts.slice(0, 1).map((one) => attempt(one, view.attempts.length > 0)),
          history(view), attempts.length > 1 && el("details", {}, el("summary", {}, "Earlier attempts"), attempts.slice(1).map((one) => attempt(one, true))));
      },
    };
  },
};

function state(view) {
  const rows = [["state", view.state], ["domain", view.domain || "another scheduler"], ["scheduler", view.scheduler],
    ["node", view.node ? nodeLink(view.node) : "-"], ["requests", amounts(view.requests)], ["attempts", count(view.attemptsMade)]];
  if (view.state !== "bound") rows.push(["has waited", duration(view.waitingS || view.sinceS)]);
  if (view.retryInS !== null) rows.push(["retried at the latest in", duration(view.retryInS)]);
  return [
    figures(rows),
    view.waitingFor && el("p", { class: "lead" }, `It waits for ${view.waitingFor}.`, why(view)),
    notes(view),
  ];
}

const wakes = (view) => view.wakes.length > 0 && el("section", {}, el("h3", {}, "Events that requeue it"),
  el("ul", {}, view.wakes.map((one) => el("li", {}, `${one.plugin}: ${one.events.join("; ")}`))));

/** A sentence with the plugin that refused most nodes in the last attempt. */
function why(view) {
  const [last] = view.attempts, most = last?.refused.reduce((found, one) => (one.count > (found?.count ?? 0) ? one : found), null);
  return most ? ` ${most.plugin} refused ${count(most.count)} of ${plural(last.domainNodes, "node")}: ${most.reasons.join("; ")}.` : "";
}

const notes = (view) => view.notes.map((note) => el("p", { class: "soft" }, note));

function attempt(one, isRecorded) {
  const title = isRecorded ? `Attempt ${one.number}, ${duration(one.agoS)} ago: ${one.outcome}` : `An attempt now, on a copy: ${one.outcome}`;
  return el("section", { class: "attempt" },
    el("h3", {}, title, one.node ? [" on ", nodeLink(one.node)] : ""),
    one.message && el("p", {}, one.message),
    one.domainNodes > 0 && el("p", { class: "soft" }, funnel(one)),
    one.refused.length > 0 && refusals(one),
    scores(one),
    one.victims.length > 0 && el("p", {}, "To make room, it preempts ", one.victims.map((victim, at) => [at ? ", " : "", keyLink(victim)]),
      one.nominatedNode && [" on ", nodeLink(one.nominatedNode)], "."),
    el("details", {}, el("summary", {}, "Every plugin at every extension point"),
      table("Results of plugins", ["extension point", "plugin", "result"], one.points.map((point) => [point.point, point.plugin, point.said]))));
}

function funnel(one) {
  const dropped = one.snapshot === "dropped" ? " The record of single nodes was dropped." : "";
  const earlier = one.snapshot === "earlier" ? ` As of ${duration(one.snapshotAgoS)} ago, from an identical pod.` : "";
  if (dropped) return `The domain has ${count(one.domainNodes)} nodes.${dropped}`;
  return `${count(one.domainNodes)} nodes in the domain, ${count(one.lookedAt)} after PreFilter, ${count(one.feasible)} feasible.${earlier}`;
}

function refusals(one) {
  const rows = one.refused.map((verdict) => [verdict.plugin, count(verdict.count), verdict.reasons.join("; ") + (verdict.isForNominated ? " (counting nominated pods)" : ""),
    verdict.nodes.map((node, at) => [at ? ", " : "", node.startsWith("(") ? node : nodeLink(node)]), verdict.code]);
  return table("Filters: the first plugin that refused each node", ["plugin", number("nodes"), "reason", "for example", "code"], rows);
}

/** Scores per plugin, for the chosen node and the next best ones: weighted; normalised times weight; raw if known. */
function scores(one) {
  const nodes = [one.winner, ...one.runnersUp].filter((scored) => scored && scored.parts.length);
  if (!nodes.length) return null;
  const plugins = [...new Set(nodes.flatMap((scored) => scored.parts.map((part) => part.plugin)))];
  const cell = (scored, plugin) => {
    const part = scored.parts.find((candidate) => candidate.plugin === plugin);
    if (!part) return "-";
    return [el("strong", {}, count(part.score * part.weight)), el("span", { class: "soft" }, ` ${part.score} × ${part.weight}`),
      hasRaw && [el("br"), el("span", { class: "soft" }, part.raw === null ? "raw not known" : `raw ${count(part.raw)}`)]];
  };
  const others = one.snapshot === "earlier" ? ` Of the other nodes, scores are as of ${duration(one.snapshotAgoS)} ago, when an identical pod was placed.` : "";
  const hasRaw = nodes.some((scored) => scored.parts.some((part) => part.raw !== null));
  const rows = nodes.map((scored, at) => [nodeLink(scored.node), at === 0 && one.winner === scored ? "chosen" : "", el("strong", {}, count(scored.total)),
    ...plugins.map((plugin) => cell(scored, plugin))]);
  return [
    table(`Scores of the best nodes: weighted, then normalised (0 to 100) × weight${hasRaw ? ", then raw" : ""}`, ["node", "result", number("total"), ...plugins.map(number)], rows),
    others && el("p", { class: "soft" }, others),
    one.ties > 1 && el("p", { class: "soft" }, `${count(one.ties)} nodes had the highest score; one of them was chosen at random.`),
    one.passedOver.length > 0 && el("p", { class: "soft" }, "Better, but no longer feasible when the pod was to be assumed: ", one.passedOver.join(", ")),
  ];
}

function history(view) {
  if (!view.history.length) return null;
  const rows = [...view.history].reverse().map((step) => [`${duration(step.agoS)} ago`, step.event, step.state]);
  return el("details", {}, el("summary", {}, "Moves in the queue"), table("Moves in the queue, the latest first", ["when", "event", "state"], rows));
}

function fixTable(fixes) {
  if (!fixes?.length) return el("p", {}, "No single change makes it fit.");
  const rows = fixes.map((one) => [one.text, one.kind, nodeLink(one.node), one.command ? el("code", {}, one.command) : "-"]);
  return table("Changes that make it fit, the smallest first; each was tried with all plugins", ["change", "kind", "then on", "command"], rows);
}
