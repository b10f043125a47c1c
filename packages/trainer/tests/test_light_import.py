import subprocess
import sys

HEAVY = ("torch", "transformers", "ray", "vllm", "numpy", "tokenizers", "deepspeed")


def test_importing_the_package_the_backends_and_the_warm_start_loads_nothing_heavy():
    code = (
        "import sys, tailrace.trainer, tailrace.trainer.backends, tailrace.trainer.warmstart\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_public_name_is_there():
    import tailrace.trainer

    assert all(getattr(tailrace.trainer, name) is not None for name in tailrace.trainer.__all__)
