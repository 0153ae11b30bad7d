"use strict";
// The page is complete without this file: it sorts and filters the tables, and has uPlot draw the curves.
const data = JSON.parse(document.getElementById("payload").textContent);
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const COLOURS = 7, DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const WHOLE = [0, 1, 2, 3, 4, 5].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power));
const AXES = {
  round: ["round", ""], bytes: ["bytes sent, both ways", "bytes"], seconds: ["seconds of training", "s"],
  local_steps: ["local steps, all clients", ""], epsilon_spent: ["epsilon spent so far", ""],
};
const rows = $$(".groups tbody tr");
const shown = new Map(); // number of a group in the charts -> its look; the first ones have colours of their own
let metric = data.metrics[data.metric];

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

// A canvas takes no CSS variables: an element tells what one is in the scheme of the page.
function colour(name, opacity = 1) {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(--${name})`;
  const [red, green, blue] = getComputedStyle(probe).color.match(/[\d.]+/g);
  probe.remove();
  return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
}
/* Draws lines with bands. x and y: {title, unit}; series: {index, name, points: [x, y, deviation or null]}. The legend
   below tells the values where the pointer rests. */
function chart(host, title, given, x, y) {
  host.replaceChildren(Object.assign(document.createElement("h3"), { textContent: title }));
  const series = given.map((one) => ({ ...one, points: one.points.filter(([at, value]) => at !== null && value !== null) }))
    .filter(({ points }) => points.length);
  if (!series.length) {
    const text = "nothing to draw: choose groups in the table, or another metric";
    return host.append(Object.assign(document.createElement("p"), { textContent: text, className: "empty" }));
  }
  const tables = series.map(({ points }) => [
    points.map(([at]) => at), points.map(([, value]) => value),
    points.map(([, value, spread]) => (spread === null ? value : value + spread)),
    points.map(([, value, spread]) => (spread === null ? value : value - spread)),
  ]);
  const nearest = (plot, number, hovered) => {
    const values = plot.data[number], known = (at) => values[at] !== null && values[at] !== undefined;
    for (let away = 0; away < values.length; away++)
      for (const at of [hovered - away, hovered + away]) if (known(at)) return at;
    return hovered;
  };
  const lines = series.flatMap(({ index, name, points }) => {
    const stroke = colour(`c${index % COLOURS}`), dash = DASHES[Math.floor(index / COLOURS) % DASHES.length];
    const value = (plot, mean, number, at) => {
      if (mean === null || at === null) return "";
      const spread = plot.data[number + 1][at] - mean;
      return written(mean, y.unit) + (points[0][2] === null ? "" : ` ± ${written(spread, y.unit)}`);
    };
    const line = { label: name, stroke, dash, width: 2, spanGaps: true, points: { show: points.length < 9, fill: colour("page") }, value };
    const edge = { class: "edge", stroke: "transparent", spanGaps: true, points: { show: false } };
    return [line, edge, edge];
  });
  const bands = series.map(({ index }, place) =>
    ({ series: [3 * place + 2, 3 * place + 3], fill: colour(`c${index % COLOURS}`, 0.14) }));
  const axis = (of) => ({
    label: of.title, labelSize: 22, labelGap: 0, stroke: colour("soft"), grid: { stroke: colour("grid"), width: 1 },
    ticks: { show: false }, values: (_, found) => found.map((value) => written(value, of.unit)),
  });
  const width = Math.max(220, host.clientWidth - 24);
  const options = {
    width, height: Math.min(340, Math.max(230, width * 0.45)), bands,
    scales: { x: { time: false }, y: { range: (_, low, high) => uPlot.rangeNum(low, high, 0.1, false) } },
    series: [{ label: x.title, value: (_, value) => (value === null ? "" : written(value, x.unit)) }, ...lines],
    axes: [{ ...axis(x), size: 28, ...(x.title === "round" ? { incrs: WHOLE } : {}) }, { ...axis({ ...y, title: "" }), size: 56 }],
    cursor: { dataIdx: nearest, drag: { x: false, y: false }, points: { size: 7 } },
  };
  host.plot = new uPlot(options, uPlot.join(tables), host);
  host.plot.root.setAttribute("role", "img");
  host.plot.root.setAttribute("aria-label", `${title}, ${series.length} lines; the values are in the tables`);
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
    chart(host, `${drawn.title}${suffix(drawn.unit)} over ${axis.replace("_", " ")}`, series, { title, unit }, drawn);
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
      shade(cell, found[3] === null ? 0 : (found[3] - low) / (high - low || 1));
    }
    $(".of", map).textContent = metric.title + suffix(metric.unit);
  }
}
function shade(cell, share) {
  cell.style.setProperty("--share", `${100 * share}%`);
}
function drawProfile() {
  const host = $("#profile");
  if (!host) return;
  const found = data.clients[$("#measure").value];
  const asked = visible().filter(({ group }) => group in found);
  const series = asked.map((one) => ({ ...one, points: found[one.group].curve.map((value, at, curve) =>
    [curve.length > 1 ? at / (curve.length - 1) : 0.5, value, null]) }));
  const x = { title: "share of the clients (%)", unit: "%" };
  chart(host, "Accuracy (%) from the worst client to the best", series, x, { unit: "%" });
}
function drawIntervals() {
  const ends = metric.cells.flatMap((cell) => cell.slice(5, 8)).filter((value) => value !== null);
  const low = Math.min(0, ...ends), size = Math.max(0, ...ends) - low || 1;
  const at = (value) => `${(100 * (value - low)) / size}%`;
  for (const [group, row] of rows.entries()) {
    const [, , sign, , , mean, from, to] = metric.cells[group], host = $("td.interval", row);
    host.replaceChildren();
    if (mean === null) continue;
    host.dataset.sign = sign;
    const track = host.appendChild(document.createElement("div"));
    const part = (name, left, width = "") =>
      Object.assign(track.appendChild(document.createElement("i")), { className: name }).style.cssText = `left:${left};width:${width}`;
    part("zero", at(0));
    if (from !== null) part("bar", at(from), `${(100 * (to - from)) / size}%`);
    part("dot", at(mean));
  }
}
function draw() {
  for (const [group, row] of rows.entries()) {
    const look = shown.get(group);
    $(".swatch", row).style.color = look === undefined ? "" : `var(--c${look % COLOURS})`;
  }
  drawCurves();
  drawMaps();
  drawProfile();
}

// "run 2" before "run 10", and 0.03 before 0.3
const padded = (text) => text.replace(/\d+(\.\d+)?/g, (number) => Number(number).toFixed(9).padStart(25, "0"));
function sort(table, column, descending) {
  const text = (row) => row.cells[column].textContent.trim();
  const number = (row) => {
    const { value } = row.cells[column].dataset, found = value ?? text(row);
    return found === "" || found === "-" ? null : Number.parseFloat(found);
  };
  const found = $$("tbody tr", table), words = found.some((row) => Number.isNaN(number(row)));
  const key = (row) => (words ? padded(text(row)) : number(row));
  found.sort((one, other) => {
    const a = key(one), b = key(other);
    if (a === null || b === null) return (a === null) - (b === null); // what is missing stays below
    return (descending ? -1 : 1) * (words ? a.localeCompare(b, "en") : a - b);
  });
  $("tbody", table).append(...found);
  const heads = $$("thead th", table);
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
}
for (const table of $$("table.sortable"))
  $$("thead th:not(.still)", table).forEach((head) => {
    const button = Object.assign(document.createElement("button"), { textContent: head.textContent, type: "button" });
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      sort(table, head.cellIndex, now ? now === "ascending" : head.cellIndex > 0);
    });
  });
for (const table of $$("table.matrix:not(.map *)"))
  for (const row of $$("tbody tr", table)) {
    const cells = $$("td", row), all = cells.reduce((sum, cell) => sum + Number(cell.textContent), 0) || 1;
    for (const cell of cells) {
      shade(cell, Number(cell.textContent) / all);
      cell.title = `${Math.round((100 * Number(cell.textContent)) / all)} % of ${row.cells[0].textContent}`;
    }
  }
function press(group, on) {
  const taken = new Set(shown.values());
  if (!on) shown.delete(group);
  else if (!shown.has(group)) shown.set(group, rows.findIndex((_, index) => !taken.has(index)));
  $(".mark", rows[group]).setAttribute("aria-pressed", String(on));
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
  rows.forEach((row, group) => { row.hidden = !words.every((word) => data.groups[group].toLowerCase().includes(word)); });
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
const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", draw);
$("#scheme").addEventListener("click", () => {
  const root = document.documentElement;
  root.dataset.scheme = (root.dataset.scheme ?? (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
  draw();
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
