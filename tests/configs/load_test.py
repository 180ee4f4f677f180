"""Strict configurations: the order of sources, what is refused, files written and read."""

import pytest
import yaml

from tfcap import configs, decoding
from tfcap.configs import experiments

X = "xtransformer"
RATE = "trainer.optimizer_config.schedule.learning_rate"


def test_files_over_defaults_and_the_override_over_files(tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("task:\n  max_length: 30\n  seed: 30\n  label_smoothing: 0.3\n")
    second.write_text("task:\n  seed: 40\n  label_smoothing: 0.4\n")
    params = configs.resolve(X, [str(first), str(second)], "task.label_smoothing=0.5")
    task = params.task
    assert (task.max_length, task.seed, task.label_smoothing) == (30, 40, 0.5)
    assert configs.resolve(X, [str(second), str(first)]).task.seed == 30
    untouched = configs.values(configs.resolve(X))
    for key in ("task.max_length", "task.seed", "task.label_smoothing"):
        assert untouched.pop(key) not in (30, 40, 0.5)
    assert untouched.items() <= configs.values(params).items()


def test_an_override_can_be_written_in_several_ways(tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text("task: {seed: 7, metrics: [BLEU, CIDEr]}\ntrainer.train_steps: 3\n")
    for override in (
        "task.seed=7,task.metrics=[BLEU,CIDEr],trainer.train_steps=3",
        " task.seed = 7 , task.metrics = [BLEU, CIDEr] , trainer.train_steps = 3",
        "task={seed: 7, metrics: [BLEU, CIDEr]},trainer.train_steps=3",
        "task: {seed: 7, metrics: [BLEU, CIDEr]}\ntrainer:\n  train_steps: 3",
        '{"task": {"seed": 7}, "task.metrics": ["BLEU", "CIDEr"], "trainer": {"train_steps": 3}}',
        str(file),
    ):
        params = configs.resolve(X, override=override)
        assert (params.task.seed, params.trainer.train_steps) == (7, 3)
        assert list(params.task.metrics) == ["BLEU", "CIDEr"]
        assert configs.parse_override(override)["task"]["seed"] == 7
    assert configs.parse_override("") == {}


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        (f"{RATE}=1e-4", RATE, 1e-4),  # YAML 1.1 reads it as text
        (f'{{"{RATE}": 1e-07}}', RATE, 1e-7),
        ("trainer.train_steps=1e5", "trainer.train_steps", 100_000),
        ("task.label_smoothing=0", "task.label_smoothing", 0),
        ("runtime.mixed_precision_dtype=none", "runtime.mixed_precision_dtype", None),
        ("task.model.xtransformer.middle_width=null", "task.model.xtransformer.middle_width", None),
        ("task.data_dir=none", "task.data_dir", "none"),
        ("task.data_dir=gs://a/b,task.seed=3", "task.data_dir", "gs://a/b"),
        ("task.data_dir=data/a,b", "task.data_dir", "data/a,b"),
        ("task.decoding.prefix=a man, a dog", "task.decoding.prefix", "a man, a dog"),
        ("task.init_checkpoint=~/x", "task.init_checkpoint", "/home/a/x"),
    ],
)
def test_values_are_read_as_their_keys_need_them(monkeypatch, override, key, value):
    monkeypatch.setenv("HOME", "/home/a")
    result = configs.values(configs.resolve(X, override=override))[key]
    assert result == value and type(result) is type(value)


NUMBERS = ["2024-11-27", "007", "1_0", "1e3", "yes", "0x10", "12:30:00"]
SIGNS = ["data/my #2", "data/a: b", "null", "[x]", "{a}", "*x", "&x", "!x", "@x", "%x", "`x`", "|"]


@pytest.mark.parametrize("text", [*NUMBERS, *SIGNS, "- x", "don't", "a=b"])
def test_a_key_that_holds_text_takes_it_as_written(text):
    """YAML would read dates, numbers, comments and signs of its own."""
    assert configs.resolve(X, override=f"task.data_dir={text}").task.data_dir == text
    several = f"task.seed=2,task.data_dir = {text} , task.init_checkpoint={text}"
    task = configs.resolve(X, override=several).task
    assert (task.seed, task.data_dir, task.init_checkpoint) == (2, text, text)
    assert configs.decoding(TASK, f"prefix={text},beam=2").prefix == text
    assert configs.resolve(X, override=f"runtime.worker_hosts={text}").runtime.worker_hosts == (
        None if text == "null" else text
    )


