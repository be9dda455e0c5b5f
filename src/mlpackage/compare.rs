//! How two packages differ: program, and value by value.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use super::Package;
use super::blob::BlobDtype;
use super::inventory::BlobUse;
use crate::error::{Fault, OrFault};

/// A value of one package that the other lacks, or holds with other bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ValueDifference {
    /// Name of the op's output; `function/output` where an earlier function holds another value under that name.
    pub name: String,
    /// Parameter or attribute.
    pub part: String,
    /// How it differs.
    #[serde(flatten)]
    pub kind: DifferenceKind,
}

/// How a value differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DifferenceKind {
    /// Same dtype and shape, other bytes.
    Bytes {
        /// Bytes that differ.
        differing: u64,
        /// Bytes of the value.
        of: u64,
    },
    /// Another dtype or shape: `left` and `right` as `dtype shape`.
    Form {
        /// In the first package.
        left: String,
        /// In the second package.
        right: String,
    },
    /// Only the first package has it.
    OnlyLeft {
        /// A value of the second package that has, or has in the first package, the very same bytes, dtype and shape:
        /// the two may have been merged.
        same_as: Option<String>,
        /// Whether every element is 1.
        all_ones: bool,
    },
    /// Only the second package has it.
    OnlyRight,
}

/// How two packages differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PackageDifference {
    /// Whether `weight.bin` is the same file, byte for byte.
    pub same_weight_file: bool,
    /// Whether `model.mlmodel` is the same file, byte for byte.
    pub same_model_file: bool,
    /// Op counts that differ, as `function: op left -> right`.
    pub ops: Vec<String>,
    /// Values that differ; values that are equal under the same name are not listed.
    pub values: Vec<ValueDifference>,
}

/// Compares two packages.
///
/// # Errors
/// One of them is malformed.
pub fn compare(left: &Package, right: &Package) -> Result<PackageDifference> {
    let (left_uses, right_uses) = (by_name(left)?, by_name(right)?);
    let mut values = Vec::new();
    for ((name, part), used) in &left_uses {
        let kind = match right_uses.get(&(name.clone(), part.clone())) {
            None => Some(only_left(left, (name, used), &left_uses, right, &right_uses)),
            Some(other) if (used.entry.dtype, &used.shape) != (other.entry.dtype, &other.shape) => {
                Some(DifferenceKind::Form { left: form(used), right: form(other) })
            }
            Some(other) => {
                let (a, b) = (used.entry.data(left.weights()), other.entry.data(right.weights()));
                let differing = if a == b { 0 } else { a.iter().zip(b).filter(|(x, y)| x != y).count() as u64 };
                (differing > 0).then_some(DifferenceKind::Bytes { differing, of: used.entry.size })
            }
        };
        values.extend(kind.map(|kind| ValueDifference { name: name.clone(), part: part.clone(), kind }));
    }
    let missing = right_uses.keys().filter(|key| !left_uses.contains_key(*key));
    values.extend(missing.map(|(name, part)| ValueDifference {
        name: name.clone(),
        part: part.clone(),
        kind: DifferenceKind::OnlyRight,
    }));
    Ok(PackageDifference {
        same_weight_file: left.weights() == right.weights(),
        same_model_file: model_bytes(left)? == model_bytes(right)?,
        ops: op_differences(left, right)?,
        values,
    })
}

/// The values of a package's blob file by [`ValueDifference::name`] and part.
pub type Uses = BTreeMap<(String, String), BlobUse>;

/// The values of a package, those that functions share listed once.
///
/// # Errors
/// The package is malformed.
pub fn by_name(package: &Package) -> Result<Uses> {
    let mut uses = Uses::new();
    for used in package.blobs()? {
        let key = (used.output.clone(), used.slot.clone());
        match uses.get(&key) {
            Some(first) if !same_value((package, first), (package, &used)) => {
                uses.insert((format!("{}/{}", used.function, used.output), used.slot.clone()), used);
            }
            Some(_) => {}
            None => {
                uses.insert(key, used);
            }
        }
    }
    Ok(uses)
}

/// Whether two values have the same dtype, shape and bytes.
pub fn same_value(left: (&Package, &BlobUse), right: (&Package, &BlobUse)) -> bool {
    (left.1.entry.dtype, &left.1.shape) == (right.1.entry.dtype, &right.1.shape)
        && left.1.entry.data(left.0.weights()) == right.1.entry.data(right.0.weights())
}

fn model_bytes(package: &Package) -> Result<Vec<u8>> {
    let path = package.model_path();
    std::fs::read(path).or_fault(|| Fault::input(format!("cannot read `{}`", path.display())))
}

fn form(used: &BlobUse) -> String {
    format!("{} {:?}", used.entry.dtype.as_str(), used.shape)
}

fn only_left(
    left: &Package,
    (name, used): (&String, &BlobUse),
    own: &Uses,
    right: &Package,
    others: &Uses,
) -> DifferenceKind {
    let twin = |key: &(String, String)| {
        let own_twin = own.get(key).is_some_and(|twin| same_value((left, twin), (left, used)));
        key.0 != *name && (own_twin || same_value((right, &others[key]), (left, used)))
    };
    let same_as = others.keys().find(|key| twin(key)).map(|(name, part)| format!("{name}.{part}"));
    let data = used.entry.data(left.weights());
    let one: &[u8] = match used.entry.dtype {
        BlobDtype::Float16 => &[0x00, 0x3c],
        BlobDtype::Float32 => &[0x00, 0x00, 0x80, 0x3f],
        _ => &[],
    };
    let all_ones = !one.is_empty() && data.chunks_exact(one.len()).all(|element| element == one);
    DifferenceKind::OnlyLeft { same_as, all_ones }
}

fn op_differences(left: &Package, right: &Package) -> Result<Vec<String>> {
    let (left, right) = (left.functions()?, right.functions()?);
    let mut list = Vec::new();
    for function in &left {
        let Some(other) = right.iter().find(|other| other.name == function.name) else {
            list.push(format!("function `{}` is only in the first", function.name));
            continue;
        };
        let mut kinds: Vec<&String> = function.ops.keys().chain(other.ops.keys()).collect();
        kinds.sort();
        kinds.dedup();
        for kind in kinds {
            let count = |ops: &BTreeMap<String, usize>| ops.get(kind).copied().unwrap_or_default();
            let (a, b) = (count(&function.ops), count(&other.ops));
            if a != b {
                list.push(format!("{}: {kind} {a} -> {b}", function.name));
            }
        }
    }
    let added = right.iter().filter(|other| left.iter().all(|function| function.name != other.name));
    list.extend(added.map(|other| format!("function `{}` is only in the second", other.name)));
    Ok(list)
}
