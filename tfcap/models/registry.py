"""The table of captioning systems, by the name in configurations, flags and run directories.

A system is one file with a class that `register` decorates. The options of the system in
configurations, with types and defaults, are read from the signature of the constructor.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import keras

from tfcap.models.captioner import Captioner

MODELS: dict[str, type[Captioner]] = {}  # in the order of registration
SMALL: dict[str, dict[str, Any]] = {}  # options of a model that trains in minutes
_SIZES = ("self", "vocab_size", "max_length", "feature_dim")  # given by the data, not by options

Class = TypeVar("Class", bound=type[Captioner])


def register(name: str, small: Mapping[str, Any] | None = None) -> Callable[[Class], Class]:
    """Returns a decorator that registers a captioner class under a name for configurations.

    The key `task.model.NAME` then has the options of the constructor, and the experiments `NAME`
    and `NAME_scst` train the class on the built-in shapes. Keras knows the class, so that
    `keras.saving.load_model` reads its files.

    Args:
      name: the name of the system in configurations.
      small: the options of those two experiments that differ from the defaults.

    Raises:
      ValueError: another class has the name; the name cannot be a key; the constructor has an
        option without type or default; or `small` has a key that is not an option.
    """

    def decorate(cls: Class) -> Class:
        if not name.isidentifier() or name == "type":
            raise ValueError(f"The name of a system must be an identifier. Received: {name!r}")
        before = MODELS.get(name, cls)
        if (before.__module__, before.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"The name {name!r} already belongs to {before.__qualname__}. Choose another name."
            )
        unknown = set(small or ()) - {option for option, _, _ in options(cls)}
        if unknown:
            raise ValueError(
                f"small must hold options of {cls.__qualname__}. Received: {sorted(unknown)}"
            )
        MODELS[name], SMALL[name] = cls, dict(small or {})
        return keras.saving.register_keras_serializable("tfcap", name)(cls)

    return decorate


def options(cls: type[Captioner]) -> list[tuple[str, Any, Any]]:
    """Returns name, type and default of each option of a captioner's constructor, in order.

    The options of `Captioner` itself come last; only systems that read the order of regions have
    them.

    Raises:
      ValueError: an option has no type or no default.
    """
    own = _options_of(cls)
    return own + (_options_of(Captioner) if cls.reads_order else [])


def _options_of(cls: type[Captioner]) -> list[tuple[str, Any, Any]]:
    types = typing.get_type_hints(cls.__init__)
    rows = []
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        if name in _SIZES or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name not in types or parameter.default is parameter.empty:
            raise ValueError(
                f"Each option of {cls.__qualname__} must have a type and a default. "
                f"Received: {parameter}"
            )
        rows.append((name, types[name], parameter.default))
    return rows


def build(name: str, vocab_size: int, max_length: int, feature_dim: int, **options) -> Captioner:
    """Builds the system `name` and creates all its variables.

    Args:
      name: a key of `MODELS`.
      vocab_size: V.
      max_length: T, the length of the longest caption in words, EOS included.
      feature_dim: F, the width of the features.
      **options: options of the constructor.

    Raises:
      ValueError: no system is called `name`.
    """
    if name not in MODELS:
        raise ValueError(f"The model must be one of {', '.join(sorted(MODELS))}. Received: {name}")
    model = MODELS[name](vocab_size, max_length, feature_dim, name=name, **options)
    model.build()
    return model
