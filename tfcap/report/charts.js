"use strict";
/* Shows the table of corpus scores. */
function fillScores() {
  const keys = [...new Set(data.runs.flatMap((run) => run.scores.map((score) => score.key)))];
  const drawn = data.runs.some((run) => run.scores.some((score) => "low" in score));
  const head = element("tr", {}, element("th", { scope: "col" }, "Score"));
  data.runs.forEach((run, index) =>
    head.append(element("th", { scope: "col", title: run.name }, several ? badge(index) : "", run.name)));
  if (drawn) head.append(element("th", { scope: "col" }, several ? "Intervals" : "Interval, from 0"));
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
    if (drawn) row.append(element("td", {}, whiskers(found, key)));
    body.append(row);
  }
  byId("scores").append(element("thead", {}, head), body);
}

function whiskers(found, key) {
  const height = 12 * found.length + (several ? 4 : 16);
  const ends = found.filter(Boolean).flatMap((score) => [score.low ?? score.value, score.high ?? score.value]);
  // Runs are compared on the scale of a score. The scores of one run have a common one, 0 to 100;
  // CIDEr can be larger.
  const [least, most] = several ? [Math.min(...ends), Math.max(...ends)] : [0, Math.max(100, ...ends)];
  const span = most - least || 1;
  const at = (value) => 8 + (184 * (value - least)) / span;
  const svg = element("svg:svg", { width: 200, height, viewBox: `0 0 200 ${height}`, role: "img", "aria-label": `intervals of ${key}` });
  if (!several) svg.append(
    element("svg:line", { class: "axis", x1: 8, x2: 192, y1: 16, y2: 16 }),
    element("svg:text", { x: 8, y: 27 }, "0"),
    element("svg:text", { x: 192, y: 27, "text-anchor": "end" }, fixed(most, 0)));
  found.forEach((score, run) => {
    if (!score) return;
    const y = 8 + 12 * run, group = element("svg:g", { class: style(run) });
    group.append(
      element("svg:line", { class: "run", x1: at(score.low ?? score.value), x2: at(score.high ?? score.value), y1: y, y2: y }),
      element("svg:circle", { class: "dot", cx: at(score.value), cy: y, r: 5 }));
    svg.append(group);
  });
  return svg;
}

/* Draws a distribution: an area for the references and a line for each run. */
function chart(figure, series, labels, caption) {
  const [width, height, left, bottom] = [560, 220, 38, 30];
  const top = Math.max(...series.flatMap((one) => one.shares), 1e-9) * 1.08;
  const x = (bin) => left + ((width - left - 8) * (bin + 0.5)) / labels.length;
  const y = (share) => (height - bottom) * (1 - share / top) + 4;
  const svg = element("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": caption });
  for (const part of [0, 0.5, 1]) {
    const share = (part * top) / 1.08;
    svg.append(element("svg:line", { class: "axis", x1: left, x2: width - 8, y1: y(share), y2: y(share) }),
      element("svg:text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, Math.round(100 * share) + "%"));
  }
  const every = Math.ceil(labels.length / 14);
  labels.forEach((label, bin) => {
    if (bin % every === 0) svg.append(element("svg:text", { x: x(bin), y: height - 8, "text-anchor": "middle" }, label));
  });
  for (const { run, shares } of series) {
    const points = shares.map((share, bin) => `${x(bin).toFixed(1)},${y(share).toFixed(1)}`);
    if (run === null) {
      svg.append(element("svg:polygon", { class: "area", points: `${x(0)},${y(0)} ${points.join(" ")} ${x(shares.length - 1)},${y(0)}` }));
      continue;
    }
    const group = element("svg:g", { class: style(run) });
    group.append(element("svg:polyline", { class: "run", points: points.join(" "), "stroke-dasharray": DASHES[run % DASHES.length] }));
    const peak = shares.indexOf(Math.max(...shares));
    if (several) group.append(element("svg:circle", { class: "dot", cx: x(peak), cy: y(shares[peak]), r: 8 }),
      element("svg:text", { x: x(peak), y: y(shares[peak]) + 4, "text-anchor": "middle", class: "inside" }, letter(run)));
    svg.append(group);
  }
  figure.replaceChildren(svg, element("figcaption", {}, caption));
}
const shares = (values, bins) => {
  const counts = new Array(bins).fill(0);
  for (const value of values) counts[Math.min(bins - 1, Math.max(0, value))] += 1 / values.length;
  return counts;
};
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / (values.length || 1);

function fillLengths() {
  const references = data.images.flatMap((image) => image.refs.map((text) => words(text).length));
  const runs = data.runs.map((_, run) => data.images.map((image) => words(image.runs[run].text).length));
  const sorted = [...references, ...runs.flat()].sort((a, b) => a - b);
  const bins = Math.min(60, Math.max(2, (sorted[Math.floor(0.995 * (sorted.length - 1))] ?? 1) + 2));
  const series = [{ run: null, shares: shares(references, bins) }];
  runs.forEach((lengths, run) => series.push({ run, shares: shares(lengths, bins) }));
  const means = runs.map((lengths, run) => `${several ? letter(run) + " " : "captions "}${mean(lengths).toFixed(1)}`);
  chart(byId("lengths"), series, [...Array(bins).keys()].map((n) => (n === bins - 1 ? n + "+" : String(n))),
    `Mean: references (grey area) ${mean(references).toFixed(1)}, ${means.join(", ")} words`);
}
