"""Training of the two small models that come with the project. `python -m common.training --help` is the door."""
