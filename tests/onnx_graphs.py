"""ONNX files for tests, written byte by byte."""

from __future__ import annotations

import numpy as np


def linear_graph(matrix: np.ndarray, size: int, outputs: str = "y") -> bytes:
    """An ONNX file: y = flatten(x) M, for x (1, 3, size, size), as each of the outputs."""

    def field(number: int, value: bytes | str | int) -> bytes:
        if isinstance(value, int):
            return varint(number << 3) + varint(value)
        data = value.encode() if isinstance(value, str) else value
        return varint(number << 3 | 2) + varint(len(data)) + data

    def varint(value: int) -> bytes:
        head = b"" if value < 128 else varint(value >> 7)
        return bytes([value & 127]) if value < 128 else bytes([value & 127 | 128]) + head

    def value(name: str, *dims: int) -> bytes:
        shape = b"".join(field(1, field(1, dim)) for dim in dims)
        return field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))

    def node(kind: str, inputs: list[str], output: str) -> bytes:
        return b"".join(field(1, name) for name in inputs) + field(2, output) + field(3, output) + field(4, kind)

    tensor = b"".join(field(1, dim) for dim in matrix.shape) + field(2, 1) + field(8, "m") + field(9, matrix.tobytes())
    graph = field(1, node("Flatten", ["x"], "f")) + field(2, "linear")
    graph += b"".join(field(1, node("MatMul", ["f", "m"], output)) for output in outputs)
    graph += field(5, tensor) + field(11, value("x", 1, 3, size, size))
    graph += b"".join(field(12, value(output, 1, matrix.shape[1])) for output in outputs)
    return field(1, 8) + field(8, field(1, "") + field(2, 13)) + field(7, graph)
