import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# What the trainer makes of the controller's commands needs the trainer.
collect_ignore = [] if find_spec("torch") else ["test_dynamic_batch_gradients.py"]
