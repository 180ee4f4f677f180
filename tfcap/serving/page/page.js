"use strict";
/* The page of a portable captioner. worker.js captions the pictures; nothing leaves the browser. */
const byId = (id) => document.getElementById(id);
function element(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}
/* `turn` counts the pictures: an answer to an earlier one is dropped. */
let worker = null, turn = 0;

function tell(text, kind = "") {
  byId("state").className = `state ${kind}`;
  byId("state").textContent = text;
}
function show(captions) {
  byId("text").replaceChildren(captions[0]
    ? captions[0].text || element("i", "", "(empty)")
    : element("span", "none-yet", "The caption comes here."));
  const { confidence } = captions[0] ?? {};
  byId("confidence").textContent = confidence === undefined ? "" : `confidence ${confidence.toFixed(2)}`;
  byId("beams").replaceChildren(...captions.map(({ text, score }) => {
    const row = document.createElement("li"), number = Number.isFinite(score) ? score.toFixed(2) : "–";
    row.append(element("span", "score", number.replace("-", "−")), element("span", "", text || "(empty)"));
    return row;
  }));
}
function showPicture(shown) {
  byId("empty").hidden = shown;
  byId("picture").hidden = !shown;
  byId("stage").classList.toggle("full", shown);
}
function take([file]) {
  if (!file) {
    tell("Only files can be dropped and pasted. Save the picture first.", "error");
    return;
  }
  const name = file.name || "the picture", image = byId("shown");
  URL.revokeObjectURL(image.src);
  image.src = URL.createObjectURL(file);
  image.alt = `The picture ${name}`;
  showPicture(true);
  show([]);
  tell(`Captioning ${name} …`, "busy");
  worker.postMessage({ turn: ++turn, name, file });
}

/* What the worker says. */
const answers = {
  loading: ({ megabytes }) => tell(`Loading the captioner, ${megabytes} MB …`, "busy"),
  ready({ card }) {
    byId("about").textContent = [card.title, card.licence].filter(Boolean).join(" · ");
    tell("Ready.");
    listen();
    keep();
  },
  broken: ({ reason }) => tell(reason, "error"),
  captions(answer) {
    if (answer.turn !== turn) return;
    show(answer.captions);
    tell(`Captioned ${answer.name} in ${answer.seconds.toFixed(2)} s.`);
  },
  failure(answer) {
    if (answer.turn !== turn) return;
    showPicture(false);
    tell(answer.reason, "error");
  },
};

function listen() {
  for (const [button, input] of [["choose", "file"], ["camera", "photo"]]) {
    byId(button).disabled = false;
    byId(button).addEventListener("click", () => byId(input).click());
    byId(input).addEventListener("change", ({ target }) => { if (target.files.length) take(target.files); target.value = ""; });
  }
  byId("stage").addEventListener("click", () => { if (byId("picture").hidden) byId("file").click(); });
  addEventListener("drop", (event) => take(event.dataTransfer.files));
  addEventListener("paste", (event) => take(event.clipboardData.files));
}
/* Keeps the folder in the browser, which only pages of https and of this machine may do. */
async function keep() {
  navigator.serviceWorker?.register("offline.js").catch(() => {});  // without network it is there already
  if (await navigator.serviceWorker?.ready) byId("offline").hidden = false;
}
function start() {
  show([]);
  for (const button of ["choose", "camera"]) byId(button).disabled = true;
  byId("camera").hidden = !matchMedia("(pointer: coarse)").matches;  // others ignore `capture`
  byId("shown").addEventListener("load", ({ target }) =>
    byId("picture").style.setProperty("--ratio", target.naturalWidth / target.naturalHeight));
  addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("over"); });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("over"); });
  addEventListener("drop", (event) => { event.preventDefault(); document.body.classList.remove("over"); });
  if (location.protocol === "file:") {
    tell("Browsers do not run this page from a file. Run python -m http.server in its folder, and open http://localhost:8000.", "error");
    return;
  }
  if (!globalThis.OffscreenCanvas) {
    tell("This browser is too old for the page. Use one of 2023 or later.", "error");
    return;
  }
  tell("Loading the captioner …", "busy");
  worker = new Worker("worker.js");
  worker.addEventListener("message", ({ data }) => answers[data.kind](data));
  worker.addEventListener("error", () =>
    tell("The captioner has stopped. Load the page again. If that does not help, copy the whole folder to the host again.", "error"));
}
start();
