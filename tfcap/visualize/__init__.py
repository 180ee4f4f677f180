"""Attention over pictures, its figures, and pages of captions in HTML.

* `attention`: computes which regions a captioner used for each word of a caption; needs TensorFlow.
* `attended`: the result of `attention`.
* `figures`: draws the attention over the picture.
* `report`: writes pages of captions.
* `fonts`: chooses the fonts of the figures.
"""
