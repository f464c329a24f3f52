//! Processor, memory, shared memory, GPU and disk.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use super::Finding;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

pub fn examine() -> Vec<Finding> {
    vec![processor(), memory(), shared_memory(Path::new("/dev/shm")), gpu(), disk(Path::new("."))]
}

/// Instruction sets that the numeric kernels use, in the order of their age: Linux's name of the flag, and ours.
const FEATURES: [(&str, &str); 7] = [
    ("avx2", "avx2"),
    ("fma", "fma"),
    ("avx512f", "avx512"),
    ("avx_vnni", "avx-vnni"),
    ("avx512_vnni", "avx512-vnni"),
    ("avx512_bf16", "avx512-bf16"),
    ("amx_tile", "amx"),
];

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    describe_processor(&processor_name(), cores, &flags(), tiles_are_granted())
}

/// The name that the processor gives itself.
pub fn processor_name() -> String {
    cpuinfo("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The processor's flags that matter here. They come from the processor itself, as for the kernels: in an emulator,
/// /proc/cpuinfo is that of the machine below it.
fn flags() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::{
            is_x86_feature_detected,
            x86_64::{__cpuid, __cpuid_count},
        };
        // Rust has no stable names of these three.
        let amx = if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).edx };
        let all = [
            ("avx2", is_x86_feature_detected!("avx2")),
            ("fma", is_x86_feature_detected!("fma")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
            ("avx_vnni", is_x86_feature_detected!("avxvnni")),
            ("avx512_vnni", is_x86_feature_detected!("avx512vnni")),
            ("avx512_bf16", is_x86_feature_detected!("avx512bf16")),
            ("amx_bf16", amx >> 22 & 1 == 1),
            ("amx_tile", amx >> 24 & 1 == 1),
            ("amx_int8", amx >> 25 & 1 == 1),
        ];
        let found: Vec<&str> = all.iter().filter(|(_, is_there)| *is_there).map(|(flag, _)| *flag).collect();
        found.join(" ")
    }
    #[cfg(not(target_arch = "x86_64"))]
    String::new()
}

/// A field of the first processor.
fn cpuinfo(name: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':').map(|(_, value)| value.trim().to_owned()))
}

/// Whether the processor has tiles for products in bfloat16, which are several times as fast as those in float32.
pub fn has_bf16_tiles() -> bool {
    are_bf16_tiles(&flags(), tiles_are_granted())
}

fn are_bf16_tiles(flags: &str, granted: bool) -> bool {
    granted && flags.split(' ').any(|flag| flag == "amx_bf16")
}

/// Whether the system would grant the tile registers of AMX, which a processor's flags alone do not tell.
fn tiles_are_granted() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        const ARCH_GET_XCOMP_SUPP: libc::c_long = 0x1021;
        const XTILEDATA: u64 = 1 << 18;
        let mut supported = 0_u64;
        // SAFETY: the call writes one word, to a variable that outlives it.
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, &raw mut supported) };
        result == 0 && supported & XTILEDATA != 0
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    false
}

fn describe_processor(name: &str, cores: usize, flags: &str, tiles: bool) -> Finding {
    let has = |flag: &str| flags.split(' ').any(|f| f == flag);
    let found = FEATURES.iter().filter(|(flag, _)| has(flag));
    let found: Vec<&str> =
        found.map(|&(flag, name)| if flag == "amx_tile" && !tiles { "amx (not granted)" } else { name }).collect();
    let kinds = if found.is_empty() { "-".into() } else { found.join(" ") };
    // The choice matters to the sampler's int8 and bf16 (`--rollout-dtype`).
    let has_tiles = has("amx_int8") && are_bf16_tiles(flags, tiles);
    let products = match (has_tiles, has("avx512_vnni"), has("avx512_bf16")) {
        (true, ..) => "; int8 and bf16 rollouts on amx",
        (false, true, true) => "; int8 rollouts on avx512-vnni, bf16dot rollouts on avx512-bf16",
        (false, true, false) => "; int8 rollouts on avx512-vnni",
        (false, false, _) => "",
    };
    let detail = format!("{name}, {cores} usable threads, {kinds}{products}");
    if !has("avx2") {
        let remedy = if cfg!(target_arch = "x86_64") {
            "without avx2 everything works, but several times slower"
        } else {
            "the sampler has kernels in plain Rust only for this processor: compare with `--kernels stock`"
        };
        return Finding::warn("processor", detail, remedy);
    }
    Finding::ok("processor", detail)
}

fn memory() -> Finding {
    // A container's limit counts, not the machine's memory.
    match (shared::system::memory::total(), shared::system::memory::available()) {
        (Ok(total), Ok(available)) => describe_memory(total, available),
        _ => Finding::warn("memory", "its size is not known", "check it with free"),
    }
}

fn describe_memory(total: u64, available: u64) -> Finding {
    let detail = format!("{} of {} available", gib(available), gib(total));
    if available < 2 * GIB {
        return Finding::warn("memory", detail, "the demo needs 2 GiB; a model needs about 20 bytes per parameter");
    }
    Finding::ok("memory", detail)
}

/// Groups cross from the sampler to the learner through shared memory.
fn shared_memory(path: &Path) -> Finding {
    let subject = "shared memory";
    let remedy = "mount a tmpfs there; with containers: --shm-size=1g";
    let Some(space) = space(path) else {
        return Finding::fail(subject, format!("{} is not there", path.display()), remedy);
    };
    let detail = format!("{} of {} free in {}", gib(space.free), gib(space.total), path.display());
    if tempfile_in(path).is_err() {
        return Finding::fail(subject, format!("{} cannot be written", path.display()), remedy);
    }
    if space.free < 256 * MIB {
        return Finding::warn(subject, detail, remedy);
    }
    Finding::ok(subject, detail)
}

