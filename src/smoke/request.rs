//! What a child is asked: `request.json` and, beside it, the arrays in one file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use half::f16;
use serde::{Deserialize, Serialize};

use super::Case;
use crate::runner::coreml::ComputeUnits;
use crate::runner::{Array, Arrays, Data};

const REQUEST: &str = "request.json";
const ARRAYS: &str = "arrays.bin";

/// What to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Request {
    /// anebake's cache folder.
    pub cache: PathBuf,
    /// What Core ML may use.
    pub units: ComputeUnits,
    /// What to try.
    pub task: Task,
}

/// What to try.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Task {
    /// One package.
    Package {
        /// The package.
        package: PathBuf,
        /// Its calls; with none, functions are compiled and planned only.
        cases: Vec<StoredCase>,
        /// Timed calls of each function.
        repeat: usize,
    },
    /// A whole chain.
    Chain {
        /// The output folder.
        out: PathBuf,
        /// The prompt.
        prompt: Vec<u32>,
        /// Tokens to continue it by.
        tokens: usize,
    },
}

/// A case whose arrays lie in the arrays' file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredCase {
    pub function: String,
    pub inputs: BTreeMap<String, StoredArray>,
    pub expected: BTreeMap<String, StoredArray>,
    pub fresh: bool,
}

/// Where an array lies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredArray {
    shape: Vec<usize>,
    stored: Stored,
    offset: u64,
}

/// How its elements are written, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stored {
    /// Every value is one of float16's.
    F16,
    F32,
    I32,
}

impl Request {
    /// Writes it into a folder that holds nothing else.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        Ok(std::fs::write(folder.join(REQUEST), serde_json::to_vec(self)?)?)
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is missing or malformed.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(REQUEST);
        let text = std::fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("`{}` is no request", path.display()))
    }
}

/// Writes arrays behind one another into the arrays' file of a folder.
pub(super) struct ArrayWriter {
    file: BufWriter<File>,
    offset: u64,
}

impl ArrayWriter {
    /// Begins the file of `folder`.
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let path = folder.join(ARRAYS);
        let file = File::create(&path).with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(Self { file: BufWriter::new(file), offset: 0 })
    }

    /// Writes the arrays of a case.
    pub(super) fn case(&mut self, case: &Case) -> Result<StoredCase> {
        self.call(&case.function, &case.inputs, &case.expected, case.fresh)
    }

    /// Writes the arrays of a call.
    pub(super) fn call(
        &mut self,
        function: &str,
        inputs: &Arrays,
        expected: &Arrays,
        fresh: bool,
    ) -> Result<StoredCase> {
        let mut all = |arrays: &Arrays| -> Result<BTreeMap<String, StoredArray>> {
            arrays.iter().map(|(name, array)| Ok((name.clone(), self.array(array)?))).collect()
        };
        Ok(StoredCase { function: function.to_owned(), inputs: all(inputs)?, expected: all(expected)?, fresh })
    }

    fn array(&mut self, array: &Array) -> Result<StoredArray> {
        let (stored, bytes): (Stored, Vec<u8>) = match &array.data {
            Data::Int(values) => (Stored::I32, values.iter().flat_map(|value| value.to_le_bytes()).collect()),
            Data::Float(_) | Data::Held(_) => {
                let values = array.floats()?;
                let exact = |value: &f32| f16::from_f32(*value).to_f32().to_bits() == value.to_bits();
                if values.iter().all(exact) {
                    (Stored::F16, values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect())
                } else {
                    (Stored::F32, values.iter().flat_map(|value| value.to_le_bytes()).collect())
                }
            }
        };
        self.file.write_all(&bytes)?;
        let offset = self.offset;
        self.offset += bytes.len() as u64;
        Ok(StoredArray { shape: array.shape.clone(), stored, offset })
    }

    /// Ends the file.
    pub(super) fn finish(mut self) -> Result<()> {
        Ok(self.file.flush()?)
    }
}

