"""Complete responses of a log, beside a slow fold over all tokens one by one."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace import contracts as c
from tailrace.pipeline.run.figures.stages import CompleteResponses


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), max_size=5),
    st.integers(0, 4),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_lengths_are_of_what_the_model_generated(turns, last, done, told_twice, anew):
    found, tokens, generated = CompleteResponses(), 0, 0
    if anew:  # a first attempt that was dropped
        found.heard(c.TurnEnded("r0", "a", 3))
        found.heard(c.Turned("a", 1, 7))
        found.heard(c.TurnEnded("r0", "a", 9))
    found.routed([c.TrajectoryRef("a", 0, 0, kept=0)])
    for number, (said, answered) in enumerate(turns, 1):
        tokens, generated = tokens + said, generated + said
        for _ in range(1 + told_twice):
            assert found.heard(c.TurnEnded("r0", "a", tokens)) is None
        tokens += answered
        assert found.heard(c.Turned("a", number, tokens)) is None
        found.routed([c.TrajectoryRef("a", 0, 0, kept=tokens)])
    tokens, generated = tokens + last, generated + last
    if done:
        found.heard(c.TurnEnded("r0", "a", tokens))
        assert found.heard(c.Turned("a", len(turns) + 1, tokens, done=True)) == ("a", generated)
    else:
        assert found.heard(c.Finished("r0", "a", tokens, c.FinishReason.LENGTH)) == ("a", generated)
    assert found.heard(c.Scored("a", 1.0)) is None
