// Builds elements. Data of a cluster is inserted as text, never as markup, because names, labels and messages are written by
// tenants. The same characters are escaped as in model/visible_text.py (a test compares both).

const HIDDEN = new RegExp("[" +
  "\\u{0}-\\u{1f}\\u{7f}-\\u{9f}" + // controls
  "\\u{61c}\\u{200e}\\u{200f}\\u{202a}-\\u{202e}\\u{2066}-\\u{2069}" + // bidirectional
  "\\u{ad}\\u{34f}\\u{115f}\\u{1160}\\u{17b4}\\u{17b5}\\u{180b}-\\u{180f}\\u{200b}-\\u{200d}\\u{2060}-\\u{2065}" + // no width
  "\\u{206a}-\\u{206f}\\u{3164}\\u{fe00}-\\u{fe0f}\\u{feff}\\u{ffa0}\\u{fff0}-\\u{fff8}" +
  "\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}" +
  "\\u{600}-\\u{605}\\u{6dd}\\u{70f}\\u{890}\\u{891}\\u{8e2}\\u{fff9}-\\u{fffb}\\u{110bd}\\u{110cd}\\u{13430}-\\u{1343f}" + // formats
  "\\u{2028}\\u{2029}\\u{d800}-\\u{dfff}]", "gu"); // line ends, halves of characters

const TEXT_MAX = 2000;
/** Attributes whose values people see or hear. */
const SHOWN = new Set(["title", "aria-label", "placeholder"]);
/** Property of an element: the attributes with which it was made, including listeners. Reading attributes back would be slow. */
const MADE_WITH = Symbol("attributes");
const SVG = "http://www.w3.org/2000/svg";

