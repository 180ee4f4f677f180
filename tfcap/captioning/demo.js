"use strict";
/* The page of `tfcap demo`. attention.js has `element`, `byId` and the words; demo.py describes the
   answers of the server. */
const work = byId("work");
/* `pictures` are those that were dropped together; `picture` is the one that is shown. */
let about = null, models = [], pictures = [], picture = null, turn = 0, stream = null;

/* Asks the server; throws an Error with its sentence. */
async function ask(path, content) {
  const options = content === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content),
  };
  let answer, found;
  try {
    answer = await fetch(path, options);
    found = await answer.json();
  } catch {
    throw new Error("The page has lost its server. Start tfcap demo again, and load this page again.");
  }
  if (!answer.ok) throw new Error(found.error);
  return found;
}
function tell(text, kind = "") {
  byId("state").className = `state ${kind}`;
  byId("state").textContent = text;
}

/* The pictures: from files, a drop, the clipboard or the camera. */
function base64(blob) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => failed(new Error("The browser cannot read the file. Choose it again."));
    reader.readAsDataURL(blob);
  });
}
function showPicture(address) {
  lookAway();
  byId("shown").src = address;
  byId("empty").hidden = true;
  byId("picture").hidden = false;
  byId("stage").classList.add("full");
}
function emptyStage() {
  byId("empty").hidden = false;
  byId("picture").hidden = true;
  byId("stage").classList.remove("full");
}
function tooLarge({ name, file }) {
  if (file.size <= about.most_bytes) return "";
  return `A picture must have at most ${about.most_bytes / 1e6} MB. ${name} has ${(file.size / 1e6).toFixed(1)} MB.`;
}
async function take(files) {
  const taken = [...files].map((file) => ({ name: file.name || "picture.png", file, answers: [] }));
  if (!taken.length) {
    tell("Only files can be dropped and pasted. Save the picture first.", "error");
    return;
  }
  if (taken.length === 1 && tooLarge(taken[0])) {
    tell(tooLarge(taken[0]), "error");
    return;
  }
  for (const old of pictures) URL.revokeObjectURL(old.address);
  pictures = taken;
  for (const one of pictures) Object.assign(one, { address: URL.createObjectURL(one.file), tile: tileOf(one) });
  byId("strip").hidden = pictures.length === 1;
  byId("strip").replaceChildren(...pictures.map((one) => {
    one.tile.firstChild.src = one.address;
    return one.tile;
  }));
  byId("again").disabled = false;
  show(pictures[0]);
  await caption();
}
function tileOf(one) {
  const tile = element("button", { type: "button", title: one.name },
    element("img", { alt: "", loading: "lazy", decoding: "async" }), element("span", {}, one.name));
  tile.addEventListener("click", () => show(one));
  return tile;
}
/* Shows a picture with the captions that it has. */
function show(one) {
  picture = one;
  showPicture(one.address);
  byId("shown").alt = `The picture ${one.name}`;
  for (const other of pictures) other.tile.setAttribute("aria-pressed", other === one);
  for (const [place, model] of models.entries()) {
    model.clear();
    if (one.answers[place]) model.fill(one.answers[place]);
  }
  if (one.problem) tell(`${one.name}: ${one.problem}`, "error");
  else if (one.answers.length) tell(`Captioned ${one.name}.`);
}

