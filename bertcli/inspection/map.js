"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const get = (id) => document.getElementById(id);
const darkness = matchMedia("(prefers-color-scheme: dark)");
const count = data.x.length, MOST = 24, REACH = 14;  // groups with a colour; pixels to a point
const map = get("map"), canvas = map.querySelector("canvas"), tip = get("tip");
const view = { scale: 1, x: 0, y: 0 };  // of the map: zoom, and what is moved, in pixels
const state = { group: null, cluster: null, words: [], over: null };
const HITS = 50;  // texts that are listed of a search
const sought = data.text.map((text) => text.toLowerCase());
let places = [];  // where each point is drawn

function make(kind, parent, settings) {
  return parent.appendChild(Object.assign(document.createElement(kind), settings));
}

// --- groups: clusters, values of a field, or a range of numbers ---

const values = data.field === null ? data.cluster : data.values;
const known = values.filter((value) => value !== null && value !== "");
const isNumber = (value) => typeof value === "number"
  || (typeof value === "string" && value.trim() !== "" && Number.isFinite(Number(value)));
const ranged = data.field !== null && known.every(isNumber) && new Set(known.map(Number)).size > 12;
const named = (value) => value === null || value === "" ? "(none)"
  : typeof value === "object" ? JSON.stringify(value) : String(value);
const groups = [], groupOf = new Array(count).fill(0);
let low = 0, high = 1;

if (ranged) {
  [low, high] = known.map(Number).reduce(([a, b], one) => [Math.min(a, one), Math.max(b, one)],
    [Infinity, -Infinity]);
} else if (data.field === null) {
  data.labels.forEach((label, at) => groups.push({ name: label || `cluster ${at}`, size: 0 }));
  data.cluster.forEach((cluster, i) => { groupOf[i] = cluster; groups[cluster].size += 1; });
} else {
  const sizes = new Map();
  values.forEach((value) => sizes.set(named(value), (sizes.get(named(value)) || 0) + 1));
  const order = [...sizes].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  order.slice(0, MOST).forEach(([name, size]) => groups.push({ name, size }));
  if (order.length > MOST) {
    const rest = order.slice(MOST).reduce((sum, [, size]) => sum + size, 0);
    groups.push({ name: "(others)", size: rest, grey: true });
  }
  const numbers = new Map(order.map(([name], at) => [name, Math.min(at, MOST)]));
  values.forEach((value, i) => { groupOf[i] = numbers.get(named(value)); });
}

function colourOf(i) {
  if (ranged) {
    if (values[i] === null || values[i] === "") return "#8b95a3";
    return shade((Number(values[i]) - low) / (high - low || 1));
  }
  return groupColour(groupOf[i]);
}
function groupColour(at) {  // neighbours in the list are far apart in hue
  if (groups[at].grey) return "#8b95a3";
  const hue = (205 + at * 137.508) % 360, light = darkness.matches ? 66 - at % 3 * 8 : 40 + at % 3 * 8;
  return `hsl(${hue.toFixed(0)} ${at < 12 ? 68 : 48}% ${light}%)`;
}
function shade(share) {
  return `hsl(${(215 - 185 * share).toFixed(0)} 75% ${darkness.matches ? 62 : 45}%)`;
}

// --- what is shown ---

const box = (numbers) => numbers.reduce(([a, b], one) => [Math.min(a, one), Math.max(b, one)],
  [Infinity, -Infinity]);
const [left, right] = box(data.x), [bottom, top_] = box(data.y);

function place() {
  const { width, height } = map.getBoundingClientRect(), margin = 26;
  const unit = Math.min((width - 2 * margin) / (right - left || 1),
    (height - 2 * margin) / (top_ - bottom || 1)) * view.scale;
  places = data.x.map((x, i) => [
    width / 2 + view.x + (x - (left + right) / 2) * unit,
    height / 2 + view.y - (data.y[i] - (bottom + top_) / 2) * unit,
  ]);
  return { width, height };
}

const isFiltered = () => state.group !== null || state.cluster !== null || state.words.length > 0;
function matches(i) {
  return (state.group === null || groupOf[i] === state.group)
    && (state.cluster === null || data.cluster[i] === state.cluster)
    && state.words.every((word) => sought[i].includes(word));
}

