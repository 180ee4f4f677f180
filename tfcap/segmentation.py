"""How captions are cut into words, and how words become a caption again.

The setting `tokens` of prepared data names the way: `raw` splits captions at spaces and punctuation
(`tfcap.data.tokens`), and `given` takes the words that the caption file lists. All other ways are
in this module. Most serve languages that put no spaces between words: `characters`, and the word
segmenters `jieba` (Chinese), `fugashi` (Japanese) and `pythainlp` (Thai), which are optional
packages. They cut a caption and the same caption with other spaces or punctuation into the same
words. So a caption of a model has the same scores with and without spaces between its words, even
if a segmenter cuts it into other words than those of the model.

`iu_xray` and `mimic_cxr` clean reports of X-ray pictures as the code of R2Gen does (Chen et al.,
"Generating Radiology Reports via Memory-driven Transformer", EMNLP 2020; modules/tokenizers.py in
github.com/zhjohnchan/R2Gen). Their words have a `.` behind each sentence.
"""

import functools
import importlib.metadata
import itertools
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tfcap import errors

# The letters of scripts without spaces, in the form that a class of characters has in the regular
# expressions of Python, RE2 and JavaScript. Their digits are not among them.
NO_SPACES = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c"  # Han: radicals, signs
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
    "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"  # Hiragana and Katakana
    "\u3100-\u312f\u31a0-\u31bf"  # Bopomofo
    "\u0e01-\u0e4e\u0e80-\u0ecf\u0edc-\u0edf"  # Thai and Lao
    "\u1000-\u103f\u1050-\u108f\u109a-\u109f\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa7f"  # Myanmar
    "\u1780-\u17df"  # Khmer
)
RAW, GIVEN, CHARACTERS = "raw", "given", "characters"
IU_XRAY, MIMIC_CXR = "iu_xray", "mimic_cxr"
# Way of cleaning reports -> the words of a report that R2Gen's command for the data set reads. Its
# `max_seq_length`, 60 and 100, counts the start mark, too.
REPORTS = {IU_XRAY: 59, MIMIC_CXR: 99}
# Way -> the packages that it needs, as pip names them. A dictionary counts as a package.
_PACKAGES = {
    CHARACTERS: (),
    "jieba": ("jieba",),
    "fugashi": ("fugashi", "unidic-lite"),
    "pythainlp": ("pythainlp",),
    IU_XRAY: (),
    MIMIC_CXR: (),
}
WAYS = (RAW, GIVEN, *_PACKAGES)
# What `joined` looks for in words with spaces between them, one after the other, to leave its group
# in place of it. The expressions are those of Python, RE2 and JavaScript.
JOINING = (f"([{NO_SPACES}]) ", f" ([{NO_SPACES}])", r" (\.)")
_IN_SCRIPT_WITHOUT_SPACES = re.compile(f"[{NO_SPACES}]")
# What R2Gen's code removes from a sentence. Its :-\[ are all characters from : to [, so - stays.
_NOT_OF_REPORTS = re.compile(r"""["'/\\.,?;*!%^&_+():-\[\]{}]""")


def is_cut(tokens: str) -> bool:
    """Returns whether this module cuts the captions: whether `tokens` is not `raw` or `given`.

    Then the records have the words with spaces between them, and are split at spaces alone.

    Args:
      tokens: the way in which captions are cut, one of `WAYS`.
    """
    return tokens in _PACKAGES


def has_no_spaces(tokens: str) -> bool:
    """Returns whether `tokens` is a way for languages without spaces.

    Args:
      tokens: the way in which captions are cut, one of `WAYS`.
    """
    return is_cut(tokens) and tokens not in REPORTS


