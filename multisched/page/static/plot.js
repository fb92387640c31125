// Plots as SVG: a sparkline, and lines with a band over named axes. Colours come from the stylesheet.

import { el, svg } from "./dom.js";

/** A small line without axes; `label` says what it shows. @param {number[]} values */
export function sparkline(values, label) {
  const width = 240, height = 36, most = Math.max(1e-9, ...values);
  const points = values.map((value, at) => `${((width * at) / Math.max(1, values.length - 1)).toFixed(1)},${(height - 1 - ((height - 2) * value) / most).toFixed(1)}`);
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
    svg("polyline", { class: "line measured", points: points.join(" ") }));
}
