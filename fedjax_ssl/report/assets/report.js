"use strict";
// The page is complete without this file: it sorts, filters and draws what the tables say.
const data = JSON.parse(document.getElementById("payload").textContent);
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const html = (name, text, className = "") =>
  Object.assign(document.createElement(name), { textContent: text, className });
const COLOURS = 7, DASHES = ["", "7 4", "2 3", "9 3 2 3"];
const SHAPES = [
  (x, y) => `M${x - 3.4},${y}a3.4,3.4 0 1,0 6.8,0a3.4,3.4 0 1,0 -6.8,0`,
  (x, y) => `M${x - 3},${y - 3}h6v6h-6z`,
  (x, y) => `M${x},${y - 4}l4,7h-8z`,
  (x, y) => `M${x},${y - 4.2}l4.2,4.2l-4.2,4.2l-4.2,-4.2z`,
];
const AXES = {
  round: ["round", ""], bytes: ["bytes sent, both ways", "bytes"],
  seconds: ["seconds of training", "s"], local_steps: ["local steps, all clients", "steps"],
  epsilon_spent: ["epsilon spent so far", ""],
};
const rows = $$(".groups tbody tr");
const shown = new Map(); // number of a group in the charts -> its look; the first ones have colours of their own
let metric = data.metrics[data.metric];

// Numbers -----------------------------------------------------------------------------------------------------------
function written(value, unit) {
  if (unit === "%") return Number((100 * value).toFixed(1)).toString();
  if (unit === "bytes") {
    const power = Math.min(4, Math.max(0, Math.floor(Math.log10(value) / 3)));
    return `${Number((value / 1000 ** power).toPrecision(3))} ${["", "k", "M", "G", "T"][power]}B`;
  }
  const far = value !== 0 && (Math.abs(value) < 0.001 || Math.abs(value) >= 1e6);
  const style = { maximumSignificantDigits: far ? 2 : 4, notation: far ? "scientific" : "standard" };
  return value.toLocaleString("en", style);
}
const suffix = (unit) => (unit === "%" ? " (%)" : unit === "s" ? " (s)" : "");
function ticks(low, high, log, count, whole) {
  if (!(high > low)) return [low];
  const upTo = (from, to) => Array.from({ length: to - from + 1 }, (_, index) => from + index);
  if (log) {
    const powers = upTo(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))).map((power) => 10 ** power);
    const steps = powers.flatMap((one) => (high / low < 50 ? [one, 2 * one, 5 * one] : [one]));
    const inside = steps.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    return inside.filter((_, index) => index % Math.ceil(inside.length / count) === 0);
  }
  const rough = (high - low) / count, size = 10 ** Math.floor(Math.log10(rough));
  const fits = (step) => step >= rough * 0.999 && (!whole || Number.isInteger(step));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * size).find(fits) ?? 1;
  const places = upTo(Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-6));
  return places.map((place) => Number((place * step).toPrecision(12)));
}
function range(values, log, pad, floor = -Infinity, ceiling = Infinity) {
  const low = Math.min(...values), high = Math.max(...values), room = (high - low || Math.abs(high) || 1) * pad;
  if (log) return [low / (1 + pad), high * (1 + pad)];
  return [Math.max(low - room, Math.min(floor, low)), Math.min(high + room, Math.max(ceiling, high))];
}

// Charts ------------------------------------------------------------------------------------------------------------
function add(parent, name, attributes = {}, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return parent.appendChild(node);
}
const look = (index) => ({
  stroke: `var(--c${index % COLOURS})`,
  dash: DASHES[Math.floor(index / COLOURS) % DASHES.length],
  shape: SHAPES[index % SHAPES.length],
});
function swatch(host, index) {
  host.replaceChildren();
  if (index === undefined) return host;
  const { stroke, dash, shape } = look(index);
  const svg = add(host, "svg", { width: 30, height: 14, viewBox: "0 0 30 14", "aria-hidden": "true" });
  add(svg, "path", { d: "M1,7H29", stroke, "stroke-width": 2.2, "stroke-dasharray": dash });
  add(svg, "path", { d: shape(15, 7), fill: stroke });
  return host;
}
function legend(list, series) {
  list.replaceChildren(...series.map(({ index, name }) => {
    const item = html("li", name);
    item.prepend(swatch(html("span", "", "swatch"), index));
    return item;
  }));
  return list;
}
/* Draws lines with bands, or dots with bars. x and y: {title, unit, log, whole}; series: {index, name, points: [x, y,
   deviation], loose}. A point tells its values when the pointer rests on it. */
