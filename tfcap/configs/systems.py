"""The arguments of every captioning system, with the defaults of its paper or released code.

Each group of keys holds what the class of the same name in `tfcap.models` takes; what a key does
is written there.
"""

import dataclasses

from official.modeling import hyperparams


@dataclasses.dataclass
class XLAN(hyperparams.Config):
    """X-LAN and the rows of its ablation table."""

    width: int = 1024
    heads: int = 8
    encoder_layers: int = 4
    decoder_layers: int = 1
    middle_width: int | None = None
    attention: str = "xlinear"
    attention_width: int = 512
    activation: str = "celu"
    embed_activation: str = "celu"
    flavour: str = "released"
    word_dropout: float = 0.5
    region_dropout: float = 0.5
    middle_dropout: float = 0.1
    encoder_dropout: float = 0.5
    decoder_dropout: float = 0.5
    bifeat_dropout: float = 0.3
    context_dropout: float = 0.5
    head_dropout: float = 0.5


@dataclasses.dataclass
class XTransformer(hyperparams.Config):
    """X-Transformer."""

    width: int = 768
    heads: int = 8
    encoder_layers: int = 6
    decoder_layers: int = 6
    inner_width: int | None = None
    middle_width: int | None = None
    activation: str = "celu"
    word_dropout: float = 0.1
    region_dropout: float = 0.5
    middle_dropout: float = 0.1
    encoder_dropout: float = 0.5
    decoder_dropout: float = 0.5
    bifeat_dropout: float = 0.3
    feed_forward_dropout: float = 0.5
    head_dropout: float = 0.5
    stored_positions: bool = False


@dataclasses.dataclass
class UpDown(hyperparams.Config):
    """Up-Down."""

    width: int = 1024
    attention_width: int = 512
    embed_regions: bool = True
    embed_activation: str = "relu"
    word_dropout: float = 0.5
    region_dropout: float = 0.5
    head_dropout: float = 0.5


@dataclasses.dataclass
class AttentionLSTM(hyperparams.Config):
    """One LSTM with additive attention."""

    width: int = 1024
    attention_width: int = 512
    embed_activation: str = "relu"
    word_dropout: float = 0.5
    region_dropout: float = 0.5
    head_dropout: float = 0.5


@dataclasses.dataclass
class ShowTell(hyperparams.Config):
    """One LSTM whose first input is the image."""

    width: int = 512
    word_dropout: float = 0.3
    region_dropout: float = 0.3
    head_dropout: float = 0.3


@dataclasses.dataclass
class Transformer(hyperparams.Config):
    """The Transformer baseline."""

    width: int = 512
    heads: int = 8
    encoder_layers: int = 6
    decoder_layers: int = 6
    inner_width: int | None = None
    word_dropout: float = 0.1
    region_dropout: float = 0.5
    weight_dropout: float = 0.1
    block_dropout: float = 0.1
    head_dropout: float = 0.5
    stored_positions: bool = False


@dataclasses.dataclass
class ExpansionNet(hyperparams.Config):
    """ExpansionNet, the rows of its ablation table and its baselines."""

    width: int = 768
    heads: int = 8
    encoder_layers: int = 3
    decoder_layers: int = 3
    inner_width: int = 2048
    encoder_block: str = "static"
    encoder_vectors: int = 64
    decoder_block: str = "dynamic"
    decoder_vectors: int = 16
    reduce: bool = True
    positions: int = 74
    region_dropout: float = 0.3
    word_dropout: float = 0.3
    block_dropout: float = 0.3
    reduce_dropout: float = 0.3


@dataclasses.dataclass
class MRNN(hyperparams.Config):
    """m-RNN, its variants and its image-free baseline."""

    variant: str = "base"
    embed_width: int = 128
    width: int = 256
    multimodal_width: int = 512
    word_dropout: float = 0.0
    region_dropout: float = 0.0
    head_dropout: float = 0.0


@dataclasses.dataclass
class MRNNShared(hyperparams.Config):
    """m-RNN whose output matrix is its word table."""

    variant: str = "multimodal"
    embed_width: int = 1024
    width: int = 2048
    multimodal_width: int = 2048
    word_dropout: float = 0.5
    recurrent_dropout: float = 0.5
    head_dropout: float = 0.5


@dataclasses.dataclass
class Model(hyperparams.OneOfConfig):
    """Which system, and its arguments."""

    type: str | None = "xtransformer"
    xlan: XLAN = dataclasses.field(default_factory=XLAN)
    xtransformer: XTransformer = dataclasses.field(default_factory=XTransformer)
    updown: UpDown = dataclasses.field(default_factory=UpDown)
    attention_lstm: AttentionLSTM = dataclasses.field(default_factory=AttentionLSTM)
    show_tell: ShowTell = dataclasses.field(default_factory=ShowTell)
    transformer: Transformer = dataclasses.field(default_factory=Transformer)
    expansionnet: ExpansionNet = dataclasses.field(default_factory=ExpansionNet)
    mrnn: MRNN = dataclasses.field(default_factory=MRNN)
    mrnn_shared: MRNNShared = dataclasses.field(default_factory=MRNNShared)


SYSTEMS = tuple(field.name for field in dataclasses.fields(Model) if field.name != "type")
