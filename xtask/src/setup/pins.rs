//! The wheels that carry the native libraries: exact versions, hashes, and the files that are taken from them.

use std::fmt;

/// A wheel of the Python package index, and the files that are taken from it.
#[derive(Debug, Clone, Copy)]
pub struct Wheel {
    /// Project name as wheel file names spell it.
    pub project: &'static str,
    /// Exact version.
    pub version: &'static str,
    /// SHA-256 of the wheel file, in hexadecimal.
    pub sha256: &'static str,
    /// Files to unpack.
    pub take: &'static [Take],
}

/// Files of a wheel and where they go in the component's folder. Each rule must find at least one file.
#[derive(Debug, Clone, Copy)]
pub enum Take {
    /// One file, under its own name.
    File {
        /// Path in the wheel.
        from: &'static str,
        /// Folder in the component, empty for its root.
        into: &'static str,
    },
    /// Everything below a folder, with its structure.
    Tree {
        /// Folder in the wheel, with a slash at the end.
        from: &'static str,
        /// Folder in the component.
        into: &'static str,
    },
    /// Every shared library anywhere below a folder, flattened into one folder.
    Libraries {
        /// Folder in the wheel, with a slash at the end.
        below: &'static str,
        /// Folder in the component.
        into: &'static str,
    },
}

impl fmt::Display for Take {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { from, into } => write!(f, "{from} -> {into}/"),
            Self::Tree { from, into } => write!(f, "{from}** -> {into}/**"),
            Self::Libraries { below, into } => write!(f, "{below}**/*.so* -> {into}/"),
        }
    }
}

/// A folder below `.native/`, filled from wheels as a whole or not at all.
#[derive(Debug, Clone, Copy)]
pub struct Component {
    /// Name of the folder.
    pub name: &'static str,
    /// Where its files come from.
    pub wheels: &'static [Wheel],
    /// Symbolic links: name and target, both in the component's folder.
    pub links: &'static [(&'static str, &'static str)],
}

/// The native libraries of one kind of machine.
#[derive(Debug, Clone, Copy)]
pub struct Set {
    /// torch's C++ library, for the learner.
    pub libtorch: Component,
    /// ONNX Runtime, for the sampler.
    pub onnxruntime: Component,
}

/// What is pinned for a platform.
#[derive(Debug, Clone, Copy)]
pub struct Pins {
    /// Operating system and processor, as Rust names them.
    platform: (&'static str, &'static str),
    /// The CPU builds.
    pub cpu: Set,
    /// The CUDA builds, where they are pinned.
    pub cuda: Option<Set>,
}

const PLATFORMS: [Pins; 2] = [
    Pins { platform: ("linux", "x86_64"), cpu: CPU, cuda: Some(CUDA) },
    Pins { platform: ("linux", "aarch64"), cpu: AARCH64, cuda: None },
];

impl Pins {
    /// The pins of a platform; none where nothing is pinned for it.
    pub fn of(platform: (&str, &str)) -> Option<Self> {
        PLATFORMS.into_iter().find(|pins| pins.platform == platform)
    }
}

/// Platform tags of the wheels below, without the processor: pip compares tags literally, and for a given platform it
/// does not accept older ones.
pub const TAGS: &[&str] = &[
    "manylinux_2_28",
    "manylinux_2_27",
    "manylinux_2_25",
    "manylinux_2_18",
    "manylinux_2_17",
    "manylinux2014",
    "manylinux_2_12",
    "manylinux_2_5",
];

const fn file(from: &'static str, into: &'static str) -> Take {
    Take::File { from, into }
}

const ORT_VERSION: &str = "1.31.1";
const ORT_LIBRARY: &str = "libonnxruntime.so.1.31.1";
const ORT_LINKS: &[(&str, &str)] = &[("libonnxruntime.so", ORT_LIBRARY), ("libonnxruntime.so.1", ORT_LIBRARY)];

