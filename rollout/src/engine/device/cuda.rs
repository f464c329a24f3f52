//! The few functions of the CUDA runtime that the engine calls itself, opened at run time: a program built without CUDA
//! runs anywhere, and says what is missing when a CUDA device is asked for.
//!
//! All of them work on the legacy default stream. ONNX Runtime computes on a stream of its own and waits for it at the
//! end of every run; what is started here is waited for with [`Cuda::synchronize`] before the next run.

use std::{
    env,
    ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void},
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    ptr::{self, NonNull},
    sync::OnceLock,
};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use shared::config::Device;

use crate::engine::{EngineError, runtime::library_path};

const CUDA_RUNTIME: &str = "libcudart.so.13";
/// What the CUDA provider of ONNX Runtime 1.31 links, in the order of their own dependencies.
const CUDA_LIBRARIES: &[&str] =
    &["libcuda.so.1", CUDA_RUNTIME, "libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10"];
/// What it opens when an operator wants it.
const CUDA_OPTIONAL_LIBRARIES: &[&str] = &["libnvrtc.so.13", "libcudnn.so.9"];
/// What the TensorRT provider links beside those.
const TENSORRT_LIBRARIES: &[&str] = &["libcudnn.so.9", "libnvinfer.so.10", "libnvonnxparser.so.10"];

/// Opens the libraries that the provider of the device links, so that it finds them wherever they are: on the system's
/// search path, beside ONNX Runtime, or in the folder of a CUDA build of libtorch. They stay open.
///
/// # Errors
/// The first one that is missing.
pub(in crate::engine) fn load_libraries(device: Device) -> Result<(), EngineError> {
    let required: &[&[&str]] = match device {
        Device::Cpu => return Ok(()),
        Device::Cuda => &[CUDA_LIBRARIES],
        Device::Tensorrt => &[CUDA_LIBRARIES, TENSORRT_LIBRARIES],
    };
    let folders = library_folders()?;
    for library in required.iter().copied().flatten() {
        // Never closed: libraries opened later that link this one by name get it.
        std::mem::forget(open(library, &folders).ok_or_else(|| missing(device, library))?);
    }
    for library in CUDA_OPTIONAL_LIBRARIES {
        match open(library, &folders) {
            Some(library) => std::mem::forget(library),
            None => tracing::debug!(library, "not found; operators that want it will fail"),
        }
    }
    Ok(())
}

fn missing(device: Device, library: &str) -> EngineError {
    let way_out = match library {
        "libcuda.so.1" => "install the NVIDIA driver",
        _ if TENSORRT_LIBRARIES.contains(&library) => "install TensorRT 10 and let LD_LIBRARY_PATH name its folder",
        _ => "run `cargo xtask setup --cuda`, or let LD_LIBRARY_PATH name the folder of CUDA 13's libraries",
    };
    EngineError::Library(format!("device {device} needs {library}, which is not found; {way_out}"))
}

/// Folders to look in after the system's search path.
fn library_folders() -> Result<Vec<PathBuf>, EngineError> {
    let beside = library_path()?.parent().map(Path::to_path_buf).unwrap_or_default();
    let torch_of_user = env::var_os("LIBTORCH").map(|dir| Path::new(&dir).join("lib"));
    let torch_of_setup = beside.join("../libtorch/lib");
    Ok([Some(beside), torch_of_user, Some(torch_of_setup)].into_iter().flatten().collect())
}

fn open(name: &str, folders: &[PathBuf]) -> Option<Library> {
    let load = |path: &OsStr| {
        // SAFETY: these are NVIDIA's libraries, whose initialisers have no preconditions.
        unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.ok()
    };
    load(OsStr::new(name)).or_else(|| {
        folders.iter().map(|dir| dir.join(name)).filter(|path| path.is_file()).find_map(|path| load(path.as_os_str()))
    })
}

/// `cudaPitchedPtr`.
#[repr(C)]
struct PitchedPtr {
    ptr: *mut c_void,
    pitch: usize,
    xsize: usize,
    ysize: usize,
}

/// `cudaPos` and `cudaExtent`: x and width in bytes, y and height in rows, z and depth in slices.
#[repr(C)]
struct Triple {
    x: usize,
    y: usize,
    z: usize,
}

/// `cudaMemcpy3DParms`.
#[repr(C)]
struct Memcpy3D {
    src_array: *mut c_void,
    src_pos: Triple,
    src_ptr: PitchedPtr,
    dst_array: *mut c_void,
    dst_pos: Triple,
    dst_ptr: PitchedPtr,
    extent: Triple,
    kind: c_int,
}

/// `cudaMemcpyHostToDevice`.
const HOST_TO_DEVICE: c_int = 1;
/// `cudaMemcpyDeviceToHost`.
const DEVICE_TO_HOST: c_int = 2;
/// `cudaMemcpyDeviceToDevice`.
const DEVICE_TO_DEVICE: c_int = 3;

