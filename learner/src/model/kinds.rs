//! Element types of the computations that 16 bits are too narrow for.

use tch::{Kind, Tensor};

/// The type that norms, softmax, loss and head compute in where the layers compute in `kind`.
pub(super) fn wide_kind(kind: Kind) -> Kind {
    if kind == Kind::Double { Kind::Double } else { Kind::Float }
}

/// The values in [`wide_kind`]; the same tensor where that is its type.
pub(super) fn wide(x: &Tensor) -> Tensor {
    x.to_kind(wide_kind(x.kind()))
}
