"""The checks of `python -m tfcap.doctor`: the machine, prepared data, a run and an export."""
