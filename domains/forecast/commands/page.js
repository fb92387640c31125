// Draws the forecast report from the document in the page. Names are written as text, never as markup. Nothing is fetched.
// Joined with the modules of the web page, whose plots and tables it uses.
(async () => {
  const doc = JSON.parse(document.getElementById("document").textContent);
  const NAN = 255, byId = (id) => document.getElementById(id);
  const slots = doc.slots, perDay = DAY_S / doc.slotSeconds;
  const slotName = (slot) => {
    const second = slot * doc.slotSeconds, two = (n) => String(Math.floor(n)).padStart(2, "0");
    return `${DAYS[Math.floor(second / DAY_S)]} ${two((second % DAY_S) / 3600)}:${two((second % 3600) / 60)}`;
  };

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
    const stated = doc.services[service].dimensions[dimension], name = doc.dimensions[dimension];
    const week = past ? past.weekSlots : Array.from({ length: slots }, (_, at) => at);
    const over = (values) => week.map((slot) => values[slot]);
    const peak = over(curve(0, service, dimension)), low = over(curve(1, service, dimension));
    const high = over(curve(2, service, dimension));
    const mean = past ? Array.from(measured(0, service, dimension)) : [], top = past ? Array.from(measured(1, service, dimension)) : [];
    const title = `${name}: predicted peak ${measure(name, stated.peak)} at ${slotName(stated.slot)}, mean ${measure(name, stated.mean)}, from ` +
      `${stated.origin}${stated.error === null ? "" : `, error ${(100 * stated.error).toFixed(1)} %`}`;
    const begins = week.map((slot, at) => [slot, at]).filter(([slot]) => slot % perDay === 0).map(([, at]) => at);
    const lines = [["predicted", "predicted peak", peak], ...(past ? [["measuredtop", "highest measured", top], ["measured", "mean measured", mean]] : [])];
    return el("section", {}, linePlot({ title, unit: unit(name), lines, labels: week.map((_, at) => dayName(at)), band: [low, high],
      bandName: "band of new samples", every: perDay * Math.ceil(begins.length / 8), axis: `day, ${doc.zone}` }), byDay(name, begins, week, peak, high, mean, top));
  };
  const byDay = (name, begins, week, peak, high, mean, top) => {
    const details = el("details", {}, el("summary", {}, "figures by day"));
    details.addEventListener("toggle", () => {
      if (!details.open || details.children.length > 1) return;
      const head = ["day", "predicted peak", ...(past ? ["highest measured", "mean", "slots above the band"] : [])];
      const rows = begins.map((begin, number) => {
        const end = begins[number + 1] ?? week.length, part = (list) => list.slice(begin, end);
        const row = [dayName(begin), measure(name, highest([part(peak)]))];
        if (past) {
          const means = part(mean).filter((value) => !Number.isNaN(value));
          row.push(means.length ? measure(name, highest([part(top)])) : "-");
          row.push(means.length ? measure(name, means.reduce((sum, value) => sum + value, 0) / means.length) : "-");
          row.push(String(part(top).filter((value, at) => value > high[begin + at]).length));
        }
        return row;
      });
      details.append(table(`${name} by day`, head.map((one, at) => (at ? number(one) : one)), rows));
    });
    return details;
  };
  const show = () => {
    const place = byId("plots"), service = Number(byId("service").value);
    place.replaceChildren();
    if (!doc.services.length || byId("service").value === "") return;
    doc.services[service].dimensions.forEach((stated, dimension) => stated && place.append(plot(service, dimension)));
  };
  const listed = () => {
    const wanted = byId("search").value.toLowerCase(), before = byId("service").value;
    const found = doc.services.map((one, at) => [one.service, at]).filter(([name]) => name.toLowerCase().includes(wanted));
    byId("service").replaceChildren(...found.map(([name, at]) => el("option", { value: at }, name)));
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
  const heat = () => {
    const only = Number(byId("dimension").value), when = new FormData(byId("look")).get("when");
    const slot = when === "now" ? fleet.nowSlot : Number(byId("slot").value);
    byId("slotname").textContent = slotName(Number(byId("slot").value));
    const cells = fleet.nodes.map((one, node) => {
      const found = when === "peak" ? fullest(node, only) : at(node, only, slot);
      const where = found.dimension < 0 ? "no capacity stated" : `${fleet.dimensions[found.dimension]} at ${slotName(found.slot)}`;
      return { name: one.node, share: found.share, note: `${where}; ${plural(one.pods, "pod")}` };
    });
    const title = when === "peak" ? "predicted use / capacity, at each node's own peak" : `predicted use / capacity at ${slotName(slot)}`;
    byId("heat").replaceChildren(heatMap(cells, title, false));
  };
  byId("look").addEventListener("input", (event) => {
    if (event.target.id === "slot") byId("look").elements.when.value = "slot";
    heat();
  });
  byId("look").addEventListener("submit", (event) => event.preventDefault());

  // -- what-if ----------------------------------------------------------------------------------------------------------
  byId("which").replaceChildren(...doc.services.map((one, at) => el("option", { value: at }, one.service)));
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
    const text = `${done} ${verb} of ${name}${done < Math.abs(asked) ? ` (${sign > 0 ? "no node can take another" : "no replica is left"})` : ""}. ` +
      `Fullest node before: ${was}; after: ${topNode()}. Each replica is ${sign > 0 ? "placed where the highest predicted use stays lowest" :
        "removed from the fullest node that has one"}. The scheduler considers more than that: use multisched explain --what-if.`;
    const rows = [...changed].map(([node, count]) =>
      [fleet.nodes[node].node, `${count > 0 ? "+" : ""}${count}`, worstText(before.get(node)), worstText(fullest(node))]);
    replace(byId("outcome"), el("p", {}, text), table("Changed nodes", ["node", number("replicas"), "fullest before", "after"], rows));
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
