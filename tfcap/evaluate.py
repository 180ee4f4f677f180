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

    shape = [None, None, data.feature_dim]
    specs = [tf.TensorSpec(shape), tf.TensorSpec(shape[:2], tf.bool)]

    @tf.function(input_signature=specs)
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


def _define_flags() -> None:
    # Here and not on import: the commands share names, and a program may import several.
    flags.DEFINE_multi_string(
        "model_dir", [], "Directory of a training run; repeated, their ensemble."
    )
    flags.DEFINE_string(
        "data_dir", None, "Prepared data; that of the run's configuration by default."
    )
    flags.DEFINE_string("checkpoint", "best", "best, latest, or a checkpoint's path.")
    flags.DEFINE_string("split", "val", "Split to decode.")
    flags.DEFINE_integer("beam", 0, "Beam width; 0 takes that of the run.", lower_bound=0)
    flags.DEFINE_integer("batch_size", 50, "Images at a time.", lower_bound=1)
    flags.DEFINE_integer("limit", 0, "Only the first so many images; 0: all.", lower_bound=0)
    flags.DEFINE_string("output", None, "Captions in COCO result format, written here.")
    flags.DEFINE_string("metrics", None, "Scores as JSON, written here.")
    flags.DEFINE_string("predictions", None, "Score this COCO result file instead of a model.")
    flags.DEFINE_string("references", None, "Its references: a COCO annotation file.")


def _run() -> None:
    given = flags.FLAGS
    for path in (given.output, given.metrics):  # better now than after an hour of decoding
        if path and not os.path.isdir(os.path.dirname(path) or "."):
            raise console.UsageError(f"{path} cannot be written: there is no such directory")
    if given.predictions or given.references:
        if not (given.predictions and given.references) or given.model_dir:
            raise console.UsageError(
                "--predictions and --references go together, and without --model_dir"
            )
        predictions = results.load_results(given.predictions)
        references = results.load_references(given.references)
        trained = ""
    elif given.model_dir:
        run = runs.load_together(given.model_dir, given.checkpoint)
        folder = given.data_dir or run.params.task.data_dir or os.path.join("data", "shapes")
        data = PreparedData.load(folder)
        runs.check_vocabulary(run, data)
        print(f"{run.checkpoint} on {folder}, split {given.split}", flush=True)
        predictions = decode_split(
            run, data, given.split, given.beam, given.batch_size, given.limit
        )
        references = data.references(given.split)
        if given.output:
            results.write_results(given.output, predictions)
        references = {image: references[image] for image in predictions}
        trained = run.signature
    else:
        raise console.UsageError("give --model_dir, or --predictions and --references")
    with coco.CocoScorer() as scorer:
        scores = scorer.score(references, predictions)
    print(results.format_table(scores))
    print(f"distinct captions: {diversity.distinct_share(predictions):.1f} %")
    if trained:
        print(f"trained with: {trained}")
    if given.metrics:
        results.write_metrics(given.metrics, scores, trained)


def main() -> None:
    """The command."""
    _define_flags()
    console.run(_run)


if __name__ == "__main__":
    main()
