//! Core ML's blob storage, version 2: the format of `weights/weight.bin`.
//!
//! A file is a 64-byte header (u32 count, u32 version = 2, zeros), then entries. An entry is 64 bytes of metadata at a
//! 64-byte boundary (u32 sentinel, u32 dtype, u64 size in bytes, u64 absolute offset of the data, u64 padding bits,
//! zeros) and its data right after. Gaps up to the next boundary are zeros; the file ends with the last data byte.
//! All numbers are little-endian. Source: `MILBlob/Blob/StorageFormat.hpp` of coremltools 9.0, and the bytes that it
//! writes.

use anyhow::{Result, bail};

/// Size of the file header and of an entry's metadata, and the alignment of entries, in bytes.
pub const ALIGNMENT: u64 = 64;

const SENTINEL: u32 = 0xDEAD_BEEF;
const VERSION: u32 = 2;

/// Dtype of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlobDtype {
    /// IEEE binary16.
    Float16,
    /// IEEE binary32.
    Float32,
    /// u8.
    UInt8,
    /// i8.
    Int8,
    /// bfloat16.
    BFloat16,
    /// i16.
    Int16,
    /// u16.
    UInt16,
    /// i4, two an byte, low nibble first.
    Int4,
    /// u1.
    UInt1,
    /// u2.
    UInt2,
    /// u4.
    UInt4,
    /// u3.
    UInt3,
    /// u6.
    UInt6,
    /// i32.
    Int32,
    /// u32.
    UInt32,
}

impl BlobDtype {
    /// Every dtype with its code in the file and its width in bits. Codes: `BlobDataType` in
    /// `MILBlob/Blob/BlobDataType.hpp` of coremltools 9.0.
    const TABLE: [(Self, u32, u64, &'static str); 15] = [
        (Self::Float16, 1, 16, "fp16"),
        (Self::Float32, 2, 32, "fp32"),
        (Self::UInt8, 3, 8, "uint8"),
        (Self::Int8, 4, 8, "int8"),
        (Self::BFloat16, 5, 16, "bf16"),
        (Self::Int16, 6, 16, "int16"),
        (Self::UInt16, 7, 16, "uint16"),
        (Self::Int4, 8, 4, "int4"),
        (Self::UInt1, 9, 1, "uint1"),
        (Self::UInt2, 10, 2, "uint2"),
        (Self::UInt4, 11, 4, "uint4"),
        (Self::UInt3, 12, 3, "uint3"),
        (Self::UInt6, 13, 6, "uint6"),
        (Self::Int32, 14, 32, "int32"),
        (Self::UInt32, 15, 32, "uint32"),
    ];

    fn row(self) -> (Self, u32, u64, &'static str) {
        Self::TABLE[self as usize]
    }

    /// The code in the file.
    pub fn code(self) -> u32 {
        self.row().1
    }

    /// Width of one element in bits.
    pub fn bits(self) -> u64 {
        self.row().2
    }

    /// MIL's spelling.
    pub fn as_str(self) -> &'static str {
        self.row().3
    }

    /// The dtype of a code.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::TABLE.iter().find(|row| row.1 == code).map(|row| row.0)
    }

    /// The dtype of MIL's spelling.
    pub fn from_mil(name: &str) -> Option<Self> {
        Self::TABLE.iter().find(|row| row.3 == name).map(|row| row.0)
    }

    /// Bytes that `elements` take, the last byte filled up.
    pub fn bytes(self, elements: u64) -> Option<u64> {
        elements.checked_mul(self.bits()).map(|bits| bits.div_ceil(8))
    }
}

/// One entry of a blob file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Dtype.
    pub dtype: BlobDtype,
    /// Offset of the metadata: what a program's `BlobFileValue.offset` holds.
    pub offset: u64,
    /// Size of the data in bytes.
    pub size: u64,
    /// Unused bits in the last byte.
    pub padding_bits: u64,
}

impl Entry {
    /// An entry for `elements` of `dtype` at `offset`.
    pub fn new(dtype: BlobDtype, elements: u64, offset: u64) -> Option<Self> {
        let size = dtype.bytes(elements)?;
        Some(Self { dtype, offset, size, padding_bits: size * 8 - elements * dtype.bits() })
    }

    /// Offset of the data.
    pub fn data_offset(&self) -> u64 {
        self.offset + ALIGNMENT
    }

    /// Offset just behind the data.
    pub fn end(&self) -> u64 {
        self.data_offset() + self.size
    }