/// A box within a three-dimensional layout of bytes: rows of `row_bytes`, slices of `rows` rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct BoxCopy {
    /// Bytes from one row to the next.
    pub row_bytes: usize,
    /// Rows from one slice to the next.
    pub rows: usize,
    /// First row of the source.
    pub from_row: usize,
    /// First row of the destination.
    pub to_row: usize,
    /// Bytes copied of each row.
    pub width: usize,
    /// Rows copied of each slice.
    pub height: usize,
    /// Slices.
    pub depth: usize,
}

/// The CUDA runtime.
pub(in crate::engine) struct Cuda {
    malloc: unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int,
    free: unsafe extern "C" fn(*mut c_void) -> c_int,
    host_alloc: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int,
    free_host: unsafe extern "C" fn(*mut c_void) -> c_int,
    memset: unsafe extern "C" fn(*mut c_void, c_int, usize) -> c_int,
    memcpy: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int) -> c_int,
    memcpy_3d: unsafe extern "C" fn(*const Memcpy3D) -> c_int,
    device_synchronize: unsafe extern "C" fn() -> c_int,
    mem_get_info: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Cuda {
    /// Opens the runtime on first use.
    ///
    /// # Errors
    /// When it is missing.
    pub fn get() -> Result<&'static Self, EngineError> {
        static CUDA: OnceLock<Cuda> = OnceLock::new();
        if let Some(cuda) = CUDA.get() {
            return Ok(cuda);
        }
        load_libraries(Device::Cuda)?;
        let library = open(CUDA_RUNTIME, &library_folders()?).ok_or_else(|| missing(Device::Cuda, CUDA_RUNTIME))?;
        let cuda = Self::resolve(&library)
            .map_err(|e| EngineError::Library(format!("{CUDA_RUNTIME} is not a CUDA 13 runtime: {e}")))?;
        std::mem::forget(library);
        Ok(CUDA.get_or_init(|| cuda))
    }

    fn resolve(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: the names and signatures are those of CUDA 13's cuda_runtime_api.h; the library is never closed.
        unsafe {
            Ok(Self {
                malloc: *library.get(b"cudaMalloc\0")?,
                free: *library.get(b"cudaFree\0")?,
                host_alloc: *library.get(b"cudaHostAlloc\0")?,
                free_host: *library.get(b"cudaFreeHost\0")?,
                memset: *library.get(b"cudaMemset\0")?,
                memcpy: *library.get(b"cudaMemcpy\0")?,
                memcpy_3d: *library.get(b"cudaMemcpy3D\0")?,
                device_synchronize: *library.get(b"cudaDeviceSynchronize\0")?,
                mem_get_info: *library.get(b"cudaMemGetInfo\0")?,
                get_error_string: *library.get(b"cudaGetErrorString\0")?,
            })
        }
    }

    fn check(&self, call: &str, status: c_int) -> Result<(), EngineError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a static text for every number.
        let text = unsafe { CStr::from_ptr((self.get_error_string)(status)) };
        Err(EngineError::Runtime { doing: call.to_owned(), message: text.to_string_lossy().into_owned() })
    }

    /// Free bytes of the device, and all that it has.
    pub fn memory(&self) -> Result<(u64, u64), EngineError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        self.check("cudaMemGetInfo", unsafe { (self.mem_get_info)(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Waits for everything that was started.
    pub fn synchronize(&self) -> Result<(), EngineError> {
        // SAFETY: no arguments.
        self.check("cudaDeviceSynchronize", unsafe { (self.device_synchronize)() })
    }
}

/// Memory of the device, zeroed at first.
pub(in crate::engine) struct DeviceMemory {
    cuda: &'static Cuda,
    data: NonNull<c_void>,
    bytes: usize,
    /// Whether a copy may still be under way.
    busy: bool,
}

// SAFETY: device memory belongs to the process, not to a thread.
unsafe impl Send for DeviceMemory {}

impl DeviceMemory {
    pub fn new(bytes: usize) -> Result<Self, EngineError> {
        let cuda = Cuda::get()?;
        let mut data = ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        cuda.check("cudaMalloc", unsafe { (cuda.malloc)(&mut data, bytes.max(1)) })?;
        let data = NonNull::new(data).expect("cudaMalloc gives memory when it reports success");
        let memory = Self { cuda, data, bytes, busy: true };
        // SAFETY: the memory was just allocated with this length.
        cuda.check("cudaMemset", unsafe { (cuda.memset)(data.as_ptr(), 0, bytes) })?;
        Ok(memory)
    }

    /// Address of a byte.
    pub fn at(&self, offset: usize) -> *mut c_void {
        assert!(offset <= self.bytes);
        // SAFETY: within the allocation.
        unsafe { self.data.as_ptr().byte_add(offset) }
    }

    /// Starts to set bytes to 0.
    pub fn clear(&mut self, offset: usize, bytes: usize) -> Result<(), EngineError> {
        assert!(offset + bytes <= self.bytes);
        self.busy = true;
        // SAFETY: within the allocation.
        self.cuda.check("cudaMemset", unsafe { (self.cuda.memset)(self.at(offset), 0, bytes) })
    }

    /// Starts a copy between two boxes of rows that do not overlap.
    pub fn copy_rows(&mut self, copy: BoxCopy) -> Result<(), EngineError> {
        let BoxCopy { row_bytes, rows, from_row, to_row, width, height, depth } = copy;
        assert!(width <= row_bytes && from_row.max(to_row) + height <= rows && depth * rows * row_bytes <= self.bytes);
        assert!(from_row.abs_diff(to_row) >= height, "source and destination overlap");
        let whole = || PitchedPtr { ptr: self.data.as_ptr(), pitch: row_bytes, xsize: row_bytes, ysize: rows };
        let parameters = Memcpy3D {
            src_array: ptr::null_mut(),
            src_pos: Triple { x: 0, y: from_row, z: 0 },
            src_ptr: whole(),
            dst_array: ptr::null_mut(),
            dst_pos: Triple { x: 0, y: to_row, z: 0 },
            dst_ptr: whole(),
            extent: Triple { x: width, y: height, z: depth },
            kind: DEVICE_TO_DEVICE,
        };
        self.busy = true;
        // SAFETY: both boxes are within the allocation and apart from each other, as asserted.
        self.cuda.check("cudaMemcpy3D", unsafe { (self.cuda.memcpy_3d)(&parameters) })
    }

    /// Copies bytes to main memory and waits for them.
    pub fn read(&mut self, offset: usize, to: &mut [u8]) -> Result<(), EngineError> {
        assert!(offset + to.len() <= self.bytes);
        // SAFETY: both ends are within their memory, and the call returns when the bytes are there.
        let status = unsafe { (self.cuda.memcpy)(to.as_mut_ptr().cast(), self.at(offset), to.len(), DEVICE_TO_HOST) };
        self.cuda.check("cudaMemcpy", status)
    }

    /// Copies bytes from main memory and waits until they are there.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), EngineError> {
        assert!(offset + from.len() <= self.bytes);
        // The call returns when the bytes were read, which may be before they have arrived.
        self.busy = true;
        // SAFETY: both ends are within their memory.
        let status = unsafe { (self.cuda.memcpy)(self.at(offset), from.as_ptr().cast(), from.len(), HOST_TO_DEVICE) };
        self.cuda.check("cudaMemcpy", status)?;
        self.settle()
    }

    /// Waits for the copies that were started.
    pub fn settle(&mut self) -> Result<(), EngineError> {
        if std::mem::take(&mut self.busy) {
            self.cuda.synchronize()?;
        }
        Ok(())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by cudaMalloc and freed once; cudaFree waits for work that uses it.
        let status = unsafe { (self.cuda.free)(self.data.as_ptr()) };
        if let Err(error) = self.cuda.check("cudaFree", status) {
            tracing::warn!(%error, "device memory was not freed");
        }
    }
}

/// Floats in page-locked main memory, which the device copies to at full speed.
pub(in crate::engine) struct PinnedFloats {
    cuda: &'static Cuda,
    data: NonNull<f32>,
    length: usize,
}

// SAFETY: owned memory of the process, like a Vec<f32>.
unsafe impl Send for PinnedFloats {}
// SAFETY: shared references only read.
unsafe impl Sync for PinnedFloats {}

impl PinnedFloats {
    pub fn new(length: usize) -> Result<Self, EngineError> {
        let cuda = Cuda::get()?;
        let mut data = ptr::null_mut();
        let bytes = length.max(1) * size_of::<f32>();
        // SAFETY: the pointer is valid for the call; 0 asks for the default kind of page-locked memory.
        cuda.check("cudaHostAlloc", unsafe { (cuda.host_alloc)(&mut data, bytes, 0) })?;
        let data = NonNull::new(data.cast::<f32>()).expect("cudaHostAlloc gives memory when it reports success");
        // SAFETY: the memory was just allocated with this length.
        unsafe { data.write_bytes(0, length) };
        Ok(Self { cuda, data, length })
    }
}

impl Deref for PinnedFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: allocated with this length and initialised.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.length) }
    }
}

impl DerefMut for PinnedFloats {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`, and exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.length) }
    }
}

impl Drop for PinnedFloats {
    fn drop(&mut self) {
        // SAFETY: allocated by cudaHostAlloc and freed once.
        let status = unsafe { (self.cuda.free_host)(self.data.as_ptr().cast()) };
        if let Err(error) = self.cuda.check("cudaFreeHost", status) {
            tracing::warn!(%error, "page-locked memory was not freed");
        }
    }
}
