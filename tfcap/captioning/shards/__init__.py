"""Captions large sets: each shard of pictures becomes one shard of captions.

`reading` finds the shards and reads their pictures, `writing` writes the captions, and `work` joins
both. The engines of `tfcap.preparing` call the work for each shard.
"""