const TORCH: Wheel = Wheel {
    project: "torch",
    version: "2.11.0",
    sha256: "0f68f4ac6d95d12e896c3b7a912b5871619542ec54d3649cf48cc1edd4dd2756",
    take: &[
        Take::Tree { from: "torch/include/", into: "include" },
        file("torch/lib/libc10.so", "lib"),
        file("torch/lib/libgomp.so.1", "lib"),
        file("torch/lib/libtorch.so", "lib"),
        file("torch/lib/libtorch_cpu.so", "lib"),
    ],
};

const CUDA_RUNTIME: Wheel = Wheel {
    project: "nvidia_cuda_runtime",
    version: "13.0.96",
    sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    take: &[file("nvidia/cu13/lib/libcudart.so.13", "lib")],
};

const CUPTI: Wheel = Wheel {
    project: "nvidia_cuda_cupti",
    version: "13.0.85",
    sha256: "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
    take: &[file("nvidia/cu13/lib/libcupti.so.13", "lib")],
};

const ONNXRUNTIME: Wheel = Wheel {
    project: "onnxruntime",
    version: ORT_VERSION,
    sha256: "1f3dea47f2f0e5117c2404cea7d21fd253ae7836a3bf167a501cdfbb2600d536",
    take: &[
        file("onnxruntime/capi/libonnxruntime.so.1.31.1", ""),
        file("onnxruntime/capi/libonnxruntime_providers_shared.so", ""),
    ],
};

/// The CPU builds for x86-64. The wheel on PyPI is the CUDA build. On the CPU, its `libtorch_cpu.so` needs only two
/// small libraries of CUDA, and nothing ever opens `libtorch_cuda.so`, so gigabytes of dependencies can be left out.
pub const CPU: Set = Set {
    libtorch: Component { name: "libtorch", links: &[], wheels: &[TORCH, CUDA_RUNTIME, CUPTI] },
    onnxruntime: Component { name: "onnxruntime", links: ORT_LINKS, wheels: &[ONNXRUNTIME] },
};

/// [`CPU`] for aarch64, whose `libtorch_cpu.so` needs libraries for products of matrices besides.
pub const AARCH64: Set = Set {
    libtorch: Component {
        name: "libtorch",
        links: &[],
        wheels: &[
            Wheel {
                sha256: "f99924682ef0aa6a4ab3b1b76f40dc6e273fca09f367d15a524266db100a723f",
                take: &[
                    tree("torch/include/", "include"),
                    file("torch/lib/libarm_compute.so", "lib"),
                    file("torch/lib/libarm_compute_graph.so", "lib"),
                    file("torch/lib/libc10.so", "lib"),
                    file("torch/lib/libgomp.so.1", "lib"),
                    file("torch/lib/libnvpl_blas_core.so.0", "lib"),
                    file("torch/lib/libnvpl_blas_lp64_gomp.so.0", "lib"),
                    file("torch/lib/libnvpl_lapack_core.so.0", "lib"),
                    file("torch/lib/libnvpl_lapack_lp64_gomp.so.0", "lib"),
                    file("torch/lib/libtorch.so", "lib"),
                    file("torch/lib/libtorch_cpu.so", "lib"),
                ],
                ..TORCH
            },
            Wheel { sha256: "ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55", ..CUDA_RUNTIME },
            Wheel { sha256: "796bd679890ee55fb14a94629b698b6db54bcfd833d391d5e94017dd9d7d3151", ..CUPTI },
        ],
    },
    onnxruntime: Component {
        wheels: &[Wheel { sha256: "0b9a492176886992e0e875f06bc0367e333f5fff11711a2d642e18b02f3009cc", ..ONNXRUNTIME }],
        ..CPU.onnxruntime
    },
};

const fn tree(from: &'static str, into: &'static str) -> Take {
    Take::Tree { from, into }
}

