//! An output beside the reference's.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::gate::verdict::cosine;
use crate::runner::{Array, Arrays, Data};

/// How far an output is from the reference's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// The output.
    pub output: String,
    /// Cosine of the two; absent where one has no direction: it is all zero, or not finite.
    pub cosine: Option<f64>,
    /// Largest difference of two finite values.
    pub largest_error: f32,
    /// Values that are NaN or infinite, and are finite in the reference.
    pub not_finite: usize,
}

impl Comparison {
    /// Compares a call's outputs with those of the reference.
    ///
    /// # Errors
    /// An output is missing, or has another shape.
    pub fn of_all(outputs: &Arrays, expected: &Arrays) -> Result<Vec<Self>> {
        expected
            .iter()
            .map(|(name, expected)| match outputs.get(name) {
                Some(output) => Self::new(name, output, expected),
                None => bail!("there is no output `{name}`"),
            })
            .collect()
    }

    fn new(name: &str, output: &Array, expected: &Array) -> Result<Self> {
        if output.shape != expected.shape {
            bail!("output `{name}` has shape {:?}, not {:?}", output.shape, expected.shape);
        }
        let (output, expected) = (floats(output)?, floats(expected)?);
        let pairs = || output.iter().zip(&expected);
        let errors = pairs().map(|(a, b)| (a - b).abs()).filter(|error| error.is_finite());
        Ok(Self {
            output: name.to_owned(),
            cosine: cosine(&output, &expected),
            largest_error: errors.fold(0.0, f32::max),
            not_finite: pairs().filter(|(a, b)| !a.is_finite() && b.is_finite()).count(),
        })
    }
}

fn floats(array: &Array) -> Result<Vec<f32>> {
    Ok(match &array.data {
        Data::Int(values) => values.iter().map(|&value| value as f32).collect(),
        Data::Float(_) | Data::Held(_) => array.floats()?.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direction_distance_and_what_is_not_finite_are_told_apart() {
        let compare = |output: [f32; 2], expected: [f32; 2]| {
            let array = |values: [f32; 2]| Arrays::from([("y".to_owned(), Array::float(&[2], values.to_vec()))]);
            Comparison::of_all(&array(output), &array(expected)).unwrap().remove(0)
        };
        let turned = compare([0.0, 2.0], [2.0, 0.0]);
        assert_eq!((turned.cosine, turned.largest_error, turned.not_finite), (Some(0.0), 2.0, 0));
        let same = compare([3.0, 4.0], [3.0, 4.5]);
        assert!(same.cosine.unwrap() > 0.99 && same.largest_error == 0.5);
        let broken = compare([f32::NAN, 1.0], [1.0, 1.25]);
        assert_eq!((broken.cosine, broken.largest_error, broken.not_finite), (None, 0.25, 1));
        let zeros = compare([0.0, 0.0], [0.0, 0.0]);
        assert_eq!((zeros.cosine, zeros.largest_error, zeros.not_finite), (None, 0.0, 0));
    }

    #[test]
    fn outputs_must_be_there_in_their_shape() {
        let expected = Arrays::from([("y".to_owned(), Array::int(&[2], vec![1, 2]))]);
        let told = |outputs: &Arrays| Comparison::of_all(outputs, &expected).unwrap_err().to_string();
        assert_eq!(told(&Arrays::new()), "there is no output `y`");
        let other = Arrays::from([("y".to_owned(), Array::int(&[1, 2], vec![1, 2]))]);
        assert_eq!(told(&other), "output `y` has shape [1, 2], not [2]");
    }
}
