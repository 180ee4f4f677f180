"""Consensus reranking: choosing the caption that agrees with those of similar images."""

# Of the paper of `consensus`: m for each measure of similarity, and k.
BEST = {"cider": 125, "bleu": 175}
NEIGHBOURS = 60
