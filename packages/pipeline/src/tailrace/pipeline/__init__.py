"""What makes a run of the components: roles, configuration, launching, run directory and its figures."""

from tailrace.controller import AXES, Controller, EvaluationPlan, PipelineError, PipelineSpec, RunView

__version__ = "0.1.0"
__all__ = ["AXES", "Controller", "EvaluationPlan", "PipelineError", "PipelineSpec", "RunView"]
