//! The experts that were chosen for the tokens in the pages, beside their keys and values.

use rollout_kernels::pages::PAGE;
use shared::{ModelConfig, Routing};

/// Choices for every place of every page.
pub(super) struct Choices {
    /// The number of each layer among those with experts.
    layers: Vec<Option<usize>>,
    per_token: usize,
    /// Choices of a token in all layers.
    width: usize,
    /// `[pages, PAGE, width]`.
    experts: Vec<u16>,
}

impl Choices {
    /// Room for a model with experts; `None` for another one.
    pub fn new(config: &ModelConfig, pages: usize) -> Option<Self> {
        let experts = config.experts.as_ref()?;
        let mut count = 0;
        let layers = (0..config.num_hidden_layers).map(|layer| {
            config.experts_of(layer).map(|_| {
                count += 1;
                count - 1
            })
        });
        let layers = layers.collect();
        let width = count * experts.per_token;
        Some(Self { layers, per_token: experts.per_token, width, experts: vec![0; pages * PAGE * width] })
    }

    /// Takes note of the choices in a layer, token by token; `place` says where a token lies.
    pub fn note(&mut self, layer: usize, chosen: &[u16], place: impl Fn(usize) -> (u32, usize)) {
        let layer = self.layers[layer].expect("choices come from layers with experts");
        for (token, chosen) in chosen.chunks_exact(self.per_token).enumerate() {
            let (page, place) = place(token);
            let at = self.at(page, place) + layer * self.per_token;
            self.experts[at..at + self.per_token].copy_from_slice(chosen);
        }
    }

    /// Copies a page over another one.
    pub fn copy(&mut self, from: u32, to: u32) {
        let (from, to) = (self.at(from, 0), self.at(to, 0));
        self.experts.copy_within(from..from + PAGE * self.width, to);
    }

    /// Those of the first `positions` places of some pages.
    pub fn add_to(&self, routing: &mut Routing, pages: &[u32], positions: usize) {
        routing.width = self.width as u32;
        for (&page, begin) in pages.iter().zip((0..positions).step_by(PAGE)) {
            let (at, places) = (self.at(page, 0), PAGE.min(positions - begin));
            routing.choices.extend_from_slice(&self.experts[at..at + places * self.width]);
        }
    }

    fn at(&self, page: u32, place: usize) -> usize {
        (page as usize * PAGE + place) * self.width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_follow_their_tokens_through_pages_and_copies_of_them() {
        let config = ModelConfig::from_json(
            r#"{"model_type": "qwen3_moe", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 3,
            "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 5, "num_experts": 4,
            "max_position_embeddings": 64, "num_experts_per_tok": 2, "mlp_only_layers": [1]}"#,
        )
        .unwrap();
        let mut choices = Choices::new(&config, 4).unwrap();
        // Eighteen tokens: a page and two places of another one.
        let place = |token: usize| if token < PAGE { (2, token) } else { (0, token - PAGE) };
        for (layer, first) in [(0, 0), (2, 50)] {
            let chosen: Vec<u16> = (0..18).flat_map(|token| [first + token, 100 + first + token]).collect();
            choices.note(layer, &chosen, place);
        }
        choices.copy(0, 3);
        let read = |pages: &[u32], positions: usize| {
            let mut routing = Routing::default();
            choices.add_to(&mut routing, pages, positions);
            routing
        };
        let whole = read(&[2, 3], 18);
        assert_eq!((whole.width, whole.tokens()), (4, 18));
        for token in 0..18 {
            assert_eq!(whole.of(token as usize).unwrap(), [token, 100 + token, 50 + token, 150 + token]);
        }
        assert_eq!(whole.of(18), None);
        assert_eq!(read(&[0], 1).choices, whole.of(16).unwrap());
        assert!(Choices::new(&ModelConfig { experts: None, ..config }, 4).is_none());
    }
}