/// Reads arrays from the arrays' file of a folder.
pub(super) struct ArrayReader(memmap2::Mmap);

impl ArrayReader {
    /// Opens the file of `folder`.
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let path = folder.join(ARRAYS);
        let file = File::open(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
        // SAFETY: the map is read only; the file is written once, before anyone reads it.
        Ok(Self(unsafe { memmap2::Mmap::map(&file) }?))
    }

    /// A case with its arrays.
    ///
    /// # Errors
    /// The file is too short.
    pub(super) fn case(&self, case: &StoredCase) -> Result<Case> {
        let all = |arrays: &BTreeMap<String, StoredArray>| -> Result<Arrays> {
            arrays.iter().map(|(name, array)| Ok((name.clone(), self.array(array)?))).collect()
        };
        let StoredCase { function, inputs, expected, fresh } = case;
        Ok(Case { function: function.clone(), inputs: all(inputs)?, expected: all(expected)?, fresh: *fresh })
    }

    fn array(&self, array: &StoredArray) -> Result<Array> {
        let width = if array.stored == Stored::F16 { 2 } else { 4 };
        let size = array.shape.iter().try_fold(width, |bytes: usize, size| bytes.checked_mul(*size));
        let bytes = usize::try_from(array.offset)
            .ok()
            .zip(size)
            .and_then(|(start, size)| self.0.get(start..start.checked_add(size)?));
        let bytes = bytes.context("the arrays' file is too short")?;
        let words = || bytes.as_chunks::<4>().0.iter();
        let data = match array.stored {
            Stored::F16 => {
                Data::Float(bytes.as_chunks::<2>().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect())
            }
            Stored::F32 => Data::Float(words().map(|bytes| f32::from_le_bytes(*bytes)).collect()),
            Stored::I32 => Data::Int(words().map(|bytes| i32::from_le_bytes(*bytes)).collect()),
        };
        ensure!(!array.shape.is_empty() || !bytes.is_empty(), "an array without elements");
        Ok(Array { shape: array.shape.clone(), data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_and_every_kind_of_array_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let arrays =
            |values: &[f32]| Arrays::from([("x".to_owned(), Array::float(&[1, values.len()], values.to_vec()))]);
        let mut inputs = arrays(&[1.5, -65504.0, 6.1e-5]);
        inputs.insert("position".to_owned(), Array::int(&[1], vec![-7]));
        let cases = [
            Case { function: "decode".into(), inputs, expected: arrays(&[0.1, f32::INFINITY]), fresh: true },
            Case {
                function: "prefill".into(),
                inputs: arrays(&[f32::NEG_INFINITY]),
                expected: arrays(&[0.5]),
                fresh: false,
            },
        ];
        let mut writer = ArrayWriter::new(folder.path()).unwrap();
        let stored: Vec<StoredCase> = cases.iter().map(|case| writer.case(case).unwrap()).collect();
        writer.finish().unwrap();
        let request = Request {
            cache: "cache".into(),
            units: ComputeUnits::All,
            task: Task::Package { package: "a.mlpackage".into(), cases: stored, repeat: 3 },
        };
        request.write(folder.path()).unwrap();
        let read = Request::read(folder.path()).unwrap();
        assert_eq!(read, request);
        let Task::Package { cases: stored, .. } = read.task else { panic!("another task") };
        let reader = ArrayReader::new(folder.path()).unwrap();
        let back: Vec<Case> = stored.iter().map(|case| reader.case(case).unwrap()).collect();
        assert_eq!(back, cases);
        std::fs::write(folder.path().join(ARRAYS), [0; 5]).unwrap();
        assert!(ArrayReader::new(folder.path()).unwrap().case(&stored[0]).is_err());
    }

    #[test]
    fn what_is_no_request_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Request::read(folder.path()).unwrap_err().to_string().starts_with("cannot read"));
        std::fs::write(folder.path().join(REQUEST), "{\"cache\":1}").unwrap();
        assert!(Request::read(folder.path()).unwrap_err().to_string().ends_with("is no request"));
    }
}
