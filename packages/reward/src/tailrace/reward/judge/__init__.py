"""A language model as a judge, colocated with others in a memory budget. `Judge` needs the extra ``judge``, when it is made.

`Judge` scores in this process, `JudgeProcess` in one of its own, for an asyncio loop.
"""

from tailrace.reward.items import JudgeItem, Judgement, Unjudged
from tailrace.reward.judge.config import JudgeConfig
from tailrace.reward.judge.judge import Judge, JudgeTemplate
from tailrace.reward.judge.process import JudgeProcess

__all__ = ["Judge", "JudgeConfig", "JudgeItem", "JudgeProcess", "JudgeTemplate", "Judgement", "Unjudged"]
