"""What a step costs, worked out from its traced graph before it runs: operations and memory.

    step = tf.function(...).get_concrete_function()
    costs.flops(step)                               # floating-point operations
    costs.memory_of_step(step, model, optimizer)    # bytes

Nothing is executed. Shapes must be known, so that the step is traced with static ones.
"""

from tfcap.costs.memory import PROCESS, Memory, memory_of_step, peak_bytes
from tfcap.costs.products import Operations, flops

__all__ = ["PROCESS", "Memory", "Operations", "flops", "memory_of_step", "peak_bytes"]
