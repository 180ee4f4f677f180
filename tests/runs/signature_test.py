"""The word that says how a model was trained."""

from tfcap import configs
from tfcap.runs.signature import signature


def test_a_signature_names_reward_baseline_and_samples():
    task = configs.Task()
    assert signature(task) == "cross-entropy"
    task = configs.Task(objective="scst")
    assert signature(task).startswith("STANDARD_wInit+Cider-D[n4,s6.0]+average[nspi5]+tfcap-")
    task.override({"self_critical": {"baseline": "greedy", "reward": {"count_eos": False}}})
    assert signature(task).startswith("NO<EOS>_wInit+Cider-D[n4,s6.0]+greedy[nspi5]")
    assert "+hook+" in signature(task, hook=True)
