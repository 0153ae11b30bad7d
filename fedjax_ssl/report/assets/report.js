"use strict";
// The page is complete without this file: it sorts, filters and draws what the tables say.
const data = JSON.parse(document.getElementById("payload").textContent);
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const COLOURS = 7, DASHES = ["", "7 4", "2 3", "9 3 2 3"];
const SHAPES = [
  (x, y) => `M${x - 3.4},${y}a3.4,3.4 0 1,0 6.8,0a3.4,3.4 0 1,0 -6.8,0`,
  (x, y) => `M${x - 3},${y - 3}h6v6h-6z`,
  (x, y) => `M${x},${y - 4}l4,7h-8z`,
  (x, y) => `M${x},${y - 4.2}l4.2,4.2l-4.2,4.2l-4.2,-4.2z`,
];
const shown = new Map(); // number of a group in the charts -> its look; the first ones have colours of their own
let metric = data.metric;

// Numbers -----------------------------------------------------------------------------------------------------------
const plain = (value) => {
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(1).replace("e+", "e");
  return Number(value.toPrecision(4)).toLocaleString("en-US");
};
function prefixed(value, unit) {
  const power = value >= 1000 ? Math.min(4, Math.floor(Math.log10(value) / 3)) : 0;
  return `${Number((value / 1000 ** power).toPrecision(3))} ${["", "k", "M", "G", "T"][power]}${unit}`.trim();
}
const written = (value, unit) => {
  if (value === null) return "-";
  if (unit === "%") return Number((100 * value).toFixed(1)).toString();
  return unit === "bytes" ? prefixed(value, "B") : plain(value);
};
const suffix = (unit) => (unit === "%" ? " (%)" : unit === "s" ? " (s)" : "");

// SVG ---------------------------------------------------------------------------------------------------------------
function add(parent, name, attributes = {}, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return parent.appendChild(node);
}
const look = (index) => ({
  colour: `var(--c${index % COLOURS})`,
  dash: DASHES[Math.floor(index / COLOURS) % DASHES.length],
  shape: SHAPES[index % SHAPES.length],
});
function swatch(host, index) {
  host.replaceChildren();
  if (index === undefined) return;
  const { colour, dash, shape } = look(index);
  const svg = add(host, "svg", { width: 30, height: 14, viewBox: "0 0 30 14", "aria-hidden": "true" });
  add(svg, "path", { d: "M1,7H29", stroke: colour, "stroke-width": 2.2, "stroke-dasharray": dash });
  add(svg, "path", { d: shape(15, 7), fill: colour });
}
function ticks(low, high, log, count, whole = false) {
  if (!(high > low)) return [low];
  if (log) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const factor of high / low < 50 ? [1, 2, 5] : [1]) found.push(factor * 10 ** power);
    const inside = found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    const every = Math.ceil(inside.length / count);
    return inside.filter((_, index) => index % every === 0);
  }
  const rough = (high - low) / count, size = 10 ** Math.floor(Math.log10(rough));
  const fits = (step) => step >= rough * 0.999 && (!whole || Number.isInteger(step));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * size).find(fits) ?? 1;
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step)
    found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  return found;
}
function range(values, { log = false, pad = 0, floor = -Infinity, ceiling = Infinity } = {}) {
  let low = Math.min(...values), high = Math.max(...values);
  if (log) return [low / (1 + pad), high * (1 + pad)];
  const room = (high - low || Math.abs(high) || 1) * pad;
  return [Math.max(low - room, Math.min(floor, low)), Math.min(high + room, Math.max(ceiling, high))];
}

/* Draws lines with bands, or dots with bars. spec: title, label, x and y {title, unit, log}, series of
   {index, name, points: [x, y, deviation]}, kind "line" or "dots". */