/* Captions all pictures, the one that is shown first. */
async function caption() {
  const mine = ++turn, start = performance.now();
  const all = [picture, ...pictures.filter((one) => one !== picture)];
  for (const one of all) Object.assign(one, { answers: [], problem: "" });
  for (const model of models) model.clear();
  for (const [number, one] of all.entries()) {
    tell(`Captioning ${one.name}${all.length > 1 ? `, ${number + 1} of ${all.length}` : ""} …`, "busy");
    try {
      await captionOne(one, mine);
    } catch (error) {
      if (mine === turn) fail(one, error.message);
    }
    if (mine !== turn) return;
    one.tile.lastChild.textContent = one.problem || one.answers[0].captions[0] || "(empty)";
    one.tile.classList.toggle("error", Boolean(one.problem));
  }
  const seconds = ((performance.now() - start) / 1000).toFixed(2), failed = all.filter((one) => one.problem);
  if (all.length > 1) {
    const last = failed.length ? ` ${failed[0].name}: ${failed[0].problem}` : "";
    tell(`Captioned ${all.length - failed.length} of ${all.length} pictures in ${seconds} s.${last}`, failed.length ? "error" : "");
  } else if (!failed.length) tell(`Captioned ${picture.name} in ${seconds} s.`);
}
async function captionOne(one, mine) {
  if (tooLarge(one)) throw new Error(tooLarge(one));
  const request = requestOf(await base64(one.file)), answers = [];
  await Promise.all(models.map(async (model, place) => {
    const answer = await ask(`/v1/models/${model.path}:predict`, request(model));
    if (mine !== turn) return;
    answers[place] = answer.predictions[0];
    if (one === picture) model.fill(answers[place]);
  }));
  if (mine === turn) one.answers = answers;
}
function fail(one, problem) {
  one.problem = problem;
  if (one !== picture) return;
  for (const model of models) model.clear();
  if (!byId("shown").naturalWidth) emptyStage();
  tell(`${one.name}: ${problem}`, "error");
}
function requestOf(b64) {
  const changed = changes(), instance = { image_bytes: { b64 } };
  if (anySamples()) instance.seed = Number(byId("option-seed").value);
  return (model) => ({
    instances: [instance], attention: byId("option-view")?.value ?? "attention",
    ...(changed && !model.about.exported ? { decoding: changed } : {}),
  });
}
/* A model with its captions. */
class Model {
  constructor(said, run) {
    this.about = said;
    this.path = said.path;
    this.text = element("p", { class: "text", "aria-live": "polite", "aria-atomic": "true" });
    this.confidence = element("p", { class: "small confidence" });
    this.beams = element("ol", { class: "beams", "aria-label": `All captions${about.models.length > 1 ? " of " + said.name : ""}, with their scores` });
    const several = about.models.length > 1;
    const title = several ? element("h2", { class: "name" }, element("span", { class: `badge run-${run}` }, "AB"[run]), said.name) : "";
    this.card = element("article", { class: `model caption run-${run}`, "data-model": said.path }, title, this.text, this.confidence, this.beams);
    if (said.exported) this.card.append(element("p", { class: "small" },
      "This is an exported model. It gives no attention: start the page with the directory of the run to see it."));
    const { decoding } = said;
    const wide = decoding ? Math.min(8, decoding.search === "beam" ? decoding.beam : decoding.samples) : 3;
    this.beams.style.setProperty("--beams", wide);
    this.clear();
    byId("models").append(this.card);
  }
  clear() {
    lookAway();
    this.answer = null;
    this.text.replaceChildren(element("span", { class: "none-yet" }, "The caption comes here."));
    this.confidence.textContent = "";
    this.beams.replaceChildren();
  }
  fill(answer) {
    this.answer = answer;
    if (answer.boxes) this.boxes = unpackedBoxes(answer.boxes);
    if (answer.picture && this === models[0]) showPicture(answer.picture);
    this.beams.replaceChildren(...answer.captions.map((text, place) => {
      const score = answer.scores[place];
      const button = element("button", { type: "button" },
        element("span", { class: "score" }, score === null ? "–" : score.toFixed(2).replace("-", "−")), element("span", {}, text || "(empty)"));
      button.addEventListener("click", () => this.show(place));
      return element("li", {}, button);
    }));
    this.show(0);
  }
  show(place) {
    lookAway();
    const { words, log_probs: known, attention, tiles, captions, confidences } = this.answer;
    const sure = confidences?.[place] ?? null;  // null for a number that is not finite, too
    this.confidence.textContent = sure === null ? "" : `confidence ${sure.toFixed(2)}`;
    const logs = known[place], attended = attention?.[place];
    const after = gaps(captions[place], words[place]);
    const parts = words[place].map((word, position) => {
      const span = element("span", { class: "word" }, word);
      const log = logs?.[position];
      this.shade(span, log);
      if (logs || attended) {
        span.classList.add("seen");
        span.tabIndex = position ? -1 : 0;
        const facts = { card: work, about: typeof log === "number" ? `probability ${chance(log)}` : "" };
        if (attended) Object.assign(facts, { attended, position, boxes: () => this.boxes, tiles });
        looks.set(span, facts);
      }
      return [span, after[position]];
    });
    if (parts.length) parts[parts.length - 1][1] = " ";
    if (logs && logs.length > words[place].length) {
      const end = element("span", { class: "word end seen" }, "end"), log = logs[logs.length - 1];
      end.tabIndex = parts.length ? -1 : 0;
      this.shade(end, log);
      looks.set(end, { card: work, about: `probability ${chance(log)} that the caption ends here` });
      parts.push([end]);
    } else if (logs) parts.push([element("span", { class: "small" }, `cut at ${words[place].length} words`)]);
    this.text.replaceChildren(...(captions[place] ? parts.flat() : [element("i", {}, "(empty) "), ...parts.flat()]));
    this.beams.querySelectorAll("button").forEach((button, beam) => button.setAttribute("aria-pressed", beam === place));
  }
  shade(span, log) {
    if (typeof log !== "number") return;
    span.classList.add("sure");
    span.style.setProperty("--p", (100 * Math.exp(log)).toFixed(1));
  }
}
const chance = (log) => (Math.exp(log) >= 0.005 ? Math.exp(log).toFixed(2) : Math.exp(log).toExponential(0));

