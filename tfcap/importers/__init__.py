"""Reads checkpoints that authors released, and maps their names, sizes and words to ours.

* `convert` turns a captioner into a run directory. It uses `systems`, `weights` and `words`.
* `detector` turns a detector of regions into the directory of a detector. It uses `caffe_file`.

`FAMILIES` has the names of the released codes whose captioners can be converted.
"""

FAMILIES = (
    *(
        "xlan",
        "xtransformer",
        "updown",
        "expansionnet",
        "expansionnet_v2",
        "xmodaler",
        "aoanet",
        "ort",
        "m2",
    ),
    "self_critical",
)
