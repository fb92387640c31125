// Try it: shows where pods would be placed now. The server tries them on a copy of the cluster and changes nothing.

import { NoDocument, ask } from "../api.js";
import { choice, el, nodeLink, number, replace, table } from "../dom.js";
import { count, plural } from "../format.js";

const FIELDS = [["name", "name", "trial"], ["cpu", "CPU", "500m"], ["memory", "memory", "1Gi"],
  ["resource", "other resource", ""], ["amount", "its amount", ""], ["replicas", "replicas", "1"]];

export const tryIt = {
  name: "try", title: "Try it", every: Infinity,
  open(root, [namespace = "default"], app) {
    const inputs = {}, result = el("div", { "aria-live": "polite" });
    const schedulers = el("span", {});
    const manifest = el("textarea", { id: "manifest", rows: "6", cols: "60", spellcheck: "false" });
    const button = el("button", {}, "Try it");
    let scheduler = "";
    for (const [key, , value] of [...FIELDS, ["namespace", "namespace", namespace]]) inputs[key] = el("input", { value, size: "12", name: key });
    const field = ([key, text]) => el("label", {}, `${text} `, inputs[key]);
    const form = el("form", { onsubmit: (event) => { event.preventDefault(); send(); } },
      el("p", {}, field(["namespace", "namespace"]), schedulers), el("p", {}, FIELDS.map(field)),
      el("details", {}, el("summary", {}, "or a manifest as JSON"), el("label", { for: "manifest" }, "manifest"), el("br"), manifest),
      el("p", {}, button));
    root.append(el("h2", {}, "Try it"), el("p", {}, "Where would pods like this be placed now, and what would be preempted? Nothing is created."), form, result);

    async function send() {
      button.disabled = true;
      try {
        const text = manifest.value.trim();
        const document = text ? JSON.parse(text) : podOf(inputs, scheduler);
        replace(result, el("p", { class: "soft" }, "trying it on a copy of the cluster"));
        replace(result, placements(await ask(["explain", "what-if"], { replicas: inputs.replicas.value.trim() || "1" }, document)));
      } catch (error) {
        if (!(error instanceof NoDocument || error instanceof SyntaxError)) throw error;
        replace(result, el("p", { class: "problem", role: "alert" }, error instanceof SyntaxError ? `the manifest is not JSON: ${error.message}` : error.message));
      } finally {
        button.disabled = false;
      }
    }

    return {
      refresh: async () => {},
      onOverview(doc) {
        if (scheduler) return;
        const names = doc.domains.flatMap((one) => one.schedulerNames);
        scheduler = names[0] ?? "";
        replace(schedulers, choice("scheduler", names.map((name) => [name, name]), scheduler, (name) => { scheduler = name; }));
      },
    };
  },
};

function podOf(inputs, schedulerName) {
  const value = (key) => inputs[key].value.trim(), requests = {};
  for (const [key, resource] of [["cpu", "cpu"], ["memory", "memory"], ["amount", value("resource")]]) if (resource && value(key)) requests[resource] = value(key);
  const limits = Object.fromEntries(Object.entries(requests).filter(([name]) => name.includes("/")));
  return { apiVersion: "v1", kind: "Pod", metadata: { name: value("name") || "trial", namespace: value("namespace") || "default" },
    spec: { schedulerName, containers: [{ name: "main", image: "trial", resources: { requests, limits } }] } };
}

function placements(view) {
  const views = view.items ?? [view];
  return views.map((one) => {
    const placed = one.placements.filter((placement) => placement.node).length;
    const rows = one.placements.slice(0, 200).map((placement) => [count(placement.replica), nodeLink(placement.node), count(placement.total),
      placement.victims.length ? placement.victims.join(", ") : "-", placement.message || "-"]);
    return [
      el("p", { class: placed === one.placements.length ? "good lead" : "warn lead" }, `${count(placed)} of ${plural(one.placements.length, "pod")} would be placed, in domain ${one.domain}.`),
      table(`Placements of ${one.namespace}/${one.name}`, [number("replica"), "node", number("score"), "preempts first", "why not"], rows),
      one.notes.map((note) => el("p", { class: "soft" }, note)),
    ];
  });
}
