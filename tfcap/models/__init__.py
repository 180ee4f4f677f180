"""The captioning systems, by the name that configurations use."""

from tfcap.models.attention_lstm import AttentionLSTM
from tfcap.models.captioner import Captioner
from tfcap.models.ensemble import Ensemble
from tfcap.models.expansionnet import ExpansionNet
from tfcap.models.mrnn import MRNN
from tfcap.models.mrnn_shared import MRNNShared
from tfcap.models.show_tell import ShowTell
from tfcap.models.transformer import Transformer
from tfcap.models.updown import UpDown
from tfcap.models.xlan import XLAN
from tfcap.models.xtransformer import XTransformer

__all__ = ["MODELS", "Captioner", "Ensemble", "build"]

MODELS: dict[str, type[Captioner]] = {
    "attention_lstm": AttentionLSTM,
    "expansionnet": ExpansionNet,
    "mrnn": MRNN,
    "mrnn_shared": MRNNShared,
    "show_tell": ShowTell,
    "transformer": Transformer,
    "updown": UpDown,
    "xlan": XLAN,
    "xtransformer": XTransformer,
}


def build(name: str, vocab_size: int, max_length: int, feature_dim: int, **options) -> Captioner:
    """Builds the system called `name`, with all its variables, for features of `feature_dim`.

    Raises:
      ValueError: if there is no such system.
    """
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}. Choose one of {sorted(MODELS)}")
    model = MODELS[name](vocab_size, max_length, feature_dim, name=name, **options)
    model.build()
    return model
