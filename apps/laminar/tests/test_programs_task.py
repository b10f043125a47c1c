"""The quick start's settings fit the task of programs: `tailrace run laminar --set task.name=programs` needs no other."""

from tailrace.pipeline.config.target import configuration
from tailrace.reward.tasks import get_task
from tailrace.trainer.tokenizer import UNKNOWN, train_tokenizer


def test_each_program_is_restored_from_its_tokens_and_fits_the_context(tmp_path):
    from tokenizers import Tokenizer

    config = configuration("laminar", settings=["task.name=programs"])
    task = get_task(config.task.name)
    pairs = task.warm_start(2000, 1)
    train_tokenizer([text for pair in pairs for text in pair], tmp_path, **config.model.tokenizer)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    rows = task.generate("heldout", 200, 2) + task.generate("train", 1000, 2)
    longest = 0
    for prompt, response in task.demonstrations(rows, 2):
        question, answer = (tokenizer.encode(text, add_special_tokens=False) for text in (prompt, response))
        assert UNKNOWN not in question.tokens + answer.tokens
        assert tokenizer.decode(question.ids, skip_special_tokens=False) == prompt
        assert tokenizer.decode(answer.ids, skip_special_tokens=False) == response
        assert len(question.ids) <= config.rollout.options["max_model_len"] - config.rollout.max_tokens
        longest = max(longest, len(answer.ids) + 1)  # and the end token
    assert config.rollout.max_tokens / 2 < longest <= config.rollout.max_tokens
