//! Sixteen fp32 lanes under one interface, whatever the registers of the machine hold.
//!
//! Every kernel is written once, generic over [`Simd`], and compiled for each instruction set. Sums across lanes have
//! the same tree everywhere, and products are fused everywhere. So the instruction set does not show in the results.

mod capability;
mod dot;
mod features;
mod functions;
mod pairs;
mod plain;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use capability::{UnknownCapability, is_bounded};
pub use dot::MAX_BYTE_PRODUCTS;
pub(crate) use dot::{ByteTask, Dot};
pub use features::Features;
pub(crate) use functions::{capped, exp, gelu, load_up_to, sigmoid, silu, softplus, store_up_to};
pub(crate) use pairs::{PairDot, PairTask};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{TileBytes, TileDot, TileHalves, TileProduct, TileSplits, Tiles};

use super::element::Format;
use dot::{PlainDot, With};
use pairs::{PairsWith, Widening};

/// Lanes of one block.
pub(crate) const LANES: usize = 16;

/// Operations on blocks of [`LANES`] numbers.
///
/// # Safety
/// [`Simd::V`] must be [`LANES`] numbers, lane by lane. Every function may be called only where the instruction set of
/// the implementor is available. Pointers must be valid for [`LANES`] elements; alignment does not matter.
pub(crate) unsafe trait Simd: Copy + 'static {
    /// One block.
    type V: Copy;
    /// Rows of a tile of two blocks that the registers hold as sums.
    const ROWS: usize;
    /// Blocks of columns of a tile of fp32, or of pairs of bf16: two, or one with twice the rows, which reads the right
    /// side half as often. Where registers are few, two blocks and their sums do not fit into them.
    const BLOCKS: usize = 2;

    unsafe fn splat(x: f32) -> Self::V;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        // SAFETY: the caller vouches for a block.
        unsafe { from.cast::<Self::V>().read_unaligned() }
    }

    /// The first and the second elements of sixteen pairs of bf16.
    unsafe fn load_pairs(from: *const f32) -> (Self::V, Self::V);

    /// Sixteen numbers of fp16, exact.
    unsafe fn load_half_floats(from: *const u16) -> Self::V;

    /// Sixteen whole numbers, rounded.
    unsafe fn load_whole(from: *const i32) -> Self::V;

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        // SAFETY: the caller vouches for a block.
        unsafe { to.cast::<Self::V>().write_unaligned(v) }
    }

    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// The larger one; `b` where one of them is not a number.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The smaller one; `b` where one of them is not a number.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// To the nearest whole number, ties to even.
    unsafe fn round(v: Self::V) -> Self::V;
    /// `v * 2^n` for whole `n` from -126 to 127.
    unsafe fn scale(v: Self::V, n: Self::V) -> Self::V;

    /// Sum over the lanes, as a tree over halves.
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { fold::<Self>(v, |a, b| a + b) }
    }

    /// Largest lane; one that is not a number may be passed over.
    #[inline(always)]
    unsafe fn largest(v: Self::V) -> f32 {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { fold::<Self>(v, |a, b| if a > b { a } else { b }) }
    }

    /// Runs a task in a function of its own. Everything else is inlined, so a large task with several callers would be
    /// compiled for each of them.
    unsafe fn call<T: Task>(task: T) -> T::Output;

    /// Asks for a cache line; the address need not be valid.
    unsafe fn prefetch(address: *const f32);
}

