"""Ready-made features: what a detector or another program has written in one of several layouts.

`layouts` has a class per layout, `checks` brings the arrays of an image into one form, `reader`
finds the image in the files, and `sets` joins the features of several networks.
"""

from tfcap.preparing.ready.checks import checked
from tfcap.preparing.ready.layouts import LAYOUTS, FeatureFiles, recognise
from tfcap.preparing.ready.reader import ReadyFeatures
from tfcap.preparing.ready.sets import FeatureSets