@pytest.mark.parametrize("text", NUMBERS)
def test_a_file_gives_text_to_a_key_that_holds_text(tmp_path, text):
    file = tmp_path / "params.yaml"
    file.write_text(f"task:\n  data_dir: {text}  # a comment\n  seed: 3\nruntime.tpu: {text}\n")
    params = configs.resolve(X, [str(file)])
    assert (params.task.data_dir, params.runtime.tpu, params.task.seed) == (text, text, 3)
    assert configs.resolve(X, override=f"task={{data_dir: {text}}}").task.data_dir == text


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("task.data_dir='data/a,b=c',task.seed=2", "data/a,b=c"),
        ('task.data_dir="a b ",task.seed=2', "a b "),
        ("task.data_dir='it''s',task.seed=2", "it's"),
        ("task.data_dir='',task.seed=2", ""),
        ('{"task.data_dir": "my #2", "task.seed": 2}', "my #2"),
    ],
)
def test_quotes_around_a_text_are_no_part_of_it(override, value):
    task = configs.resolve(X, override=override).task
    assert (task.data_dir, task.seed) == (value, 2)


@pytest.mark.parametrize(
    ("override", "key"),
    [
        *((f"task.seed={text}", "task.seed") for text in SIGNS + ["2024-11-27", "12:30:00", "yes"]),
        ("task.label_smoothing=2024-11-27", "task.label_smoothing must be float"),
        ("task.remap_vocab=2024-11-27", "task.remap_vocab must be bool"),
        ("task.remap_vocab=1", "must be bool, not '1' (str). Write true or false."),
        ("task.metrics=2024-11-27", "task.metrics must be list"),
        ("task.metrics=BLEU,CIDEr", "must be list, not 'BLEU,CIDEr' (str). Write [A, B]."),
        ('task.data_dir="C:\\x"', "Put single quotes around a text"),
        ("task.seed: 2024-11-27", "task.seed must be int, not '2024-11-27'"),
        ("task.seed=3 #2", "task.seed: YAML takes '#2' for a comment"),
        ("task.data_dir: data/my #2", "YAML takes '#2' for a comment. Put quotes"),
        ("task.data_dir: [x]", "task.data_dir must be str, not ['x'] (list). Put quotes"),
        ("task.data_dir=", "task.data_dir must be str, not None"),
        ("task.data_dir='it's'", "task.data_dir must be YAML"),
        ("task.data_dir.x=3", "task.data_dir must be str"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_key(override, key):
    with pytest.raises(ValueError) as caught:
        configs.resolve(X, override=override)
    assert key in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        *("task.train_data.global_batch_size=0", "task.validation_data.limit=-1"),
        *("task.micro_batches=-2", "task.label_smoothing=1.0", "task.max_length=1"),
        *("task.model.xtransformer.head_dropout=1.5", "task.model.xtransformer.word_dropout=-0.1"),
        *("task.model.xtransformer.width=-8", "task.l2=-1", "task.l2=nan", "task.seed=-1"),
        *(f"task.seed={2**32}", f"trainer.steps_per_loop={2**40}"),
        *("task.scheduled_sampling.maximum=1.1", "task.scheduled_sampling.every=0"),
        *("trainer.patience=-1", "trainer.train_steps=-5", "trainer.validation_interval=0"),
        *("trainer.checkpoint_interval=0", "trainer.steps_per_loop=0", "trainer.max_to_keep=-1"),
        *("trainer.validation_steps=-2", "trainer.validation_steps=0", f"{RATE}=inf"),
        *(f"{RATE}=-0.1", "trainer.optimizer_config.ema_decay=1", "runtime.replicas=-1"),
        *("trainer.optimizer_config.clip_threshold=0", "trainer.loss_upper_bound=nan"),
    ],
)
def test_a_number_out_of_its_range_is_refused_with_its_key(change):
    key, _, value = change.partition("=")
    with pytest.raises(ValueError, match=rf"^{key} must be .*, not {value}\.$"):
        configs.resolve(X, override=change)


def test_the_limits_of_the_ranges_are_inside():
    changes = "task.label_smoothing=0,trainer.validation_steps=-1,trainer.loss_upper_bound=.inf,"
    changes += "task.scheduled_sampling.maximum=1,task.max_length=2,runtime.task_index=-1"
    assert configs.resolve(X, override=changes).trainer.loss_upper_bound == float("inf")
    for experiment in experiments.factories():
        configs.check(configs.resolve(experiment))


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("task.model.hidden=9", ["no key hidden. The keys of task.model.xtransformer are width, "]),
        ("task.model.xlan.hidden=9", ["The keys of task.model.xlan are width, heads"]),
        ("task.model.mygru.width=9", ["no key mygru", "`import=MODULE`"]),
        ("task.model.type=mygru", ["task.model.type=mygru is not one of xlan", "`import=MODULE`"]),
        ("task.model.type=updown,task.model.hidden=9", ["keys of task.model.updown are width, a"]),
        ("task.model.xlan.widht=9", ["Did you mean task.model.xlan.width?"]),
        ("task={model: {type: mygru, mygru: {width: 9}}}", ["The systems are xlan", "`import="]),
        ("foo=1", ["no key foo. The keys are task, trainer, runtime."]),
        ("task.decoding.num_beams=5", ["no key num_beams. Use task.decoding.beam."]),
        ("num_beams=5", ["Use task.decoding.beam."]),
        ("task.decoding.do_sample=true", ["Use task.decoding.search=sample."]),
        ("task.decoding.repetition_penalty=1.2", ["Use task.decoding.no_repeat_ngram."]),
        ("task.decoding.max_new_tokens=9", ["Use task.decoding.max_length."]),
        (
            "task.decoding.num_return_sequences=9",
            ["Use task.decoding.samples with task.decoding.s"],
        ),
        ("task.decoding.early_stopping=true", ["no key early_stopping. The keys of task.decoding"]),
        ("task.decoding.seed=1", ["no key seed. The keys of task.decoding are search, beam"]),
        (
            "task.decoding.length_penalty=1.2",
            ["one of average, gnmt (length_power is the exponent)"],
        ),
        ("task.decoding.search=true", ["task.decoding.search must be one of beam, sample"]),
        ("task={decoding: {finished: [3]}}", ["finished must be one of hold, retire, not ['3']"]),
        ("task: {objective: null}", ["task.objective must be one of xe, scst, not None"]),
        ("task.max_lenght=3", ["no key max_lenght", "task.max_length"]),
        ("lerning_rate=0.1", [f"Did you mean {RATE}?"]),
        ("trainer=3", ["trainer must be a group of keys"]),
        ("task.max_length=3.0", ["task.max_length must be int, not 3.0"]),
        ("task.metrics=BLEU", ["task.metrics must be list"]),
        ("task.metrics=[ROUGE]", ["task.metrics: ROUGE is not one of BLEU"]),
        ("task.metrics=[BLEU]", ["best_checkpoint_eval_metric must be one of BLEU-1", "'CIDEr'"]),
        ("task.model.type=lstm", ["task.model.type=lstm is not one of xlan"]),
        ("trainer.optimizer_config.name=adagrad", ["must be one of adam, radam, sgd"]),
        (
            "task.objective=scst,runtime.enable_xla=true,task.self_critical.gradient=sampling",
            ["gradient=sampling does not go together with runtime.enable_xla=true"],
        ),
        ("task.teacher.model_dir=runs/a", ["model_dir must be list", "Write [A, B]."]),
        (
            "task.teacher.model_dir=[flickr8k],task.objective=scst",
            ["task.teacher.model_dir needs task.objective=xe"],
        ),
        (
            "task.teacher.model_dir=[flickr8k],task.backbone.trainable=true",
            ["and task.backbone.trainable=false"],
        ),
        ("task.teacher.weight=1.5", ["task.teacher.weight must be from 0 to 1"]),
        ("task.teacher.temperature=0", ["task.teacher.temperature must be above 0"]),
        ("task.decoding.beam=0", ["task.decoding.beam must be from 1 to 500"]),
        ("nothing.yaml", ["`params_override` nothing.yaml: the file does not exist"]),
        ("task: {", ["`params_override` must be YAML"]),
    ],
)
def test_bad_overrides_are_refused(override, parts):
    with pytest.raises(ValueError) as caught:
        configs.resolve(X, override=override)
    message = str(caught.value)
    assert all(part in message for part in parts) and "\n" not in message, message