/// Licences of the libraries of [`CPU`], for those who pass the libraries on. A component of its own: builds do not
/// need it.
pub const LICENCES: Component = Component {
    name: "licences",
    links: &[],
    wheels: &[
        Wheel { take: &[tree("torch-2.11.0.dist-info/licenses/", "libtorch")], ..TORCH },
        Wheel { take: &[tree("nvidia_cuda_runtime-13.0.96.dist-info/licenses/", "cuda-runtime")], ..CUDA_RUNTIME },
        Wheel { take: &[tree("nvidia_cuda_cupti-13.0.85.dist-info/licenses/", "cupti")], ..CUPTI },
        Wheel {
            take: &[
                file("onnxruntime/LICENSE", "onnxruntime"),
                file("onnxruntime/ThirdPartyNotices.txt", "onnxruntime"),
            ],
            ..ONNXRUNTIME
        },
    ],
};

const fn nvidia(project: &'static str, version: &'static str, sha256: &'static str) -> Wheel {
    Wheel { project, version, sha256, take: &[Take::Libraries { below: "nvidia/", into: "lib" }] }
}

/// The full CUDA 13 build: torch 2.11.0 with the native dependencies that its metadata pins, all libraries in one
/// folder, where each finds the others. Its Python-only dependencies and Triton are of no use to libtorch.
pub const CUDA: Set = Set {
    libtorch: Component {
        name: "libtorch",
        links: &[],
        wheels: &[
            Wheel {
                take: &[
                    Take::Tree { from: "torch/include/", into: "include" },
                    file("torch/lib/libc10.so", "lib"),
                    file("torch/lib/libc10_cuda.so", "lib"),
                    file("torch/lib/libcaffe2_nvrtc.so", "lib"),
                    file("torch/lib/libgomp.so.1", "lib"),
                    file("torch/lib/libtorch.so", "lib"),
                    file("torch/lib/libtorch_cpu.so", "lib"),
                    file("torch/lib/libtorch_cuda.so", "lib"),
                    file("torch/lib/libtorch_cuda_linalg.so", "lib"),
                    file("torch/lib/libtorch_nvshmem.so", "lib"),
                ],
                ..TORCH
            },
            nvidia("nvidia_cublas", "13.1.0.3", "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171"),
            nvidia("nvidia_cuda_cupti", "13.0.85", "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8"),
            nvidia("nvidia_cuda_nvrtc", "13.0.88", "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575"),
            nvidia(
                "nvidia_cuda_runtime",
                "13.0.96",
                "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
            ),
            nvidia(
                "nvidia_cudnn_cu13",
                "9.19.0.56",
                "d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf",
            ),
            nvidia("nvidia_cufft", "12.0.0.61", "6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3"),
            nvidia("nvidia_cufile", "1.15.1.6", "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44"),
            nvidia("nvidia_curand", "10.4.0.35", "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc"),
            nvidia("nvidia_cusolver", "12.0.4.66", "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112"),
            nvidia("nvidia_cusparse", "12.6.3.3", "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b"),
            nvidia(
                "nvidia_cusparselt_cu13",
                "0.8.0",
                "25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd",
            ),
            nvidia("nvidia_nccl_cu13", "2.28.9", "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42"),
            nvidia("nvidia_nvjitlink", "13.0.88", "13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b"),
            nvidia("nvidia_nvshmem_cu13", "3.4.5", "290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80"),
            nvidia("nvidia_nvtx", "13.0.85", "4936d1d6780fbe68db454f5e72a42ff64d1fd6397df9f363ae786930fd5c1cd4"),
        ],
    },
    onnxruntime: Component { name: "onnxruntime", links: ORT_LINKS, wheels: &[ORT_GPU] },
};

const ORT_GPU: Wheel = Wheel {
    project: "onnxruntime_gpu",
    version: ORT_VERSION,
    sha256: "05d548956197b9d01f59b625de740e0d6be3593f874e241a12dc0362650ecdf7",
    take: &[
        file("onnxruntime/capi/libonnxruntime.so.1.31.1", ""),
        file("onnxruntime/capi/libonnxruntime_providers_cuda.so", ""),
        file("onnxruntime/capi/libonnxruntime_providers_shared.so", ""),
        file("onnxruntime/capi/libonnxruntime_providers_tensorrt.so", ""),
    ],
};

