//! The environment's bound on the instructions that kernels use, for measurements and for searching a fault.

use std::{env, error::Error, fmt, sync::LazyLock};

use super::SETS;

/// The variable that names the widest instruction set, as `ATEN_CPU_CAPABILITY` does for libtorch.
const VARIABLE: &str = "TANDEM_CPU_CAPABILITY";

/// What is read once, so that all calls of a process use the same instructions.
static BOUND: LazyLock<Result<Option<usize>, UnknownCapability>> = LazyLock::new(|| {
    let name = env::var_os(VARIABLE).unwrap_or_default();
    if name.is_empty() { Ok(None) } else { place(&name.to_string_lossy()).map(Some) }
});

/// A bound that names no instruction set of the kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownCapability(String);

impl fmt::Display for UnknownCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = SETS.iter().rev().map(|(_, name, _)| *name).collect();
        write!(f, "{VARIABLE}={} names no instruction set: it may be {}", self.0, names.join(", "))
    }
}

impl Error for UnknownCapability {}

/// Whether the environment bounds the instructions of the kernels.
///
/// # Errors
/// When its variable is set to an unknown name.
pub fn is_bounded() -> Result<bool, UnknownCapability> {
    BOUND.clone().map(|bound| bound.is_some())
}

/// The place of the widest set that the environment allows, if that is a known one.
pub(super) fn widest() -> usize {
    BOUND.clone().ok().flatten().unwrap_or_default()
}

fn place(name: &str) -> Result<usize, UnknownCapability> {
    SETS.iter().position(|(_, known, _)| *known == name).ok_or_else(|| UnknownCapability(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Features, Isa},
        *,
    };
    use crate::element::Format;

    #[test]
    fn a_name_leads_to_its_own_set_or_the_next_that_the_machine_has() {
        let within = |name: &str| Isa::first(place(name).unwrap(), Features::ALL);
        let mut found: Vec<Isa> = SETS.iter().map(|(_, name, _)| within(name)).collect();
        found.dedup();
        assert_eq!(found, Isa::available(), "each set that is here has a name");
        assert!(within("plain").is_plain());
        let narrow = within("avx2").name(Format::Int8);
        assert!(["avx2", "plain"].contains(&narrow), "{narrow}");
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        for name in ["avx", "AVX2", "avx512_vnni", " avx2"] {
            let said = place(name).unwrap_err().to_string();
            assert!(said.contains(&format!("TANDEM_CPU_CAPABILITY={name} names no")), "{said}");
            assert!(said.ends_with("plain, avx2, avx-vnni, avx512, avx512-vnni, avx512-bf16, amx"), "{said}");
        }
    }
}
