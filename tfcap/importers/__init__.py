"""Reads the authors' released PyTorch checkpoints and maps their names, sizes and words to ours."""

FAMILIES = (
    *("xlan", "xtransformer", "updown", "expansionnet", "expansionnet_v2", "xmodaler", "aoanet"),
    "self_critical",
)
