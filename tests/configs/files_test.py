"""Strict configurations: what is refused and how, the order of sources, files written and read."""

import pytest

from tfcap import configs, decoding

X = "xtransformer"
RATE = "trainer.optimizer_config.schedule.learning_rate"


def _refusal(override):
    with pytest.raises(ValueError) as caught:
        configs.resolve(X, override=override)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("task.max_lenght=3", ["task.max_lenght", "3", "did you mean task.max_length?"]),
        ("trainer: {optimiser_config: {}}", ["did you mean trainer.optimizer_config?"]),
        ("task.model.xtransformer.zzz=1", ["task.model.xtransformer.zzz", "known: width, heads"]),
        ("1: 2", ["there is no key 1", "known: task, trainer, runtime"]),
    ],
)
def test_an_unknown_key_is_refused(override, parts):
    message = _refusal(override)
    assert message.startswith("--params_override") and all(part in message for part in parts)


def test_files_over_defaults_and_the_override_over_files(tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("task:\n  max_length: 30\n  seed: 30\n  label_smoothing: 0.3\n")
    second.write_text("task:\n  seed: 40\n  label_smoothing: 0.4\n")
    default = configs.resolve(X)
    params = configs.resolve(X, [str(first), str(second)], "task.label_smoothing=0.5")
    task = params.task
    assert (task.max_length, task.seed, task.label_smoothing) == (30, 40, 0.5)
    assert configs.resolve(X, [str(second), str(first)]).task.seed == 30
    untouched = {key: value for key, value, _ in configs.leaves(default)}
    for key in ("task.max_length", "task.seed", "task.label_smoothing"):
        assert untouched.pop(key) not in (30, 40, 0.5)
    assert untouched.items() <= {key: value for key, value, _ in configs.leaves(params)}.items()


def test_an_override_can_be_written_in_several_ways(tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text("task: {seed: 7, metrics: [BLEU, CIDEr]}\ntrainer: {train_steps: 3}\n")
    for override in (
        "task.seed=7,task.metrics=[BLEU,CIDEr],trainer.train_steps=3",
        " task.seed = 7 , task.metrics = [BLEU, CIDEr] , trainer.train_steps = 3",
        "task: {seed: 7, metrics: [BLEU, CIDEr]}\ntrainer:\n  train_steps: 3",
        '{"task": {"seed": 7, "metrics": ["BLEU", "CIDEr"]}, "trainer": {"train_steps": 3}}',
        str(file),
    ):
        params = configs.resolve(X, override=override)
        assert (params.task.seed, params.trainer.train_steps) == (7, 3)
        assert list(params.task.metrics) == ["BLEU", "CIDEr"]
    assert configs.resolve(X, override="task.data_dir=gs://a/b").task.data_dir == "gs://a/b"


def test_values_inside_brackets_belong_together():
    group = "task.decoding={beam: 2, length_power: 1},task.seed=3"
    task = configs.resolve(X, override=group).task
    assert (task.decoding.beam, task.decoding.length_power, task.seed) == (2, 1, 3)
    deep = "task={seed: 4, decoding: {beam: 2}, metrics: [BLEU, CIDEr]},trainer.train_steps=5"
    params = configs.resolve(X, override=deep)
    assert (params.task.seed, params.task.decoding.beam, params.trainer.train_steps) == (4, 2, 5)
    assert list(params.task.metrics) == ["BLEU", "CIDEr"]
    assert configs.resolve(X, override=" ,task.seed=5").task.seed == 5
    assert configs.resolve(X, override="task.data_dir=a[b,task.seed=3").task.data_dir == "a[b"


@pytest.mark.parametrize("word", ["none", "None", "null", "~"])
@pytest.mark.parametrize(
    "form",
    [
        "task.model.xtransformer.middle_width={0},runtime.mixed_precision_dtype={0}",
        "task: {{model: {{xtransformer: {{middle_width: {0}}}}}}}\nruntime: "
        "{{mixed_precision_dtype: {0}}}",
    ],
)
def test_none_is_accepted_where_a_key_allows_it(form, word):
    params = configs.resolve(X, override=form.format(word))
    assert params.task.model.xtransformer.middle_width is None
    assert params.runtime.mixed_precision_dtype is None
    # It is a word for a key of texts, and no value of a number.
    assert configs.resolve(X, override="task.data_dir=none").task.data_dir == "none"
    assert "task.seed must be int" in _refusal("task.seed=none")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        *(("", ""), ("''", ""), ("no", "no"), ("a 1", "a 1"), ("010", "010"), ("1.50", "1.50")),
        *(("null", "null"), ("[a", "[a"), ("a: b", "a: b"), ("'tis", "'tis"), ("*a", "*a")),
        *(("data/my #2", "data/my #2"), ("1,000", "1,000"), ("data/a,b", "data/a,b")),
        *(("a, of: b", "a, of: b"), ("'a,task.seed: 4'", "a,task.seed: 4")),
        *(('"data/a,b"', "data/a,b"), ("'a,task.seed=4'", "a,task.seed=4"), ("a=b", "a=b")),
    ],
)
def test_the_value_of_a_text_key_stays_text(given, text):
    override = f"task.decoding.prefix={given},task.data_dir= {given} ,task.seed=3"
    task = configs.resolve(X, override=override).task
    assert (task.decoding.prefix, task.data_dir, task.seed) == (text, text, 3)
    assert "task.data_dir must be str" in _refusal("task: {data_dir: null}")


