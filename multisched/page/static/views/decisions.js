// Decisions: recent placements; each opens the pod with its filters and scores.

import { read } from "../api.js";
import { choice, el, nodeLink, number, podLink, replace, table } from "../dom.js";
import { clock, count } from "../format.js";

export const decisions = {
  name: "decisions", title: "Decisions", every: 2_000,
  open(root, [domain = ""], app) {
    const body = el("div", {}), choices = el("span", {});
    root.append(el("h2", {}, "Decisions"), el("form", { class: "controls" }, choices), body);
    let isChosen = false;
    return {
      async refresh() {
        const doc = await read(["decisions"], { domain, limit: 100 });
        const rows = doc.decisions.map((one) => [clock(one.atSeconds), one.domain, podLink(one.namespace, one.name), nodeLink(one.node), count(one.attempt), count(one.score)]);
        replace(body, table("Recent placements, the newest first", ["at", "domain", "pod", "node", number("attempt"), number("score")], rows, "no pod was placed yet"));
      },
      onOverview(doc) {
        if (isChosen) return;
        isChosen = true;
        const options = [["", "all domains"], ...doc.domains.map((one) => [one.domain, one.domain])];
        replace(choices, choice("domain", options, domain, (value) => { location.hash = `#decisions/${encodeURIComponent(value)}`; }));
      },
    };
  },
};