/// ONNX Runtime for CUDA alone, for machines that have CUDA's libraries.
pub const CUDA_PROVIDER: Component = Component {
    name: "onnxruntime",
    links: ORT_LINKS,
    wheels: &[Wheel {
        take: &[
            file("onnxruntime/capi/libonnxruntime.so.1.31.1", ""),
            file("onnxruntime/capi/libonnxruntime_providers_cuda.so", ""),
            file("onnxruntime/capi/libonnxruntime_providers_shared.so", ""),
        ],
        ..ORT_GPU
    }],
};

#[cfg(test)]
mod tests {
    use super::*;

    /// All components, each with its processor.
    fn all() -> Vec<(&'static str, Component)> {
        let sets = PLATFORMS
            .into_iter()
            .flat_map(|pins| [Some(pins.cpu), pins.cuda].into_iter().flatten().map(move |set| (pins.platform.1, set)));
        sets.flat_map(|(arch, set)| [(arch, set.libtorch), (arch, set.onnxruntime)]).collect()
    }

    #[test]
    fn every_pin_is_exact() {
        for wheel in all().into_iter().flat_map(|(_, component)| component.wheels) {
            assert_eq!(wheel.sha256.len(), 64, "{}", wheel.project);
            assert!(wheel.sha256.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase()));
            assert!(wheel.version.split('.').all(|part| part.parse::<u32>().is_ok()), "{}", wheel.version);
            assert!(!wheel.take.is_empty());
        }
    }

    /// A hash that was not changed with its version, or an invented one, belongs to two files or to none.
    #[test]
    fn every_hash_is_of_one_file() {
        let mut known = std::collections::HashMap::new();
        for (arch, component) in all() {
            for wheel in component.wheels {
                let file = (wheel.project, wheel.version, arch);
                let first = *known.entry(wheel.sha256).or_insert(file);
                assert_eq!(first, file, "both have the hash {}", wheel.sha256);
                let digits: std::collections::HashSet<u8> = wheel.sha256.bytes().collect();
                assert!(digits.len() >= 10, "{}: {} is no hash of anything", wheel.project, wheel.sha256);
            }
        }
        let files: std::collections::HashSet<_> = known.values().collect();
        assert_eq!(files.len(), known.len(), "a wheel of one version has one hash for a processor");
    }

    #[test]
    fn every_library_that_is_passed_on_has_a_licence_of_its_version() {
        let packed: Vec<_> = CPU.libtorch.wheels.iter().chain(CPU.onnxruntime.wheels).collect();
        assert_eq!(packed.len(), LICENCES.wheels.len());
        for (wheel, licence) in packed.iter().zip(LICENCES.wheels) {
            assert_eq!((wheel.project, wheel.sha256), (licence.project, licence.sha256));
            let info = format!("{}-{}.dist-info/", wheel.project, wheel.version);
            let is_of_it = |take: &Take| match take {
                Take::Tree { from, .. } => from.starts_with(&info),
                Take::File { from, .. } => from.starts_with("onnxruntime/"),
                Take::Libraries { .. } => false,
            };
            assert!(licence.take.iter().all(is_of_it), "{:?}", licence.take);
        }
    }

    /// The names of files taken from a wheel contain its version, so neither is changed without the other.
    #[test]
    fn libraries_are_those_of_the_version() {
        for (_, component) in all().into_iter().filter(|(_, component)| component.name == "onnxruntime") {
            let library =
                |take: &&Take| matches!(take, Take::File { from, .. } if from.ends_with(component.wheels[0].version));
            assert_eq!(component.wheels[0].take.iter().filter(library).count(), 1, "{}", component.name);
        }
    }

    #[test]
    fn all_sets_hold_the_same_releases() {
        for (_, component) in all() {
            let of = if component.name == "libtorch" { CPU.libtorch } else { CPU.onnxruntime };
            assert_eq!(component.wheels[0].version, of.wheels[0].version, "{}", component.name);
        }
        assert_eq!(ORT_LIBRARY, format!("libonnxruntime.so.{ORT_VERSION}"));
    }
}
