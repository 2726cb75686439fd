"use strict";
const all = JSON.parse(document.getElementById("data").textContent);
// From weight 0 to 1, on a light and on a dark background, with even steps of lightness between.
const LIGHT = "fbfaf4 d1e6b2 91d397 44bc95 009f97 008291 1d617b 2e4358 282a2e".split(" ");
const DARK = "1c1f29 14365b 00557f 00788e 00988b 2baf85 8ac38a c7d5a8 eeecdd".split(" ");
const STEPS = 64, TICKS = [0, 0.05, 0.25, 0.5, 1];
const get = (id) => document.getElementById(id);
const darkness = matchMedia("(prefers-color-scheme: dark)");
const state = { layer: all.texts[0].layers.length - 1, head: "mean", row: null, column: null };
let data, tokens, sentences, special, scale, count;

function use(text) {  // everything below is of the text that is chosen
  data = all.texts[text];
  ({ tokens, sentences, special, scale } = data);
  count = tokens.length;
  state.row = state.column = null;
}

function make(kind, parent, settings) {
  const node = Object.assign(document.createElement(kind), settings);
  return parent.appendChild(node);
}
function palette() {
  const anchors = (darkness.matches ? DARK : LIGHT).map(rgb);
  return Array.from({ length: STEPS }, (_, at) => {
    const place = at / (STEPS - 1) * (anchors.length - 1);
    const low = Math.min(Math.floor(place), anchors.length - 2);
    return anchors[low].map((channel, i) =>
      Math.round(channel + (place - low) * (anchors[low + 1][i] - channel)));
  });
}
function step(weight) { return Math.round(Math.sqrt(weight / scale) * (STEPS - 1)); }
function rgb(hex) { return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)); }
function decimals(weight) { return (weight / scale).toFixed(3); }

function mean(layer) {
  if (!layer.mean) {
    layer.mean = layer.heads[0].weights.map((row, i) => row.map((_, j) =>
      layer.heads.reduce((sum, head) => sum + head.weights[i][j], 0) / layer.heads.length));
  }
  return layer.mean;
}
function weights() {
  const layer = data.layers[state.layer];
  const head = layer.heads.find((one) => one.head === state.head);
  return head ? head.weights : mean(layer);
}

function paint(canvas, rows) {  // a pixel a cell; CSS makes it large
  const colours = palette(), context = canvas.getContext("2d");
  const image = context.createImageData(rows[0].length, rows.length);
  canvas.width = rows[0].length; canvas.height = rows.length;
  rows.forEach((row, i) => row.forEach((weight, j) => {
    image.data.set([...colours[step(weight)], 255], 4 * (i * row.length + j));
  }));
  context.putImageData(image, 0, 0);
}

function pick(parent, group, value, name, chosen, then) {
  const label = make("label", parent, {});
  const input = make("input", label, { type: "radio", name: group, checked: chosen });
  input.setAttribute("aria-label", `${group} ${name}`);
  input.value = value;
  input.addEventListener("change", then);
  return { label, name: make("span", label, { className: "name", textContent: name }) };
}
function textPicks() {
  get("texts").hidden = all.texts.length < 2;
  all.texts.forEach((text, at) => {
    const name = text.tokens.filter((_, token) => !text.special[token]).join(" ").replaceAll(" ##", "");
    pick(get("texts").querySelector(".picks"), "text", at, name, at === 0,
      () => { use(at); strip(); start(); });
  });
}
function layerPicks() {
  const parent = get("layers").querySelector(".picks");
  data.layers.forEach((layer, at) => pick(parent, "layer", at, layer.layer, at === state.layer,
    () => { state.layer = at; headPicks(); redraw(); }));
}
function headPicks() {
  const parent = get("heads").querySelector(".picks"), layer = data.layers[state.layer];
  parent.replaceChildren();
  const all = layer.heads.map((one) => ({ head: one.head, weights: one.weights }));
  if (all.length > 1) all.unshift({ head: "mean", weights: mean(layer) });
  if (!all.some((one) => one.head === state.head)) state.head = all[0].head;
  for (const one of all) {
    const made = pick(parent, "head", one.head, one.head, one.head === state.head,
      () => { state.head = one.head; redraw(); });
    const canvas = document.createElement("canvas");
    canvas.setAttribute("aria-hidden", "true");
    made.label.insertBefore(canvas, made.name);
    paint(canvas, one.weights);
  }
}

