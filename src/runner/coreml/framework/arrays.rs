//! Multi-arrays: IOSurface-backed where they hold float16, so that no processor needs a copy.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use block2::RcBlock;
use half::f16;
use objc2::AnyThread;
use objc2::rc::Retained;
use objc2_core_foundation::{CFDictionary, CFRetained, CFString, CFType};
use objc2_core_ml::{MLMultiArray, MLMultiArrayDataType};
use objc2_core_video::{
    CVPixelBuffer, CVPixelBufferCreate, CVPixelBufferGetBytesPerRow, CVPixelBufferGetHeight,
    kCVPixelBufferIOSurfacePropertiesKey, kCVPixelFormatType_OneComponent16Half, kCVReturnSuccess,
};
use objc2_foundation::{NSArray, NSInteger, NSNumber};

use super::super::layout::Layout;
use super::{failed, guarded};
use crate::runner::{Array, Data, Held, OnDevice};

/// A multi-array.
pub(super) struct DeviceArray {
    array: Retained<MLMultiArray>,
    shape: Vec<usize>,
}

// SAFETY: Core ML lets an array be used on any thread, one at a time; see the next line.
unsafe impl Send for DeviceArray {}
// SAFETY: it is written only while it has one owner ([`Pool`] gives out no other); those who share it only read, each
// read through a handler of its own. Reference counts are atomic.
unsafe impl Sync for DeviceArray {}

