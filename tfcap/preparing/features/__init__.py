"""Image features: backbones, and readers of features that exist already."""

# Per name the builder and its module in keras.applications, and the width of the last grid.
NETWORKS = {
    "mobilenet_v2": ("MobileNetV2", "mobilenet_v2", 1280),
    "resnet50": ("ResNet50", "resnet", 2048),
    "resnet101": ("ResNet101", "resnet", 2048),
    "resnet152": ("ResNet152", "resnet", 2048),
    "vgg16": ("VGG16", "vgg16", 512),
}
# Networks whose vector of a whole picture is a layer and not the mean of the grid: layer, width.
VECTORS = {"vgg16": ("fc2", 4096)}
BACKBONES = (*NETWORKS, "pixels")
