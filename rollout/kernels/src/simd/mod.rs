//! Sixteen fp32 lanes under one interface, whatever the registers of the machine hold.
//!
//! All kernels are written once, generic over [`Simd`], and compiled once per instruction set. Sums across lanes are
//! formed in the same tree everywhere and products are fused everywhere, so the instruction set does not show in the
//! results.

#[cfg(target_arch = "x86_64")]
mod amx;
mod dot;
mod plain;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use dot::{ByteTask, Dot, MAX_BYTE_PRODUCTS, QUAD};

#[cfg(target_arch = "x86_64")]
pub(super) use amx::{TileBytes, TileDot, TileHalves, TileProduct, TileSplits, Tiles};

use super::packed::Format;
#[cfg(target_arch = "x86_64")]
use dot::Avx2Dot;
use dot::{PlainDot, With};

/// Lanes of one block.
pub const LANES: usize = 16;

/// Operations on blocks of [`LANES`] numbers.
///
/// # Safety
/// Every function may be called only where the instruction set of the implementor is available. Pointers must be valid
/// for [`LANES`] elements; alignment does not matter.
pub trait Simd: Copy + 'static {
    /// One block.
    type V: Copy;
    /// Rows of a tile of two blocks that the registers hold as sums.
    const ROWS: usize;

    /// # Safety
    /// See the trait.
    unsafe fn splat(x: f32) -> Self::V;
    /// # Safety
    /// See the trait.
    unsafe fn load(from: *const f32) -> Self::V;
    /// The first and the second elements of sixteen pairs of bf16.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn load_pairs(from: *const f32) -> (Self::V, Self::V);
    /// # Safety
    /// See the trait.
    unsafe fn store(to: *mut f32, v: Self::V);
    /// Sixteen whole numbers, rounded.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn load_whole(from: *const i32) -> Self::V;
    /// `a * b + c`, rounded once.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// # Safety
    /// See the trait.
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// # Safety
    /// See the trait.
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// # Safety
    /// See the trait.
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// The larger one; `b` where one of them is not a number.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The smaller one; `b` where one of them is not a number.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// To the nearest whole number, ties to even.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn round(v: Self::V) -> Self::V;
    /// `v * 2^n` for whole `n` from -126 to 127.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn scale(v: Self::V, n: Self::V) -> Self::V;
    /// Sum over the lanes, as a tree over halves.
    ///
    /// # Safety
    /// See the trait.
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: passed on to the caller.
        unsafe { fold::<Self>(v, |a, b| a + b) }
    }
    /// Largest lane; one that is not a number may be passed over.
    ///
    /// # Safety
    /// See the trait.
    #[inline(always)]
    unsafe fn largest(v: Self::V) -> f32 {
        // SAFETY: passed on to the caller.
        unsafe { fold::<Self>(v, f32::max) }
    }
    /// Runs a task in a function of its own. All else is inlined, so a large task that stands in several places would
    /// be compiled as often.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn call<T: Task>(task: T) -> T::Output;
    /// Asks for a cache line.
    ///
    /// # Safety
    /// See the trait; the address need not be valid.
    unsafe fn prefetch(address: *const f32);
}

/// `e^x` within 2 units in the last place, for x held between -87 and 88 (where the result stays a normal number).
///
/// # Safety
/// See [`Simd`].
#[inline(always)]
pub unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    // Cody and Waite's reduction with ln 2 in two parts, and the Taylor polynomial of degree 7 on |r| <= ln 2 / 2.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const COEFFICIENTS: [f32; 7] = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    // SAFETY: passed on to the caller.
    unsafe {
        // What is not a number comes through: both give back their second operand then.
        let x = S::max(S::splat(-87.0), S::min(S::splat(88.0), x));
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let r = S::fma(n, S::splat(-LN2_HIGH), x);
        let r = S::fma(n, S::splat(-LN2_LOW), r);
        let mut p = S::splat(1.0 / 5040.0);
        for c in COEFFICIENTS {
            p = S::fma(p, r, S::splat(c));
        }
        S::scale(p, n)
    }
}

