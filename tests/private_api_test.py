"""Private names of TensorFlow, Keras and Python still do what the library uses them for."""

import ast
import inspect
import pathlib
import pickle
import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfcap import private_api

TFCAP = pathlib.Path(private_api.__file__).parent
SEEN = {"TensorFlow": "2.20", "Keras": "3.15", "Python": "3.11"}
HERE = {"TensorFlow": tf.__version__, "Keras": keras.__version__, "Python": sys.version.split()[0]}
# Public methods of named tuples, though they begin with an underscore.
PUBLIC = {"_replace", "_asdict", "_fields", "_make"}


def changed(product, name):
    """What a failure says."""
    return (
        f"{name} of {product} is not what it was in version {SEEN[product]}, for which it was "
        f"written; this is {HERE[product]}. Read tfcap/private_api.py"
    )


def test_tensorflow_says_whether_xla_compiles():
    message = changed("TensorFlow", "control_flow_util.GraphOrParentsInXlaContext")
    answers = []

    def ask(x):
        answers.append(private_api.in_xla())
        tf.while_loop(
            lambda i: i < 2, lambda i: (answers.append(private_api.in_xla()), i + 1)[1:], x
        )
        return x

    tf.function(ask, jit_compile=True, autograph=False)([tf.constant(0)])
    assert set(answers) == {True}, message
    answers.clear()
    tf.function(ask, autograph=False)([tf.constant(0)])
    assert set(answers) == {False} and not private_api.in_xla(), message


def test_the_silence_of_workers_has_a_default_that_can_be_set(monkeypatch):
    name = "Context.configure_coordination_service"
    message = changed("TensorFlow", name)
    service = private_api.context.context()
    original = service.configure_coordination_service
    assert "heartbeat_timeout_in_ms" in inspect.signature(original).parameters, message
    monkeypatch.setattr(service, "configure_coordination_service", original)
    private_api.set_worker_timeout(2.5)
    assert service.configure_coordination_service.keywords == {"heartbeat_timeout_in_ms": 2500}
    source = inspect.getsource(sys.modules[tf.distribute.MultiWorkerMirroredStrategy.__module__])
    assert "configure_coordination_service(" in source, message


def test_keras_lists_layers_inside_of_layers():
    inner = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(3)])
    model = keras.Sequential([keras.layers.Input([2]), inner])
    layers = list(private_api.all_layers(model))
    assert inner.layers[0] in layers and model in layers, changed("Keras", "_flatten_layers")
    assert inner.layers[0] not in model.layers


class Counting(private_api.SharedScalarsOptimizer):
    """Adds the position of each variable and the scalar, which it counts how often it computes."""

    def __init__(self):
        super().__init__(1.0)
        self.computed = 0

    def shared_scalars(self, learning_rate):
        self.computed += 1
        return (10.0 * learning_rate,)

    def update_step(self, gradient, variable, learning_rate):
        (rate,) = learning_rate
        variable.assign_add(rate * gradient + self.index_of(variable))


@pytest.fixture
def variables():
    return [keras.Variable(0.0) for _ in range(2)]


def test_keras_computes_scalars_once_in_a_step(variables):
    optimizer = Counting()
    optimizer.build(variables)
    optimizer.apply([tf.constant(1.0), tf.constant(2.0)], variables)
    message = changed("Keras", "Optimizer._backend_update_step or _get_variable_index")
    assert [float(v.value) for v in variables] == [10.0, 21.0], message
    assert optimizer.computed == 1, message


def test_keras_sums_gradients_over_replicas_in_a_method(variables, monkeypatch):
    name = "_all_reduce_sum_gradients"
    original = getattr(keras.optimizers.Optimizer, name, None)
    assert original, changed("Keras", f"Optimizer.{name}")
    calls = []
    monkeypatch.setattr(keras.optimizers.Optimizer, name, lambda *a: calls.append(a) or a[1])
    optimizer, usual = Counting(), keras.optimizers.SGD()
    for each in (optimizer, usual):
        each.build(variables)
        each.apply([tf.constant(1.0), tf.constant(2.0)], variables)
    assert [call[0] for call in calls] == [usual], changed("Keras", f"Optimizer.{name}")


def test_the_update_of_an_optimizer_can_be_wrapped(variables):
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build(variables)

    def twice(update, gradients, variables, rate):
        update(gradients, variables, 2 * rate)

    private_api.wrap_update(optimizer, twice)
    optimizer.apply([tf.constant(1.0), tf.constant(3.0)], variables)
    np.testing.assert_array_equal(
        [float(v.value) for v in variables],
        [-2.0, -6.0],
        err_msg=changed("Keras", "Optimizer._backend_update_step"),
    )


def test_the_reader_of_pickles_in_python_can_be_changed():
    """`tfcap.torch_file` uses it."""
    message = changed("Python", "pickle._Unpickler")
    reader = getattr(pickle, "_Unpickler", None)
    assert reader and reader.dispatch[pickle.BINPUT[0]] and reader.load_binbytes8, message


def test_no_other_file_uses_a_private_name_of_another_package():
    """A name with an underscore is defined in the library, or stands in `private_api`."""
    paths = [path for path in TFCAP.rglob("*.py") if path.name != "private_api.py"]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    defined, used = set(PUBLIC), {}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.add(node.id)
            elif isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr, re.I):
                stored = isinstance(node.ctx, ast.Store)
                defined.add(node.attr) if stored else used.setdefault(node.attr, path)
            elif isinstance(node, ast.ImportFrom) and node.module:
                assert not re.match(r"tensorflow\.python|keras\.src", node.module), path
    private = {name: path.name for name, path in used.items() if name not in defined}
    assert not private
