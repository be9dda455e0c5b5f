//! Activation functions.

use anyhow::{Result, bail, ensure};
use candle_core::Tensor;
use candle_core::cpu::erf::erf_f64;

use super::elementwise::{larger, unary};
use crate::mil::call::Call;
use crate::mil::registry::Registry;
use crate::mil::value::{float_tensor, with_floats};

pub(super) fn register(registry: &mut Registry) {
    registry.computes("relu", |call| unary(call, |x| larger(x, 0.0)));
    registry.computes("relu6", |call| unary(call, |x| x.clamp(0.0, 6.0)));
    registry.computes("clamped_relu", |call| {
        let (alpha, beta) = (call.number("alpha")?, call.number("beta")?);
        unary(call, move |x| if x >= 0.0 { x.min(beta) } else { (alpha * x).min(beta) })
    });
    registry.computes("leaky_relu", |call| {
        let alpha = call.number_or("alpha", 0.01)?;
        unary(call, move |x| if x < 0.0 { alpha * x } else { x })
    });
    registry.computes("thresholded_relu", |call| {
        let alpha = call.number_or("alpha", 1.0)?;
        unary(call, move |x| if x >= alpha { x } else { 0.0 })
    });
    registry.computes("elu", |call| {
        let alpha = call.number_or("alpha", 1.0)?;
        unary(call, move |x| if x < 0.0 { alpha * x.exp_m1() } else { x })
    });
    registry.computes("prelu", prelu);
    registry.computes("gelu", gelu);
    registry.computes("sigmoid", |call| unary(call, sigmoid));
    registry.computes("silu", |call| unary(call, |x| x * sigmoid(x)));
    registry.computes("sigmoid_hard", |call| {
        let (alpha, beta) = (call.number_or("alpha", 0.2)?, call.number_or("beta", 0.5)?);
        unary(call, move |x| (alpha * x + beta).clamp(0.0, 1.0))
    });
    registry.computes("linear_activation", |call| {
        let (alpha, beta) = (call.number("alpha")?, call.number_or("beta", 0.0)?);
        unary(call, move |x| alpha * x + beta)
    });
    registry.computes("scaled_tanh", |call| {
        let (alpha, beta) = (call.number_or("alpha", 1.0)?, call.number_or("beta", 1.0)?);
        unary(call, move |x| alpha * (x * beta).tanh())
    });
    registry.computes("softplus", |call| unary(call, softplus));
    registry.computes("softplus_parametric", softplus_parametric);
    registry.computes("softsign", |call| unary(call, |x| x / (1.0 + x.abs())));
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f32) -> f32 {
    (-x.abs()).exp().ln_1p() + x.max(0.0)
}

/// A parameter with one value for each channel (axis 1), shaped to be broadcast against `x`.
pub(super) fn per_channel(call: &Call<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let values = call.float_tensor(name)?;
    ensure!(
        x.rank() >= 2 && values.elem_count() == x.dims()[1],
        "parameter `{name}` is {:?} for {:?}",
        values.dims(),
        x.dims()
    );
    let mut shape = vec![1; x.rank()];
    shape[1] = x.dims()[1];
    Ok(values.reshape(shape)?)
}

fn prelu(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.float_tensor("x")?;
    let scaled = x.broadcast_mul(&per_channel(call, "alpha", &x)?)?;
    Ok(vec![x.lt(&x.zeros_like()?)?.where_cond(&scaled, &x)?])
}

/// `alpha * ln(1 + exp(beta * x))`
fn softplus_parametric(call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.float_tensor("x")?;
    let inner = x.broadcast_mul(&per_channel(call, "beta", &x)?)?;
    let soft = with_floats(&inner, |values| values.iter().map(|&x| softplus(x)).collect())?;
    let soft = float_tensor(soft, inner.dims())?;
    Ok(vec![soft.broadcast_mul(&per_channel(call, "alpha", &x)?)?])
}

fn gelu(call: &Call<'_>) -> Result<Vec<Tensor>> {
    match call.text_or("mode", "EXACT")? {
        "EXACT" => unary(call, |x| {
            let wide = f64::from(x);
            (0.5 * wide * (1.0 + erf_f64(wide / std::f64::consts::SQRT_2))) as f32
        }),
        "TANH_APPROXIMATION" => unary(call, |x| {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }),
        "SIGMOID_APPROXIMATION" => unary(call, |x| x * sigmoid(1.702 * x)),
        other => bail!("gelu mode `{other}`"),
    }
}
