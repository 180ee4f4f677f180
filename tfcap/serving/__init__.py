"""The bundle: what a server needs beside an exported SavedModel."""
