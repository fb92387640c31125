// Draws the forecast report from the document in the page. Names are written as text, never as markup. Nothing is fetched.
"use strict";
(async () => {
  const doc = JSON.parse(document.getElementById("document").textContent);
  const NS = "http://www.w3.org/2000/svg", DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], NAN = 255;
  const byId = (id) => document.getElementById(id);
  const slots = doc.slots, perDay = 86400 / doc.slotSeconds;

  const element = (name, attributes = {}, text = "") => {
    const found = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    found.textContent = text;
    return found;
  };
  const drawn = (parent, name, attributes = {}, text = "") => {
    const found = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    if (text) found.textContent = text;
    return parent.appendChild(found);
  };
  const slotName = (slot) => {
    const second = slot * doc.slotSeconds, two = (n) => String(Math.floor(n)).padStart(2, "0");
    return `${DAYS[Math.floor(second / 86400)]} ${two((second % 86400) / 3600)}:${two((second % 3600) / 60)}`;
  };
  const amount = (value) => {
    for (const [size, prefix] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= size * 0.9995) return `${+(value / size).toPrecision(3)}${prefix}`;
    return `${+value.toPrecision(3)}`;
  };
  const percent = (share) => (Number.isNaN(share) ? "-" : share < 100 ? `${Math.round(100 * share)} %` : "> 9999 %");

  // Codes: base64 of deflated differences along runs of `length`.
  const unpack = async (text, length) => {
    const raw = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
    const codes = new Uint8Array(await new Response(stream).arrayBuffer());
    for (let at = 0; at < codes.length; at++) if (at % length) codes[at] = codes[at] + codes[at - 1];
    return codes;
  };
  const curves = await unpack(doc.curves.data, slots);
  const size = doc.services.length * doc.dimensions.length;
  const curve = (which, service, dimension) => {
    const series = service * doc.dimensions.length + dimension, begin = (which * size + series) * slots;
    const scale = doc.curves.scale[service][dimension];
    return Float64Array.from(curves.subarray(begin, begin + slots), (code) => (code === NAN ? NaN : code * scale));
  };
  const past = doc.history, pastSlots = past ? past.weekSlots.length : 0;
  const pastCodes = past ? await unpack(past.data, pastSlots) : null;
  const measured = (which, service, dimension) => {
    const series = service * doc.dimensions.length + dimension, begin = (which * size + series) * pastSlots;
    const scale = past.scale[service][dimension];
    return Float64Array.from(pastCodes.subarray(begin, begin + pastSlots), (code) => (code === NAN ? NaN : code * scale));
  };
  document.documentElement.classList.add("scripts");

  // -- services ---------------------------------------------------------------------------------------------------------
  const W = 960, H = 150, L = 52, R = 8, T = 8, B = 20;
  const path = (values, x, y) => {
    let text = "", pen = "M";
    values.forEach((value, at) => {
      if (Number.isNaN(value)) pen = "M";
      else { text += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`; pen = "L"; }
    });
    return text;
  };
  const bandPath = (low, high, x, y) => {
    let text = "", from = 0;
    const known = (at) => !Number.isNaN(low[at]) && !Number.isNaN(high[at]);
    while (from < low.length) {
      if (!known(from)) { from++; continue; }
      let to = from;
      while (to < low.length && known(to)) to++;
      for (let at = from; at < to; at++) text += `${at === from ? "M" : "L"}${x(at).toFixed(1)} ${y(high[at]).toFixed(1)}`;
      for (let at = to - 1; at >= from; at--) text += `L${x(at).toFixed(1)} ${y(low[at]).toFixed(1)}`;
      text += "Z";
      from = to;
    }
    return text;
  };
  const highest = (lists) => {
    let found = 0;
    for (const list of lists) for (const value of list) if (value > found) found = value;
    return found;
  };
  const dayName = (at) => {
    if (!past) return DAYS[Math.floor(at / perDay)];
    const moment = new Date(1000 * (past.startSeconds + past.slotSeconds * at));
    const how = { timeZone: doc.zone, weekday: "short", day: "numeric", month: "short" };
    try { return moment.toLocaleDateString("en-GB", how); } catch { return DAYS[Math.floor(past.weekSlots[at] / perDay)]; }
  };
  const plot = (service, dimension) => {
    const known = doc.services[service].dimensions[dimension], name = doc.dimensions[dimension];
    const week = past ? past.weekSlots : Array.from({ length: slots }, (_, at) => at);
    const over = (values) => Float64Array.from(week, (slot) => values[slot]);
    const peak = over(curve(0, service, dimension)), low = over(curve(1, service, dimension));
    const high = over(curve(2, service, dimension));
    const mean = past ? measured(0, service, dimension) : [], top = past ? measured(1, service, dimension) : [];
    const most = highest([peak, high, mean, top]) || 1, count = week.length;
    const x = (at) => L + ((W - L - R) * (at + 0.5)) / count, y = (value) => T + (H - T - B) * (1 - value / most);
    const summary = `${name}: peak ${amount(known.peak)} at ${slotName(known.slot)}, mean ${amount(known.mean)}, from ` +
      `${known.origin}${known.error === null ? "" : `, error ${(100 * known.error).toFixed(1)} %`}`;
    const box = element("section");
    box.append(element("h3", {}, summary));
    const svg = drawn(box, "svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": summary });
    for (const part of [0, 0.5, 1]) {
      drawn(svg, "line", { class: "grid", x1: L, x2: W - R, y1: y(part * most), y2: y(part * most) });
      drawn(svg, "text", { x: L - 5, y: y(part * most) + 4, "text-anchor": "end" }, amount(part * most));
    }
    const begins = week.map((slot, at) => [slot, at]).filter(([slot]) => slot % perDay === 0).map(([, at]) => at);
    begins.forEach((at, number) => {
      drawn(svg, "line", { class: "grid", x1: x(at), x2: x(at), y1: T, y2: H - B });
      if (number % Math.ceil(begins.length / 8) === 0) drawn(svg, "text", { x: x(at) + 3, y: H - 6 }, dayName(at));
    });
    drawn(svg, "path", { class: "band", d: bandPath(low, high, x, y) });
    drawn(svg, "path", { class: "peak", d: path(peak, x, y) });
    if (past) {
      drawn(svg, "path", { class: "top", d: path(top, x, y) });
      drawn(svg, "path", { class: "mean", d: path(mean, x, y) });
    }
    box.append(figures(begins, week, peak, high, mean, top));
    return box;
  };
  const figures = (begins, week, peak, high, mean, top) => {
    const details = element("details");
    details.append(element("summary", {}, "figures by day"));
    details.addEventListener("toggle", () => {
      if (!details.open || details.children.length > 1) return;
      const head = ["day", "predicted peak", ...(past ? ["highest measured", "mean", "slots above the band"] : [])];
      const rows = begins.map((begin, number) => {
        const end = begins[number + 1] ?? week.length, part = (list) => Array.from(list).slice(begin, end);
        const row = [dayName(begin), amount(highest([part(peak)]))];
        if (past) {
          const means = part(mean).filter((value) => !Number.isNaN(value));
          row.push(means.length ? amount(highest([part(top)])) : "-");
          row.push(means.length ? amount(means.reduce((sum, value) => sum + value, 0) / means.length) : "-");
          row.push(String(part(top).filter((value, at) => value > high[begin + at]).length));
        }
        return row;
      });
      details.append(table(head, rows));
    });
    return details;
  };
  const table = (head, rows) => {
    const box = element("div", { class: "wide" }), found = element("table"), top = element("tr"), body = element("tbody");
    for (const name of head) top.append(element("th", { scope: "col" }, name));
    for (const row of rows) {
      const line = element("tr");
      row.forEach((cell, at) => line.append(at ? element("td", {}, cell) : element("th", { scope: "row" }, cell)));
      body.append(line);
    }
    const thead = element("thead");
    thead.append(top);
    found.append(thead, body);
    box.append(found);
    return box;
  };
  const show = () => {
    const place = byId("plots"), service = Number(byId("service").value);
    place.replaceChildren();
    if (!doc.services.length || byId("service").value === "") return;
    const legend = element("p");
    const key = (colour, text) => {
      legend.append(element("span", { class: "key", style: `background:var(${colour})` }), text);
    };
    key("--band", "band");
    key("--peak", "predicted peak");
    if (past) { key("--mean", "mean measured"); key("--top", "highest measured"); }
    place.append(legend);
    doc.services[service].dimensions.forEach((known, dimension) => known && place.append(plot(service, dimension)));
  };
  const listed = () => {
    const wanted = byId("search").value.toLowerCase(), before = byId("service").value;
    const found = doc.services.map((one, at) => [one.service, at]).filter(([name]) => name.toLowerCase().includes(wanted));
    byId("service").replaceChildren(...found.map(([name, at]) => element("option", { value: at }, name)));
    if (found.some(([, at]) => String(at) === before)) byId("service").value = before;
    show();
  };
  byId("search").addEventListener("input", listed);
  byId("service").addEventListener("change", show);
  listed();

  // -- nodes ------------------------------------------------------------------------------------------------------------
  const fleet = doc.nodes;
  if (!fleet) return;
  const codes = await unpack(fleet.data, slots), D = fleet.dimensions.length, N = fleet.nodes.length;
  const moved = new Map(); // "node:dimension" -> amounts that what-if adds
  const base = (node, dimension) => {
    const begin = (node * D + dimension) * slots, scale = fleet.scale[node][dimension];
    return (slot) => codes[begin + slot] * scale;
  };
  const amountAt = (node, dimension, slot) => {
    const more = moved.get(`${node}:${dimension}`);
    return Math.max(0, base(node, dimension)(slot) + (more ? more[slot] : 0));
  };
  // With a capacity of zero any use exceeds it; without a stated capacity there is no share.
  const capacityOf = (node, dimension) => {
    const stated = fleet.nodes[node].capacity[dimension];
    return stated === null ? 0 : Math.max(stated, 1e-9);
  };
  // Returns the peak of a node with `extra` (amounts by dimension, or null) added: {share, dimension, slot}.
  const fullest = (node, only = -1, extra = null) => {
    const worst = { share: NaN, dimension: -1, slot: 0 };
    for (let d = 0; d < D; d++) {
      const capacity = capacityOf(node, d), scale = fleet.scale[node][d], begin = (node * D + d) * slots;
      if (!capacity || (only >= 0 && d !== only)) continue;
      const more = moved.get(`${node}:${d}`), own = extra && extra[d];
      for (let slot = 0; slot < slots; slot++) {
        const share = Math.max(0, codes[begin + slot] * scale + (more ? more[slot] : 0) + (own ? own[slot] : 0)) / capacity;
        if (!(share <= worst.share)) Object.assign(worst, { share, dimension: d, slot });
      }
    }
    return worst;
  };
  const at = (node, only, slot) => {
    const worst = { share: NaN, dimension: -1, slot };
    for (let d = 0; d < D; d++) {
      if (!capacityOf(node, d) || (only >= 0 && d !== only)) continue;
      const share = amountAt(node, d, slot) / capacityOf(node, d);
      if (!(share <= worst.share)) Object.assign(worst, { share, dimension: d });
    }
    return worst;
  };
  const CLASSES = [[0.4, "below 40 %"], [0.6, "40 to 60 %"], [0.8, "60 to 80 %"], [1, "80 to 100 %"], [Infinity, "more than it has"]];
  const classOf = (share) => (Number.isNaN(share) ? 5 : CLASSES.findIndex(([end]) => share <= end));
  const heat = () => {
    const only = Number(byId("dimension").value), when = new FormData(byId("look")).get("when");
    const slot = when === "now" ? fleet.nowSlot : Number(byId("slot").value);
    byId("slotname").textContent = slotName(Number(byId("slot").value));
    const side = N > 1500 ? 12 : 26, across = Math.floor(960 / side), high = Math.ceil(N / across) * side;
    const svg = document.createElementNS(NS, "svg");
    const summary = when === "peak" ? "at each node's own peak" : `at ${slotName(slot)}`;
    svg.setAttribute("viewBox", `0 0 960 ${high}`);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `Heat map of ${N} nodes ${summary}; the table of nodes has the figures`);
    const counts = [0, 0, 0, 0, 0, 0];
    for (let node = 0; node < N; node++) {
      const found = when === "peak" ? fullest(node, only) : at(node, only, slot), kind = classOf(found.share);
      counts[kind]++;
      const x = (node % across) * side, y = Math.floor(node / across) * side;
      const where = found.dimension < 0 ? "no capacity stated" :
        `${fleet.dimensions[found.dimension]} ${percent(found.share)} at ${slotName(found.slot)}`;
      const group = drawn(svg, "g");
      drawn(group, "title", {}, `${fleet.nodes[node].node}: ${where}; ${fleet.nodes[node].pods} pods`);
      drawn(group, "rect", { class: `h${kind}`, x, y, width: side, height: side });
      if (side > 20 && !Number.isNaN(found.share))
        drawn(group, "text", { class: `t${kind}`, x: x + side / 2, y: y + side / 2 + 3 },
          found.share < 10 ? String(Math.round(100 * found.share)) : ">999");
    }
    byId("heat").replaceChildren(svg);
    const legend = byId("legend");
    legend.replaceChildren();
    CLASSES.forEach(([, text], kind) => {
      legend.append(element("span", { class: `key h${kind}` }), `${text}: ${counts[kind]} nodes`);
    });
    if (counts[5]) legend.append(element("span", { class: "key h5" }), `no capacity stated: ${counts[5]}`);
  };
  byId("look").addEventListener("input", (event) => {
    if (event.target.id === "slot") byId("look").elements.when.value = "slot";
    heat();
  });
  byId("look").addEventListener("submit", (event) => event.preventDefault());

  // -- what-if ----------------------------------------------------------------------------------------------------------
  byId("which").replaceChildren(...doc.services.map((one, at) => element("option", { value: at }, one.service)));
  const standing = fleet.nodes.map((one) => new Map(one.services));
  const curvesOf = (service, sign) => fleet.dimensions.map((name) => {
    const place = doc.dimensions.indexOf(name);
    if (place < 0 || !doc.services[service].dimensions[place]) return null;
    return curve(0, service, place).map((value) => (Number.isNaN(value) ? 0 : sign * value));
  });
  const put = (node, own) => own.forEach((values, d) => {
    if (!values) return;
    const key = `${node}:${d}`, before = moved.get(key);
    moved.set(key, before ? before.map((value, slot) => value + values[slot]) : values.slice());
  });
  // Chooses the node that gets (or loses) the next replica: the one whose peak stays lowest; to lose one, the fullest with one.
  const choose = (shares, service, sign) => {
    let found = -1;
    for (let node = 0; node < N; node++) {
      if (sign < 0 && !standing[node].get(service)) continue;
      if (Number.isNaN(shares[node])) continue;
      if (found < 0 || (sign > 0 ? shares[node] < shares[found] : shares[node] > shares[found])) found = node;
    }
    return found;
  };
  const worstText = (worst) => worst.dimension < 0 ? "-" :
    `${fleet.dimensions[worst.dimension]} ${percent(worst.share)} at ${slotName(worst.slot)}`;
  const topNode = () => {
    let found = null;
    for (let node = 0; node < N; node++) {
      const worst = fullest(node);
      if (!found || worst.share > found.worst.share) found = { node, worst };
    }
    return found ? `${fleet.nodes[found.node].node}, ${worstText(found.worst)}` : "-";
  };
  const tryOut = () => {
    const asked = Math.trunc(Number(byId("count").value)) || 0, service = Number(byId("which").value);
    const sign = asked < 0 ? -1 : 1, own = curvesOf(service, sign), before = new Map(), changed = new Map(), was = topNode();
    const shares = fleet.nodes.map((_, node) => fullest(node, -1, sign > 0 ? own : null).share);
    let done = 0;
    for (; done < Math.min(200, Math.abs(asked)); done++) {
      const node = choose(shares, service, sign);
      if (node < 0) break;
      if (!before.has(node)) before.set(node, fullest(node));
      put(node, own);
      standing[node].set(service, (standing[node].get(service) || 0) + sign);
      changed.set(node, (changed.get(node) || 0) + sign);
      shares[node] = fullest(node, -1, sign > 0 ? own : null).share;
    }
    const verb = sign > 0 ? "more" : "fewer", name = doc.services[service].service;
    const text = `${done} ${verb} of ${name}${done < Math.abs(asked) ? ` (no more ${sign > 0 ? "nodes take it" : "are there"})` : ""}. ` +
      `Fullest node before: ${was}; then: ${topNode()}. Each replica ${sign > 0 ? "goes where the fullest moment stays lowest" :
        "leaves the fullest node that has one"}; the scheduler heeds more than that: multisched explain --what-if asks it.`;
    const rows = [...changed].map(([node, count]) =>
      [fleet.nodes[node].node, `${count > 0 ? "+" : ""}${count}`, worstText(before.get(node)), worstText(fullest(node))]);
    byId("outcome").replaceChildren(element("p", {}, text), table(["node", "replicas", "fullest before", "then"], rows));
    heat();
  };
  byId("whatif").addEventListener("submit", (event) => { event.preventDefault(); tryOut(); });
  byId("back").addEventListener("click", () => {
    moved.clear();
    fleet.nodes.forEach((one, node) => { standing[node] = new Map(one.services); });
    byId("outcome").replaceChildren();
    heat();
  });
  heat();
})();
