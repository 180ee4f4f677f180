"""The special ids of every vocabulary."""

PAD = 0  # fills the positions after the end of a caption
BOS = 1  # before the first word
EOS = 2  # after the last word
UNK = 3  # a word outside the vocabulary