def described(tokens: str) -> str:
    """Returns a sentence that says which words scores compare.

    Args:
      tokens: the way in which captions are cut, for which `is_cut` is true.
    """
    how = f"were cut into words by {version(tokens)}"
    if tokens == CHARACTERS:
        how = "have each letter of a script without spaces as a word"
    if tokens in REPORTS:
        name = "IU X-Ray" if tokens == IU_XRAY else "MIMIC-CXR"
        how = (
            f"were cleaned as R2Gen's code cleans reports of {name}, and the full stop behind a "
            "sentence is a word"
        )
    return f"captions and references {how}"


def require(tokens: str) -> None:
    """Raises UsageError if the package of a word segmenter is missing.

    Args:
      tokens: the way in which captions are cut, one of `WAYS`.
    """
    if _PACKAGES.get(tokens):
        segmenter(tokens)


def words_of(texts: Iterable[str], tokens: str) -> list[list[str]]:
    """Cuts captions into words, in lower case, in the normal form NFC and without punctuation.

    Words of scripts with spaces, such as Latin ones, and numbers stay whole. With `characters`,
    each letter of a script without spaces is a word, with the combining marks that follow it. A
    segmenter gets the letters of such scripts alone, without the spaces and the punctuation between
    them.

    The words of reports are exactly those of R2Gen's code, without a normal form. That code removes
    the numbers of lists up to 5, and with them such a number at the end of a sentence. A report
    that has spaces between its words and behind each sentence a word `.` stays as it is: it may
    have been cut.

    Args:
      texts: captions, joined or with spaces between their words.
      tokens: the way in which captions are cut, for which `is_cut` is true. The others are those
        of `tfcap.data.tokens.tokenize_all`.

    Returns:
      The words of each caption.

    Raises:
      UsageError: the package of a segmenter is missing.

    Example:
      >>> words_of(["两只狗在 T恤上。", "2匹の犬"], "characters")
      [['两', '只', '狗', '在', 't', '恤', '上'], ['2', '匹', 'の', '犬']]
      >>> print(*words_of(["1. Heart size normal. 2. No X-ray change (2.5 cm)"], "iu_xray")[0])
      heart size normal . no x-ray change 25 cm .
    """
    if tokens in REPORTS:
        return [_words_of_report(text, tokens) for text in texts]
    if tokens == CHARACTERS:
        return [_units(text) for text in texts]
    segment = segmenter(tokens)
    return [_segmented(_units(text), segment) for text in texts]


def joined(words: Iterable[str]) -> str:
    """Joins words to a caption as people write it.

    Two words have a space between them, unless one of the two letters that touch belongs to a
    script without spaces, or the second word is the full stop of a report.

    Args:
      words: the words of a caption.

    Example:
      >>> joined(["两", "只", "hot", "dog", "在", "桌", "上"])
      '两只hot dog在桌上'
    """
    caption = " ".join(words)
    for pattern in JOINING:
        caption = re.sub(pattern, r"\1", caption)
    return caption


def written(caption: str, tokens: str) -> str:
    """Returns a caption of a model as a file of captions has it.

    It is joined if `words_of` does not need the spaces between its words. The words of the way
    `given` and those of reports keep the spaces.

    Args:
      caption: the words of the caption with spaces between them.
      tokens: the way in which the captions of the model's data are cut, one of `WAYS`.
    """
    return joined(caption.split()) if has_no_spaces(tokens) else caption


def _words_of_report(report: str, tokens: str) -> list[str]:
    words = report.split()
    if "." in words and all(map(_is_of_clean_report, words)):
        return words
    if tokens == MIMIC_CXR:
        report = re.sub(" +", " ", report.replace("\n", " "))
    report = re.sub(r"\.+", ".", report).replace("1. ", "")
    for before in (". ", " "):
        for number in "2345":
            report = report.replace(f"{before}{number}. ", ". ")
    sentences = report.strip().lower().split(". ")
    words = [word for text in sentences for word in (*_NOT_OF_REPORTS.sub("", text).split(), ".")]
    return words if set(words) > {"."} else []


