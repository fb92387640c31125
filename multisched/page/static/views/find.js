// Find: the pods and nodes whose names contain a text; one that is the only one, or has exactly this name, is opened.

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

/** The view of what was meant, if that is clear; the first names of the document are those that are equal to the text. */
function opened(doc, text) {
  const [pod] = doc.pods, [node] = doc.nodes;
  if (node === text) return ["nodes", node];
  if (pod && (pod.join("/") === text || (pod[1] === text && doc.pods[1]?.[1] !== text))) return ["pod", ...pod];
  if (doc.podsTotal + doc.nodesTotal === 1) return pod ? ["pod", ...pod] : ["nodes", node];
  return null;
}

/** A pod that is gone may have been decided about lately. */
function gone(doc, text) {
  const [namespace, name] = text.split("/");
  return name && !doc.podsTotal && el("p", {}, "No pod has this name now: ", podLink(namespace, name), " shows the last attempt to place it, if it was lately.");
}

function found(caption, noun, rows, total) {
  return [
    table(caption, [noun], rows, `no ${noun} has this in its name`),
    total > rows.length && el("p", { class: "soft" }, `${plural(total - rows.length, `more ${noun}`)} not shown; write more of the name`),
  ];
}
