"""Serves an export with Triton on loopback, through nvidia-pytriton, with dynamic batching.

python triton_captions.py --base_path served/flickr8k --port 8000
"""

import argparse

import numpy as np
from newest import Newest
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

HOST = "127.0.0.1"


def _tensor(key: str, spec, rest: tuple[int, ...]) -> Tensor:
    dtype = np.bytes_ if spec.dtype == "string" else spec.dtype.as_numpy_dtype
    return Tensor(name=key, dtype=dtype, shape=rest or (1,))


def main() -> None:
    """Serves until a signal ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base_path", required=True, help="Directory with numbered versions.")
    parser.add_argument("--name", default="captions", help="Name of the model.")
    parser.add_argument(
        "--port", type=int, default=8000, help="HTTP port; gRPC and metrics follow."
    )
    parser.add_argument("--max_batch", type=int, default=16, help="Most pictures of a batch.")
    parser.add_argument("--wait_ms", type=float, default=5, help="Milliseconds to wait for others.")
    given = parser.parse_args()
    newest = Newest(given.base_path)
    newest.watch()

    @batch
    def infer(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        results = newest({key: list(value[:, 0]) for key, value in inputs.items()})
        # Triton's tensors have the batch and at least one more dimension.
        return {key: v[:, None] if v.ndim == 1 else v for key, v in results.items()}

    config = TritonConfig(
        http_address=HOST,
        http_port=given.port,
        grpc_address=HOST,
        grpc_port=given.port + 1,
        metrics_address=HOST,
        metrics_port=given.port + 2,
        exit_timeout_secs=10,
    )
    batcher = DynamicBatcher(max_queue_delay_microseconds=int(given.wait_ms * 1000))
    with Triton(config=config) as triton:
        triton.bind(
            model_name=given.name,
            infer_func=infer,
            inputs=[_tensor(key, spec, ()) for key, spec in newest.inputs.items()],
            outputs=[
                _tensor(key, spec, tuple(spec.shape[1:])) for key, spec in newest.outputs.items()
            ],
            config=ModelConfig(max_batch_size=given.max_batch, batcher=batcher),
        )
        triton.serve()


if __name__ == "__main__":
    main()
