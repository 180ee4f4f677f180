"""A captioner together with the network that computes its features, so that both are trained.

Letters: B images, R regions, F feature width, N rows of words, T' length of the captions, V
vocabulary.
"""

import keras

from tfcap import private_api
from tfcap.layers import precision
from tfcap.layers.trees import is_seed
from tfcap.models.captioner import Backbone, Captioner

PREFIX = "backbone/"  # begins the names of the network's weights in checkpoints


class EndToEnd(Captioner):
    """A captioner together with a backbone, which computes the features of pictures.

    Training uses this class if it reads pictures instead of features. `encode` reads `pictures`
    instead of `features`; all other methods are those of the captioner. Captioning uses the two
    parts separately: the captioner reads features that the backbone has extracted.

    Training the captioner and the network together follows ExpansionNet v2 (Hu et al., arXiv
    2208.06551). In training, dropout inside the network is off, with one exception: a Swin
    Transformer whose weights are trained leaves out residual branches at random (stochastic depth).
    Batch normalisation uses the moving averages that came with the weights and does not update
    them, because a batch has few pictures. The scales and offsets of batch normalisation are
    trained. The network of the paper has no batch normalisation.

    Args:
      captioner: captioner that has its variables, as `tfcap.models.build` makes it.
      backbone: a `tfcap.backbones.backbone.Backbone` with a network. The constructor changes the
        backbone: its network then computes in the global precision of Keras, and its features are
        not rounded.
      trainable: whether the weights of the network are trained, too. False keeps these weights as
        they are.

    Example:
      >>> from tfcap.backbones.backbone import Backbone
      >>> backbone = Backbone("small_cnn", image_size=32)
      >>> captioner = models.build("show_tell", 20, 5, backbone.feature_dim, width=8)
      >>> model = EndToEnd(captioner, backbone)
      >>> inputs = {"pictures": tf.ones((2, 32, 32, 3)), "mask": tf.ones((2, 4), tf.bool)}
      >>> model.decode(model.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    backbone: Backbone

    def __init__(
        self, captioner: Captioner, backbone: Backbone, *, trainable: bool = True, **kwargs
    ):
        sizes = (captioner.vocab_size, captioner.max_length, captioner.feature_dim)
        # Pictures stay float32 until the network has scaled them.
        super().__init__(*sizes, name=captioner.name, autocast=False, **kwargs)
        self.captioner = captioner
        self.network = backbone.model
        self.backbone = backbone
        self.backbone.rounds = False
        self.width = captioner.width
        self.network.trainable = trainable
        policy = keras.config.dtype_policy()
        if isinstance(policy, precision.Products):
            policy = "float32"  # training a backbone with products in bfloat16 was not tried
        for layer in private_api.all_layers(self.network):
            layer.dtype_policy = policy
        self.built = True

    def on_features(self) -> Captioner:
        return self.captioner

    def encode(self, inputs, training=False):
        """Computes the features of pictures, and encodes the features as the captioner does.

        Args:
          inputs: dictionary with `pictures` float32 [B, height, width, 3], B pictures as
            `backbone.decode` returns them; and `mask` bool [B, R] for R regions, False for padding.
          training: whether dropout is on.

        Returns:
          The context, as the `encode` of the captioner returns it.
        """
        mask = inputs["mask"]
        is_stochastic = training and self.network.trainable and self.backbone.network.stochastic
        features = self.backbone.features(inputs["pictures"], training=is_stochastic)
        features = features[:, : mask.shape[1]]
        return self.captioner.encode({"features": features, "mask": mask}, training)

    def decode(self, context, tokens, training=False):
        return self.captioner.decode(context, tokens, training)

    def init_cache(self, context, max_length):
        return self.captioner.init_cache(context, max_length)

    def step(self, context, cache, tokens, index, training=False):
        return self.captioner.step(context, cache, tokens, index, training)

    def extra_loss(self, context, logits, targets):
        return self.captioner.extra_loss(context, logits, targets)

    @property
    def vocabulary_axes(self):
        return self.captioner.vocabulary_axes

    @property
    def checkpoint_items(self):
        """The variables of a checkpoint: two dictionaries, `weights` and `seeds`, by name.

        `seeds` are the states of random generators. The variables of the captioner have the same
        names as without a backbone, so that a checkpoint of the captioner alone can be restored.
        The names of the variables of the network begin with `backbone/` and a number, because the
        names that Keras gives to layers change from process to process.
        """
        items = self.captioner.checkpoint_items
        names = {f"{PREFIX}{i}/{v.name}": v for i, v in enumerate(self.network.variables)}
        seeds = {name: v.value for name, v in names.items() if is_seed(v)}
        weights = {name: v.value for name, v in names.items() if not is_seed(v)}
        return {"weights": items["weights"] | weights, "seeds": items["seeds"] | seeds}
