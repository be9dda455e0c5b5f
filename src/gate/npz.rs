//! numpy's `.npz`, a zip of `.npy` arrays: as much of it as baselines need.
//!
//! Owns the format. Reads floats (float16, float32, float64), integers and texts (`<U`, `|S`), in C and in Fortran
//! order, little- and big-endian, headers of versions 1 to 3, members stored or deflated. Never runs what a file holds:
//! object arrays, which are pickles, are refused. Memory grows with the bytes that are really there, not with what a
//! header claims.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use half::f16;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

use crate::cache::TempDir;
use crate::error::{Fault, OrFault};

/// What an `.npy` file begins with.
const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// numpy itself refuses longer headers unless told otherwise.
const MAX_HEADER: usize = 10_000;
/// More texts than this are no prompts.
const MAX_TEXTS: usize = 1_000_000;
/// Bytes that are converted at a time.
const CHUNK: usize = 1 << 16;
/// Headers are padded so that the data that follow are aligned to this.
const ALIGNMENT: usize = 64;

/// An array, in C order.
#[derive(Clone, Debug, PartialEq)]
pub struct NpyArray {
    /// Shape; empty for a scalar.
    pub shape: Vec<usize>,
    /// Values, as many as the shape holds.
    pub values: NpyValues,
}

/// Values of an array.
#[derive(Clone, Debug, PartialEq)]
pub enum NpyValues {
    /// float16, float32, and float64 rounded to float32; written as float32.
    Float(Vec<f32>),
    /// Integers of any width; written as int64.
    Int(Vec<i64>),
    /// Texts; written as `<U`.
    Text(Vec<String>),
}

/// An `.npz` file, open for reading.
pub struct NpzFile {
    path: PathBuf,
    archive: ZipArchive<BufReader<File>>,
}

impl NpzFile {
    /// Opens a file.
    ///
    /// # Errors
    /// An input fault that names it: it cannot be opened or is no zip archive.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).or_fault(|| Fault::input(format!("cannot open `{}`", path.display())))?;
        let archive = ZipArchive::new(BufReader::new(file))
            .or_fault(|| Fault::input(format!("`{}` is no `.npz` file, which is a zip archive", path.display())))?;
        Ok(Self { path: path.to_owned(), archive })
    }

    /// Reads the array `name`; `None` where the file has none of that name.
    ///
    /// # Errors
    /// An input fault that names file and array: the member is damaged, or holds what is not read.
    pub fn read(&mut self, name: &str) -> Result<Option<NpyArray>> {
        let member = match self.archive.by_name(&format!("{name}.npy")) {
            Ok(member) => Ok(member),
            Err(ZipError::FileNotFound) => return Ok(None),
            Err(error) => Err(anyhow::Error::from(error)),
        };
        member
            .and_then(|mut member| {
                let size = member.size();
                read(&mut member, size)
            })
            .map(Some)
            .or_fault(|| Fault::input(format!("cannot read `{name}.npy` in `{}`", self.path.display())))
    }
}

/// Writes arrays as an `.npz` file whose bytes are decided by them; the file appears whole or not at all.
///
/// # Errors
/// An input fault that names the file: it cannot be written.
pub fn write(path: &Path, arrays: &[(&str, &NpyArray)]) -> Result<()> {
    write_aside(path, arrays).or_fault(|| Fault::input(format!("cannot write `{}`", path.display())))
}

fn write_aside(path: &Path, arrays: &[(&str, &NpyArray)]) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().context("it has no file name")?;
    let aside = TempDir::new_in(folder)?;
    let built = aside.path().join(name);
    let mut archive = ZipWriter::new(BufWriter::new(File::create(&built)?));
    for (name, array) in arrays {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .large_file(true);
        archive.start_file(format!("{name}.npy"), options)?;
        write_array(&mut archive, array)?;
    }
    let file = archive.finish()?.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(std::fs::rename(&built, path)?)
}