function chart(host, title, given, x, y, dots = false, ideal = false) {
  const drawable = ([at, value]) => at !== null && value !== null && !(x.log && at <= 0);
  const series = given.map((one) => ({ ...one, points: one.points.filter(drawable) })).filter(({ points }) => points[0]);
  host.replaceChildren(html("h3", title));
  if (!series.length)
    return host.append(html("p", "nothing to draw: choose groups in the table, or another metric", "empty"));
  const width = Math.max(260, host.clientWidth - 24), height = Math.min(380, Math.max(230, width * 0.5));
  const points = series.flatMap((one) => one.points);
  const ys = points.flatMap(([, value, deviation]) => [value - deviation, value + deviation]); // null counts as 0
  if (ideal) ys.push(0, 1);
  const logY = y.unit !== "%" && Math.min(...ys) > 0 && Math.max(...ys) > 200 * Math.min(...ys);
  const floor = Math.min(...ys) >= 0 ? 0 : -Infinity;
  const [bottom, top] = range(ys, logY, 0.06, floor, y.unit === "%" ? 1 : Infinity);
  const across = [...points.map(([at]) => at), ...(ideal ? [0, 1] : [])];
  const [first, last] = range(across, x.log, dots ? (x.log ? 0.25 : 0.05) : 0);
  const yTicks = ticks(bottom, top, logY, 5), texts = yTicks.map((value) => written(value, y.unit));
  const left = 14 + 7 * Math.max(...texts.map((text) => text.length)), right = width - 16, below = height - 38;
  const place = (value, low, high, log, from, to) => {
    const part = log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    return Number((from + (Number.isFinite(part) ? part : 0.5) * (to - from)).toFixed(1));
  };
  const X = (value) => place(value, first, last, x.log, left, right);
  const Y = (value) => place(Math.min(Math.max(value, bottom), top), bottom, top, logY, below, 8);
  const label = `${title}, ${series.length} lines; the values are in the tables`;
  const svg = add(host, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  yTicks.forEach((value, index) => {
    add(svg, "path", { d: `M${left},${Y(value)}H${right}`, class: "gridline" });
    add(svg, "text", { x: left - 7, y: Y(value) + 4, "text-anchor": "end" }, texts[index]);
  });
  const values = dots ? [...new Set(points.map(([at]) => at))] : [];
  const few = values.length && values.length <= 7;
  for (const value of few ? values : ticks(first, last, x.log, Math.max(2, Math.min(8, width / 90)), x.whole)) {
    add(svg, "path", { d: `M${X(value)},${below}v4`, class: "axis" });
    add(svg, "text", { x: X(value), y: below + 17, "text-anchor": "middle" }, written(value, x.unit));
  }
  add(svg, "path", { d: `M${left},${below}H${right}`, class: "axis" });
  add(svg, "text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, x.title);
  if (ideal) add(svg, "path", { d: `M${X(0)},${Y(0)}L${X(1)},${Y(1)}`, class: "ideal" });
  // of lines that meet, each is thinner than those below it
  series.forEach((one, at) => { one.width = 4.4 - (2.6 * (at + 1)) / series.length; });
  for (const one of series) drawSeries(svg, one, X, Y, dots, (at, value, deviation) =>
    `${one.name}\n${x.title}: ${written(at, x.unit)}\n${written(value, y.unit)}` +
    (deviation === null ? "" : ` ± ${written(deviation, y.unit)}`));
}
function drawSeries(svg, { index, points, loose, width }, X, Y, dots, said) {
  const { stroke, dash, shape } = look(index), banded = points.filter(([, , deviation]) => deviation !== null);
  const line = (found, side) => found.map(([at, value, deviation]) => `${X(at)},${Y(value + side * deviation)}`);
  if (dots)
    for (const [at, value, deviation] of banded)
      add(svg, "path", { d: `M${X(at)},${Y(value - deviation)}V${Y(value + deviation)}`, stroke, opacity: 0.6 });
  else if (banded.length > 1) {
    const around = [...line(banded, 1), ...line(banded, -1).reverse()];
    add(svg, "path", { d: `M${around.join("L")}Z`, fill: stroke, opacity: 0.14 });
  }
  if (points.length > 1 && !loose)
    add(svg, "path", { d: `M${line(points, 0).join("L")}`, class: "line", stroke, "stroke-width": width, "stroke-dasharray": dash });
  const every = dots ? 1 : Math.ceil(points.length / 7);
  points.forEach((point, place) => {
    const marked = place % every === 0 || place === points.length - 1, at = X(point[0]), height = Y(point[1]);
    const mark = marked ? { d: shape(at, height), fill: stroke } : { d: SHAPES[0](at, height), fill: "transparent" };
    add(add(svg, "path", mark), "title", {}, said(...point));
  });
}
const visible = () => [...shown].filter(([group]) => !rows[group].hidden)
  .map(([group, index]) => ({ group, index, name: data.groups[group] })).sort((a, b) => a.group - b.group);
function drawCurves() {
  for (const host of $$("[data-axis]")) {
    const axis = host.dataset.axis, [title, unit] = AXES[axis];
    // A number of the end has no curve of its own: that of its column is drawn.
    const known = data.curves.some((one) => one && metric.name in one.y);
    const curve = known ? metric.name : metric.name.replace(/^(selected|best)_/, "");
    const drawn = data.metrics[curve] ?? metric;
    const series = visible().map((one) => {
      const { x, y } = data.curves[one.group] ?? { x: {}, y: {} }, [mean, deviation] = y[curve] ?? [];
      const points = x[axis] && mean ? mean.map((value, at) => [x[axis][at], value, deviation?.[at] ?? null]) : [];
      return { ...one, points };
    });
    const over = `${drawn.title}${suffix(drawn.unit)} over ${axis.replace("_", " ")}`;
    chart(host, over, series, { title, unit, whole: axis === "round", log: axis === "epsilon_spent" }, drawn);
  }
}
function drawEffects() {
  for (const host of $$("[data-effect]")) {
    const { field, log, alone, lines } = data.effects[host.dataset.effect];
    const series = lines.map((line, index) => ({
      index, name: line.name || "all", loose: !alone,
      points: line.points.filter(([, group]) => !rows[group].hidden)
        .map(([value, group]) => [value, ...metric.cells[group].slice(3, 5)]),
    }));
    const title = `${metric.title}${suffix(metric.unit)} by ${field}`;
    chart(host, title, series, { title: field, unit: "", log }, metric, true);
    if (series.length > 1 && series.length <= 14) host.append(legend(html("ul", "", "legend"), series));
  }
}
function drawMaps() {
  for (const map of $$(".map")) {
    const cells = $$("[data-group]", map).map((cell) => ({ cell, found: metric.cells[cell.dataset.group] }));
    const means = cells.map(({ found }) => found[3]).filter((mean) => mean !== null);
    const low = Math.min(...means), high = Math.max(...means);
    for (const { cell, found } of cells) {
      cell.textContent = found[8];
      cell.title = data.groups[cell.dataset.group];
      cell.style.setProperty("--share", `${found[3] === null ? 0 : (100 * (found[3] - low)) / (high - low || 1)}%`);
    }
    $(".of", map).textContent = metric.title + suffix(metric.unit);
  }
}
function drawProfile() {
  const host = $("#profile");
  if (!host) return;
  const found = data.clients[$("#measure").value];
  const series = having(found).map((one) => ({ ...one, points: found[one.group].curve.map((value, at, curve) =>
    [curve.length > 1 ? at / (curve.length - 1) : 0.5, value, null]) }));
  const x = { title: "share of the clients (%)", unit: "%" };
  chart(host, "Accuracy (%) from the worst client to the best", series, x, { unit: "%" });
  for (const row of $$("tr[data-measure]")) row.hidden = row.dataset.measure !== $("#measure").value;
}
const PANELS = {
  roc: ["ROC curve: found (%) over false alarms (%)", "false alarms: share of the other class (%)"],
  reliability: ["Right (%) over probability of the predicted class (%)", "probability (%)"],
};
// Groups that have such curves: those that are in the charts, or else the first ones.
function having(found) {
  const asked = visible().filter(({ group }) => group in found);
  const others = Object.keys(found).map(Number).filter((group) => !rows[group].hidden).slice(0, data.best);
  return asked.length ? asked : others.map((group, index) => ({ group, index, name: data.groups[group] }));
}
function drawPanels() {
  for (const host of $$("[data-panel]")) {
    const name = host.dataset.panel, found = data.panels[name], [title, x] = PANELS[name];
    const series = having(found).map((one) => ({ ...one, points: found[one.group] }));
    legend($("#classes .legend"), series);
    chart(host, title, series, { title: x, unit: "%" }, { unit: "%" }, false, true);
  }
}
function drawIntervals() {
  const ends = metric.cells.flatMap((cell) => cell.slice(5, 8)).filter((value) => value !== null);
  const [low, high] = range([0, ...ends], false, 0.05);
  const X = (value) => (((value - low) / (high - low)) * 150).toFixed(1);
  for (const [group, row] of rows.entries()) {
    const [, , sign, , , mean, from, to] = metric.cells[group], host = $("td.interval", row);
    host.replaceChildren();
    if (mean === null) continue;
    const colour = sign > 0 ? "var(--good)" : sign < 0 ? "var(--bad)" : "var(--soft)";
    const svg = add(host, "svg", { width: 150, height: 22, "aria-hidden": "true" });
    add(svg, "path", { d: `M${X(0)},0V22`, stroke: "var(--soft)", "stroke-dasharray": "2 2" });
    const bar = `M${X(from)},11H${X(to)}M${X(from)},7v8M${X(to)},7v8`;
    if (from !== null) add(svg, "path", { d: bar, stroke: colour, "stroke-width": 2 });
    add(svg, "circle", { cx: X(mean), cy: 11, r: 4, fill: colour });
  }
}
function draw() {
  const list = $("#curves .legend");
  if (list) legend(list, visible());
  drawCurves();
  drawEffects();
  drawMaps();
  drawProfile();
  drawPanels();
}

// Tables ------------------------------------------------------------------------------------------------------------
// "run 2" before "run 10", and 0.03 before 0.3
const padded = (text) => text.replace(/\d+(\.\d+)?/g, (number) => Number(number).toFixed(9).padStart(25, "0"));
function sort(table, column, descending) {
  const heads = $$("thead th", table), text = heads[column].dataset.kind === "text";
  const key = ({ cells: { [column]: cell } }) =>
    text ? padded(cell.textContent.trim()) : cell.dataset.value === "" ? null : Number(cell.dataset.value);
  const found = $$("tbody tr", table).map((row) => [key(row), row]);
  found.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // what is missing stays below
    return (descending ? -1 : 1) * (text ? a.localeCompare(b, "en") : a - b);
  });
  $("tbody", table).append(...found.map(([, row]) => row));
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
}
for (const table of $$("table.sortable"))
  $$("thead th:not(.still)", table).forEach((head) => {
    const button = Object.assign(html("button", head.textContent), { type: "button" });
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      sort(table, head.cellIndex, now ? now === "ascending" : head.dataset.kind !== "text");
    });
  });
