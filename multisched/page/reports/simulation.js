// Draws the plots of a simulation, with a line per policy. All values are results of the simulation, not predictions.

const LABELS_MAX = 12;

for (const { place, plots } of JSON.parse(document.getElementById("document").textContent)) {
  document.getElementById(place).append(...plots.map(({ title, unit, axis, lines, labels, marks }) => {
    const size = lines[0]?.values.length ?? 0, each = size / labels.length;
    return linePlot({
      title, unit, axis, lines: lines.map(({ name, values }, at) => [`policy${at % 8}`, name, values]),
      labels: Array.from({ length: size }, (_, at) => labels[Math.floor(at / each)]),
      every: Math.max(1, Math.round(each * Math.ceil(labels.length / LABELS_MAX))),
      mark: marks, markName: marks.map((one) => plain(one)),
    });
  }));
}
