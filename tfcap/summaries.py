"""Actions of orbit around training: the console's progress line, scores, and sample captions.

An action is called with the output of a training loop or of a validation.
"""

import os
import time

import orbit
import tensorflow as tf

from tfcap import console

HIDDEN = ("training_loss",)  # official.core's own, a duplicate of `loss`


class Summaries(orbit.utils.SummaryManager):
    """TensorBoard scalars under the same tags in `train` and `validation`."""

    def write_summaries(self, summary_dict):
        """See base class."""
        super().write_summaries({k: v for k, v in summary_dict.items() if k not in HIDDEN})


class Progress:
    """After each training loop: step, loss and time left, on a terminal only."""

    def __init__(self, global_step: tf.Variable, train_steps: int):
        self.global_step, self.train_steps = global_step, train_steps
        self.line = console.Line()
        self.first_step, self.start = int(global_step.numpy()), time.monotonic()

    def __call__(self, output) -> None:
        step = int(self.global_step.numpy())
        rate = (step - self.first_step) / max(time.monotonic() - self.start, 1e-9)
        left = console.duration((self.train_steps - step) / max(rate, 1e-9))
        self.line.show(
            f"step {step} of {self.train_steps}, loss {float(output['loss']):.3f}, "
            f"{rate:.2f} steps/s, {left} left"
        )


class Scores:
    """After each validation: one line of scores."""

    def __init__(self, global_step: tf.Variable, task, line: console.Line | None):
        self.global_step, self.task, self.line = global_step, task, line
        self.noted: set[str] = set()

    def __call__(self, output) -> None:
        if self.line:
            self.line.clear()
        shown = (
            "loss perplexity BLEU-4 METEOR ROUGE-L CIDEr greedy_CIDEr-D distinct_captions".split()
        )
        values = [f"{name} {float(output[name]):.2f}" for name in shown if name in output]
        print(f"step {int(self.global_step.numpy())}: " + ", ".join(values), flush=True)
        for note in self.task.notes:
            if note not in self.noted:
                print(f"note: {note}", flush=True)
                self.noted.add(note)


class Samples:
    """After each validation: the same few images with caption and references, in TensorBoard."""

    def __init__(self, global_step: tf.Variable, task, summaries: Summaries, count: int = 8):
        self.global_step, self.task, self.summaries, self.count = (
            global_step,
            task,
            summaries,
            count,
        )

    def __call__(self, output) -> None:
        data, split = self.task.data, self.task.task_config.validation_data.split
        references, files = data.references(split), data.file_names(split)
        chosen = sorted(self.task.captions)[: self.count]
        rows = ["| image | caption | references |", "|---|---|---|"]
        rows += [
            f"| {files[i]} | **{_cell(self.task.captions[i])}** | "
            f"{'<br>'.join(map(_cell, references[i]))} |"
            for i in chosen
        ]
        with self.summaries.summary_writer().as_default(step=int(self.global_step.numpy())):
            tf.summary.text("captions", "\n".join(rows))
            for index, image in enumerate(chosen):
                picture = read_picture(data.images, files[image])
                if picture is not None:
                    text = _cell(self.task.captions[image])
                    tf.summary.image(f"samples/{index}", picture[None], description=text)
        self.summaries.flush()


def read_picture(directory: str | None, name: str) -> tf.Tensor | None:
    """The picture uint8 [H, W, 3], or None where the data has no readable image file."""
    if not directory or os.path.isabs(name) or ".." in name.split("/"):
        return None
    path = os.path.join(directory, name)
    if not os.path.isfile(path):
        return None
    try:
        return tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
    except tf.errors.InvalidArgumentError:
        return None


def _cell(text: str) -> str:
    """Text that keeps to its cell of a Markdown table."""
    return " ".join(text.replace("|", "/").split())
