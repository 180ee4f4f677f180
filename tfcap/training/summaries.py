"""Shows a run: progress, scores of validations, TensorBoard, and sample captions."""

import contextlib
import logging
import os
import resource
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

import tensorflow as tf

from tfcap import errors, progress
from tfcap.data import clips
from tfcap.models.captioner import Captioner
from tfcap.training.task import CaptionTask
from tfcap.visualize import figures
from tfcap.visualize.attention import attend_split

_log = logging.getLogger(__name__)
# Attention figures: pixels of a panel, panels in a row.
FIGURE: dict[str, Any] = {"size": 100, "columns": 8}

INTERVAL = 0.2  # seconds between two looks at the step
# TensorBoard shows tags by what stands before `/`. Both writers have these, so that training and
# validation are in one chart.
SHARED = ("loss", "perplexity")


class Summaries:
    """Writes the curves that TensorBoard shows.

    Args:
      model_dir: the directory of the run; None writes nothing.
      name: the name of the directory inside `model_dir` that gets the event files.
      step: a variable that counts the steps.
      group: the group of TensorBoard that shows the curves. The curves `loss` and `perplexity` are
        always in the group `loss`.
    """

    def __init__(self, model_dir: str | None, name: str, step: tf.Variable, group: str):
        self._directory = model_dir and os.path.join(model_dir, name)
        self._step = step
        self._group = group
        self._writer: tf.summary.SummaryWriter | None = None

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Context for functions of `tf.summary`: what they write appears beside these curves.

        These functions need no argument `step`: the context sets the present step.
        """
        if self._writer is None:  # the directory exists once there is a value
            self._writer = tf.summary.create_file_writer(self._directory)
        with self._writer.as_default(step=int(self._step.numpy())):
            yield
        self._writer.flush()

    def write(self, values: Mapping[str, float]) -> None:
        """Adds a point to the curve of each name, at the present step.

        Args:
          values: the values of the curves by name.
        """
        if self._directory is None:
            return
        with self.writing():
            for name, value in values.items():
                tf.summary.scalar(f"{'loss' if name in SHARED else self._group}/{name}", value)


class Progress:
    """A progress bar of training: the step, the steps per second, the time left, and a note.

    Use it as a context manager. A loop of steps may take minutes inside TensorFlow, so a thread
    updates the bar meanwhile.

    Args:
      global_step: a variable that counts the steps.
      train_steps: the number of the last step.
      stream: where the bar is shown; None for standard error.

    Attributes:
      loss: the note, such as `loss 1.234`; set it after each loop of steps.
    """

    def __init__(self, global_step: tf.Variable, train_steps: int, stream: TextIO | None = None):
        self._step = global_step
        self.loss = ""
        self._bar = progress.Bar(train_steps, "training", "step", int(global_step.numpy()), stream)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._end.set()
        self._thread.join()
        self._bar.__exit__(*error)

    def _run(self) -> None:
        while not self._end.wait(INTERVAL):
            if steps := int(self._step.numpy()) - self._bar.done:
                self._bar.update(steps, self.loss)


def peak_memory() -> tuple[int, int | None]:
    """Returns the peak memory of this process and that of the first GPU, each in bytes.

    The second number is None without a GPU. On Linux the peak of a process is at least that of the
    process that started it.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if not tf.config.list_physical_devices("GPU"):
        return process, None
    return process, tf.config.experimental.get_memory_info("GPU:0")["peak"]


def say_peak_memory() -> None:
    """Logs the peak memory of the first GPU so far, or of the process if there is no GPU."""
    process, gpu = peak_memory()
    size, where = (process, "the process") if gpu is None else (gpu, "the GPU")
    _log.info(f"memory: {where} took at most {size / 2**30:.2f} GiB so far")


def say_time_left(steps: int, rate: float) -> None:
    """Logs how long `steps` further steps take at `rate` steps per second."""
    left = errors.duration(steps / rate)
    slow = "" if tf.config.list_physical_devices("GPU") else slow_processor()
    _log.info(f"time: {left} for the other {steps:,} steps, without validations{slow}")


