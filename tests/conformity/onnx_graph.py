"""The model.onnx of checkpoints, of every family, in the Python package of ONNX Runtime with its own operators.

A prompt goes through the graph in one call and each token of its completion in a further one, as in generation; the
keys and values of a call are given to the next, and so are the states of layers that have one in their place. The
package onnx reads the same inputs and outputs.
"""

import json

import numpy
import onnx
import onnxruntime
from support import FAMILIES, answer, completed, largest, model, trained, worst

TYPES = {"tensor(int64)": numpy.int64, "tensor(int32)": numpy.int32, "tensor(float)": numpy.float32}


class Graph:
    """A session, and the keys, values and states of one sequence."""

    def __init__(self, path, room, original):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = {given.name: given for given in self.session.get_inputs()}
        self.outputs = [given.name for given in self.session.get_outputs()]
        # Keys and values have their length as the one size with a name, beside the batch; states have none.
        shape = lambda given: [1, *(size if isinstance(size, int) else room for size in given.shape[1:])]
        self.cache = {
            name: numpy.zeros(shape(given), TYPES[given.type])
            for name, given in self.inputs.items() if name.startswith("past_key_values.")
        }
        # With longrope, the tables have all positions of longer sequences behind those of an original length.
        self.length, self.original = 0, original

    def logprobs(self, ids):
        """Log-probs of every token after these ones, which follow those of the calls before."""
        begin, self.length = self.length, self.length + len(ids)
        row = self.original if self.original and self.length > self.original else 0
        given = {
            "input_ids": [ids], "seqlens_k": [self.length - 1], "total_sequence_length": self.length,
            "last_index": [len(ids) - 1], "position_ids": [list(range(row + begin, row + self.length))],
        }
        given = {name: numpy.array(value, TYPES[self.inputs[name].type])
                 for name, value in given.items() if name in self.inputs}
        found = dict(zip(self.outputs, self.session.run(None, given | self.cache)))
        self.cache = {name: found[name.replace("past_key_values", "present")] for name in self.cache}
        logits = found["logits"][0].astype(numpy.float64)
        highest = logits.max()
        return logits - highest - numpy.log(numpy.exp(logits - highest).sum())


if __name__ == "__main__":
    differences, tokens = [], 0
    for family in FAMILIES:
        checkpoint = trained(model(family))
        path = str(checkpoint / "model.onnx")
        declared = onnx.load(path, load_external_data=False).graph
        original = json.loads((checkpoint / "config.json").read_text()).get("original_max_position_embeddings")
        for row in completed(checkpoint):
            prompt, completion = row["prompt_ids"], row["token_ids"]
            graph, found, ids = Graph(path, len(prompt) + len(completion), original), [], prompt
            assert [given.name for given in declared.input] == list(graph.inputs), family
            assert [given.name for given in declared.output] == graph.outputs, family
            for token in completion:
                found.append(graph.logprobs(ids)[token])
                ids = [token]
            differences.append(largest(zip(row["logprobs"], found, strict=True)))
            tokens += len(found)
    answer(f"{len(FAMILIES)} families, {tokens} tokens", logprob=worst(differences))
