//! One execution of an op: its inputs by parameter name, checked as they are asked for.

use anyhow::{Context, Result, bail, ensure};
use candle_core::Tensor;

use super::Arithmetic;
use super::function::{Declared, Parameter, Slots};
use super::value::{Dtype, Value, floats, ints};

/// An op about to be computed.
pub(super) struct Call<'a> {
    /// Its parameters.
    pub parameters: &'a [Parameter],
    /// Values of the function so far.
    pub slots: &'a Slots,
    /// What the program declares for its outputs.
    pub outputs: &'a [Declared],
    /// The arithmetic.
    pub arithmetic: Arithmetic,
    /// Whether a `slice_update` may change its input.
    pub in_place: bool,
}

impl<'a> Call<'a> {
    /// The value of a parameter, `None` where it is not given.
    ///
    /// # Errors
    /// It is given several.
    pub(super) fn optional(&self, name: &str) -> Result<Option<&'a Value>> {
        match self.parameters.iter().find(|parameter| parameter.name == name) {
            None => Ok(None),
            Some(parameter) => match &parameter.sources[..] {
                [source] => Ok(Some(self.slots.value(source)?)),
                several => bail!("parameter `{name}` is given {} values", several.len()),
            },
        }
    }

    /// The value of a parameter.
    pub(super) fn value(&self, name: &str) -> Result<&'a Value> {
        self.optional(name)?.with_context(|| format!("parameter `{name}` is missing"))
    }

    /// The tensors of a variadic parameter.
    pub(super) fn tensors(&self, name: &str) -> Result<Vec<Tensor>> {
        let parameter = self.parameters.iter().find(|parameter| parameter.name == name);
        let parameter = parameter.with_context(|| format!("parameter `{name}` is missing"))?;
        parameter.sources.iter().map(|source| self.slots.value(source)?.tensor()).collect()
    }

    /// The tensor of a parameter.
    pub(super) fn tensor(&self, name: &str) -> Result<Tensor> {
        self.value(name)?.tensor().with_context(|| format!("parameter `{name}`"))
    }

    /// The tensor of a parameter that must be a float.
    pub(super) fn float_tensor(&self, name: &str) -> Result<Tensor> {
        let value = self.value(name)?;
        ensure!(value.dtype().is_float(), "parameter `{name}` is no float");
        value.tensor()
    }

    /// The tensor of a parameter that may be absent.
    pub(super) fn optional_tensor(&self, name: &str) -> Result<Option<Tensor>> {
        self.optional(name)?.map(Value::tensor).transpose()
    }

    /// The dtype of a parameter.
    pub(super) fn dtype(&self, name: &str) -> Result<Dtype> {
        Ok(self.value(name)?.dtype())
    }

    /// Integers of a parameter: a scalar is a list of one.
    pub(super) fn ints(&self, name: &str) -> Result<Vec<i64>> {
        let value = self.value(name)?;
        ensure!(!value.dtype().is_float(), "parameter `{name}` is no integer");
        ensure!(value.shape().len() <= 1, "parameter `{name}` has shape {:?}", value.shape());
        ints(&value.tensor()?)
    }

    /// Integers of a parameter that may be absent.
    pub(super) fn optional_ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        self.optional(name)?.map(|_| self.ints(name)).transpose()
    }

    /// Integers of a parameter that must be sizes: none is negative.
    pub(super) fn sizes(&self, name: &str) -> Result<Vec<usize>> {
        let sizes = self.ints(name)?;
        let size = |&size: &i64| usize::try_from(size).ok();
        sizes.iter().map(size).collect::<Option<_>>().with_context(|| format!("parameter `{name}` is {sizes:?}"))
    }

    /// The integer of a parameter that must be a size: it is not negative.
    pub(super) fn size(&self, name: &str) -> Result<usize> {
        let size = self.int(name)?;
        usize::try_from(size).ok().with_context(|| format!("parameter `{name}` is {size}"))
    }

    /// The integer of a parameter.
    pub(super) fn int(&self, name: &str) -> Result<i64> {
        match self.ints(name)?[..] {
            [one] => Ok(one),
            ref several => bail!("parameter `{name}` has {} values", several.len()),
        }
    }

    /// The integer of a parameter, or `default`.
    pub(super) fn int_or(&self, name: &str, default: i64) -> Result<i64> {
        self.optional(name)?.map_or(Ok(default), |_| self.int(name))
    }

    /// The number of a parameter.
    pub(super) fn number(&self, name: &str) -> Result<f32> {
        let value = self.value(name)?;
        let tensor = value.tensor()?;
        ensure!(tensor.elem_count() == 1, "parameter `{name}` has {} values", tensor.elem_count());
        Ok(if value.dtype().is_float() { floats(&tensor)?[0] } else { ints(&tensor)?[0] as f32 })
    }

    /// The number of a parameter, or `default`.
    pub(super) fn number_or(&self, name: &str, default: f32) -> Result<f32> {
        self.optional(name)?.map_or(Ok(default), |_| self.number(name))
    }

    /// The bool of a parameter, or `default`.
    pub(super) fn flag_or(&self, name: &str, default: bool) -> Result<bool> {
        self.optional(name)?.map_or(Ok(default), |_| Ok(self.int(name)? != 0))
    }

    /// The bools of a parameter, or `None`.
    pub(super) fn optional_flags(&self, name: &str) -> Result<Option<Vec<bool>>> {
        Ok(self.optional_ints(name)?.map(|values| values.iter().map(|&value| value != 0).collect()))
    }

    /// The string of a parameter.
    pub(super) fn text(&self, name: &str) -> Result<&'a str> {
        match self.value(name)? {
            Value::Text(text) => Ok(text),
            _ => bail!("parameter `{name}` is no string"),
        }
    }

    /// The string of a parameter, or `default`.
    pub(super) fn text_or(&self, name: &str, default: &'a str) -> Result<&'a str> {
        self.optional(name)?.map_or(Ok(default), |_| self.text(name))
    }

    /// `axis` as an index into `rank` axes.
    pub(super) fn axis(&self, axis: i64, rank: usize) -> Result<usize> {
        let from_front = if axis < 0 { axis + rank as i64 } else { axis };
        let found = usize::try_from(from_front).ok().filter(|&axis| axis < rank);
        found.with_context(|| format!("axis {axis} of a value of rank {rank}"))
    }

    /// Axes of a parameter, each once, ascending.
    pub(super) fn axes(&self, name: &str, rank: usize) -> Result<Vec<usize>> {
        let given = self.ints(name)?;
        let mut axes = given.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<Vec<_>>>()?;
        axes.sort_unstable();
        axes.dedup();
        ensure!(axes.len() == given.len(), "parameter `{name}` names an axis twice: {given:?}");
        Ok(axes)
    }
}
