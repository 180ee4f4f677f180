"""Miniatures of published data sets: their files as people download them, with invented content.

`MAKERS` has a function for each row of `docs/data_sets.yaml`, by its name. It writes the files
under the names that the command of the row has into an empty folder.
"""

import csv
import gzip
import json
import pathlib
from collections.abc import Callable

from helpers import picture_bytes
from helpers.clips import FRAMES, gif
from helpers.sources import coco_file, write_pictures

Folder = pathlib.Path
MAKERS: dict[str, Callable[[Folder], None]] = {}  # by the name of the data set
SPLITS = ("train", "val", "test")


def data_set(name: str):
    """Registers the function that makes a data set."""

    def decorate(function):
        assert name not in MAKERS
        MAKERS[name] = function
        return function

    return decorate


def write(path: Folder, *lines: object, together: object = None) -> None:
    """Writes lines of text, objects as lines of JSON, or one JSON value as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    content = json.dumps(together) if together is not None else "\n".join(texts) + "\n"
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def table(path: Folder, *rows: tuple[object, ...], delimiter: str = ",") -> None:
    """Writes a csv file."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)


def clips(folder: Folder, *names: str) -> None:
    """Writes a small GIF file for each name."""
    folder.mkdir()
    for name in names:
        (folder / f"{name}.gif").write_bytes(gif(FRAMES))


# ---- remote sensing ----------------------------------------------------------------------------


@data_set("NWPU-Captions")
def nwpu(folder: Folder) -> None:
    """A list for each class; pictures lie in the folder of their class."""
    content, names = {}, []
    for number, kind in enumerate(("airport", "beach")):
        content[kind] = []
        for place, split in enumerate(SPLITS):
            name = f"{kind}_{place + 1:03d}.jpg"
            names.append(f"{kind}/{name}")
            row = {"filename": name, "imgid": 3 * number + place, "split": split}
            row["raw"] = f"A small {kind} ."
            row |= {f"raw_{n}": f"The {kind} has {n} lamps ." for n in (1, 2)}
            content[kind].append({**row, "sentid": 5 * number})
    write(folder / "dataset_nwpu.json", together=content)
    write_pictures(folder / "NWPU-RESISC45", names)


@data_set("RSICD, RSITMD")
def rsicd(folder: Folder) -> None:
    """The layout of Karpathy's splits."""
    images = []
    for number, split in enumerate(SPLITS):
        sentence = {"tokens": ["a", "pond"], "raw": "a pond .", "imgid": number, "sentid": number}
        image = {"filename": f"pond_{number}.jpg", "imgid": number, "sentids": [number]}
        images.append({**image, "split": split, "sentences": [sentence, sentence]})
    write(folder / "dataset_rsicd.json", together={"images": images, "dataset": "rsicd"})
    write_pictures(folder / "RSICD_images", [image["filename"] for image in images])


@data_set("UCM-Captions, Sydney-Captions")
def ucm(folder: Folder) -> None:
    """Lines that begin with the number of the picture, and a list of names for each split."""
    lines = [f"{n} There are {m} kites near the quay ." for n in (1, 2, 3) for m in (4, 5)]
    write(folder / "UCM/descriptions_UCM.txt", *lines)
    for number, split in enumerate(SPLITS, 1):
        write(folder / f"UCM/filenames/filenames_{split}.txt", f"{number}.tif")
        path = folder / f"UCM/imgs/{number}.tif"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture_bytes.file("TIFF"))


# ---- medicine ----------------------------------------------------------------------------------


@data_set("IU X-Ray, MIMIC-CXR (R2Gen)")
def r2gen(folder: Folder) -> None:
    """A list for each split, and two pictures of a report."""
    content = {}
    for number, split in enumerate(SPLITS):
        paths = [f"CXR{number}_IM-7/{n}.png" for n in range(2)][: 1 + (split != "test")]
        row = {"id": f"CXR{number}_IM-7", "report": f"Both lungs hum in {split} .", "split": split}
        content[split] = [{**row, "image_path": paths}]
    write(folder / "annotation.json", together=content)
    names = [path for rows in content.values() for row in rows for path in row["image_path"]]
    write_pictures(folder / "images", names)