function draw() {
  const { width, height } = place(), dense = devicePixelRatio || 1;
  canvas.width = Math.round(width * dense); canvas.height = Math.round(height * dense);
  const context = canvas.getContext("2d");
  context.scale(dense, dense);
  const filtered = isFiltered(), faded = new Set();
  const size = Math.max(1.4, Math.min(5, 90 / Math.sqrt(count))) * Math.min(2, Math.sqrt(view.scale));
  const style = getComputedStyle(document.documentElement);
  const chosen = [];
  for (let i = 0; i < count; i += 1) {
    if (filtered && matches(i)) { chosen.push(i); continue; }
    if (filtered) {  // equal texts are in one place: drawn once, they stay faint
      const spot = places[i].map(Math.round).join();
      if (faded.has(spot)) continue;
      faded.add(spot);
    }
    context.globalAlpha = filtered ? 0.12 : count > 4000 ? 0.65 : 0.85;
    dot(context, i, size, colourOf(i));
  }
  context.globalAlpha = 0.95;
  chosen.forEach((i) => dot(context, i, size + 0.8, colourOf(i)));
  if (state.over !== null) {
    context.globalAlpha = 1;
    dot(context, state.over, size + 2.5, style.getPropertyValue("--mark"));
    dot(context, state.over, size + 0.8, colourOf(state.over));
  }
  names(width, height);
  document.documentElement.dataset.ready = "yes";
}
function dot(context, i, size, colour) {
  const [x, y] = places[i];
  if (x < -9 || y < -9 || x > canvas.width + 9 || y > canvas.height + 9) return;
  context.fillStyle = colour;
  context.beginPath(); context.arc(x, y, size, 0, 7); context.fill();
}

function names(width, height) {  // of clusters in sight: above their points, below or on them, where there is room
  const parent = get("names"), members = new Map(), taken = [];
  parent.replaceChildren();
  places.forEach(([x, y], i) => {
    const cluster = data.cluster[i];
    if (x < 0 || x > width || y < 0 || y > height || !data.labels[cluster]) return;
    if (!members.has(cluster)) members.set(cluster, []);
    members.get(cluster).push(places[i]);
  });
  const largest = [...members].sort((a, b) => b[1].length - a[1].length);
  const labels = largest.map(([cluster]) => make("div", parent, { textContent: data.labels[cluster] }));
  if (!ranged && data.field === null) {
    largest.forEach(([cluster], at) => { labels[at].style.borderBottomColor = groupColour(cluster); });
  }
  const sizes = labels.map((label) => [label.offsetWidth / 2 + 3, label.offsetHeight / 2 + 1]);  // halves
  largest.forEach(([, points], at) => {
    const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]).sort((a, b) => a - b));
    const [w, h] = sizes[at], rim = Math.floor(ys.length * 0.25);  // strays do not move the name away
    const x = Math.max(w, Math.min(width - w, xs[xs.length >> 1]));
    const fits = (y) => y >= h && y <= height - h
      && !taken.some(([a, b, c, d]) => Math.abs(a - x) < c + w && Math.abs(b - y) < d + h);
    const y = [ys[rim] - h - 7, ys[ys.length - 1 - rim] + h + 7, ys[ys.length >> 1]].find(fits);
    if (y === undefined) { labels[at].remove(); return; }
    taken.push([x, y, w, h]);
    Object.assign(labels[at].style, { left: `${x}px`, top: `${y}px` });
  });
}

function legend() {
  const parent = get("groups").querySelector(".groups");
  parent.replaceChildren();
  get("groups").querySelector("legend").textContent = data.field === null ? "Clusters" : data.field;
  if (ranged) {
    const stops = [0, 0.25, 0.5, 0.75, 1].map(shade).join(", ");
    make("div", parent, { className: "scale-of-values", style: `background:linear-gradient(90deg, ${stops})` });
    const ends = make("div", parent, { className: "ends" });
    make("span", ends, { textContent: low }); make("span", ends, { textContent: high });
    return;
  }
  groups.forEach((group, at) => {
    const button = make("button", parent, { type: "button" });
    button.setAttribute("aria-pressed", state.group === at);
    make("i", button, { style: `background:${groupColour(at)}` });
    make("span", button, { textContent: group.name });
    make("small", button, { textContent: group.size.toLocaleString("en") });
    button.addEventListener("click", () => {
      state.group = state.group === at ? null : at;
      parent.querySelectorAll("button").forEach((one, i) =>
        one.setAttribute("aria-pressed", state.group === i));
      tell(); draw();
    });
  });
}

function clusterLegend() {  // beside the colours of a field
  get("clusters").hidden = data.field === null;
  if (data.field === null) return;
  const parent = get("clusters").querySelector(".groups"), sizes = data.labels.map(() => 0);
  data.cluster.forEach((cluster) => { sizes[cluster] += 1; });
  data.labels.forEach((label, at) => {
    const button = make("button", parent, { type: "button" });
    button.setAttribute("aria-pressed", false);
    make("i", button, {});
    make("span", button, { textContent: label || `cluster ${at}` });
    make("small", button, { textContent: sizes[at].toLocaleString("en") });
    button.addEventListener("click", () => {
      state.cluster = state.cluster === at ? null : at;
      parent.querySelectorAll("button").forEach((one, i) =>
        one.setAttribute("aria-pressed", state.cluster === i));
      tell(); draw();
    });
  });
}

