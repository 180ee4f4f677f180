"use strict";
/* Builds the page from two JSON elements. `data`: title, keys (scores of images), lower (keys of which
   a lower score is better), runs (name, scores of the corpus), notes, figure, boxes, and images (id, name,
   refs, runs: text, words if spaces do not divide the text, scores, attended). `pictures`: a JPEG in base64,
   or null, for each image. The captions of a folder have no references, no scores of a corpus, and an empty id. */
const data = JSON.parse(byId("data").textContent);
const pictures = JSON.parse(byId("pictures").textContent);
const BATCH = 20;
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const several = data.runs.length > 1;
const scored = data.runs.some((run) => run.scores.length), references = data.images.some((image) => image.refs.length);
const style = (run) => "run-" + (run % 8);
const letter = (run) => LETTERS[run % LETTERS.length];
const words = (text) => text.split(/\s+/).filter(Boolean);
const wordsOf = (caption) => caption.words || words(caption.text);
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

/* Shows the table of corpus scores. */
function fillScores() {
  const keys = [...new Set(data.runs.flatMap((run) => run.scores.map((score) => score.key)))];
  const head = element("tr", {}, element("th", { scope: "col" }, "Score"));
  data.runs.forEach((run, index) =>
    head.append(element("th", { scope: "col", title: run.name }, several ? badge(index) : "", run.name)));
  const body = element("tbody");
  for (const key of keys) {
    const found = data.runs.map((run) => run.scores.find((score) => score.key === key));
    const row = element("tr", {}, element("th", { scope: "row" }, key + (data.lower.includes(key) ? " (lower is better)" : "")));
    for (const score of found) {
      const cell = element("td", {}, element("b", {}, score ? fixed(score.value, 2) : "–"));
      if (score && "low" in score)
        cell.append(element("span", { class: "ends" }, `${fixed(score.low)} to ${fixed(score.high)}`));
      if (score && score.change) {
        const [value, low, high, verdict] = score.change;
        const arrow = verdict === "higher" ? "▲ " : verdict === "lower" ? "▼ " : "";
        cell.append(element("span", {
          class: "change" + (arrow ? " certain" : ""),
          title: `${signed(low)} to ${signed(high)} against ${data.runs[0].name}: ${verdict}`,
        }, arrow + signed(value)));
      }
      row.append(cell);
    }
    body.append(row);
  }
  byId("scores").append(element("thead", {}, head), body);
}

/* Reads the controls. */
const scoreOf = (image, run, metric) => data.images[image].runs[run].scores[metric];
const state = () => {
  const run = Number(byId("run").value || 0), metric = Number(byId("metric").value || 0);
  return {
    run, metric, find: byId("find").value.trim().toLowerCase(), sort: byId("sort").value,
    direction: Number(byId("direction").value),
  };
};
const others = (run) => (run === 0 && several ? 1 : run); // differences are relative to the first run
const collator = new Intl.Collator("en", { numeric: true });
const haystacks = data.images.map((image) =>
  [image.name, image.id, ...image.runs.map((run) => run.text), ...image.refs].join("\n").toLowerCase());

function arranged(now) {
  const sought = words(now.find);
  const key = {
    score: (image) => scoreOf(image, now.run, now.metric) ?? now.direction * Infinity, // always last
    difference: (image) => (scoreOf(image, others(now.run), now.metric) ?? 0) - (scoreOf(image, 0, now.metric) ?? 0),
    order: (image) => image,
  }[now.sort];
  const kept = data.images.map((_, image) => image)
    .filter((image) => sought.every((word) => haystacks[image].includes(word)));
  if (now.sort === "name")
    return kept.sort((a, b) => now.direction * collator.compare(data.images[a].name, data.images[b].name) || a - b);
  const keys = new Map(kept.map((image) => [image, key(image)]));
  return kept.sort((a, b) => now.direction * (keys.get(a) - keys.get(b)) || a - b);
}

