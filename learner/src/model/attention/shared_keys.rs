//! Keys and values that several layers of a pass attend to.

use std::collections::HashMap;

use tch::Tensor;

/// Keys and values by the number of the layer that has made them, and their gradients, which the layers that read them
/// leave for that one. A pass with gradients keeps them until its way back has come to that layer.
#[derive(Debug, Default)]
pub(crate) struct SharedKeys {
    made: HashMap<usize, [Tensor; 2]>,
    gradients: HashMap<usize, [Tensor; 2]>,
}

impl SharedKeys {
    /// Keeps the keys and values of a layer.
    pub(super) fn keep(&mut self, layer: usize, own: &[Tensor; 2]) {
        self.made.insert(layer, own.each_ref().map(Tensor::shallow_clone));
    }

    /// The keys and values of an earlier layer.
    ///
    /// # Panics
    /// When that layer has kept none: a mistake in the model's code.
    pub(super) fn of(&self, layer: usize) -> [Tensor; 2] {
        let made = self.made.get(&layer).expect("a layer comes after the one whose keys it reads");
        made.each_ref().map(Tensor::shallow_clone)
    }

    /// Adds to the gradients of a layer's keys and values.
    pub(super) fn add(&mut self, layer: usize, found: [Tensor; 2]) {
        match self.gradients.get_mut(&layer) {
            Some(sums) => sums.iter_mut().zip(found).for_each(|(sum, found)| *sum += found),
            None => drop(self.gradients.insert(layer, found)),
        }
    }

    /// The gradients that later layers have left for a layer's keys and values. These are not needed any more.
    pub(super) fn take(&mut self, layer: usize) -> Option<[Tensor; 2]> {
        self.made.remove(&layer);
        self.gradients.remove(&layer)
    }
}
