//! What the last norm leads to: logits or scores.

use shared::Dtype;

use super::{
    super::{builder::int, proto::DataType},
    Decoder, EMBEDDING, LM_HEAD,
};

impl Decoder<'_> {
    /// Logits of each row's last token; the other rows never reach the large projection.
    pub(super) fn last_token_head(&mut self, normed: &str, index: &str) {
        let rows = self.as_batch("final.batch", normed);
        let last_axis = self.graph.integers("axis.last", &[-1]);
        let index = self.graph.node("Unsqueeze", "last_index.column", &[index, &last_axis], &[]);
        let last = self.graph.node("GatherND", "final.last", &[&rows, &index], &[int("batch_dims", 1)]);
        self.logits("logits", &last);
    }

    /// Logits of every token.
    pub(super) fn language_model_head(&mut self, normed: &str) {
        self.logits("logits.tokens", normed);
        self.as_batch("logits", "logits.tokens");
    }

    /// Logits as the fp32 value `name`, divided or held within a bound where the family does that.
    fn logits(&mut self, name: &str, input: &str) {
        if let Some(cap) = self.config.logit_cap {
            let product = format!("{name}.unbound");
            self.output_gemm(&product, "lm_head", input, self.head_weight());
            let cap = self.graph.scalar("logits.cap", cap as f32, Dtype::Fp32);
            let scaled = self.graph.node("Div", &format!("{name}.scaled"), &[&product, &cap], &[]);
            let tanh = self.graph.node("Tanh", &format!("{name}.tanh"), &[&scaled], &[]);
            self.graph.node("Mul", name, &[&tanh, &cap], &[]);
            return;
        }
        if self.config.logits_scaling == 1.0 {
            self.output_gemm(name, "lm_head", input, self.head_weight());
            return;
        }
        let product = format!("{name}.undivided");
        self.output_gemm(&product, "lm_head", input, self.head_weight());
        let divisor = self.graph.scalar("logits.scaling", self.config.logits_scaling as f32, Dtype::Fp32);
        self.graph.node("Div", name, &[&product, &divisor], &[]);
    }

    fn head_weight(&self) -> &'static str {
        if self.config.tie_word_embeddings { EMBEDDING } else { LM_HEAD }
    }

    /// Scores of the tokens that are asked for.
    pub(super) fn score_head(&mut self, normed: &str, index: &str) {
        let tokens = self.graph.node("Gather", "final.scored", &[normed, index], &[]);
        self.output_gemm("scores", "score", &tokens, "score.weight");
    }

    /// `input @ weight.T` as the fp32 value `name`; `inner` names the product where it is of another type.
    fn output_gemm(&mut self, name: &str, inner: &str, input: &str, weight: &str) {
        if self.dtype == Dtype::Fp32 {
            self.gemm(name, input, weight, None);
        } else {
            let product = self.gemm(inner, input, weight, None);
            self.graph.node("Cast", name, &[&product], &[int("to", DataType::Float as i64)]);
        }
    }
}
