"""What info.json says of a checkpoint."""

import json

from tfcap import configs, runs


def test_a_signature_names_reward_baseline_and_samples(run):
    assert runs.load(run, "latest").signature == "cross-entropy"
    assert runs.signature(configs.Task()) == "cross-entropy"
    task = configs.Task(objective="scst")
    result = runs.signature(task)
    assert result.startswith("STANDARD_wInit+Cider-D[n4,s6.0]+average[nspi5]+tfcap-")
    task.override({"self_critical": {"baseline": "greedy", "reward": {"count_eos": False}}})
    assert runs.signature(task).startswith("NO<EOS>_wInit+Cider-D[n4,s6.0]+greedy[nspi5]")
    assert "+hook+" in runs.signature(task, hook=True)
    info = run / "best_ckpt" / "info.json"
    info.write_text(json.dumps({"signature": "STANDARD_wInit+Cider-D"}))
    assert runs.load(run).signature == "STANDARD_wInit+Cider-D"