def test_keys_of_yaml_may_be_dotted(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("trainer.train_steps: 7\ntask: {decoding.beam: 2, seed: 3}\ntask.max_length: 9")
    for source in ([str(file)], ""), ([], file.read_text()):
        params = configs.resolve(X, *source)
        assert (params.trainer.train_steps, params.task.decoding.beam) == (7, 2)
        assert (params.task.seed, params.task.max_length) == (3, 9)


@pytest.mark.parametrize("key", ["data_dir", "init_checkpoint"])
def test_paths_may_begin_with_the_home_directory(tmp_path, monkeypatch, key):
    monkeypatch.setenv("HOME", "/home/a")
    file = tmp_path / "recipe.yaml"
    file.write_text(f"task: {{{key}: ~/x}}")
    for source in ([str(file)], ""), ([], f"task.{key}=~/x"), ([], f'{{"task.{key}": "~/x"}}'):
        assert getattr(configs.resolve(X, *source).task, key) == "/home/a/x"
    assert getattr(configs.resolve(X, override=f"task.{key}=gs://~/x").task, key) == "gs://~/x"


def test_the_keys_of_an_override_can_be_read(tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text("task: {seed: 7}")
    for override in ("task.seed=7", "task: {seed: 7}", '{"task": {"seed": 7}}', str(file)):
        assert configs.given(override) == {"task": {"seed": 7}}
    assert configs.given("") == {} == configs.given(" ")


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("nothing.yaml", "--params_override nothing.yaml: the file does not exist"),
        ("task: {", "--params_override must be YAML"),
        (
            "task.data_dir=x, trainer.train_steps:7",
            "write trainer.train_steps=..., not trainer.train_steps:..., after task.data_dir=...",
        ),
        ("task.seed=5,task.max_length: 9", "write task.max_length=..., not task.max_length:..."),
        ("just text", "must map keys to values"),
        ("[1, 2]", "must map keys to values"),
        ("task=1,task.seed=3", "task must be a value or a group of keys. Received: both"),
        ("trainer.train_steps=1,000", "trainer.train_steps must be int"),
        ("task.seed={a: 1}", "task.seed must be one value or a list of values"),
        ("task: {metrics: [[CIDEr]]}", "task.metrics must be one value or a list of values"),
        ("trainer.validation_summary_subdir=../x", "must be the name of a directory"),
    ],
)
def test_bad_overrides_are_refused(override, part):
    assert part in _refusal(override) and "\n" not in _refusal(override)