fn tempfile_in(dir: &Path) -> std::io::Result<()> {
    let path = dir.join(format!("tandem-doctor-{}", std::process::id()));
    fs::write(&path, b"x")?;
    fs::remove_file(path)
}

/// The output of nvidia-smi about each GPU; none if there is no GPU.
fn nvidia_smi(fields: &str, format: &str) -> Option<String> {
    let query = Command::new("nvidia-smi")
        .args([format!("--query-gpu={fields}"), format!("--format={format}")])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let listed = query.ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&listed.stdout).trim().to_owned()).filter(|list| !list.is_empty())
}

/// Bytes of the first GPU's memory, which is the one that learner and sampler use; further ranks of a learner have GPUs
/// of the same kind.
pub fn gpu_memory() -> Option<u64> {
    let mib = nvidia_smi("memory.total", "csv,noheader,nounits")?.lines().next()?.trim().parse::<u64>().ok()?;
    Some(mib * MIB)
}

fn gpu() -> Finding {
    let listed = nvidia_smi("name,memory.total,driver_version", "csv,noheader");
    let device = Path::new("/dev/nvidiactl").exists();
    match (listed, device) {
        (Some(list), _) => Finding::ok("gpu", list.lines().collect::<Vec<_>>().join("; ")),
        (None, true) => Finding::warn("gpu", "a device is there, but nvidia-smi does not list it", "check the driver"),
        (None, false) => Finding::ok("gpu", "none; the processor does all the work"),
    }
}

fn disk(path: &Path) -> Finding {
    let Some(space) = space(path) else {
        return Finding::warn("disk", "the free space here is not known", "check it with df");
    };
    let detail = format!("{} free here", gib(space.free));
    if space.free < GIB {
        return Finding::fail("disk", detail, "free some space: a checkpoint needs about 16 bytes per parameter");
    }
    if space.free < 10 * GIB {
        return Finding::warn(
            "disk",
            detail,
            "set `save_total_limit`: a checkpoint needs about 16 bytes per parameter",
        );
    }
    Finding::ok("disk", detail)
}

struct Space {
    total: u64,
    free: u64,
}

fn space(path: &Path) -> Option<Space> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(Space { total: stat.f_blocks * stat.f_frsize, free: stat.f_bavail * stat.f_frsize })
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / GIB as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn instruction_sets_are_named_and_their_lack_is_a_warning() {
        let good = describe_processor("X", 4, "fpu avx2 fma avx512f amx_tile", true);
        assert_eq!((good.level, good.detail.as_str()), (Level::Ok, "X, 4 usable threads, avx2 fma avx512 amx"));
        assert_eq!(describe_processor("X", 4, "fpu sse2", false).level, Level::Warn);
    }

    #[test]
    fn what_rounded_rollouts_are_computed_with_is_said() {
        let detail = |flags: &str, tiles| describe_processor("X", 1, flags, tiles).detail;
        let flags = "avx2 avx512_vnni amx_tile amx_int8 amx_bf16";
        assert!(detail(flags, true).ends_with("avx2 avx512-vnni amx; int8 and bf16 rollouts on amx"));
        assert!(detail(flags, false).ends_with("avx512-vnni amx (not granted); int8 rollouts on avx512-vnni"));
        let flags = "avx2 avx512_vnni avx512_bf16";
        assert!(detail(flags, false).ends_with("; int8 rollouts on avx512-vnni, bf16dot rollouts on avx512-bf16"));
        assert!(detail("avx2", false).ends_with("usable threads, avx2"));
    }

    #[test]
    fn the_processor_has_the_flags_that_linux_lists() {
        // An old kernel does not know all that a processor has.
        let listed = cpuinfo("flags").unwrap_or_default();
        for flag in listed.split(' ').filter(|flag| FEATURES.iter().any(|(known, _)| known == flag)) {
            assert!(flags().split(' ').any(|found| found == flag), "{flag}: {}", flags());
        }
    }

    #[test]
    fn tiles_for_bf16_are_there_when_the_system_grants_them() {
        let of = |flags, granted| are_bf16_tiles(flags, granted);
        assert!(of("avx2 amx_bf16 amx_tile", true) && !of("avx2 amx_bf16 amx_tile", false) && !of("avx512_bf16", true));
    }

    #[test]
    fn little_memory_is_a_warning_with_a_remedy() {
        let finding = describe_memory(8 * GIB, GIB);
        assert_eq!((finding.level, finding.detail.as_str()), (Level::Warn, "1.0 GiB of 8.0 GiB available"));
        assert!(finding.remedy.is_some());
        assert_eq!(describe_memory(8 * GIB, 4 * GIB).level, Level::Ok);
    }

    /// Cached files make room when memory is asked for, in a container too.
    #[test]
    fn the_memory_is_as_much_as_the_processes_count_on() {
        let shown: f64 = memory().detail.split(' ').next().unwrap().parse().unwrap();
        let counted_on = shared::system::memory::available().unwrap() as f64 / GIB as f64;
        assert!((shown - counted_on).abs() < 0.5, "{shown} GiB shown, {counted_on} GiB counted on");
    }

    #[test]
    fn missing_shared_memory_fails() {
        assert_eq!(shared_memory(Path::new("/nowhere/shm")).level, Level::Fail);
        assert!(space(Path::new("/")).is_some_and(|s| s.total > 0));
    }
}
