// Plots as SVG: a sparkline, lines with a band over named axes, a heat map of nodes, a histogram. Colours are in the stylesheet.

import { el, svg, visible } from "./dom.js";
import { known, percent, plain } from "./format.js";

/** A small line without axes; `label` describes it for screen readers. @param {number[]} values */
export function sparkline(values, label) {
  const width = 240, height = 36, most = Math.max(1e-9, ...values);
  const points = values.map((value, at) => `${((width * at) / Math.max(1, values.length - 1)).toFixed(1)},${(height - 1 - ((height - 2) * value) / most).toFixed(1)}`);
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
    svg("polyline", { class: "line measured", points: points.join(" ") }));
}

/** Below this width of the window, plots are narrower in their own units, so that their text stays readable. */
const NARROW_PX = 500;
const H = 210, LEFT = 78, RIGHT = 12, TOP = 26, BOTTOM = 40;
const DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const DAY_S = 86400;

/**
 * Lines over labelled points. `lines`: class, name, values. `band`: [low, high]. `mark`: horizontal lines, unless far above the others.
 * @param {{title: string, unit: string, labels: string[], lines: [string, string, number[]][], band?: number[][], bandName?: string, mark?: number | number[], markName?: string | string[], every?: number, now?: number, axis?: string}} what
 */
export function linePlot({ title, unit, labels, lines, band, bandName = "band", mark, markName = "available", every, now, axis = "time" }) {
  const W = innerWidth < NARROW_PX ? 420 : 960;
  const values = [...lines.flatMap(([, , points]) => points), ...(band ? band.flat() : [])].filter(known);
  const most = values.reduce((found, value) => Math.max(found, value), 0) || 1, size = labels.length;
  const marks = [mark].flat().map((value, at) => [value, [markName].flat()[at]]).filter(([value]) => known(value) && value > 0 && value <= 1.6 * most);
  const top = Math.max(most, ...marks.map(([value]) => value));
  const x = (at) => LEFT + ((W - LEFT - RIGHT) * (at + 0.5)) / size, y = (value) => TOP + (H - TOP - BOTTOM) * (1 - value / top);
  const step = every ?? Math.ceil(size / (W / 120)), parts = [];
  for (const share of [0, 0.5, 1]) {
    parts.push(svg("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(share * top), y2: y(share * top) }),
      svg("text", { x: LEFT - 6, y: y(share * top) + 4, "text-anchor": "end" }, plain(share * top)));
  }
  for (let at = 0; at < size; at += step) {
    parts.push(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: TOP, y2: H - BOTTOM }), svg("text", x(at) > W - 50 ? { x: W - RIGHT, y: H - BOTTOM + 16, "text-anchor": "end" } : { x: x(at) + 3, y: H - BOTTOM + 16 }, labels[at]));
  }
  const shading = lines.some(([name]) => name === "predicted") ? "band" : "band measuredband";
  if (band) parts.push(svg("path", { class: shading, d: bandPath(band[0], band[1], x, y) }));
  for (const [value, name] of marks) {
    parts.push(svg("line", { class: "limit", x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value) }), svg("text", { x: W - RIGHT, y: y(value) - 3, "text-anchor": "end" }, name));
  }
  if (known(now)) parts.push(svg("line", { class: "now", x1: x(now), x2: x(now), y1: TOP, y2: H - BOTTOM }), svg("text", { x: x(now) + 3, y: TOP - 4 }, "now"));
  for (const [kind, , points] of lines) parts.push(svg("path", { class: `line ${kind}`, d: path(points, x, y) }));
  parts.push(svg("text", { x: 4, y: 12 }, unit), svg("text", { x: W - RIGHT, y: H - 4, "text-anchor": "end" }, axis));
  const names = lines.map(([kind, name]) => el("span", { class: "key" }, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), ` ${name} `));
  const shade = band ? el("span", { class: "key" }, el("span", { class: `swatch ${shading}`, "aria-hidden": "true" }), ` ${bandName} `) : null;
  return el("figure", {}, el("figcaption", {}, title), svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title }, parts),
    el("p", { class: "soft keys" }, names, shade));
}

/** A week of slots, or the days from `startSeconds` on. Measured and predicted values have different colours. */
export function weekPlot({ title, unit, predicted, measured, low, high, bandName, mark, slotSeconds, nowSeconds, startSeconds, zone }) {
  const points = predicted ?? measured, perDay = DAY_S / slotSeconds;
  const day = (at) => (startSeconds === undefined ? DAYS[Math.floor(at / perDay) % 7]
    : new Date(1000 * (startSeconds + slotSeconds * at)).toLocaleDateString("en-GB", { weekday: "short", day: "numeric", timeZone: zone }));
  return linePlot({
    title, unit, labels: points.map((_, at) => day(at)), lines: [predicted ? ["predicted", "predicted peak", predicted] : ["measured", "measured mean", measured]],
    band: low && high ? [low, high] : undefined, bandName, mark, markName: "capacity", every: perDay, axis: `day of the week, ${zone}`,
    now: nowSeconds === undefined ? undefined : slotNow(nowSeconds, slotSeconds, zone),
  });
}

