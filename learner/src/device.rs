//! The compute device and its threads.

use std::{env, ffi::CStr, os::unix::process::CommandExt, path::Path, process::Command};

use tch::{Cuda, Device};

use crate::error::LearnerError;

/// libtorch's CUDA half. The binary links the CPU half alone, so that it starts where there is no CUDA.
const CUDA_LIBRARY: &CStr = c"libtorch_cuda.so";

/// Opens a device: `cpu`, or the first CUDA device.
///
/// CUDA must be opened before any other use of libtorch, which looks for its CUDA half once.
///
/// # Errors
/// When CUDA is asked for and libtorch has no CUDA half or finds no usable GPU.
pub fn open(device: shared::config::Device) -> Result<Device, LearnerError> {
    open_of_rank(device, 0)
}

/// As [`open`], for a rank of a learner: of the ranks on its host, each has a GPU of its own.
///
/// # Errors
/// As [`open`]; fewer GPUs than ranks.
pub fn open_of_rank(device: shared::config::Device, rank_here: usize) -> Result<Device, LearnerError> {
    match device {
        shared::config::Device::Cpu => Ok(Device::Cpu),
        shared::config::Device::Cuda => open_cuda(rank_here),
        shared::config::Device::Tensorrt => {
            Err(LearnerError::Device("the learner's device must be cpu or cuda: TensorRT does not train".into()))
        }
    }
}

fn open_cuda(rank_here: usize) -> Result<Device, LearnerError> {
    load_globally(CUDA_LIBRARY).map_err(|reason| {
        LearnerError::Device(format!(
            "device cuda needs the CUDA build of libtorch 2.11 ({reason}); run `cargo xtask setup --cuda` and name its \
             lib folder in LD_LIBRARY_PATH, or use device cpu"
        ))
    })?;
    if !Cuda::is_available() {
        return Err(LearnerError::Device(
            "libtorch's CUDA half is loaded but finds no usable GPU; check the driver with nvidia-smi, or use device \
             cpu"
            .into(),
        ));
    }
    gpu_of_rank(rank_here, usize::try_from(Cuda::device_count()).unwrap_or(0)).map(Device::Cuda)
}

/// The GPU of a rank, of those that CUDA_VISIBLE_DEVICES leaves visible.
fn gpu_of_rank(rank_here: usize, gpus: usize) -> Result<usize, LearnerError> {
    if rank_here < gpus {
        return Ok(rank_here);
    }
    Err(LearnerError::Device(format!(
        "each rank of a host has a GPU of its own, and for the one of LOCAL_RANK {rank_here} there is none among {gpus}: ask for \
         fewer `learner_ranks`, or name more GPUs in CUDA_VISIBLE_DEVICES"
    )))
}

fn load_globally(library: &CStr) -> Result<(), String> {
    // SAFETY: the name is a valid C string; the library's initialisers only register operators and may run at any time
    // before libtorch is used.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if !handle.is_null() {
        return Ok(());
    }
    // SAFETY: after a failed dlopen, dlerror returns a valid C string or null.
    let message = unsafe {
        let text = libc::dlerror();
        if text.is_null() { "unknown error".into() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    };
    Err(message)
}

/// Variables by which a user tells libgomp how its threads wait; any of them is respected.
const WAIT_VARIABLES: [&str; 3] = ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"];

/// Memory that tensors are made of stays with the process when they are gone: activations of 10 MB each would else be
/// given back to the system after every use, and every page of them be asked for again.
const ALLOCATOR: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=4294967296");

/// Gives libtorch the environment that it computes best in, by starting this program again: libgomp and the allocator
/// read theirs before `main`. What the user has set stays.
///
/// libgomp's threads are to spin for some ten microseconds while they wait, then to sleep. Their default is to spin on. A
/// learner that shares its cores with the sampler, or with anything else, then spends most of its time waiting for a thread
/// whose core another one is spinning on: training on two busy cores was measured to be three times as fast without. To
/// sleep at once is no better there, and on idle cores it makes a step of a small model a sixth longer, since an
/// operation's threads are woken again and again.
///
/// # Errors
/// When the program cannot be started again. Returns only with an error, or when there is nothing to do.
pub fn prepare_environment() -> std::io::Result<()> {
    let unset = |name: &&str| env::var_os(name).is_none();
    let waits = WAIT_VARIABLES.iter().all(unset).then_some(("GOMP_SPINCOUNT", "10000"));
    let wanted: Vec<_> = waits.into_iter().chain(unset(&ALLOCATOR.0).then_some(ALLOCATOR)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    Err(Command::new(env::current_exe()?).args(env::args_os().skip(1)).envs(wanted).exec())
}

/// Waits until a device has done what it was given, so that a clock that is read next has it in. On the CPU, operations
/// are done when they return.
pub fn wait_for(device: Device) {
    if let Device::Cuda(index) = device {
        Cuda::synchronize(index as i64);
    }
}

/// Peak resident memory of this process in bytes, where the system tells.
#[must_use]
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string(Path::new("/proc/self/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_of_a_host_has_a_gpu_of_its_own() {
        assert_eq!([0, 1].map(|rank| gpu_of_rank(rank, 2).ok()), [Some(0), Some(1)]);
        let error = gpu_of_rank(2, 2).unwrap_err().to_string();
        assert!(error.contains("LOCAL_RANK 2") && error.contains("CUDA_VISIBLE_DEVICES"), "{error}");
    }
}