impl OnDevice for DeviceArray {
    fn read(&self) -> Result<Vec<f32>> {
        guarded("read an array", || match self.data()? {
            Data::Float(values) => Ok(values),
            Data::Int(_) | Data::Held(_) => anyhow::bail!("integers where floats were expected"),
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl DeviceArray {
    /// A new array of zeros.
    pub(super) fn new(shape: &[usize], dtype: MLMultiArrayDataType) -> Result<Self> {
        let array = match surface(shape) {
            Some(array) if dtype == MLMultiArrayDataType::Float16 => array,
            _ => plain(shape, dtype)?,
        };
        Ok(Self { array, shape: shape.to_vec() })
    }

    /// One that Core ML made.
    pub(super) fn of(array: Retained<MLMultiArray>) -> Self {
        // SAFETY: a getter.
        let sizes = unsafe { array.shape() };
        let shape = numbers(&sizes);
        Self { array, shape }
    }

    /// Core ML's object.
    pub(super) fn object(&self) -> &MLMultiArray {
        &self.array
    }

    /// Shape.
    pub(super) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// As an array of the runner's interface: floats stay where they are.
    pub(super) fn shared(this: Arc<Self>) -> Result<Array> {
        // SAFETY: a getter.
        let dtype = unsafe { this.array.dataType() };
        let shape = this.shape.clone();
        let data = match dtype {
            MLMultiArrayDataType::Float16 | MLMultiArrayDataType::Float32 => Data::Held(Held::new(this)),
            _ => this.data()?,
        };
        Ok(Array { shape, data })
    }

    /// Its values.
    fn data(&self) -> Result<Data> {
        // SAFETY: getters.
        let (dtype, strides) = unsafe { (self.array.dataType(), numbers(&self.array.strides())) };
        let layout = Layout { shape: self.shape.clone(), strides };
        Ok(match dtype {
            MLMultiArrayDataType::Float16 => {
                Data::Float(self.gather(&layout, |bits: u16| f16::from_bits(bits).to_f32())?)
            }
            MLMultiArrayDataType::Float32 => Data::Float(self.gather(&layout, |value: f32| value)?),
            MLMultiArrayDataType::Int32 => Data::Int(self.gather(&layout, |value: i32| value)?),
            other => anyhow::bail!("an array of Core ML's data type {} is not read", other.0),
        })
    }

    /// All elements, row-major. `T` is what the array holds.
    fn gather<T: Copy, V>(&self, layout: &Layout, value: impl Fn(T) -> V) -> Result<Vec<V>> {
        let result = Mutex::new(None);
        let handler = RcBlock::new(|bytes: NonNull<c_void>, size: NSInteger| {
            let gathered = self.check::<T>(layout, size).map(|()| {
                let mut values = Vec::with_capacity(layout.count());
                layout.pieces(|range, first, step| {
                    values.extend(range.enumerate().map(|(index, _)| {
                        // SAFETY: `check` found the whole layout inside the buffer, which holds `T`s.
                        value(unsafe { bytes.cast::<T>().add(first + index * step).read() })
                    }));
                });
                values
            });
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(gathered);
        });
        // SAFETY: the block is called before the call returns, if at all.
        unsafe { self.array.getBytesWithHandler(&handler) };
        drop(handler);
        result.into_inner().unwrap_or_else(PoisonError::into_inner).context("Core ML did not show the array's bytes")?
    }

    /// Writes all elements, row-major. `T` is what the array holds.
    fn scatter<T: Copy>(&self, value: impl Fn(usize) -> T) -> Result<()> {
        let result = Mutex::new(None);
        let handler = RcBlock::new(|bytes: NonNull<c_void>, size: NSInteger, strides: NonNull<NSArray<NSNumber>>| {
            // SAFETY: an object that lives during the call.
            let strides = numbers(unsafe { strides.as_ref() });
            let layout = Layout { shape: self.shape.clone(), strides };
            let written = self.check::<T>(&layout, size).map(|()| {
                layout.pieces(|range, first, step| {
                    for (index, element) in range.enumerate() {
                        // SAFETY: `check` found the whole layout inside the buffer, which holds `T`s.
                        unsafe { bytes.cast::<T>().add(first + index * step).write(value(element)) };
                    }
                });
            });
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(written);
        });
        // SAFETY: the block is called before the call returns, if at all.
        unsafe { self.array.getMutableBytesWithHandler(&handler) };
        drop(handler);
        result.into_inner().unwrap_or_else(PoisonError::into_inner).context("Core ML did not show the array's bytes")?
    }

    /// Whether a layout of `T`s lies inside a buffer of `size` bytes, or, where it is larger, in the pixel buffer behind it.
    fn check<T>(&self, layout: &Layout, size: NSInteger) -> Result<()> {
        // SAFETY: getters.
        let pixels = unsafe { self.array.pixelBuffer() };
        let behind = pixels.map_or(0, |pixels| CVPixelBufferGetBytesPerRow(&pixels) * CVPixelBufferGetHeight(&pixels));
        let held = usize::try_from(size).unwrap_or_default().max(behind);
        let needed = layout.span().and_then(|elements| elements.checked_mul(size_of::<T>()));
        ensure!(
            needed.is_some_and(|needed| needed <= held),
            "Core ML shows an array of shape {:?} and strides {:?} in {held} bytes",
            layout.shape,
            layout.strides
        );
        Ok(())
    }

    /// Puts values in; only their one owner may.
    pub(super) fn write(&mut self, data: &Array) -> Result<()> {
        ensure!(self.shape == data.shape, "shape {:?} for an array of shape {:?}", data.shape, self.shape);
        let count: usize = self.shape.iter().product();
        // SAFETY: a getter.
        match (unsafe { self.array.dataType() }, &data.data) {
            (MLMultiArrayDataType::Int32, Data::Int(values)) => {
                ensure!(values.len() == count, "{} values for shape {:?}", values.len(), self.shape);
                self.scatter(|index| values[index])
            }
            (MLMultiArrayDataType::Float16, _) => {
                let values = data.floats()?;
                ensure!(values.len() == count, "{} values for shape {:?}", values.len(), self.shape);
                self.scatter(|index| f16::from_f32(values[index]).to_bits())
            }
            (MLMultiArrayDataType::Float32, _) => {
                let values = data.floats()?;
                ensure!(values.len() == count, "{} values for shape {:?}", values.len(), self.shape);
                self.scatter(|index| values[index])
            }
            (other, _) => anyhow::bail!("an array of Core ML's data type {} is not written", other.0),
        }
    }
}

/// Arrays of one shape and dtype, used again as soon as nobody else holds them.
#[derive(Default)]
pub(super) struct Pool(Vec<Arc<DeviceArray>>);

impl Pool {
    /// One that nobody else holds.
    pub(super) fn take(&mut self, shape: &[usize], dtype: MLMultiArrayDataType) -> Result<Arc<DeviceArray>> {
        let free = self.0.iter_mut().position(|array| Arc::get_mut(array).is_some());
        let array = match free {
            Some(index) => self.0.swap_remove(index),
            None => Arc::new(DeviceArray::new(shape, dtype)?),
        };
        Ok(array)
    }

    /// Gives one back; it is taken again once its other holders let go of it.
    pub(super) fn put(&mut self, array: Arc<DeviceArray>) {
        self.0.push(array);
    }
}

/// The dtype by which the interface of a package spells it.
pub(super) fn dtype(name: &str) -> Result<MLMultiArrayDataType> {
    Ok(match name {
        "fp16" => MLMultiArrayDataType::Float16,
        "fp32" => MLMultiArrayDataType::Float32,
        "int32" => MLMultiArrayDataType::Int32,
        other => anyhow::bail!("Core ML has no array of dtype {other} here"),
    })
}

fn shape_object(shape: &[usize]) -> Retained<NSArray<NSNumber>> {
    let sizes: Vec<_> = shape.iter().map(|&size| NSNumber::new_isize(size as isize)).collect();
    NSArray::from_retained_slice(&sizes)
}

fn numbers(array: &NSArray<NSNumber>) -> Vec<usize> {
    array.iter().map(|number| usize::try_from(number.as_isize()).unwrap_or_default()).collect()
}

fn plain(shape: &[usize], dtype: MLMultiArrayDataType) -> Result<Retained<MLMultiArray>> {
    // SAFETY: a new object.
    let array =
        unsafe { MLMultiArray::initWithShape_dataType_error(MLMultiArray::alloc(), &shape_object(shape), dtype) };
    array.map_err(|error| failed("make an array", &error))
}

/// A float16 array on an IOSurface-backed pixel buffer; its last axis is a row of pixels. None where the system has no such
/// buffer of this size.
fn surface(shape: &[usize]) -> Option<Retained<MLMultiArray>> {
    let (&width, rest) = shape.split_last()?;
    let height = rest.iter().product();
    if width == 0 || height == 0 {
        return None;
    }
    let mut raw: *mut CVPixelBuffer = std::ptr::null_mut();
    // SAFETY: the attribute's key is a constant and its value a dictionary, as documented; the out-pointer is to a local.
    let done = unsafe {
        let empty = CFDictionary::<CFString, CFType>::empty();
        let attributes =
            CFDictionary::<CFString, CFType>::from_slices(&[kCVPixelBufferIOSurfacePropertiesKey], &[empty.as_ref()]);
        CVPixelBufferCreate(
            None,
            width,
            height,
            kCVPixelFormatType_OneComponent16Half,
            Some(attributes.as_opaque()),
            NonNull::from(&mut raw),
        )
    };
    let raw = NonNull::new(raw).filter(|_| done == kCVReturnSuccess)?;
    // SAFETY: the call gave this reference to its caller.
    let buffer = unsafe { CFRetained::from_raw(raw) };
    // SAFETY: the buffer's width and height are those of the shape, as documented.
    Some(unsafe { MLMultiArray::initWithPixelBuffer_shape(MLMultiArray::alloc(), &buffer, &shape_object(shape)) })
}
