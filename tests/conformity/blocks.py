"""What ONNX Runtime computes of a folder in 8 or 4 bits, by transformers: weights and inputs of products in blocks."""

import numpy
import onnx
import peers
import torch
from torch.nn import functional

BLOCK = 32


def values(codes, scales):
    """The weight `[rows, columns]` of codes `[rows, blocks, bytes]` and scales `[rows, blocks]`."""
    codes = codes.reshape(*scales.shape, -1)
    bits = 8 * codes.shape[2] // BLOCK
    # With 4 bits, the first of two codes is in the low half of a byte.
    whole = codes if bits == 8 else numpy.stack([codes & 15, codes >> 4], -1).reshape(*scales.shape, BLOCK)
    steps = whole.astype(numpy.float32) - 2 ** (bits - 1)
    return torch.tensor((steps * scales[..., None]).reshape(len(scales), -1))


def rounded(inputs):
    """Inputs of a product as MatMulNBits takes them at accuracy level 4: 8 bits, a scale for each block.

    A value between two steps can round the other way here, since the inputs themselves differ in their last bits.
    """
    columns = inputs.shape[-1]
    whole = functional.pad(inputs, (0, -columns % BLOCK)).unflatten(-1, (-1, BLOCK))
    scales = whole.abs().amax(-1, keepdim=True) / 127
    steps = torch.where(scales == 0, 0.0, torch.round(whole / scales))
    return (steps * scales).flatten(-2)[..., :columns]


class Product(torch.nn.Module):
    """A product with a weight in blocks."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, inputs):
        return functional.linear(rounded(inputs), self.weight, self.bias)


def opened(place, folder):
    """The model of a directory, with the blocks of a folder for ONNX Runtime in place of its weights."""
    network = peers.opened(peers.text_model(place))
    stored = onnx.load(str(folder / "model.onnx")).graph.initializer
    stored = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in stored
        if tensor.name.endswith((".codes", ".rows", ".scales"))
    }
    for name in [key.removesuffix(".scales") for key in stored if key.endswith(".scales")]:
        codes = stored.get(f"{name}.codes", stored.get(f"{name}.rows"))
        module = network.get_submodule(name.removesuffix(".weight"))
        weight = values(codes, stored[f"{name}.scales"])[:, : module.weight.shape[1]]
        if isinstance(module, torch.nn.Embedding):
            module.weight.data = weight
            # A tied head multiplies with the embeddings.
            if f"{name}.codes" in stored:
                network.lm_head = Product(weight, None)
        else:
            parent, _, leaf = name.removesuffix(".weight").rpartition(".")
            setattr(network.get_submodule(parent), leaf, Product(weight, module.bias))
    return network
