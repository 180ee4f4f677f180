"use strict";
/* Builds the page from two JSON elements. `data`: title, keys (scores of images), runs (name, scores
   of the corpus), notes, boxes, and images (id, name, refs, runs: text, scores, seen). `pictures`:
   a JPEG in base64, or null, for each image. Text is added to the page only as text nodes. */
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const pictures = JSON.parse(byId("pictures").textContent);
const BATCH = 20;
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const DASHES = ["", "7 4", "2 4", "10 3 2 3"];
const several = data.runs.length > 1;
const style = (run) => "run-" + (run % 8);
const letter = (run) => LETTERS[run % LETTERS.length];
const words = (text) => text.split(/\s+/).filter(Boolean);
const fixed = (value, digits = 1) => (value === null ? "–" : value.toFixed(digits));
const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(2);

function element(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
const badge = (run) => element("span", { class: "badge " + style(run), title: data.runs[run].name }, letter(run));


/* Returns the positions of the longest common subsequence of words in both captions. */
function common(one, two) {
  const best = Array.from({ length: one.length + 1 }, () => new Uint16Array(two.length + 1));
  for (let i = one.length - 1; i >= 0; i--)
    for (let j = two.length - 1; j >= 0; j--)
      best[i][j] = one[i] === two[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  const [inOne, inTwo] = [new Set(), new Set()];
  for (let i = 0, j = 0; i < one.length && j < two.length; ) {
    if (one[i] === two[j]) { inOne.add(i++); inTwo.add(j++); }
    else if (best[i + 1][j] >= best[i][j + 1]) i++;
    else j++;
  }
  return [inOne, inTwo];
}
/* Returns the positions of words that differ: for each run from the first run, for the first run from all others. */
function differing(captions) {
  const lower = captions.map((caption) => caption.map((word) => word.toLowerCase()));
  const shared = new Set(), apart = [null];
  for (let run = 1; run < lower.length; run++) {
    const [inFirst, inRun] = common(lower[0], lower[run]);
    inFirst.forEach((position) => shared.add(position));
    apart.push(lower[run].map((_, position) => position).filter((position) => !inRun.has(position)));
  }
  apart[0] = several ? lower[0].map((_, position) => position).filter((position) => !shared.has(position)) : [];
  return apart.map((positions) => new Set(positions));
}

/* Shows the attention of a word over the picture. */
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const decoded = new Map();
function boxesOf(index) {
  if (!decoded.has(index)) {
    const view = new DataView(bytes(data.boxes[index][0]).buffer);
    decoded.set(index, Array.from({ length: view.byteLength / 8 }, (_, box) =>
      [0, 2, 4, 6].map((offset) => view.getUint16(8 * box + offset, true) / 65.535)));
  }
  return decoded.get(index);
}
const looks = new WeakMap(); // element of a word -> its attention
let active = null;
function look(word) {
  if (active === word) return;
  lookAway();
  const { card, seen, position } = looks.get(word);
  const boxes = boxesOf(seen.boxes);
  seen.bytes ??= bytes(seen.weights);
  const weights = seen.bytes.subarray(position * boxes.length, (position + 1) * boxes.length);
  const strongest = weights.indexOf(Math.max(...weights));
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
  if (strongest >= 0 && seen.peaks[position] > 0) {
    // Keeps the outline inside the picture, where it is not cut off.
    const [x1, y1, x2, y2] = boxes[strongest].map((at) => Math.min(992, Math.max(8, at)));
    const inside = { x: x1, y: y1, width: x2 - x1, height: y2 - y1 };
    draw(strongest, { ...inside, class: "strongest-back" });
    draw(strongest, { ...inside, class: "strongest" });
  }
  const picture = card.querySelector(".picture");
  picture.append(svg);
  word.classList.add("on");
  const where = `in ${data.boxes[seen.boxes][1] ? "cell" : "region"} ${strongest + 1} of ${boxes.length}`;
  const peak = seen.peaks[position];
  card.querySelector(".told").textContent = `“${seen.words[position]}”: ` + (peak > 0
    ? `strongest ${where}, ${seen.kind} ${peak.toFixed(2)} (uniform ${(1 / boxes.length).toFixed(2)})`
    : "no region has a positive contribution");
  active = word;
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
