//! The compute device and its threads.

use std::{env, ffi::CStr, os::unix::process::CommandExt, path::Path, process::Command};

use shared::{
    config::{TrainConfig, torchrun::Torchrun},
    process::environment,
};
use tch::{Cuda, Device};

use crate::error::LearnerError;

/// libtorch's CUDA half. The binary links the CPU half alone, so that it starts where there is no CUDA.
const CUDA_LIBRARY: &CStr = c"libtorch_cuda.so";

/// The place of a process among a learner's ranks on its host. Each rank has a GPU of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankHere {
    /// All ranks are on this host, and the first one starts the others.
    Of {
        /// The number of the rank.
        rank: usize,
        /// Number of ranks.
        count: usize,
    },
    /// Others have started the rank, and this is its LOCAL_RANK. The number of ranks that they have started here says
    /// nothing about the GPUs: each rank may see its own GPU alone.
    Told(usize),
}

impl RankHere {
    /// The only rank.
    pub const ALONE: Self = Self::Of { rank: 0, count: 1 };

    /// The first rank of a run's learner; `told` are torchrun's variables, if there are any.
    #[must_use]
    pub fn first(config: &TrainConfig, told: Option<&Torchrun>) -> Self {
        match told {
            Some(told) => Self::Told(told.local_rank),
            None => Self::Of { rank: 0, count: config.learner_ranks as usize },
        }
    }

    /// The rank's GPU among those that CUDA shows, numbered as in CUDA_VISIBLE_DEVICES.
    fn gpu(self, visible: usize) -> Result<usize, LearnerError> {
        let (rank, needed) = match self {
            // Every rank needs a GPU: so the first rank finds out before it has started the others.
            Self::Of { rank, count } => (rank, count),
            Self::Told(rank) => (rank, rank.saturating_add(1)),
        };
        if needed <= visible {
            return Ok(rank);
        }
        Err(LearnerError::Device(match self {
            Self::Of { count, .. } => format!(
                "each rank of the learner needs a GPU of its own, and for `learner_ranks` {count} this host shows \
                 {visible}: lower `learner_ranks`, name more GPUs in CUDA_VISIBLE_DEVICES, or use `learner_device` cpu"
            ),
            Self::Told(rank) => format!(
                "each rank of the learner needs a GPU of its own, and for LOCAL_RANK {rank}, which counts from 0, this \
                 host shows {visible}: start fewer ranks here, name more GPUs in CUDA_VISIBLE_DEVICES, or leave \
                 LOCAL_RANK out if each rank sees its own GPU alone"
            ),
        }))
    }
}

/// Opens a device: `cpu`, or the first CUDA device.
///
/// CUDA must be opened before any other use of libtorch, which looks for its CUDA half once.
///
/// # Errors
/// When CUDA is asked for and libtorch has no CUDA half or finds no usable GPU.
pub fn open(device: shared::config::Device) -> Result<Device, LearnerError> {
    open_of_rank(device, RankHere::ALONE)
}

/// As [`open`], for a rank of a learner: its own CUDA device.
///
/// # Errors
/// As [`open`]; fewer GPUs than ranks.
pub fn open_of_rank(device: shared::config::Device, here: RankHere) -> Result<Device, LearnerError> {
    match device {
        shared::config::Device::Cpu => Ok(Device::Cpu),
        shared::config::Device::Cuda => open_cuda(here),
        shared::config::Device::Tensorrt => {
            Err(LearnerError::Device("the learner's device must be cpu or cuda: TensorRT does not train".into()))
        }
    }
}

fn open_cuda(here: RankHere) -> Result<Device, LearnerError> {
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
    here.gpu(usize::try_from(Cuda::device_count()).unwrap_or(0)).map(Device::Cuda)
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

/// Gives libtorch the environment that it computes best in, by starting this program again if whoever started it has
/// not set the variables.
///
/// # Errors
/// When the program cannot be started again. Returns only with an error, or when there is nothing to do.
pub fn prepare_environment() -> std::io::Result<()> {
    let wanted = environment::missing_for_learner();
    if wanted.is_empty() {
        return Ok(());
    }
    Err(Command::new(env::current_exe()?).args(env::args_os().skip(1)).envs(wanted).exec())
}

/// Waits until a device has finished its work, so that a clock that is read next includes the work. On the CPU,
/// operations are done when they return.
pub fn wait_for(device: Device) {
    if let Device::Cuda(index) = device {
        Cuda::synchronize(index as i64);
    }
}

/// Keeps the memory of freed tensors of any size with the process, for the next ones.
///
/// glibc gives each tensor above 32 MB a mapping of its own and returns it to the system at once, and the system clears
/// its pages again for the next one. Beside products in bfloat16, which are fast, this takes a good part of a step. In
/// float32 it takes little, and mappings of their own need less memory, since nothing lies between two tensors.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: these calls change only how later memory is taken, and may be made at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
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

    fn refusal(here: RankHere, visible: usize) -> String {
        here.gpu(visible).unwrap_err().to_string()
    }

    #[test]
    fn each_rank_has_a_gpu_of_its_own() {
        let of = |rank, count| RankHere::Of { rank, count };
        assert_eq!([of(0, 3), of(1, 3), of(2, 3)].map(|here| here.gpu(3).unwrap()), [0, 1, 2]);
        assert_eq!([RankHere::Told(0), RankHere::Told(3)].map(|here| here.gpu(4).unwrap()), [0, 3]);
        assert_eq!(RankHere::ALONE.gpu(8).unwrap(), 0);
    }

    #[test]
    fn the_first_rank_is_told_its_place_or_starts_the_others() {
        let config = TrainConfig { learner_ranks: 2, ..TrainConfig::default() };
        assert_eq!(RankHere::first(&config, None), RankHere::Of { rank: 0, count: 2 });
        let told = Torchrun {
            rank: 0,
            world_size: 2,
            local_rank: 1,
            local_world_size: 2,
            master_addr: "node-0".into(),
            master_port: 29500,
            agent_listens: false,
        };
        assert_eq!(RankHere::first(&config, Some(&told)), RankHere::Told(1));
    }

    #[test]
    fn fewer_gpus_than_ranks_are_an_error_with_the_way_out() {
        // The first rank is refused before it starts one that would have no GPU.
        let first = refusal(RankHere::Of { rank: 0, count: 2 }, 1);
        assert!(
            first.contains("`learner_ranks` 2 this host shows 1") && first.contains("`learner_device` cpu"),
            "{first}"
        );
        assert!(RankHere::Told(usize::MAX).gpu(8).is_err());
        let told = refusal(RankHere::Told(1), 1);
        assert!(told.contains("LOCAL_RANK 1,") && told.contains("leave LOCAL_RANK out"), "{told}");
        for message in [first, told] {
            assert!(message.contains("CUDA_VISIBLE_DEVICES") && !message.contains('\n'), "{message}");
        }
        assert!(RankHere::Told(0).gpu(1).is_ok(), "its own alone, whatever the others see");
    }
}
