"""Image features: backbones, and readers of features that exist already."""