/* Builds the card of an image. */
function picture(index, alt) {
  if (pictures[index]) return element("img", { src: "data:image/jpeg;base64," + pictures[index], alt, decoding: "async" });
  return element("div", { class: "none" }, "no picture");
}
function captionElement(card, index, run, apart, now) {
  const { text, scores, attended } = data.images[index].runs[run];
  const caption = element("p", { class: "text" });
  const all = wordsOf(data.images[index].runs[run]), after = gaps(text, all);
  all.forEach((word, position) => {
    const span = element("span", { class: "word" + (apart.has(position) ? " differs" : "") }, word);
    if (attended && position < attended.words.length) {
      span.classList.add("seen");
      span.tabIndex = position === 0 ? 0 : -1;
      looks.set(span, { card, attended, position, boxes: () => boxesOf(attended.boxes), tiles: data.boxes[attended.boxes][1] });
    }
    caption.append(span, after[position]);
  });
  if (!all.length) caption.append(element("i", {}, "(empty)"));
  const points = element("p", { class: "points" });
  const shown = (metric) => fixed(scores[metric], data.keys[metric] === "confidence" ? 2 : 1);
  if (data.keys.length) points.append(element("b", {}, `${data.keys[now.metric]} ${shown(now.metric)}`));
  data.keys.forEach((key, metric) => {
    if (metric !== now.metric && !/^BLEU-[123]$/.test(key)) points.append(` · ${key} ${shown(metric)}`);
  });
  const name = several ? element("h3", {}, badge(run), data.runs[run].name) : "";
  return element("div", { class: "caption " + style(run) }, name, caption, points);
}
function cardOf(index, now) {
  const image = data.images[index];
  const apart = differing(image.runs.map(wordsOf));
  const card = element("article", { class: "card", "data-image": index });
  const figure = element("figure", { class: "picture" }, picture(index, image.refs[0] ?? image.name));
  const left = element("div", { class: "left" }, figure);
  if (image.runs.some((run) => run.attended)) left.append(element("p", { class: "told", "aria-live": "polite" }));
  const captions = element("div", { class: "captions" });
  image.runs.forEach((_, run) => captions.append(captionElement(card, index, run, apart[run], now)));
  const name = image.name === image.id ? `image ${image.id}` : image.name + (image.id && ` · image ${image.id}`);
  card.append(left, element("h3", { class: "name" }, name), captions);
  if (image.refs.length)
    card.append(element("ul", { class: "references", "aria-label": "References" }, ...image.refs.map((text) => element("li", {}, text))));
  return card;
}

/* Adds images to the list while its end is near the screen. */
let order = [], done = 0, cards = new Map(), cardsFor = -1;
function grow() {
  const now = state();
  const next = order.slice(done, done + BATCH);
  done += next.length;
  byId("list").append(...next.map((index) => {
    if (!cards.has(index)) cards.set(index, cardOf(index, now));
    return cards.get(index);
  }));
}
const nearEnd = () => done < order.length && byId("more").getBoundingClientRect().top < innerHeight + 1200;
function refresh() {
  const now = state();
  if (cardsFor !== now.metric) { cards = new Map(); cardsFor = now.metric; }
  lookAway();
  order = arranged(now);
  done = 0;
  byId("list").replaceChildren();
  grow();
  byId("count").textContent = order.length === data.images.length
    ? `${order.length.toLocaleString("en")} images`
    : `${order.length.toLocaleString("en")} of ${data.images.length.toLocaleString("en")} images`;
}
new IntersectionObserver(() => { while (nearEnd()) grow(); }, { rootMargin: "1200px" }).observe(byId("more"));
addEventListener("scroll", () => { while (nearEnd()) grow(); }, { passive: true });

