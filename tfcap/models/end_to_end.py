"""A captioner together with the network that computes its features, so that both are trained.

Letters: B images, H and W pixels of a picture, R regions, F feature width, N rows of words, T'
length of the captions, V vocabulary.
"""

from typing import Any

import keras

from tfcap import private_api
from tfcap.models.captioner import Captioner, is_seed

PREFIX = "backbone/"  # of the names of the network's weights in checkpoints


class EndToEnd(Captioner):
    """Computes the features of pictures with a backbone, and captions them.

    Training uses this class. `encode` reads `pictures` [B, H, W, 3] in place of `features`; all
    other methods are those of the captioner. Other code uses the two parts separately: `captioner`
    reads the features that `backbone` extracts.

    The stages of training are those of ExpansionNet v2 (Hu et al., arXiv 2208.06551), whose network
    has no batch normalisation. Here the network runs with its inference statistics: batch
    normalisation normalises by the moving averages of the network's own training, which do not
    change, because a batch of captioning has few pictures. The scales and offsets of batch
    normalisation are trained. Dropout inside the network is off; only a Swin that is trained has
    its drop path.

    Args:
      captioner: the captioner, with all its variables.
      backbone: a `backbones.backbone.Backbone` with a network. The constructor switches
        the network to the global precision of Keras.
      trainable: whether the weights of the network are trained, too.
    """

    def __init__(self, captioner: Captioner, backbone: Any, *, trainable: bool = True, **kwargs):
        sizes = (captioner.vocab_size, captioner.max_length, captioner.feature_dim)
        # Pictures stay float32 until the network has scaled them.
        super().__init__(*sizes, name=captioner.name, autocast=False, **kwargs)
        self.captioner, self.network = captioner, backbone.model
        self.backbone = backbone
        self.backbone.rounds = False
        self.width = captioner.width
        self.network.trainable = trainable
        for layer in private_api.all_layers(self.network):
            layer.dtype_policy = keras.config.dtype_policy()
        self.built = True

    def on_features(self) -> Captioner:
        return self.captioner

    def encode(self, inputs, training=False):
        """Reads `pictures` float32 [B, H, W, 3] in place of `features`."""
        mask = inputs["mask"]
        draws = training and self.network.trainable and self.backbone.network.stochastic
        features = self.backbone.features(inputs["pictures"], draws)
        features = features[:, : mask.shape[1]]
        return self.captioner.encode({"features": features, "mask": mask}, training)

    def decode(self, context, tokens, training=False):
        return self.captioner.decode(context, tokens, training)

    def init_cache(self, context, max_length):
        return self.captioner.init_cache(context, max_length)

    def step(self, context, cache, tokens, index, training=False):
        return self.captioner.step(context, cache, tokens, index, training)

    @property
    def vocabulary_axes(self):
        return self.captioner.vocabulary_axes

    @property
    def checkpoint_items(self):
        """The weights of the captioner, then those of the network.

        The weights of the captioner have the same names as without a backbone, so that a checkpoint
        of the captioner alone can be restored. The weights of the network are numbered, because the
        names that Keras gives its layers change from process to process.
        """
        items = self.captioner.checkpoint_items
        own = {f"{PREFIX}{i}/{v.name}": v for i, v in enumerate(self.network.variables)}
        seeds = {name: v.value for name, v in own.items() if is_seed(v)}
        weights = {name: v.value for name, v in own.items() if not is_seed(v)}
        return {"weights": items["weights"] | weights, "seeds": items["seeds"] | seeds}
