//! The pages that rows attend to at a time: of a prefix, or a sequence's own.

use super::{
    super::pages::{PageShape, Piece},
    Pieces,
};

/// Some pages of the call's list, as one key/value head sees them.
pub(super) struct HeadPages<'a> {
    pub shape: PageShape,
    pub pages: &'a [u32],
    pub pieces: [Pieces; 4],
}

impl HeadPages<'_> {
    /// Address of a piece of a page.
    #[inline(always)]
    pub fn at(&self, piece: Piece, index: usize) -> *const f32 {
        self.pieces[piece as usize].of(self.pages[index])
    }
}