function press(group, on) {
  const taken = new Set(shown.values());
  if (!on) shown.delete(group);
  else if (!shown.has(group)) shown.set(group, rows.findIndex((_, index) => !taken.has(index)));
  $(".mark", rows[group]).setAttribute("aria-pressed", String(on));
  swatch($(".swatch", rows[group]), shown.get(group));
}
function show(which) {
  const order = [...rows.keys()].filter((group) => !rows[group].hidden);
  const better = metric.better || 1, mean = (group) => metric.cells[group][3] ?? -better * Infinity;
  const best = [...order].sort((a, b) => better * (mean(b) - mean(a))).slice(0, data.best);
  const chosen = which === "all" ? order : which === "none" ? [] :
    [...best.filter((group) => group !== data.baseline).slice(0, data.best - 1), data.baseline];
  for (const group of rows.keys()) press(group, false);
  for (const group of rows.keys()) if (chosen.includes(group)) press(group, true);
}
function count() {
  const left = rows.filter((row) => !row.hidden).length;
  const all = `${rows.length} ${rows.length === 1 ? "group" : "groups"}`;
  $("#count").textContent = left === rows.length ? all : `${left} of ${all}`;
}
rows.forEach((row, group) => {
  $(".mark", row).addEventListener("click", () => { press(group, !shown.has(group)); draw(); });
});
for (const button of $$("[data-show]")) button.addEventListener("click", () => { show(button.dataset.show); draw(); });
$("#filter").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  const names = data.groups.map((name) => name.toLowerCase());
  rows.forEach((row, group) => { row.hidden = !words.every((word) => names[group].includes(word)); });
  count();
  draw();
});
$("#metric").addEventListener("change", (event) => {
  metric = data.metrics[event.target.value];
  const heads = $$(".groups thead th");
  $("button", heads[2]).textContent = metric.title + suffix(metric.unit);
  $("button", heads[3]).textContent = metric.difference;
  rows.forEach(({ cells }, group) => {
    const [text, difference, sign, mean, , by] = metric.cells[group];
    cells[2].textContent = text;
    cells[3].textContent = difference;
    cells[2].dataset.value = mean ?? "";
    cells[2].dataset.title = metric.title + suffix(metric.unit);
    cells[3].dataset.value = by ?? "";
    cells[3].dataset.sign = sign;
  });
  const sorted = heads.find((head) => head.hasAttribute("aria-sort"));
  if (sorted) sort($(".groups"), sorted.cellIndex, sorted.getAttribute("aria-sort") === "descending");
  drawIntervals();
  draw();
});
$("#measure")?.addEventListener("change", drawProfile);
$("#scheme").addEventListener("click", () => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.scheme = (root.dataset.scheme ?? (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
});
let drawnAt = document.documentElement.clientWidth;
new ResizeObserver(() => {
  const width = document.documentElement.clientWidth;
  if (width !== drawnAt) { drawnAt = width; draw(); }
}).observe(document.body);
show("best");
count();
drawIntervals();
draw();
