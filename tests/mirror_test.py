"""Every source module has its own test file, or a reason why not."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# Modules without a test file of their own, and where they are tested instead.
TESTED_ELSEWHERE = {
    "__main__.py": "tests/command_line_test.py runs it in processes of its own",
    "captioning/captions.py": "tests/captioning/captioner_test.py reads and draws them",
    "captioning/trained.py": "tests/captioning/captioner_test.py captions pictures with it",
    "configs/experiments.py": "tests/configs/systems_test.py and tests/models/registry_test.py",
    "configs/schema.py": "data classes; rules_test and files_test read their keys and values",
    "evaluating/options.py": "tests/evaluate_test.py parses and refuses them",
    "flags.py": "tests/caption_test.py, evaluate_test.py and retrieve_test.py parse them",
    "ids.py": "four numbers; data/tokens_test compares them with the vocabulary",
    "layers/attention.py": "tests/layers/recording_test.py compares its weights with NumPy",
    "measure/functions.py": "tests/measure/operations_test.py reads graphs through it",
    "measure/graphs.py": "tests/measure/operations_test.py counts what it flattens",
    "measure/measurements.py": "tests/benchmark_test.py makes each of them",
    "measure/python_reward.py": "tests/benchmark_test.py compares it with the graph",
    "metrics/comparison.py": "tests/compare_test.py compares sets of captions with it",
    "metrics/endings.py": "one list of words; tests/training/self_critical_test.py uses it",
    "metrics/meteor.py": "tests/metrics/coco_test.py compares, kills and restarts it",
    "metrics/records.py": "tests/metrics/registry_test.py records metrics of both kinds",
    "metrics/score_flags.py": "tests/compare_test.py and tests/evaluate_test.py parse them",
    "models/captioner.py": "tests/models/contract_test.py checks every method of every system",
    "prepare.py": "tests/preparing/run_test.py runs the command",
    "preparing/features/backbones/network.py": "its attributes; the tests of the families beside",
    "preparing/features/backbones/pixels.py": "tests/preparing/features/backbone_test.py",
    "preparing/features/backbones/presets.py": "tests/preparing/features/backbones/hub_test.py",
    "preparing/features/ready/layout.py": "reader_test.py reads and refuses files of every layout",
    "preparing/beam.py": "tests/preparing/engines_test.py, where Apache Beam is installed",
    "preparing/written.py": "tests/preparing/run_test.py continues with the shards that are left",
    "preparing/built_in.py": "tests/preparing/shapes_test.py writes with it",
    "released/weights.py": "tests/released/convert_test.py assigns good and wrong weights",
    "report/pictures.py": "tests/report/page_test.py encodes pictures, boxes and weights",
    "runs/build.py": "one call of models.build; every test of training calls it",
    "reranking/hypotheses.py": "tests/evaluate_test.py reranks a file and scores a sweep",
    "reranking/options.py": "tests/caption_test.py and tests/evaluate_test.py parse them",
    "reranking/split.py": "tests/evaluate_test.py reranks a split with it",
    "retrieving/options.py": "tests/retrieve_test.py parses and refuses them",
    "retrieving/queries.py": "tests/retrieve_test.py finds images and sentences with it",
    "scoring/retrieval.py": "tests/retrieve_test.py ranks, continues and searches with it",
    "scoring/evaluated.py": "a data class; tests/evaluate_test.py scores what it holds",
    "scoring/beside.py": "tests/region_runs_test.py and evaluate_test.py lay runs side by side",
    "training/gradients.py": "tests/training/task_test.py and self_critical_test.py",
    "training/train.py": "tests/train_test.py",
    "webpage/refused.py": "tests/webpage/application_test.py reads its status and its sentence",
    "visualize/maps.py": "tests/visualize/figures_test.py compares the drawn numbers",
    "visualize/split.py": "tests/evaluate_test.py writes a report with attention",
}


def modules() -> list[str]:
    """The modules of the package as paths below `tfcap`."""
    paths = (path.relative_to(ROOT / "tfcap") for path in ROOT.glob("tfcap/**/*.py"))
    return sorted(str(path) for path in paths if path.name != "__init__.py")


def file_of(module: str) -> pathlib.Path:
    return ROOT / "tests" / module.replace(".py", "_test.py")


@pytest.mark.parametrize("module", modules())
def test_a_module_has_a_test_file_or_a_reason(module):
    assert file_of(module).exists() != (module in TESTED_ELSEWHERE)


def test_the_list_names_modules_that_exist():
    assert set(TESTED_ELSEWHERE) <= set(modules())