@data_set("ROCOv2")
def roco(folder: Folder) -> None:
    """A table for each split; an id is the name of the picture without its ending."""
    for split in ("train", "valid", "test"):
        rows = [(f"ROCOv2_{split}_{n:06d}", f"A plate , view {n} .") for n in (1, 2)]
        table(folder / f"{split}_captions.csv", ("ID", "Caption"), *rows)
        write_pictures(folder / "images" / split, [f"{name}.jpg" for name, _ in rows])


# ---- photographs -------------------------------------------------------------------------------


@data_set("TextCaps")
def textcaps(folder: Folder) -> None:
    """A row for each caption, below `data`; the names of folders differ from the paths."""
    for split, name in (("train", "0aa"), ("val", "0bb")):
        rows = []
        for number in range(2):
            text = f"A mug says {number} ."
            row = {"image_id": name, "image_path": f"train/{name}.jpg", "set_name": split}
            row |= {"caption_id": number, "caption_str": text, "caption_tokens": ["a", "mug"]}
            rows.append({**row, "reference_strs": [text, "A mug ."], "image_classes": ["Mug"]})
        head = {"dataset_type": split, "dataset_name": "textcaps", "dataset_version": "0.1"}
        write(folder / f"TextCaps_0.1_{split}.json", together={**head, "data": rows})
        write_pictures(folder / "images/train_images", [f"{name}.jpg"])


@data_set("VizWiz-Captions")
def vizwiz(folder: Folder) -> None:
    """COCO's layout with captions that are marked, and a folder for each split."""
    for number, split in enumerate(SPLITS):
        name = f"VizWiz_{split}_{number:08d}.jpg"
        image = {"id": number, "file_name": name, "vizwiz_url": "https://x.org/1.jpg"}
        content = {"info": {}, "images": [{**image, "text_detected": False}]}
        notes = [("A box .", False, False), ("spam", True, False), ("Quality issues", False, True)]
        if split != "test":
            content["annotations"] = [
                {
                    **{"id": 9 * number + n, "image_id": number, "caption": text},
                    **{"is_rejected": rejected, "is_precanned": precanned, "text_detected": False},
                }
                for n, (text, rejected, precanned) in enumerate(notes)
            ]
        write(folder / f"annotations/{split}.json", together=content)
        write_pictures(folder / "images" / split, [name])


@data_set("nocaps")
def nocaps(folder: Folder) -> None:
    """COCO's layout with a domain."""
    images = [
        {"id": n, "file_name": f"0{n}ab.jpg", "open_images_id": f"0{n}ab", "domain": "near-domain"}
        for n in range(2)
    ]
    notes = [{"image_id": n, "id": 10 * n + m, "caption": "A tuba ."} for n in (0, 1) for m in (1,)]
    content = {"licenses": [], "info": {}, "images": images, "annotations": notes}
    write(folder / "nocaps_val_4500_captions.json", together=content)
    write_pictures(folder / "images", ["00ab.jpg", "01ab.jpg"])
    write(folder / "vocab.txt", "<pad>", "<bos>", "<eos>", "<unk>", "a", "tuba")


@data_set("DOCCI")
def docci(folder: Folder) -> None:
    """Lines with two splits more than usual."""
    rows = [
        {
            **{"example_id": f"{split}_00000", "split": split, "image_file": f"{split}_00000.jpg"},
            "description": f"A vase of {split} .",
        }
        for split in ("train", "test", "qual_dev", "qual_test")
    ]
    write(folder / "docci_descriptions.jsonlines", *rows)
    write_pictures(folder / "images", [row["image_file"] for row in rows])


