//! Reports an operation that libtorch refuses in the middle of a computation, in one line with the way out.
//!
//! tch's operators do not return errors, they panic with libtorch's message: several lines, most of them of C++ frames.

use std::{
    any::Any,
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
    thread,
};

use shared::process::{command_line, exit};

/// Runs the program. A panic of tch ends it with a line that begins with `error: `, any other panic as ever.
pub fn catch(program: impl FnOnce() -> ExitCode) -> ExitCode {
    let main = thread::current().id();
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        // Nobody else would report the panic of another thread.
        if refusal(info.payload()).is_none() || thread::current().id() != main {
            usual(info);
        }
    }));
    panic::catch_unwind(AssertUnwindSafe(program)).unwrap_or_else(|payload| match refusal(payload.as_ref()) {
        Some(message) => command_line::fail(message, exit::ERROR),
        None => panic::resume_unwind(payload),
    })
}

/// libtorch's message on one line, with what may help.
#[must_use]
pub fn one_line(message: &str) -> String {
    let message = message.strip_prefix("Internal torch error: ").unwrap_or(message);
    let first = message.lines().next().unwrap_or_default().trim_end_matches('.');
    let memory = ["out of memory", "allocate memory", "not enough memory"].iter().any(|words| first.contains(words));
    let way_out = if memory {
        "; lower `micro_batch_tokens` (--micro-batch-tokens), or free some memory"
    } else if first.contains("CUDA") {
        "; `tandem doctor` checks the GPU and its libraries"
    } else {
        ""
    };
    format!("libtorch: {first}{way_out}")
}

/// The message of a panic that is tch's `unwrap` of an error of libtorch.
fn refusal(payload: &(dyn Any + Send)) -> Option<String> {
    let text = payload.downcast_ref::<String>()?;
    let (_, quoted) = text.split_once("`Err` value: Torch(\"")?;
    Some(one_line(&quoted.strip_suffix("\")").unwrap_or(quoted).replace("\\n", "\n").replace("\\\"", "\"")))
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    fn of(size: i64) -> Tensor {
        Tensor::zeros([size], (Kind::Float, Device::Cpu))
    }

    fn said(work: fn() -> Tensor) -> Option<String> {
        let payload = panic::catch_unwind(work).unwrap_err();
        refusal(payload.as_ref())
    }

    #[test]
    fn what_libtorch_refuses_is_one_line_with_the_way_out() {
        let shapes = said(|| of(2) + of(3)).unwrap();
        assert!(shapes.starts_with("libtorch: The size of tensor a (2) must match"), "{shapes}");
        let memory = said(|| of(1 << 60)).unwrap();
        assert!(memory.contains("micro_batch_tokens"), "{memory}");
        assert!([shapes, memory].iter().all(|line| !line.contains('\n') && !line.contains("frame")));
        assert_eq!(said(|| panic!("something else")), None);
    }
}