function slotNow(seconds, slotSeconds, zone) {
  const parts = Object.fromEntries(new Intl.DateTimeFormat("en-GB", { timeZone: zone, weekday: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" })
    .formatToParts(new Date(1000 * seconds)).map((one) => [one.type, one.value]));
  return Math.floor((DAYS.indexOf(parts.weekday) * DAY_S + 3600 * parts.hour + 60 * parts.minute) / slotSeconds);
}

function path(values, x, y) {
  let text = "", pen = "M";
  values.forEach((value, at) => {
    if (!known(value)) { pen = "M"; return; }
    text += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  });
  return text;
}

function bandPath(low, high, x, y) {
  const at = low.map((_, slot) => slot).filter((slot) => known(low[slot]) && known(high[slot]));
  if (!at.length) return "";
  const upper = at.map((slot) => `${x(slot).toFixed(1)} ${y(high[slot]).toFixed(1)}`);
  const lower = [...at].reverse().map((slot) => `${x(slot).toFixed(1)} ${y(low[slot]).toFixed(1)}`);
  return `M${[...upper, ...lower].join("L")}Z`;
}

const level = (share) => (known(share) ? Math.max(0, Math.min(10, Math.floor(share * 10 + 1e-9) - (share === 1 ? 1 : 0))) : "none");

/**
 * One cell per node, coloured by its share, which the label of the cell has, too. One tab stop; arrow keys move between cells.
 * @param {{name: string, share: number | null, note: string}[]} cells @param {string} title what the share is
 * @param {boolean} isLinked each cell opens its node
 */
export function heatMap(cells, title, isLinked = true) {
  if (!cells.length) return el("p", { class: "soft" }, "no node");
  const links = cells.map(({ name, share, note }, at) => {
    const text = `${visible(name, 120)}: ${percent(share)}${note ? `, ${visible(note, 80)}` : ""}`;
    const href = isLinked ? `#nodes/${encodeURIComponent(name)}` : null;
    return el(isLinked ? "a" : "span", { class: `cell heat${level(share)}`, href, role: isLinked ? null : "img", tabindex: at ? "-1" : "0", "aria-label": text, title: text, "data-key": `cell ${name}` });
  });
  const scale = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map((at) => el("span", { class: `cell heat${at}` }));
  return el("section", { class: "heatmap", "aria-label": `Heat map: ${title}` }, el("h3", {}, title),
    el("div", { class: "cells", onkeydown: moveInCells }, links),
    el("p", { class: "soft keys" }, "0 % ", el("span", { class: "scale", "aria-hidden": "true" }, scale), " over 100 %"));
}

function moveInCells(event) {
  const links = [...event.currentTarget.children];
  const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(links), ArrowUp: -columns(links) }[event.key];
  const next = by && links[links.indexOf(document.activeElement) + by];
  if (!next) return;
  event.preventDefault();
  for (const one of links) one.tabIndex = one === next ? 0 : -1;
  next.focus();
}

function columns(links) {
  const top = links[0].offsetTop, next = links.findIndex((one) => one.offsetTop > top);
  return next < 0 ? links.length : next;
}

/** Number of nodes per tenth of the share; the last bar is for nodes with a share over 100 %. @param {number[]} buckets */
export function histogram(buckets, title) {
  const most = Math.max(1, ...buckets), width = 480, height = 70, each = width / buckets.length;
  const words = buckets.map((nodes, at) => `${at < 10 ? `${10 * at} to ${10 * at + 10} %` : "over 100 %"}: ${nodes}`).join(", ");
  const bars = buckets.map((nodes, at) => [
    svg("rect", { class: `heat${at}`, x: at * each + 1, width: each - 2, y: height - 14 - (44 * nodes) / most, height: (44 * nodes) / most }),
    svg("text", { x: (at + 0.5) * each, y: height - 17 - (44 * nodes) / most, "text-anchor": "middle" }, nodes || ""),
    svg("text", { x: (at + 0.5) * each, y: height - 2, "text-anchor": "middle" }, at < 10 ? `${10 * at}` : ">100 %"),
  ]);
  return el("figure", { class: "histogram" }, el("figcaption", {}, title, el("span", { class: "soft" }, ", share in %")),
    svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${words}` }, bars));
}
