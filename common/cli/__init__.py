"""The `sangam` command: one module for each subcommand."""
