// Find: the pods and nodes whose names contain a text. A single match, or the only exact match, is opened at once.

import { read } from "../api.js";
import { addressOf, el, nodeLink, podLink, replace, table, visible } from "../dom.js";
import { plural } from "../format.js";

export const find = {
  name: "find", title: "Find", every: 5_000, within: "overview",
  open(root, args) {
    const [text = ""] = args;
    const body = el("div", {});
    let isFirst = true;
    root.append(el("h2", {}, `Names with ${visible(text, 120)}`), body);
    return {
      async refresh() {
        const doc = await read(["overview", "find"], { text });
        const only = isFirst && opened(doc, text);
        isFirst = false;
        if (only) location.replace(addressOf(only));
        else replace(body, gone(doc, text), found("Pods", "pod", doc.pods.map(([namespace, name]) => [podLink(namespace, name)]), doc.podsTotal), found("Nodes", "node", doc.nodes.map((name) => [nodeLink(name)]), doc.nodesTotal));
      },
    };
  },
};

/** The view of the single or the only exact match; null if there is none. Names equal to the text are first in the document. */
function opened(doc, text) {
  const [pod] = doc.pods, [node] = doc.nodes;
  if (node === text) return ["nodes", node];
  if (pod && (pod.join("/") === text || (pod[1] === text && doc.pods[1]?.[1] !== text))) return ["pod", ...pod];
  if (doc.podsTotal + doc.nodesTotal === 1) return pod ? ["pod", ...pod] : ["nodes", node];
  return null;
}

/** A link to a pod that does not exist now: its last attempt may still be recorded. */
function gone(doc, text) {
  const [namespace, name] = text.split("/");
  return name && !doc.podsTotal && el("p", {}, "No pod has this name now. If it existed lately, ", podLink(namespace, name), " shows the last attempt to place it.");
}

function found(caption, noun, rows, total) {
  return [
    table(caption, [noun], rows, `no ${noun} has a name with this text`),
    total > rows.length && el("p", { class: "soft" }, `${plural(total - rows.length, `more ${noun}`)} not shown; write more of the name`),
  ];
}
