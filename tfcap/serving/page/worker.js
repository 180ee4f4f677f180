"use strict";
/* Captions pictures in a thread of its own, so that the page never waits. The engine is the WebAssembly of
   LiteRT.js. It is called as the script of its package calls it; that script does not run in such a thread. */
importScripts("engine/litert_wasm_compat_internal.js");

/* Loads a file of the folder, and tells the page how much of it is there. */
async function load(name) {
  const parts = [];
  let size = 0;
  try {
    const answer = await fetch(name);
    if (!answer.ok) throw new Error(answer.status);
    const reader = answer.body.getReader();
    for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
      parts.push(value);
      size += value.length;
      if (size > 1e6) postMessage({ kind: "loading", megabytes: (size / 1e6).toFixed(0) });
    }
  } catch (error) {
    throw new Error(`${name}: ${error.message}`);
  }
  return new Blob(parts);
}

/* The captioner. */
class Captioner {
  async load() {
    this.card = JSON.parse(await (await load("captioner.json")).text());
    this.words = (await (await load("words.txt")).text()).split("\n");
    const content = new Uint8Array(await (await load(this.card.file)).arrayBuffer());
    const engine = this.engine = await ModuleFactory({ locateFile: (name) => `engine/${name}`, printErr() {} });
    const place = engine._malloc(content.length);
    engine.HEAPU8.set(content, place);
    this.environment = engine.LiteRtEnvironment.create(null);
    this.model = engine.loadModel(this.environment, place, content.length);
    this.compiled = await engine.compileModel(this.environment, this.model, {
      environment: this.environment, accelerator: "wasm", cpuOptions: { numThreads: 1 }, gpuOptions: {}, webNNOptions: {},
    });
    this.names = this.model.getSignature(0);
  }
  /* Returns the outputs of the model by name, from its inputs by name: Float32Arrays. */
  async run(inputs) {
    const { engine, names } = this, lock = engine.LiteRtTensorBufferLockMode;
    const given = listed(names.inputNames()).map((name, place) => {
      const type = this.model.getInputTensorType(0, place), size = type.bytes();
      const buffer = engine.LiteRtTensorBuffer.createManaged(
        this.environment, engine.LiteRtTensorBufferType.HOST_MEMORY, type, size);
      engine.HEAPU8.set(new Uint8Array(inputs[name](size / 4).buffer), buffer.lock(lock.WRITE));
      buffer.unlock();
      type.delete();
      return buffer;
    });
    const made = await this.compiled.run(0, given);
    const outputs = {};
    for (const [place, name] of listed(names.outputNames()).entries()) {
      const start = made[place].lock(lock.READ), Kind = name === "tokens" ? Int32Array : Float32Array;
      outputs[name] = new Kind(engine.HEAPU8.slice(start, start + made[place].packedSize()).buffer);
      made[place].unlock();
    }
    for (const buffer of [...given, ...made]) buffer.delete();
    return outputs;
  }
  /* Returns all captions of a picture, best first, with their scores, and confidences if the model has them. */
  async caption(file, name) {
    const { image_size: side, resize } = this.card;
    const images = await pixels(file, name, side, resize === "pillow");
    const { tokens, scores, confidences } = await this.run({
      images: () => images,
      draws: (size) => Float32Array.from({ length: size }, Math.random),
    });
    const filled = scores.filter((score, place) => !place || score > -1e8);  // a slot of the beam may be empty
    return Array.from(filled, (score, place) => {
      const ids = tokens.slice(place * tokens.length / scores.length, (place + 1) * tokens.length / scores.length);
      const end = ids.findIndex((id) => id === 0 || id === 2);  // PAD or EOS
      const words = Array.from(ids.slice(0, end < 0 ? undefined : end), (id) => this.words[id]);
      return { text: this.joined(words), score, confidence: confidences?.[place] };
    });
  }
  /* Joins words to a caption, without spaces in languages that have none. */
  joined(words) {
    const joining = this.card.joining || [];  // of what each finds, the group stays
    return joining.reduce((text, pattern) => text.replace(new RegExp(pattern, "gu"), "$1"), words.join(" "));
  }
}
function listed(vector) {
  const names = Array.from({ length: vector.size() }, (_, place) => vector.get(place));
  vector.delete();
  return names;
}

/* Returns the pixels of a picture that stands upright, as the model reads them: RGB, 0 to 255,
   side x side. As in Python, profiles of colours are ignored. Transparent parts are black. */
async function pixels(file, name, side, rounds) {
  let picture;
  try {
    picture = await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  } catch {
    throw new Error(`${name} is no picture that this browser can read, or it is damaged. Choose a JPEG, PNG or WebP file.`);
  }
  // By strips: a canvas of some phones has at most 16 million pixels.
  const { width, height } = picture, strip = Math.min(height, Math.ceil(4e6 / width));
  const context = new OffscreenCanvas(width, strip).getContext("2d", { alpha: false, willReadFrequently: true });
  const narrow = new Float32Array(height * side * 4);
  for (let top = 0; top < height; top += strip) {
    const rows = Math.min(strip, height - top);
    context.clearRect(0, 0, width, strip);
    context.drawImage(picture, 0, -top);
    narrow.set(resized(context.getImageData(0, 0, width, rows).data, rows, width, 4, side, rounds), top * side * 4);
  }
  picture.close();
  const square = resized(narrow, 1, height, side * 4, side, rounds);
  return square.filter((_, place) => place % 4 < 3);
}
/* Resizes the middle axis of numbers [outer, from, inner] as tf.image.resize does with method="bilinear"
   and antialias=True, or as Pillow does, which rounds. Each result is a mean under a triangle, which is as
   wide as the step between two results to each side, and at least as wide as a pixel. */
function resized(numbers, outer, from, inner, to, rounds) {
  const made = new Float32Array(outer * to * inner), step = Math.fround(1 / Math.fround(to / from)), radius = Math.max(step, 1);
  for (let place = 0; place < to; place++) {
    const centre = Math.fround((place + 0.5) * step);
    const first = Math.max(0, Math.ceil(centre - radius - 0.5)), last = Math.min(from - 1, Math.floor(centre + radius - 0.5));
    const weights = Float64Array.from({ length: last - first + 1 }, (_, k) => 1 - Math.abs(first + k + 0.5 - centre) / radius);
    const total = weights.reduce((sum, weight) => sum + weight);
    for (let line = 0; line < outer; line++) {
      for (let i = 0; i < inner; i++) {
        let sum = 0;
        for (let k = 0, at = (line * from + first) * inner + i; k < weights.length; k++, at += inner) sum += weights[k] * numbers[at];
        sum /= total;
        made[(line * to + place) * inner + i] = rounds ? Math.floor(sum + 0.5) : sum;
      }
    }
  }
  return made;
}

const captioner = new Captioner(), loaded = captioner.load();
loaded.then(
  () => postMessage({ kind: "ready", card: captioner.card }),
  (error) => postMessage({ kind: "broken", reason: `The captioner cannot be loaded (${error.message}). Copy the whole folder to the host again.` }));
let last = loaded;  // one picture at a time
addEventListener("message", ({ data: { turn, name, file } }) => {
  last = last.then(async () => {
    const start = performance.now();
    try {
      const captions = await captioner.caption(file, name);
      postMessage({ kind: "captions", turn, name, captions, seconds: (performance.now() - start) / 1000 });
    } catch (error) {
      postMessage({ kind: "failure", turn, reason: error.message });
    }
  });
});
