"""FSDP2 on two processes publishes; vLLM on two tensor-parallel workers, and on one, says what transformers says."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tailrace.paramserver import RelayProcess, new_token

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "vllm")), reason="needs torch and vLLM"
)
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3, 5], list(range(40))]
LENGTH = 12
TOLERANCE = 1e-4

TRAINER = """
import json, sys
from safetensors.torch import save_file
from tailrace.pipeline.roles.rank_publisher import RankPublisher
from tailrace.pipeline.roles.rank_publisher import Shards
from tailrace.pipeline.roles.transfer import WeightTransfer
from tailrace.trainer import TrainerConfig
from tailrace.trainer.worker import TrainerWorker

rank, model, rendezvous, relay, token, out = json.loads(sys.argv[1])
config = TrainerConfig(lr=1e-2, device="cpu", threads=1)
with TrainerWorker(model, config, rank=rank, world_size=2, rendezvous=rendezvous) as worker:
    publisher = RankPublisher(token, WeightTransfer(), shards := Shards(worker, WeightTransfer(), rank, 1))
    publisher.retarget(relay)
    for version in (1, 2):  # the plan of the first one serves the second
        worker.sft_step([((1, 2, 3), (4, 5, 6 + version)), ((7,), (8, 9))], lr=0.02)
        publisher.publish(version, shards.weights(None))
        publisher.wait(version, 60.0)
    full = {name: tensor.clone() for name, tensor in worker.weights()}
    if rank == 0:
        save_file(full, out)
    publisher.close()
"""

ENGINE = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.config import WeightTransferConfig
from tailrace.paramserver.bridges.vllm import BACKEND, register

def main():
    path, relay, token, workers, prompts, length = json.loads(sys.argv[1])
    register()
    llm = LLM(
        path, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=128, max_num_seqs=4,
        kv_cache_memory_bytes=32 << 20, logprobs_mode="processed_logprobs", generation_config="vllm",
        distributed_executor_backend="mp" if workers > 1 else "uni", tensor_parallel_size=workers,
        async_scheduling=False, disable_log_stats=True, weight_transfer_config=WeightTransferConfig(backend=BACKEND),
    )
    llm.init_weight_transfer_engine({"init_info": {"address": relay, "token": token}})
    for version in (1, 2):
        llm.start_weight_update()
        llm.update_weights({"update_info": {"version": version}})
        llm.finish_weight_update(weight_version=str(version))
        assert llm.reset_prefix_cache()
    sampling = SamplingParams(temperature=0, max_tokens=length, logprobs=0, detokenize=False)
    found = []
    for request in llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False):
        (output,) = request.outputs
        steps = zip(output.token_ids, output.logprobs, strict=True)
        found.append([list(output.token_ids), [by_token[token].logprob for token, by_token in steps]])
    print("FOUND" + json.dumps(found), flush=True)

if __name__ == "__main__":
    main()
"""


def start(code, *arguments, **environment):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-c", code, json.dumps(arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A model, a relay that holds two versions of it from two trainer processes, and the second one as transformers has it."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from tailrace.trainer.small_model import build_model

    root, token = tmp_path_factory.mktemp("run"), new_token()
    model = build_model(root / "model", vocab_size=149, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=32, mlp=96)
    with RelayProcess.start(root.name, token=token) as relay:
        meet, out = f"file://{root}/meet", str(root / "expected.safetensors")
        ranks = [start(TRAINER, rank, str(model), meet, relay.address, token, out) for rank in range(2)]
        assert [process.wait(240) for process in ranks] == [0, 0]
        lm = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32).eval()
        missing, unexpected = lm.load_state_dict(load_file(out), strict=False)
        assert not unexpected
        assert set(missing) <= {"lm_head.weight"}  # it is tied
        yield str(model), relay.address, token, lm


def expected(lm, prompt, response):
    import torch

    with torch.no_grad():
        logits = lm(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(response)[:, None])[:, 0].tolist()


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workers", [1, 2])
def test_log_probabilities_are_those_of_transformers(published, workers):
    model, address, token, lm = published
    bind = {"VLLM_CPU_OMP_THREADS_BIND": "nobind" if workers == 1 else "0|1"}
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    engine = start(ENGINE, model, address, token, workers, PROMPTS, LENGTH, **bind, **quiet)
    text, _ = engine.communicate(timeout=800)
    assert engine.returncode == 0
    found = json.loads(next(line for line in text.splitlines() if line.startswith("FOUND")).removeprefix("FOUND"))
    gaps = [
        abs(got - wanted)
        for prompt, (tokens, logprobs) in zip(PROMPTS, found, strict=True)
        for got, wanted in zip(logprobs, expected(lm, prompt, tokens), strict=True)
    ]
    assert len(gaps) == LENGTH * len(PROMPTS)
    assert max(gaps) < TOLERANCE
