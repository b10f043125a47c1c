"""Tests of the backend contract that are long ones wherever FSDP2 runs them by default."""

from tailrace.trainer.testing import BackendContract

DEAR = (
    BackendContract.test_packed_micro_batches_have_the_gradient_and_log_probabilities_of_padded_ones,
    BackendContract.test_contexts_have_the_loss_and_gradient_of_plain_transformers_on_each,
    BackendContract.test_ppo_and_its_critic_are_those_of_the_reference_plain_and_streamed,
    BackendContract.test_a_checkpoint_brings_back_the_critic_bit_for_bit,
    BackendContract.test_the_proximal_policy_of_a_second_mini_batch_is_that_before_the_first,
    BackendContract.test_every_loss_is_that_of_the_reference_plain_and_streamed,
)
