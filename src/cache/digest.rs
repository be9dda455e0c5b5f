//! Digests and what is named by them: SHA-256 of what is written, BLAKE3 of what is read.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// A digest of 256 bits. Shown, parsed and serialized as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

/// A file in the store: its digest and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlobRef {
    /// Digest of the whole file.
    pub sha256: Digest,
    /// Bytes.
    pub size: u64,
}

impl Digest {
    /// The SHA-256 digest of `bytes`: names what is stored and written, and can be checked with common tools.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The BLAKE3 digest of `bytes`: tells whether a source is another one. Hashing the sources is most of the work of
    /// a bake, and this is several times as fast. `passed` is told now and then how many bytes were read for good.
    pub fn of_source(bytes: &[u8], passed: &mut dyn FnMut(usize)) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in bytes.chunks(STEP) {
            hasher.update(part);
            passed(hasher.count() as usize);
        }
        Self(*hasher.finalize().as_bytes())
    }
}

impl BlobRef {
    /// The reference that a file with these bytes has.
    pub fn of(bytes: &[u8]) -> Self {
        Self { sha256: Digest::of(bytes), size: bytes.len() as u64 }
    }

    /// That of the file at `path`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        File::open(path).and_then(Self::of_reader)
    }

    /// Reads to the end.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn of_reader(mut reader: impl Read) -> io::Result<Self> {
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; BUFFER];
        let mut size = 0;
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(Self { sha256: Digest(hasher.finalize().into()), size }),
                Ok(count) => {
                    hasher.update(&buffer[..count]);
                    size += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Bytes of a source between two reports.
const STEP: usize = 8 << 20;

/// Bytes read at a time when a file is hashed or copied.
pub(super) const BUFFER: usize = 256 << 10;

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        f.write_str(std::str::from_utf8(&text).expect("hexadecimal digits are ASCII"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a SHA-256 digest: 64 lower-case hexadecimal digits are expected")]
pub struct NotADigest;

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(NotADigest),
        };
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return Err(NotADigest) };
        let mut bytes = [0; 32];
        if pairs.len() != bytes.len() {
            return Err(NotADigest);
        }
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Digest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("64 lower-case hexadecimal digits")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Digest, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_fips_180_4() {
        // Example "abc" of FIPS 180-4, appendix B.1 of its predecessor.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").to_string(), abc);
        assert_eq!(BlobRef::of_reader(&b"abc"[..]).unwrap(), BlobRef { sha256: abc.parse().unwrap(), size: 3 });
    }

    #[test]
    fn a_sources_digest_is_blake3_and_every_step_is_reported() {
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(Digest::of_source(b"", &mut |_| {}).to_string(), empty);
        let bytes: Vec<u8> = (0..2 * STEP as u32 + 77).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut reports = Vec::new();
        let digest = Digest::of_source(&bytes, &mut |done| reports.push(done));
        assert_eq!(digest, Digest(*blake3::hash(&bytes).as_bytes()));
        assert_eq!(reports, [STEP, 2 * STEP, bytes.len()]);
    }

    #[test]
    fn only_64_lower_case_hexadecimal_digits_are_a_digest() {
        let good = "0f".repeat(32);
        assert_eq!(good.parse::<Digest>().unwrap(), Digest([15; 32]));
        for bad in [String::new(), "0f".repeat(31), "0f".repeat(33), "0F".repeat(32), format!("{}g", &good[1..])] {
            assert_eq!(bad.parse::<Digest>(), Err(NotADigest), "{bad:?}");
        }
    }

    #[test]
    fn a_blob_reference_survives_json_and_refuses_unknown_fields() {
        let blob = BlobRef::of(b"abc");
        let text = serde_json::to_string(&blob).unwrap();
        assert_eq!(serde_json::from_str::<BlobRef>(&text).unwrap(), blob);
        let more = text.replace("\"size\"", "\"length\":3,\"size\"");
        assert!(serde_json::from_str::<BlobRef>(&more).is_err());
    }
}
