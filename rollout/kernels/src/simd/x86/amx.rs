//! AMX: products of whole tiles, sixteen rows by sixteen columns.
//!
//! The intrinsics are not stable in Rust, so the instructions are written out. A system hands out the tile registers on
//! request only; [`granted`] asks once. All eight tiles are sixteen rows of 64 bytes here: a tile of the right side is
//! sixteen steps (of a word for each of 16 columns), a tile of the left side sixteen rows of sixteen words.

use std::{
    arch::{
        asm,
        x86_64::{__cpuid, __cpuid_count, _xgetbv},
    },
    sync::OnceLock,
};

/// Rows, steps and columns of a tile.
const TILE: usize = 16;

/// Whether this machine multiplies tiles of bytes and of bf16, and the system lets this process do so.
pub(super) fn granted() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| has_instructions() && keeps_registers() && asked_for())
}

/// AMX-TILE, AMX-INT8 and AMX-BF16 with tiles of the known size.
fn has_instructions() -> bool {
    const NEEDED: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    if __cpuid(0).eax < 0x1d || __cpuid_count(7, 0).edx & NEEDED != NEEDED {
        return false;
    }
    let palette = __cpuid_count(0x1d, 1);
    let (row_bytes, tiles, rows) = (palette.ebx & 0xffff, palette.ebx >> 16, palette.ecx & 0xffff);
    row_bytes == 64 && tiles == 8 && rows == 16
}

/// Whether the system saves the tiles when it changes from one thread to another.
fn keeps_registers() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const TILES: u64 = 1 << 17 | 1 << 18;
    #[target_feature(enable = "xsave")]
    fn enabled() -> u64 {
        // SAFETY: the caller has checked OSXSAVE.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: OSXSAVE means that there is XSAVE.
    __cpuid(1).ecx & OSXSAVE != 0 && unsafe { enabled() } & TILES == TILES
}

/// Asks Linux for the tiles: for the process with all its threads.
#[cfg(target_os = "linux")]
fn asked_for() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn asked_for() -> bool {
    false
}

/// The tile registers of this thread, set up; given back when it goes.
pub(crate) struct Tiles(());

impl Tiles {
    /// # Safety
    /// [`granted`] must hold, and no other `Tiles` live on this thread.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        #[repr(C, align(64))]
        struct Configuration([u8; 64]);
        static CONFIGURATION: Configuration = {
            let mut bytes = [0; 64];
            bytes[0] = 1;
            let mut tile = 0;
            while tile < 8 {
                bytes[16 + 2 * tile] = 64;
                bytes[48 + tile] = TILE as u8;
                tile += 1;
            }
            Configuration(bytes)
        };
        // SAFETY: the caller vouches for the instructions; the configuration is one that they take.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &CONFIGURATION, options(nostack, readonly)) };
        Self(())
    }
}

