"""What `tfcap.evaluate` scores, and what it is compared with; imported without TensorFlow."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfcap.metrics import hypotheses

if TYPE_CHECKING:
    from tfcap import runs
    from tfcap.data.prepared import PreparedData
    from tfcap.scoring.beside import Beside
    from tfcap.scoring.perplexity import Perplexities


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """The captions that are scored, and what they are compared with.

    Attributes:
      hypotheses: captions of each image; the first caption of each image is scored.
      references: reference captions of the same images.
      run: the run that made the captions; None for a file.
      data: the prepared data; None for a file without --data_dir.
      beside: captions of other runs by the name of the run.
      attention: `visualize.Attended`, the weights of the regions, by the name of the run and the
        image id.
      perplexities: perplexities of the references under the model.
      sweep: scores of reranking with several settings.
    """

    hypotheses: hypotheses.Hypotheses
    references: dict[int, list[str]]
    run: "runs.Run | None" = None
    data: "PreparedData | None" = None
    beside: Mapping[str, "Beside"] = dataclasses.field(default_factory=dict)
    attention: Mapping[str, Mapping[int, Any]] = dataclasses.field(default_factory=dict)
    perplexities: "Perplexities | None" = None
    sweep: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def captions(self) -> dict[int, str]:
        """The captions that are scored, by image id."""
        return self.hypotheses.best()

    def training_captions(self) -> list[str]:
        """Returns the captions that the model was trained on; none if their data is not there.

        For captions of a file, and for a converted run, these are the captions of the train split
        of the evaluated data.
        """
        from tfcap.data.prepared import PreparedData, stored_captions

        data, run = self.data, self.run
        wanted = _train(run.fingerprint) if run else None  # a converted run has none
        if run and data and wanted and wanted != _train(data.fingerprint):
            try:
                data = PreparedData.load(run.data_dir)
            except ValueError:
                data = None
            if data is None or _train(data.fingerprint) != wanted:
                print(
                    "note: no share of novel captions, because the data that the model was trained "
                    f"on is not in {run.data_dir}"
                )
                return []
        if data is None or "train" not in data.fingerprint["splits"]:
            return []
        return [caption for own in stored_captions(data, "train").values() for caption in own]

    @property
    def others(self) -> dict[str, dict[int, str]]:
        """The captions of the other runs for the same images."""
        return {
            name: {image: one.captions[image] for image in self.references}
            for name, one in self.beside.items()
        }


def _train(fingerprint: Mapping[str, Any]) -> Any:
    """Returns what identifies the training captions of prepared data; None if it has none."""
    return fingerprint.get("splits", {}).get("train", {}).get("references_sha256")