#[inline(always)]
unsafe fn fold<S: Simd>(v: S::V, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: the array holds a block; the caller vouches for the instruction set.
    unsafe { S::store(lanes.as_mut_ptr(), v) };
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = join(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Work written once for all instruction sets.
pub(crate) trait Task {
    /// The result.
    type Output;
    /// Does it. Implementations are `#[inline(always)]`, so that the code is compiled for the instruction set of the
    /// caller.
    ///
    /// # Safety
    /// The instruction set of `S` must be available.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// An instruction set that this machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Set);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    /// AVX-512 with VNNI, and AMX for bytes and bf16.
    Amx,
    /// AVX-512, VNNI for bytes, and AVX512_BF16 for pairs of bf16.
    Avx512Bf16,
    /// AVX-512, and VNNI for bytes.
    Avx512Vnni,
    Avx512,
    /// AVX2, and AVX-VNNI for bytes.
    AvxVnni,
    Avx2,
    Plain,
}

/// The sets, the widest first: each with its name for `capability` and the instructions that it needs.
const SETS: [(Set, &str, &[Features]); 7] = [
    (Set::Amx, "amx", &[Features::AVX2, Features::AVX512, Features::AVX512_VNNI, Features::AMX]),
    (Set::Avx512Bf16, "avx512-bf16", &[Features::AVX2, Features::AVX512, Features::AVX512_VNNI, Features::AVX512_BF16]),
    (Set::Avx512Vnni, "avx512-vnni", &[Features::AVX2, Features::AVX512, Features::AVX512_VNNI]),
    (Set::Avx512, "avx512", &[Features::AVX2, Features::AVX512]),
    (Set::AvxVnni, "avx-vnni", &[Features::AVX2, Features::AVX_VNNI]),
    (Set::Avx2, "avx2", &[Features::AVX2]),
    (Set::Plain, "plain", &[]),
];

impl Isa {
    /// The widest one of this machine, no wider than the bound of the environment, if that is a known one
    /// ([`is_bounded`]).
    #[must_use]
    pub fn detect() -> Self {
        Self::first(capability::widest(), Features::ALL)
    }

    /// The widest one of this machine that needs no instructions but these.
    #[must_use]
    pub fn within(allowed: Features) -> Self {
        Self::first(0, allowed)
    }

    /// The first of [`SETS`], from `widest` on, that this machine has and that needs no instructions but these.
    fn first(widest: usize, allowed: Features) -> Self {
        let features = Features::of_machine().and(allowed);
        let fits = |needs: &[Features]| needs.iter().all(|need| features.contains(*need));
        let found = SETS[widest..].iter().find(|(_, _, needs)| fits(needs));
        Self(found.expect("plain Rust needs nothing").0)
    }

    /// All that this machine has, the widest first; the last one is plain Rust.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let here: Vec<Self> = Features::of_machine().subsets().map(Self::within).collect();
        SETS.iter().map(|(set, ..)| Self(*set)).filter(|isa| here.contains(isa)).collect()
    }

    /// [`Simd::ROWS`] of this instruction set, and [`Simd::BLOCKS`].
    pub(crate) fn tile(self) -> (usize, usize) {
        struct Tile;
        impl Task for Tile {
            type Output = (usize, usize);
            #[inline(always)]
            unsafe fn run<S: Simd>(self) -> (usize, usize) {
                (S::ROWS, S::BLOCKS)
            }
        }
        self.run(Tile)
    }

    /// Runs a task with this instruction set.
    #[inline]
    pub(crate) fn run<T: Task>(self, task: T) -> T::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `within` is the only maker of an `Isa` and has checked the instruction set.
            Set::Amx | Set::Avx512Bf16 | Set::Avx512Vnni | Set::Avx512 => unsafe { x86::with_avx512(task) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `within` has checked AVX2 and FMA.
            Set::AvxVnni | Set::Avx2 => unsafe { x86::with_avx2(task) },
            // SAFETY: plain Rust is always available.
            _ => unsafe { task.run::<plain::Plain>() },
        }
    }

    /// Runs a task on bytes with this instruction set.
    #[inline]
    pub(crate) fn run_bytes<T: ByteTask>(self, task: T) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `within` has checked AVX-512 with VNNI.
            Set::Amx | Set::Avx512Bf16 | Set::Avx512Vnni => unsafe { x86::with_vnni(With(task, x86::Vnni)) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `within` has checked AVX2, FMA and AVX-VNNI.
            Set::AvxVnni => unsafe { x86::with_avx_vnni(With(task, x86::AvxVnni)) },
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 | Set::Avx2 => self.run(With(task, x86::Avx2Dot)),
            _ => self.run(With(task, PlainDot)),
        }
    }

    /// Runs a task on pairs of bf16 with this instruction set.
    #[inline]
    pub(crate) fn run_pairs<T: PairTask>(self, task: T) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `within` has checked AVX-512 and AVX512_BF16.
            Set::Avx512Bf16 => unsafe { x86::with_pairs(PairsWith(task, x86::Bf16Pairs)) },
            _ => self.run(Widening(task)),
        }
    }

    /// Whether products of bytes and of bf16 are computed in tiles.
    #[must_use]
    pub fn has_tiles(self) -> bool {
        self.0 == Set::Amx
    }

    /// Whether products of this format are computed in tiles.
    pub(crate) fn takes_tiles(self, format: Format) -> bool {
        self.has_tiles() && matches!(format, Format::Int8 | Format::Bf16 | Format::Bf16x3)
    }

    /// Whether an instruction sums products of pairs of bf16. It is left alone where there are tiles: there it is
    /// slower than fused multiply-adds of fp32, and both give the same bits.
    #[must_use]
    pub fn has_pair_products(self) -> bool {
        self.0 == Set::Avx512Bf16
    }

    /// The format of bf16 whose products have an instruction here, if one has.
    #[must_use]
    pub fn bf16(self) -> Option<Format> {
        if self.has_tiles() { Some(Format::Bf16) } else { self.has_pair_products().then_some(Format::Bf16Dot) }
    }

    /// Whether there is an instruction for sums of products of bytes. Without one they take about as many instructions
    /// as those of floats, and bytes save memory only.
    #[must_use]
    pub fn has_byte_products(self) -> bool {
        matches!(self.0, Set::Amx | Set::Avx512Bf16 | Set::Avx512Vnni | Set::AvxVnni)
    }

    /// Whether it is plain Rust, where this machine has nothing wider.
    #[must_use]
    pub fn is_plain(self) -> bool {
        self.0 == Set::Plain
    }

    /// The name of the instruction set with which it multiplies this format.
    #[must_use]
    pub fn name(self, format: Format) -> &'static str {
        match (self.0, format) {
            (Set::Amx, Format::Int8) => "amx-int8",
            (Set::Amx, Format::Bf16) => "amx-bf16",
            (Set::Amx, Format::Bf16x3) => "amx-bf16x3",
            (Set::Amx, Format::Int4) | (Set::Avx512Bf16 | Set::Avx512Vnni, Format::Int8 | Format::Int4) => {
                "avx512-vnni"
            }
            (Set::Avx512Bf16, Format::Bf16Dot) => "avx512-bf16",
            (Set::Amx | Set::Avx512Bf16 | Set::Avx512Vnni | Set::Avx512, _) => "avx512",
            (Set::AvxVnni, Format::Int8 | Format::Int4) => "avx-vnni",
            (Set::AvxVnni | Set::Avx2, _) => "avx2",
            (Set::Plain, _) => "plain",
        }
    }
}
