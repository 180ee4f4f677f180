"""The group `task.model`: the chosen captioning system, and the options of each system.

The options of a system are those of its constructor in `tfcap.models`, where they are described
and have their defaults.
"""

import dataclasses
import functools

from official.modeling import hyperparams

from tfcap.models import registry

SYSTEMS = registry.MODELS  # by name; a system that registers later is in it too


@dataclasses.dataclass
class Model(hyperparams.OneOfConfig):
    """The chosen system, and a group of options for every system that is registered.

    `Model()` makes an instance of a subclass with these groups, because a system can register
    after this module was imported.
    """

    type: str | None = "xtransformer"

    def __new__(cls, *args, **kwargs):
        return super().__new__(_with_groups(*SYSTEMS.items()) if cls is Model else cls)


@functools.lru_cache(maxsize=8)
def _with_groups(*systems) -> type[Model]:
    """Returns the subclass of `Model` with a group for each pair of a name and a class."""
    groups = [(name, _group(cls)) for name, cls in systems]
    fields = [(name, group, dataclasses.field(default_factory=group)) for name, group in groups]
    return dataclasses.make_dataclass("Model", fields, bases=(Model,))


@functools.lru_cache(maxsize=64)
def _group(cls) -> type[hyperparams.Config]:
    """Returns the options of a captioner class as a dataclass."""
    return dataclasses.make_dataclass(
        cls.__name__, registry.options(cls), bases=(hyperparams.Config,)
    )
