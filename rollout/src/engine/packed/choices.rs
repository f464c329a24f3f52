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
