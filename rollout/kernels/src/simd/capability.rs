//! The environment's bound on the instructions that kernels use, for measurements and for searching a fault.

use std::{env, error::Error, fmt, sync::LazyLock};

use super::Features;

/// The variable that names the widest instruction set, as `ATEN_CPU_CAPABILITY` does for libtorch.
const VARIABLE: &str = "TANDEM_CPU_CAPABILITY";

/// The names with their instructions, which are those of the names before too where a processor has both.
const NAMES: [(&str, &[Features]); 7] = [
    ("plain", &[]),
    ("avx2", &[Features::AVX2]),
    ("avx-vnni", &[Features::AVX2, Features::AVX_VNNI]),
    ("avx512", &[Features::AVX2, Features::AVX_VNNI, Features::AVX512]),
    ("avx512-vnni", &[Features::AVX2, Features::AVX_VNNI, Features::AVX512, Features::AVX512_VNNI]),
    (
        "avx512-bf16",
        &[Features::AVX2, Features::AVX_VNNI, Features::AVX512, Features::AVX512_VNNI, Features::AVX512_BF16],
    ),
    ("amx", &[Features::ALL]),
];

/// What is read once, so that all calls of a process use the same instructions.
static ALLOWED: LazyLock<Result<Features, UnknownCapability>> = LazyLock::new(|| {
    let name = env::var_os(VARIABLE).unwrap_or_default();
    if name.is_empty() { Ok(Features::ALL) } else { of(&name.to_string_lossy()) }
});

/// A bound that names no instruction set of the kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownCapability(String);

impl fmt::Display for UnknownCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        write!(f, "{VARIABLE}={} names no instruction set: it may be {}", self.0, names.join(", "))
    }
}

impl Error for UnknownCapability {}

/// The instructions that the environment allows.
///
/// # Errors
/// When its variable is set to an unknown name.
pub fn allowed() -> Result<Features, UnknownCapability> {
    ALLOWED.clone()
}

fn of(name: &str) -> Result<Features, UnknownCapability> {
    let found = NAMES.iter().find(|(known, _)| *known == name);
    let (_, features) = found.ok_or_else(|| UnknownCapability(name.to_owned()))?;
    Ok(features.iter().copied().fold(Features::NONE, Features::or))
}

#[cfg(test)]
mod tests {
    use super::{super::Isa, *};
    use crate::element::Format;

    #[test]
    fn a_name_leads_to_its_own_set_where_the_machine_has_it() {
        let here: Vec<Isa> = Isa::available();
        let found: Vec<Isa> = NAMES.iter().rev().map(|(name, _)| Isa::within(of(name).unwrap())).collect();
        let mut distinct = found.clone();
        distinct.dedup();
        assert_eq!(distinct, here, "each set that is here has a name");
        assert!(Isa::within(of("plain").unwrap()).is_plain());
        let narrow = Isa::within(of("avx2").unwrap());
        assert!(["avx2", "plain"].contains(&narrow.name(Format::Int8)), "{}", narrow.name(Format::Int8));
        assert_eq!(of("amx"), Ok(Features::ALL));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        for name in ["avx", "AVX2", "avx512_vnni", " avx2"] {
            let said = of(name).unwrap_err().to_string();
            assert!(said.contains(&format!("TANDEM_CPU_CAPABILITY={name} names no")), "{said}");
            assert!(said.ends_with("plain, avx2, avx-vnni, avx512, avx512-vnni, avx512-bf16, amx"), "{said}");
        }
    }
}
