"""What makes a run of the components: roles, configuration, run directory, executor, hosts in threads and on Ray."""

from tailrace.controller import AXES, Controller, EvaluationPlan, PipelineError, PipelineSpec, RunView

__version__ = "0.1.0"
__all__ = ["AXES", "Controller", "EvaluationPlan", "PipelineError", "PipelineSpec", "RunView"]
