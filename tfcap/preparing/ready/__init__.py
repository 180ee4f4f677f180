"""Ready-made features: what a detector or another program has written in one of several layouts.

`layouts` has a class per layout, `checks` brings the arrays of an image into one form, and `reader`
finds the image in the files.
"""

from tfcap.preparing.ready.checks import checked
from tfcap.preparing.ready.layouts import LAYOUTS, FeatureFiles, recognise
from tfcap.preparing.ready.reader import ReadyFeatures
