"""The stream generation service over HTTP. Needs the extra ``serve``; importing this package imports no web framework."""

from tailrace.rollout.serving.limits import Limits
from tailrace.rollout.serving.server import listen, serve

__all__ = ["Limits", "listen", "serve"]
