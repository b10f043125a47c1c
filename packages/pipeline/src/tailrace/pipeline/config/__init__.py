"""Configuration: sparse TOML files are read into strict models, which are written out as resolved JSON."""