/** Escapes hidden characters, and cuts texts with more than `most` characters. @param {unknown} value @param {number} most */
export function visible(value, most = TEXT_MAX) {
  const text = String(value ?? "");
  const cut = text.length > most ? `${text.slice(0, most)}… (${text.length} characters)` : text;
  return cut.replace(HIDDEN, (sign) => {
    const code = sign.codePointAt(0);
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/**
 * Makes an element. Attributes with the value false, null or undefined are omitted; `on*` adds a listener.
 * @param {string} name @param {Record<string, unknown>} attributes @param {...unknown} children elements, lists, or text
 */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Makes an SVG element, like `el`. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(found, attributes, children) {
  for (const key in attributes) assign(found, key, attributes[key]);
  found[MADE_WITH] = attributes;
  found.append(...nodes(children));
  return found;
}

function assign(element, key, value) {
  if (value === false || value === null || value === undefined) element.removeAttribute(key);
  else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
  else if (key === "width%") element.style.width = `${value}%`; // the policy refuses it as an attribute
  else element.setAttribute(key, value === true ? "" : SHOWN.has(key) ? visible(value) : String(value));
}

function nodes(children) {
  return children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false)
    .map((one) => (one instanceof Node ? one : document.createTextNode(visible(one))));
}

/**
 * Replaces the content of a container. The element with the same `data-key` keeps the focus, and what was opened or scrolled stays
 * so. Present elements are kept and changed where they differ, so that the browser lays out and paints only the differences.
 * Therefore `children` must be new elements to which nothing else refers.
 */
export function replace(container, ...children) {
  const focused = container.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const before = new Map([...parts(container)].map(([key, element]) => [key, { isOpen: element.open, scrolled: element.scrollLeft }]));
  const wanted = new DocumentFragment();
  wanted.append(...nodes(children));
  update(container, wanted);
  for (const [key, element] of parts(container)) {
    const was = before.get(key);
    if (element.open !== was?.isOpen) element.open = was?.isOpen ?? false;
    if (was?.scrolled) element.scrollLeft = was.scrolled;
  }
  if (focused === undefined || document.activeElement.dataset.key === focused) return;
  for (const one of container.querySelectorAll("[data-key]")) if (one.dataset.key === focused) one.focus({ preventScroll: true });
}

/** Makes the children of a parent equal to those of `wanted`: changes the child at the same position, or else moves the wanted one there. */
function update(parent, wanted) {
  let old = parent.firstChild;
  for (let one = wanted.firstChild, after; one; one = after) {
    after = one.nextSibling;
    const next = old?.nextSibling ?? null;
    if (!old) parent.append(one);
    else if (!became(old, one)) old.replaceWith(one);
    old = next;
  }
  for (let next; old; old = next) { next = old.nextSibling; old.remove(); }
}

/** Makes an element or a text equal to another one. Returns false if that is impossible, because names or listeners differ. */
function became(old, one) {
  if (old.nodeName !== one.nodeName) return false;
  if (old.nodeType === Node.TEXT_NODE) { if (old.data !== one.data) old.data = one.data; return true; }
  const before = old[MADE_WITH], now = one[MADE_WITH], changed = [];
  for (const key in now) if (before[key] !== now[key]) changed.push(key);
  for (const key in before) if (!(key in now)) changed.push(key);
  if (changed.some((key) => key.startsWith("on"))) return false;
  for (const key of changed) assign(old, key, now[key]);
  old[MADE_WITH] = now;
  update(old, one);
  return true;
}

/** Maps name and number of each element that opens or scrolls to the element. */
function parts(container) {
  const found = new Map(), seen = new Map();
  for (const element of container.querySelectorAll("details, .wide")) {
    const name = element.matches("details") ? element.querySelector("summary").textContent : element.getAttribute("aria-label");
    seen.set(name, (seen.get(name) ?? 0) + 1);
    found.set(`${name} ${seen.get(name)}`, element);
  }
  return found;
}

/** The URL fragment of a view. @param {string[]} parts the view and its arguments */
export const addressOf = (parts) => `#${parts.map((part) => encodeURIComponent(part)).join("/")}`;

/** A link within the page. */
export function link(parts, text, attributes = {}) {
  const href = addressOf(parts);
  return el("a", { href, "data-key": href, ...attributes }, text);
}

export const podLink = (namespace, name) => link(["pod", namespace, name], `${namespace}/${visible(name, 120)}`);
export const nodeLink = (name) => (name ? link(["nodes", name], visible(name, 120)) : "-");

/** A link to the pod NAMESPACE/NAME, as documents of plugins write it. */
export function keyLink(key) {
  const at = key.indexOf("/");
  return at < 0 ? key : podLink(key.slice(0, at), key.slice(at + 1));
}

/** Tables with more columns, and more than this number of texts among them, become a paragraph per row on a narrow screen. */
const COLUMNS_NARROW = 4, TEXTS_NARROW = 2;

/**
 * A table in a container that scrolls, so that the page never scrolls sideways.
 * @param {string} caption what the table shows
 * @param {(string | {name: string, number: boolean})[]} head columns; numbers are aligned to the right
 * @param {unknown[][]} rows cells
 */
export function table(caption, head, rows, empty = "none") {
  const columns = head.map((one) => (typeof one === "string" ? { name: one, number: false } : one));
  const kind = (at) => (columns[at].number ? "number" : null);
  if (!rows.length) return el("section", { class: "empty" }, el("h3", {}, caption), el("p", { class: "soft" }, empty));
  const stacks = columns.length > COLUMNS_NARROW && columns.filter((one) => !one.number).length > TEXTS_NARROW;
  const label = (at) => (stacks ? columns[at].name : null);
  return el("div", { class: stacks ? "wide stacks" : "wide", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, columns.map((one, at) => el("th", { scope: "col", class: kind(at) }, one.name)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, at) => el("td", { class: kind(at), "data-label": label(at) }, cell)))))));
}

export const number = (name) => ({ name, number: true });

/** Named figures, as a list of definitions. @param {[string, unknown][]} pairs */
export const figures = (pairs) =>
  el("dl", { class: "figures" }, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));

/** A select element with its label. @param {[string, string][]} options value and text */
export function choice(label, options, chosen, onchange) {
  const select = el("select", { onchange: () => onchange(select.value) },
    options.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  return el("label", {}, `${label} `, select);
}