fn write_array(out: &mut impl Write, array: &NpyArray) -> Result<()> {
    let (descr, bytes): (String, Vec<u8>) = match &array.values {
        NpyValues::Float(values) => ("<f4".to_owned(), values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        NpyValues::Int(values) => ("<i8".to_owned(), values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        NpyValues::Text(texts) => {
            let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0).max(1);
            let padded = |text: &String| {
                let points: Vec<u32> = text.chars().map(u32::from).chain(std::iter::repeat(0)).take(width).collect();
                points.into_iter().flat_map(u32::to_le_bytes)
            };
            (format!("<U{width}"), texts.iter().flat_map(padded).collect())
        }
    };
    let shape: Vec<String> = array.shape.iter().map(|size| format!("{size},")).collect();
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", shape.join(" ")).into_bytes();
    let start = MAGIC.len() + 4;
    header.resize((start + header.len() + 1).next_multiple_of(ALIGNMENT) - start - 1, b' ');
    header.push(b'\n');
    out.write_all(MAGIC)?;
    out.write_all(&[1, 0])?;
    out.write_all(&u16::try_from(header.len())?.to_le_bytes())?;
    out.write_all(&header)?;
    Ok(out.write_all(&bytes)?)
}

/// Reads one `.npy` file of `size` bytes.
fn read(input: &mut impl Read, size: u64) -> Result<NpyArray> {
    let mut start = [0; 8];
    input.read_exact(&mut start).context("it is shorter than the start of an `.npy` file")?;
    ensure!(start.starts_with(MAGIC), "it does not begin as an `.npy` file does");
    let length = match start[6] {
        1 => {
            let mut length = [0; 2];
            input.read_exact(&mut length).context("its header is cut off")?;
            (usize::from(u16::from_le_bytes(length)), 10)
        }
        2 | 3 => {
            let mut length = [0; 4];
            input.read_exact(&mut length).context("its header is cut off")?;
            (usize::try_from(u32::from_le_bytes(length))?, 12)
        }
        other => bail!("its format is version {other}; versions 1 to 3 are read"),
    };
    let (length, before) = length;
    ensure!(length <= MAX_HEADER, "its header has {length} bytes; at most {MAX_HEADER} are read");
    let mut header = vec![0; length];
    input.read_exact(&mut header).context("its header is cut off")?;
    let header = std::str::from_utf8(&header).context("its header is no UTF-8")?;
    let Header { dtype, fortran, shape } = Header::parse(header)?;
    let count = shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size));
    let bytes = count.and_then(|count| count.checked_mul(dtype.size()));
    let (Some(count), Some(bytes)) = (count, bytes) else { bail!("shape {shape:?} is too large") };
    let present = size.saturating_sub((before + length) as u64);
    ensure!(
        bytes as u64 == present,
        "it has {present} bytes of data; shape {shape:?} of `{}` takes {bytes}",
        dtype.name
    );
    let values = read_values(input, &dtype, count)?;
    // The checksum of a member is looked at where it ends.
    ensure!(input.read(&mut [0])? == 0, "it goes on behind its data");
    let values = match values {
        values if !fortran || shape.len() < 2 => values,
        NpyValues::Float(values) => NpyValues::Float(from_fortran(&values, &shape)),
        NpyValues::Int(values) => NpyValues::Int(from_fortran(&values, &shape)),
        NpyValues::Text(values) => NpyValues::Text(from_fortran(&values, &shape)),
    };
    Ok(NpyArray { shape, values })
}

fn read_values(input: &mut impl Read, dtype: &Dtype, count: usize) -> Result<NpyValues> {
    let big = dtype.big_endian;
    Ok(match dtype.kind {
        Kind::Float(2) => NpyValues::Float(convert(input, count, big, |bytes| Ok(f16::from_le_bytes(bytes).to_f32()))?),
        Kind::Float(4) => NpyValues::Float(convert(input, count, big, |bytes| Ok(f32::from_le_bytes(bytes)))?),
        Kind::Float(_) => NpyValues::Float(convert(input, count, big, |bytes| Ok(f64::from_le_bytes(bytes) as f32))?),
        Kind::Int { size: 1, signed: true } => {
            NpyValues::Int(convert(input, count, big, |bytes| Ok(i8::from_le_bytes(bytes).into()))?)
        }
        Kind::Int { size: 1, .. } => {
            NpyValues::Int(convert(input, count, big, |bytes| Ok(u8::from_le_bytes(bytes).into()))?)
        }
        Kind::Int { size: 2, signed: true } => {
            NpyValues::Int(convert(input, count, big, |bytes| Ok(i16::from_le_bytes(bytes).into()))?)
        }
        Kind::Int { size: 2, .. } => {
            NpyValues::Int(convert(input, count, big, |bytes| Ok(u16::from_le_bytes(bytes).into()))?)
        }
        Kind::Int { size: 4, signed: true } => {
            NpyValues::Int(convert(input, count, big, |bytes| Ok(i32::from_le_bytes(bytes).into()))?)
        }
        Kind::Int { size: 4, .. } => {
            NpyValues::Int(convert(input, count, big, |bytes| Ok(u32::from_le_bytes(bytes).into()))?)
        }
        Kind::Int { signed: true, .. } => {
            NpyValues::Int(convert(input, count, big, |bytes| Ok(i64::from_le_bytes(bytes)))?)
        }
        Kind::Int { .. } => NpyValues::Int(convert(input, count, big, |bytes| {
            let value = u64::from_le_bytes(bytes);
            i64::try_from(value).with_context(|| format!("{value} is too large"))
        })?),
        Kind::Unicode(width) => NpyValues::Text(texts(input, count, width * 4, |bytes| unicode(bytes, big))?),
        Kind::Bytes(width) => NpyValues::Text(texts(input, count, width, |bytes| {
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            Ok(std::str::from_utf8(&bytes[..end]).context("a text is no UTF-8")?.to_owned())
        })?),
    })
}