def slow_processor(path: str = "/proc/cpuinfo") -> str:
    """Returns a remark if the processor has AVX2 but no AVX-512 instructions, else "".

    With AVX-512 training takes about a third of the time.

    Args:
      path: the file in which Linux describes an x86 processor. The remark is "" without this file.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            flags = set(file.read().split())
    except OSError:  # no Linux
        return ""
    if "avx2" not in flags or "avx512f" in flags:
        return ""
    return ". This processor has no AVX-512, with which training takes about a third of the time"


def say_scores(step: int, scores: Mapping[str, float]) -> None:
    """Logs one line with the main scores of a validation.

    Args:
      step: the number of finished training steps.
      scores: the scores by name.
    """
    shown = "loss perplexity BLEU-4 METEOR ROUGE-L CIDEr greedy_CIDEr-D distinct_captions".split()
    values = [f"{name} {float(scores[name]):.2f}" for name in shown if name in scores]
    _log.info(f"step {step}: " + ", ".join(values))


def write_samples(summaries: Summaries, task: CaptionTask, model: Captioner, count: int) -> None:
    """Writes captions of a few validation images to TensorBoard, of the same images each time.

    A table has the captions and the references. If the data has pictures, they are shown, too. If
    the regions also have boxes, a figure shows the attention of each word, or the contribution of
    the regions if the model has no attention.

    Args:
      summaries: the curves of the validation.
      task: the task, with the captions of the validation.
      model: the captioner.
      count: the largest number of images; 0 writes nothing.
    """
    if not count:
        return
    data = task.data
    split = task.task_config.validation_data.split
    references = data.references(split)
    files = data.file_names(split)
    chosen = sorted(task.captions)[:count]
    names = data.picture_names(split)
    contents = {i: read_picture(data.images, names[i], data.frames) for i in chosen}
    pictures = {i: picture for i, picture in contents.items() if picture is not None}
    shown = {i: _cell(data.vocab.shown(task.captions[i])) for i in chosen}
    rows = ["| image | caption | references |", "|---|---|---|"]
    rows += [
        f"| {files[i]} | **{shown[i]}** | {'<br>'.join(map(_cell, references[i]))} |"
        for i in chosen
    ]
    with summaries.writing():
        tf.summary.text("captions", "\n".join(rows))
        for index, image in enumerate(chosen):
            if image in pictures:
                text = shown[image]
                tf.summary.image(f"samples/{index}", pictures[image][None], description=text)
        captions = {i: task.captions[i] for i in pictures}
        regions = task.task_config.validation_data.region_limit
        attended = attend_split(
            model.on_features(), data.vocab, data, split, captions, count, regions
        )
        for image, attention in attended.items():
            png = figures.figure(pictures[image].numpy(), attention, **FIGURE)
            figure = tf.io.decode_png(png, channels=3)
            tf.summary.image(f"attention/{chosen.index(image)}", figure[None])


def read_picture(
    directory: str | None, names: Sequence[str], frames: int | None = None
) -> tf.Tensor | None:
    """Reads a picture or clip from its file, and turns it upright.

    Args:
      directory: the directory of the files; None if the data has none.
      names: the file name, or those of several pictures of an image, which become one picture side
        by side.
      frames: the number of frames to read of a clip, which become one picture side by side; None if
        the file is a single picture.

    Returns:
      uint8 [height, width, 3], red, green and blue; None if there is no readable file.
    """
    if not directory:
        return None
    paths = [os.path.join(directory, name) for name in names]
    try:
        return tf.constant(clips.sheet(clips.read_frames(paths, frames)))
    except (ValueError, OSError, tf.errors.OpError):
        return None


def _cell(text: str) -> str:
    """Replaces line ends and bars, which would end a cell of a Markdown table."""
    return " ".join(text.replace("|", "/").split())