def test_a_file_and_an_experiment_are_named_in_their_errors(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("task: {sed: 3}")
    with pytest.raises(ValueError, match=r"recipe\.yaml: there is no key sed.* task\.seed\?"):
        configs.resolve(X, [str(path)])
    with pytest.raises(ValueError, match="`config_file` recipe: the file does not exist"):
        configs.resolve(X, ["recipe"])
    with pytest.raises(ValueError, match="xtransfomer` is unknown. Did you mean 'xtransformer'"):
        configs.resolve("xtransfomer")


def test_a_saved_configuration_loads_as_it_was(tmp_path):
    path = tmp_path / "params.yaml"
    params = configs.resolve(X, override=f"task.seed=7,{RATE}=1.0e-05,task.metrics=[CIDEr]")
    configs.save(params, X, str(path))
    assert path.read_text().startswith(f"experiment: {X}\n")
    experiment, loaded = configs.resume(str(path))
    assert experiment == X and loaded.as_dict() == params.as_dict() and loaded.task.seed == 7
    assert [file.name for file in tmp_path.iterdir()] == ["params.yaml"]


def test_a_run_from_before_a_key_was_trained_without_it(tmp_path):
    path = tmp_path / "params.yaml"
    params = configs.resolve(X)
    assert params.task.model.get().standardize
    configs.save(params, X, str(path))
    path.write_text("".join(line for line in path.open() if "standardize" not in line))
    assert configs.load(str(path)).task.model.get().standardize is False


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"task: {seed: 3}\n", "names no experiment"),
        (b"experiment: xtransformer\ntask: {hidden_size: 3}\n", "no key hidden_size"),
        (b"experiment: xtransformer\ntask: {seed: x}\n", "task.seed must be int"),
        (b"experiment: !!python/object/apply:os.getcwd []\n", "must be YAML"),
        (None, "params.yaml is missing. Give the directory"),
    ],
)
def test_a_file_that_is_no_configuration_of_a_run_is_refused(tmp_path, content, part):
    path = tmp_path / "params.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="params.yaml") as caught:
        configs.load(str(path))
    assert part in str(caught.value)


