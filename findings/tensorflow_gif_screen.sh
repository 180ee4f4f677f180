#!/usr/bin/env bash
# tf.io.decode_gif ignores the screen of a GIF file, and never clears a frame.
#
# Versions: TensorFlow 2.20.0 (tensorflow-cpu), Pillow 12.3.0, NumPy 2.2.6; Python 3.10 to 3.13.
# Behaviour: 1. A GIF file names the size of its screen, and each frame has an offset on it. The
#   canvas of TensorFlow is as large as the largest frame, but frames are drawn at their offset.
#   What is beyond the canvas is lost, and the rest is black. tf.io.decode_image does the same.
#   2. A frame is drawn on the frame before, also where that one is to be cleared (disposal 2). So
#   things that move leave a trail.
# Expected by most: the picture that Pillow and OpenCV 5 show; or an error.
# Why it matters: ImageMagick writes such files with -trim without +repage, and there are data sets
#   of captioned GIF files (Auto-captions on GIF). The picture has the wrong size and may be wholly
#   black, without a message.
# tfcap: draws every frame on the screen of its file; it does not clear frames either.
#
# Output seen on 2026-11-28:
#   white frame of 100 x 80 at (80, 60), screen 200 x 160
#   Pillow:     200 x 160, 8000 white pixels
#   TensorFlow: 100 x 80, 400 white pixels
#   white frame of 80 x 60 at (100, 80), screen 200 x 160
#   Pillow:     200 x 160, 4800 white pixels
#   TensorFlow: 80 x 60, 0 white pixels
#   a square of 176 pixels that moves, in three frames with disposal 2
#   Pillow:     176 176 176 white pixels
#   TensorFlow: 176 352 528 white pixels
#   as stated
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check \
  tensorflow-cpu==2.20.0 keras==3.12.4 numpy==2.2.6 protobuf==6.33.2 h5py==3.15.1 ml-dtypes==0.5.4 \
  pillow==12.3.0
TF_CPP_MIN_LOG_LEVEL=3 "$folder/bin/python" -I - <<'EOF'
import io
import struct
import sys

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw

SCREEN = 200, 160
BLACK_AND_WHITE = [0, 0, 0, 255, 255, 255]


def cropped(size, offset):
    """A GIF file with one white frame that is smaller than its screen, as ImageMagick writes it."""
    stream, frame = io.BytesIO(), Image.new("P", size, 1)
    frame.putpalette(BLACK_AND_WHITE)
    frame.save(stream, "GIF", optimize=False)
    content = bytearray(stream.getvalue())
    start = content.index(b"," + struct.pack("<4H", 0, 0, *size))  # the descriptor of the frame
    content[start + 1 : start + 5] = struct.pack("<2H", *offset)
    content[6:10] = struct.pack("<2H", *SCREEN)
    return bytes(content)


def white(pixels):
    return int((pixels == 255).all(-1).sum())


found = []
for size, offset in (((100, 80), (80, 60)), ((80, 60), (100, 80))):
    content = cropped(size, offset)
    right = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    seen = tf.io.decode_gif(content)[0].numpy()
    print(f"white frame of {size[0]} x {size[1]} at {offset}, screen {SCREEN[0]} x {SCREEN[1]}")
    for name, pixels in (("Pillow:", right), ("TensorFlow:", seen)):
        print(f"{name:11} {pixels.shape[1]} x {pixels.shape[0]}, {white(pixels)} white pixels")
    found.append((seen.shape[1::-1] == size, white(seen), right.shape[1::-1], white(right)))

frames = []
for i in range(3):
    frame = Image.new("P", (60, 40), 0)
    frame.putpalette(BLACK_AND_WHITE)
    ImageDraw.Draw(frame).rectangle((5 + 18 * i, 10, 15 + 18 * i, 25), fill=1)
    frames.append(frame)
stream = io.BytesIO()
frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:], transparency=0, disposal=2)
clip, moving = Image.open(stream), []
for i in range(clip.n_frames):
    clip.seek(i)
    moving.append(white(np.asarray(clip.convert("RGBA"))))
trail = [white(frame) for frame in tf.io.decode_gif(stream.getvalue()).numpy()]
print("a square of 176 pixels that moves, in three frames with disposal 2")
print("Pillow:    ", *moving, "white pixels")
print("TensorFlow:", *trail, "white pixels")
if found != [(True, 400, SCREEN, 8000), (True, 0, SCREEN, 4800)]:
    sys.exit("CHANGED: the canvas is no longer as large as the largest frame")
if moving != [176] * 3 or trail != [176, 352, 528]:
    sys.exit("CHANGED: disposal 2 is no longer ignored")
print("as stated")
EOF
