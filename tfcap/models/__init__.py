"""The captioning systems, by the name that configurations use."""

# ruff: noqa: F401, I001
# Importing a module registers its system; this order is the order of the keys of `task.model`.
from tfcap.models.captioner import Captioner, MODELS, build, register
from tfcap.models.ensemble import Ensemble
from tfcap.models.xlan import XLAN
from tfcap.models.xtransformer import XTransformer
from tfcap.models.updown import UpDown
from tfcap.models.attention_lstm import AttentionLSTM
from tfcap.models.aoanet import AoANet
from tfcap.models.att2in import Att2in
from tfcap.models.show_tell import ShowTell
from tfcap.models.lstm_a import LSTMA
from tfcap.models.gcn_lstm import GCNLSTM
from tfcap.models.hip import HIP
from tfcap.models.lbpf import LBPF
from tfcap.models.rfnet import RFNet
from tfcap.models.sgae import SGAE
from tfcap.models.transformer import Transformer
from tfcap.models.ort import ObjectRelationTransformer
from tfcap.models.m2 import MeshedMemoryTransformer
from tfcap.models.expansionnet import ExpansionNet
from tfcap.models.expansionnet_v2 import ExpansionNetV2
from tfcap.models.mrnn import MRNN
from tfcap.models.mrnn_shared import MRNNShared

__all__ = ["MODELS", "Captioner", "Ensemble", "build", "register"]