function mark(node, at) {
  node.classList.toggle("b", sentences[at] === 1);
  node.classList.toggle("special", special[at] === 1);
  node.addEventListener("pointerenter", () => choose(at, null));
}
function strip() {
  get("strip").replaceChildren();
  get("sentences").replaceChildren();
  for (const which of [...new Set(sentences)].sort()) {
    const line = make("p", get("strip"), { className: which ? "b" : "a" });
    sentences.forEach((sentence, at) => {
      if (sentence !== which) return;
      const token = make("span", line, { className: "token", textContent: tokens[at] });
      token.dataset.at = at;
      token.addEventListener("pointerdown", () => choose(at, null));
      mark(token, at);
    });
  }
  if (sentences.includes(1)) ["first sentence", "second sentence"].forEach((name, which) => {
    const row = make("div", get("sentences"), {});
    make("span", row, { className: which ? "key b" : "key" });
    row.append(name);
  });
}

let measures = null;
function layout() {
  const map = get("map"), room = map.parentElement.clientWidth - 16;
  map.replaceChildren();
  const probe = make("canvas", map, {}).getContext("2d");
  probe.font = "13px system-ui, sans-serif";
  const label = Math.ceil(Math.max(...tokens.map((token) => probe.measureText(token).width))) + 16;
  map.replaceChildren();
  const cell = Math.max(3, Math.min(34, Math.floor((room - label) / count)));
  const size = Math.min(14, cell * 0.85), side = cell * count, small = cell < 9;
  measures = { cell, label, side };
  map.style.width = map.style.height = `${label + side}px`;
  const canvas = make("canvas", map, { id: "weights" });
  Object.assign(canvas.style, { left: `${label}px`, top: `${label}px`,
    width: `${side}px`, height: `${side}px` });
  tokens.forEach((token, at) => {
    const middle = label + (at + 0.5) * cell;
    const row = make("span", map, { className: "row", textContent: token });
    Object.assign(row.style, { right: `${side + 11}px`, top: `${middle}px` });
    const column = make("span", map, { className: "column", textContent: token });
    Object.assign(column.style, { left: `${middle}px`, top: `${label - 11}px` });
    for (const node of [row, column]) {
      node.style.fontSize = `${small ? 13 : size}px`;
      node.classList.toggle("small", small);
      mark(node, at);
    }
    column.addEventListener("pointerenter", () => choose(state.row, at));
  });
  edges(map, label, cell);
  for (const name of ["across row-bar", "across column-bar", "across cell"]) {
    make("div", map, { className: name, hidden: true });
  }
  canvas.addEventListener("pointermove", follow);
  canvas.addEventListener("pointerdown", follow);
}
function edges(map, label, cell) {
  for (const which of new Set(sentences)) {
    const start = sentences.indexOf(which), end = sentences.lastIndexOf(which) + 1;
    const at = `${label + start * cell}px`, long = `${(end - start) * cell - 1}px`;
    const near = `${label - 7}px`, name = which ? "edge b" : "edge";
    Object.assign(make("div", map, { className: name }).style,
      { left: near, top: at, width: "4px", height: long });
    Object.assign(make("div", map, { className: name }).style,
      { top: near, left: at, height: "4px", width: long });
  }
}
function follow(event) {
  const inside = (offset) => Math.max(0, Math.min(count - 1, Math.floor(offset / measures.cell)));
  choose(inside(event.offsetY), inside(event.offsetX));
}

