"use strict";
/* What pages of captions share: elements, and the attention of a word over its picture. Text is added
   to a page only as text nodes. */
const byId = (id) => document.getElementById(id);
function element(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
/* Returns what stands in a text after each of its words: a space, or nothing. */
function gaps(text, words) {
  let end = 0;
  return words.map((word) => {
    end = Math.max(end, text.indexOf(word, end)) + word.length;
    return /\s/.test(text.slice(end, end + 1)) ? " " : "";
  });
}
const pointAt = globalThis.matchMedia?.("(hover: none)").matches
  ? "Tap a word" : "Point at a word, or select it with Tab and the arrow keys,";
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
/* Returns the corners x1, y1, x2, y2 of boxes in thousandths of the picture, from little-endian uint16. */
function unpackedBoxes(text) {
  const view = new DataView(bytes(text).buffer);
  return Array.from({ length: view.byteLength / 8 }, (_, box) =>
    [0, 2, 4, 6].map((offset) => view.getUint16(8 * box + offset, true) / 65.535));
}

/* Element of a word -> card (holds .picture and .told) and about (what to say of the word, may be
   missing). If its attention is known, also attended (weights and peaks, see `report.packed_weights`, and
   kind), position of the word, boxes (a function), and tiles (whether the boxes are cells of a grid). */
const looks = new WeakMap();
let active = null;
function look(word) {
  if (active === word) return;
  lookAway();
  const { card, about, ...own } = looks.get(word);
  const facts = [about, own.attended && drawAttention(card.querySelector(".picture"), own)].filter(Boolean);
  card.querySelector(".told").textContent = `“${word.textContent}”: ${facts.join("; ")}`;
  word.classList.add("on");
  active = word;
}
/* Draws the attention of a word over the picture; returns a sentence on it. */
function drawAttention(picture, { attended, position, boxes: boxesOfWord, tiles }) {
  const boxes = boxesOfWord();
  attended.bytes ??= bytes(attended.weights);
  const weights = attended.bytes.subarray(position * boxes.length, (position + 1) * boxes.length);
  const strongest = weights.indexOf(Math.max(...weights));
  const peak = attended.peaks[position], uniform = 1 / boxes.length;
  // As `figures._spread_evenly`: shading would only darken the whole picture.
  if (peak > 0 && peak < uniform * (2 - uniform))
    return `spread evenly, ${attended.kind} at most ${peak.toFixed(2)} (uniform ${uniform.toFixed(2)})`;
  const svg = element("svg:svg", { viewBox: "0 0 1000 1000", preserveAspectRatio: "none", class: "overlay" });
  const rect = (box, attributes) => element("svg:rect", {
    x: boxes[box][0], y: boxes[box][1], width: boxes[box][2] - boxes[box][0], height: boxes[box][3] - boxes[box][1],
    "vector-effect": "non-scaling-stroke", ...attributes,
  });
  const draw = (box, attributes) => svg.append(rect(box, attributes));
  // Regions without weight become dark. Regions with weight get a tint, visible on dark pictures.
  const shade = element("svg:mask", { id: "shade" }, element("svg:rect", { width: 1000, height: 1000, fill: "#fff" }));
  svg.append(shade, element("svg:rect", { class: "shade", width: 1000, height: 1000, mask: "url(#shade)" }));
  [...weights.keys()].filter((box) => weights[box] > 5).forEach((box) => {
    shade.append(rect(box, { fill: "#000", "fill-opacity": (weights[box] / 255).toFixed(3) }));
    draw(box, { class: "region", "fill-opacity": (0.3 * weights[box] / 255).toFixed(3) });
  });
  if (strongest >= 0 && peak > 0) {
    // Keeps the outline inside the picture, where it is not cut off.
    const [x1, y1, x2, y2] = boxes[strongest].map((at) => Math.min(992, Math.max(8, at)));
    const inside = { x: x1, y: y1, width: x2 - x1, height: y2 - y1 };
    draw(strongest, { ...inside, class: "strongest-back" });
    draw(strongest, { ...inside, class: "strongest" });
  }
  picture.append(svg);
  const where = `in ${tiles ? "cell" : "region"} ${strongest + 1} of ${boxes.length}`;
  return peak > 0
    ? `strongest ${where}, ${attended.kind} ${peak.toFixed(2)} (uniform ${uniform.toFixed(2)})`
    : "no region has a positive contribution";
}
function lookAway() {
  if (!active) return;
  const { card } = looks.get(active);
  card.querySelectorAll(".overlay").forEach((svg) => svg.remove());
  card.querySelector(".told").textContent = "";
  active.classList.remove("on");
  active = null;
}
function watchWords(root) {
  const wordAt = (event) => (looks.has(event.target) ? event.target : null);
  root.addEventListener("pointerover", (event) => { const word = wordAt(event); if (word) look(word); });
  root.addEventListener("pointerout", (event) => { if (wordAt(event) && event.pointerType === "mouse") lookAway(); });
  root.addEventListener("focusin", (event) => { const word = wordAt(event); if (word) look(word); });
  root.addEventListener("focusout", (event) => { if (wordAt(event)) lookAway(); });
  root.addEventListener("keydown", (event) => {
    const word = wordAt(event);
    if (!word) return;
    const all = [...word.parentNode.querySelectorAll(".word")], position = all.indexOf(word);
    const next = { ArrowRight: all[position + 1], ArrowLeft: all[position - 1], Home: all[0], End: all[all.length - 1] }[event.key];
    if (next) {
      event.preventDefault();
      word.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
  });
}