def _is_of_clean_report(word: str) -> bool:
    is_clean = word == word.lower() and not _NOT_OF_REPORTS.search(word)
    return is_clean or word in (".", "<unk>")


def _units(text: str) -> list[str]:
    """Returns the smallest parts of a caption: letters of scripts without spaces, other words."""
    units = [""]
    is_open = may_grow = False  # whether a mark, and whether a letter, may follow the last unit
    for letter in unicodedata.normalize("NFC", text.lower()):
        if _is_mark(letter):
            units[-1] += letter if is_open else ""
        elif is_open := letter.isalnum() or letter == "_":
            is_alone = _IN_SCRIPT_WITHOUT_SPACES.match(letter) is not None
            if may_grow and not is_alone:
                units[-1] += letter
            else:
                units.append(letter)
            may_grow = not is_alone
        else:
            may_grow = False
    return [unit for unit in units if any(map(str.isalnum, unit))]


def _segmented(units: Iterable[str], segment: Callable[[str], Sequence[str]]) -> list[str]:
    """Cuts each row of letters of scripts without spaces into words, and keeps other words."""
    words: list[str] = []
    for has_no_spaces, row in itertools.groupby(units, _is_without_spaces):
        units_of_row = list(row)
        for part in segment("".join(units_of_row)) if has_no_spaces else units_of_row:
            if _is_mark(part[0]) and words:  # a segmenter cuts scripts of other languages anyhow
                words[-1] += part
            else:
                words.append(part)
    return words


def _is_mark(letter: str) -> bool:
    return unicodedata.category(letter)[0] == "M"


def _is_without_spaces(unit: str) -> bool:
    return _IN_SCRIPT_WITHOUT_SPACES.match(unit) is not None


@functools.cache
def segmenter(tokens: str) -> Callable[[str], Sequence[str]]:
    """Returns the function of a segmenter that cuts letters of scripts without spaces into words.

    Each segmenter has its default settings: jieba finds new words by its hidden Markov model and
    has its own dictionary alone, fugashi has the dictionary UniDic, and pythainlp has the engine
    newmm. The same version cuts a text always into the same words.

    Args:
      tokens: the name of the segmenter.

    Raises:
      UsageError: its package is missing.
    """
    try:
        if tokens == "jieba":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it imports pkg_resources
                import jieba

            tokenizer = jieba.Tokenizer()
            # Without this it reads a file of any version in the directory of temporary files, which
            # anybody may have written.
            tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
            tokenizer.initialized = True
            return tokenizer.lcut
        if tokens == "fugashi":
            import fugashi
            import unidic_lite

            tagger = fugashi.Tagger(f'-d "{unidic_lite.DICDIR}"')
            return lambda text: [word.surface for word in tagger(text)]
        import pythainlp

        return functools.partial(pythainlp.word_tokenize, engine="newmm")
    except ImportError as error:
        raise errors.UsageError(
            f"`tokens={tokens}` needs a package that is missing ({error}). Install it: "
            f"pip install {' '.join(_PACKAGES[tokens])}"
        ) from None


def version(tokens: str) -> str | None:
    """Returns what cuts the captions with its version, such as "jieba 0.42.1".

    Args:
      tokens: the way in which captions are cut, one of `WAYS`.

    Returns:
      The packages of a segmenter with their versions; None if there are none, or one is missing.
    """
    try:
        packages = _PACKAGES.get(tokens, ())
        return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages) or None
    except importlib.metadata.PackageNotFoundError:
        return None


def other_version(fingerprint: Mapping[str, Any]) -> str:
    """Returns a sentence if what cut the captions of data is not what is installed; else "".

    Args:
      fingerprint: the content of the dataset.json of the data.
    """
    stored = fingerprint.get("segmenter")
    here = version(fingerprint.get("tokens", RAW))
    if stored in (None, here):
        return ""
    return (
        f"the captions of the data were cut by {stored}, but {here or 'not all of it'} is "
        "installed, which may cut captions into other words. Install the same version"
    )
