//! Keys and values, in pages.

use rollout_kernels::pages::{FreePages, PAGE, PageShape};

use super::Kind;

/// Pages of keys and values.
pub(in super::super) struct KvPages {
    pub free: FreePages,
    shape: PageShape,
}

impl KvPages {
    pub fn new(shape: PageShape) -> Self {
        Self { free: FreePages::new(shape.pages), shape }
    }

    /// Bytes of so many pages.
    pub fn bytes_of(&self, pages: usize) -> u64 {
        (pages * (self.shape.bytes() / self.shape.pages)) as u64
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
        self.bytes_of(self.shape.pages - self.free.count())
    }
}
