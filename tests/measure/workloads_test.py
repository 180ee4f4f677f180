"""The random captions that the benchmark works on."""

from tfcap.measure import workloads


def test_random_captions_depend_on_the_seed_alone():
    captions = workloads.random_captions(3, 40, seed=1)
    assert captions == workloads.random_captions(3, 40, seed=1)
    assert {len(of_image) for of_image in captions} == {workloads.REFERENCES}
    words = [word for of_image in captions for caption in of_image for word in caption]
    assert min(words) == 4 and max(words) < 40
    lengths = {len(caption) for of_image in captions for caption in of_image}
    assert lengths <= set(range(workloads.SHORTEST, workloads.LONGEST + 1))
    padded = workloads.padded(captions)
    assert padded.shape[:2] == (3, 5) and (padded == 2).sum() == 15
