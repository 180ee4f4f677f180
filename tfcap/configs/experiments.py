"""The registered experiments: each trains without any file, on the built-in shapes."""

from official.core import exp_factory

from tfcap.configs.schema import (
    Data,
    Experiment,
    Model,
    Optimizer,
    Runtime,
    Schedule,
    Task,
    Trainer,
    XTransformer,
)


@exp_factory.register_config_factory("xtransformer")
def xtransformer() -> Experiment:
    """X-Transformer on the built-in shapes, at a size that a laptop trains in minutes."""
    return Experiment(
        task=Task(
            model=Model(
                xtransformer=XTransformer(
                    width=128,
                    encoder_layers=2,
                    decoder_layers=2,
                    region_dropout=0.1,
                    encoder_dropout=0.1,
                    decoder_dropout=0.1,
                    bifeat_dropout=0.1,
                    feed_forward_dropout=0.1,
                    head_dropout=0.1,
                )
            ),
            train_data=Data(global_batch_size=32, captions_per_image=2),
            validation_data=Data(split="val", is_training=False, global_batch_size=50),
            max_length=20,
        ),
        trainer=Trainer(
            optimizer_config=Optimizer(
                schedule=Schedule(
                    name="linear",
                    learning_rate=0.002,
                    warmup_steps=200,
                    decay_steps=200,
                )
            ),
            train_steps=2000,
            validation_interval=500,
            checkpoint_interval=250,
        ),
        runtime=Runtime(),
    )