/* The camera. */
function stopCamera() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  byId("camera-box").close();
}
async function openCamera() {
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch {
    tell("The browser gives no camera. Allow it in the settings of the browser, or choose a file.", "error");
    return;
  }
  byId("video").srcObject = stream;
  byId("camera-box").showModal();
}
function takePhoto() {
  const video = byId("video"), canvas = element("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob((blob) => { stopCamera(); if (blob) take([new File([blob], "camera.jpg")]); }, "image/jpeg", 0.92);
}

/* Decoding options: the form holds the values of the first model, and `changes` what differs. */
const trained = () => about.models.find((model) => model.decoding);
const baseOf = () => about.presets[byId("option-preset").value] ?? trained().decoding;
const chosenSearch = () => byId("option-search")?.value ?? trained()?.decoding.search;
/* An exported model has no options, but one that samples takes a seed. */
const samples = (model) => (model.exported ? model.samples : chosenSearch() === "sample");
const anySamples = () => about.models.some(samples);
function valueOf({ name, kind }) {
  const field = byId(`option-${name}`);
  if (kind === "flag") return field.checked;
  return kind === "integer" || kind === "number" ? Number(field.value) : field.value.trim();
}
function changes() {
  if (!trained()) return "";
  const base = baseOf(), search = chosenSearch();
  const own = about.options.filter((option) => !option.search || option.search === search);
  const changed = own.filter((option) => valueOf(option) !== base[option.name])
    .map((option) => `${option.name}=${valueOf(option)}`);
  return [byId("option-preset").value, ...changed].filter(Boolean).join(",");
}
function setOptions() {
  if (!trained()) return;
  const base = baseOf();
  for (const { name, kind } of about.options) {
    const field = byId(`option-${name}`);
    if (kind === "flag") field.checked = base[name];
    else field.value = base[name];
  }
}
function showOptions() {
  const search = chosenSearch();
  if (trained()) for (const { name, search: only } of about.options) byId(`option-${name}`).closest("label").hidden = Boolean(only) && only !== search;
  byId("option-seed").closest("label").hidden = !anySamples();
  byId("changes").textContent = changes() && `--decoding=${changes()}`;
  byId("again").textContent = anySamples() ? "Draw again" : "Caption again";
}
function buildOptions() {
  const form = byId("options");
  byId("fixed").hidden = about.models.every((model) => !model.exported);
  const labelled = (name, field, hint = "") => {
    field.id = `option-${name}`;
    return element("label", { class: field.type === "checkbox" ? "flag" : "" }, ...(field.type === "checkbox" ? [field, name] : [`${name}${hint && ` (${hint})`}`, field]));
  };
  const choice = (values) => element("select", {}, ...values.map(([value, text]) => element("option", { value }, text)));
  if (trained()) form.append(labelled("preset", choice([["", "of the run"], ...Object.keys(about.presets).map((name) => [name, name])])));
  if (trained()) for (const { name, kind, choices } of about.options) {
    const field = kind === "choice" ? choice(choices.map((value) => [value, value]))
      : kind === "flag" ? element("input", { type: "checkbox" })
      : kind === "text" ? element("input", { type: "text", autocomplete: "off", spellcheck: "false" })
      : element("input", { type: "number", step: kind === "integer" ? 1 : "any", inputmode: "decimal" });
    form.append(labelled(name, field));
  }
  form.append(labelled("seed", element("input", { type: "number", min: 0, max: about.largest_seed, step: 1, value: 1 }), `0 to ${about.largest_seed}`));
  if (trained()) form.append(labelled("view", choice([["attention", "attention weights"], ["contribution", "contribution, by gradients"]]), "of a word"));
  const apply = () => { showOptions(); if (picture) caption(); };
  if (trained()) {
    const reset = element("button", { type: "button" }, "Reset");
    reset.addEventListener("click", () => { byId("option-preset").value = ""; setOptions(); apply(); });
    form.append(reset);
  }
  form.addEventListener("change", (event) => { if (event.target.id === "option-preset") setOptions(); apply(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  setOptions();
  showOptions();
}

function listen() {
  const stage = byId("stage"), file = byId("file");
  byId("choose").addEventListener("click", () => file.click());
  stage.addEventListener("click", () => { if (!picture) file.click(); });
  file.addEventListener("change", () => { if (file.files.length) take(file.files); file.value = ""; });
  byId("again").addEventListener("click", () => {
    if (chosenSearch() === "sample") byId("option-seed").value = (Number(byId("option-seed").value) + 1) % (about.largest_seed + 1);
      caption();
  });
  byId("shown").addEventListener("load", () => {
    const { naturalWidth, naturalHeight } = byId("shown");
    byId("picture").style.setProperty("--ratio", naturalWidth / naturalHeight);
  });
  addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("over"); });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("over"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("over");
    take(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => {
    if (event.target.closest?.("input, select")) return;
    take(event.clipboardData.files);
  });
  addEventListener("keydown", (event) => { if (event.key === "Escape") lookAway(); });
  byId("camera").hidden = !navigator.mediaDevices?.getUserMedia;
  byId("camera").addEventListener("click", openCamera);
  byId("take").addEventListener("click", takePhoto);
  byId("cancel").addEventListener("click", stopCamera);
  byId("camera-box").addEventListener("cancel", stopCamera);
  watchWords(byId("models"));
}
async function start() {
  try {
    about = await ask("/about");
  } catch (error) {
    tell(error.message, "error");
    return;
  }
  byId("about").textContent = about.models.map((model) => model.about).join(" · ");
  byId("models").classList.toggle("several", about.models.length > 1);
  models = about.models.map((said, run) => new Model(said, run));
  const knows = about.models.some((model) => model.decoding);  // a SavedModel has none, and no probabilities
  byId("scale").hidden = !knows;
  byId("hint").textContent = `${pointAt} to see its attention.`;
  buildOptions();
  listen();
  tell("Ready.");
}
start();
