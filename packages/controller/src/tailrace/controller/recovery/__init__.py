"""What a failure means, from the first silence to the restart of the whole task, in this order.

1. `detection`: who counts as down: the executor's `Down`, or the detection policy's word on signs of life.
2. `failures`: the recovery policy says what is done, and it is carried out: restart, replace, evict, stand by, fail.
3. `losses`: what is lost with a member, and what becomes of its work; what the store says that it holds after a crash.
4. `fall_back`: the trainer comes up with a checkpoint: what was trained on since is given to it again.
5. `standby`: whose machine a trainer may take that lost its own.
6. `task_restart`: every member anew, from the checkpoint: since recovery says so, or since the driver died.
7. `failed_groups`: nobody is down, but a group cannot be answered or scored.
"""
