// Pending: all pending pods by reason, and the pods of one reason that have waited longest.

import { read } from "../api.js";
import { el, link, number, podLink, replace, table, visible } from "../dom.js";
import { count, duration, plural } from "../format.js";

/** State -> description of its pods. */
export const WORDS = {
  active: "ready for an attempt", backoff: "wait until their backoff ends", unschedulable: "fit on no node now", gated: "blocked at PreEnqueue",
  gang: "tried together with another member of their gang", permit: "assumed, wait at Permit", binding: "being bound",
  quarantined: "the API server rejects their binds repeatedly", refused: "cannot be evaluated: only a change of the pod helps",
};

export const pending = {
  name: "pending", title: "Pending", every: 2_000,
  open(root, args) {
    const [chosen = ""] = args; // the key of a group, or the name of a domain
    const body = el("div", {});
    root.append(el("h2", {}, "Pending pods"), body);
    return {
      async refresh() {
        const doc = await read(["pending"], { group: chosen });
        replace(body, summary(doc), groups(doc, chosen), chosen && pods(doc, chosen));
        return doc.ageS;
      },
    };
  },
};

function summary(doc) {
  return [
    el("p", {}, doc.podsTotal ? `${plural(doc.podsTotal, "pod")} ${doc.podsTotal === 1 ? "waits" : "wait"}, for ${plural(doc.groups.length + doc.groupsLeftOut, "reason")}.` : "No pod waits.",
      doc.ageS > 10 ? ` Counted ${duration(doc.ageS)} ago.` : ""),
    doc.elsewhere.map((one) => el("p", { class: "warn" }, `The pods of domain ${one.domain} are not shown: another replica leads it`,
      one.leader?.address ? ` at ${one.leader.address}` : "", ".")),
  ];
}

function groups(doc, chosen) {
  const shown = doc.groups.filter((one) => !chosen || chosen.includes("/") || one.domain === chosen);
  const rows = shown.map((one) => [
    link(["pending", one.key], one.plugins.length ? one.plugins.join(", ") : WORDS[one.state] ?? one.state,
      { "aria-current": one.key === chosen ? "true" : null }),
    one.domain, one.plugins.length ? `${one.state}: ${WORDS[one.state] ?? ""}` : one.state, count(one.count), duration(one.longestS), one.message || "-",
  ]);
  const caption = chosen && !chosen.includes("/") ? `Reasons in domain ${chosen}` : "Reasons: the plugins that refused the pods last";
  return [
    table(caption, ["refused by", "domain", "state", number("pods"), number("longest wait"), "for example"], rows, "none"),
    chosen && !chosen.includes("/") && el("p", {}, link(["pending"], "all domains")),
    doc.groupsLeftOut > 0 && el("p", { class: "soft" }, `${plural(doc.groupsLeftOut, "smaller group")} not shown`),
  ];
}

function pods(doc, chosen) {
  if (!chosen.includes("/")) return null;
  const why = (one, at) => (one.message && one.message === doc.pods[at - 1]?.message ? el("span", { class: "soft" }, "as above") : one.message || "-");
  const rows = doc.pods.map((one, at) => [podLink(one.namespace, one.name), duration(one.waitingS), count(one.attempts), count(one.priority),
    one.retryInS ? `in ${duration(one.retryInS)}` : "-", why(one, at)]);
  return [
    table(`The longest waiting pods: ${visible(chosen, 200)}`, ["pod", number("waits"), number("attempts"), number("priority"), number("retried"), "why"], rows,
      "no pod waits for this reason any more"),
    doc.podsLeftOut > 0 && el("p", { class: "soft" }, `${plural(doc.podsLeftOut, "pod")} that waited less not shown`),
    el("p", {}, link(["pending"], "all reasons")),
  ];
}
