"""Sizes of the model and batch that tests share (`conftest.tiny` and `conftest.batch`)."""

IMAGES, CAPTIONS, REGIONS, FEATURES = 3, 2, 5, 6
VOCABULARY, LENGTH = 13, 6
