import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tailrace.trainer.small_model import build_model
from tailrace.trainer.tokenizer import EOS, TAGS, train_tokenizer

TEXTS = [f"State the final answer to: {a} + {b} - 3 = <think>{a} + {b}</think><answer>{a + b - 3}</answer>"
         for a in range(30) for b in range(10)]  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["spaces apart", "spaces attached"])
def tokenizer(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizer")
    size = train_tokenizer(TEXTS, root, vocab_size=120, attach_space=request.param)
    loaded = AutoTokenizer.from_pretrained(root)
    assert size == len(loaded) <= 120
    return loaded


@settings(max_examples=200)
@given(text=st.text(alphabet=sorted(set("".join(TEXTS))), max_size=60))
def test_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_operators_and_tags_are_whole(tokenizer):
    text = "<think>12 + 345 - 6 = 7</think><answer>890</answer>"
    pieces = [tokenizer.decode([i]).strip() for i in tokenizer(text)["input_ids"]]
    expected = ["<think>", *"12", "+", *"345", "-", "6", "=", "7", "</think>", "<answer>", *"890", "</answer>"]
    assert [piece for piece in pieces if piece] == expected


def test_tags_survive_decoding_and_the_end_token_does_not(tokenizer):
    ids = [*tokenizer("<answer>7</answer>")["input_ids"], tokenizer.eos_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<answer>7</answer>"
    assert tokenizer.eos_token == EOS
    assert len({tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}) == 3


def test_attached_spaces_shorten_the_text(tmp_path):
    lengths = []
    for attach in (False, True):
        train_tokenizer(TEXTS, tmp_path / str(attach), vocab_size=200, attach_space=attach)
        loaded = AutoTokenizer.from_pretrained(tmp_path / str(attach))
        lengths.append(len(loaded("7 + 5 - 3 + 5 = 14")["input_ids"]))
    assert lengths == [18, 10]


def test_the_model_takes_its_special_tokens_from_the_tokenizer_beside_it(tmp_path):
    from transformers import AutoConfig

    size = train_tokenizer(TEXTS, tmp_path, vocab_size=80, tags=TAGS)
    build_model(tmp_path, vocab_size=size, layers=1)
    loaded, config = AutoTokenizer.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)
    assert (config.eos_token_id, config.pad_token_id) == (loaded.eos_token_id, loaded.pad_token_id)
    assert config.vocab_size == len(loaded)


def test_the_embeddings_begin_as_large_as_they_are_to_be(tmp_path):
    from transformers import AutoModelForCausalLM

    for name, std in (("own", 0.02), ("large", 0.2)):
        build_model(tmp_path / name, vocab_size=500, layers=1, embedding_std=std, seed=3)
    own, large = (AutoModelForCausalLM.from_pretrained(tmp_path / each).state_dict() for each in ("own", "large"))
    assert own["model.embed_tokens.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert large["model.embed_tokens.weight"].std().item() == pytest.approx(0.2, rel=0.05)
    tied = {"model.embed_tokens.weight", "lm_head.weight"}
    assert all(own[name].equal(large[name]) for name in own.keys() - tied)
