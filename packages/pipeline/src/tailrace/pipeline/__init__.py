"""The pure controller, the executor, hosts in threads and on Ray, and the run directory."""

from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.controller.view import RunView
from tailrace.pipeline.errors import PipelineError
from tailrace.pipeline.spec import AXES, EvaluationPlan, PipelineSpec

__version__ = "0.1.0"
__all__ = ["AXES", "Controller", "EvaluationPlan", "PipelineError", "PipelineSpec", "RunView"]
