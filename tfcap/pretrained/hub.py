"""Runs on the Hugging Face Hub: `hf://OWNER/NAME`, or `hf://OWNER/NAME@REVISION`."""

import functools
import os

from tfcap.backbones import HUB
from tfcap.files import read_json

PREFIX = "hf://"
# What `tfcap.export --format=run` writes. Nothing else is downloaded, and nothing is unpickled.
_FILES = (
    "params.yaml",
    "vocab.txt",
    "dataset.json",
    "document_frequency.npz",
    "backbone.*",
    "backbone.preset/*",
    "info.json",
    "confidence.json",
    "confidence.npz",
    "checkpoint",
    "ckpt-*",
    "best_ckpt/*",
)


@functools.cache  # training asks several times for the checkpoint that it starts from
def download(address: str) -> str:
    """Downloads a run from the Hugging Face Hub; returns its local directory.

    A run that was downloaded before is taken from the cache of huggingface_hub. This needs no
    network, and works with HF_HUB_OFFLINE=1, too. The environment variable HF_ENDPOINT sets the
    address of another hub.

    Args:
      address: `hf://OWNER/NAME`, or `hf://OWNER/NAME@REVISION` with a branch, a tag or a commit.

    Raises:
      ValueError: huggingface_hub is not installed, the download fails, there is no run at the
        address, or the run lacks the weights of its backbone.
    """
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(
            f"{address} needs huggingface_hub. Run: pip install huggingface_hub"
        ) from None
    name, _, revision = address.removeprefix(PREFIX).partition("@")
    try:
        directory = huggingface_hub.snapshot_download(
            name, revision=revision or None, allow_patterns=list(_FILES)
        )
    except (OSError, ValueError) as error:  # the errors of huggingface_hub are OSErrors
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ValueError(
            f"{address} cannot be downloaded: {reason}. Check the address and the network."
        ) from None
    remedy = f"{address} is not a run of tfcap: give the address of a run."
    backbone = read_json(os.path.join(directory, "dataset.json"), remedy).get("backbone")
    if backbone and backbone["name"].startswith(HUB) and not backbone["weights"]:
        raise ValueError(
            f"{address} names another model of a hub as its backbone, but lacks the weights of "
            f"this backbone. Ask the owner of {address} to add the run's directory backbone.preset."
        )
    return directory
