"""Reads checkpoints that authors released, and maps their names, sizes and words to ours.

* `convert`: a captioner becomes a run directory; `systems`, `weights` and `words` are its parts.
* `detector`: a detector of regions becomes the directory of a detector; `caffe_file` is its part.

The commands accept the families below.
"""

FAMILIES = (
    *("xlan", "xtransformer", "updown", "expansionnet", "expansionnet_v2", "xmodaler", "aoanet"),
    "self_critical",
)
