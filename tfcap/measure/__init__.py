"""Measurements for `tfcap.benchmark`: times, operation counts, growth with size, quality."""

# What `growth` measures: the sizes that it varies with their values, and the systems.
AXES = {
    "regions": (10, 20, 36, 50, 100, 200),
    "beam": (1, 2, 3, 5, 10),
    "images": (1, 2, 5, 10, 20, 50, 128),
    "length": (10, 17, 25, 40),
    "sentences": (10, 20, 50, 100, 200),
}
SYSTEMS = ("xlan", "xtransformer", "expansionnet", "mrnn")
