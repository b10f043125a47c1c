"""Configuration: sparse TOML in, strict models inside, resolved JSON out."""