@data_set("Localized Narratives")
def narratives(folder: Folder) -> None:
    """Long lines; an id is the name of the picture without its ending."""
    for split in ("train", "val"):
        rows = []
        for person in range(2):
            row = {"dataset_id": f"Flickr30k_{split}", "image_id": f"77{len(split)}"}
            row |= {"annotator_id": person, "caption": f"Here {person} kites fly ."}
            row["traces"] = [[{"x": 0.125, "y": 0.25, "t": n} for n in range(4000)]]
            rows.append({**row, "voice_recording": "a.ogg"})
        write(folder / f"flickr30k_{split}_localized_narratives.jsonl", *rows)
    write_pictures(folder / "flickr30k-images", ["775.jpg", "773.jpg"])


@data_set("Flickr30k (Hugging Face)")
def flickr30k(folder: Folder) -> None:
    """A list of captions in a cell."""
    rows = [
        (json.dumps(["Two cranes .", "A crane ."]), "[0, 1]", split, f"{n}.jpg", n)
        for n, split in enumerate(SPLITS)
    ]
    names = ("raw", "sentids", "split", "filename", "img_id")
    table(folder / "flickr_annotations_30k.csv", names, *rows)
    write_pictures(folder / "flickr30k-images", ["0.jpg", "1.jpg", "2.jpg"])


@data_set("Flickr30k (Kaggle)")
def flickr30k_kaggle(folder: Folder) -> None:
    """A number of the caption beside it."""
    rows = [(f"{n}.jpg", m, f"Crane {m} , by a quay .") for n in range(4) for m in range(2)]
    table(folder / "captions.txt", ("image_name", "comment_number", "comment"), *rows)
    write_pictures(folder / "Images", [f"{n}.jpg" for n in range(4)])


@data_set("Flickr8k (Kaggle)")
def flickr8k_kaggle(folder: Folder) -> None:
    """A caption with a comma has no quotes."""
    lines = [f"{n}_5f.jpg,Crane {m} , by a quay ." for n in range(4) for m in range(2)]
    write(folder / "captions.txt", "image,caption", *lines)
    write_pictures(folder / "Images", [f"{n}_5f.jpg" for n in range(4)])


@data_set("COCO, Flickr8k, Flickr30k (Karpathy)")
def karpathy(folder: Folder) -> None:
    """The folder and the file of a picture."""
    images, names = [], []
    for number, split in enumerate(("train", "restval", "val", "test")):
        name = f"COCO_val2014_{number:012d}.jpg"
        image = {"filepath": "val2014", "filename": name, "cocoid": number + 70, "split": split}
        images.append(
            {**image, "imgid": number, "sentences": [{"raw": "A kite.", "tokens": ["a"]}]}
        )
        names.append(f"val2014/{name}")
    write(folder / "dataset_coco.json", together={"images": images, "dataset": "coco"})
    write_pictures(folder / "coco", names)


@data_set("COCO")
def coco(folder: Folder) -> None:
    """Two files, and a folder for each."""
    for split, ids in (("train", [9, 25]), ("val", [42])):
        coco_file(folder / f"captions_{split}2014.json", ids)
        names = [f"COCO_{split}2014_{number:012d}.jpg" for number in ids]
        write_pictures(folder / f"coco/{split}2014", names)


@data_set("ArtEmis")
def artemis(folder: Folder) -> None:
    """A path from two columns, and a split of rows that nobody uses."""
    names = ("art_style", "painting", "emotion", "utterance", "repetition", "split")
    rows = [("Cubism", f"p_{n}", "awe", "It glows .", 1, split) for n, split in enumerate(SPLITS)]
    rows += [("Baroque", "p_9", "awe", "So calm .", 1, "rest")] * 2
    table(folder / "artemis_preprocessed.csv", names, *rows)
    write_pictures(folder / "wikiart", [f"{row[0]}/{row[1]}.jpg" for row in rows])


