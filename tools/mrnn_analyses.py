#!/usr/bin/env python
"""One-off analyses of the m-RNN paper (Mao et al., ICLR 2015), with a run of this package.

tools/mrnn_analyses.py shortlist --model_dir runs/iapr_mrnn --split test --curves curves.png
tools/mrnn_analyses.py neighbours --model_dir runs/mrnn --images 5
tools/mrnn_analyses.py words --model_dir runs/mrnn dog red

`shortlist` ranks, for each image, only the captions of its nearest images (supplement 10.2), and
draws the recall curves of IAPR TC-12. `neighbours` compares the nearest training images by the
original and by the refined features (section 8). `words` lists the nearest embeddings (supplement).
"""

import argparse

import numpy as np

from tfcap import runs
from tfcap.data.tokens import SPECIALS
from tfcap.inference import nearest
from tfcap.inference.retrieval import Pairs, score_split
from tfcap.metrics import retrieval


def neighbourhoods(index, number):
    """Finds the nearest images of each image, the image itself first: int64 [I, min(number, I)].

    The paper follows Kiros, Salakhutdinov and Zemel, "Multimodal Neural Language Models", ICML
    2014: the task becomes harder, because similar images have similar captions. (Our reading: the
    distance is Euclidean, and an image is among its own neighbours, because its own captions must
    be in the list.) The paper mentions no shortlist for the other direction, which ranks all
    images.
    """
    itself = np.arange(len(index.ids))[:, None]
    if number == 1:
        return itself
    others = index.search(index.vectors, min(number, len(itself)) - 1, index.ids)[0]
    return np.concatenate([itself, others], 1)


def shortlist(run, data, split, number, marginal_images, seed, curves=None):
    """Ranks captions of the nearest images, and all captions; returns the summaries by name."""
    pairs = Pairs(run, data, split, 0, 8)
    scores, owners, marginals, _ = score_split(pairs, marginal_images, seed)
    index = nearest.open_index(data, nearest.Space(), None, run.max_regions, (split,))
    near = neighbourhoods(index, number)
    queries = {
        "image to text": retrieval.image_to_text(scores, owners, marginals),
        f"image to text, {near.shape[1]} nearest": retrieval.image_to_text(
            scores, owners, marginals, near
        ),
        "text to image": retrieval.text_to_image(scores, owners),
    }
    summaries = {name: retrieval.summarize(list(each)) for name, each in queries.items()}
    print(retrieval.format_table(summaries))
    if curves:
        from matplotlib.figure import Figure

        figure = Figure()
        axes = figure.subplots()
        for name, summary in summaries.items():
            axes.plot(retrieval.PERCENT, summary.curve, label=name)
        axes.set(xlabel="% of the ranked items", ylabel="recall, %")
        axes.legend()
        figure.savefig(curves)
    return summaries


def neighbours(run, data, split, images, top):
    """Prints the nearest training images in both spaces; returns the share that both find, %."""
    nearest_ids = []
    names, train_names = data.file_names(split), data.file_names("train")
    ids = data.index(split).id[:images]
    for space in (nearest.Space(), nearest.Space(run.model)):
        train = nearest.open_index(data, space, None, run.max_regions)
        queries = nearest.open_index(data, space, None, run.max_regions, (split,))
        positions, distances = train.search(queries.vectors[:images], top, ids)
        rows = train.ids[positions]
        nearest_ids.append(rows)
        for image, row, values in zip(ids.tolist(), rows.tolist(), distances, strict=True):
            texts = (f"{train_names[i]} {d:.3g}" for i, d in zip(row, values, strict=True))
            print(f"{names[image]}, {space.name}: {', '.join(texts)}")
    pairs = zip(*nearest_ids, strict=True)
    share = 100 * float(np.mean([np.isin(first, second).mean() for first, second in pairs]))
    print(f"{share:.1f} % of the neighbours are the same ({len(ids)} images)")
    return share


def words(run, queries, top):
    """Prints and returns the words with the nearest embeddings, by Euclidean distance."""
    weights = run.model.on_features().checkpoint_items["weights"]
    rows = weights["embed_tokens/embeddings"].numpy().astype(np.float64)
    results = []
    for word in queries:
        token = run.vocab.words.index(word)
        distances = np.linalg.norm(rows - rows[token], axis=1)
        distances[[*range(len(SPECIALS)), token]] = np.inf
        order = np.argsort(distances, kind="stable")[:top]
        near = [(run.vocab.words[n], float(distances[n])) for n in order]
        print(f"{word}: " + ", ".join(f"{other} {distance:.2f}" for other, distance in near))
        results.append(near)
    return results


def main():
    """Runs an analysis."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("analysis", choices=["shortlist", "neighbours", "words"])
    parser.add_argument("words", nargs="*", help="the words of `words`")
    parser.add_argument("--model_dir", required=True, help="the directory of a run")
    parser.add_argument("--data_dir", help="prepared data; by default that of the run")
    parser.add_argument("--split", default="val")
    parser.add_argument("--number", type=int, default=100, help="images of the shortlist")
    parser.add_argument(
        "--marginal_images", type=int, default=500, help="images that give P(caption)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw of these images")
    parser.add_argument("--curves", help="the PNG to write")
    parser.add_argument("--images", type=int, default=5, help="images of `neighbours`")
    parser.add_argument("--top", type=int, default=5, help="neighbours of an image or a word")
    args = parser.parse_args()
    run = runs.load(args.model_dir)
    if args.analysis == "words":
        words(run, args.words, args.top)
        return
    data = runs.load_data(run, args.data_dir)
    if args.analysis == "neighbours":
        neighbours(run, data, args.split, args.images, args.top)
        return
    shortlist(
        run, data, args.split, args.number, args.marginal_images, args.seed, curves=args.curves
    )


if __name__ == "__main__":
    main()
