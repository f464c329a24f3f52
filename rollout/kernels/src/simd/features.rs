//! The instructions of a processor that the kernels know.

/// A set of instructions: what a machine has, or what a caller lets the kernels use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features(u8);

impl Features {
    /// AVX2 with FMA and F16C. The wider ones are used only where these are there too.
    pub const AVX2: Self = Self(1);
    /// Sums of products of bytes in registers of 256 bits.
    pub const AVX_VNNI: Self = Self(1 << 1);
    /// AVX-512 F.
    pub const AVX512: Self = Self(1 << 2);
    /// Sums of products of bytes in registers of 512 bits.
    pub const AVX512_VNNI: Self = Self(1 << 3);
    /// Products of tiles of bytes and of bf16, granted by the system.
    pub const AMX: Self = Self(1 << 4);
    /// Sums of products of pairs of bf16 in registers of 512 bits.
    pub const AVX512_BF16: Self = Self(1 << 5);
    /// All that the kernels know.
    pub const ALL: Self = Self((1 << 6) - 1);

    /// Those of this machine.
    #[must_use]
    pub fn of_machine() -> Self {
        #[cfg(target_arch = "x86_64")]
        let found = super::x86::features();
        #[cfg(not(target_arch = "x86_64"))]
        let found = Self(0);
        found
    }

    /// Whether all of some instructions are in the set.
    #[must_use]
    pub fn contains(self, some: Self) -> bool {
        self.0 & some.0 == some.0
    }

    /// The instructions that are in both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Every set that leaves some of these instructions out, from this one down to the empty one.
    pub fn subsets(self) -> impl Iterator<Item = Self> {
        (0..=self.0).rev().map(Self).filter(move |subset| self.contains(*subset))
    }

    /// The instructions of a list whose condition holds.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn of(found: &[(Self, bool)]) -> Self {
        let present = found.iter().filter(|(_, is_there)| *is_there);
        Self(present.fold(0, |all, (one, _)| all | one.0))
    }
}