@data_set("FACAD")
def facad(folder: Folder) -> None:
    """Several pictures of a product, by their web addresses; some of them were downloaded."""
    site = "https://img.example.org/id"
    rows = [
        {
            "id": 100 + number,
            "images": [
                {"color": "red", "0": f"{site}/{number}a.jpeg?w=60", "1": f"{site}/{number}b.jpeg"}
            ],
            "title": "Coat",
            "description": "<p>Warm &amp; <b>soft</b></p>",
            "detail_info": "<ul><li>Wool</li></ul>",
            "categoryid": 1,
            "category": "coat",
            "attr": ["warm"],
        }
        for number in range(4)
    ]
    write(folder / "meta_all_129927.json", together=rows)
    write_pictures(folder / "images", ["0a.jpeg", "0b.jpeg", "1a.jpeg", "103_red_1.jpg"])


@data_set("LLaVA-Pretrain")
def llava(folder: Folder) -> None:
    """A question and its answer; an entry with two answers is a conversation."""
    rows = []
    for number in range(4):
        row = {"id": f"00{number}", "image": f"0000/00{number}.jpg"}
        turns = [("human", "What is this?\n<image>"), ("gpt", f"a lamp of size {number}")]
        turns *= 1 + (number == 3)
        said = [{"from": who, "value": text} for who, text in turns]
        rows.append({**row, "conversations": said})
    write(folder / "blip_laion_cc_sbu_558k.json", together=rows)
    write_pictures(folder / "images", [row["image"] for row in rows])


@data_set("kohya's sd-scripts")
def kohya(folder: Folder) -> None:
    """An object for each picture, by its name without ending."""
    content = {f"cats/{n}": {"caption": f"a cat , {n}", "tags": "cat"} for n in range(4)}
    write(folder / "meta_cap.json", together=content)
    write_pictures(folder / "images", [f"{name}.png" for name in content])


# ---- languages ---------------------------------------------------------------------------------


@data_set("Crossmodal-3600")
def xm3600(folder: Folder) -> None:
    """An object for each language in each line."""
    rows = []
    for number in range(4):
        row = {"image/key": f"{number}0a", "image/locale": "en", "image/source": "x"}
        for language, text in (("en", "A kite ."), ("id", "Layang .")):
            row[language] = {"caption": [text, f"{text} {number}"], "caption/tokenized": [text]}
        rows.append(row)
    write(folder / "captions.jsonl", *rows)
    write_pictures(folder / "images", [f"{number}0a.jpg" for number in range(4)])


@data_set("Multi30k")
def multi30k(folder: Folder) -> None:
    """Line i of a text describes the picture of line i of a list."""
    task = folder / "dataset/data/task1"
    for split, names in {
        "train": ["10.jpg", "11.jpg"],
        "val": ["20.jpg"],
        "test_2017_mscoco": ["COCO_val2014_000000000030.jpg#367178"],
    }.items():
        write(task / f"image_splits/{split}.txt", *names)
        for language, word in (("de", "Ein Kran"), ("en", "A crane")):
            lines = [f"{word} , {n} ." for n in range(len(names))]
            write(task / f"raw/{split}.{language}.gz", *lines)
        write_pictures(folder / "images", [name.partition("#")[0] for name in names])


@data_set("Flickr8k-CN")
def flickr8k_cn(folder: Folder) -> None:
    """A space behind the number, and lists of names without endings."""
    names = ["10_ab", "11_ab", "12_ab", "13_ab"]
    lines = [f"{name}.jpg#zhc#{n} 一只狗 {n}" for name in names for n in range(2)]
    write(folder / "flickr8kzhc.caption.txt", *lines)
    for split, own in {"train": names[:1], "val": names[1:2], "test": names[2:3]}.items():
        write(folder / f"flickr8k{split}.txt", *own)
    write_pictures(folder / "Flicker8k_Dataset", [f"{name}.jpg" for name in names])


@data_set("COCO-CN")
def coco_cn(folder: Folder) -> None:
    """Names without endings; the pictures lie in the folders of COCO's download."""
    names = ["COCO_val2014_000000000042", "COCO_train2014_000000000009"]
    lines = [f"{name}#{n}\t一只猫 {n}" for name in names for n in range(2)]
    write(folder / "coco-cn_ext.icap2020.txt", *lines)
    write_pictures(folder / "coco/val2014", [f"{names[0]}.jpg"])
    write_pictures(folder / "coco/train2014", [f"{names[1]}.jpg"])