/// Reads `count` values of `N` bytes; the bytes of each are handed over in little-endian order.
fn convert<const N: usize, T>(
    input: &mut impl Read,
    count: usize,
    big_endian: bool,
    value: impl Fn([u8; N]) -> Result<T>,
) -> Result<Vec<T>> {
    let mut values = Vec::with_capacity(count.min(CHUNK));
    let mut buffer = vec![0; CHUNK];
    while values.len() < count {
        let now = (count - values.len()).min(CHUNK / N);
        let chunk = &mut buffer[..now * N];
        input.read_exact(chunk).context("its data are cut off")?;
        for bytes in chunk.as_chunks::<N>().0 {
            let mut bytes = *bytes;
            if big_endian {
                bytes.reverse();
            }
            values.push(value(bytes)?);
        }
    }
    Ok(values)
}

fn texts(
    input: &mut impl Read,
    count: usize,
    size: usize,
    text: impl Fn(&[u8]) -> Result<String>,
) -> Result<Vec<String>> {
    ensure!(count <= MAX_TEXTS, "it holds {count} texts; at most {MAX_TEXTS} are read");
    let mut texts = Vec::new();
    let mut buffer = Vec::new();
    for _ in 0..count {
        buffer.clear();
        input.take(size as u64).read_to_end(&mut buffer)?;
        ensure!(buffer.len() == size, "its data are cut off");
        texts.push(text(&buffer)?);
    }
    Ok(texts)
}

/// numpy's `<U`: UCS-4, filled up with zeros.
fn unicode(bytes: &[u8], big_endian: bool) -> Result<String> {
    let points = bytes.as_chunks::<4>().0.iter();
    let points: Vec<u32> =
        points.map(|&bytes| if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }).collect();
    let end = points.iter().rposition(|point| *point != 0).map_or(0, |last| last + 1);
    let character = |&point: &u32| char::from_u32(point).with_context(|| format!("{point:#x} is no character"));
    points[..end].iter().map(character).collect()
}

/// From Fortran order (first index fastest) to C order (last index fastest).
fn from_fortran<T: Clone>(values: &[T], shape: &[usize]) -> Vec<T> {
    let strides: Vec<usize> = shape
        .iter()
        .scan(1, |stride, size| {
            let now = *stride;
            *stride *= size;
            Some(now)
        })
        .collect();
    let mut index = vec![0; shape.len()];
    let mut result = Vec::with_capacity(values.len());
    while result.len() < values.len() {
        let offset: usize = index.iter().zip(&strides).map(|(i, stride)| i * stride).sum();
        result.push(values[offset].clone());
        for (i, size) in index.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < *size {
                break;
            }
            *i = 0;
        }
    }
    result
}

/// What the values of an array are.
struct Dtype {
    /// As numpy spells it, for messages.
    name: String,
    kind: Kind,
    big_endian: bool,
}

enum Kind {
    /// Bytes of a float: 2, 4 or 8.
    Float(usize),
    /// Bytes of an integer: 1, 2, 4 or 8.
    Int { size: usize, signed: bool },
    /// Characters of a text.
    Unicode(usize),
    /// Bytes of a text.
    Bytes(usize),
}