    /// The 64 bytes of metadata.
    pub fn metadata(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[0..4].copy_from_slice(&SENTINEL.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.dtype.code().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.data_offset().to_le_bytes());
        bytes[24..32].copy_from_slice(&self.padding_bits.to_le_bytes());
        bytes
    }

    /// Reads and checks the entry at `offset` of a whole file.
    ///
    /// # Errors
    /// The offset is not aligned or outside the file, the sentinel or dtype is unknown, or the data reaches beyond the
    /// end of the file.
    pub fn read(file: &[u8], offset: u64) -> Result<Self> {
        if !offset.is_multiple_of(ALIGNMENT) {
            bail!("offset {offset} is not a multiple of {ALIGNMENT}");
        }
        let length = file.len() as u64;
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| file.get(start..start.checked_add(64)?))
            .ok_or_else(|| anyhow::anyhow!("offset {offset} lies outside the file of {length} bytes"))?;
        let sentinel = u32_at(bytes, 0);
        if sentinel != SENTINEL {
            bail!("no blob at offset {offset}: found {sentinel:#010x}, not {SENTINEL:#010x}");
        }
        let code = u32_at(bytes, 4);
        let Some(dtype) = BlobDtype::from_code(code) else {
            bail!("blob at offset {offset}: unknown dtype code {code}");
        };
        let (size, data, padding_bits) = (u64_at(bytes, 8), u64_at(bytes, 16), u64_at(bytes, 24));
        if data != offset + ALIGNMENT {
            bail!("blob at offset {offset}: data offset is {data}, not {}", offset + ALIGNMENT);
        }
        if padding_bits >= 8 {
            bail!("blob at offset {offset}: {padding_bits} padding bits");
        }
        if data.checked_add(size).is_none_or(|end| end > length) {
            bail!("blob at offset {offset}: {size} bytes of data reach beyond the file of {length} bytes");
        }
        Ok(Self { dtype, offset, size, padding_bits })
    }

    /// The entry's data within a whole file that [`Entry::read`] took it from.
    pub fn data<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        &file[self.data_offset() as usize..self.end() as usize]
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        (self.size * 8 - self.padding_bits) / self.dtype.bits()
    }
}

/// The 64 bytes at the start of a file with `count` entries.
pub fn header(count: u32) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[0..4].copy_from_slice(&count.to_le_bytes());
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Checks a file's header and returns its number of entries.
///
/// # Errors
/// The file is too short or of another version.
pub fn read_header(file: &[u8]) -> Result<u32> {
    let Some(bytes) = file.get(..64) else {
        bail!("{} bytes are too few for a blob file's header", file.len());
    };
    let version = u32_at(bytes, 4);
    if version != VERSION {
        bail!("blob storage version {version}, not {VERSION}");
    }
    Ok(u32_at(bytes, 0))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_what_coremltools_writes() {
        // fp16 [1024] as the first entry, and int4 with 481 elements: bytes seen in files of coremltools 9.0.
        let gain = Entry::new(BlobDtype::Float16, 1024, 64).unwrap().metadata();
        assert_eq!(gain[..24], hex("efbeadde0100000000080000000000008000000000000000"));
        assert_eq!(gain[24..], [0; 40]);
        let odd = Entry::new(BlobDtype::Int4, 481, 64).unwrap().metadata();
        assert_eq!(odd[..32], hex("efbeadde08000000f10000000000000080000000000000000400000000000000"));
    }

    #[test]
    fn entry_reads_back_what_metadata_wrote_and_refuses_damage() {
        let entry = Entry::new(BlobDtype::Int4, 481, 64).unwrap();
        let mut file = header(1).to_vec();
        file.extend(entry.metadata());
        file.extend(vec![7; 241]);
        assert_eq!(Entry::read(&file, 64).unwrap(), entry);
        assert_eq!(entry.elements(), 481);
        assert_eq!(entry.data(&file), vec![7; 241]);
        for (offset, text) in [(65, "not a multiple"), (0, "no blob"), (1 << 40, "outside"), (u64::MAX - 63, "outside")]
        {
            assert!(Entry::read(&file, offset).unwrap_err().to_string().contains(text), "{offset}");
        }
        assert!(Entry::read(&file[..300], 64).unwrap_err().to_string().contains("beyond the file"));
        file[68] = 99;
        assert!(Entry::read(&file, 64).unwrap_err().to_string().contains("unknown dtype code 99"));
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }
}