#[inline(always)]
unsafe fn fold<S: Simd>(v: S::V, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: the array holds a block; the rest is passed on to the caller.
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
pub trait Task {
    /// What comes out.
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
    /// AVX-512, and AMX for bytes and bf16.
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2, and AVX-VNNI for bytes.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Plain,
}

impl Isa {
    /// The widest one of this machine.
    #[must_use]
    pub fn detect() -> Self {
        Self::available()[0]
    }

    /// All that this machine has, the widest first; the last one is plain Rust.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                if amx::granted() {
                    all.push(Self(Set::Amx));
                }
                all.push(Self(Set::Avx512));
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                if is_x86_feature_detected!("avxvnni") {
                    all.push(Self(Set::AvxVnni));
                }
                all.push(Self(Set::Avx2));
            }
        }
        all.push(Self(Set::Plain));
        all
    }

    /// [`Simd::ROWS`] of this instruction set.
    #[must_use]
    pub fn rows(self) -> usize {
        struct Rows;
        impl Task for Rows {
            type Output = usize;
            #[inline(always)]
            unsafe fn run<S: Simd>(self) -> usize {
                S::ROWS
            }
        }
        self.run(Rows)
    }

    /// Runs a task with this instruction set.
    #[inline]
    pub fn run<T: Task>(self, task: T) -> T::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `available` is the only maker of an `Isa` and has checked the instruction set.
            Set::Amx | Set::Avx512 => unsafe { x86::with_avx512(task) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Set::AvxVnni | Set::Avx2 => unsafe { x86::with_avx2(task) },
            // SAFETY: plain Rust is always available.
            Set::Plain => unsafe { task.run::<plain::Plain>() },
        }
    }

    /// Whether products of bytes and of bf16 are those of tiles.
    #[must_use]
    pub fn has_tiles(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Amx => true,
            _ => false,
        }
    }

    /// Whether there is an instruction for sums of products of bytes. Without one they take about as many as those of floats,
    /// and what bytes save is memory.
    #[must_use]
    pub fn has_byte_products(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Amx | Set::Avx512 => is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni => true,
            _ => false,
        }
    }

    /// Whether it is plain Rust, where this machine has nothing wider.
    #[must_use]
    pub fn is_plain(self) -> bool {
        self.0 == Set::Plain
    }

    /// What it is called when it multiplies this format.
    #[must_use]
    pub fn name(self, format: Format) -> &'static str {
        match (self.0, format) {
            #[cfg(target_arch = "x86_64")]
            (Set::Amx, Format::Int8) => "amx-int8",
            #[cfg(target_arch = "x86_64")]
            (Set::Amx, Format::Bf16) => "amx-bf16",
            #[cfg(target_arch = "x86_64")]
            (Set::Amx, Format::Bf16x3) => "amx-bf16x3",
            #[cfg(target_arch = "x86_64")]
            (Set::Avx512, Format::Int8) if self.has_byte_products() => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            (Set::Amx | Set::Avx512, _) => "avx512",
            #[cfg(target_arch = "x86_64")]
            (Set::AvxVnni, Format::Int8) => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            (Set::AvxVnni | Set::Avx2, _) => "avx2",
            (Set::Plain, _) => "plain",
        }
    }

    /// Runs a task on bytes with this instruction set.
    #[inline]
    pub fn run_bytes<T: ByteTask>(self, task: T) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: both instruction sets were checked.
            Set::Amx | Set::Avx512 if self.has_byte_products() => unsafe { x86::with_vnni(task) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Set::AvxVnni => unsafe { x86::with_avx_vnni(task) },
            #[cfg(target_arch = "x86_64")]
            // AVX-512 comes with AVX2.
            Set::Amx | Set::Avx512 | Set::Avx2 => self.run(With::<Avx2Dot, T>::new(task)),
            Set::Plain => self.run(With::<PlainDot, T>::new(task)),
        }
    }
}