function chart(host, spec) {
  host.replaceChildren();
  const heading = document.createElement("h3");
  heading.textContent = spec.title;
  host.append(heading);
  const series = spec.series.map((one) => ({ ...one, points: one.points.filter(([x, y]) => x !== null && y !== null && !(spec.x.log && x <= 0)) })).filter((one) => one.points.length);
  if (!series.length) {
    const empty = document.createElement("p");
    empty.className = "empty";
    empty.textContent = "nothing to draw: choose groups in the table, or another metric";
    return host.append(empty);
  }
  const width = Math.max(260, host.clientWidth - 24), height = Math.round(Math.min(380, Math.max(230, width * 0.5)));
  const all = series.flatMap((one) => one.points);
  const ys = all.flatMap(([, y, deviation]) => (deviation === null ? [y] : [y - deviation, y + deviation]));
  const share = spec.y.unit === "%", positive = ys.filter((y) => y > 0);
  const logY = !share && positive.length === ys.length && Math.max(...ys) > 200 * Math.min(...ys);
  const [y0, y1] = range(ys, { log: logY, pad: 0.06, floor: Math.min(...ys) >= 0 ? 0 : -Infinity, ceiling: share ? 1 : Infinity });
  const [x0, x1] = range(all.map(([x]) => x), { log: spec.x.log, pad: spec.kind === "dots" ? (spec.x.log ? 0.25 : 0.05) : 0 });
  const formatY = (value) => written(value, spec.y.unit), formatX = (value) => written(value, spec.x.unit);
  const yTicks = ticks(y0, y1, logY, 5), margin = { left: 14 + 7 * Math.max(...yTicks.map((value) => formatY(value).length)), right: 16, top: 8, bottom: 38 };
  const place = (value, low, high, log, from, to) => {
    const part = log ? Math.log(value / low) / Math.log(high / low || 1) : (value - low) / (high - low);
    return +(from + (Number.isFinite(part) ? part : 0.5) * (to - from)).toFixed(1);
  };
  const X = (value) => place(value, x0, x1, spec.x.log, margin.left, width - margin.right);
  const Y = (value) => place(Math.min(Math.max(value, y0), y1), y0, y1, logY, height - margin.bottom, margin.top);
  const svg = add(host, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": spec.label });
  for (const value of yTicks) {
    add(svg, "line", { x1: margin.left, x2: width - margin.right, y1: Y(value), y2: Y(value), class: "gridline" });
    add(svg, "text", { x: margin.left - 7, y: Y(value) + 4, "text-anchor": "end" }, formatY(value));
  }
  const below = height - margin.bottom;
  add(svg, "line", { x1: margin.left, x2: width - margin.right, y1: below, y2: below, class: "axis" });
  const given = spec.kind === "dots" ? [...new Set(all.map(([x]) => x))].sort((a, b) => a - b) : [];
  for (const value of given.length && given.length <= 7 ? given : ticks(x0, x1, spec.x.log, Math.max(2, Math.min(8, width / 90)), spec.x.whole)) {
    add(svg, "line", { x1: X(value), x2: X(value), y1: below, y2: below + 4, class: "axis" });
    add(svg, "text", { x: X(value), y: below + 17, "text-anchor": "middle" }, formatX(value));
  }
  add(svg, "text", { x: (margin.left + width - margin.right) / 2, y: height - 4, "text-anchor": "middle" }, spec.x.title);
  for (const one of series) {
    const { colour, dash, shape } = look(one.index), points = one.points;
    const path = (take) => points.map((point, index) => `${index ? "L" : "M"}${X(point[0])},${Y(take(point))}`).join("");
    if (spec.kind === "line") {
      const upper = points.filter(([, , deviation]) => deviation !== null);
      if (upper.length > 1) {
        const there = upper.map(([x, y, deviation]) => `${X(x)},${Y(y + deviation)}`);
        const back = [...upper].reverse().map(([x, y, deviation]) => `${X(x)},${Y(y - deviation)}`);
        add(svg, "path", { d: `M${[...there, ...back].join("L")}Z`, fill: colour, opacity: 0.14 });
      }
    } else for (const [x, y, deviation] of points) if (deviation !== null) add(svg, "path", { d: `M${X(x)},${Y(y - deviation)}V${Y(y + deviation)}`, stroke: colour, "stroke-width": 1.4, opacity: 0.6 });
    if (points.length > 1 && !one.loose) add(svg, "path", { d: path(([, y]) => y), fill: "none", stroke: colour, "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": dash });
    const every = spec.kind === "dots" ? 1 : Math.max(1, Math.ceil(points.length / 7));
    points.forEach(([x, y], index) => { if (index % every === 0 || index === points.length - 1) add(svg, "path", { d: shape(X(x), Y(y)), fill: colour }); });
  }
  follow(svg, series, { X, formatX, formatY, xTitle: spec.x.title, width, below, margin });
}

/* The values under the pointer, in a box beside it. */
function follow(svg, series, { X, formatX, formatY, xTitle, width, below, margin }) {
  const tip = $("#tip"), cursor = add(svg, "line", { y1: margin.top, y2: below, class: "cursor", visibility: "hidden" });
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * width;
    const nearest = series.map((one) => ({ one, point: one.points.reduce((best, point) => (Math.abs(X(point[0]) - at) < Math.abs(X(best[0]) - at) ? point : best)) }));
    const closest = nearest.reduce((best, now) => (Math.abs(X(now.point[0]) - at) < Math.abs(X(best.point[0]) - at) ? now : best)).point;
    cursor.setAttribute("x1", X(closest[0]));
    cursor.setAttribute("x2", X(closest[0]));
    cursor.setAttribute("visibility", "visible");
    tip.replaceChildren();
    const head = document.createElement("div");
    head.textContent = `${xTitle}: ${formatX(closest[0])}`;
    tip.append(head);
    for (const { one, point } of nearest.sort((a, b) => b.point[1] - a.point[1]).slice(0, 10)) {
      const line = document.createElement("div"), value = document.createElement("b");
      const mark = line.appendChild(document.createElement("span"));
      mark.className = "swatch";
      swatch(mark, one.index);
      line.append(one.name);
      value.textContent = formatY(point[1]) + (point[2] === null ? "" : ` ± ${formatY(point[2])}`);
      line.append(value);
      tip.append(line);
    }
    tip.hidden = false;
    const left = event.pageX + 18 + tip.offsetWidth > document.documentElement.clientWidth ? event.pageX - 18 - tip.offsetWidth : event.pageX + 18;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${event.pageY + 14}px`;
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); });
}

// Charts of this report ---------------------------------------------------------------------------------------------
const visible = () => data.groups.map((name, group) => ({ group, name, index: shown.get(group) })).filter(({ group, index }) => index !== undefined && !rowOf(group).hidden);
const AXES = { round: ["round", ""], bytes: ["bytes sent, both ways", "bytes"], seconds: ["seconds of training", "s"], local_steps: ["local steps, all clients", "steps"] };
function drawCurves() {
  const { title, unit } = data.metrics[metric];
  for (const host of $$("[data-axis]")) {
    const [axisTitle, axisUnit] = AXES[host.dataset.axis];
    const series = visible().map(({ group, name, index }) => {
      const { x, y } = data.curves[group] ?? { x: {}, y: {} }, places = x[host.dataset.axis], [mean, deviation] = y[metric] ?? [];
      return { index, name, points: places && mean ? mean.map((value, at) => [places[at], value, deviation ? deviation[at] : null]) : [] };
    });
    const name = host.dataset.axis.replace("_", " ");
    chart(host, { title: `${title}${suffix(unit)} over ${name}`, label: `${title} over ${name}, ${series.length} groups; the last values are in the table of results`, kind: "line", series, x: { title: axisTitle, unit: axisUnit, whole: name === "round" }, y: { unit } });
  }
}
function drawEffects() {
  const { title, unit } = data.metrics[metric];
  for (const host of $$("[data-effect]")) {
    const effect = data.effects[host.dataset.effect];
    const series = effect.lines.map((line, index) => ({
      index, name: line.name || "all", loose: !effect.alone,
      points: line.points.filter(([, group]) => !rowOf(group).hidden).map(([x, group]) => [x, ...data.table[metric][group].slice(1, 3)]),
    }));
    chart(host, { title: `${title}${suffix(unit)} by ${effect.field}`, label: `${title} by ${effect.field}; the values are in the table of results`, kind: "dots", series, x: { title: effect.field, unit: "", log: effect.log }, y: { unit } });
    const legend = document.createElement("ul");
    legend.className = "legend";
    series.forEach((one) => legend.append(legendItem(one.index, one.name)));
    if (series.length > 1 && series.length <= 14) host.append(legend);
  }
}
function drawProfile() {
  const host = $("#profile");
  if (!host) return;
  const measure = $("#measure").value, found = data.clients[measure];
  const asked = visible().filter(({ group }) => group in found), others = Object.keys(found).filter((group) => !rowOf(Number(group)).hidden);
  const chosen = asked.length ? asked : others.slice(0, data.best).map((group, index) => ({ group, index, name: data.groups[group] }));
  const series = chosen.map(({ group, name, index }) => ({ index, name, points: found[group].map((value, at, curve) => [curve.length > 1 ? at / (curve.length - 1) : 0.5, value, null]) }));
  chart(host, { title: "Accuracy (%) from the worst client to the best", label: `Accuracy by share of the clients, ${measure}; the numbers are in the table beside it`, kind: "line", series, x: { title: "share of the clients (%)", unit: "%" }, y: { unit: "%" } });
  for (const row of $$("tr[data-measure]")) row.hidden = row.dataset.measure !== measure;
}
function drawIntervals() {
  const cells = data.table[metric], ends = cells.flatMap((cell) => [cell[4], cell[5], cell[6]]).filter((value) => value !== null);
  const [low, high] = range([0, ...ends], { pad: 0.05 }), width = 150, X = (value) => +(((value - low) / (high - low)) * width).toFixed(1);
  for (const row of $$("#groups tbody tr")) {
    const [, , , , mean, from, to] = cells[row.dataset.group], host = $("td.interval", row);
    host.replaceChildren();
    if (!ends.length) continue;
    const svg = add(host, "svg", { width, height: 22, viewBox: `0 0 ${width} 22`, "aria-hidden": "true" });
    add(svg, "path", { d: `M${X(0)},0V22`, stroke: "var(--soft)", "stroke-dasharray": "2 2" });
    if (mean === null) continue;
    const sign = $("[data-sign]", row).dataset.sign, colour = sign === "1" ? "var(--good)" : sign === "-1" ? "var(--bad)" : "var(--soft)";
    if (from !== null) add(svg, "path", { d: `M${X(from)},11H${X(to)}M${X(from)},7v8M${X(to)},7v8`, stroke: colour, "stroke-width": 2 });
    add(svg, "circle", { cx: X(mean), cy: 11, r: 4, fill: colour });
  }
}
function legendItem(index, name) {
  const item = document.createElement("li"), mark = item.appendChild(document.createElement("span"));
  mark.className = "swatch";
  swatch(mark, index);
  item.append(name);
  return item;
}
function drawLegend() {
  const legend = $("#curves .legend");
  if (legend) legend.replaceChildren(...visible().map(({ index, name }) => legendItem(index, name)));
}
function draw() { drawLegend(); drawCurves(); drawEffects(); drawProfile(); }

// Tables ------------------------------------------------------------------------------------------------------------
const rows = $$("#groups tbody tr"), byGroup = new Map(rows.map((row) => [Number(row.dataset.group), row]));
const rowOf = (index) => byGroup.get(index);
// "run 2" before "run 10", and 0.03 before 0.3.
function natural(a, b) {
  const [x, y] = [a, b].map((text) => text.split(/(\d+(?:\.\d+)?)/));
  for (let at = 0; at < Math.min(x.length, y.length); at++) {
    const order = at % 2 ? x[at] - y[at] : x[at].localeCompare(y[at], "en");
    if (order) return order;
  }
  return x.length - y.length;
}
function sort(table, column, descending) {
  const heads = $$("thead th", table), text = heads[column].dataset.kind === "text", body = $("tbody", table);
  const key = (row) => { const cell = row.cells[column]; return text ? cell.textContent.trim() : cell.dataset.value === "" ? null : Number(cell.dataset.value); };
  const found = $$("tr", body).map((row) => [key(row), row]);
  found.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // what is missing stays below
    return (descending ? -1 : 1) * (text ? natural(a, b) : a - b);
  });
  body.append(...found.map(([, row]) => row));
  heads.forEach((head, index) => { if (index === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending"); else head.removeAttribute("aria-sort"); });
}
for (const table of $$("table.sortable")) {
  $$("thead th", table).forEach((head, column) => {
    if (head.classList.contains("still")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort"), first = head.dataset.kind !== "text";
      sort(table, column, now ? now === "ascending" : first);
    });
  });
}
function press(group, on) {
  const taken = new Set(shown.values());
  let free = 0;
  while (taken.has(free)) free++;
  if (!on) shown.delete(group);
  else if (!shown.has(group)) shown.set(group, free);
  $(".mark", rowOf(group)).setAttribute("aria-pressed", String(on));
  swatch($(".swatch", rowOf(group)), shown.get(group));
}
for (const [group, row] of byGroup) $(".mark", row).addEventListener("click", () => { press(group, !shown.has(group)); draw(); });
function show(which) {
  const order = rows.filter((row) => !row.hidden).map((row) => Number(row.dataset.group));
  const better = data.metrics[metric].better || 1, mean = (index) => data.table[metric][index][1] ?? -better * Infinity;
  const best = [...order].sort((a, b) => better * (mean(b) - mean(a))).slice(0, data.best);
  const chosen = new Set(which === "all" ? order : which === "none" ? [] : [...best.filter((index) => index !== data.baseline).slice(0, data.best - 1), data.baseline]);
  for (const group of byGroup.keys()) press(group, false);
  for (const group of byGroup.keys()) if (chosen.has(group)) press(group, true);
}
for (const button of $$("[data-show]")) button.addEventListener("click", () => { show(button.dataset.show); draw(); });
function count() {
  const left = rows.filter((row) => !row.hidden).length;
  $("#count").textContent = left === rows.length ? `${rows.length} ${rows.length === 1 ? "group" : "groups"}` : `${left} of ${rows.length} groups`;
}
$("#filter").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) row.hidden = !words.every((word) => $(".name", row).textContent.toLowerCase().includes(word));
  count();
  draw();
});
$("#metric").addEventListener("change", (event) => {
  metric = event.target.value;
  const one = data.metrics[metric];
  const set = (head, text) => { ($("button", head) ?? head).textContent = text; };
  set($('[data-metric="title"]'), one.title + suffix(one.unit));
  set($('[data-metric="difference"]'), one.difference);
  for (const [index, row] of byGroup) {
    const [text, mean, , difference, by, , , sign] = data.table[metric][index], cell = row.cells[2], other = row.cells[3];
    cell.textContent = text;
    cell.dataset.value = mean ?? "";
    other.textContent = difference;
    other.dataset.value = by ?? "";
    other.dataset.sign = sign;
  }
  const sorted = $$("#groups thead th").findIndex((head) => head.hasAttribute("aria-sort"));
  if (sorted === 2 || sorted === 3) sort($("#groups"), sorted, $$("#groups thead th")[sorted].getAttribute("aria-sort") === "descending");
  drawIntervals();
  draw();
});
$("#measure")?.addEventListener("change", drawProfile);
$("#scheme").addEventListener("click", () => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.scheme = (root.dataset.scheme ?? (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
});

let drawnAt = 0;
new ResizeObserver(() => {
  const width = document.documentElement.clientWidth;
  if (width !== drawnAt) { drawnAt = width; draw(); }
}).observe(document.body);
drawnAt = document.documentElement.clientWidth;
show("best");
count();
drawIntervals();
draw();
