"""The pure controller of an asynchronous RL pipeline: events in, commands out, for an executor of your own."""

from tailrace.controller.controller import Controller
from tailrace.controller.errors import ControllerError, PipelineError, PluginAnswerError, PolicyError
from tailrace.controller.spec import AXES, EvaluationPlan, PipelineSpec, RolloutPool
from tailrace.controller.view import RunView

__version__ = "0.1.0"
__all__ = [
    "AXES",
    "Controller",
    "ControllerError",
    "EvaluationPlan",
    "PipelineError",
    "PipelineSpec",
    "PluginAnswerError",
    "PolicyError",
    "RolloutPool",
    "RunView",
]
