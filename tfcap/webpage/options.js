"use strict";
/* Decoding options: the form holds the values of the first model, and `changes` what differs. */
const trained = () => about.models.find((model) => model.decoding);
const baseOf = () => about.presets[byId("option-preset").value] ?? trained().decoding;
/* The decoding of the command line: what was given at its start, which a preset replaces, and `changes`. */
function decodingFlag() {
  const changed = changes().split(",").filter(Boolean), key = (part) => part.split("=")[0];
  if (!trained() || byId("option-preset").value) return changed.join(",");
  const given = trained().given_decoding.split(",").filter(Boolean);
  return [...given.filter((part) => !changed.some((one) => key(one) === key(part))), ...changed].join(",");
}
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
  byId("changes").textContent = decodingFlag() && `--decoding=${decodingFlag()}`;
  byId("again").textContent = anySamples() ? "Draw again" : "Caption again";
  fillRequests();
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

/* The same request with curl. */
const quoted = (text) => (/^[\w./:=,@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
function curl(address, after) {
  const name = picture ? picture.name : "photo.jpg";
  return `{ printf '%s' '{"instances": [{"image_bytes": {"b64": "'; base64 < ${quoted(name)} | tr -d '\\n'; printf '%s' ${quoted(`"}${after}`)}; } |\n  curl -d @- ${address}`;
}
function fillRequests() {
  const changed = changes(), model = about.models[0], sampled = samples(model);
  const seed = sampled ? Number(byId("option-seed").value) : null;
  byId("curl-page").textContent = curl(`${location.origin}/v1/models/${model.path}:predict`,
    `${sampled ? `, "seed": ${seed}` : ""}}]${changed && !model.exported ? `, "decoding": ${JSON.stringify(changed)}` : ""}}`);
  const flags = model.directories.map((directory) => `--model_dir ${quoted(directory)}`).join(" ");
  const decoding = decodingFlag(), more = model.flags.map((flag) => ` ${quoted(flag)}`).join("");
  const exporting = `python -m tfcap.export ${flags}${more} --export_dir served${decoding ? ` --decoding=${quoted(decoding)}` : ""}\n`;
  const serving = 'tensorflow_model_server --model_name=captions --model_base_path="$PWD"/served --rest_api_port=8501\n';
  // The seed of an export is that of one picture: 2^40 times the seed of a set of pictures.
  const after = `${sampled ? `, "seed": ${BigInt(Math.trunc(seed) || 0) << 40n}` : ""}}]}`;
  byId("export-told").firstChild.textContent = model.exported ? "To TF Serving (" : "To TF Serving, after an export with the same options (";
  byId("curl-served").textContent = (model.exported ? "" : exporting + serving) + curl("http://localhost:8501/v1/models/captions:predict", after);
}
