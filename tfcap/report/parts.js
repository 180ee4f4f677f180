"use strict";
/* Builds the page from two JSON elements. `data`: title, keys (scores of images), lower (keys of which
   a lower score is better), runs (name, scores of the corpus), notes, boxes, and images (id, name,
   refs, runs: text, scores, seen). `pictures`: a JPEG in base64, or null, for each image. */
const data = JSON.parse(byId("data").textContent);
const pictures = JSON.parse(byId("pictures").textContent);
const BATCH = 20;
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const DASHES = ["", "7 4", "2 4", "10 3 2 3"];
const several = data.runs.length > 1;
const style = (run) => "run-" + (run % 8);
const letter = (run) => LETTERS[run % LETTERS.length];
const words = (text) => text.split(/\s+/).filter(Boolean);
const fixed = (value, digits = 1) => (value == null ? "–" : value.toFixed(digits));
const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(2);

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

const decoded = new Map();
function boxesOf(index) {
  if (!decoded.has(index)) decoded.set(index, unpackedBoxes(data.boxes[index][0]));
  return decoded.get(index);
}
