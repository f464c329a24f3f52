//! Experts in the place of an MLP, in plain operators: each expert multiplies the tokens that chose it, and no others.

use shared::Experts;

use super::{Decoder, parameter};
use crate::onnx::builder::{int, text};

impl Decoder<'_> {
    /// The weighted sum of the chosen experts' results, `[tokens, hidden]`.
    pub(super) fn experts(&mut self, layer: usize, experts: &Experts, input: &str) -> String {
        let columns = self.expert_weights(layer, experts, input);
        let name = |what: &str| format!("layers.{layer}.experts.{what}");
        let last = self.constants.flat.clone();
        let column = self.graph.integers_once("shape.column", &[-1, 1]);
        // Half precision has no kernels for what adds rows up.
        let wide = self.as_float(input);
        let mut sum = self.graph.node("Sub", &name("sum.0"), &[&wide, &wide], &[]);
        for (expert, weights) in columns.iter().enumerate() {
            let name = |what: &str| format!("layers.{layer}.experts.{expert}.{what}");
            let mut node = |op: &str, what: &str, inputs: &[&str]| self.graph.node(op, &name(what), inputs, &[]);
            let flat = node("Reshape", "weights.row", &[weights, &last]);
            let places = node("NonZero", "places", &[&flat]);
            let rows = node("Reshape", "rows", &[&places, &last]);
            let own = node("Gather", "input", &[input, &rows]);
            let weights = node("Gather", "weights", &[weights, &rows]);
            let result = self.gated(layer, &Experts::block(expert), &own);
            let result = self.as_float(&result);
            let mut node = |op: &str, what: &str, inputs: &[&str]| self.graph.node(op, &name(what), inputs, &[]);
            let result = node("Mul", "weighted", &[&result, &weights]);
            let rows = node("Reshape", "rows.column", &[&places, &column]);
            let add = text("reduction", "add");
            sum = self.graph.node("ScatterND", &name("sum"), &[&sum, &rows, &result], &[add]);
        }
        self.as_stored(&sum)
    }

    /// The weights of the tokens for each expert, fp32 `[tokens, 1]`; 0 where a token does not choose the expert.
    fn expert_weights(&mut self, layer: usize, experts: &Experts, input: &str) -> Vec<String> {
        let name = |what: &str| format!("layers.{layer}.router.{what}");
        let weight = parameter(layer, &format!("{}.weight", Experts::ROUTER));
        let logits = self.gemm(&name("logits"), input, &weight, None);
        let wide = self.as_float(&logits);
        let probabilities = self.graph.node("Softmax", &name("probabilities"), &[&wide], &[int("axis", -1)]);
        let last = self.constants.flat.clone();
        let chosen = self.graph.integers_once("experts.per_token", &[experts.per_token as i64]);
        let (mut values, indices) = (name("values"), name("indices"));
        self.graph.operator(
            "",
            "TopK",
            &name("chosen"),
            &[&probabilities, &chosen],
            &[&values, &indices],
            &[int("axis", -1)],
        );
        if experts.normalised {
            let total = self.graph.node("ReduceSum", &name("total"), &[&values, &last], &[int("keepdims", 1)]);
            values = self.graph.node("Div", &name("normalised"), &[&values, &total], &[]);
        }
        let none = self.graph.node("Sub", &name("none"), &[&probabilities, &probabilities], &[]);
        let all = self.graph.node("ScatterElements", &name("all"), &[&none, &indices, &values], &[int("axis", 1)]);
        let columns: Vec<String> = (0..experts.count).map(|expert| name(&format!("weights.{expert}"))).collect();
        let outputs: Vec<&str> = columns.iter().map(String::as_str).collect();
        let parts = int("num_outputs", experts.count as i64);
        self.graph.operator("", "Split", &name("columns"), &[&all], &outputs, &[int("axis", 1), parts]);
        columns
    }
}
