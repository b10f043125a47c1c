"""A small causal language model for all tests of this package."""

import pytest

from tailrace.ranker.testing import language_model


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """The directory of a random Qwen3 of 30,000 parameters, with a tokenizer."""
    import torch

    torch.set_num_threads(1)  # on models as small as these more only wait for each other
    return language_model(tmp_path_factory.mktemp("model"))
