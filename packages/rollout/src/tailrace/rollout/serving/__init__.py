"""The stream generation service over HTTP. Needs the extra ``serve``; importing this package imports no web framework."""

from tailrace.rollout.serving.limits import RequestLimits
from tailrace.rollout.serving.server import listen, serve

__all__ = ["RequestLimits", "listen", "serve"]