def test_a_file_is_named_in_its_errors(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("task: {sed: 3}")
    with pytest.raises(ValueError, match=r"recipe\.yaml: there is no key task\.sed .* task\.seed"):
        configs.resolve(X, [str(path)])
    message = "--experiment must be one of .*Received: 'xtransfomer'. Did you mean 'xtransformer'"
    with pytest.raises(ValueError, match=message):
        configs.resolve("xtransfomer")


def test_a_saved_configuration_loads_as_it_was(tmp_path):
    path = str(tmp_path / "params.yaml")
    params = configs.resolve(X, override=f"task.seed=7,{RATE}=1.0e-05,task.metrics=[CIDEr]")
    configs.save(params, X, path)
    loaded = configs.load(path)
    assert loaded.as_dict() == params.as_dict() and loaded.task.seed == 7
    assert [type(v) for _, v, _ in configs.leaves(loaded)] == [
        type(v) for _, v, _ in configs.leaves(params)
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["params.yaml"]


def test_a_run_from_before_a_key_was_trained_without_it(tmp_path):
    path = tmp_path / "params.yaml"
    params = configs.resolve(X)
    assert params.task.model.get().standardize
    configs.save(params, X, str(path))
    old = "".join(line for line in path.open() if "standardize" not in line)
    path.write_text(old)
    assert configs.load(str(path)).task.model.get().standardize is False


def test_every_level_is_locked(tmp_path):
    configs.save(configs.resolve(X), X, str(tmp_path / "params.yaml"))
    for params in (configs.resolve(X), configs.load(str(tmp_path / "params.yaml"))):
        for group, key, value in (
            (params, "task", configs.Task()),
            (params.task, "seed", 3),
            (params.task.model.xtransformer, "width", 8),
            (params.trainer.optimizer_config.schedule, "name", "noam"),
        ):
            with pytest.raises(ValueError, match="locked"):
                setattr(group, key, value)
            with pytest.raises(ValueError, match="locked"):
                group.override({key: value})
    assert configs.resolve(X).task.seed == 1


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"task: {seed: 3}\n", "the key `experiment` is missing"),
        (b"", "the key `experiment` is missing"),
        (b"- 1\n", "the key `experiment` is missing"),
        (b"experiment: bert\n", "Received: 'bert'"),
        (b"experiment: [1]\n", "experiment must be one of"),
        (b"experiment: xtransformer\ntask: {hidden_size: 3}\n", "no key task.hidden_size"),
        (b"experiment: xtransformer\ntask: {seed: x}\n", "task.seed must be int"),
        (b"experiment: {\n", "must be a YAML file"),
        (b"\x89PNG\r\n\xff\xfe", "must be a YAML file"),
        (b"experiment: !!python/object/apply:os.getcwd []\n", "must be a YAML file"),
    ],
)
def test_a_damaged_params_file_is_refused(tmp_path, content, part):
    path = tmp_path / "params.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        configs.load(str(path))
    assert part in str(caught.value)


def test_a_missing_params_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="params.yaml is missing. --model_dir must be"):
        configs.load(str(tmp_path / "params.yaml"))


def test_a_config_file_must_exist(tmp_path):
    for source in ("recipe", "task.seed=3"):
        with pytest.raises(ValueError, match=f"--config_file {source}: the file does not exist"):
            configs.resolve("xtransformer", [source])
    params = configs.resolve("xtransformer", override="task.data_dir=data/x.yaml")
    assert params.task.data_dir == "data/x.yaml"


TASK = configs.resolve(X, override="task.max_length=9,task.decoding.min_length=2").task


