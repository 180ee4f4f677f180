"""ExpansionNet v2: ExpansionNet with groups of static expansion vectors, for the grid of a Swin.

Source: Hu et al., "Exploiting Multiple Sequence Lengths in Fast End to End Training for Image
Captioning", arXiv 2208.06551, and its released code (docs/systems.md 5.9). The released Swin is a
backbone here, `swin_large_384`: every system can use it, and this one can use other features.
"""

from typing import Any

from tfcap.models.captioner import register
from tfcap.models.expansionnet import ExpansionNet


@register(
    "expansionnet_v2",
    small=dict(
        width=128,
        encoder_layers=2,
        decoder_layers=2,
        inner_width=256,
        encoder_groups="4 8 16",
        decoder_vectors=8,
    ),
)
class ExpansionNetV2(ExpansionNet):
    """ExpansionNet whose regions gather from groups of expansion vectors of several sizes.

    Context, cache and what differs from the released code are those of `ExpansionNet`.

    Args:
      *sizes: V, T and F, see `Captioner`; F is 1536 with the released backbone.
      width: D.
      heads: H of the attention to regions.
      encoder_layers: number of layers.
      decoder_layers: number of layers.
      inner_width: of the feed-forward blocks.
      encoder_groups: the sizes of the groups of static vectors, in the order of the rows of their
        tables, with spaces between them.
      decoder_vectors: E in the decoder.
      positions: the number of learned position vectors; must be at least `max_length`.
      region_dropout: on the embedded regions.
      word_dropout: on the embedded words, before they are scaled and positions are added.
      block_dropout: inside and after every block.
      reduce_dropout: on the affine map of all layers' outputs.

    Example:
      >>> sizes = dict(width=8, heads=2, encoder_layers=1, decoder_layers=1)
      >>> model = ExpansionNetV2(vocab_size=20, max_length=5, feature_dim=6, **sizes)
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    def __init__(
        self,
        *sizes: int,
        width: int = 512,
        heads: int = 8,
        encoder_layers: int = 3,
        decoder_layers: int = 3,
        inner_width: int = 2048,
        encoder_groups: str = "32 64 128 256 512",
        decoder_vectors: int = 16,
        positions: int = 74,
        region_dropout: float = 0.3,
        word_dropout: float = 0.3,
        block_dropout: float = 0.3,
        reduce_dropout: float = 0.3,
        **kwargs,
    ):
        # Text, because params.yaml has no tuples: a list would differ from the default.
        groups: Any = [int(size) if size.isdecimal() else 0 for size in str(encoder_groups).split()]
        if not groups or 0 in groups:
            raise ValueError(
                "`encoder_groups` must be positive numbers with spaces between them, such as "
                f'"32 64 128 256 512", not {encoder_groups!r}.'
            )
        super().__init__(
            *sizes,
            width=width,
            heads=heads,
            encoder_layers=encoder_layers,
            decoder_layers=decoder_layers,
            inner_width=inner_width,
            encoder_vectors=groups,
            decoder_vectors=decoder_vectors,
            positions=positions,
            region_dropout=region_dropout,
            word_dropout=word_dropout,
            block_dropout=block_dropout,
            reduce_dropout=reduce_dropout,
            **kwargs,
        )
