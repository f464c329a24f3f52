//! How the base of an adapter is held: with all its digits, or quantised.

use std::fmt;

use super::model_config::Experts;
use crate::config::TrainConfig;

/// The format of a quantised base, which is not trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BaseFormat {
    /// Bytes with one scale for each row of a matrix, as in LLM.int8 (Dettmers et al. 2022, arXiv:2208.07339).
    Int8,
    /// NormalFloat numbers of four bits with one scale for each [`BLOCK`] of them, as in QLoRA (Dettmers et al. 2023,
    /// arXiv:2305.14314).
    Nf4,
}

/// Numbers of a row that have a scale together in [`BaseFormat::Nf4`].
pub const BLOCK: usize = 64;

impl BaseFormat {
    /// The format that a run asks for (TRL's `load_in_8bit` and `load_in_4bit`).
    #[must_use]
    pub fn of(config: &TrainConfig) -> Option<Self> {
        match (config.load_in_4bit, config.load_in_8bit) {
            (true, _) => Some(Self::Nf4),
            (false, true) => Some(Self::Int8),
            (false, false) => None,
        }
    }

    /// Rows and columns of a parameter that is quantised: the matrices of layers. Embedding, head, norms and biases
    /// keep their digits, as in PEFT with bitsandbytes, and so do routers, which choose experts.
    #[must_use]
    pub fn matrix(name: &str, shape: &[usize]) -> Option<[usize; 2]> {
        match *shape {
            [rows, columns] if name.starts_with("model.layers.") && !Experts::is_router(name) => Some([rows, columns]),
            _ => None,
        }
    }

    /// Numbers of a row that have a scale together.
    #[must_use]
    pub fn block(self, columns: usize) -> usize {
        match self {
            Self::Int8 => columns.max(1),
            Self::Nf4 => BLOCK,
        }
    }

    /// Bytes of the codes of a row. Blocks of [`BaseFormat::Nf4`] are whole.
    #[must_use]
    pub fn row_bytes(self, columns: usize) -> usize {
        match self {
            Self::Int8 => columns,
            Self::Nf4 => columns.next_multiple_of(BLOCK) / 2,
        }
    }

    /// Bytes of a quantised parameter, its scales among them.
    #[must_use]
    pub fn bytes(self, [rows, columns]: [usize; 2]) -> u64 {
        (rows * (self.row_bytes(columns) + columns.div_ceil(self.block(columns)) * size_of::<f32>())) as u64
    }
}

impl fmt::Display for BaseFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Int8 => "int8",
            Self::Nf4 => "nf4",
        })
    }
}
