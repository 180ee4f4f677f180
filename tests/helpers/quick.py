"""Makes TensorFlow quick at what tests do most: they trace functions and call each of them once.

Commands that `forks` runs use it, too. Commands in real processes do without it.
"""

import functools
import gc
import sys
import typing


def set_up() -> None:
    """Sets up this process. Call it before the first function is traced."""
    import tensorflow as tf
    from tensorflow.python.util import tf_stack

    # Grappler takes two thirds of the first call of a function.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    # Tracing makes millions of objects that live long; searching them for cycles took a quarter.
    gc.set_threshold(50_000, 20, 20)
    # Processes import the same modules hundreds of times. So compiled modules are kept even where
    # PYTHONDONTWRITEBYTECODE is set.
    sys.dont_write_bytecode = False
    # TensorFlow asks for each operand whether it has the methods of a protocol. Python 3.12 keeps
    # their names; before that, looking for them took a twelfth of tracing.
    if hasattr(typing, "_get_protocol_attrs"):
        typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
    # The configurations of Model Garden read the types of all fields whenever they set one.
    typing.get_type_hints = _once(typing.get_type_hints)
    # Each operation of a graph keeps the lines of Python that led to it, for errors when it runs.
    # In a test these are a hundred, most of them of pytest. Now all operations have the same lines,
    # so an error of a graph in a test names wrong ones: remove this to see the right ones.
    stack = tf_stack.extract_stack()
    len(stack)  # reads the lines now: a copy of this process that reads them would crash
    tf_stack.extract_stack = lambda stacklevel=1: stack


def _once(get_type_hints):
    """Returns the function with a memory for classes; each call gets a dictionary of its own."""
    known = functools.cache(get_type_hints)

    @functools.wraps(get_type_hints)
    def hints(given, *args, **kwargs):
        if args or kwargs or not isinstance(given, type):
            return get_type_hints(given, *args, **kwargs)
        return dict(known(given))

    return hints
