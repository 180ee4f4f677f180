"""The arguments of the commands that rerank captions. TensorFlow is not imported."""

from collections.abc import Sequence

from tfcap.arguments import argument, arguments


@arguments
class RerankArguments:
    """Base class with the arguments of every command that reranks captions.

    `rerank.reranker_of` makes the reranker that these arguments describe.
    """

    rerank: str | None = argument(
        "Reorder the captions of each image: consensus ranks them by the captions of similar "
        "reference images; oracle by the image's own references, an upper bound (evaluate only).",
        default=None,
        choices=["consensus", "oracle"],
    )
    rerank_similarity: str = argument(
        "Measure of the similarity of two captions.", default="cider", choices=["cider", "bleu"]
    )
    rerank_neighbours: int = argument("Number of similar images.", default=60, least=1)
    rerank_best: int = argument(
        "Number of captions of the similar images that count for a caption, the most similar ones; "
        "0 means 125 with cider, 175 with bleu.",
        default=0,
        least=0,
    )
    rerank_refined: str | None = argument(
        "Run directory of an m-RNN whose refined features decide which images are similar; "
        "by default the mean of an image's features decides.",
        default=None,
    )
    rerank_references: Sequence[str] = argument(
        "Splits that the similar images are taken from, such as train,val. An image is never its "
        "own neighbour.",
        default=("train",),
        many="commas",
    )
    rerank_frequencies: Sequence[str] = argument(
        "Splits whose captions give the document frequencies of cider (the m-RNN code uses val).",
        default=("train",),
        many="commas",
    )
    rerank_index: str = argument(
        "Directory that keeps the vectors of the reference images between runs; by default the "
        "directory `vectors` of the prepared data.",
        default="",
    )
