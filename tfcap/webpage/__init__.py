"""The page of the command `demo`: captions of pictures in a browser, on this machine only."""

from tfcap.webpage.answers import Model
from tfcap.webpage.application import Application
from tfcap.webpage.galleries import Folder, Training
from tfcap.webpage.server import make_server

__all__ = ["Application", "Folder", "Model", "Training", "make_server"]