# ---- decoding -----------------------------------------------------------------------------------

TASK = configs.resolve(X, override="task.max_length=9,task.decoding.min_length=2").task


def test_decoding_options_override_those_of_the_run():
    """Keys change options of the run, a preset replaces all of them, and `--beam` comes last."""
    result = configs.decoding(TASK, "search=sample,top_p=0.9,prefix=a man, a dog,length_power=1")
    assert (result.search, result.top_p, result.prefix) == ("sample", 0.9, "a man, a dog")
    assert result.min_length == 2 and result.length_power == 1
    assert TASK.decoding.search == "beam"
    result = configs.decoding(TASK, "xlan_paper,suppress=cat")
    assert (result.finished, result.min_length, result.suppress) == ("retire", 0, "cat")
    assert configs.decoding(TASK, "mrnn,beam=10", beam=4).beam == 4
    assert configs.decoding(TASK).as_dict() == TASK.decoding.as_dict()
    for preset in decoding.PRESETS:
        assert configs.decoding(TASK, preset).min_length == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "fast is not a preset. Give one of xlan_paper, released, expansionnet, mrnn"),
        ("beams=3", "no key beams. Did you mean beam?"),
        ("min_length=9", "min_length=9 must be below"),
        ("max_length=10", "max_length=10 is above task.max_length=9"),
        ("temperature=0.0", "task.decoding.temperature"),
        ("max_length=-1", "task.decoding.max_length must be at least 0, not -1"),
        ("num_beams=3", "no key num_beams. Use beam."),
        ("xlan_paper,length_penalty=2", "length_penalty must be one of average, gnmt"),
    ],
)
def test_decoding_options_that_cannot_work_are_refused(text, message):
    with pytest.raises(ValueError) as refusal:
        configs.decoding(TASK, text)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "beam", "note"),
    [
        ("top_p=0.9,beam=2,top_k=3", 0, "no effect of top_p, top_k, which search=sample reads"),
        ("search=sample,groups=1", 0, "no effect of groups, which search=beam reads"),
        ("search=sample", 4, "no effect of beam, which search=beam reads"),
        ("search=sample,top_p=0.9,temperature=2.0", 0, ""),
        ("xlan_paper,length_power=1", 3, ""),
    ],
)
def test_keys_of_the_other_search_are_named_once(capsys, text, beam, note):
    configs.decoding(TASK, text, beam)
    err = capsys.readouterr().err
    assert err.count("\n") == bool(note) and note in err
    if text.startswith("top_p"):
        configs.resolve(X, override="task.decoding.top_p=0.9")
        assert "no effect of task.decoding.top_p, which" in capsys.readouterr().err


def test_the_file_of_a_run_may_have_keys_that_are_gone_unless_they_had_an_effect(tmp_path):
    path = tmp_path / "params.yaml"
    configs.save(configs.resolve(X), X, str(path))
    content = yaml.safe_load(path.read_text())
    content["task"]["train_data"]["pad_to_max"] = False
    content["trainer"]["optimizer_config"]["schedule"]["model_width"] = 0
    path.write_text(yaml.safe_dump(content))
    assert configs.values(configs.load(str(path))) == configs.values(configs.resolve(X))
    content["task"]["train_data"]["pad_to_max"] = True
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match="there is no key pad_to_max"):
        configs.load(str(path))
    content["task"]["train_data"] = 3
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match="task.train_data must be a group of keys"):
        configs.load(str(path))


@pytest.mark.parametrize("runtime", ["enable_xla=true", "distribution_strategy=tpu"])
def test_rewards_inside_of_a_gradient_are_not_for_xla(runtime):
    override = f"task.self_critical.gradient=sampling,runtime.{runtime}"
    with pytest.raises(ValueError, match="gradient=sampling does not go together"):
        configs.resolve(f"{X}_scst", override=override)