impl Dtype {
    fn parse(name: &str) -> Result<Self> {
        let (order, rest) = name.split_at_checked(1).unwrap_or(("", name));
        let (kind, size) = rest.split_at_checked(1).unwrap_or(("", rest));
        if kind == "O" {
            bail!("it is an object array, a pickle, which is never loaded: save it with `np.array(list_of_texts)`");
        }
        let size: usize = size.parse().ok().filter(|size| *size < 1 << 30).unwrap_or(usize::MAX);
        let kind = match (kind, size) {
            ("f", 2 | 4 | 8) => Kind::Float(size),
            ("i", 1 | 2 | 4 | 8) => Kind::Int { size, signed: true },
            ("u", 1 | 2 | 4 | 8) => Kind::Int { size, signed: false },
            ("U", 0..=MAX_TEXTS) => Kind::Unicode(size),
            ("S", 0..=MAX_TEXTS) => Kind::Bytes(size),
            _ => bail!("its dtype is `{name}`; floats, integers, `U` and `S` are read"),
        };
        ensure!(["<", ">", "|", "="].contains(&order), "its dtype is `{name}`, of unknown byte order");
        Ok(Self { name: name.to_owned(), kind, big_endian: order == ">" })
    }

    /// Bytes of a value.
    fn size(&self) -> usize {
        match self.kind {
            Kind::Float(size) | Kind::Int { size, .. } | Kind::Bytes(size) => size,
            Kind::Unicode(width) => width * 4,
        }
    }
}

/// The header of an `.npy` file.
struct Header {
    dtype: Dtype,
    fortran: bool,
    shape: Vec<usize>,
}

impl Header {
    /// Reads a Python dict like `{'descr': '<f4', 'fortran_order': False, 'shape': (5, 8), }`.
    fn parse(text: &str) -> Result<Self> {
        let mut scanner = Scanner { rest: text };
        let (mut dtype, mut fortran, mut shape) = (None, None, None);
        scanner.expect('{')?;
        while !scanner.eat('}') {
            let key = scanner.string()?;
            scanner.expect(':')?;
            match key {
                "descr" => dtype = Some(Dtype::parse(scanner.dtype()?)?),
                "fortran_order" => fortran = Some(scanner.flag()?),
                "shape" => shape = Some(scanner.tuple()?),
                other => bail!("its header has an unknown key `{other}`"),
            }
            if !scanner.eat(',') {
                scanner.expect('}')?;
                break;
            }
        }
        ensure!(scanner.rest.trim().is_empty(), "its header goes on behind its end");
        match (dtype, fortran, shape) {
            (Some(dtype), Some(fortran), Some(shape)) => Ok(Self { dtype, fortran, shape }),
            _ => bail!("its header lacks one of `descr`, `fortran_order`, `shape`"),
        }
    }
}

