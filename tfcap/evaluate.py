"""Official scores of a trained model, or of anybody's result file.

python -m tfcap.evaluate --model_dir runs/xtransformer --split val --output results.json
python -m tfcap.evaluate --predictions results.json --references references_val.json
"""

import os

import tensorflow as tf
from absl import flags

from tfcap import console, decoding
from tfcap.data import pipeline
from tfcap.data.records import PreparedData
from tfcap.metrics import coco, diversity, results
from tfcap.tasks import captioning, runs

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "Directory of a training run.")
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "Prepared data; that of the run's configuration by default."
)
_CHECKPOINT = flags.DEFINE_string("checkpoint", "best", "best, latest, or a checkpoint's path.")
_SPLIT = flags.DEFINE_string("split", "val", "Split to decode.")
_BEAM = flags.DEFINE_integer("beam", 0, "Beam width; 0 takes that of the run.", lower_bound=0)
_BATCH = flags.DEFINE_integer("batch_size", 50, "Images at a time.", lower_bound=1)
_LIMIT = flags.DEFINE_integer("limit", 0, "Only the first so many images; 0: all.", lower_bound=0)
_OUTPUT = flags.DEFINE_string("output", None, "Captions in COCO result format, written here.")
_METRICS = flags.DEFINE_string("metrics", None, "Scores as JSON, written here.")
_PREDICTIONS = flags.DEFINE_string(
    "predictions", None, "Score this COCO result file instead of a model."
)
_REFERENCES = flags.DEFINE_string("references", None, "Its references: a COCO annotation file.")


def decode_split(
    run: runs.Run, data: PreparedData, split: str, beam: int, batch_size: int, limit: int = 0
) -> dict[int, str]:
    """The best caption of every image of a split, by image id."""
    options = captioning.beam_options(run.params.task, beam)
    task = run.params.task
    batches = pipeline.decoding_batches(
        data,
        split=split,
        batch_size=batch_size,
        captions_per_image=1,
        max_length=task.max_length,
        max_regions=task.validation_data.max_regions or None,
        limit=limit or None,
    )

    @tf.function(reduce_retracing=True)
    def describe(features, mask):
        context = run.model.encode({"features": features, "mask": mask})
        tokens, _, _ = decoding.beam_search(run.model, context, **options)
        return run.vocab.detokenize(tokens[:, 0])

    captions: dict[int, str] = {}
    total = -(-min(data.split(split)["images"], limit or 1 << 60) // batch_size)
    with data.readable_errors():
        for batch in console.progress(batches, total, f"decoding {split}, batches"):
            texts = describe(batch["features"], batch["mask"]).numpy()
            ids = batch["id"].numpy()
            captions.update({int(i): t.decode() for i, t in zip(ids, texts, strict=True)})
    return captions


def main() -> None:
    """The command."""
    if _PREDICTIONS.value or _REFERENCES.value:
        if not (_PREDICTIONS.value and _REFERENCES.value) or _MODEL_DIR.value:
            raise console.UsageError(
                "--predictions and --references go together, and without --model_dir"
            )
        predictions = results.load_results(_PREDICTIONS.value)
        references = results.load_references(_REFERENCES.value)
    elif _MODEL_DIR.value:
        run = runs.load(_MODEL_DIR.value, _CHECKPOINT.value)
        folder = _DATA_DIR.value or run.params.task.data_dir or os.path.join("data", "shapes")
        data = PreparedData.load(folder)
        runs.check_vocabulary(run, data)
        print(f"{run.checkpoint} on {folder}, split {_SPLIT.value}", flush=True)
        predictions = decode_split(run, data, _SPLIT.value, _BEAM.value, _BATCH.value, _LIMIT.value)
        references = data.references(_SPLIT.value)
        if _OUTPUT.value:
            results.write_results(_OUTPUT.value, predictions)
        references = {image: references[image] for image in predictions}
    else:
        raise console.UsageError("give --model_dir, or --predictions and --references")
    with coco.CocoScorer() as scorer:
        scores = scorer.score(references, predictions)
    print(results.format_table(scores))
    print(f"distinct captions: {diversity.distinct_share(predictions):.1f} %")
    if _METRICS.value:
        results.write_metrics(_METRICS.value, scores)


if __name__ == "__main__":
    console.run(main)
