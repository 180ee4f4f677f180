"""Consensus reranking: choosing the caption that agrees with those of similar images."""
