"""The parts of the command `tfcap.evaluate`: its flags and their checks."""
