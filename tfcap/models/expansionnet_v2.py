"""ExpansionNet v2: ExpansionNet with several groups of static expansion vectors.

Source: Hu et al., "Exploiting Multiple Sequence Lengths in Fast End to End Training for Image
Captioning", arXiv 2208.06551, and its released code (docs/systems.md 5.9). The released model reads
the features of a Swin Transformer. Here this network is the backbone `swin_large_384`, which every
system can use, and ExpansionNet v2 can read other features.
"""

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
    """ExpansionNet whose encoder has several groups of expansion vectors, of different sizes.

    The class follows the released code of ExpansionNet v2 (Hu et al., arXiv 2208.06551,
    docs/systems.md 5.9). `ExpansionNet` describes the result of `encode` and the cache of `step`.

    Args:
      *sizes: `vocab_size`, `max_length` and `feature_dim`, F, see `Captioner`; F is 1536 with the
        released backbone.
      encoder_groups: number of expansion vectors in each group of the encoder, with spaces between
        the numbers, such as "32 64 128 256 512".
      width: model width, D; 512 in the released model.
      encoder_layers: number of layers of the encoder.
      decoder_layers: number of layers of the decoder.
      **options: options of `ExpansionNet`, whose defaults for this class are in
        `ExpansionNetV2.defaults`; and `region_positions` and `standardize`, see `Captioner`.

    Raises:
      ValueError: `encoder_groups` is not a text of positive whole numbers with spaces between them.

    Example:
      >>> sizes = dict(vocab_size=20, max_length=5, feature_dim=6, width=16)
      >>> model = models.build("expansionnet_v2", **sizes, encoder_layers=1, decoder_layers=1)
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    defaults = dict(
        width=512,
        heads=8,
        encoder_layers=3,
        decoder_layers=3,
        inner_width=2048,
        decoder_vectors=16,
        positions=74,
        region_dropout=0.3,
        word_dropout=0.3,
        block_dropout=0.3,
        reduce_dropout=0.3,
    )

    def __init__(self, *sizes: int, encoder_groups: str = "32 64 128 256 512", **options):
        # Text, because params.yaml has no tuples: a list would differ from the default.
        groups = [int(size) if size.isdecimal() else 0 for size in str(encoder_groups).split()]
        if not groups or 0 in groups:
            raise ValueError(
                "`encoder_groups` must be positive numbers with spaces between them, such as "
                f'"32 64 128 256 512", not {encoder_groups!r}.'
            )
        options = self.defaults | options | {"encoder_vectors": groups}
        super().__init__(*sizes, **options)