/// Walks over a Python literal.
struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    fn eat(&mut self, token: char) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, token: char) -> Result<()> {
        ensure!(self.eat(token), "its header is no dict of Python: `{token}` is missing before `{}`", self.shown());
        Ok(())
    }

    fn shown(&self) -> String {
        self.rest.trim_end().chars().take(20).collect()
    }

    fn string(&mut self) -> Result<&'a str> {
        let quote = if self.eat('"') { '"' } else { self.expect('\'').map(|()| '\'')? };
        let (text, rest) = self.rest.split_once(quote).context("its header has a text without end")?;
        self.rest = rest;
        Ok(text)
    }

    fn dtype(&mut self) -> Result<&'a str> {
        self.rest = self.rest.trim_start();
        ensure!(!self.rest.starts_with(['[', '(']), "it is a structured array; floats, integers and texts are read");
        self.string()
    }

    fn flag(&mut self) -> Result<bool> {
        self.rest = self.rest.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        bail!("its header has `{}` where True or False belongs", self.shown())
    }

    fn tuple(&mut self) -> Result<Vec<usize>> {
        let mut items = Vec::new();
        self.expect('(')?;
        while !self.eat(')') {
            self.rest = self.rest.trim_start();
            let digits = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
            let (number, rest) = self.rest.split_at(digits);
            items.push(number.parse().with_context(|| format!("its shape has `{}`", self.shown()))?);
            // Python 2 wrote long integers so.
            self.rest = rest.strip_prefix('L').unwrap_or(rest);
            if !self.eat(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bytes of an `.npy` file of version 1.
    fn npy(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<NpyArray> {
        read(&mut &bytes[..], bytes.len() as u64)
    }

    #[test]
    fn what_is_malformed_is_refused_with_a_reason() {
        let head = |descr: &str, shape: &str| format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}");
        for (header, data, message) in [
            (head("'<f4'", "(2,)"), 4, "it has 4 bytes of data; shape [2] of `<f4` takes 8"),
            (head("'<f4'", "(2,)"), 12, "it has 12 bytes of data; shape [2] of `<f4` takes 8"),
            (head("'<f4'", "(4611686018427387904, 8)"), 0, "shape [4611686018427387904, 8] is too large"),
            (head("'<f4'", "(99999999999999999999,)"), 0, "its shape has `99999999999999999999`"),
            (head("'<U0'", "(1000000000,)"), 0, "it holds 1000000000 texts; at most 1000000 are read"),
            (head("'<f4'", "(-1,)"), 0, "its shape has `-1,)}`"),
            (head("'<f4'", "4"), 0, "its header is no dict of Python: `(` is missing before `4}`"),
            (head("'<c8'", "(1,)"), 8, "its dtype is `<c8`; floats, integers, `U` and `S` are read"),
            (head("'|V2'", "(1,)"), 2, "its dtype is `|V2`; floats, integers, `U` and `S` are read"),
            (head("'|O'", "(1,)"), 8, "it is an object array, a pickle, which is never loaded"),
            (head("[('a', '<f4')]", "(1,)"), 4, "it is a structured array"),
            ("{'descr': '<f4', 'shape': (1,)}".to_owned(), 4, "its header lacks one of"),
            (
                "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}".to_owned(),
                4,
                "its header has `0, 'shape': (1,)}` where",
            ),
            ("{'evil': 1}".to_owned(), 4, "its header has an unknown key `evil`"),
            ("{'descr".to_owned(), 4, "its header has a text without end"),
            (head("'<f4'", "(1,)") + "x", 4, "its header goes on behind its end"),
            (String::new(), 4, "its header is no dict of Python: `{` is missing before ``"),
        ] {
            let error = format!("{:#}", parse(&npy(&header, &vec![0; data])).unwrap_err());
            assert!(error.starts_with(message), "{error}");
        }
        for (bytes, message) in [
            (&b"\x93NUM"[..], "it is shorter than the start of an `.npy` file"),
            (b"PK\x03\x04....", "it does not begin as an `.npy` file does"),
            (b"\x93NUMPY\x04\x00\x10\x00", "its format is version 4; versions 1 to 3 are read"),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "its header has 4294967295 bytes; at most 10000 are read"),
            (b"\x93NUMPY\x01\x00\x10\x00{", "its header is cut off"),
        ] {
            assert_eq!(parse(bytes).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn characters_that_are_none_are_refused() {
        let header = "{'descr': '<U1', 'fortran_order': False, 'shape': ()}";
        let error = parse(&npy(header, &0xd800u32.to_le_bytes())).unwrap_err();
        assert_eq!(error.to_string(), "0xd800 is no character");
        let header = "{'descr': '|S2', 'fortran_order': False, 'shape': ()}";
        assert_eq!(parse(&npy(header, b"\xff\xfe")).unwrap_err().to_string(), "a text is no UTF-8");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn no_header_makes_the_parser_panic(
            header in "\\{'descr': '[<>|][fiuUSOc][0-9]{0,4}', 'fortran_order': (True|False), 'shape': \\([0-9, L]{0,12}\\),? ?\\}",
            data in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let _ = parse(&npy(&header, &data));
        }

        #[test]
        fn what_was_written_is_read_back(
            floats in prop::collection::vec(any::<u32>().prop_map(f32::from_bits).prop_filter("NaN differs", |v| !v.is_nan()), 6),
            ints in prop::collection::vec(any::<i64>(), 0..5),
            texts in prop::collection::vec("[^\\x00]{0,9}", 0..5),
        ) {
            let folder = tempfile::tempdir()?;
            let path = folder.path().join("a.npz");
            let arrays = [
                ("floats", NpyArray { shape: vec![2, 1, 3], values: NpyValues::Float(floats) }),
                ("ints", NpyArray { shape: vec![ints.len()], values: NpyValues::Int(ints) }),
                ("texts", NpyArray { shape: vec![texts.len()], values: NpyValues::Text(texts) }),
                ("scalar", NpyArray { shape: vec![], values: NpyValues::Int(vec![7]) }),
            ];
            let list: Vec<(&str, &NpyArray)> = arrays.iter().map(|(name, array)| (*name, array)).collect();
            write(&path, &list).unwrap();
            let mut file = NpzFile::open(&path).unwrap();
            for (name, array) in &arrays {
                let read = file.read(name).unwrap();
                prop_assert_eq!(read.as_ref(), Some(array));
            }
            prop_assert_eq!(file.read("other").unwrap(), None);
        }
    }
}