/* Updates the parts that depend on the chosen score and run. */
function fillChosen() {
  byId("ends").parentElement.hidden = !scored;
  if (!scored) return;
  const now = state(), name = data.keys[now.metric];
  const direction = data.lower.includes(name) ? 1 : -1; // the best first
  const ranked = arranged({ ...now, find: "", sort: "score", direction });
  const each = Math.min(6, Math.floor(ranked.length / 2)); // no image is in both rows
  const rows = [["Best", ranked.slice(0, each)], ["Worst", ranked.slice(ranked.length - each).reverse()]];
  if (several) {
    const changed = arranged({ ...now, find: "", sort: "difference", direction });
    const change = (index) => -direction * ((scoreOf(index, others(now.run), now.metric) ?? 0) - (scoreOf(index, 0, now.metric) ?? 0));
    const gains = changed.filter((index) => change(index) > 0), losses = changed.filter((index) => change(index) < 0).reverse();
    rows.push([`${letter(others(now.run))} better than A`, gains.slice(0, 6)], [`${letter(others(now.run))} worse than A`, losses.slice(0, 6)]);
  }
  byId("ends").replaceChildren(...rows.flatMap(([title, images], place) => {
    const run = place > 1 ? others(now.run) : now.run;
    return [
      element("p", { class: "row-title" }, `${title}, by ${name}${several && place < 2 ? " of " + letter(run) : ""}`),
      element("div", { class: "row" }, ...images.map((index) => {
        const score = scoreOf(index, run, now.metric);
        const shown = place > 1 ? signed((score ?? 0) - (scoreOf(index, 0, now.metric) ?? 0)) : fixed(score);
        const tile = element("button", { class: "tile", type: "button" }, picture(index, ""),
          element("span", {}, element("b", {}, shown), data.images[index].runs[run].text));
        tile.addEventListener("click", () => open(index));
        return tile;
      })),
    ];
  }));
}
function open(index) {
  lookAway();
  byId("one-card").replaceChildren(cardOf(index, state()));
  byId("one").showModal();
}

function start() {
  byId("title").textContent = data.title;
  const counted = [[data.images.length, "images"]];
  if (references) counted.push([data.images.reduce((sum, image) => sum + image.refs.length, 0), "reference captions"]);
  byId("about").textContent = counted.map(([count, what]) => `${count.toLocaleString("en")} ${what}`).join(", ");
  byId("scores").closest("section").hidden = !scored && !data.notes.length;
  byId("metric").parentElement.hidden = data.keys.length < 2;
  byId("find").placeholder = `words of a caption${references ? ", a reference" : ""} or a file name`;
  if (several) data.runs.forEach((run, index) => byId("legend").append(element("li", {}, badge(index), run.name)));
  byId("figure").innerHTML = data.figure || "";  // of `visualize.calibration`, which escapes names
  data.notes.forEach((note) => byId("notes").append(element("li", {}, note)));
  const options = (id, entries) => byId(id).append(...entries.map(([value, text]) => element("option", { value }, text)));
  options("sort", [["score", "score"], ...(several ? [["difference", "difference to A"]] : []),
    ["name", "file name"], ["order", "order of the data"]]);
  // A folder is shown in its order.
  for (const [id, value] of scored ? [] : [["sort", "order"], ["direction", "1"]])
    [...byId(id).options].forEach((option) => { option.defaultSelected = option.value === value; });
  options("metric", data.keys.map((key, metric) => [metric, key]));
  const preferred = Math.max(0, data.keys.indexOf("CIDEr"));
  [...byId("metric").options].forEach((option, metric) => { option.defaultSelected = metric === preferred; });
  options("run", data.runs.map((run, index) => [index, `${letter(index)} ${run.name}`]));
  byId("run-label").hidden = byId("shown").hidden = !several;
  byId("hint").textContent = `${pointAt} to see its attention in the picture.`;
  byId("hint").hidden = !data.images.some((image) => image.runs.some((run) => run.attended));
  byId("list").classList.toggle("single", !several);
  data.runs.forEach((run, index) => {
    const box = element("input", { type: "checkbox", checked: "" });
    box.addEventListener("change", () => byId("list").classList.toggle("hide-" + (index % 8), !box.checked));
    byId("shown").append(element("label", {}, box, badge(index), run.name));
  });
  byId("tools").addEventListener("submit", (event) => event.preventDefault());
  byId("clear").addEventListener("click", () => {
    byId("tools").reset();
    data.runs.forEach((_, index) => byId("list").classList.remove("hide-" + (index % 8)));
    fillChosen();
    refresh();
  });
  byId("find").addEventListener("input", refresh);
  for (const id of ["sort", "direction"]) byId(id).addEventListener("change", refresh);
  for (const id of ["metric", "run"]) byId(id).addEventListener("change", () => { fillChosen(); refresh(); });
  addEventListener("keydown", (event) => { if (event.key === "Escape") lookAway(); });
  watchWords(byId("list"));
  watchWords(byId("one-card"));
  fillScores();
  fillChosen();
  refresh();
}
start();