function choose(row, column) {
  state.row = row; state.column = column;
  highlight();
}
function place(name, shown, left, top, width, height) {
  const bar = get("map").querySelector(name);
  bar.hidden = !shown;
  Object.assign(bar.style, { left: `${left - 2}px`, top: `${top - 2}px`,
    width: `${width + 4}px`, height: `${height + 4}px` });
}
function highlight() {
  const { row, column } = state, { cell, label, side } = measures, rows = weights();
  const x = label + (column ?? 0) * cell, y = label + (row ?? 0) * cell;
  place(".row-bar", row !== null, label, y, side, cell);
  place(".column-bar", column !== null, x, label, cell, side);
  place(".across.cell", row !== null && column !== null, x, y, cell, cell);
  get("map").querySelectorAll(".row").forEach((one, at) => one.classList.toggle("on", at === row));
  get("map").querySelectorAll(".column").forEach((one, at) =>
    one.classList.toggle("on", at === column));
  get("strip").querySelectorAll(".token").forEach((token) => {
    const at = Number(token.dataset.at), colour = row !== null && palette()[step(rows[row][at])];
    token.style.background = colour ? `rgb(${colour})` : "";
    token.style.color = colour ? readable(colour) : "";
    token.title = row === null ? "" : decimals(rows[row][at]);
    token.classList.toggle("from", at === row);
  });
  readout(rows);
}
function luminance(colour) {  // relative, as WCAG 2.2 defines it
  const [red, green, blue] = colour.map((channel) => channel / 255).map((channel) =>
    channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
function readable(colour) {  // at least 4.5:1
  return luminance(colour) < 0.179 ? "#ffffff" : "#000000";
}
function readout(rows) {
  const { row, column } = state, line = get("readout");
  line.replaceChildren();
  if (row === null) return void line.append("Point at a cell, or a token.");
  const said = (at) => `${tokens[at]} (${at})`;
  if (column !== null) {
    line.append(`${said(row)} looks at ${said(column)} with weight `);
    return void make("b", line, { textContent: decimals(rows[row][column]) });
  }
  const best = rows[row].map((weight, at) => [weight, at]).sort((a, b) => b[0] - a[0]).slice(0, 3);
  line.append(`${said(row)} looks most at `);
  best.forEach(([weight, at], place) => {
    line.append(`${place ? ", " : ""}${said(at)} `);
    make("b", line, { textContent: decimals(weight) });
  });
}

function keys(event) {
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
    Home: [0, -count], End: [0, count] };
  const move = moves[event.key];
  if (!move) return;
  event.preventDefault();
  const clamp = (at) => Math.max(0, Math.min(count - 1, at));
  const fresh = state.row === null || state.column === null;
  choose(fresh ? state.row ?? 0 : clamp(state.row + move[0]),
    fresh ? state.column ?? 0 : clamp(state.column + move[1]));
}
function redraw() {
  paint(get("weights"), weights());
  const layer = data.layers[state.layer];
  const heads = layer.heads.length > 1 ? layer.heads.length : "all";
  const head = state.head === "mean" ? `mean of ${heads} heads` : `head ${state.head}`;
  get("about").textContent =
    `${data.model} · layer ${layer.layer} (of 0 to ${all.modelLayers - 1}), ${head}`;
  highlight();
}
function legend() {
  const bar = document.querySelector(".scale .bar"), long = 220;
  const shades = Array.from({ length: long }, (_, at) => scale * (at / (long - 1)) ** 2);
  paint(bar.querySelector("canvas"), [shades]);
  bar.querySelectorAll("i").forEach((old) => old.remove());
  for (const tick of TICKS) {
    make("i", bar, { textContent: tick }).style.left = `${100 * Math.sqrt(tick)}%`;
  }
}
function start() { layout(); legend(); headPicks(); redraw(); }

use(0);
textPicks();
layerPicks();
strip();
start();
get("map").addEventListener("keydown", keys);
darkness.addEventListener("change", start);
addEventListener("resize", () => { layout(); redraw(); });
document.documentElement.dataset.ready = "yes";
