"""Applies a trained captioner to a whole split: captions, scores, retrieval, reranking.

* `decode` captions the images; `rerank` reorders the captions of each image.
* `likelihood` scores captions: perplexity, and the scores of all pairs of image and caption.
* `retrieval` ranks images and captions by these scores; `nearest` finds images by their vectors.
* `subject` is what `tfcap.evaluate` evaluates; `others` is what it is compared with.
* `training_captions` has the captions that a model was trained on; `clip` is the network of
  CLIPScore.
"""