impl Drop for Tiles {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: a `Tiles` is made only where the instructions are.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// The addresses and sizes of a product of tiles.
#[derive(Clone, Copy)]
pub(crate) struct TileProduct {
    /// Tiles of the left side, one after the other; pairs of tiles for [`TileSplits`]. The tiles of a second block of
    /// rows lie `second` bytes further on.
    pub left: *const f32,
    /// Bytes from the first block of rows to the second.
    pub second: usize,
    /// Sixteen steps of two blocks of columns, 128 bytes each, one after the other.
    pub right: *const f32,
    /// Number of tiles, or of pairs of tiles, along the depth.
    pub count: usize,
    /// Rows of 32 sums.
    pub sums: *mut [u32; 32],
    /// Memory that is asked for on the way.
    pub ahead: *const f32,
    /// Cache lines that are asked for in each step along the depth.
    pub lines: usize,
}

/// The element type of tiles.
pub(crate) trait TileDot {
    /// Multiplies one block of sixteen rows with two blocks of columns.
    ///
    /// # Safety
    /// A [`Tiles`] must live on this thread, and the addresses be valid.
    unsafe fn one(product: TileProduct);
    /// Multiplies two blocks of rows; what [`TileDot::one`] demands holds for both.
    unsafe fn two(product: TileProduct);
}

/// Signed bytes, summed in 32-bit integers: exact.
pub(crate) struct TileBytes;

/// Pairs of bf16, summed in fp32. In one tile, the products of the first elements of all pairs form a chain of fused
/// multiply-adds from 0, and those of the second elements another one. Each sum grows by the sum of both chains.
pub(crate) struct TileHalves;

/// Pairs of tiles of bf16: large and then small halves of the left side, small and then large ones of the right. Three
/// products are added, one after the other and each as in [`TileHalves`]: large by small, large by large, and small by
/// large.
pub(crate) struct TileSplits;

/// A loop along the depth. The lists hold the instructions before it, those of a step, those that move on to the next
/// step, and those after it. Each step prefetches some cache lines.
macro_rules! tile_loop {
    (
        $product:ident, [$($before:literal),+], [$($step:expr),+ $(,)?], [$($next:expr),+], [$($after:literal),+]
        $(, $operand:ident = $address:expr)?
    ) => {
        asm!(
            $($before,)+
            "2:",
            $($step,)+
            "mov {line}, {lines}",
            "test {line}, {line}",
            "jz 4f",
            "3:",
            "prefetcht1 [{ahead}]",
            "add {ahead}, 64",
            "dec {line}",
            "jnz 3b",
            "4:",
            $($next,)+
            "dec {count}",
            "jnz 2b",
            $($after,)+
            left = inout(reg) $product.left => _,
            $($operand = inout(reg) $address => _,)?
            right = inout(reg) $product.right => _,
            count = inout(reg) $product.count => _,
            ahead = inout(reg) $product.ahead => _,
            line = out(reg) _,
            lines = in(reg) $product.lines,
            sums = in(reg) $product.sums,
            row = in(reg) 64_usize,
            step = in(reg) 128_usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
            out("tmm7") _,
            options(nostack),
        )
    };
}

/// Implements [`TileDot`]. Its arguments are the bytes between two steps along the depth, on the left and on the right
/// side, and the instructions of a step for one and for two blocks of rows.
macro_rules! tile_dot {
    ($name:ty, $left:literal, $right:literal, $one:tt, $two:tt) => {
        impl TileDot for $name {
            #[inline(always)]
            unsafe fn one(product: TileProduct) {
                // SAFETY: the caller vouches for the tiles and for the addresses.
                unsafe {
                    tile_loop!(
                        product,
                        ["tilezero tmm0", "tilezero tmm1"],
                        $one,
                        [concat!("add {left}, ", $left), concat!("add {right}, ", $right)],
                        ["tilestored [{sums} + {step}*1], tmm0", "tilestored [{sums} + {step}*1 + 64], tmm1"]
                    );
                }
            }

            #[inline(always)]
            unsafe fn two(product: TileProduct) {
                // SAFETY: the caller vouches for the tiles and for the addresses of both blocks of rows.
                unsafe {
                    tile_loop!(
                        product,
                        ["tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3"],
                        $two,
                        [
                            concat!("add {left}, ", $left),
                            concat!("add {below}, ", $left),
                            concat!("add {right}, ", $right)
                        ],
                        [
                            "tilestored [{sums} + {step}*1], tmm0",
                            "tilestored [{sums} + {step}*1 + 64], tmm1",
                            "tilestored [{sums} + {step}*1 + 2048], tmm2",
                            "tilestored [{sums} + {step}*1 + 2112], tmm3"
                        ],
                        below = product.left.byte_add(product.second)
                    );
                }
            }
        }
    };
    ($name:ty, $dot:literal) => {
        tile_dot!(
            $name,
            1024,
            2048,
            [
                "tileloadd tmm4, [{left} + {row}*1]",
                "tileloadd tmm6, [{right} + {step}*1]",
                concat!($dot, " tmm0, tmm4, tmm6"),
                "tileloadd tmm7, [{right} + {step}*1 + 64]",
                concat!($dot, " tmm1, tmm4, tmm7"),
            ],
            [
                "tileloadd tmm4, [{left} + {row}*1]",
                "tileloadd tmm6, [{right} + {step}*1]",
                concat!($dot, " tmm0, tmm4, tmm6"),
                "tileloadd tmm5, [{below} + {row}*1]",
                concat!($dot, " tmm2, tmm5, tmm6"),
                "tileloadd tmm7, [{right} + {step}*1 + 64]",
                concat!($dot, " tmm1, tmm4, tmm7"),
                concat!($dot, " tmm3, tmm5, tmm7"),
            ]
        );
    };
}

tile_dot!(TileBytes, "tdpbssd");
tile_dot!(TileHalves, "tdpbf16ps");
tile_dot!(
    TileSplits,
    2048,
    4096,
    [
        "tileloadd tmm4, [{left} + {row}*1]",
        "tileloadd tmm6, [{right} + {step}*1]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm7, [{right} + {step}*1 + 64]",
        "tdpbf16ps tmm1, tmm4, tmm7",
        "tileloadd tmm6, [{right} + {step}*1 + 2048]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm7, [{right} + {step}*1 + 2112]",
        "tdpbf16ps tmm1, tmm4, tmm7",
        "tileloadd tmm5, [{left} + {row}*1 + 1024]",
        "tdpbf16ps tmm0, tmm5, tmm6",
        "tdpbf16ps tmm1, tmm5, tmm7",
    ],
    [
        "tileloadd tmm4, [{left} + {row}*1]",
        "tileloadd tmm6, [{right} + {step}*1]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm5, [{below} + {row}*1]",
        "tdpbf16ps tmm2, tmm5, tmm6",
        "tileloadd tmm7, [{right} + {step}*1 + 64]",
        "tdpbf16ps tmm1, tmm4, tmm7",
        "tdpbf16ps tmm3, tmm5, tmm7",
        "tileloadd tmm6, [{right} + {step}*1 + 2048]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tdpbf16ps tmm2, tmm5, tmm6",
        "tileloadd tmm7, [{right} + {step}*1 + 2112]",
        "tdpbf16ps tmm1, tmm4, tmm7",
        "tdpbf16ps tmm3, tmm5, tmm7",
        "tileloadd tmm4, [{left} + {row}*1 + 1024]",
        "tdpbf16ps tmm0, tmm4, tmm6",
        "tileloadd tmm5, [{below} + {row}*1 + 1024]",
        "tdpbf16ps tmm2, tmm5, tmm6",
        "tdpbf16ps tmm1, tmm4, tmm7",
        "tdpbf16ps tmm3, tmm5, tmm7",
    ]
);
