"""Image captioning on Keras 3 and TensorFlow.

    import tfcap

    captioner = tfcap.load("runs/xtransformer")
    print(captioner("photo.jpg"))

`import tfcap` does not import TensorFlow; the first use of `load` does. The functions of the
commands are imported from their modules:

    from tfcap.prepare import prepare
    from tfcap.train import train
    from tfcap.evaluate import evaluate
"""

import os
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfcap.captioning import Caption, Failure, ImageCaptioner, Match, Neighbour, load

# Before TensorFlow is loaded: on a machine without a GPU its C++ side reports that as an error.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# TensorFlow alone takes all the memory of a GPU, and several processes often share one.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
# TensorFlow imports Google's client library, which on Python 3.10 says that it wants a newer one.
warnings.filterwarnings("ignore", r"\s*You are using a .*Python version", FutureWarning)

__version__ = "0.1.0"

__all__ = [
    "Caption",
    "Failure",
    "ImageCaptioner",
    "Match",
    "Neighbour",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfcap import captioning

    return getattr(captioning, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
