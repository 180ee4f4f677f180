"""Times a work of the released PyTorch code, at the size of its paper; `run.py` starts it.

Steps are those of the released trainers: forward, loss, backward, clipping and optimizer. The code
stays as it is; where it needs an older library, this file does what that library did.
"""

import argparse
import functools
import pathlib
import sys
import time
import types
from collections.abc import Callable

import torch
import yaml
from run import answer

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
REGIONS, CAPTIONS, LENGTH, VOCABULARY = 36, 5, 17, 9490


def use_old_rules() -> None:
    """Divides integers and reads YAML as the code expects it, and lets it run without a GPU."""
    divide = torch.Tensor.__truediv__
    torch.Tensor.__truediv__ = lambda x, y: divide(x, y) if x.is_floating_point() else x // y
    yaml.load = functools.partial(yaml.load, Loader=yaml.SafeLoader)
    if not GPU:
        torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_: self


def x_linear(code: pathlib.Path, system: str, kind: str, images: int, prepare) -> Callable:
    """Returns a work of X-LAN or X-Transformer."""
    use_old_rules()
    sys.path.insert(0, str(code / "image-captioning"))
    import losses
    import models
    from lib import utils
    from lib.config import cfg, cfg_from_file
    from optimizer.optimizer import Optimizer

    cfg_from_file(str(code / "image-captioning/experiments" / system / "config.yml"))
    model = models.create(cfg.MODEL.TYPE)
    inputs = {
        cfg.PARAM.GLOBAL_FEAT: torch.zeros(images, 1),
        cfg.PARAM.ATT_FEATS: torch.randn(images, REGIONS, 2048),
        cfg.PARAM.ATT_FEATS_MASK: torch.ones(images, REGIONS),
    }
    if kind == "beam":
        prepare(model.eval(), "preprocess", "get_logprobs_state")
        inputs |= {"BEAM_SIZE": 3, "GREEDY_DECODE": True}
        return torch.no_grad()(lambda: model.decode_beam(**inputs))
    prepare(model.train(), "forward")
    words = torch.randint(1, cfg.MODEL.VOCAB_SIZE, (2, images * CAPTIONS, LENGTH))
    inputs |= {cfg.PARAM.INPUT_SENT: words[0], cfg.PARAM.TARGET_SENT: words[1]}
    inputs[cfg.PARAM.INDICES] = None
    optimizer = Optimizer(model)
    criterion = losses.create(cfg.LOSSES.XE_TYPE)

    def step() -> None:
        loss, _ = criterion(model(**inputs).float(), words[1])
        loss.backward()
        clip = cfg.SOLVER.GRAD_CLIP_TYPE, cfg.SOLVER.GRAD_CLIP
        utils.clip_gradient(optimizer.optimizer, model, *clip)
        optimizer.optimizer.step()
        optimizer.optimizer.zero_grad()

    return step


def expansionnet_v2(code: pathlib.Path, images: int, prepare) -> Callable:
    """Returns the beam search of ExpansionNet v2 from pictures, with 5 beams of 20 words."""
    sys.path.insert(0, str(code / "ExpansionNet_v2"))
    from models.End_ExpansionNet_v2 import End_ExpansionNet_v2

    swin = {"img_size": 384, "patch_size": 4, "in_chans": 3, "embed_dim": 192, "window_size": 12}
    swin |= {"depths": [2, 2, 18, 2], "num_heads": [6, 12, 24, 48], "mlp_ratio": 4.0}
    swin |= {"qkv_bias": True, "qk_scale": None, "norm_layer": torch.nn.LayerNorm, "ape": False}
    swin |= {"drop_rate": 0.0, "attn_drop_rate": 0.0, "drop_path_rate": 0.0, "patch_norm": True}
    options = {f"swin_{name}": value for name, value in swin.items()}
    options |= {"swin_use_checkpoint": False, "final_swin_dim": 1536, "d_model": 512, "ff": 2048}
    options |= {"N_enc": 3, "N_dec": 3, "num_heads": 8, "max_seq_len": 74, "num_exp_dec": 16}
    words = {str(i): i for i in range(VOCABULARY)}
    rates = dict.fromkeys(("enc", "dec", "enc_input", "dec_input", "other"), 0.0)
    model = End_ExpansionNet_v2(
        **options,
        num_exp_enc_list=[32, 64, 128, 256, 512],
        output_word2idx=words,
        output_idx2word=list(words),
        drop_args=types.SimpleNamespace(**rates),
        rank=DEVICE,
    )
    prepare(model.eval(), "forward_enc", "forward_dec")
    inputs = {"enc_x": torch.randn(images, 3, 384, 384), "enc_x_num_pads": [0] * images}
    inputs |= {"mode": "beam_search", "beam_size": 5, "beam_max_seq_len": 20}
    return torch.no_grad()(lambda: model(**inputs, sos_idx=1, eos_idx=2))


def main() -> None:
    """Prepares a work and times it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("code", type=pathlib.Path, help="the directory of the clones")
    parser.add_argument("name", help="name of a work, as export.py writes it")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    args = parser.parse_args()
    system, kind, dtype, images = args.name.rsplit("_", 3)
    torch.set_default_device(DEVICE)
    torch.backends.cuda.matmul.allow_tf32 = True  # as in tfcap

    autocast = torch.autocast(DEVICE, torch.bfloat16, dtype == "bfloat16")

    def prepare(model: torch.nn.Module, *names: str) -> None:
        for name in names:
            method = getattr(model, name)
            setattr(model, name, autocast(torch.compile(method) if args.compile else method))

    if system == "expansionnet_v2":
        work = expansionnet_v2(args.code, int(images), prepare)
    else:
        work = x_linear(args.code, system, kind, int(images), prepare)

    def call() -> None:
        work()
        if GPU:
            torch.cuda.synchronize()

    begin = time.monotonic()
    for _ in range(3):  # torch.compile may compile again
        call()
    prepared = {"device": torch.cuda.get_device_name() if GPU else "cpu"}
    prepared |= {"torch": torch.__version__, "compile_s": round(time.monotonic() - begin, 1)}
    answer(call, prepared, torch.cuda.max_memory_allocated if GPU else lambda: 0, calls=10)


if __name__ == "__main__":
    main()
