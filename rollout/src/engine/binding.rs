//! Tensors over memory that the engine owns, bound by pointer through ONNX Runtime's C interface.
//!
//! The safe interface of ort 2.0.0-rc.15 cannot do this. `IoBinding::bind_input` clones borrowed tensors (and deadlocks
//! doing so: the clone runs an identity session that binds its own input while holding the lock it then waits for), and
//! `bind_output` refuses any memory that ONNX Runtime did not allocate. The engine needs both ends of the KV cache
//! bound to the same slice of its own arena, and logits written where tokens are drawn from them.
//!
//! The contract that keeps this sound: a [`Bindings`] value keeps no borrow of the memory it was given. Whoever calls
//! [`Bindings::bind_input`] or [`Bindings::bind_output`] promises that the memory outlives every [`Bindings::run`] that
//! comes before the name is bound anew. The callers are the sessions of [`super::stock`] and [`super::packed`], and the
//! small graphs of [`super::device`].

use std::{
    ffi::{CStr, c_void},
    ptr::{self, NonNull},
};

use ort::{
    AsPointer,
    memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType},
    ortsys,
    session::{IoBinding, RunOptions, Session},
    sys,
    value::TensorElementType,
};

use super::EngineError;

/// A tensor over memory that somebody else owns.
struct BorrowedTensor(NonNull<sys::OrtValue>);

impl BorrowedTensor {
    /// # Safety
    /// The memory must be of the kind that `info` describes, and stay valid as long as ONNX Runtime may use the tensor.
    unsafe fn new(info: &MemoryInfo<'_>, memory: &TensorMemory) -> ort::Result<Self> {
        let mut value: *mut sys::OrtValue = ptr::null_mut();
        // SAFETY: the pointers are valid for the call; ONNX Runtime copies the shape and keeps only `data`, for which
        // the caller vouches.
        ortsys![
            unsafe CreateTensorWithDataAsOrtValue(
                info.ptr(),
                memory.data,
                memory.bytes(),
                memory.shape.as_ptr(),
                memory.shape.len(),
                memory.element.into(),
                &mut value
            )?;
            nonNull(value)
        ];
        Ok(Self(value))
    }
}

impl Drop for BorrowedTensor {
    fn drop(&mut self) {
        // SAFETY: the value was created by `new` and is released once; a binding holds its own reference.
        ortsys![unsafe ReleaseValue(self.0.as_ptr())];
    }
}

/// Memory that a tensor is laid over.
#[derive(Debug)]
pub(super) struct TensorMemory {
    /// First byte.
    pub data: *mut c_void,
    /// Row-major.
    pub shape: Vec<i64>,
    element: TensorElementType,
    /// Whether the pointer is one of the device.
    on_device: bool,
}

impl TensorMemory {
    pub fn new(data: *mut c_void, shape: &[usize], element: TensorElementType, on_device: bool) -> Self {
        Self { data, shape: shape.iter().map(|&n| n as i64).collect(), element, on_device }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        let elements = self.shape.iter().product::<i64>() as usize;
        self.element.byte_size(elements).expect("numbers have a size")
    }
}

/// A session's inputs and outputs, bound to memory of the engine.
pub(super) struct Bindings {
    io: IoBinding,
    host: MemoryInfo<'static>,
    device: MemoryInfo<'static>,
}

impl Bindings {
    /// Nothing bound yet. `device` is where tensors marked [`TensorMemory::on_device`] are.
    pub fn new(session: &Session, device: AllocationDevice<'_>) -> ort::Result<Self> {
        Ok(Self {
            io: session.create_binding()?,
            host: MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Device, MemoryType::Default)?,
            device: MemoryInfo::new(device, 0, AllocatorType::Device, MemoryType::Default)?,
        })
    }

    /// Binds an input. On the CPU the memory is read at every run; host memory bound to an input that the graph wants
    /// on another device is copied there now.
    ///
    /// # Safety
    /// The memory must stay valid and unaliased by writers during every [`Bindings::run`] until the name is bound anew.
    pub unsafe fn bind_input(&mut self, name: &CStr, memory: &TensorMemory) -> ort::Result<()> {
        // SAFETY: the caller vouches for the memory.
        let tensor = unsafe { self.tensor(memory)? };
        // SAFETY: the binding and the tensor are alive; the binding takes its own reference to the tensor.
        ortsys![unsafe BindInput(self.io.ptr_mut(), name.as_ptr(), tensor.0.as_ptr())?];
        Ok(())
    }

    /// Binds an output: runs write into the memory.
    ///
    /// # Safety
    /// As for [`Bindings::bind_input`]; nothing else may access the memory during a run, except that one buffer may be
    /// bound to a `past_key_values` input and the `present` output of the same layer.
    pub unsafe fn bind_output(&mut self, name: &CStr, memory: &TensorMemory) -> ort::Result<()> {
        // SAFETY: the caller vouches for the memory.
        let tensor = unsafe { self.tensor(memory)? };
        // SAFETY: as in `bind_input`.
        ortsys![unsafe BindOutput(self.io.ptr_mut(), name.as_ptr(), tensor.0.as_ptr())?];
        Ok(())
    }

    /// Runs the graph and waits for the outputs; without options, with the defaults.
    ///
    /// # Safety
    /// Every bound memory is still valid.
    pub unsafe fn run(&mut self, session: &mut Session, options: Option<&RunOptions>) -> Result<(), EngineError> {
        let options = options.map_or(ptr::null(), AsPointer::ptr);
        // SAFETY: session, binding and options are alive, and the first two belong together; null options are the
        // defaults.
        let result = ortsys![@ort: unsafe RunWithBinding(session.ptr().cast_mut(), options, self.io.ptr()) as Result];
        result.map_err(EngineError::runtime("the graph failed"))
    }

    /// # Safety
    /// As for [`Bindings::bind_input`].
    unsafe fn tensor(&self, memory: &TensorMemory) -> ort::Result<BorrowedTensor> {
        let info = if memory.on_device { &self.device } else { &self.host };
        // SAFETY: the caller vouches for the memory.
        unsafe { BorrowedTensor::new(info, memory) }
    }
}
