"""Computes scores and diversity of captions, and reads and writes their files.

No file of this package imports TensorFlow.

* `coco`: BLEU, METEOR, ROUGE-L, CIDEr and SPICE of a set of captions, and what follows here.
* `chair`, `clipscore`: the metrics of these names.
* `diversity`: how different captions are from each other.
* `bootstrap`: confidence intervals of scores, and comparisons of systems.
* `retrieval`: ranks of images and captions.
* `results`: names and values of scores, and the files of captions and scores.
* `java`: the Java programs of some scores.
"""
