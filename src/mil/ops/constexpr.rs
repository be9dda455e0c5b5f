//! Constants that are stored compressed.

use std::sync::Arc;

use anyhow::{Context, Result, bail};

use crate::mil::Arithmetic;
use crate::mil::call::Call;
use crate::mil::constant::{Blockwise, Constant, Stored};
use crate::mil::value::{Dtype, Value, floats};

/// Decompresses lazily: gives a constant that reads what it is made of when it is used.
pub(in crate::mil) type Decompress = fn(&Call<'_>) -> Result<Constant>;

/// The constexpr op called `name`.
pub(in crate::mil) fn find(name: &str) -> Option<Decompress> {
    Some(match name {
        "constexpr_blockwise_shift_scale" => blockwise_shift_scale,
        _ => return None,
    })
}

/// The constant of a parameter.
fn constant(call: &Call<'_>, name: &str) -> Result<Arc<Constant>> {
    match call.value(name)? {
        Value::Constant(constant) => Ok(Arc::clone(constant)),
        _ => bail!("parameter `{name}` is no constant"),
    }
}

/// Whether a result is rounded to float16.
fn rounds(call: &Call<'_>, dtype: Dtype) -> bool {
    call.arithmetic == Arithmetic::Fp16 && dtype == Dtype::F16
}

/// `scale * (data - offset)`, in blocks of `data.shape / scale.shape`.
fn blockwise_shift_scale(call: &Call<'_>) -> Result<Constant> {
    let (data, scale) = (constant(call, "data")?, constant(call, "scale")?);
    let offset = call.optional_tensor("offset")?.map(|offset| floats(&offset.to_dtype(candle_core::DType::F32)?));
    let shape = data.shape().to_vec();
    let dtype = call.outputs.first().context("it has no output")?.dtype;
    let scales = floats(&scale.tensor()?)?;
    let blockwise = Blockwise::new(data, scales, offset.transpose()?, scale.shape().to_vec(), rounds(call, dtype))?;
    Constant::new(dtype, shape, Stored::Blockwise(blockwise))
}
