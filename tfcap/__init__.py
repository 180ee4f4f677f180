"""Image captioning on Keras 3 and TensorFlow.

    import tfcap

    captioner = tfcap.load("runs/xtransformer")
    print(captioner("photo.jpg"))

Everything is imported at its first use: `import tfcap` itself imports no TensorFlow. `evaluate`,
`prepare` and `train` are also commands; `tfcap.train(...)` does what `python -m tfcap.train` does.
"""

import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfcap.captioning import Caption, Failure, ImageCaptioner, Match, Neighbour, load
    from tfcap.evaluate import evaluate
    from tfcap.prepare import prepare
    from tfcap.train import train

# Before TensorFlow is loaded: on a machine without a GPU its C++ side reports that as an error.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# TensorFlow imports Google's client library, which on Python 3.10 says that it wants a newer one.
warnings.filterwarnings("ignore", r"\s*You are using a .*Python version", FutureWarning)

__version__ = "0.1.0"

__all__ = [
    "Caption",
    "Failure",
    "ImageCaptioner",
    "Match",
    "Neighbour",
    "evaluate",
    "load",
    "prepare",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use. `tfcap.door` says why three modules can be called."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "evaluate":
        import tfcap.evaluate  # noqa: F401
    elif name == "prepare":
        import tfcap.prepare  # noqa: F401
    elif name == "train":
        import tfcap.train  # noqa: F401
    else:
        from tfcap import captioning

        return getattr(captioning, name)
    return sys.modules[f"{__name__}.{name}"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
