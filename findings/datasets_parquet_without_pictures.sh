#!/usr/bin/env bash
# Dataset.to_parquet writes a table of absolute paths where save_to_disk writes the pictures.
#
# Versions: datasets 5.2.0, pyarrow 24.0.0, Pillow 12.3.0, NumPy 2.2.6, pandas 2.3.3;
#   Python 3.10 to 3.13.
# Behaviour: of a data set read from a folder (imagefolder), to_parquet writes bytes = null and the
#   absolute path of each picture on this machine, without a warning. The column is still declared
#   an Image. save_to_disk stores the bytes of the same data set. Reading the Parquet file where the
#   folder does not exist fails only when the first picture is asked for.
# Expected by most: Parquet files with pictures inside, like those on the hub (push_to_hub embeds
#   them by default, says its documentation) and those of save_to_disk.
# Why it matters: people hand a captioning data set on as one Parquet file of a few kilobytes. It
#   works on their machine, so they notice only when the pictures are gone.
# tfcap: reads the pictures at these paths if they lie below --images, and counts the missing ones.
#
# Output seen on 2026-11-28 (FOLDER stands for the temporary folder):
#   three pictures of 18,506 bytes; the Parquet file: 1,687 bytes
#   to_parquet:   bytes None, path FOLDER/pictures/p0.jpg
#   save_to_disk: 6156 bytes, path p0.jpg
#   from Parquet, with the folder renamed: FileNotFoundError for row 0, 3 rows counted
#   as stated
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile --disable-pip-version-check \
  datasets==5.2.0 pyarrow==24.0.0 pillow==12.3.0 numpy==2.2.6 pandas==2.3.3
HF_HUB_OFFLINE=1 HF_HOME="$folder/hf" "$folder/bin/python" -I - "$folder" <<'EOF'
import pathlib
import sys

import datasets
import numpy as np
import pyarrow.parquet
from PIL import Image

datasets.disable_progress_bars()
folder = pathlib.Path(sys.argv[1])
pictures = folder / "pictures"
pictures.mkdir()
rows = ["file_name,text"]
for i in range(3):
    noise = np.random.default_rng(i).integers(0, 256, (96, 96, 3), dtype=np.uint8)
    Image.fromarray(noise).save(pictures / f"p{i}.jpg")
    rows.append(f"p{i}.jpg,picture {i}")
(pictures / "metadata.csv").write_text("\n".join(rows) + "\n")
data = datasets.load_dataset("imagefolder", data_dir=str(pictures), split="train")
data.to_parquet(folder / "data.parquet")
data.save_to_disk(folder / "disk")

size = sum(path.stat().st_size for path in pictures.glob("*.jpg"))
row = pyarrow.parquet.read_table(folder / "data.parquet").to_pylist()[0]["image"]
plain = datasets.Image(decode=False)
saved = datasets.load_from_disk(str(folder / "disk")).cast_column("image", plain)[0]["image"]
print(f"three pictures of {size:,} bytes; ", end="")
print(f"the Parquet file: {(folder / 'data.parquet').stat().st_size:,} bytes")
print(f"to_parquet:   bytes {row['bytes']}, path {row['path'].replace(str(folder), 'FOLDER')}")
print(f"save_to_disk: {len(saved['bytes'])} bytes, path {saved['path']}")
pictures.rename(folder / "moved")
again = datasets.load_dataset("parquet", data_files=str(folder / "data.parquet"), split="train")
try:
    error = f"a {type(again[0]['image']).__name__}"
except Exception as raised:
    error = type(raised).__name__
print(f"from Parquet, with the folder renamed: {error} for row 0, {len(again)} rows counted")
if row["bytes"] is not None or not saved["bytes"] or error != "FileNotFoundError":
    sys.exit("CHANGED: to_parquet no longer leaves the pictures out")
print("as stated")
EOF