def test_decoding_options_override_those_of_the_run():
    """Keys change options of the run, a preset replaces all of them, and `--beam` comes last."""
    found = configs.decoding(TASK, "search=sample,top_p=0.9,prefix=no one,length_power=1")
    assert (found.search, found.top_p, found.prefix) == ("sample", 0.9, "no one")
    assert found.min_length == 2 and found.length_power == 1
    assert TASK.decoding.search == "beam"
    found = configs.decoding(TASK, "xlan_paper,suppress=on")
    assert (found.finished, found.min_length, found.suppress) == ("retire", 0, "on")
    assert configs.decoding(TASK, "mrnn,beam=10", beam=4).beam == 4
    assert configs.decoding(TASK).as_dict() == TASK.decoding.as_dict()
    for preset in decoding.PRESETS:
        assert configs.decoding(TASK, preset).min_length == 0


def test_another_search_resets_the_options_of_the_first():
    """Options of the run or a preset for their own search do not apply to another search."""
    for preset in ("mrnn", "expansionnet"):
        found = configs.decoding(TASK, f"{preset},search=sample,order=consensus")
        assert (found.finished, found.length_power, found.suppress_unk) == ("hold", 0, False)
    given = "task.decoding={search: sample, top_p: 0.9, samples: 7, length_power: 0.5}"
    task = configs.resolve(
        X, override=given.replace("=", ": ", 1).replace("task.", "task: {", 1) + "}"
    )
    found = configs.decoding(task.task, "search=beam,beam=4")
    assert (found.top_p, found.samples, found.length_power) == (1.0, 5, 0.5)
    with pytest.raises(ValueError, match="task.decoding.beam needs search beam. Received: 4"):
        configs.decoding(task.task, beam=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "must be a preset (xlan_paper, released, expansionnet, mrnn), keys"),
        ("mrnn,wide", "after a preset, with commas between them. Received: 'wide'"),
        ("beams=3", "there is no key beams (3); did you mean beam?"),
        ("beam=2.5", "task.decoding.beam must be int"),
        ("beam=6,groups=4", "beam must be a multiple of groups (4). Received: 6"),
        ("beam=[", "must have key=value after a preset, with commas between them"),
        ("samples=20", "task.decoding.samples needs search sample. Received: 20"),
        ("search=sample,beam=3", "task.decoding.beam needs search beam. Received: 3"),
        ("diversity=2.0", "task.decoding.diversity needs groups above 1"),
        ("length_penalty=gnmt", "task.decoding.length_penalty needs a length_power"),
        ("top_k=5", "task.decoding.top_k needs search sample. Received: 5"),
        ("top_p=0.5", "task.decoding.top_p needs search sample"),
        ("order=consensus", "task.decoding.order needs search sample"),
        ("search=sample,groups=2", "task.decoding.groups needs search beam"),
        ("search=sample,finished=retire", "task.decoding.finished needs search beam"),
        ("search=sample,order=consensus,samples=1", "samples must be at least 2"),
        ("search=sample,order=consensus,length_power=1.0", "length_power needs order probability"),
        ("min_length=9", "min_length must be below task.max_length (9). Received: 9"),
        ("max_length=10", "max_length must be at most task.max_length (9), the longest"),
        ("max_length=2", "min_length must be below task.decoding.max_length (2). Received: 2"),
        ("temperature=0.0", "task.decoding.temperature must be above 0. Received: 0.0"),
        ("search=sample,top_p=0.0", "task.decoding.top_p must be above 0 and at most 1"),
        (
            "length_power=1.0,length_penalty=wu",
            "task.decoding.length_penalty must be one of average, gnmt",
        ),
    ],
)
def test_decoding_options_that_cannot_work_are_refused(text, message):
    with pytest.raises(ValueError) as refusal:
        configs.decoding(TASK, text)
    assert message in str(refusal.value)


def test_a_comma_in_a_text_of_decoding_stays():
    task = configs.resolve(X).task
    options = configs.decoding(task, "prefix=a man, a dog,beam=2")
    assert (options.prefix, options.beam) == ("a man, a dog", 2)
