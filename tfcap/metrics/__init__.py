"""Computes scores and diversity of captions, and reads and writes their files.

No file of this package imports TensorFlow.

* `coco`: `CocoScorer`, which computes BLEU, METEOR, ROUGE-L, CIDEr and SPICE of a set of captions,
  and on request CHAIR and CLIPScore.
* `chair`, `clipscore`: the computation of CHAIR and of CLIPScore.
* `diversity`: how different captions are from each other.
* `bootstrap`: confidence intervals of scores, and comparisons of systems.
* `retrieval`: ranks of captions for an image, and of images for a caption.
* `inputs`: captions and references that a caller gives as files or as Python objects.
* `results`: names and values of scores, and the files of captions and scores.
* `java`: the Java programs that tokenize captions and compute METEOR and SPICE.
* `scoring_arguments`: the arguments of the commands that score captions.
"""