@data_set("STAIR Captions")
def stair(folder: Folder) -> None:
    """COCO's layout with words."""
    for split, ids in (("train", [9, 25]), ("val", [42])):
        path = coco_file(folder / f"captions_{split}2014.json", ids, 1)
        content = json.loads(path.read_text())
        path.unlink()
        for note in content["annotations"]:
            note |= {"caption": "赤い凧", "tokenized_caption": "赤い 凧"}
        write(folder / f"stair_captions_v1.2_{split}.json", together=content)
        names = [image["file_name"] for image in content["images"]]
        write_pictures(folder / f"coco/{split}2014", names)


@data_set("UIT-ViIC, KTVIC")
def viic(folder: Folder) -> None:
    """COCO's layout."""
    for split, ids in (("train", [9]), ("val", [42]), ("test", [70])):
        path = coco_file(folder / f"{split}2017.json", ids)
        path.rename(folder / f"uitviic_captions_{split}2017.json")
        content = (folder / f"uitviic_captions_{split}2017.json").read_text()
        (folder / f"uitviic_captions_{split}2017.json").write_text(
            content.replace(f"COCO_{split}2017_", "")
        )
        write_pictures(folder / f"images/coco_uitviic_{split}", [f"{ids[0]:012d}.jpg"])


@data_set("BanglaLekha")
def bangla(folder: Folder) -> None:
    """A JSON list, as a table."""
    rows = [{"filename": f"{n}.png", "caption": ["একটি ঘুড়ি", f"ঘুড়ি {n}"]} for n in range(4)]
    write(folder / "captions.json", together=rows)
    write_pictures(folder / "images", [row["filename"] for row in rows])


@data_set("Hindi Visual Genome")
def hindi(folder: Folder) -> None:
    """Columns without names: the picture, a region of it, English and Hindi."""
    for number, name in enumerate(("train", "dev", "test")):
        rows = [(f"{number}7", 10 * n, 20, 30, 40, "a red kite", "लाल पतंग") for n in range(2)]
        table(folder / f"hindi-visual-genome-{name}.txt", *rows, delimiter="\t")
    write_pictures(folder / "images", ["07.jpg", "17.jpg", "27.jpg"])


# ---- clips -------------------------------------------------------------------------------------


@data_set("VATEX")
def vatex(folder: Folder) -> None:
    """A list for each split; captions in two languages."""
    for split in ("training", "validation"):
        name = f"Q{split}_000010_000020"
        rows = [{"videoID": name, "enCap": ["a kite flies", "a kite"], "chCap": ["风筝"]}]
        write(folder / f"vatex_{split}_v1.0.json", together=rows)
    clips(folder / "clips", "Qtraining_000010_000020", "Qvalidation_000010_000020")


@data_set("MSVD (csv)")
def msvd_csv(folder: Folder) -> None:
    """The name of a clip from three columns, and a column of languages."""
    names = ("VideoID", "Start", "End", "WorkerID", "Source", "AnnotationTime")
    rows = [
        (f"mv{n}", 5, 9 + n, 77, "clean", 31, language, text)
        for n in range(3)
        for language, text in (("English", "a kite flies"), ("Slovene", "zmaj leti"))
    ]
    table(folder / "video_corpus.csv", (*names, "Language", "Description"), *rows)
    clips(folder / "clips", *(f"mv{n}_5_{9 + n}" for n in range(3)))


@data_set("MSVD (text)")
def msvd_text(folder: Folder) -> None:
    """The name of a clip and a sentence a line."""
    lines = ["# Descriptions of clips", "#", ""]
    lines += [f"-4_x{n}_5_15 a kite {what}" for n in range(3) for what in ("flies", "falls")]
    write(folder / "AllVideoDescriptions.txt", *lines)
    clips(folder / "clips", *(f"-4_x{n}_5_15" for n in range(3)))
