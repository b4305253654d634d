"""One module per study; each has a `STUDY`, which `python -m analysis run NAME` answers."""
