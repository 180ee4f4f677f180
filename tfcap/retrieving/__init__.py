"""The parts of the command `tfcap.retrieve`: its flags, and what it finds for queries."""