function tell() {
  const filtered = isFiltered();
  const found = filtered ? [...data.x.keys()].filter(matches) : [];
  get("matches").textContent = filtered
    ? `${found.length.toLocaleString("en")} of ${count.toLocaleString("en")} texts` : "";
  listHits(state.words.length > 0 ? found : []);
}
function listHits(found) {  // each text once
  const list = get("hits"), seen = new Set();
  list.replaceChildren();
  for (const i of found) {
    if (seen.has(data.text[i])) continue;
    if (seen.size === HITS) { make("li", list, { textContent: "…" }); break; }
    seen.add(data.text[i]);
    const button = make("button", make("li", list, {}), { type: "button", textContent: data.text[i] });
    make("small", button, { textContent: origin(i) });
    button.addEventListener("click", () => jump(i));
  }
  list.hidden = seen.size === 0;
}
function origin(i) {
  const id = data.id[i], parts = [`row ${data.row[i].toLocaleString("en")}`];
  if (id !== null && String(id) !== String(data.row[i])) parts.push(`id ${named(id)}`);
  if (data.equal[i] > 1) parts.push(`${data.equal[i].toLocaleString("en")} equal texts`);
  return parts.join(" · ");
}
function jump(i) {  // to a point, which is in the middle then
  view.scale = Math.max(view.scale, 3);
  const { width, height } = place(), [x, y] = places[i];
  view.x += width / 2 - x; view.y += height / 2 - y;
  state.over = null;
  place(); point(i);
}

// --- hover, tap, move, zoom ---

function nearest(x, y) {
  let best = null, least = REACH * REACH;
  const filtered = isFiltered();
  places.forEach(([a, b], i) => {
    const apart = (a - x) ** 2 + (b - y) ** 2;
    if (apart < least && (!filtered || matches(i))) { least = apart; best = i; }
  });
  return best;
}
function point(i) {
  if (i === state.over) return;
  state.over = i;
  tip.hidden = i === null;
  if (i !== null) {
    const label = data.labels[data.cluster[i]];
    const head = data.field === null ? label : `${data.field}: ${named(values[i])}`;
    tip.replaceChildren();
    if (head) make("b", tip, { textContent: head });
    make("span", tip, { textContent: data.text[i] });
    make("small", tip, { textContent: origin(i) });
    const [x, y] = places[i], { width, height } = map.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${y + 14 + tip.offsetHeight < height ? y + 14 : Math.max(4, y - tip.offsetHeight - 12)}px`;
  }
  draw();
}
function zoom(factor, x, y) {
  const { width, height } = map.getBoundingClientRect();
  const scale = Math.max(0.5, Math.min(60, view.scale * factor)), ratio = scale / view.scale;
  view.x = (view.x - (x - width / 2)) * ratio + (x - width / 2);
  view.y = (view.y - (y - height / 2)) * ratio + (y - height / 2);
  view.scale = scale;
  point(null); draw();
}
const held = new Map();  // fingers and buttons, and where they are
function where(event) {
  const { left: x, top: y } = map.getBoundingClientRect();
  return [event.clientX - x, event.clientY - y];
}
map.addEventListener("pointerdown", (event) => {
  held.set(event.pointerId, where(event));
  map.setPointerCapture(event.pointerId);
  point(nearest(...where(event)));
});
map.addEventListener("pointermove", (event) => {
  const at = where(event), before = held.get(event.pointerId);
  if (!before) { point(nearest(...at)); return; }
  held.set(event.pointerId, at);
  if (held.size === 1) {
    if (Math.hypot(at[0] - before[0], at[1] - before[1]) < 1) return;
    view.x += at[0] - before[0]; view.y += at[1] - before[1];
    point(null); draw();
  } else {
    const other = [...held].find(([id]) => id !== event.pointerId)[1];
    const length = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
    zoom(length(at) / length(before), (at[0] + other[0]) / 2, (at[1] + other[1]) / 2);
  }
});
for (const end of ["pointerup", "pointercancel"]) {
  map.addEventListener(end, (event) => held.delete(event.pointerId));
}
map.addEventListener("pointerleave", () => { if (!held.size) point(null); });
map.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(-event.deltaY / 400), ...where(event));
}, { passive: false });
map.addEventListener("keydown", (event) => {
  const { width, height } = map.getBoundingClientRect();
  const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
  if (moves[event.key]) { view.x += moves[event.key][0]; view.y += moves[event.key][1]; draw(); }
  else if (event.key === "+" || event.key === "=") zoom(1.4, width / 2, height / 2);
  else if (event.key === "-") zoom(1 / 1.4, width / 2, height / 2);
  else if (event.key === "0") { Object.assign(view, { scale: 1, x: 0, y: 0 }); draw(); }
  else return;
  event.preventDefault();
});
get("search").addEventListener("input", (event) => {
  state.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  tell(); draw();
});
addEventListener("resize", draw);
darkness.addEventListener("change", () => { legend(); draw(); });

get("about").textContent = count < data.total
  ? `${count.toLocaleString("en")} of ${data.total.toLocaleString("en")} texts, sampled`
  : `${count.toLocaleString("en")} texts`;
legend();
clusterLegend();
draw();
