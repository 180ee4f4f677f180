"""CHAIR: how many of the mentioned objects are not in the picture.

Rohrbach et al., "Object Hallucination in Image Captioning", EMNLP 2018, section 3.1:

* CHAIRi: mentions of objects that are not in the image, divided by all mentions of objects.
* CHAIRs: captions with such a mention, divided by all captions.
* CHAIR-recall: classes in the image that the caption mentions, divided by all classes in the
  image. It shows whether a low CHAIRi comes from captions that say little.

Only objects of the 80 classes of COCO count. The objects of an image are its labelled objects
(`read_labels`) and the objects that its references mention. Lower values of CHAIRi and CHAIRs are
better, and higher values of CHAIR-recall. The list of synonyms is not that of the authors. A
compound counts as a whole: a hot dog is not a dog, and a train track is not a train.

Letters: B images.
"""

import functools
import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tfcap.files import read_json

_REMEDY = "Give COCO's labels of objects as `instances`, such as instances_val2014.json."
_NO_LABELS = (
    "CHAIR knows only the objects that the references mention, so it counts every other object as "
    "wrong. Give COCO's instances_*.json to compare with published values."
)


def chair(
    references: Mapping[int, Sequence[str]],
    captions: Sequence[str],
    labels: Mapping[int, Collection[str]] | None,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Counts the objects that captions mention, and compares them with the objects of the images.

    Args:
      references: image id -> tokenized references, of B images.
      captions: the tokenized caption of each image, in the order of `references`.
      labels: image id -> classes of its labelled objects, from `read_labels`. With None, an image
        has only the objects that its references mention, and a note says so.

    Returns:
      A dictionary and a list of notes for the user. The dictionary has three keys, each with two
      counts of each image, float64 [B, 2]. The score of a set of images is the sum of the first
      count over the images, divided by the sum of the second count.

      * ``"CHAIRi"``: the number of mentions of objects that are not in the image, and the number of
        all mentions of objects.
      * ``"CHAIRs"``: 1 if the caption mentions an object that is not in the image, else 0; and 1,
        which counts the caption.
      * ``"CHAIR-recall"``: the number of classes of objects in the image that the caption mentions,
        and the number of all classes of objects in the image.

    Example:
      >>> counts, notes = chair({7: ["a dog on a bench"]}, ["a cat on a bench"], {7: {"dog"}})
      >>> counts["CHAIRi"], counts["CHAIR-recall"]  # one of two mentions; one of two objects
      (array([[1., 2.]]), array([[1., 2.]]))
    """
    wrong, mentioned, recalled, present = np.zeros((4, len(captions)))
    for row, (image, texts) in enumerate(references.items()):
        names = mentions(captions[row].split())
        objects = {name for text in texts for name in mentions(text.split())}
        objects |= set((labels or {}).get(image, ()))
        wrong[row] = sum(name not in objects for name in names)
        mentioned[row] = len(names)
        recalled[row] = len(objects & set(names))
        present[row] = len(objects)
    counts = {
        "CHAIRi": np.stack([wrong, mentioned], axis=1),
        "CHAIRs": np.stack([wrong > 0, np.ones(len(captions))], axis=1),
        "CHAIR-recall": np.stack([recalled, present], axis=1),
    }
    notes = [_NO_LABELS] if labels is None else []
    if labels is not None and (missing := [image for image in references if image not in labels]):
        notes = [
            f"CHAIR: {len(missing)} of {len(references)} images are not in `instances`; for these "
            "images CHAIR knows only the objects that the references mention"
        ]
    return counts, notes


def read_labels(paths: Sequence[str], images: Collection[int]) -> dict[int, set[str]] | None:
    """Reads which classes of objects are labelled in each image.

    Args:
      paths: files in the format of COCO's instances_val2014.json.
      images: ids of the images that are scored.

    Returns:
      Image id -> names of the classes of its objects; None if `paths` is empty.

    Raises:
      ValueError: a file has another format, or none of the scored images is in the files.
    """
    if not paths:
        return None
    labels: dict[int, set[str]] = {}
    for path in paths:
        content = read_json(path, _REMEDY)
        try:
            names = {category["id"]: category["name"] for category in content["categories"]}
            for image in content["images"]:
                labels[image["id"]] = set()
            for label in content["annotations"]:
                labels.setdefault(label["image_id"], set()).add(names[label["category_id"]])
        except (KeyError, TypeError):
            raise ValueError(
                f'{path} is not like COCO\'s instances_val2014.json. It must have "images" with '
                '"id", "categories" with "id" and "name", and "annotations" with "image_id" and '
                f'"category_id". {_REMEDY}'
            ) from None
    if not any(image in labels for image in images):
        raise ValueError(
            f"None of the scored images is in {', '.join(paths)}. As `instances`, give the file of "
            "the split that has these images."
        )
    return labels


# Class -> further words for it, separated by commas.
_WORDS = {
    "person": "people, human, man, baseball player, tennis player, soccer player, football player, "
    "woman, boy, girl, child, kid, baby, infant, toddler, guy, lady, gentleman, men, women, "
    "player, skier, snowboarder, surfer, skateboarder, skater, rider, biker, cyclist, bicyclist, "
    "motorcyclist, pedestrian, passenger, worker, student, teacher, chef, waiter, waitress, police "
    "officer, policeman, officer, soldier, fireman, firefighter, doctor, nurse, bride, groom, "
    "crowd, mother, father, mom, dad, son, daughter, brother, sister, family, friend, spectator, "
    "audience, batter, pitcher, catcher, umpire, referee, athlete, swimmer, dancer, singer, "
    "musician, farmer, shopper, customer, driver, conductor, tourist, adult, teenager, teen, "
    "someone, youth",
    "bicycle": "bike, tricycle",
    "car": "automobile, sedan, suv, minivan, van, taxi, taxi cab, cab, jeep, convertible, police "
    "car, sports car, station wagon, limousine",
    "motorcycle": "motorbike, motor bike, motor cycle, moped, scooter, dirt bike, motor scooter",
    "airplane": "plane, aeroplane, jet, aircraft, jetliner, airliner, biplane, jumbo jet",
    "bus": "minibus, trolley bus, double decker, school bus",
    "train": "locomotive, tram, subway car, passenger train, steam engine, trolley car, streetcar, "
    "freight train",
    "truck": "pickup, lorry, firetruck, fire truck, pickup truck, dump truck, tow truck, food "
    "truck, fire engine",
    "boat": "ship, canoe, kayak, sailboat, rowboat, ferry, yacht, raft, gondola, speedboat, "
    "motorboat, barge, cruise ship, sail boat, tugboat, dinghy",
    "traffic light": "stoplight, traffic signal, stop light, signal light, street signal",
    "fire hydrant": "hydrant, fireplug",
    "bench": "pew, park bench",
    "bird": "duck, goose, geese, swan, seagull, gull, pigeon, parrot, owl, eagle, hawk, crow, "
    "rooster, hen, ostrich, peacock, penguin, flamingo, pelican, sparrow, robin, dove, duckling, "
    "heron, stork, parakeet, finch, hummingbird",
    "cat": "kitten, kitty, feline, tabby",
    "dog": "puppy, canine, pup, poodle, labrador, retriever, terrier, bulldog, dalmatian, doggy, "
    "sheepdog, dachshund, pug, hound, beagle, corgi",
    "horse": "pony, stallion, mare, foal, colt",
    "sheep": "lamb, ram, ewe",
    "cow": "cattle, bull, calf, calves, ox, oxen, heifer, bison",
    "bear": "polar bear, grizzly, grizzly bear, panda, brown bear, black bear, panda bear",
    "backpack": "back pack, knapsack, rucksack, book bag",
    "umbrella": "parasol",
    "handbag": "purse, hand bag, pocketbook",
    "tie": "necktie, bow tie, neck tie, bowtie",
    "suitcase": "luggage, suit case, briefcase, baggage",
    "frisbee": "flying disc, flying disk",
    "skis": "ski",
    "snowboard": "snow board",
    "sports ball": "baseball, basketball, soccer ball, football, tennis ball, volleyball, beach "
    "ball, golf ball, ball",
    "baseball glove": "baseball mitt, catcher 's mitt, mitt",
    "skateboard": "skate board, longboard",
    "surfboard": "surf board, boogie board, body board, bodyboard, paddle board",
    "tennis racket": "racket, racquet, tennis racquet",
    "bottle": "wine bottle, water bottle, beer bottle",
    "wine glass": "wine glasses, champagne glass, champagne glasses, wineglass, goblet",
    "cup": "mug, coffee cup, teacup, glass, tea cup",
    "knife": "knives, steak knife",
    "spoon": "teaspoon, tablespoon, ladle",
    "sandwich": "burger, hamburger, cheeseburger, panini, blt",
    "orange": "tangerine, clementine",
    "hot dog": "hotdog, chili dog, corn dog",
    "donut": "doughnut",
    "cake": "cupcake, cheesecake, birthday cake, wedding cake, shortcake, coffeecake",
    "chair": "armchair, recliner, stool, seat, high chair, lawn chair, arm chair, beach chair",
    "couch": "sofa, loveseat, love seat, settee, futon",
    "potted plant": "houseplant, house plant, potted flower, plant",
    "bed": "mattress, bunk bed, crib, cot",
    "dining table": "table, kitchen table, desk, coffee table, picnic table, dinner table",
    "toilet": "urinal, commode, lavatory, latrine, toilet bowl",
    "tv": "television, tv set, television set, flat screen, flatscreen, television screen",
    "laptop": "laptop computer, notebook computer, macbook, netbook",
    "mouse": "computer mouse, mice",
    "remote": "remote control, game controller, wii remote, wii controller, controller, wiimote",
    "keyboard": "computer keyboard",
    "cell phone": "cellphone, phone, mobile phone, smartphone, smart phone, telephone, iphone",
    "microwave": "microwave oven",
    "oven": "stove, stovetop, stove top, range oven, toaster oven, stove top oven",
    "sink": "wash basin, washbasin, basin",
    "refrigerator": "fridge, freezer, refridgerator",
    "book": "novel, textbook, cookbook, paperback",
    "clock": "alarm clock, clock tower, wall clock",
    "scissors": "scissor, shears",
    "teddy bear": "stuffed bear, teddy, toy bear",
    "hair drier": "hairdryer, hair dryer, blow dryer, hairdrier",
    "toothbrush": "tooth brush",
}
_ONLY_NAMED = (  # classes without a further word
    "stop sign, parking meter, elephant, zebra, giraffe, kite, baseball bat, fork, bowl, banana, "
    "apple, broccoli, carrot, pizza, toaster, vase"
)
# Compounds that hold a word of a class but mean none of the 80.
_OTHER = (
    "train track, train station, train platform, bus stop, bus station, car park, car door, toilet "
    "paper, toilet seat, table cloth, bed room, bird house, dog house, cat food, dog food, bird "
    "bath, bird cage, boat dock, table tennis, baseball field, baseball game, baseball cap, "
    "baseball uniform, baseball team, baseball diamond, baseball hat, soccer field, football "
    "field, football game, basketball court, book shelf, chair lift, pizza box, power plant, "
    "phone booth, cup holder, knife block, cake stand, apple tree, banana tree, orange tree, "
    "orange juice, cell tower, mobile home"
)
# After the fruit, and not after the colour: an orange on a plate, an orange shirt.
_AFTER_FRUIT = frozenset(
    "on in with next at is are sits sitting that which to by from near cut half beside".split()
)
_ANIMALS = "elephant bear giraffe zebra cow sheep horse cat dog bird"
_IRREGULAR = dict(
    pair.split()
    for pair in (
        "people person, men man, women woman, policemen policeman, firemen fireman, gentlemen "
        "gentleman, children child, geese goose, mice mouse, knives knife, calves calf, loaves "
        "loaf, buses bus, oxen ox, canoes canoe, minibuses minibus, neckties necktie, bowties "
        "bowtie"
    ).split(", ")
)
# Words that keep their s; glasses are mostly those of the eyes.
_SINGULAR = "tennis gas canvas lens skis scissors glasses".split()


@functools.cache
def _table() -> dict[tuple[str, ...], str]:
    """Returns the class of each word and compound, by its words; "" means no class."""
    table = {}
    for name, words in (_WORDS | dict.fromkeys(_ONLY_NAMED.split(", "), "")).items():
        for text in (name, *filter(None, words.split(", "))):
            table[tuple(_singular(word) for word in text.split())] = name
    for text in _OTHER.split(", "):
        table[tuple(_singular(word) for word in text.split())] = ""
    for animal in _ANIMALS.split():  # a baby elephant is no person, and an adult bear neither
        for age in ("baby", "adult", "male", "female"):
            table[age, animal] = animal
    return table


@functools.lru_cache(maxsize=1 << 16)
def _singular(word: str) -> str:
    """Returns the singular of an English noun; may also remove the s of other words."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word in _SINGULAR or not re.fullmatch(r"[a-z]{2,}s", word) or word.endswith(("ss", "us")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes", "zes", "oes")):
        return word[:-2]
    return word[:-1]


def mentions(tokens: Sequence[str]) -> list[str]:
    """Returns the class of each mention of a COCO object in a caption, in the order of the words.

    The longest compound counts: "hot dog" is one mention of the class hot dog and none of dog.

    Args:
      tokens: the words of the caption, in lower case.

    Example:
      >>> mentions("two men eat hot dogs".split())
      ['person', 'hot dog']
    """
    words = [_singular(word) for word in tokens]
    table = _table()
    names = []
    start = 0
    while start < len(words):
        for length in (3, 2, 1):
            name = table.get(tuple(words[start : start + length]))
            if name is not None and start + length <= len(words):
                if name and not _is_colour(tokens[start : start + 2]):
                    names.append(name)
                start += length
                break
        else:
            start += 1
    return names


def _is_colour(words: Sequence[str]) -> bool:
    """True if the first of two words is a colour, as in "orange shirt"."""
    return words[0] == "orange" and len(words) > 1 and words[1] not in _AFTER_FRUIT
