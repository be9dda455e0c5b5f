//! Inputs against the interface, before Core ML sees them: what it says of a wrong one is hard to understand.

use anyhow::{Result, bail};

use crate::mlpackage::inventory::{Feature, FunctionInfo};
use crate::runner::{Array, Arrays, Data};

/// Checks names, shapes and kinds.
///
/// # Errors
/// The first that does not fit, by name.
pub(super) fn check(function: &FunctionInfo, inputs: &Arrays) -> Result<()> {
    for feature in &function.inputs {
        match inputs.get(&feature.name) {
            Some(array) => check_one(feature, array)?,
            None => bail!("function `{}` needs the input `{}`", function.name, feature.name),
        }
    }
    let known = |name: &String| function.inputs.iter().any(|feature| feature.name == *name);
    match inputs.keys().find(|name| !known(name)) {
        Some(name) => bail!("function `{}` has no input `{name}`", function.name),
        None => Ok(()),
    }
}

fn check_one(feature: &Feature, array: &Array) -> Result<()> {
    let same = feature.shape.len() == array.shape.len()
        && feature.shape.iter().zip(&array.shape).all(|(&wanted, &given)| usize::try_from(wanted) == Ok(given));
    if !same {
        bail!("input `{}` has shape {:?}, not {:?}", feature.name, array.shape, feature.shape);
    }
    match (&*feature.dtype, &array.data) {
        ("fp16" | "fp32", Data::Float(_) | Data::Held(_)) | ("int32", Data::Int(_)) => Ok(()),
        ("fp16" | "fp32", Data::Int(_)) => bail!("input `{}` holds integers, not {}", feature.name, feature.dtype),
        ("int32", _) => bail!("input `{}` holds floats, not int32", feature.name),
        (dtype, _) => bail!("input `{}` is of dtype {dtype}, which this runner does not give", feature.name),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn inputs_must_be_those_of_the_function() {
        let feature = |name: &str, dtype: &str, shape: &[i64]| Feature {
            name: name.into(),
            dtype: dtype.into(),
            shape: shape.into(),
        };
        let function = FunctionInfo {
            name: "decode".into(),
            default: true,
            opset: "CoreML8".into(),
            inputs: vec![feature("hidden", "fp16", &[1, 2]), feature("position", "int32", &[1])],
            states: vec![],
            outputs: vec![],
            ops: BTreeMap::new(),
        };
        let (hidden, position) = (Array::float(&[1, 2], vec![0.0; 2]), Array::int(&[1], vec![0]));
        let given = |hidden: Option<&Array>, position: &Array, other: Option<&Array>| {
            let all = [("hidden", hidden), ("position", Some(position)), ("more", other)];
            let inputs = all.into_iter().filter_map(|(name, array)| Some((name.to_owned(), array?.clone()))).collect();
            check(&function, &inputs).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(given(Some(&hidden), &position, None), "");
        assert_eq!(given(None, &position, None), "function `decode` needs the input `hidden`");
        assert_eq!(given(Some(&hidden), &position, Some(&hidden)), "function `decode` has no input `more`");
        let wide = Array::float(&[2, 1], vec![0.0; 2]);
        assert_eq!(given(Some(&wide), &position, None), "input `hidden` has shape [2, 1], not [1, 2]");
        let ints = Array::int(&[1, 2], vec![0; 2]);
        assert_eq!(given(Some(&ints), &position, None), "input `hidden` holds integers, not fp16");
        let float = Array::float(&[1], vec![0.0]);
        assert_eq!(given(Some(&hidden), &float, None), "input `position` holds floats, not int32");
    }
}
