//! Keys and values, in pages.

use rollout_kernels::{
    element::KvFormat,
    pages::{FreePages, PAGE, PageShape},
};
use shared::ModelConfig;

use super::Kind;

/// Sizes of the memory of keys and values: a pool for layers with heads of the model's width, and one for layers with
/// wider heads, where there are any. A page has one number in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super::super) struct PoolShapes {
    /// Each pool's.
    pub pools: [PageShape; 2],
    /// Pages of each.
    pub pages: usize,
    /// The format of keys and values.
    pub format: KvFormat,
}

impl PoolShapes {
    /// Room for the keys and values of a model in so many pages.
    pub fn new(config: &ModelConfig, pages: usize, format: KvFormat) -> Self {
        let pool = |number: usize, head_dim| {
            let layers = config.caching_layers().filter(|(layer, _)| pool_of(config, *layer) == number).count();
            PageShape { layers, kv_heads: config.num_key_value_heads, head_dim, pages, format }
        };
        let wide = config.global_head_dim.unwrap_or(config.head_dim);
        Self { pools: [pool(0, config.head_dim), pool(1, wide)], pages, format }
    }

    /// Bytes of both pools.
    pub fn bytes(&self) -> usize {
        self.pools.iter().map(PageShape::bytes).sum()
    }
}

/// The pool with the keys and values that a layer reads.
fn pool_of(config: &ModelConfig, layer: usize) -> usize {
    usize::from(config.head_dim_of(layer) != config.head_dim)
}

/// Where the keys and values that a layer with attention reads lie: the pool, and the number of the layer in it that
/// has stored them.
pub(in super::super) fn place_of(config: &ModelConfig, layer: usize) -> (usize, usize) {
    let (pool, stored_by) = (pool_of(config, layer), config.shares_keys_of(layer).unwrap_or(layer));
    let before = config.caching_layers().filter(|(other, _)| *other < stored_by && pool_of(config, *other) == pool);
    (pool, before.count())
}

/// Pages of keys and values.
pub(in super::super) struct KvPages {
    pub free: FreePages,
    shapes: PoolShapes,
}

impl KvPages {
    pub fn new(shapes: PoolShapes) -> Self {
        Self { free: FreePages::new(shapes.pages), shapes }
    }

    /// Bytes of so many pages.
    pub fn bytes_of(&self, pages: usize) -> u64 {
        (pages * (self.shapes.bytes() / self.shapes.pages)) as u64
    }
}

/// Gives a sequence of the pool `count` pages.
fn extend(free: &mut FreePages, pages: &mut Vec<u32>, count: usize) {
    free.extend(pages, count).expect("the pool holds every slot at full length");
}

impl Kind for KvPages {
    type Own = Vec<u32>;

    fn extend(&mut self, own: &mut Vec<u32>, positions: usize) {
        extend(&mut self.free, own, PageShape::pages_for(positions));
    }

    /// Full pages are shared, and the last one is copied.
    fn fork(&mut self, own: &Vec<u32>, positions: usize, copy: &mut dyn FnMut(u32, u32)) -> Vec<u32> {
        let full = positions / PAGE;
        let mut pages = own[..full].to_vec();
        self.free.share(&pages);
        if !positions.is_multiple_of(PAGE) {
            extend(&mut self.free, &mut pages, full + 1);
            copy(own[full], pages[full]);
        }
        pages
    }

    /// Drafts may have taken more.
    fn keep(&mut self, own: &mut Vec<u32>, positions: usize, _: usize) {
        self.free.give_back(&own.split_off(PageShape::pages_for(positions)));
    }

    fn give_back(&mut self, own: Vec<u32>) {
        self.free.give_back(&own);
    }

    fn bytes_in_use(&self) -> u64 {
        self.bytes_of(self.shapes.pages - self.free.count())
    }
}
